"""Moving chunks of bundles: to a free chunk, or two that change places; all or nothing.

A move is one log record: the content at its new place, and the new place in the chunk table. When
it is committed readers see the new place; a power cut before or after it leaves the content
readable. A reader that had looked up the old place looks it up again (`Layout.moves`). The old
place is free immediately: records older than the one that freed it are redone before it, and a
write past the log to it waits until no record of its stripe may be redone (journal/journal.py, law
3).

Cells that were never written move without being read. If the target member is relied on to read as
zero, zeros are written at the new place, because another cell may have left its bytes there. The
content of a lost member is recovered by its chain, for movers that may work on a degraded array.
Unrecoverable content stays where it is, unless redundancy is restored: then it is given up, as in a
rebuild (write/mend.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.contradictions import unproven_pages
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.errors import UnrecoverableError
from raidx_fuse.layouts.numbers import MemberChunk, Role, Stripe, stripe_and_cell
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.store.buffers import zero_buffers
from raidx_fuse.store.chunk_table import Move
from raidx_fuse.store.io_tuples import MemberIO, MemberLostError


class ChunkMover:
    """Moves chunks of *context*; a *degraded* mover also off lost members."""

    def __init__(
        self, context: ArrayContext, layout: BundleLayout, *, degraded: bool = False
    ) -> None:
        self.context = context
        self.layout = layout
        self.degraded = degraded

    def exchange(self, one: int, other: int) -> list[Move]:
        """Return the moves by which two cells change places."""
        disk, offset = self.layout.disk, self.layout.offset
        return [
            (one, Role(int(disk[other])), MemberChunk(int(offset[other]))),
            (other, Role(int(disk[one])), MemberChunk(int(offset[one]))),
        ]

    def problem(self, moves: Sequence[Move]) -> str | None:
        """Return why *moves* cannot be done now, as text for a message, or None."""
        context, layout = self.context, self.layout
        member_set = context.member_set
        if member_set.watermarks or (member_set.lost and not self.degraded):
            return "a member is lost"
        if member_set.lost and any(role in member_set.lost for _cell, role, _chunk in moves):
            return "a member that chunks would move to is lost"
        if context.dirty_bitmap.pending_regions():
            return "a resync is due"
        if layout.closed and any(role in layout.closed for _cell, role, _chunk in moves):
            return "a member that chunks would move to is leaving"
        cells = {cell for cell, _role, _chunk in moves}
        for _cell, role, chunk in moves:
            if chunk >= layout.counts[role]:  # planned before a smaller member took the role
                return f"role {role} has no chunk {chunk} any more"
            held = int(layout.cells_of(role)[chunk])
            if held >= 0 and held not in cells:
                return f"chunk {chunk} of role {role} is taken"
        target = {cell: role for cell, role, _chunk in moves}
        for bundle in {Stripe(cell // layout.length) for cell in cells}:
            first = bundle * layout.length
            now = layout.roles(bundle)
            then = {target.get(first + column, role) for column, role in enumerate(now)}
            if len(then) < layout.length:
                return f"bundle {bundle} would have two chunks on one member"
        return None

    async def move(self, moves: Sequence[Move]) -> bool:
        """Give cells their new places; return False, with nothing done, if that is impossible now.

        Raises what the members raise.
        """
        bundles = sorted({Stripe(cell // self.layout.length) for cell, _role, _chunk in moves})
        if self.context.gate.is_closed:
            return False  # the roles are about to change, for which *moves* were planned
        inside = self.context.gate.enter_now()
        try:
            await self.context.locks.acquire_all(bundles)
            try:
                return await self.move_locked(bundles, moves)
            finally:
                self.context.locks.release_all(bundles)
        finally:
            inside.leave()

    async def move_locked(
        self, bundles: Sequence[Stripe], moves: Sequence[Move], *, give_up: bool = False
    ) -> bool:
        """Do the same as `move` under the locks of *bundles*, which the caller holds.

        With *give_up* chunks move also if nothing gives some of their pages back.
        """
        promised = self.layout.promised
        places = {(role, chunk) for _cell, role, chunk in moves}
        # No lock protects a free place: a record of another mover may be about to take it.
        if self.problem(moves) is not None or promised & places:
            return False
        promised |= places
        try:
            await self.context.journal.settle(bundles)
            return await self._move(bundles, moves, give_up)
        finally:
            promised -= places

    async def _move(self, bundles: Sequence[Stripe], moves: Sequence[Move], give_up: bool) -> bool:
        context = self.context
        while True:
            try:
                writes, unverified = await self._contents(moves, give_up)
                break
            except MemberLostError:
                if not give_up or self.problem(moves) is not None:
                    return False
            except UnrecoverableError:
                unreadable = context.member_set.unreadable
                if not give_up or not await unreadable.pass_over(bundles, context.chunk_bytes):
                    return False
        begun = False

        def still_valid() -> bool:
            nonlocal begun
            if begun:
                return True  # the record is being written: recovery would redo it
            begun = self.problem(moves) is None
            return begun

        if not await context.journal.commit(
            bundles, writes, (), still_valid, moves, unverified=unverified
        ):
            return False
        context.traffic.count_moved(len(moves))
        return True

    async def _contents(
        self, moves: Sequence[Move], lists: bool
    ) -> tuple[list[MemberIO], list[tuple[Role, int]]]:
        """Read the content that *moves* take along; return the writes at the new places.

        With them come the pages (role, byte offset) there that get no sums: they are lost. *lists*:
        as `CellReader`.

        Raises UnrecoverableError, MemberLostError and what the members raise.
        """
        context, layout = self.context, self.layout
        size = context.chunk_bytes
        reader = CellReader(context, lists=lists)
        writes: list[MemberIO] = []
        zero_roles = context.zeros.recorded()
        begin = context.member_set.data_offset
        places = [(role, begin + chunk * size) for _cell, role, chunk in moves]
        context.member_set.reserve_chunks(places)
        for (cell, role, chunk), (_role, position) in zip(moves, places, strict=True):
            context.journal.chunk_table.reserve(role, chunk)
            bundle, column = stripe_and_cell(cell, layout.length)
            if not context.unwritten_cells(bundle) >> column & 1:
                buffer = bytearray(size)
                writes.append((role, position, [buffer], size))
                reader.add(bundle, {column: memoryview(buffer)})
            elif role in zero_roles:
                writes.append((role, position, zero_buffers(size), size))
        cells = [stripe_and_cell(cell, layout.length) for cell, _role, _chunk in moves]
        written = [cell for cell in cells if not context.unwritten_cells(cell[0]) >> cell[1] & 1]
        unproven = await unproven_pages(context, written)
        await reader.run()
        unverified: list[tuple[Role, int]] = []
        for source, place in zip(cells, places, strict=True):
            pages = unproven.get(source, ())
            unverified += context.copied_unverified(*source, [place], pages)
        return writes, unverified
