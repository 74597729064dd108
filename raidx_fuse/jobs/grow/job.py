"""Grow: move the blocks that McPod's mapping assigns to the new disks, and no others.

A window reads the written blocks that move, writes them to the new disks in runs as long as the
mapping allows (the mcpod paper, section 3.2), and then moves the growth's position past them.
engine/growth_position.py says when the position becomes durable, and why a crash at any point
leaves every block intact. copy.py updates parity; by default parity stays unchanged, because the
vacated place belongs to a new, unwritten block, which counts as zero.

If the job is cancelled, it runs backwards: blocks return to their old places, which are unwritten
until the growth ends, and the array gets its old shape again. A block is only moved onto a healthy
member with free space: while a target is lost or its host file system is full, the job waits.
Blocks on a lost member are read by their chain. At a block that cannot be read the job pauses until
the user resumes it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.growth_position import JOB_KEY, GrowthPosition
from raidx_fuse.errors import ArrayFailedError, RaidxError, UnrecoverableError
from raidx_fuse.jobs.grow.copy import Batch, Copier, live_moves
from raidx_fuse.jobs.grow.hole_punching import HolePunching
from raidx_fuse.jobs.job import WAITED_OUT, WINDOW_BYTES, Job, Position
from raidx_fuse.layouts.numbers import Role, Stripe, stripe_range
from raidx_fuse.store.io_tuples import MemberLostError

if TYPE_CHECKING:
    from raidx_fuse.documents import JobDetail

STRIPES_MAX = 4096  # whose locks one window takes
STRIPES_IDLE = 1 << 14  # when nothing slows the job: at the end of a window its members stand idle
BATCH_BYTES_MAX = 16 << 20  # read in one batch, from all members together
BATCHES_IDLE = 128  # per window when nothing slows the job: they overlap
BATCHES_AT_ONCE = 3  # more are no faster, and a user's write waits for all of them
UNSAVED_BYTES_MAX = 1 << 30  # per member: how far the position may run ahead of its durable copy
COUNT_STRIPES = 1 << 14

log = logging.getLogger(__name__)

End = Callable[[bool], Awaitable[None]]


class _Line:
    """The batches of one window, in the order in which the position passes them.

    The position may pass the batches before *end*; *error* is that of the first one that failed.
    *last* is the position behind all of them; *copied* counts the blocks that were copied.
    """

    def __init__(self, batches: Sequence[Batch], last: Stripe, window: list[Stripe]) -> None:
        self.batches = batches
        self.last = last
        self.window = window
        self.end = len(batches)
        self.error: Exception | None = None
        self.copied = 0
        self._done = [trio.Event() for _ in batches]

    def stop(self, number: int, error: Exception | None = None) -> None:
        """Let the position stop before batch *number*."""
        if number < self.end:
            self.end, self.error = number, error

    def note_copied(self, number: int) -> None:
        """Count the blocks of batch *number*."""
        self.copied += len(self.batches[number][0])

    async def wait_for(self, number: int) -> None:
        """Wait until the batches before *number* are done."""
        if number:
            await self._done[number - 1].wait()

    def let_next(self, number: int) -> None:
        """Note that batch *number* is done: the one behind it need not wait any more."""
        self._done[number].set()


class Grow(Job):
    """Moves the blocks of the growth under way; *back* reverts it. *end* concludes the growth.

    *window* counts blocks; while idle, one window has a few times as many.
    """

    kind = "grow"
    # A resync zeroes unwritten places, which blocks may have left only a moment ago; and lost cells
    # are solved from parity, which the resync makes consistent first.
    turns = needs_resync = pauses = True

    def __init__(self, context: ArrayContext, job_id: int, back: bool, end: End) -> None:
        super().__init__(context, job_id)
        assert context.growth is not None
        self.growth: GrowthPosition = context.growth
        self.layout = context.growth.layout
        self.back = back
        jobs = context.member_set.config.jobs
        self.removes = bool(jobs.get(JOB_KEY, {}).get("remove"))  # back, because members leave
        self._end = end
        self._copier = Copier(context, self.growth, back)
        self._vacated = HolePunching(context, self.layout)
        self._stale_copies: list[
            Stripe
        ] = []  # past the position, but with old copies in their parity
        sources = self.layout.members_before
        self.window = max(1, min(sources * WINDOW_BYTES, BATCH_BYTES_MAX) // context.chunk_bytes)

    def detail(self) -> JobDetail:
        """Return direction, progress and what the job waits for."""
        return {
            "members_before": self.layout.history[-2],
            "members_after": self.layout.history[-1],
            "size_after": self.layout.chunks * self.context.chunk_bytes,
            "parity": self.growth.parity,
            "going_back": self.back or self.turning,
            "removes_members": self.removes,
            **self.waits(),
            "checkpoints": self.growth.checkpoints,
        }

    def result(self, completed: bool) -> str:
        """Return the final state: a removal of members goes back to its end."""
        return "done" if completed and self.removes else super().result(completed)

    # -- which stripes -------------------------------------------------------------------------

    def _rest(self) -> tuple[int, int]:
        """Return (first, end) of the stripes that still have to change."""
        migrated = self.layout.migrated
        return (0, migrated) if self.back else (migrated, self.layout.stripes)

    def _targets(self) -> set[Role]:
        """Return the roles that blocks move to."""
        return self.layout.targets(back=self.back)

    def _reach(self) -> tuple[int, Role | None]:
        """Return (first stripe where a target is lost, its role); (end, None) if there is none.

        A role that is being rebuilt is present below its watermark.
        """
        member_set = self.context.member_set
        reach = self.layout.stripes
        missing: Role | None = None
        if member_set.lost:
            for role in self._targets():
                watermark = member_set.watermarks.get(role, Stripe(0))
                if role in member_set.lost and watermark < reach:
                    reach, missing = watermark, role
        return reach, missing

    def _live(self, first: int, end: int) -> Batch:
        """Return (stripes, cells) of the written cells that move, by rising stripe."""
        return live_moves(self.context, self.layout, first, end)

    def _find_stale_copies(self) -> None:
        """Going back: find the stripes that a crash left with old copies in their parity."""
        self._stale_copies = []
        if self.back and self._copier.piggyback:
            for at in range(self.layout.migrated, self.layout.stripes, COUNT_STRIPES):
                end = min(at + COUNT_STRIPES, self.layout.stripes)
                self._stale_copies += sorted(set(self._copier.stale_copies(at, end)[0].tolist()))

    # -- the job -------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Count the written blocks that still have to move."""
        self._find_stale_copies()
        first, end = self._rest()
        self.done_bytes = self.total_bytes = 0
        for at in range(first, end, COUNT_STRIPES):
            stripes, _ = self._live(at, min(at + COUNT_STRIPES, end))
            self.total_bytes += len(stripes) * self.context.chunk_bytes
            await trio.lowlevel.checkpoint()

    async def make_ready(self) -> None:
        """Save a position that is far ahead of its durable copy."""
        ahead = len(self.growth.unsaved) * self.context.code.rows
        if ahead * self.context.chunk_bytes > UNSAVED_BYTES_MAX:
            await self.insist(self.growth.save)

    def blocked(self) -> Role | None:
        """Return the lost role that the next stripes need, None if they can be moved."""
        reach, role = self._reach()
        first, end = self._rest()
        if first == end:
            return None
        return role if (end > reach if self.back else first >= reach) else None

    async def turn_back(self) -> None:
        """Make it durable that blocks return to their old places from here on."""
        await self.growth.save()
        await self.context.member_set.update(
            lambda c: replace(c, jobs={**c.jobs, JOB_KEY: {"back": True}})
        )
        self._copier = Copier(self.context, self.growth, back=True)

    def next_window(self) -> list[Stripe] | None:
        """Return the stripes that migrate next, whether written or not."""
        if self._stale_copies:
            return self._stale_copies[:STRIPES_MAX]
        first, end = self._rest()
        if first == end:
            return None
        limit = self.window * (1 if self.slowed else BATCHES_IDLE)
        most = STRIPES_MAX if self.slowed else STRIPES_IDLE
        if self.back:
            first = max(first, end - most)
            stripes, _ = self._live(first, end)
            if len(stripes) > limit:
                first = min(stripes[-limit], end - 1)
        else:
            end = min(end, first + most, max(self._reach()[0], first))
            stripes, _ = self._live(first, end)
            if len(stripes) > limit:
                end = max(stripes[limit], first + 1)
        return list(stripe_range(first, end))

    def _is_awaited(self, window: Sequence[Stripe]) -> bool:
        """Return whether a request waits for the end of the window: for a lock, or at the gate."""
        return self.context.gate.is_closed or self.context.locks.awaited(window)

    def may_give_up(self) -> bool:
        return self.only_misfits()

    async def work(self, stripes: list[Stripe]) -> int:
        """Copy the blocks of *stripes* and move the position past them; return the bytes copied."""
        if not stripes:
            return 0  # a target has failed
        context = self.context
        first, end = stripes[0], stripes[-1] + 1
        if self._copier.piggyback:
            await self._copier.drop(stripes)
            if self._stale_copies:
                del self._stale_copies[: len(stripes)]
                return 0
        moves = self._live(first, end)  # again: more may have been written before the locks
        if not len(moves[0]):
            context.migrate_to(Stripe(first if self.back else end))
            return 0
        copied = await self._copy_all(moves, stripes)
        context.traffic.count_moved(copied)
        return copied * context.chunk_bytes

    def positions(self) -> Sequence[Position]:
        return (self.growth,)

    async def after_durable(self) -> None:
        """Punch holes where blocks were vacated."""
        if not self.back and not self._copier.piggyback:
            await self._vacated.give_back(self.growth.saved)

    async def finish(self, completed: bool) -> None:
        """Conclude the growth, or keep its position for the next mount."""
        if not completed:
            await self.growth.save()
        else:
            await self.insist(self.checkpoint, (ArrayFailedError, *WAITED_OUT))
            await self.insist(lambda: self._end(self.back))

    # -- copying -------------------------------------------------------------------------------

    async def _copy_all(self, moves: Batch, window: list[Stripe]) -> int:
        """Copy in batches, several at a time; the position follows them in their order.

        In a granule the columns move to some of the new members only, so one batch alone would
        leave the others idle. Returns the number of blocks copied. It is less than all if a member
        failed (`blocked` finds out which), or if users wait for a lock of the window or ask for
        anything else: the next window is shorter. An error of a read or write pauses the job;
        raises UnrecoverableError if nothing gives back what is next.
        """
        stripes, cells = moves
        if self.back:
            stripes, cells = stripes[::-1], cells[::-1]
        cuts = [0, *self._cuts(stripes), len(stripes)]
        batches = [(stripes[at:to], cells[at:to]) for at, to in itertools.pairwise(cuts)]
        line = _Line(batches, Stripe(window[0] if self.back else window[-1] + 1), window)
        slots = trio.Semaphore(BATCHES_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for number in range(len(batches)):
                await slots.acquire()
                awaited = self.busy() or self._is_awaited(window)
                if number >= line.end or (number and awaited):
                    break
                nursery.start_soon(self._copy_one, line, number, slots)
        if isinstance(line.error, UnrecoverableError):
            if not line.copied:  # else the next window begins there
                raise line.error
        elif isinstance(line.error, RaidxError):
            self.meet(line.error, self.where(window))
        return line.copied

    async def _copy_one(self, line: _Line, number: int, slots: trio.Semaphore) -> None:
        """Copy a batch of *line*; when those before it are done, move the position past it."""
        context, batch = self.context, line.batches[number]
        try:
            load = await self._copier.read(*batch)
            if self._copier.piggyback:  # its parities rely on the position of the batches before
                await line.wait_for(number)
            if number >= line.end or (number and self._is_awaited(line.window)):
                line.stop(number)
            else:
                await self._copier.write(load)
            for arena in load.arenas:
                context.arenas.put(arena)
        except (MemberLostError, RaidxError) as error:
            line.stop(number, error)
        await line.wait_for(number)
        if number < line.end and self._reach()[0] <= max(batch[0]):
            line.stop(number)  # a target failed during the write
        if number < line.end:
            line.note_copied(number)
            behind = line.batches[number + 1 : number + 2]
            context.migrate_to(Stripe(behind[0][0][0] + self.back) if behind else line.last)
        line.let_next(number)
        slots.release()

    def where(self, stripes: Sequence[Stripe]) -> str:
        return f"stripe {self.layout.migrated}"

    def _cuts(self, stripes: Sequence[Stripe]) -> list[int]:
        """Return the indexes that cut the moves into batches, each between two stripes."""
        cuts = []
        at = self.window
        while at < len(stripes):
            if stripes[at] != stripes[at - 1]:
                cuts.append(at)
                at += self.window
            else:
                at += 1
        return cuts
