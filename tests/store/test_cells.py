"""What follows from the cover of a write to cells: marks, notes, and what an error leaves."""

from __future__ import annotations

import pytest

from raidx_fuse.errors import RaidxError
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import MemberIO
from tests.support.spy import SpyRig, Touch, fill, locked, noise, spied

CHUNK = 4096
STRIPE = Stripe(30)


async def clean_rig() -> SpyRig:
    """Return a rig without a log, of which no region is dirty."""
    rig = await spied("raid5", 3, chunk_bytes=CHUNK, stripes=600)
    await rig.array.set("journal", "none")
    await fill(rig)
    await rig.in_place()
    await rig.array.context.dirty_bitmap.clean_quiet(all_regions=True)
    return rig


def requests_of(rig: SpyRig) -> list[MemberIO]:
    """Return writes of all cells of the stripe."""
    context = rig.array.context
    cells = [CellIndex(cell) for cell in range(3)]
    return [(*context.position(STRIPE, cell), [noise(CHUNK, cell)], CHUNK) for cell in cells]


@pytest.mark.parametrize(
    ("cover", "is_marked"),
    [(Cover.MARKED, True), (Cover.SAME, True), (Cover.VACANT, False), (Cover.LOGGED, False)],
)
async def test_the_region_is_marked_before_the_first_byte_where_a_resync_must_come(
    cover: Cover, is_marked: bool
) -> None:
    """A vacant place needs none: after a crash a growth would wait for its own resync."""
    rig = await clean_rig()
    context, seen = rig.array.context, list[bool]()

    def look(touch: Touch) -> None:
        if touch.offset_bytes >= rig.data.offset:
            seen.append(context.dirty_bitmap.is_marked(STRIPE))

    rig.log.hook = look
    with locked(context, STRIPE):
        if cover is Cover.MARKED:
            async with context.cells.marked([STRIPE]):
                await context.cells.write(requests_of(rig), cover, [STRIPE])
        else:
            await context.cells.write(requests_of(rig), cover, [STRIPE])
    rig.log.hook = None
    assert seen == [is_marked] * 3
    assert context.dirty_bitmap.is_marked(STRIPE) == is_marked, "it stays until it is quiet"


@pytest.mark.parametrize("cover", Cover)
async def test_only_a_change_past_the_log_that_fails_tears_its_stripe(cover: Cover) -> None:
    rig = await clean_rig()
    context = rig.array.context
    await rig.array.fail_disk(context.layout.roles(STRIPE)[0])
    requests = requests_of(rig)
    role, offset, _, _ = requests[1]
    fault = rig.members[role].error(("write",), offset_bytes=offset, length_bytes=CHUNK)
    with locked(context, STRIPE):
        async with context.cells.marked([STRIPE]):
            with pytest.raises(RaidxError):
                await context.cells.write(requests, cover, [STRIPE])
    fault.lift()
    lost = context.layout.logical(STRIPE, CellIndex(0))
    assert (lost in context.bad_chunks) == (cover is Cover.MARKED)
    assert context.changes.has(STRIPE) == (cover in (Cover.MARKED, Cover.SAME))
