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
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import NoSpaceError, RaidxError
from raidx_fuse.format.log_record import ENTRY_BYTES, RECORD_HEADER_BYTES
from raidx_fuse.format.regions import SECTOR_BYTES
from raidx_fuse.jobs.job import BUSY_S, WINDOW_BYTES, StallableJob
from raidx_fuse.jobs.restripe.copy import Copier, Prepared
from raidx_fuse.layouts.numbers import Stripe
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
POLL_S = 0.25

log = logging.getLogger(__name__)

End = Callable[[bool], Awaitable[None]]


def record_chunks(capacity: int, chunk_bytes: int) -> int:
    """Return how many chunks fit into one record of a log of *capacity* bytes."""
    room = capacity // 2 - RECORD_HEADER_BYTES - ENTRY_BYTES - SECTOR_BYTES
    return max(0, room // (chunk_bytes + ENTRY_BYTES))


class Restripe(StallableJob):
    """Moves the chunks of the restripe under way; *back* reverts it. *end* concludes it.

    *window_bytes* is the part of the image that a window moves; 0: as the load permits.
    *checkpoints* counts how often the watermark had to be made durable before the next window could
    begin.
    """

    kind = "restripe"

    def __init__(self, context: ArrayContext, job_id: int, back: bool, end: End) -> None:
        super().__init__(context, job_id)
        assert context.restripe is not None
        self.layout = context.restripe
        self.back = back
        self.window_bytes = 0
        self.checkpoints = 0
        self.waits_for: int | None = None
        self._end = end
        self._turn = False
        self._ending = False
        self._window: Window | None = None
        self._set_out()

    def _set_out(self) -> None:
        chunks = record_chunks(self.context.journal.capacity, self.context.chunk_bytes)
        self.schedule = RestripeSchedule(self.layout, self.layout.rises != self.back, chunks)
        self._copier = Copier(self.context, self.schedule.target)

    def set_window(self, size_bytes: int) -> None:
        """Move *size_bytes* of the image in one window; 0: as the load permits."""
        self.window_bytes = size_bytes

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
            "going_back": self.back or self._turn,
            "waits_for_role": self.waits_for,
            "waits_for_resync": bool(self.context.dirty_bitmap.pending_regions()),
            "checkpoints": self.checkpoints,
        }

    def cancel(self) -> None:
        """Turn round: from the next window on the chunks return to their old layout."""
        if not self._ending:
            self._turn = not self.back
        self.resume()

    def result(self, completed: bool) -> str:
        """Return the final state: "cancelled" for a restripe that went back."""
        return "cancelled" if self.back else super().result(completed)

    # -- the job -------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Count the written chunks that still have to move."""
        await self._count()

    async def _count(self) -> None:
        rest = self.schedule.rest
        self.done_bytes = self.total_bytes = 0
        for at in range(rest.start, rest.stop, COUNT_CHUNKS):
            indexes = np.arange(at, min(at + COUNT_CHUNKS, rest.stop), dtype=np.int64)
            chunks = self.layout.chunks_at(indexes)
            written = int(self.context.written.is_written_many(chunks).sum())
            self.total_bytes += written * self.context.chunk_bytes
            await trio.lowlevel.checkpoint()

    async def ready(self) -> None:
        """Before a window: turn round if asked to, wait for members, free log space if needed."""
        self._window = None
        if self._turn and not self.back:
            await self.insist(self._turn_round)
        await self._wait_for_members()
        if self._cancelled or (self._turn and not self.back) or not self.schedule.rest:
            return
        self._window = self._skip_unwritten()
        if self._window is not None:
            return
        journal = self.context.journal
        while True:
            self._window = self.schedule.window(journal.durable_mark, self._limit())
            if self._window is not None:
                return
            await self.insist(self.checkpoint)

    async def checkpoint(self) -> None:
        """Make the watermark durable, with everything that was logged before it."""
        self.checkpoints += 1
        await self.context.journal.place()
        await self.context.member_set.flush()
        await trio.lowlevel.checkpoint()

    async def _wait_for_members(self) -> None:
        member_set = self.context.member_set
        again_s = self.retry_s()
        while not self._cancelled and not (self._turn and not self.back):
            self.waits_for = self._blocked_by()
            # A resync repairs parity at the places that stripes had before the crash.
            resync = self.context.dirty_bitmap.pending_regions()
            if self.waits_for is None and not resync and member_set.clock() >= again_s:
                return
            await trio.sleep(POLL_S)

    def _blocked_by(self) -> int | None:
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
        size = self.window_bytes
        if not size:
            busy = self.context.traffic.idle_s() < BUSY_S
            size = IDLE_BYTES
            if busy or self.speed_max_bytes:
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

    async def _turn_round(self) -> None:
        context = self.context
        await context.journal.drain()
        await context.member_set.update(
            lambda c: replace(c, jobs={**c.jobs, JOB_KEY: {"back": True}})
        )
        # A read from before its chunk moved would find it in the same layout again, but may have
        # seen what had its place in between.
        await context.gate.passed()
        self.back = True
        self._set_out()
        await self._count()

    def next_window(self) -> list[Stripe] | None:
        """Return the stripes of both layouts that the next window touches."""
        if self._window is None:
            if self.schedule.rest:
                return []
            self._ending = True
            return None
        layout, schedule = self.layout, self.schedule
        stripes = [
            layout.stripe_of(schedule.source, Stripe(stripe)) for stripe in self._window.sources
        ]
        stripes += [
            layout.stripe_of(schedule.target, Stripe(stripe)) for stripe in self._window.targets
        ]
        return sorted(stripes)

    async def work(self, stripes: list[Stripe]) -> int:
        """Move the window, then the watermark past it; return the progress in bytes."""
        window = self._window
        if window is None or (self._turn and not self.back):
            return 0
        context = self.context
        while self._blocked_by() is None:
            epoch = context.member_set.role_epoch
            try:
                prepared = await self._copier.prepare(window)
                if prepared.logged_chunks > self.schedule.record_chunks:
                    # The window was to be skipped, but a chunk in it was written meanwhile.
                    return 0
                if await self._write(prepared, window, epoch):
                    context.traffic.count_moved(prepared.moved)
                    for stripe in prepared.stripes:  # their parity has changed
                        context.forget_stripe(stripe)
                    self.error = None
                    return prepared.moved * context.chunk_bytes
            except MemberLostError:
                # A read that was abandoned may still write into the buffers.
                self._copier = Copier(context, self.schedule.target)
            except NoSpaceError as error:
                self.note_wait(error)
                break
            except RaidxError as error:
                self.stall(f"chunk {self.layout.watermark}", error)
                break
        return 0

    async def _write(self, prepared: Prepared, window: Window, epoch: int) -> bool:
        """Write what was prepared, then commit; return False if the members changed meanwhile."""
        context = self.context
        context.member_set.reserve_chunks(prepared.places)
        if prepared.direct:
            await context.cells.write(prepared.direct, Cover.VACANT)
            await context.member_set.flush()
            if self._blocked_by() is not None:
                return False  # the member that failed is needed to read this back
        begun = False

        def still_valid() -> bool:
            nonlocal begun
            if not begun:  # once the record is written, recovery would take its watermark
                begun = epoch == context.member_set.role_epoch and self._blocked_by() is None
            return begun

        return await context.journal.commit(
            prepared.touched, prepared.logged, (), still_valid, mark=window.mark
        )

    async def finish(self, completed: bool) -> None:
        """Conclude the restripe; unless *completed*, the next mount continues at the watermark."""
        if completed:
            await self.insist(lambda: self._end(self.back))
