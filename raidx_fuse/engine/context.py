"""The array context: the values that reading, writing and background jobs share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from raidx_fuse.engine.access_stats import AccessStats, PlaceHeat
from raidx_fuse.engine.changed_regions import ChangedRegions
from raidx_fuse.engine.chunk_cache import ChunkCache, address_of
from raidx_fuse.engine.gate import Gate
from raidx_fuse.engine.growth_position import GrowthPosition
from raidx_fuse.engine.parity_policies import Policies
from raidx_fuse.engine.traffic import Traffic
from raidx_fuse.errors import UnrecoverableError
from raidx_fuse.format.configuration.lost_chunks import LostChunks
from raidx_fuse.journal.journal import Journal
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Offset, Role, Stripe
from raidx_fuse.layouts.placements.elastic import growth_of
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.restriping import RestripeLayout, restripe_of
from raidx_fuse.layouts.planning.stripe_plan import cells_of, unwritten_cells
from raidx_fuse.store.buffers import ArenaPool
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberIO, MemberLostError
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.sums import Page
from raidx_fuse.store.written_map import WrittenMap

log = logging.getLogger(__name__)


class Zeros:
    """Which members can be relied on to read as zero where nothing was written.

    *roles* are theirs; *all_roles*: every role is among them.

    There are none while a resync is due: a write from before the crash may have reached a place
    whose bit in the written map was never set. Nor if the array has sums: a first write gives all
    pages of its chunk one, so it writes all of them.
    """

    __slots__ = ("_dirty_bitmap", "_member_set", "all_roles", "roles")

    def __init__(self, member_set: MemberSet, dirty_bitmap: DirtyBitmap) -> None:
        self._member_set = member_set
        self._dirty_bitmap = dirty_bitmap
        self.roles: frozenset[int] = frozenset()
        self.all_roles = False

    def recorded(self) -> frozenset[int]:
        """Return the roles whose superblock records say that unwritten places read as zero.

        The set is empty during a restripe. There a place becomes unwritten as soon as its chunk has
        moved, so it need not read as zero; a member that took a role meanwhile received what
        was at the place then.
        """
        if self._member_set.layout.restriping:
            return frozenset()
        return frozenset(r.role for r in self._member_set.config.members if r.reads_zero)

    def note(self) -> None:
        """Take over what the superblocks, and the regions that await a resync, say now."""
        unknown = self._dirty_bitmap.pending_regions() or self._member_set.sums is not None
        self.roles = frozenset() if unknown else self.recorded()
        self.all_roles = self.roles.issuperset(self._member_set.config.roles())

    def distrust(self) -> None:
        """Assume of no member, now or after a remount, that its unwritten places read as zero."""
        self._member_set.change(
            lambda config: replace(
                config, members=tuple(replace(r, reads_zero=False) for r in config.members)
            )
        )
        self.note()
        self._member_set.publish_soon()


class ArrayContext:
    """One array's geometry, members, maps, locks and traffic.

    *bad_chunks* are the lost chunks: logical chunks of which nothing can give back the content, or
    that of some pages, for example after a second failure in a degraded stripe. Reading these is an
    error until they are written again.

    *gate* is that of the layout (gate.py); `closed` closes it.

    *layout_epoch* rises when the place of a chunk changes: with the layout, and with each window of
    a growth or restripe, which moves places under stripe locks while the gate is open. A task that
    looked up a place before it held the stripe's lock compares the epoch afterwards, and repeats
    the look-up if it has changed.

    *growth* is the position of the growth that is under way, *restripe* the layout of the restripe;
    None if there is none.
    """

    __slots__ = (
        "arenas",
        "bad_chunks",
        "cache",
        "cells",
        "changes",
        "chunk_bytes",
        "code",
        "dirty_bitmap",
        "gate",
        "growth",
        "journal",
        "layout",
        "layout_epoch",
        "locks",
        "member_set",
        "on_layout",
        "policies",
        "restripe",
        "traffic",
        "written",
        "zeros",
    )

    def __init__(
        self,
        layout: Layout,
        member_set: MemberSet,
        written: WrittenMap,
        dirty: DirtyBitmap,
        journal: Journal,
    ) -> None:
        self.layout_epoch = 0
        self.on_layout: list[Callable[[], None]] = []
        self.growth: GrowthPosition | None = None
        self.restripe: RestripeLayout | None = None
        self.chunk_bytes = layout.chunk_bytes
        self.member_set = member_set
        self.written = written
        self.dirty_bitmap = dirty
        self.journal = journal
        self.cells = journal.cells
        self.locks = self.cells.locks
        self.gate = Gate("the array", member_set.laws)
        self.changes = ChangedRegions(member_set, layout, dirty, lambda: journal.ring.stripes)
        self.arenas = ArenaPool()
        clock = member_set.clock
        table, queues = journal.chunk_table.layout, member_set.queues
        self.traffic = Traffic(
            clock,
            by_chunk=None if table is None else AccessStats(table, queues, clock),
            by_region=PlaceHeat(layout.chunks, queues, clock) if table is None else None,
        )
        member_set.flush_observers.append(self.traffic)
        self.policies = Policies(
            self._role, lambda: member_set.queues, clock, self.traffic.count_plan
        )
        self.cells.connect(self.changes, self.note_torn)
        dirty.connect(self.cells.save_sums)
        journal.connect(self._take_mark, self.changes.note_degraded, self.policies)
        self.zeros = Zeros(member_set, dirty)
        self.cache: ChunkCache | None = None  # None: switched off
        self.bad_chunks = LostChunks()
        self._take_layout(layout)
        self.zeros.note()

    def _role(self, stripe: Stripe, cell: CellIndex) -> Role:
        return self.layout.place(stripe, cell)[0]

    def use_cache(self, size_bytes: int) -> None:
        """Give the chunk cache *size_bytes* of memory from now on; 0 switches it off."""
        if not size_bytes:
            self.cache = None
        elif self.cache is None:
            self.cache = ChunkCache(size_bytes, self.chunk_bytes)
        else:
            self.cache.resize(size_bytes)

    def cached(self, stripe: Stripe, cells: int, low: int, high: int) -> int:
        """Return the subset of the mask *cells* whose bytes *low*..*high* - 1 are in the cache."""
        cache, layout = self.cache, self.layout
        if cache is None:
            return 0
        mask = 0
        if self.growth is not None:
            # parity is cached by stripe number, and a growth changes the stripes
            cells &= self.code.data_mask
        for cell in cells_of(cells):
            if cache.holds(address_of(layout, stripe, cell) + low, high - low):
                mask |= 1 << cell
        return mask

    def take_layout(self, layout: Layout) -> None:
        """Use *layout* from now on. Raises LawError outside a block of `closed`."""
        self._require_closed("a change of the layout")
        self._take_layout(layout)

    def _take_layout(self, layout: Layout) -> None:
        self.layout = layout
        self.member_set.take_layout(layout)
        self.code = layout.code
        growing, self.restripe = growth_of(layout), restripe_of(layout)
        self.growth = None if growing is None else GrowthPosition(self.member_set, growing)
        if self.restripe is not None:
            # recovery could redo a record of other rows over a write past the log
            self.journal.force(True)
        self.layout_epoch += 1
        if self.cache is not None:
            self.cache.clear()
        for hook in self.on_layout:
            hook()

    def note_sums(self) -> None:
        """Note that the array has checksums now, or none any more: routes depend on that.

        Raises LawError outside a block of `closed`.
        """
        self._require_closed("a switch of the checksums")
        self.zeros.note()
        self.journal.unsettled.take_layout()
        for hook in self.on_layout:
            hook()

    def _take_mark(self, mark: int) -> None:
        """Move the watermark of a restripe to *mark*; the locks of the stripes passed are held."""
        if self.restripe is not None:
            self.restripe.move_watermark(Chunk(mark))
            self.layout_epoch += 1

    def migrate_to(self, stripe: Stripe) -> None:
        """Move the growth position: *stripe* is the first stripe still in the old shape.

        The caller holds the locks of the stripes in between.
        """
        assert self.growth is not None
        self.growth.move_to(stripe)
        self.layout_epoch += 1

    def end_growth(self) -> None:
        """End the growth: every place that a chunk has left may now be given to another chunk.

        Raises LawError outside a block of `closed`.
        """
        self._require_closed("the end of a growth")
        self.growth = None
        self.layout_epoch += 1

    def take_lost_chunks(self, chunks: LostChunks) -> None:
        chunks.take_pages(self._every_page)
        self.bad_chunks = chunks

    @asynccontextmanager
    async def closed(self, *, drained: bool = True) -> AsyncIterator[None]:
        """Run the block while no request and no job is inside, and no stripe lock is held.

        The block changes the shape, the roles or the mode of the log, and publishes that. With
        *drained*, the log was emptied shortly before, and no parity is awaited: what the log has of
        a stripe is counted by its cells, which may change. Raises BusyError if requests do not end
        within `io.timeout_s`, and what the members raise.
        """
        unsettled, paused = self.journal.unsettled, False

        async def drain() -> None:
            nonlocal paused
            paused = True
            unsettled.pause(True)
            await self.journal.drain()

        try:
            async with self.gate.closed(
                self.member_set.io_timeout_s,
                drain=drain if drained else None,
                quiet=self.locks.free,
            ):
                yield
        finally:
            if paused:
                unsettled.pause(False)

    def _require_closed(self, change: str) -> None:
        self.gate.require_empty(change)
        if not self.gate.is_closed or self.locks.held:
            raise self.member_set.laws.broken(Law.GATE, f"{change} while requests may come")

    def unwritten_cells(self, stripe: Stripe) -> int:
        """Return the mask of the cells of *stripe* that were never written, parity included."""
        unwritten_data = self.written.unwritten_data(self.layout, stripe)
        return unwritten_cells(self.code, unwritten_data) if unwritten_data else 0

    def kept_sums(self, stripe: Stripe) -> int:
        """Return the mask of the cells of *stripe* whose sums hold while their member is absent.

        Those are its data (law 5 of store/sums.py). Where a table places the cells, places of an
        absent member may be unknown.
        """
        return 0 if self.layout.has_table else self.code.data_mask

    def says_what_is_lost(self, stripe: Stripe, cell: CellIndex, at: int) -> bool:
        """Return whether the sum of the page at byte *at* of *cell* says what it must be.

        The member of the cell is absent.
        """
        if not self.kept_sums(stripe) >> cell & 1:
            return False
        lost = self.bad_chunks.pages_of(self.layout.logical(stripe, cell))
        return not lost >> at // PAGE_BYTES & 1

    def lose_pages(self, stripe: Stripe, cells: int, low: int, high: int) -> None:
        """List the pages with the bytes *low* .. *high* - 1 of the data *cells* (a mask) as lost.

        Only in memory: array/array.py saves the list.
        """
        pages = (1 << -(-high // PAGE_BYTES)) - (1 << low // PAGE_BYTES)
        for cell in cells_of(cells):
            chunk = self.layout.logical(stripe, cell)
            self.bad_chunks.add_pages(chunk, pages, self._every_page)

    def copied_unverified(
        self,
        stripe: Stripe,
        cell: CellIndex,
        places: Iterable[tuple[Role, int]],
        unproven: Iterable[int] = (),
    ) -> list[tuple[Role, int]]:
        """Return the pages (role, byte offset) that get no sum in copies of a cell at *places*.

        They are listed as lost: what is copied of them is not what was written. Or nothing says
        that it is: the pages at bytes *unproven*.
        """
        pages = {*unproven}
        if self.bad_chunks and cell < self.code.data_count:
            lost = self.bad_chunks.pages_of(self.layout.logical(stripe, cell)) & self._every_page
            every = range(0, self.chunk_bytes if lost else 0, PAGE_BYTES)
            pages.update(at for at in every if lost >> at // PAGE_BYTES & 1)
        if not pages:
            return []
        return [(role, begin + at) for role, begin in places for at in sorted(pages)]

    def forgive(self, chunk: Chunk, low: int, high: int) -> None:
        """Take the whole pages in the bytes *low* .. *high* - 1 of *chunk* off the list."""
        pages = (1 << high // PAGE_BYTES) - (1 << -(-low // PAGE_BYTES))
        if pages > 0:
            self.bad_chunks.discard_pages(chunk, pages, self._every_page)

    @property
    def _every_page(self) -> int:
        return (1 << -(-self.chunk_bytes // PAGE_BYTES)) - 1

    def refused(self, offset: int, length: int) -> int | None:
        """Return the first byte of the image from *offset* on whose page is lost; None: none is."""
        size, end = self.chunk_bytes, offset + length
        for chunk in range(offset // size, (end - 1) // size + 1):
            pages = self.bad_chunks.pages_of(chunk)
            if not pages:
                continue
            begin = chunk * size
            first = (max(offset, begin) - begin) // PAGE_BYTES
            last = (min(end, begin + size) - begin - 1) // PAGE_BYTES
            pages &= (2 << last) - (1 << first)
            if pages:
                return begin + ((pages & -pages).bit_length() - 1) * PAGE_BYTES
        return None

    def is_unwritten(self, stripe: Stripe) -> bool:
        """Return True if no chunk of *stripe* was ever written.

        A rebuild skips such a stripe even while its lock is held.
        """
        return self.written.unwritten_data(self.layout, stripe) == self.code.data_mask

    def position(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, Offset]:
        """Return (role, byte offset on the member) of the first byte of a cell."""
        role, chunk = self.layout.place(stripe, cell)
        return role, self.member_set.data_offset + chunk * self.chunk_bytes  # type: ignore[return-value]

    def where(self, stripe: Stripe, cells: tuple[CellIndex, ...]) -> str:
        """Return the stripe, roles and image offsets of *cells* as text for a message."""
        places = []
        for cell in cells:
            role, _ = self.layout.place(stripe, cell)
            text = f"role {role}"
            if cell < self.code.data_count:
                text += f" (image offset {self.layout.logical(stripe, cell) * self.chunk_bytes})"
            places.append(text)
        return f"stripe {stripe}, " + ", ".join(places)

    def lost_error(self, stripe: Stripe, cells: tuple[CellIndex, ...]) -> UnrecoverableError:
        """Return the error for *cells* that the code cannot recover."""
        unreadable = self.member_set.unreadable
        return UnrecoverableError(
            f"cannot recover {self.where(stripe, cells)}: too many members are lost"
            + (", or cannot be read there" if unreadable else ""),
            action="see `raidx damage ARRAY`" if unreadable else "see `raidx status`",
        )

    async def write_cells(
        self,
        stripe: Stripe,
        requests: list[MemberIO],
        role_epoch: int,
        cover: Cover,
        unverified: Sequence[tuple[Role, int]] = (),
    ) -> None:
        """Write whole cells of *stripe*, all or nothing, for a job that holds the stripe's lock.

        That is through the log, or in mode none past it under *cover*. The *unverified* pages
        (role, byte offset) get no sums. Raises MemberLostError if another member took a role since
        *role_epoch*.
        """
        self.forget_stripe(stripe)
        self.changes.note((stripe,))
        try:
            if self.journal.mode != "none" or self.journal.holds(stripe):
                if not await self.journal.commit(
                    *([stripe], requests, ()),
                    lambda: role_epoch == self.member_set.role_epoch,
                    unverified=unverified,
                ):
                    raise MemberLostError
            else:
                pages = self.sum_pages(unverified)
                await self.cells.write(requests, cover, (stripe,), unverified=pages)
        finally:
            self.forget_stripe(stripe)

    def note_torn(self, stripes: Iterable[Stripe]) -> None:
        """Note that a write to *stripes* was only partly done.

        The chunks that it took down with lost members are noted as lost (write hole). A stripe
        that has lost all its redundancy has no parity that could be wrong.
        """
        column_of = self.code.column_of
        for stripe in stripes:
            lost = self.layout.lost_cells(stripe, self.member_set.lost_at(stripe))
            lost &= ~self.unwritten_cells(stripe)  # those are zero in every chain
            if len({column_of[cell] for cell in cells_of(lost)}) < self.code.tolerance:
                self.dirty_bitmap.note_torn((stripe,))
            for cell in cells_of(lost & self.code.data_mask):
                chunk = self.layout.logical(stripe, cell)
                if chunk not in self.bad_chunks:
                    log.error(
                        "the content of %s is lost: a member failed during a degraded write",
                        self.where(stripe, (cell,)),
                    )
                self.bad_chunks.add(chunk)

    def sum_pages(self, places: Iterable[tuple[Role, int]]) -> list[Page]:
        """Return the pages of sums at *places* (role, byte offset); none without checksums."""
        sums = self.member_set.sums
        return [] if sums is None else [sums.page_at(*place) for place in places]

    def forget_stripe(self, stripe: Stripe) -> None:
        """Drop every cached page of *stripe*, data and parity."""
        if self.cache is not None:
            for cell in cells_of(self.code.all_mask):
                self.cache.forget(address_of(self.layout, stripe, cell), self.chunk_bytes)
