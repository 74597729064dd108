"""What an array remembers of itself: scrubs, errors and repairs of members, over remounts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from raidx_fuse.array import advice
from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.cli.status_text import scan_text
from raidx_fuse.daemon.events.event import Event
from raidx_fuse.daemon.events.sources import Watch
from raidx_fuse.daemon.inspect import describe
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.configuration.config import ArrayConfig, encode_config
from raidx_fuse.format.configuration.fitting import RESERVE_BYTES, fitted
from raidx_fuse.format.configuration.remembered import (
    HEALTH,
    KeptHealth,
    KeptScrub,
    ScrubbedMember,
    ScrubbedPlace,
    health_of,
    with_health,
)
from raidx_fuse.format.create import create_array
from raidx_fuse.format.superblock import BODY_BYTES_MAX
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.spy import restarted, spying

MIB = 1 << 20
CHUNK = 4096
BEGAN_S = 1_700_000_000


async def made(layout: str, width: int) -> list[FaultMember]:
    members = [FaultMember(RamMember(MIB, name=f"d{n}")) for n in range(width)]
    await create_array(members, layout, name="disk", now_s=0, chunk_bytes=CHUNK)
    return members


@asynccontextmanager
async def opened(members: list[FaultMember], **options: Any) -> AsyncIterator[Array]:
    """Open the array with a wall clock that follows virtual time."""

    def unix_s() -> int:
        return BEGAN_S + round(trio.current_time())

    async with open_array(members, unix_s=unix_s, **options) as array:
        yield array


async def rot(array: Array, members: list[FaultMember], chunk: int) -> int:
    """Rot two bytes of a chunk at its home place; return its role."""
    await array.context.journal.drain()
    layout = array.context.layout
    role, member_chunk = layout.place(*layout.locate(chunk))
    at = array.member_set.config.regions.data.offset + member_chunk * CHUNK
    await members[role].rot(at + 100, 2, mask=0x40)
    return role


async def contents(members: list[FaultMember]) -> list[bytes]:
    found = [bytearray(member.size_bytes) for member in members]
    for member, content in zip(members, found, strict=True):
        await member.readv(0, [memoryview(content)])
    return [bytes(content) for content in found]


async def scrub(array: Array, repair: bool = False) -> Mapping[str, Any]:
    return await array.jobs.wait(await array.start_scrub(repair))


async def at_rest(members: list[FaultMember]) -> Mapping[str, Any]:
    return describe(await assemble(members))


async def test_a_scrub_is_remembered_with_date_result_and_places() -> None:
    members = await made("raid5", 4)
    async with opened(members) as array:
        assert array.status()["last_scrub"] is None
        assert scan_text(array.status()) == "none requested"
        await array.write(0, random.Random(1).randbytes(30 * CHUNK))
        await rot(array, members, 7)
        await trio.sleep(100)
        await scrub(array)
        kept = array.status()["last_scrub"]
    assert kept["state"] == "done"
    assert (kept["mismatches"], kept["repaired"], kept["left"]) == (1, 0, 1)
    assert BEGAN_S + 100 <= (kept["ended_s"] or 0) <= BEGAN_S + 110
    (place,) = kept["places"]
    assert place["image_offset"] == 6 * CHUNK + 100, "one parity: any chunk of the stripe"
    assert place["stripe"] == 2
    rest = await at_rest(members)
    assert rest["last_scrub"] == kept
    assert "1 mismatch, first at image offset" in rest["action"]
    assert "raidx scrub MOUNTPOINT --repair" in rest["action"]
    assert "1 mismatch, 0 repaired, 1 left in" in scan_text(rest)
    assert " on 2023-11-" in scan_text(rest)
    assert rest["last_scrub"] is not None
    rest["last_scrub"]["unchecked_stripes"] = 1
    assert "1 left, 1 stripe not checked in" in scan_text(rest)
    async with opened(members) as array:
        status = array.status() | {"mountpoint": "/mnt"}
        assert status["last_scrub"] == kept
        assert "raidx scrub /mnt --repair" in (advice.action(status) or "")
        await scrub(array, repair=True)
        assert advice.action(array.status()) is None
    assert (await at_rest(members))["last_scrub"]["left"] == 0


async def test_counts_of_each_member_survive_scrubs_and_remounts() -> None:
    members = await made("rdp", 6)
    roles = []
    for turn in (1, 2):
        async with opened(members) as array:
            await array.write(0, random.Random(turn).randbytes(40 * CHUNK))
            roles.append(await rot(array, members, 9))
            found = await scrub(array, repair=True)
            assert found["members"] == [{"role": roles[-1], "wrong": 1, "repaired": 1}]
            assert array.status()["members"][roles[0]]["repairs_ever"] == turn
    rest = await at_rest(members)
    assert [m["repairs_ever"] for m in rest["members"]] == [2 * (n == roles[0]) for n in range(6)]
    assert rest["last_scrub"]["members"] == [{"role": roles[0], "wrong": 1, "repaired": 1}]


async def test_counts_that_were_cleared_begin_anew() -> None:
    members = await made("rdp", 6)
    for turn in (1, 2):
        async with opened(members) as array:
            await array.write(0, random.Random(turn).randbytes(40 * CHUNK))
            role = await rot(array, members, 9)
            await scrub(array, repair=True)
            queue = array.member_set.queues[role]
            assert queue is not None
            queue.errors += 3
            found = array.status()["members"][role]
            assert (found["errors_ever"], found["repairs_ever"]) == (3, 1), turn
            await array.health.clear(array.member_set.config.members)
            assert array.status()["members"][role]["errors_ever"] == 0
            queue.errors += 1
            assert array.status()["members"][role]["errors_ever"] == 1
            queue.errors -= 1
        rest = await at_rest(members)
        assert not any(m["errors_ever"] or m["repairs_ever"] for m in rest["members"])


async def test_errors_of_a_member_are_remembered_also_when_it_was_excluded() -> None:
    members = await made("raid5", 4)
    async with opened(members) as array:
        await array.write(0, random.Random(1).randbytes(30 * CHUNK))
        await array.context.journal.drain()
        members[2].error(["read"])
        await array.read(0, 30 * CHUNK)
        status = array.status()
        assert status["members"][2]["state"] == "failed"
        ever = status["members"][2]["errors_ever"]
        assert ever >= 1
        uuid = status["members"][2]["uuid"]
    rest = await at_rest(members)
    (told,) = (m for m in rest["members"] if m["uuid"] == uuid)
    assert told["errors_ever"] == ever


async def test_a_resync_after_a_crash_blames_no_member() -> None:
    async with spying("rdp", 6, chunk_bytes=CHUNK) as rig:
        await rig.array.set("journal", "none")
        await rig.put(0, random.Random(1).randbytes(40 * CHUNK))
        role, at = 2, rig.data.offset + 100
        images = [bytearray(image) for image in rig.images()]
    images[role][at] ^= 0x40  # as a torn write leaves it
    told: list[Event] = []
    async with restarted([bytes(image) for image in images]) as array:
        Watch(told.append, "/mnt", lambda: 0).begin(array)
        (job,) = array.jobs.running()
        ended = await array.jobs.wait(job.job_id)
        assert (ended["kind"], ended["mismatches"]) == ("resync", 1)
        status = array.status()
        assert [member["repairs_ever"] for member in status["members"]] == [0] * 6
        assert status["last_scrub"] is None
    assert "MismatchFound" not in [event.event for event in told]


async def test_a_read_only_array_and_an_untouched_one_save_nothing() -> None:
    members = await made("raid5", 4)
    async with opened(members) as array:
        await array.write(0, b"x")
    assert HEALTH not in (await assemble(members)).config.jobs
    before = await contents(members)
    async with opened(members, read_only=True) as array:
        await scrub(array)
        assert array.status()["last_scrub"]["mismatches"] == 0
    assert await contents(members) == before


WRONG: list[Any] = [
    *(
        None,
        7,
        [],
        {"scrub": 5, "members": []},
        {"members": {"a": [1]}},
        {"members": {"a": [1, -1]}},
    ),
    {"scrub": {"state": "done"}},
    {"scrub": {"state": "done", "repair": False, "places": [[1]], "members": []}},
]


@pytest.mark.parametrize("value", WRONG)
async def test_what_cannot_be_read_counts_as_none(value: object) -> None:
    members = await made("raid5", 4)
    async with opened(members) as array:
        await array.member_set.update(lambda c: replace(c, jobs={**c.jobs, HEALTH: value}))
    assert (await at_rest(members))["last_scrub"] is None
    async with opened(members) as array:
        assert array.status()["last_scrub"] is None
        await scrub(array)
    assert (await at_rest(members))["last_scrub"]["state"] == "done"


async def test_it_is_bounded_and_gives_way_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[ArrayConfig] = []
    found.append((await assemble(await made("raid5", 4))).config)
    scrubbed = KeptScrub(
        *("cancelled", True, BEGAN_S, 10**6, 10**9, 0, 10**9, 10**9),
        members=tuple(ScrubbedMember(role, 10**9, 10**9) for role in range(255)),
        places=(ScrubbedPlace(10**9, 10**15, tuple(range(255))),) * 1000,
    )
    counts = {f"{n:08x}": (n + 1, 10**9) for n in range(1000)}
    full = with_health(found[0], KeptHealth(counts, scrubbed))
    assert len(encode_config(full)) - len(encode_config(found[0])) < 6 << 10
    kept = health_of(full)
    assert kept.scrub is not None
    assert (len(kept.members), len(kept.scrub.places)) == (64, 16)
    assert kept.members["000003e7"] == (1000, 10**9)
    room = BODY_BYTES_MAX - RESERVE_BYTES - len(encode_config(full))
    for more, keeps in ((100, False), (-100, True)):
        filled = replace(full, settings={"balance.stay": "x" * (room + more)})
        assert (HEALTH in fitted(filled, RESERVE_BYTES).jobs) is keeps


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"jobs": [{"id": 3, "kind": "restripe"}]}, "it leaves: raidx job /mnt wait"),
        ({"jobs": [{"id": 3, "kind": "restripe", "paused": True}]}, "restripe is paused"),
        ({"host_full": True, "hosts": []}, "the file system of the members is full"),
        ({"jobs": []}, "the restripe was aborted"),
        ({"jobs": [], "read_only": True}, "mount the array read-write"),
        ({"lost_chunks": 1}, "it leaves"),
    ],
)
def test_a_lost_member_that_leaves_is_not_replaced_and_hides_no_other_advice(
    more: dict[str, Any], said: str
) -> None:
    status = {
        "mountpoint": "/mnt",
        "state": "degraded",
        "members": [{"role": 1, "state": "failed"}],
        "action": "it leaves: raidx job ARRAY wait",
    }
    assert (advice.action(status | more) or "").startswith(said)
