"""Rebundle job: move chunks of bundles to other members by a plan, again until no move is left.

Each move is one record of the log (engine/move_chunks.py), so the job has no position to save:
after a crash it makes a new plan from the table. Unwritten chunks move many to a record, as mere
entries of the table. A target needs a free chunk. If the moves form a ring of full members, the
chunks of the ring change places in one record.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import BusyError, MemberError, NoSpaceError, RaidxError
from raidx_fuse.format.configuration.config import NO_ROLE
from raidx_fuse.jobs.job import WINDOW_BYTES, Job
from raidx_fuse.layouts.numbers import MemberChunk, Role, Stripe, stripe_and_cell
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.planning.rebundle import Moves
from raidx_fuse.store.chunk_table import Move

if TYPE_CHECKING:
    from raidx_fuse.documents import JobDetail

log = logging.getLogger(__name__)

GROW, EVACUATE, RESTORE = "grow", "evacuate", "restore"

UNWRITTEN_MAX = 1024  # moves without content in one record
WRITTEN_MAX = 16  # moves with content in one window

Plan = Callable[[], Moves]
End = Callable[["RebundleJob", bool], Awaitable[None]]


class RebundleJob(Job):
    """Moves chunks until *plan* returns none; *lacks* names a lost role that must return first.

    *end* concludes the purpose of the moves. *written* counts the chunks moved with their content,
    *placed* those without content; *window* is the most of the former in one window.
    """

    needs_resync = pauses = True
    retries = (BusyError, MemberError, NoSpaceError)

    def __init__(
        self,
        context: ArrayContext,
        job_id: int,
        kind: str,
        mover: ChunkMover,
        plan: Plan,
        lacks: Callable[[], Role | None],
        end: End,
    ) -> None:
        super().__init__(context, job_id)
        self.kind = kind
        self.mover = mover
        self.layout: BundleLayout = mover.layout
        self.written = self.placed = 0
        self.stuck = 0
        self.extra: JobDetail = {}
        self._plan = plan
        self._lacks = lacks
        self._end = end
        self._pending: dict[Role, list[int]] = {}  # target -> cells, taken from the end
        self._records: list[list[Move]] = []
        self._stale = True  # the plan may not fit the table any more
        self._moved_since = True  # a move was done since the last plan
        self.window = max(1, min(WRITTEN_MAX, WINDOW_BYTES // context.chunk_bytes))

    def detail(self) -> JobDetail:
        """Return what moved and what the job waits for."""
        return {
            "chunks_moved": self.written,
            "places_changed": self.placed,
            "stuck": self.stuck,
            **self.waits(),
            **self.extra,
        }

    # -- the job -------------------------------------------------------------------------------

    def _make_plan(self) -> None:
        plan = self._plan()
        self._pending = {}
        for cell, target in zip(plan.cells.tolist(), plan.targets.tolist(), strict=True):
            self._pending.setdefault(target, []).append(cell)
        self.stuck = plan.stuck
        self.total_bytes = self.done_bytes + plan.written * self.context.chunk_bytes
        self._stale = self._moved_since = False

    def blocked(self) -> Role | None:
        """Return a lost role that must return first; no chunk moves during a rebuild either."""
        lacks = self._lacks()
        return NO_ROLE if lacks is None and self.context.member_set.watermarks else lacks

    def replan(self) -> None:
        self._stale = True

    def next_window(self) -> list[Stripe] | None:
        """Return the bundles of the next moves."""
        if self._stale:
            self._make_plan()
        self._records = self._next_records()
        if not self._records and self._moved_since:
            self._make_plan()  # users wrote meanwhile, or a move was impossible
            self._records = self._next_records()
        if not self._records:
            return None
        length = self.layout.length
        return sorted({Stripe(cell // length) for record in self._records for cell, _, _ in record})

    def _next_records(self) -> list[list[Move]]:
        """Take the next moves off the plan, one per record; unwritten chunks share one record."""
        length, context = self.layout.length, self.context
        taken: set[int] = set()
        records: list[list[Move]] = []
        empty: list[Move] = []
        for target, cells in self._pending.items():
            if not cells:
                continue
            free = self.layout.free_chunks(target)[: UNWRITTEN_MAX + WRITTEN_MAX].tolist()
            while cells and free and len(records) < self.window and len(empty) < UNWRITTEN_MAX:
                bundle, column = stripe_and_cell(cells[-1], length)
                if bundle in taken:
                    break
                taken.add(bundle)
                move = (cells.pop(), target, free.pop(0))
                if (
                    context.unwritten_cells(bundle) >> column & 1
                    and target not in context.zeros.recorded()
                ):
                    empty.append(move)
                else:
                    records.append([move])
        if empty:
            records.append(empty)
        return records or self._ring()

    def _ring(self) -> list[list[Move]]:
        """Return one record whose chunks move in a ring, if every target is full; [] if none."""
        first = next((target for target, cells in self._pending.items() if cells), None)
        if first is None:
            return []
        path: list[tuple[int, Role]] = []  # (cell, its target)
        seen: dict[Role, int] = {}  # target -> index in *path*
        target: Role | None = first
        while target is not None and target not in seen:
            seen[target] = len(path)
            cell = self._leaving(target)
            if cell is None:
                return []
            path.append((cell, target))  # the cell lies on *target* and frees a chunk there
            target = next((t for t, cells in self._pending.items() if cell in cells), None)
        assert target is not None
        ring = path[seen[target] :]
        moves: list[Move] = []
        for number, (cell, _source) in enumerate(ring):
            following, place = ring[(number + 1) % len(ring)]
            self._pending[place].remove(cell)
            moves.append((cell, place, MemberChunk(int(self.layout.offset[following]))))
        return [moves]

    def _leaving(self, role: Role) -> int | None:
        """Return a cell on *role* that has to move, None if there is none."""
        for cells in self._pending.values():
            for cell in cells:
                if int(self.layout.disk[cell]) == role:
                    return cell
        return None

    async def work(self, stripes: list[Stripe]) -> int:
        """Do the moves of one window concurrently; return the bytes moved."""
        records, self._records = self._records, []
        before = self.written
        async with trio.open_nursery() as nursery:
            for record in records:
                nursery.start_soon(self._move, record)
        return (self.written - before) * self.context.chunk_bytes

    async def _move(self, record: Sequence[Move]) -> None:
        length = self.layout.length
        bundles = sorted({Stripe(cell // length) for cell, _role, _chunk in record})
        live = sum(
            not self.context.unwritten_cells(Stripe(cell // length)) >> cell % length & 1
            for cell, _role, _chunk in record
        )
        try:
            give_up = self.kind == RESTORE  # as a rebuild; others leave what they cannot read
            done = await self.mover.move_locked(bundles, record, give_up=give_up)
        except RaidxError as error:
            self.meet(error, f"bundle {bundles[0]}")
            return
        if done:
            self._moved_since = True
            self.written += live
            self.placed += len(record) - live
        elif self.context.member_set.unreadable:
            self._stale = True
            still = await self.context.member_set.try_unreadable()
            if still is not None:
                self.note_wait(still)

    async def finish(self, completed: bool) -> None:
        """Conclude the purpose of the moves."""
        await self.insist(lambda: self._end(self, completed))
