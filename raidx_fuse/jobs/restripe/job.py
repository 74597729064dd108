"""Restripe: move all chunks, in the order of the image, from one layout to another.

md calls this a reshape; no backup file is needed here. A window of chunks is read, and its target
stripes are assembled with all their parity, written and flushed. Then one record in the log moves
the watermark past the window; it carries the few stripes that could not be written in place. Laws:

 1. Only log records move the watermark (`Journal.mark`). Users, a crash and recovery therefore
    find every chunk in the layout that the last record says.
 2. A stripe is written past the log only where no current content can be: its rows hold no cell
    that a start from the *durable* watermark would read, and no record that recovery may redo
    covers them. Both conditions end when the tail of the log has passed (`Journal.durable_mark`).
 3. Content written past the log is flushed before the record that makes it current.
 4. While both layouts are in use, every user write goes through the log (`Journal.forced`):
    recovery could overwrite a write past it by a record of other rows.

A member that is lost on the way does not stop the restripe unless the new stripes need it; while a
member is being rebuilt the restripe waits. If it is cancelled, it runs backwards.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.log_record import ENTRY_BYTES, RECORD_HEADER_BYTES
from raidx_fuse.format.regions import SECTOR_BYTES
from raidx_fuse.jobs.job import WINDOW_BYTES, Job, Position
from raidx_fuse.jobs.restripe.copy import Copier, Prepared
from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.planning.restripe_schedule import RestripeSchedule, Window
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import MemberLostError

if TYPE_CHECKING:
    from raidx_fuse.documents import JobDetail

JOB_KEY = "restripe"
IDLE_BYTES = 64 << 20  # of the image, per window when nothing slows the job
STRIPES_MAX = 4096  # of the source, whose locks one window takes
# Unwritten chunks of a window; in the other layout each may lie in a stripe of its own.
LEAP_CHUNKS_MAX = 1 << 16
COUNT_CHUNKS = 1 << 20

log = logging.getLogger(__name__)

End = Callable[[bool], Awaitable[None]]


def record_chunks(capacity: int, chunk_bytes: int) -> int:
    """Return how many chunks fit into one record of a log of *capacity* bytes."""
    room = capacity // 2 - RECORD_HEADER_BYTES - ENTRY_BYTES - SECTOR_BYTES
    return max(0, room // (chunk_bytes + ENTRY_BYTES))


class Restripe(Job):
    """Moves the chunks of the restripe under way; *back* reverts it. *end* concludes it.

    *window* is the part of the image that a window moves, in bytes. *checkpoints* counts how often
    the watermark had to be made durable before the next window could begin.
    """

    kind = "restripe"
    turns = pauses = True
    needs_resync = True  # it repairs parity at the places that stripes had before the crash

    def __init__(self, context: ArrayContext, job_id: int, back: bool, end: End) -> None:
        super().__init__(context, job_id)
        assert context.restripe is not None
        self.layout = context.restripe
        self.back = back
        self.checkpoints = 0
        self._end = end
        self._window: Window | None = None
        self._set_out()

    def _set_out(self) -> None:
        chunks = record_chunks(self.context.journal.capacity, self.context.chunk_bytes)
        self.schedule = RestripeSchedule(self.layout, self.layout.rises != self.back, chunks)
        self._copier = Copier(self.context, self.schedule.target)

    def detail(self) -> JobDetail:
        """Return direction, progress and what the job waits for."""
        before, after = self.schedule.source, self.schedule.target
        if self.back:
            before, after = after, before
        return {
            "layout_before": before.name,
            "layout_after": after.name,
            "members_before": before.width,
            "members_after": after.width,
            "going_back": self.back or self.turning,
            **self.waits(),
            "checkpoints": self.checkpoints,
        }

    # -- the job -------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Count the written chunks that still have to move."""
        self._set_out()
        rest = self.schedule.rest
        self.done_bytes = self.total_bytes = 0
        for at in range(rest.start, rest.stop, COUNT_CHUNKS):
            indexes = np.arange(at, min(at + COUNT_CHUNKS, rest.stop), dtype=np.int64)
            chunks = self.layout.chunks_at(indexes)
            written = int(self.context.written.is_written_many(chunks).sum())
            self.total_bytes += written * self.context.chunk_bytes
            await trio.lowlevel.checkpoint()

    def replan(self) -> None:
        self._window = None
        # What was abandoned may still write into the buffers.
        self._copier = Copier(self.context, self.schedule.target)

    async def make_ready(self) -> None:
        """Choose the next window; if there is none, make the watermark durable first."""
        self._window = None
        if not self.schedule.rest:
            return
        self._window = self._skip_unwritten()
        while self._window is None:
            try:
                self._window = self.schedule.window(self.saved, self._limit())
            except LayoutError as error:  # which its check at the begin excludes
                raise RaidxError(str(error)) from None
            if self._window is None:
                await self.insist(self.save)

    def positions(self) -> Sequence[Position]:
        return (self,)

    @property
    def saved(self) -> int:
        """The watermark that the next start finds, whatever the log has then."""
        return self.context.journal.durable_mark

    async def save(self) -> None:
        """Make the watermark durable, with everything that was logged before it."""
        self.checkpoints += 1
        await self.context.journal.place()
        await self.context.member_set.flush()
        await trio.lowlevel.checkpoint()

    def blocked(self) -> Role | None:
        """Return a lost role that the target stripes need now, None if there is none."""
        member_set = self.context.member_set
        if member_set.watermarks:
            return min(member_set.watermarks)
        if member_set.lost and not self.schedule.target.tolerates(member_set.lost):
            return min(member_set.lost)
        return None

    def _limit(self) -> int:
        """Return the maximum number of chunks of the next window."""
        source = self.schedule.source
        size = self.window
        if not size:
            size = IDLE_BYTES
            if self.slowed:
                size = WINDOW_BYTES * max(1, source.data_count // source.code.rows)
        return max(1, min(size // self.context.chunk_bytes, STRIPES_MAX * source.data_count))

    def _skip_unwritten(self) -> Window | None:
        """Return a large window of unwritten chunks to skip, None if written ones come soon."""
        rest = self.schedule.rest
        count = min(STRIPES_MAX * self.schedule.source.data_count, LEAP_CHUNKS_MAX)
        near = rest[:count] if self.schedule.upward else rest[-count:]
        chunks = self.layout.chunks_at(np.arange(near.start, near.stop))
        written = self.context.written.is_written_many(chunks)
        if not self.schedule.upward:
            written = written[::-1]
        unwritten = int(written.argmax()) if written.any() else len(near)
        return self.schedule.skip(unwritten) if unwritten > self._limit() else None

    async def turn_back(self) -> None:
        """Make it durable that chunks return to their old layout from here on."""
        context = self.context
        await context.journal.drain()
        await context.member_set.update(
            lambda c: replace(c, jobs={**c.jobs, JOB_KEY: {"back": True}})
        )
        # A read from before its chunk moved would find it in the same layout again, but may have
        # seen what had its place in between.
        await context.gate.passed()

    def next_window(self) -> list[Stripe] | None:
        """Return the stripes of both layouts that the next window touches."""
        if self._window is None:
            return [] if self.schedule.rest else None
        layout, schedule = self.layout, self.schedule
        stripes = [
            layout.stripe_of(schedule.source, Stripe(stripe)) for stripe in self._window.sources
        ]
        stripes += [
            layout.stripe_of(schedule.target, Stripe(stripe)) for stripe in self._window.targets
        ]
        return sorted(stripes)

    def may_give_up(self) -> bool:
        return self.only_misfits()

    async def work(self, stripes: list[Stripe]) -> int:
        """Move the window, then the watermark past it; return the progress in bytes."""
        window, context = self._window, self.context
        if window is None or self.blocked() is not None:
            return 0
        epoch = context.member_set.role_epoch
        prepared = await self._copier.prepare(window)
        if prepared.logged_chunks > self.schedule.record_chunks:
            return 0  # the window was to be skipped, but a chunk in it was written meanwhile
        if not await self._write(prepared, window, epoch):
            raise MemberLostError
        context.traffic.count_moved(prepared.moved)
        for stripe in prepared.stripes:  # their parity has changed
            context.forget_stripe(stripe)
        return prepared.moved * context.chunk_bytes

    def where(self, stripes: Sequence[Stripe]) -> str:
        return f"chunk {self.layout.watermark}"

    async def _write(self, prepared: Prepared, window: Window, epoch: int) -> bool:
        """Write what was prepared, then commit; return False if the members changed meanwhile."""
        context = self.context
        context.member_set.reserve_chunks(prepared.places)
        if prepared.direct:
            lost = context.sum_pages(prepared.unverified)
            await context.cells.write(prepared.direct, Cover.VACANT, unverified=lost)
            await context.cells.save_sums()
            await context.member_set.flush()
            if self.blocked() is not None:
                return False  # the member that failed is needed to read this back
        begun = False

        def still_valid() -> bool:
            nonlocal begun
            if not begun:  # once the record is written, recovery would take its watermark
                begun = epoch == context.member_set.role_epoch and self.blocked() is None
            return begun

        return await context.journal.commit(
            *(prepared.touched, prepared.logged, ()),
            still_valid,
            mark=window.mark,
            unverified=prepared.unverified,
        )

    async def finish(self, completed: bool) -> None:
        """Conclude the restripe; unless *completed*, the next mount continues at the watermark."""
        if completed:
            await self.insist(lambda: self._end(self.back))
