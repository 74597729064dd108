"""The copies of a growth, and the parity mode of the stripes: live, piggyback or surrogate.

    live       parity is unchanged: the vacated place counts as zero (DESIGN.md, section 2); a
               parity cell that moves is copied like any other
    piggyback  P' = P xor the moved blocks; the old copies stay part of the stripe, as the content
               of the new blocks there (the mcpod paper, section 3.3)
    surrogate  parity is unchanged too, but for migrated stripes it lies on the surrogate member: it
               is copied like a block that moves (section 3.4)

Piggyback updates parity in place. One commit writes the parity and marks the new blocks as written,
after the copies are durable. From then on the XOR over the places of the stripe is the same
whichever of the two copies is the current block, so the position may become durable later, as for
`live`. A crash or a cancelled growth can leave that parity on a stripe whose blocks have their old
places; `drop` takes the old copies out of it again. With journal=none the parity is written in its
place, and a crash leaves the stripe to a resync; not together with the copies, as in the paper: of
a copy that its member refuses, the parity would get the block again with the next attempt. While a
member is lost it goes through the log in any mode: an interrupted change would cost its chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.contradictions import UnprovenPages, unproven_pages
from raidx_fuse.engine.growth_position import PIGGYBACK, GrowthPosition
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.errors import MemberError
from raidx_fuse.layouts.codes.code import bits
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import MemberIO, MemberLostError, join
from raidx_fuse.store.overlay import Numbers
from raidx_fuse.store.xor import combine

DROPPED_MAX = 64  # old copies that `drop` removes in one commit

Batch = tuple[Sequence[Stripe], Sequence[CellIndex]]  # stripes, cells


@dataclass(slots=True)
class Load:
    """What was read: cells to copy, and the new parity of each stripe whose parity changes.

    *views* hold the content of the *cells* of *stripes*; *unproven*: pages that nothing proves.
    """

    stripes: Sequence[Stripe]
    cells: Sequence[CellIndex]
    views: list[Any]
    parities: dict[Stripe, tuple[Any, Bytes]]
    arenas: list[Arena]
    unproven: UnprovenPages


@dataclass(slots=True)
class Change:
    """One change of *stripe*'s parity.

    With it, the chunks *fresh* become written and the chunks *unwritten* become unwritten again.
    The *unverified* pages (role, byte offset) of the parity get no sums.
    """

    stripe: Stripe
    writes: list[MemberIO]
    fresh: list[Chunk]
    unwritten: list[Chunk]
    unverified: list[tuple[Role, int]] = field(default_factory=list)


def live_moves(
    context: ArrayContext, layout: ElasticLayout, start: int, end: int
) -> tuple[list[Stripe], list[CellIndex]]:
    """Return the written cells that the growth of *layout* moves in the stripes start..end-1.

    Two lists of equal length, by rising stripe: stripes, cells. A parity cell is written if one of
    its data cells is.
    """
    code = layout.code
    stripes, columns = layout.moving(start, end)
    chunks, known = layout.logical_rows(start, end), context.written.chunks
    # Before a growth begins, the map has no bits of the chunks that it will add.
    written = context.written.is_written_many(np.minimum(chunks, known - 1)) & (chunks < known)
    found = [np.zeros((2, 0), np.int64)]
    for column, cells in enumerate(code.column_cells):
        rows = stripes[columns == column]
        for cell in cells if len(rows) else ():
            sources = [cell]
            if cell >= code.data_count:
                sources = list(bits(code.support[cell - code.data_count]))
            live = rows[written[(rows - start)[:, None], sources].any(axis=1)]
            found.append(np.stack((live, np.full_like(live, cell))))
    both = np.concatenate(found, axis=1)
    both = both[:, np.argsort(both[0], kind="stable")]
    return both[0].tolist(), both[1].tolist()


class Reads:
    """Reads at most *count* whole cells; cells on lost members are solved by their chain.

    RAM members lend their memory, so that nothing is copied without need.
    """

    def __init__(self, context: ArrayContext, count: int) -> None:
        self.context = context
        self.arenas: list[Arena] = []
        self._reader = CellReader(context, lists=True)
        self._count = count
        self._slots: Iterator[tuple[memoryview, Bytes]] | None = None

    def _slot(self) -> tuple[memoryview, Bytes]:
        """Return a buffer for one more cell."""
        if self._slots is None:
            size = self.context.chunk_bytes
            self.arenas.append(self.context.arenas.get(self._count * size))
            self._slots = iter(self.arenas[0].slots(size, self._count))
        return next(self._slots)

    def lend(self, stripes: Sequence[Stripe], cells: Sequence[CellIndex]) -> list[Any]:
        """Return read-only views of *cells* of *stripes*; `run` fills those that are not lent."""
        context, member_set = self.context, self.context.member_set
        if member_set.lost:
            return [self.add(*place)[0] for place in zip(stripes, cells, strict=True)]
        size, rows = context.chunk_bytes, context.code.rows
        first = min(stripes) * rows
        span = ((max(stripes) + 1) * rows - first) * context.chunk_bytes
        lent: dict[Role, memoryview | None] = {}
        places = [context.layout.place(*cell) for cell in zip(stripes, cells, strict=True)]
        for role, count in Counter(role for role, _ in places).items():
            offset = context.member_set.data_offset + first * context.chunk_bytes
            try:
                lent[role] = member_set.lend(role, offset, span, count * size / span)
            except MemberError:
                lent[role] = None  # the read through the queue detects the failure
        views = []
        for stripe, cell, (role, chunk) in zip(stripes, cells, places, strict=True):
            whole = lent[role]
            at = (chunk - first) * context.chunk_bytes
            views.append(self.add(stripe, cell)[0] if whole is None else whole[at : at + size])
        return views

    def add(self, stripe: Stripe, cell: CellIndex) -> tuple[Any, Bytes]:
        """Return (buffer, array) into which `run` reads the written *cell* of *stripe*.

        Raises UnrecoverableError if the cell is lost and no chain gives it back.
        """
        view, array = self._slot()
        self._reader.add(stripe, {cell: view})
        return view, array

    async def run(self) -> None:
        """Read all cells that were added. Raises MemberLostError, MemberError."""
        await self._reader.run()


class Copier:
    """Copies cells of stripes whose locks are held, or with *back* to their old places."""

    def __init__(self, context: ArrayContext, growth: GrowthPosition, back: bool) -> None:
        self.context = context
        self.layout = growth.layout
        self.back = back
        self.piggyback = growth.parity == PIGGYBACK

    async def read(self, stripes: Sequence[Stripe], cells: Sequence[CellIndex]) -> Load:
        """Read the *cells*; in piggyback mode also the parities, and add the cells to them."""
        each = dict.fromkeys(stripes) if self.piggyback and not self.back else ()
        reader = Reads(self.context, len(stripes) + len(each))
        parity = CellIndex(self.layout.code.data_count)
        read = [*zip(stripes, cells, strict=True), *((stripe, parity) for stripe in each)]
        unproven = await unproven_pages(self.context, read)
        views = reader.lend(stripes, cells)
        parities = {s: reader.add(s, parity) for s in each if not self._lost(s) >> parity & 1}
        await reader.run()
        if parities:
            for stripe, view in zip(stripes, views, strict=True):
                if stripe in parities:
                    array = parities[stripe][1]
                    combine(array, (array, np.frombuffer(view, dtype=np.uint8)))
        return Load(stripes, cells, views, parities, reader.arenas, unproven)

    def _lost(self, stripe: Stripe) -> int:
        member_set = self.context.member_set
        return self.layout.lost_cells(stripe, member_set.lost_at(stripe)) if member_set.lost else 0

    async def write(self, load: Load) -> None:
        """Write copies and parities, through the log for stripes that recovery may redo (law 4).

        Raises MemberLostError, MemberError, NoSpaceError.
        """
        context = self.context
        epoch = context.member_set.role_epoch
        direct: list[MemberIO] = []
        unverified: dict[Stripe, list[tuple[Role, int]]] = {}
        held: dict[Stripe, list[MemberIO]] = {}
        holds, size = context.journal.holds, context.chunk_bytes
        for stripe, cell, view in zip(load.stripes, load.cells, load.views, strict=True):
            role, chunk = self.layout.place_in(stripe, cell, after=not self.back)
            request = (
                role,
                context.member_set.data_offset + chunk * context.chunk_bytes,
                [view],
                size,
            )
            if context.bad_chunks or load.unproven:
                pages = load.unproven.get((stripe, cell), ())
                lost = context.copied_unverified(stripe, cell, [request[:2]], pages)
                unverified.setdefault(stripe, []).extend(lost)
            if holds(stripe):
                held.setdefault(stripe, []).append(request)
            else:
                direct.append(request)
        direct = join(direct)
        for writes in (direct, *held.values()):
            context.member_set.reserve(writes)
        changes = list(self._raised(load)) if self.piggyback and not self.back else []
        apart = [
            place for stripe in unverified if stripe not in held for place in unverified[stripe]
        ]
        await context.cells.write(direct, Cover.VACANT, unverified=context.sum_pages(apart))
        most = max(1, context.journal.capacity // 8 // context.chunk_bytes)
        for stripe, requests in held.items():
            for at in range(0, len(requests), most):
                part = requests[at : at + most]
                lost = unverified.get(stripe, [])
                await context.write_cells(stripe, part, epoch, Cover.VACANT, lost)
        if changes and not held and self._changes_in_place(load.stripes):
            await self._change_in_place(changes)
        elif changes:
            await self._make_durable()
            await self._commit(changes, epoch)

    async def _make_durable(self) -> None:
        """Flush the copies: recovery that redoes the record must find them."""
        await self.context.member_set.flush()

    def _raised(self, load: Load) -> Iterator[Change]:
        """Yield the changes that make the old copies part of their stripes' parity."""
        context = self.context
        new_chunks: dict[Stripe, list[Chunk]] = {}
        unverified: dict[Stripe, list[tuple[Role, int]]] = {}
        layout, parity = self.layout, CellIndex(self.layout.code.data_count)
        for stripe, cell in zip(load.stripes, load.cells, strict=True):
            chunk = layout.logical(stripe, layout.partner(stripe, cell))
            new_chunks.setdefault(stripe, []).append(chunk)
            if stripe in load.parities:
                place = [context.position(stripe, parity)]
                pages = load.unproven.get((stripe, cell), [])
                pages = pages + load.unproven.get((stripe, parity), [])
                lost = context.copied_unverified(stripe, cell, place, pages)
                unverified.setdefault(stripe, []).extend(lost)
        for stripe, chunks in new_chunks.items():
            writes: list[MemberIO] = []
            if stripe in load.parities:
                position = context.position(stripe, parity)
                writes = [(*position, [load.parities[stripe][0]], context.chunk_bytes)]
            yield Change(stripe, writes, chunks, [], unverified.get(stripe, []))

    # -- going back ----------------------------------------------------------------------------

    def stale_copies(self, first: int, end: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return (stripes, cells, chunks) of old copies that are still part of their parity."""
        layout = self.layout
        stripes, columns = layout.moving(first, end)
        pairs = zip(stripes.tolist(), columns.tolist(), strict=True)
        cells = np.array([layout.partner(*pair) for pair in pairs], np.int64)
        chunks = layout.logical_rows(first, end)[stripes - first, cells]
        live = self.context.written.is_written_many(chunks)
        return stripes[live], cells[live], chunks[live]

    async def drop(self, window: Sequence[Stripe]) -> None:
        """Take old copies out of the parity of the stripes *window*, in rising order, as in `live`.

        Raises MemberLostError if a member failed; the caller then tries again.
        """
        found = self.stale_copies(window[0], window[-1] + 1)
        if not len(found[0]):
            return
        ours = np.isin(found[0], window)
        for at in range(0, int(ours.sum()), DROPPED_MAX):
            await self._drop(*(column[ours][at : at + DROPPED_MAX].tolist() for column in found))

    async def _drop(
        self, stripes: list[Stripe], cells: list[CellIndex], chunks: list[Chunk]
    ) -> None:
        context = self.context
        epoch = context.member_set.role_epoch
        parity = CellIndex(self.layout.code.data_count)
        reader = Reads(context, 2 * len(stripes))
        sums: dict[Stripe, tuple[Any, Bytes]] = {}
        parts: list[tuple[Bytes, Bytes]] = []
        changes: dict[Stripe, Change] = {}
        read = [*zip(stripes, cells, strict=True), *((stripe, parity) for stripe in {*stripes})]
        unproven = await unproven_pages(context, read)
        for stripe, cell, chunk in zip(stripes, cells, chunks, strict=True):
            change = changes.setdefault(stripe, Change(stripe, [], [], []))
            change.unwritten.append(chunk)
            if self._lost(stripe) >> parity & 1:
                continue
            if stripe not in sums:
                sums[stripe] = reader.add(stripe, parity)
                position = context.position(stripe, parity)
                change.writes.append((*position, [sums[stripe][0]], context.chunk_bytes))
            parts.append((sums[stripe][1], reader.add(stripe, cell)[1]))
            pages = unproven.get((stripe, cell), []) + unproven.get((stripe, parity), [])
            role, begin = context.position(stripe, parity)
            change.unverified.extend((role, begin + at) for at in pages)
        await reader.run()
        for array, part in parts:
            combine(array, (array, part))
        if self._changes_in_place(changes):
            await self._change_in_place(list(changes.values()))
        else:
            await self._commit(list(changes.values()), epoch)
        for arena in reader.arenas:
            context.arenas.put(arena)

    # -- changing parity -----------------------------------------------------------------------

    def _forget(self, changes: Sequence[Change]) -> None:
        """Drop the cached parities that are about to change; their stripes' locks are held."""
        for change in changes:
            self.context.forget_stripe(change.stripe)

    async def _commit(self, changes: Sequence[Change], epoch: int) -> None:
        """Log *changes*, each atomically. Raises MemberLostError if a role's member changed."""
        context = self.context
        self._forget(changes)
        most = max(1, context.journal.capacity // 8 // context.chunk_bytes)
        for at in range(0, len(changes), most):
            group = changes[at : at + most]
            if not await context.journal.commit(
                [change.stripe for change in group],
                [request for change in group for request in change.writes],
                [chunk for change in group for chunk in change.fresh],
                lambda: epoch == context.member_set.role_epoch,
                unwritten=[chunk for change in group for chunk in change.unwritten],
                unverified=[place for change in group for place in change.unverified],
            ):
                raise MemberLostError

    def _changes_in_place(self, stripes: Iterable[Stripe]) -> bool:
        """Return whether the parities of *stripes* change past the log."""
        journal, lost = self.context.journal, self.context.member_set.lost
        return journal.mode == "none" and not lost and not any(map(journal.holds, stripes))

    async def _change_in_place(self, changes: Sequence[Change]) -> None:
        """Write *changes* past the log.

        The regions are marked dirty first, so that a resync repairs what a crash interrupts. Raises
        MemberLostError, with nothing written, if a member was lost meanwhile.
        """
        context = self.context
        stripes = [change.stripe for change in changes]
        self._forget(changes)
        writes = [request for change in changes for request in change.writes]
        async with context.cells.marked(stripes):
            if not self._changes_in_place(stripes):
                raise MemberLostError
            lost = context.sum_pages(place for change in changes for place in change.unverified)
            await context.cells.write(join(writes), Cover.MARKED, stripes, unverified=lost)
            await context.written.mark(
                [chunk for change in changes for chunk in change.fresh],
                [chunk for change in changes for chunk in change.unwritten],
            )
