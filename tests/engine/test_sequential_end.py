"""The last part of a stripe that was filled from the front, when not all members take it at once.

Some have taken it then. The old data is gone that a read-modify-write or a lost member would need.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.engine.write.full_stripe import StripeEnd
from raidx_fuse.engine.write.pending import PendingWrite
from raidx_fuse.journal import recovery
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import Rig
from tests.support.load import scrubbed
from tests.support.spy import members_from, noise, placed, restarted, spied, spying

CHUNK = 4096
STRIPE = 2  # that is filled
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width", "rows"),
    [("raid5", 5, 1), ("raid4", 6, 1), ("rdp", 4, 2), ("evenodd", 5, 2), ("upc", 4, 2)],
)


@asynccontextmanager
async def begun(
    layout: str, width: int, rows: int, policy: str, lacking: int
) -> AsyncIterator[tuple[Rig, Array, int]]:
    """Run a full array of whose stripe the log lacks *lacking* cells; give where they begin."""
    rig = Rig(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows)
    array = await rig.create()
    try:
        await rig.put(0, random.Random(1).randbytes(len(rig.model)))
        await array.set("parity.policy", policy)
        await array.context.journal.drain()
        size = array.context.code.data_count * CHUNK
        await rig.put(STRIPE * size, random.Random(2).randbytes(size - lacking * CHUNK))
        assert STRIPE in array.context.journal.unsettled.whole_cells.cells, (
            "the stripe is not being filled"
        )
        yield rig, array, (STRIPE + 1) * size - lacking * CHUNK
    finally:
        await rig.close()


@pytest.mark.parametrize("lacking", [1, 2])
@LAYOUTS
async def test_a_member_that_writes_late(layout: str, width: int, rows: int, lacking: int) -> None:
    for late in {1, width // 2, width - 1}:
        async with begun(layout, width, rows, "rmw", lacking) as (rig, array, at):
            begin = array.member_set.data_offset
            rig.members[late].error(["write"], offset_bytes=begin, count=1)
            await rig.put(at, random.Random(3).randbytes(lacking * CHUNK))
            assert not array.member_set.lost, "it was written when tried once more"
            await scrubbed(rig)
            await array.context.journal.drain()
            await scrubbed(rig)


@LAYOUTS
def test_another_member_that_fails_then(
    layout: str, width: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies on it comes back, before the write has ended as well as afterwards."""
    write = StripeEnd.write
    lacking = 2  # one would be tried at once, which has seen that no member is lost

    async def main(gone: int) -> None:
        async with begun(layout, width, rows, "traditional", lacking) as (rig, array, at):
            last = array.context.layout.roles(STRIPE)[-1]  # written after all others
            if gone == last:
                return

            def failing(
                end: StripeEnd, stripe: Stripe, offset: int, view: memoryview
            ) -> tuple[int, PendingWrite | None] | None:
                done = write(end, stripe, offset, view)
                assert done is not None
                assert done[0] == len(view)
                assert done[1] is not None, "no member is late"
                assert array.member_set.fail(gone, "pulled out")
                return done

            monkeypatch.setattr(StripeEnd, "write", failing)
            offset = array.context.member_set.data_offset
            rig.members[last].error(["write"], offset_bytes=offset, count=1)
            await rig.put(at, random.Random(3).randbytes(lacking * CHUNK))
            await rig.compare()
            await array.context.journal.drain()
            await rig.compare()

    for gone in range(width):
        monkeypatch.setattr(StripeEnd, "write", write)
        run(main, gone)


@pytest.mark.parametrize("more", [1, 3])
@LAYOUTS
async def test_the_rest_of_a_request_is_written_without_a_member_that_failed_then(
    layout: str, width: int, rows: int, more: int
) -> None:
    """The request ends a stripe and goes on for *more* stripes, which bypass the log."""
    for gone in range(width):
        async with begun(layout, width, rows, "traditional", 2) as (rig, array, at):
            offset = array.context.member_set.data_offset
            rig.members[gone].error(["write"], offset_bytes=offset)
            size = (2 + more * array.context.code.data_count) * CHUNK
            await rig.put(at, noise(size, 3))
            assert array.member_set.lost == {gone}
            await rig.compare()
            await array.context.journal.drain()
            await rig.compare()
            await rig._step_replace()
            await rig._step_settle()
            await scrubbed(rig)


@pytest.mark.parametrize(("layout", "rows", "stripes"), [("raid5", 1, 11), ("rdp", 2, 5)])
async def test_a_recovery_that_is_cut_after_many_were_closed(
    layout: str, rows: int, stripes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parities that it logs have room kept for them."""

    async def cut(*_: object) -> None:
        raise RuntimeError("cut")

    async with spying(layout, 4, chunk_bytes=CHUNK, stripes=60, rows=rows) as rig:
        await rig.put(0, random.Random(1).randbytes(len(rig.model)))
        await rig.in_place()
        await rig.put(len(rig.model) - CHUNK, random.Random(2).randbytes(CHUNK))
        context = rig.array.context
        size = context.code.data_count * CHUNK
        for stripe in range(stripes):
            data = random.Random(stripe).randbytes(size)
            await rig.put(stripe * size, data[: 2 * CHUNK])
            await rig.put(stripe * size + 2 * CHUNK, data[2 * CHUNK :])
        assert len(context.journal.unsettled.closed) == stripes, "a checkpoint has come"
        ring = context.journal.ring
        assert not ring.has_room(4 * size, context.journal.kept_bytes())
        images, model = rig.images(), bytes(rig.model)
    members = members_from(images)
    with monkeypatch.context() as patched:
        patched.setattr(recovery, "_place", cut)
        with pytest.raises(RuntimeError):
            async with open_array(members):
                pass
    async with restarted([bytes(member.memory) for member in members]) as array:
        assert array.replayed is not None
        assert array.replayed.records > stripes
        assert bytes(await array.read(0, len(model))) == model


async def test_a_stripe_is_not_closed_over_another_record_between_two_streams() -> None:
    """The record is older than what closes the stripe; a replay would lay it on top."""
    rig = await spied("raid5", 5, chunk_bytes=CHUNK, stripes=24)
    await rig.put(0, bytes(len(rig.model)))
    await rig.in_place()
    await rig.put(0, b"m" * 4 * CHUNK)  # past the log: its region is marked
    await rig.put(0, b"a" * 2 * CHUNK)
    await rig.put(5 * CHUNK // 2, b"b" * CHUNK)  # of two chunks: by the general way
    await rig.put(0, b"c" * 2 * CHUNK)
    await rig.put(2 * CHUNK, b"d" * 2 * CHUNK)
    await rig.survives()


async def test_a_stripe_is_not_closed_over_more_than_the_stream_brought() -> None:
    """The stream before came further before it was closed: its records hold cells of the rest."""
    rig = await spied("raid5", 6, chunk_bytes=CHUNK, stripes=24)
    await rig.put(0, bytes(len(rig.model)))
    await rig.in_place()
    await rig.put(0, b"m" * 5 * CHUNK)  # past the log: its region is marked
    await rig.put(0, b"a" * 2 * CHUNK)
    await rig.put(2 * CHUNK, b"b" * 2 * CHUNK)
    await rig.put(4 * CHUNK, b"c" * CHUNK)
    await rig.put(0, b"d" * 2 * CHUNK)
    await rig.put(2 * CHUNK, b"e" * 3 * CHUNK)
    await rig.survives()


@LAYOUTS
async def test_a_stream_in_parts_of_stripes_marks_its_region(
    layout: str, width: int, rows: int
) -> None:
    """No full stripe does it: without a mark, everything would go through the log."""
    async with begun(layout, width, rows, "rmw", 2) as (rig, array, at):
        context = array.context
        await context.dirty_bitmap.clean_quiet(all_regions=True)
        assert not context.dirty_bitmap.is_marked(STRIPE)
        logged = context.journal.ring.position
        await rig.put(at, random.Random(3).randbytes(2 * CHUNK))
        assert context.journal.ring.position == logged
        assert STRIPE in context.journal.unsettled.closed
        assert context.dirty_bitmap.is_marked(STRIPE)
        assert not context.journal.overlay.current, "it is home, and would be written again"
        await rig.compare()
        await array.context.journal.drain()
        await scrubbed(rig)


async def test_members_that_never_take_it_at_once_get_no_second_mark() -> None:
    """It costs a round of flushes, and the stripe goes through the log nevertheless."""
    rig = await placed("raid5", 5, chunk_bytes=CHUNK, stripes=24, slow=True)
    context = rig.array.context
    size = context.code.data_count * CHUNK
    marked = []
    for stripe in range(3):
        await context.dirty_bitmap.clean_quiet(all_regions=True)
        await rig.put(stripe * size, noise(2 * CHUNK, stripe))
        await rig.put(stripe * size + 2 * CHUNK, noise(2 * CHUNK, stripe + 9))
        marked.append(context.dirty_bitmap.is_marked(Stripe(stripe)))
        assert stripe not in context.journal.unsettled.closed
    assert marked == [True, False, False]
    await scrubbed(rig)


@LAYOUTS
def test_a_member_that_fails_while_the_region_is_marked(layout: str, width: int, rows: int) -> None:
    async def main(gone: int) -> None:
        async with begun(layout, width, rows, "rmw", 2) as (rig, array, at):
            dirty_bitmap = array.context.dirty_bitmap
            await dirty_bitmap.clean_quiet(all_regions=True)
            enter = dirty_bitmap.enter

            async def failing(stripes: Sequence[Stripe]) -> None:
                await enter(stripes)
                assert array.member_set.fail(gone, "pulled out")

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(dirty_bitmap, "enter", failing)
                await rig.put(at, random.Random(3).randbytes(2 * CHUNK))
            assert gone in array.member_set.lost
            assert STRIPE not in array.context.journal.unsettled.closed
            await rig.compare()
            await array.context.journal.drain()
            await rig.compare()

    for gone in range(width):
        run(main, gone)
