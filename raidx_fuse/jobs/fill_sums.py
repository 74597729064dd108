"""Pages that have no sum get that of what lies there: after a crash, and when sums are switched on.

The caller has checked the chains of the stripes: a sum makes everything that comes later believe
what it says.
"""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberLostError

Reads = dict[Role, list[tuple[int, list[memoryview], int]]]


async def fill_sums(context: ArrayContext, stripes: Sequence[Stripe]) -> int:
    """Set the sums of the written cells of *stripes* that have none; return how many pages got one.

    The locks of the stripes are held. Pages that are lost or unreadable get none. Raises what the
    members raise.
    """
    sums = context.member_set.sums
    if sums is None:
        return 0
    while True:
        reads = await _places(context, stripes, lacking=True)
        try:
            await context.member_set.read_base(reads, frozen=False)
            break
        except MemberLostError:
            continue  # without that member, or page
    filled = 0
    for role, of_role in reads.items():
        filled += sum(sums.fill(role, at, buffer) for at, (buffer,), _ in of_role)
    return filled


async def compare_sums(context: ArrayContext, stripes: Sequence[Stripe]) -> None:
    """Read the written cells of *stripes*, of a layout without chains: misfits are noted.

    The locks of the stripes are held. Raises what the members raise.
    """
    while context.member_set.sums is not None:
        try:
            reads = await _places(context, stripes, lacking=False)
            return await context.member_set.read_base(reads, frozen=False)
        except MemberLostError:
            continue  # without that page


async def _places(context: ArrayContext, stripes: Sequence[Stripe], *, lacking: bool) -> Reads:
    """Return reads of the pages of *stripes* that can be read; only those *lacking* a sum."""
    member_set, size = context.member_set, context.chunk_bytes
    sums, unreadable = member_set.sums, member_set.unreadable
    assert sums is not None
    places = []
    for stripe in stripes:
        lost = context.layout.lost_cells(stripe, member_set.lost_at(stripe))
        for cell in cells_of(context.code.all_mask & ~context.unwritten_cells(stripe) & ~lost):
            role, offset = context.position(stripe, cell)
            if role >= 0 and member_set.queues[role] is not None:
                places.append((role, offset, (), size))
    await sums.load(places)
    reads: Reads = {}
    for role, offset, _, _ in sorted(places, key=lambda place: place[:2]):
        if lacking and not sums.lacks(role, offset, size):
            continue
        step = size if not unreadable.pages(role, offset, offset + size) else PAGE_BYTES
        for inner in range(0, size, step):
            at = offset + inner
            wanted = not lacking or sums.lacks(role, at, step)
            if wanted and not unreadable.pages(role, at, at + step):
                buffer = memoryview(bytearray(step))
                reads.setdefault(role, []).append((at, [buffer], step))
    return reads
