"""Stripes that a crash has torn, and bit rot beside them: a resync repairs, and invents nothing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raidx_fuse.errors import RaidxError
from tests.support.arrays import jobs_ended, parity_holds
from tests.support.resyncing import LAYOUTS, PARITIES, TWO_PARITIES, filled, sectors
from tests.support.spy import SpyRig, noise, restarted, spying

CHUNK = 4096


# -- a stripe that is torn indeed ------------------------------------------------------------------


@asynccontextmanager
async def torn(name: str, dropped_cell: int) -> AsyncIterator[tuple[SpyRig, list[bytes], bytes]]:
    """Yield the rig, images after a cut that dropped one cell of a whole stripe, and the content.

    -1 is the last parity.
    """
    async with filled(name) as rig:
        context = rig.array.context
        dropped_cell %= len(context.code.cells)
        role, place = context.position(5, dropped_cell)
        before = bytes(rig.rams[role].memory[place : place + CHUNK])
        size = context.code.data_count * CHUNK
        await rig.put(5 * size, noise(size, 3))
        picture = [bytearray(image) for image in rig.images()]
        picture[role][place : place + CHUNK] = before
        now = bytearray(rig.model)
        if dropped_cell < context.code.data_count:
            at = context.layout.logical(5, dropped_cell) * CHUNK
            now[at : at + CHUNK] = before
        yield rig, [bytes(image) for image in picture], bytes(now)


@pytest.mark.parametrize("name", PARITIES)
async def test_what_is_written_after_the_crash_is_not_built_on_torn_parity(name: str) -> None:
    """Whichever member fails then, before the resync has come by."""
    async with torn(name, -1) as (rig, picture, _):
        count, layout = rig.array.context.code.data_count, rig.array.context.layout
        expected = bytearray(rig.model)
    at = 5 * count * CHUNK + 512
    expected[at : at + 700] = noise(700, 4)
    for role in range(layout.width):
        async with restarted(picture) as array:
            await array.write(at, noise(700, 4))
            await array.flush()
            await array.fail_disk(role)
            assert bytes(await array.read(0, len(expected))) == expected, role


@pytest.mark.parametrize("name", LAYOUTS)
async def test_what_was_read_once_is_read_again(name: str) -> None:
    """A whole stripe that a cut tore is old here and new there; a member that fails changes nothing
    of what was read of it before, nor does the resync."""
    async with torn(name, 0) as (_rig, picture, _now):
        pass
    for role in range(len(picture)):
        async with restarted(picture) as array:
            size = array.size_bytes
            first = bytes(await array.read(0, size))
            await array.fail_disk(role)
            assert bytes(await array.read(0, size)) == first
            await array.set("speed_max", "0")
            await jobs_ended(array)
            assert bytes(await array.read(0, size)) == first


async def test_a_stripe_that_cannot_be_finished_can_be_read_all_the_same() -> None:
    async with torn("raid5", 0) as (_rig, picture, now):
        pass
    async with restarted(picture) as array:

        async def no_room(*_arguments: Any) -> None:
            raise RaidxError("no room")

        array.context.dirty_bitmap.guard(no_room)
        assert bytes(await array.read(0, len(now))) == now
        assert array.context.dirty_bitmap.awaits_resync(5)
        with pytest.raises(RaidxError, match="no room"):
            await array.write(5 * 3 * CHUNK, b"x")


# -- rot in the regions that a resync visits -------------------------------------------------------


@pytest.mark.parametrize("name", [*TWO_PARITIES, "raid1 of three"])
async def test_a_resync_does_not_adopt_rot_that_two_others_outvote(name: str) -> None:
    layout = name.partition(" ")[0]
    width = 3 if layout == "raid1" else LAYOUTS[layout]
    async with spying(layout, width, chunk_bytes=CHUNK, stripes=60) as rig:
        await rig.put(0, noise(len(rig.model), 1))
        await rig.array.flush()
        context = rig.array.context
        old, picture = bytes(rig.model), [bytearray(image) for image in rig.images()]
        generator = random.Random(5)
        for stripe in range(0, context.layout.stripes, 3):
            cell = generator.randrange(len(context.code.cells))
            role, place = context.position(stripe, cell)
            picture[role][place + generator.randrange(CHUNK)] ^= 1 << generator.randrange(8)
    async with restarted([bytes(image) for image in picture]) as array:
        await jobs_ended(array)
        assert await sectors(array, old) == (0, 0)
        await parity_holds(array)


@pytest.mark.parametrize("name", TWO_PARITIES)
async def test_without_a_journal_torn_parities_outvote_no_neighbour(name: str) -> None:
    """Two chunks changed alike, and a cut kept one parity of each: just those that a third has."""
    async with filled(name, "none") as rig:
        context = rig.array.context
        old, picture = bytes(rig.model), [bytearray(image) for image in rig.images()]
        change = noise(CHUNK, 8)
        for stripe in range(context.layout.stripes):
            cell = stripe % context.code.data_count
            for parity in context.code.affects[cell]:
                role, place = context.position(stripe, parity)
                for at, byte in enumerate(change):
                    picture[role][place + at] ^= byte
    async with restarted([bytes(image) for image in picture]) as array:
        await array.set("speed_max", "0")
        (resync,) = array.jobs.running()
        await resync.finished.wait()
        assert await sectors(array, old) == (0, 0)


@pytest.mark.parametrize("name", ["rdp", "evenodd"])
async def test_a_stripe_that_accuses_two_members_is_torn_not_rotten(name: str) -> None:
    """Sector by sector each could be told from the rest; but a cut tears many sectors at once."""
    async with filled(name) as rig:
        context = rig.array.context
        old, picture = bytes(rig.model), [bytearray(image) for image in rig.images()]
        for sector, cell in enumerate((0, context.code.data_count - 1)):
            for parity in context.code.affects[cell]:
                role, place = context.position(5, parity)
                picture[role][place + 512 * sector] ^= 0x55
        assert context.code.column_of[0] != context.code.column_of[context.code.data_count - 1]
    async with restarted([bytes(image) for image in picture]) as array:
        assert bytes(await array.read(0, len(old))) == old
