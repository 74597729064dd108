"""What pages that have no sum are, by the sums of others (store/sums.py).

A page that the code gives back, and that contradicts its sum, may come from a survivor without a
sum that gave wrong bytes. If the code tolerates more losses than there are, it is solved again
without each of those survivors, then without two of them, and so on. What fits the sum is right.

A page without a sum, of which a part is to stay, gets that of what the code gives back, if all that
this comes from have sums. Then it is read, and healed, like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.planning.stripe_plan import BandPlan, cells_of, read_plan
from raidx_fuse.members.unreadable import PAGE_BYTES
from raidx_fuse.store.buffers import Bytes
from raidx_fuse.store.io_tuples import MemberRead
from raidx_fuse.store.sums import Sums
from raidx_fuse.store.xor import combine

UnprovenPages = dict[tuple[Stripe, CellIndex], list[int]]


async def solve_otherwise(
    context: ArrayContext, sums: Sums, stripe: Stripe, cell: CellIndex, at: int
) -> Bytes | None:
    """Return the page of a lost *cell* from byte *at* on that fits its sum; None: there is none.

    The lock of *stripe* is held, and it is settled. Raises MemberLostError, MemberError.
    """
    role, begin = context.position(stripe, cell)
    for plan in await _plans(context, sums, stripe, cell, at):
        content = await _solved(context, stripe, plan, at)
        await sums.load([(role, begin + at, (), PAGE_BYTES)])
        if sums.fits(role, begin + at, content.data):
            return content
    return None


async def _plans(
    context: ArrayContext, sums: Sums, stripe: Stripe, cell: CellIndex, at: int
) -> Iterator[BandPlan]:
    """Return plans that solve *cell* without survivors that have no sum: first without one."""
    code, member_set = context.code, context.member_set
    unwritten = context.unwritten_cells(stripe)
    lost = member_set.lost_cells(stripe, at, at + PAGE_BYTES)
    suspects = 0
    for survivor in cells_of(code.all_mask & ~(lost | unwritten)):
        if context.position(stripe, survivor)[0] < 0:
            continue  # of the other layout of a restripe
        if not await _is_known(context, sums, stripe, survivor, at):
            suspects |= 1 << survivor
    columns = sorted({code.column_of[suspect] for suspect in cells_of(suspects)})

    def plans() -> Iterator[BandPlan]:
        for count in range(1, code.tolerance):
            for chosen in combinations(columns, count):
                left_out = suspects & code.columns_mask(frozenset(chosen))
                try:
                    yield read_plan(code, 1 << cell, lost | left_out, unwritten)
                except Unrecoverable:
                    continue

    return plans()


async def give_sum(
    context: ArrayContext, sums: Sums, stripe: Stripe, cell: CellIndex, at: int
) -> bool:
    """Let the page of a *cell* from byte *at* on have a sum; return whether it has one.

    The lock of *stripe* is held. Raises MemberLostError, MemberError.
    """
    member_set = context.member_set
    role, begin = context.position(stripe, cell)
    lost = member_set.lost_cells(stripe, at, at + PAGE_BYTES)
    says = role not in member_set.lost_at(stripe) or context.says_what_is_lost(stripe, cell, at)
    if says and await _is_known(context, sums, stripe, cell, at):
        return True
    if stripe in context.dirty_bitmap.torn or context.dirty_bitmap.awaits_resync(stripe):
        return False
    await context.journal.settle((stripe,))
    try:
        plan = read_plan(context.code, 1 << cell, lost | 1 << cell, context.unwritten_cells(stripe))
    except Unrecoverable:
        return False
    if not await are_known(context, sums, stripe, sum(1 << source for source in plan.reads), at):
        return False
    content = await _solved(context, stripe, plan, at)
    if says:
        await sums.load([(role, begin + at, (), PAGE_BYTES)])
        if not await _is_known(context, sums, stripe, cell, at):
            sums.fill(role, begin + at, content.data)
    return True


async def unproven_pages(
    context: ArrayContext, cells: Iterable[tuple[Stripe, CellIndex]]
) -> UnprovenPages:
    """Return the bytes in each of *cells* of the pages that nothing proves; they are to be copied.

    None without checksums. A page gets a sum first if the code gives it back (`give_sum`): where it
    goes, other chains are made of it, and what it was does not show any more. The locks of the
    stripes are held. Raises MemberLostError, MemberError.
    """
    sums, size, found = context.member_set.sums, context.chunk_bytes, UnprovenPages()
    if sums is None:
        return found
    places = [(stripe, cell, *context.position(stripe, cell)) for stripe, cell in cells]
    async with sums.holding([(role, begin, (), size) for _, _, role, begin in places if role >= 0]):
        for stripe, cell, role, begin in places:
            if role < 0 or not sums.is_unproven(role, begin, size):
                continue
            pages = [
                at
                for at in range(0, size, PAGE_BYTES)
                if not await give_sum(context, sums, stripe, cell, at)
            ]
            if pages:
                found[stripe, cell] = pages
    return found


async def are_known(context: ArrayContext, sums: Sums, stripe: Stripe, cells: int, at: int) -> bool:
    """Return whether the pages of all *cells* (a mask) from byte *at* on have sums, or log records.

    Pages of the log that come from what nothing has verified do not count.
    """
    for cell in cells_of(cells):
        if not await _is_known(context, sums, stripe, cell, at):
            return False
    return True


async def _is_known(
    context: ArrayContext, sums: Sums, stripe: Stripe, cell: CellIndex, at: int
) -> bool:
    """Return whether the page of *cell* from byte *at* on has a sum, or comes from the log."""
    role, begin = context.position(stripe, cell)
    overlay = context.member_set.overlay
    if overlay.covers(role, begin + at, begin + at + PAGE_BYTES):
        return not overlay.is_doubted(role, begin + at)
    await sums.load([(role, begin + at, (), PAGE_BYTES)])
    return not sums.lacks(role, begin + at, PAGE_BYTES)


async def _solved(context: ArrayContext, stripe: Stripe, plan: BandPlan, at: int) -> Bytes:
    """Return the page from byte *at* on that *plan* solves."""
    pages = {source: np.empty(PAGE_BYTES, np.uint8) for source in plan.reads}
    reads: list[MemberRead] = []
    for source, page in pages.items():
        role, begin = context.position(stripe, source)
        reads.append((role, begin + at, [page.data], PAGE_BYTES))
    await context.member_set.read(reads, background=True)
    content: Bytes = np.zeros(PAGE_BYTES, np.uint8)
    (output,) = plan.outputs
    combine(content, [pages[source] for source in output.old])
    return content
