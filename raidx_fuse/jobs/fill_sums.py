"""Pages that have no sum get that of what lies there: after a crash, and when sums are switched on.

After a crash, what rotted in the stripes that were being written is healed before (`heal_rot`).

The caller has checked the chains of the stripes: a sum makes everything that comes later believe
what it says.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of, read_plan
from raidx_fuse.store.buffers import Bytes
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberIO, MemberLostError
from raidx_fuse.store.sums import Misfits, Sums
from raidx_fuse.store.xor import combine

log = logging.getLogger(__name__)

Reads = dict[Role, list[tuple[int, list[memoryview], int]]]


async def fill_sums(
    context: ArrayContext, stripes: Sequence[Stripe], misfits: Misfits | None = None
) -> Counter[Role]:
    """Set the sums of the written cells of *stripes* that have none.

    Returns how many pages of each role got one that they did not have before a crash. The locks of
    the stripes are held. Pages that are lost or unreadable get none. *misfits* collects pages
    beside them that do not fit theirs. Raises what the members raise.
    """
    sums = context.member_set.sums
    filled: Counter[Role] = Counter()
    if sums is None:
        return filled
    while True:
        reads = await _places(context, stripes, lambda _: context.code.all_mask, lacking=True)
        try:
            await context.member_set.read_base(reads, frozen=False, misfits=misfits)
            break
        except MemberLostError:
            continue  # without that member, or page
    await sums.load((role, *read) for role, of_role in reads.items() for read in of_role)
    for role, of_role in reads.items():
        filled[role] += sum(sums.fill(role, at, buffer) for at, (buffer,), _ in of_role)
    return filled


async def count_lacking(context: ArrayContext, stripes: Sequence[Stripe]) -> Counter[Role]:
    """Return how many pages of the written cells of *stripes* have no sum, by role.

    Not counted are those whose newest content is in the log: they get one with the write home.
    """
    overlay = context.member_set.overlay
    sums, size = context.member_set.sums, context.chunk_bytes
    lacking: Counter[Role] = Counter()
    for stripe in stripes if sums is not None else ():
        unreached = context.unwritten_cells(stripe)
        unreached |= context.layout.lost_cells(stripe, context.member_set.lost_at(stripe))
        for cell in cells_of(context.code.all_mask & ~unreached):
            role, offset = context.position(stripe, cell)
            if role >= 0 and sums is not None:
                await sums.load([(role, offset, (), size)])
                if not overlay:
                    lacking[role] += sums.lacking(role, offset, size)
                    continue
                for at in range(offset, offset + size, PAGE_BYTES):
                    is_covered = overlay.covers(role, at, at + PAGE_BYTES)
                    lacking[role] += not is_covered and sums.lacks(role, at, PAGE_BYTES)
    return lacking


async def heal_rot(context: ArrayContext, stripes: Sequence[Stripe]) -> None:
    """Heal what rotted in *stripes*, which await their resync after a crash.

    A write in flight may have changed any of their pages, so that sums of before need not fit. But
    whatever was acknowledged, or flushed, changed more columns of a page position than the code
    tolerates to lose: that is its distance. So where no more columns than that misfit, and the
    others give back what fits every sum, the bytes of before are the right ones, or as right as the
    new ones of a write that nobody was told of. A start for reading keeps them in memory, over the
    home places. The locks of the stripes are held. Raises what the members raise.
    """
    member_set, code = context.member_set, context.code
    if member_set.sums is None or not code.parity_count:
        return
    for stripe in stripes:
        if not member_set.lost_cells(stripe):
            with suppress(MemberLostError):  # a page cannot be read: then as without sums
                await _heal_stripe(context, member_set.sums, stripe)


async def _heal_stripe(context: ArrayContext, sums: Sums, stripe: Stripe) -> None:
    code, size = context.code, context.chunk_bytes
    unwritten = context.unwritten_cells(stripe)
    cells = cells_of(code.all_mask & ~unwritten)
    places = {cell: context.position(stripe, cell) for cell in cells}
    arrays = {cell: np.empty(size, np.uint8) for cell in cells}
    reads: Reads = {}
    for cell, (role, offset) in places.items():
        reads.setdefault(role, []).append((offset, [arrays[cell].data], size))
    await context.member_set.read_base(reads, frozen=False)
    await sums.load((*place, (), size) for place in places.values())
    wrong: dict[int, int] = {}  # page of the chunks -> mask of the cells that misfit
    for cell, (role, offset) in places.items():
        past = sums.past(role, offset, size)
        misfits = (sums.values(role, offset, arrays[cell].data) != past) & (past != 0)
        for page in np.flatnonzero(misfits).tolist():
            wrong[page] = wrong.get(page, 0) | 1 << cell
    requests: list[MemberIO] = []
    for page, mask in wrong.items():
        part = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
        solved = _solved(context, mask, unwritten, {c: arrays[c][part] for c in cells})
        fitting = True
        for cell, content in solved.items():
            role, offset = places[cell]
            past = sums.past(role, offset + part.start, PAGE_BYTES)
            fitting &= sums.values(role, offset + part.start, content.data)[0] == past[0]
        if fitting:
            requests += [
                (places[cell][0], places[cell][1] + part.start, [content.data], PAGE_BYTES)
                for cell, content in solved.items()
            ]
    if requests:
        # They count as no misfits: a write that was cut looks the same.
        log.warning("stripe %d: %d pages are again what they were", stripe, len(requests))
        if context.member_set.read_only:
            overlay = context.member_set.overlay
            for role, at, (healed,), _ in requests:
                newest = bytearray(healed)
                overlay.patch(role, at, [newest])  # what the log has
                overlay.put(role, at, newest)
            return
        await context.cells.write(requests, Cover.SAME, (stripe,))


def _solved(
    context: ArrayContext, mask: int, unwritten: int, pages: Mapping[CellIndex, Bytes]
) -> dict[CellIndex, Bytes]:
    """Return the cells in *mask* as the others give them back; none if the code cannot."""
    code = context.code
    if len({code.column_of[cell] for cell in cells_of(mask)}) > code.tolerance:
        return {}
    try:
        plan = read_plan(code, mask, mask, unwritten)
    except Unrecoverable:
        return {}
    solved = {}
    for output in plan.outputs:
        solved[output.cell] = np.empty(PAGE_BYTES, np.uint8)
        combine(solved[output.cell], [pages[cell] for cell in output.old])
    return solved


async def compare_sums(
    context: ArrayContext,
    stripes: Sequence[Stripe],
    cells: Callable[[Stripe], int],
    misfits: Misfits,
) -> None:
    """Read those of the *cells* (a mask) of *stripes* that are written, and collect *misfits*.

    The locks of the stripes are held. Raises what the members raise.
    """
    while context.member_set.sums is not None:
        try:
            reads = await _places(context, stripes, cells, lacking=False)
            return await context.member_set.read_base(reads, frozen=False, misfits=misfits)
        except MemberLostError:
            continue  # without that page


async def _places(
    context: ArrayContext,
    stripes: Sequence[Stripe],
    cells: Callable[[Stripe], int],
    *,
    lacking: bool,
) -> Reads:
    """Return reads of the pages of *cells* of *stripes* that can be read; or *lacking* a sum."""
    member_set, size = context.member_set, context.chunk_bytes
    sums, unreadable = member_set.sums, member_set.unreadable
    assert sums is not None
    places = []
    for stripe in stripes:
        lost = context.layout.lost_cells(stripe, member_set.lost_at(stripe))
        for cell in cells_of(cells(stripe) & ~context.unwritten_cells(stripe) & ~lost):
            role, offset = context.position(stripe, cell)
            if role >= 0 and member_set.queues[role] is not None:
                places.append((role, offset, (), size))
    await sums.load(places)
    reads: Reads = {}
    for role, offset, _, _ in sorted(places, key=lambda place: place[:2]):
        if lacking and not sums.lacks(role, offset, size):
            continue
        is_whole = not unreadable.pages(role, offset, offset + size)
        step = size if is_whole and not (lacking and member_set.overlay) else PAGE_BYTES
        for inner in range(0, size, step):
            at = offset + inner
            wanted = not lacking or sums.lacks(role, at, step)
            if lacking and wanted and member_set.overlay.covers(role, at, at + step):
                member_set.overlay.believe(role, at, at + step)
                continue  # it gets its sum with the write home
            if wanted and not unreadable.pages(role, at, at + step):
                buffer = memoryview(bytearray(step))
                reads.setdefault(role, []).append((at, [buffer], step))
    return reads
