"""Pages that the code gives back, and that contradict the sum of their place (store/sums.py).

A survivor whose page has no sum may have given wrong bytes. If the code tolerates more losses than
there are, the page is solved again without each of those survivors, then without two of them, and
so on. What fits the sum is right.
"""

from __future__ import annotations

from collections.abc import Iterator
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


async def solve_otherwise(
    context: ArrayContext, sums: Sums, stripe: Stripe, cell: CellIndex, at: int
) -> Bytes | None:
    """Return the page of a lost *cell* from byte *at* on that fits its sum; None: there is none.

    The lock of *stripe* is held, and it is settled. Raises MemberLostError, MemberError.
    """
    role, begin = context.position(stripe, cell)
    for plan in await _plans(context, sums, stripe, cell, at):
        pages = {source: np.empty(PAGE_BYTES, np.uint8) for source in plan.reads}
        reads: list[MemberRead] = []
        for source, page in pages.items():
            place, start = context.position(stripe, source)
            reads.append((place, start + at, [page.data], PAGE_BYTES))
        await context.member_set.read(reads, background=True)
        content: Bytes = np.zeros(PAGE_BYTES, np.uint8)
        (output,) = plan.outputs
        combine(content, [pages[source] for source in output.old])
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
        role, begin = context.position(stripe, survivor)
        if role < 0 or member_set.overlay.covers(role, begin + at, begin + at + PAGE_BYTES):
            continue
        await sums.load([(role, begin + at, (), PAGE_BYTES)])
        if sums.lacks(role, begin + at, PAGE_BYTES):
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
