"""`explain` says what the engine then does: route, log record, plan."""

from __future__ import annotations

import random

import pytest
from trio.testing import wait_all_tasks_blocked

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.steps import steps_of
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.store.io_tuples import MemberLostError
from tests.support.arrays import ram_array
from tests.support.spy import READ, WRITE, spied

CHUNK = 4096
PAGES = 4 * 4096
STRIPE = 3 * CHUNK
REQUESTS = {
    "small": (CHUNK + 512, 512),
    "two chunks": (CHUNK // 2, CHUNK),
    "whole stripe": (2 * STRIPE, STRIPE),
    "first write": (20 * STRIPE + 512, 512),
}


@pytest.mark.parametrize("mode", ["partial", "full", "none"])
@pytest.mark.parametrize("request_name", REQUESTS)
async def test_a_write_does_what_was_explained(request_name: str, mode: str) -> None:
    offset, length = REQUESTS[request_name]
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=200)
    await rig.array.set("journal", mode)
    await rig.put(0, random.Random(1).randbytes(8 * STRIPE))
    await rig.in_place()
    (plan,) = rig.array.explain(offset, length, True)["stripes"]
    rig.log.clear()
    await rig.put(offset, random.Random(2).randbytes(length))
    regions = rig.array.member_set.config.regions
    reads = sum(touch.size_bytes for touch in rig.log.of(READ, regions.data))
    home = rig.log.bytes_of(WRITE, regions.data)
    logged = [touch.size_bytes for touch in rig.log.of(WRITE, regions.log)]
    shown = [band[kind] for band in plan["bands"] for kind in ("reads", "writes")]
    to_read, to_write = (
        sum(place["length"] for places in shown[kind::2] for place in places) for kind in (0, 1)
    )
    if plan["route"] != "log":
        assert plan["log"] is None
        assert logged == []
        assert (reads, home) == (to_read, to_write)
        return
    assert home == 0
    assert len(logged) == len(plan["log"]["roles"])
    assert set(logged) == {plan["log"]["bytes"]}
    later = plan["log"]["parity"] == "at the checkpoint"
    assert reads == (0 if later and plan["checkpoint"]["reads"] else to_read)
    rig.log.clear()
    await rig.array.context.journal.place()
    assert rig.log.bytes_of(WRITE, regions.data) == to_write
    after = [touch.size_bytes for touch in rig.log.of(WRITE, regions.log)]
    record = plan["checkpoint"]["log_bytes"]
    assert [size for size in after if size == record] == [record] * (2 if later else 0)


EXPLAINED = (
    *(("raid1", 3), ("raid4", 4), ("raid5", 5), ("rdp", 6), ("evenodd", 5), ("upc", 6)),
    *(("xcode", 5), ("pcode", 6), ("raidx-copy", 4), ("raidx-parity", 5)),
)


@pytest.mark.parametrize(
    ("layout", "width", "mode", "failed"),
    [  # each layout with each mode, every second one with a member lost
        (*array, mode, (number + place) % 2)
        for number, array in enumerate(EXPLAINED)
        for place, mode in enumerate(("partial", "full", "none"))
    ],
)
async def test_every_layout_does_what_was_explained(
    layout: str, width: int, mode: str, failed: int
) -> None:
    """Chunks and parts of them, some for the first time, some in degraded stripes."""
    draw = random.Random(f"{layout} {mode}")
    rig = await spied(layout, width, chunk_bytes=CHUNK)
    array = rig.array
    await array.set("journal", mode)
    half = len(rig.model) // 2 // STRIPE * STRIPE
    await rig.put(0, draw.randbytes(half))
    for role in range(failed):
        await array.fail_disk(role)
    queues = array.member_set.queues
    roles = {queue.member.path: role for role, queue in enumerate(queues) if queue}
    regions = array.member_set.config.regions
    for length in (CHUNK, 100, 512, 2 * CHUNK, CHUNK + 512, CHUNK // 2, CHUNK):
        chunk = draw.randrange(2 * half // CHUNK - 3)
        offset = chunk * CHUNK + (CHUNK // 2 if length % CHUNK else 0)
        await rig.in_place()
        plan, *more = array.explain(offset, length, True)["stripes"]
        if more:
            continue  # what several stripes write is joined
        rig.log.clear()
        await rig.put(offset, draw.randbytes(length))
        planned = [
            sum(place["length"] for band in plan["bands"] for place in band[kind])
            for kind in ("reads", "writes")
        ]
        reads = rig.log.bytes_of(READ, regions.data)
        home = rig.log.bytes_of(WRITE, regions.data)
        if plan["route"] != "log":
            assert (reads, home) == tuple(planned)
            continue
        logged = rig.log.of(WRITE, regions.log)
        record = plan["log"]
        follows = record["parity"] == "at the checkpoint"
        assert (reads, home) == (0 if follows else planned[0], 0)
        assert sorted((roles[touch.member], touch.size_bytes) for touch in logged) == [
            (role, record["bytes"]) for role in record["roles"]
        ]


async def test_a_stripe_is_explained() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    await rig.put(0, bytes(CHUNK))
    shown = rig.array.explain_stripe(0)
    assert [cell["cell"] for cell in shown["cells"]] == ["D0", "D1", "D2", "P0"]
    assert [cell["written"] for cell in shown["cells"]] == [True, False, False, True]
    assert shown["state"] == ["logged"]
    with pytest.raises(UsageError, match="does not exist"):
        rig.array.explain_stripe(10**9)


async def test_a_degraded_write_is_called_what_it_is() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=64)
    await rig.put(0, random.Random(1).randbytes(STRIPE))
    lost = rig.array.context.layout.roles(0)[1]
    await rig.array.fail_disk(lost)
    (band,) = rig.array.explain(CHUNK, 512, True)["stripes"][0]["bands"]
    assert band["kind"] == "rcw"
    assert band["xor"] == ["P0 = old D0 ^ old D2 ^ new D1"]
    assert band["why"] == "reconstruct-write: without the lost chunk there is no other way"
    (band,) = rig.array.explain(0, 512, True)["stripes"][0]["bands"]
    assert band["kind"] == "rmw"
    before = rig.array.stats()["array"]
    await rig.put(CHUNK, bytes(512))
    after = rig.array.stats()["array"]
    assert (after["rcw"] - before["rcw"], after["rmw"] - before["rmw"]) == (1, 0)


async def test_a_read_is_explained_with_what_it_compares_and_heals() -> None:
    members: list[Member] = [*await ram_array("raid5", 4, 4 << 20, chunk_bytes=PAGES, sums=True)]
    async with open_array(members) as array:
        context = array.context
        await array.write(0, random.Random(1).randbytes(4 * PAGES))
        await context.journal.place()
        (band,) = array.explain(0, PAGES, False)["stripes"][0]["bands"]
        assert (band["why"], band["compared"]) == (
            "read directly; compared with the checksums",
            True,
        )
        assert [step["does"] for step in steps_of(array.explain(0, 4096, False))] == [
            *("read", "compare", "acknowledge")
        ]
        role, position = context.position(Stripe(0), CellIndex(0))
        member = members[role]
        assert isinstance(member, RamMember)
        member.memory[position + 4096] ^= 1
        await context.locks.acquire(Stripe(0))  # the mender has to wait
        requests = [(role, int(position) + 4096, [bytearray(4096)], 4096)]
        with pytest.raises(MemberLostError):
            await context.member_set.read(requests)
        plan = array.explain(0, PAGES, False)
        bands = plan["stripes"][0]["bands"]
        assert [(band["from"], band["to"], band["heals"]) for band in bands] == [
            *((0, 4096, []), (4096, 8192, ["D0"]), (8192, PAGES, []))
        ]
        assert bands[1]["xor"] == ["D0 = old D1 ^ old D2 ^ old P0"]
        assert "misfits its checksum" in bands[1]["why"]
        steps = [step["does"] for step in steps_of(plan)]
        assert steps[-2:] == ["acknowledge", "heal"]
        context.locks.release(Stripe(0))
        await wait_all_tasks_blocked()
        (band,) = array.explain(0, PAGES, False)["stripes"][0]["bands"]
        assert band["heals"] == []
        (band,) = array.explain(0, PAGES, True)["stripes"][0]["bands"]
        assert "compared" not in band
