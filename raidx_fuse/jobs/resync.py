"""Resync: after a crash, make the stripes of the dirty regions consistent (closes the write hole).

A member that returns is caught up by a rebuild instead: engine/changed_regions.py.

A dirty region is coarse: most of its stripes were not in flight. Recovery has already redone the
logged writes. Only writes that bypassed the log and were not flushed can leave a torn stripe:

    journal full      no write bypasses the log
    journal partial   full-stripe writes only: all content of the stripe was being replaced
    journal none      any write; the stripe may also hold chunks flushed long ago (*unlogged*)

So only with journal=none can a member that fails before the resync has visited a stripe take
flushed data with it, and only if no parity is left to tell whether the stripe is torn
(`is_undecidable`). With copies, another copy is valid in any case; with two parities, the resync
checks the second one.

A read or write of a stripe that awaits the resync has it finished first (`DirtyBitmap.finish`).
Therefore content that was read once is read again, whichever member fails later, and no write after
the crash builds on torn parity.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import MemberError
from raidx_fuse.jobs.fill_sums import fill_sums, heal_rot
from raidx_fuse.jobs.job import Position
from raidx_fuse.jobs.scrub import Chains, Scrub
from raidx_fuse.jobs.strips import Place
from raidx_fuse.layouts.codes.error_location import locate
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe, stripe_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.buffers import Bytes, zero_buffers
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import MemberLostError


class Resync(Scrub):
    """Makes the stripes in flight consistent; *keep_lost* saves which chunks were lost meanwhile.

    Parity is recomputed from data, with two exceptions: a majority of copies corrects one copy, and
    two parities that locate one wrong member correct that member's cells. The latter is safe in a
    stripe that was written whole: that member has either the old or the new content, all others the
    opposite. Cells that were never acknowledged as written are zeroed again, because a write may
    have reached them before its bit in the written map.
    """

    kind = "resync"
    solves_lost = True
    fills_sums = False  # `finish` does, and counts them

    def __init__(
        self, context: ArrayContext, job_id: int, keep_lost: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(context, job_id, repair=True)
        self._keep_lost = keep_lost
        self._regions: list[int] = []

    async def prepare(self) -> None:
        """Count all stripes of the dirty regions: unwritten cells are zeroed, others checked."""
        self._regions = self.context.dirty_bitmap.regions_to_resync()
        stripes = sum(len(self.context.dirty_bitmap.stripes_of(region)) for region in self._regions)
        self.total_bytes = stripes * self._stripe_bytes

    def next_window(self) -> list[Stripe] | None:
        while self._regions:
            stripes = self.context.dirty_bitmap.stripes_of(self._regions[0])
            start = max(self._next, stripes.start)
            if start < stripes.stop:
                return list(stripe_range(start, min(start + self.window, stripes.stop)))
            self._regions.pop(0)
        return None

    async def work(self, stripes: list[Stripe]) -> int:
        """Finish those of *stripes* that no read or write had finished earlier."""
        context = self.context
        await finish(
            self, [stripe for stripe in stripes if context.dirty_bitmap.awaits_resync(stripe)]
        )
        self._next = stripes[-1] + 1
        context.dirty_bitmap.note_resynced(self._next)
        return len(stripes) * self._stripe_bytes

    async def check(self, stripes: list[Stripe]) -> None:
        """Make the written *stripes* consistent, for a request, too; their locks are held."""
        while True:
            try:
                return await super().check(stripes)
            except MemberLostError:
                self.replan()

    async def mend(self, stripes: list[Stripe]) -> None:
        """Mend nothing: chains of these stripes may not hold yet. Unreadable cells are solved."""

    def liars(self, stripe: Stripe, chains: Chains, syndromes: list[Bytes]) -> dict[Place, Bytes]:
        """Return {place: error} of the wrong cells of *stripe*, {} if they cannot be located.

        - Copies: a sector that most copies agree on is valid, be it old or new content.
        - Parity: a stripe written whole was in flight as a whole or not at all, so the syndromes of
          all its sectors must locate one member. Without a log, the located cell might be a
          neighbour of the chunk in flight, so nothing is located.
        """
        context = self.context
        if context.code.is_copies:
            return locate(chains, syndromes)
        if context.dirty_bitmap.unlogged or context.layout.lost_cells(
            stripe, context.member_set.lost_at(stripe)
        ):
            return {}
        return locate(chains, syndromes, by_sector=False)

    def note_undecided(self, stripe: Stripe) -> None:
        """Record lost and unreadable cells as lost chunks: only torn parity could give them."""
        context = self.context
        if context.dirty_bitmap.unlogged and not context.code.is_copies:
            give_up_cells(context, stripe, context.member_set.lost_cells(stripe))

    def positions(self) -> Sequence[Position]:
        return (self,)

    @property
    def saved(self) -> int:
        """The first stripe that the next start visits; all if none is left."""
        dirty = self.context.dirty_bitmap
        left = dirty.regions_to_resync()
        return dirty.stripes_of(left[0]).start if left else self.context.layout.stripes

    async def save(self) -> None:
        """Make the repairs and the list of lost chunks durable, then clear the finished regions."""
        await self._keep_lost()
        await self.context.cells.save_sums()
        await self.context.member_set.flush()
        await self.context.dirty_bitmap.forget_resynced()

    async def finish(self, completed: bool) -> None:
        """Clear all dirty regions; after a stop, those that were finished."""
        if completed:
            self.context.dirty_bitmap.note_resynced(self.context.layout.stripes)
        await self.save()
        self.context.zeros.note()


async def finish(resync: Resync, stripes: list[Stripe]) -> None:
    """Zero the unwritten cells of *stripes*, then make the written ones consistent.

    The stripes' locks are held. Raises MemberError and MemberLostError as the members do.
    """
    context, sums = resync.context, resync.context.member_set.sums
    live = []
    for stripe in stripes:
        unwritten = context.unwritten_cells(stripe)
        if unwritten != context.code.all_mask:
            live.append(stripe)
        for cell in cells_of(unwritten):
            await _clean(context, stripe, cell)
    if live:
        await heal_rot(context, live)
        await resync.check(live)
        if sums is not None:
            sums.note_unverified((await fill_sums(context, live)).total())
    if sums is not None and stripes:
        await sums.forget_past(context.layout, stripes)


async def _clean(context: ArrayContext, stripe: Stripe, cell: CellIndex) -> None:
    member_set, size = context.member_set, context.chunk_bytes
    role, offset = context.position(stripe, cell)
    if member_set.queues[role] is None or role not in context.zeros.recorded():
        return  # not relied on to be zero: the first write fills the whole chunk
    done = False
    with suppress(MemberError):  # then write zeros
        done = await member_set.punch(role, offset, size)
    if not done:
        await context.cells.write([(role, offset, zero_buffers(size), size)], Cover.VACANT)
    if member_set.sums is not None:
        await member_set.sums.forget([(role, offset, (), size)])


# -- when a member fails before the resync has visited a stripe ---------------------------------


def torn_stripes(context: ArrayContext, role: Role) -> Iterator[tuple[Stripe, frozenset[Role]]]:
    """Yield (stripe, lost roles including *role*) where losing *role* could cost flushed data.

    These are the stripes that await the resync after a crash without a log, and those of which a
    write has ended in an error since, if they have a written cell on *role*.
    """
    dirty = context.dirty_bitmap
    if context.code.is_copies:
        return
    for stripe in sorted(dirty.torn):
        if _has_cells(context, stripe, role):
            yield stripe, context.member_set.lost_at(stripe) | {role}
    if not dirty.unlogged:
        return
    for stripes in dirty.stripes_to_resync():
        live = context.written.written_stripes(
            context.layout, stripes.start, len(stripes), stripes.stop
        )
        for stripe in live:
            if dirty.awaits_resync(stripe) and _has_cells(context, stripe, role):
                yield stripe, context.member_set.lost_at(stripe) | {role}


def _has_cells(context: ArrayContext, stripe: Stripe, role: Role) -> bool:
    cells = context.layout.lost_cells(stripe, frozenset({role}))
    return bool(cells & ~context.unwritten_cells(stripe))


def is_undecidable(context: ArrayContext, stripe: Stripe, lost: frozenset[Role]) -> bool:
    """Return whether *stripe* without the roles *lost* has no parity left to show a tear."""
    cells = context.layout.lost_cells(stripe, lost) & ~context.unwritten_cells(stripe)
    return len({context.code.column_of[cell] for cell in cells_of(cells)}) >= context.code.tolerance


def chunks_at_stake(context: ArrayContext, role: Role) -> int:
    """Return how many chunks would be lost, or could be wrong, if *role* were lost now."""
    chunks = 0
    for stripe, lost in torn_stripes(context, role):
        cells = (
            context.layout.lost_cells(stripe, lost)
            & context.code.data_mask
            & ~context.unwritten_cells(stripe)
        )
        numbers = (context.layout.logical(stripe, cell) for cell in cells_of(cells))
        chunks += sum(context.bad_chunks.pages_of(number) != -1 for number in numbers)
    return chunks


def note_failing(context: ArrayContext, role: Role) -> None:
    """Record the chunks that the failing *role* takes with it; the resync decides the rest."""
    for stripe, lost in torn_stripes(context, role):
        if is_undecidable(context, stripe, lost):
            give_up_cells(context, stripe, context.layout.lost_cells(stripe, lost))


def give_up_cells(context: ArrayContext, stripe: Stripe, lost: int) -> None:
    """Record the written data cells of *stripe* in the mask *lost* as lost chunks."""
    cells = lost & context.code.data_mask & ~context.unwritten_cells(stripe)
    context.bad_chunks.update(context.layout.logical(stripe, cell) for cell in cells_of(cells))
