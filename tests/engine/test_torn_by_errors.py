"""A write that only some members took: its region stays dirty until the stripe is consistent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.errors import ArrayFailedError, RaidxError
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Stripe
from tests.support.arrays import jobs_ended
from tests.support.spy import SpyRig, fill, noise, restarted, spied, spying

CHUNK = 4096


async def tear(rig: SpyRig) -> Stripe:
    """Lose role 0; let the member of the last cell refuse a write to a stripe of other members.

    It cannot be spared, so it stays. Returns the stripe.
    """
    await rig.array.set("journal", "none")
    await fill(rig)
    await rig.in_place()
    await rig.array.fail_disk(0)
    context = rig.array.context
    for stripe in map(Stripe, range(context.layout.stripes)):
        cells = range(len(context.code.cells))
        places = [context.position(stripe, CellIndex(cell)) for cell in cells]
        if all(role for role, _ in places):
            break
    role, offset = places[-1]
    fault = rig.members[role].error(("write",), offset_bytes=offset, length_bytes=CHUNK)
    with pytest.raises(RaidxError):
        await rig.put(context.layout.logical(stripe, 0) * CHUNK, noise(CHUNK, 7))
    fault.lift()
    await trio.sleep(60)  # quiet regions are clean now
    return stripe


async def inconsistent(array: Array, *, repair: bool = False) -> list[int]:
    """Return the stripes that a scrub finds inconsistent."""
    result = await array.jobs.wait(await array.start_scrub(repair=repair))
    return [found["stripe"] for found in result["findings"]]


async def crash(rig: SpyRig) -> list[bytes]:
    return rig.images()[1:]


async def end_cleanly(rig: SpyRig) -> list[bytes]:
    await rig.array.close()
    return rig.images()[1:]


@pytest.mark.parametrize("end", [crash, end_cleanly])
async def test_the_resync_of_the_next_start_finds_the_torn_stripe(
    end: Callable[[SpyRig], Awaitable[list[bytes]]],
) -> None:
    async with spying("raidx-copy", 4, chunk_bytes=CHUNK) as rig:
        stripe = await tear(rig)
        assert stripe in await inconsistent(rig.array)
        images = await end(rig)
    async with restarted(images, start_degraded=True) as array:
        await jobs_ended(array)
        assert await inconsistent(array) == []


async def test_a_repair_of_the_whole_array_ends_the_dirty_region() -> None:
    rig = await spied("raidx-copy", 4, chunk_bytes=CHUNK)
    stripe = await tear(rig)
    bitmap = rig.array.context.dirty_bitmap
    assert bitmap.torn == {stripe}
    await inconsistent(rig.array, repair=True)
    assert bitmap.torn == {stripe}, "with a lost member a scrub does not check all"
    await rig.array.replace_disk(0, rig.new_member(0))
    await jobs_ended(rig.array)
    await inconsistent(rig.array, repair=True)
    assert not bitmap.torn
    await trio.sleep(60)
    assert not bitmap.is_marked(stripe)


async def test_a_member_that_a_torn_stripe_needs_is_not_taken_out_silently() -> None:
    """Its flushed chunk there could only come from a parity that does not fit."""
    rig = await spied("raidx-parity", 5, chunk_bytes=CHUNK, params={"length": 3})
    stripe = await tear(rig)
    await rig.array.replace_disk(0, rig.new_member(0))
    await jobs_ended(rig.array)
    context = rig.array.context
    neighbour = CellIndex(1)
    role, _ = context.position(stripe, neighbour)
    with pytest.raises(ArrayFailedError, match="lose"):
        await rig.array.fail_disk(role)
    await rig.array.fail_disk(role, lose_data=True)
    lost = context.layout.logical(stripe, neighbour)
    assert context.bad_chunks == {lost}
    with pytest.raises(RaidxError):
        await rig.get(lost * CHUNK, CHUNK)


async def test_a_first_write_does_not_rely_on_a_place_where_one_has_failed() -> None:
    """What that one left in an unwritten place would show, or be missing in a parity."""
    rig = await spied("raid0", 3, chunk_bytes=CHUNK)
    context = rig.array.context
    role, offset = context.position(*context.layout.locate(Chunk(5)))
    fault = rig.members[role].error(("write",), offset_bytes=offset, length_bytes=CHUNK)
    with pytest.raises(RaidxError):
        await rig.array.write(4 * CHUNK, noise(2 * CHUNK, 7))
    fault.lift()
    await rig.compare()
    for chunk in (4, 5):
        await rig.put(chunk * CHUNK + 512, b"new")
    await rig.compare()


async def test_a_lost_cell_that_was_never_written_takes_no_redundancy() -> None:
    """The stripe was not noted as torn, and the next loss brought old content back."""
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        context = rig.array.context
        await rig.array.set("journal", "none")
        await rig.array.write(0, noise(CHUNK, 1))  # the other data cell stays unwritten
        await rig.array.flush()
        await trio.sleep(60)
        places = [context.position(Stripe(0), CellIndex(cell)) for cell in range(3)]
        (data, _), (unwritten, _), (parity, offset) = places
        await rig.array.fail_disk(unwritten)
        fault = rig.members[parity].error(("write",), offset_bytes=offset, length_bytes=CHUNK)
        with pytest.raises(RaidxError):
            await rig.array.write(0, noise(CHUNK, 2))
        fault.lift()
        assert bytes(await rig.array.read(0, CHUNK)) == noise(CHUNK, 2)
        assert Stripe(0) in context.dirty_bitmap.torn
        await rig.array.replace_disk(unwritten, rig.new_member())
        await jobs_ended(rig.array)
        with pytest.raises(ArrayFailedError):  # not silently, at least
            await rig.array.fail_disk(data)


async def test_a_torn_stripe_in_which_nothing_is_written_is_whole_after_a_repair() -> None:
    """A scrub visits written stripes only, and the stripe kept a restripe from beginning."""
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        context = rig.array.context
        await rig.array.set("journal", "none")
        await rig.array.write(8 * CHUNK, noise(CHUNK, 1))
        await rig.array.flush()
        await trio.sleep(60)
        places = [context.position(Stripe(0), CellIndex(cell)) for cell in range(3)]
        await rig.array.fail_disk(places[1][0])
        role, offset = places[2]
        fault = rig.members[role].error(("write",), offset_bytes=offset, length_bytes=CHUNK)
        with pytest.raises(RaidxError):
            await rig.array.write(0, noise(CHUNK, 2))
        fault.lift()
        assert Stripe(0) in context.dirty_bitmap.torn
        assert context.is_unwritten(Stripe(0))
        await rig.array.replace_disk(places[1][0], rig.new_member())
        await jobs_ended(rig.array)
        await rig.array.jobs.wait(await rig.array.start_scrub(repair=True))
        context.dirty_bitmap.require_whole()
