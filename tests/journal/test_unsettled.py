"""Parity that follows at the checkpoint: what is read and written when, and what explain says."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from raidx_fuse.journal.journal import Journal
from raidx_fuse.journal.unsettled import ALONE_BYTES, Unsettled
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.planning.stripe_plan import bands_of, write_plans
from tests.support.arrays import Rig, parity_holds
from tests.support.load import opened
from tests.support.spy import READ, WRITE, SpyRig, locked, restarted, spied, spying

CHUNK = 4096
WRITES = 12
LAYOUTS = [("raid4", 4), ("raid5", 4), ("rdp", 6), ("upc", 6), ("evenodd", 6)]


async def written_rig(layout: str = "raid5", width: int = 4) -> SpyRig:
    """Return a written array whose parity follows at the checkpoint."""
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=2600)
    await rig.put(0, random.Random(1).randbytes(1 << 20))
    await rig.in_place()
    rig.log.clear()
    return rig


async def check(rig: SpyRig) -> None:
    """Assert that the content is right, and that every chain holds on the members."""
    await rig.in_place()
    await rig.compare()
    await parity_holds(rig.array)


@pytest.mark.parametrize(("layout", "width"), LAYOUTS)
async def test_a_small_write_reads_nothing_and_logs_its_data_only(layout: str, width: int) -> None:
    rig = await written_rig(layout, width)
    context = rig.array.context
    plan = rig.array.explain(CHUNK + 512, 512, True)["stripes"][0]
    await rig.put(CHUNK + 512, bytes(range(256)) * 2)
    assert not rig.log.of(READ), "the parity is not computed yet"
    written = rig.log.of(WRITE)
    assert len(written) == context.code.tolerance + 1, "the log members alone"
    assert plan["route"] == "log"
    assert plan["log"]["parity"] == "at the checkpoint"
    assert {entry.size_bytes for entry in written} == {plan["log"]["bytes"]}
    assert context.journal.unsettled
    assert "parity deferred" in rig.array.explain_stripe(plan["stripe"])["state"]
    rig.log.clear()
    await context.journal.place()
    reads = [entry for entry in rig.log.of(READ) if entry.size_bytes == 512]
    assert len(reads) == plan["checkpoint"]["reads"] > 0
    assert not context.journal.unsettled
    await check(rig)


async def test_a_stripe_that_is_written_often_pays_once() -> None:
    rig = await written_rig("raid5", 4)
    for turn in range(5):
        await rig.put(CHUNK, bytes([turn]) * CHUNK)
    await rig.array.context.journal.place()
    assert len(rig.log.of(READ)) == 2, "old data and old parity, once"
    await check(rig)


async def test_a_stripe_that_became_whole_reads_nothing() -> None:
    rig = await written_rig("raid5", 4)
    for cell in range(3):
        for half in (0, CHUNK // 2):
            await rig.put(cell * CHUNK + half, bytes([cell]) * (CHUNK // 2))
    await rig.array.context.journal.place()
    assert not rig.log.of(READ)
    await check(rig)


async def test_many_stripes_are_settled_by_one_record_and_the_tail_goes_behind_it() -> None:
    rig = await written_rig("raid5", 4)
    journal = rig.array.context.journal
    await rig.in_place()
    for number in range(12):
        await rig.put(number * 3 * CHUNK, bytes([number]) * 512)
    sequence = journal.ring.next_sequence
    await journal.place()
    assert journal.ring.next_sequence == sequence + 1
    assert not journal.ring.open, "the parities are in their places, too"
    assert journal.ring.placed_tail[:2] == (journal.ring.next_sequence, journal.ring.position)
    await check(rig)


async def test_the_tail_stays_before_data_that_came_while_parities_were_logged() -> None:
    rig = await written_rig("raid5", 4)
    journal = rig.array.context.journal
    for number in range(4):
        await rig.put(number * 3 * CHUNK, bytes([number]) * CHUNK)
    freeze = journal._freeze

    async def then_more_data() -> None:
        await freeze()
        await rig.put(30 * CHUNK, b"n" * CHUNK)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal, "_freeze", then_more_data)
        await journal.place()
    assert len(journal.ring.open) == 2, "the data, and the parities behind it"
    assert journal.ring.placed_tail[0] == journal.ring.next_sequence - 2
    await check(rig)


async def test_a_stripe_that_has_parity_in_a_layer_gets_no_data_without_it_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log was filling up at the first write: its parity is not that of the base."""
    rig = await written_rig("raid5", 4)
    journal = rig.array.context.journal
    sequence = journal.ring.next_sequence
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "is_filling", True)
        await rig.put(512, random.Random(2).randbytes(512))
    assert journal.ring.next_sequence > sequence
    assert not journal.unsettled
    await rig.put(CHUNK + 512, random.Random(3).randbytes(512))
    await check(rig)


async def test_no_parity_is_awaited_while_the_gate_of_the_layout_is_closed() -> None:
    """Writes were let in, and wait for the log, when the gate begins to close."""
    rig = await written_rig("raid5", 4)
    context = rig.array.context
    journal = context.journal
    may_end = trio.Event()

    async def change() -> None:
        async with context.closed():
            assert not journal.unsettled

    async with trio.open_nursery() as nursery:
        inside = context.gate.enter_now()
        nursery.start_soon(journal.drain, may_end.wait)
        nursery.start_soon(change)
        await trio.sleep(1)
        for stripe in range(WRITES):  # some go on before the log is emptied once more
            nursery.start_soon(rig.put, 3 * stripe * CHUNK + 512, b"b" * 512)
        await trio.sleep(1)
        assert context.gate.inside == 1 + WRITES
        inside.leave()
        await trio.sleep(1)
        may_end.set()
    await check(rig)


async def test_a_job_sees_chains_that_hold() -> None:
    rig = await written_rig("raid5", 4)
    await rig.put(CHUNK + 512, b"not settled yet")
    status = await rig.array.jobs.wait(await rig.array.start_scrub(repair=True))
    assert status["mismatches"] == 0
    assert not rig.array.context.journal.unsettled
    await rig.put(2 * CHUNK + 512, b"beside what is settled")
    await check(rig)


async def test_the_cache_can_be_switched_on_at_any_time() -> None:
    rig = await written_rig("raid5", 4)
    for turn in range(6):
        await rig.array.set("cache.size", ("1MiB", "0")[turn % 2])  # it follows each write
        for offset in (700, CHUNK + 512, 2 * CHUNK, 5 * CHUNK + 100):
            await rig.put(offset + turn, bytes([turn]) * 600)
        if turn == 3:
            await rig.array.context.journal.place()
    await check(rig)


@pytest.mark.parametrize("lost", [None, 0, 1])
@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("rdp", 6)])
async def test_a_record_of_an_older_version_is_redone(
    layout: str, width: int, lost: int | None
) -> None:
    """It has the parity of a healthy stripe beside the data."""
    async with spying(layout, width, chunk_bytes=CHUNK, stripes=60) as rig:
        await rig.put(0, random.Random(1).randbytes(len(rig.model)))
        await rig.in_place()
        context = rig.array.context
        new, old = random.Random(2).randbytes(512), rig.model[1024:1536]
        change = bytes(a ^ b for a, b in zip(new, old, strict=True))
        plan, _ = write_plans(context.code, 1, 0, 0)
        assert plan is not None
        assert plan.kind == "rmw"
        writes = []
        for cell in (0, *(output.cell for output in plan.outputs)):
            role, place = context.position(Stripe(0), CellIndex(cell))
            before = bytes(rig.rams[role].memory[place + 1024 : place + 1536])
            after = bytes(a ^ b for a, b in zip(before, change, strict=True))
            writes.append((role, place + 1024, [after], 512))
        with locked(context, 0):
            assert await context.journal.commit([Stripe(0)], writes, [])
        await rig.array.flush()
        rig.model[1024:1536] = new
        images, model = rig.images(), bytes(rig.model)
    if lost is not None:
        images[lost] = bytes(len(images[lost]))
    async with restarted([image for n, image in enumerate(images) if n != lost]) as array:
        assert bytes(await array.read(0, len(model))) == model
        await parity_holds(array)


async def test_a_log_too_small_for_a_stripes_parity_logs_both() -> None:
    rig = await written_rig("raid5", 4)
    unsettled = rig.array.context.journal.unsettled
    unsettled._record_bytes = 2 * 1048 + ALONE_BYTES
    unsettled._layout = None
    for offset, together in ((512, True), (2048, True), (1024, False), (3072, False)):
        plan = rig.array.explain(offset, 1000, True)["stripes"][0]
        assert (plan["log"]["parity"] == "at the checkpoint") is together
        await rig.put(offset, random.Random(offset).randbytes(1000))
        assert bool(unsettled) is together
    await rig.in_place()
    await rig.put(0, random.Random(9).randbytes(2600))
    assert not unsettled
    await check(rig)


@pytest.mark.parametrize("slow", [False, True], ids=["ram", "slow"])
@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("rdp", 6)])
async def test_random_writes_losses_and_checkpoints_keep_the_content(
    layout: str, width: int, slow: bool
) -> None:
    rig = await opened(Rig(layout, width, chunk_bytes=CHUNK, stripes=2600, slow=slow))
    array = rig.array
    model = bytearray(1 << 20)
    rng = random.Random(f"{layout} {slow}")
    notes = 0
    note = Unsettled.note

    def counted(self: Unsettled, *change: Any) -> None:
        nonlocal notes
        notes += 1
        note(self, *change)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Unsettled, "note", counted)
        await array.write(0, bytes(len(model)))
        for turn in range(120):
            offset = rng.randrange(len(model) // 4)
            data = rng.randbytes(rng.choice((1, 512, 4096, 9000)))[: len(model) - offset]
            await array.write(offset, data)
            model[offset : offset + len(data)] = data
            if turn % 17 == 0:
                await array.context.journal.place()
            if turn == 60:
                await array.fail_disk(1)
        assert bytes(await array.read(0, len(model))) == model
    assert notes > 20


def test_bands_are_cut_where_a_part_begins_or_ends() -> None:
    rng = random.Random(1)
    for _ in range(50):
        parts = []
        for _ in range(rng.randint(1, 5)):
            low = rng.randrange(20)
            parts.append((rng.randrange(4), low, low + rng.randint(1, 10)))
        touched = {(cell, at) for cell, low, high in parts for at in range(low, high)}
        bands = bands_of(parts)
        found = [
            (c, at)
            for low, high, m in bands
            for at in range(low, high)
            for c in range(4)
            if m >> c & 1
        ]
        assert len(found) == len(set(found)), "no byte is in two bands"
        assert set(found) == touched
