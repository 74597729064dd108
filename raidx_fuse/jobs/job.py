"""The loop of every background job: lock a window, work, record progress, unlock, throttle.

A job names the next stripes and does the work on them. The loop enters the gate of the layout
(engine/gate.py) for the window, holds the locks, measures the rate, throttles, and obeys pause,
resume and cancel. A job that names no stripes, because the arrays lock their own, is not inside.
Speed limits work as in md: the job runs at *speed_min* while users access the array, and at up to
*speed_max* (0: no limit) while the array is idle. A window is small (about 1 MiB per member), so
that a user's write never waits long for it.

What a user's cancel does to a job, and what the next mount does with one that the unmount stopped:

    kind                    cancel                                       next mount
    grow, restripe          turns round: the array returns to its        continues at its position
                            old shape, unless it is ending already
    move (of volumes)       turns round: the volume on its way returns;  continues at its position
                            volumes that have arrived stay there
    rebuild                 ends; the role stays unfinished              continues at its position
    replace                 ends; the new member stays as a spare        continues at its position
    grow (of bundles)       ends; moved chunks stay, the new capacity    plans the rest anew
                            is what fits
    evacuate, restore       ends; moved chunks stay, the member stays    plans the rest anew
    resync                  ends; its regions stay dirty                 begins with what is dirty
    scrub, tuning           ends; what was repaired or moved stays       is forgotten

A job that reaches `Job.cancel` ends as cancelled; those that turn round override it, and `result`.
A pause lasts until a user resumes the job, or until the next mount.

Positions are kept where the change is: of a growth in the superblocks (engine/growth_position.py),
of a restripe in the head page of the log (journal/journal.py), of a rebuild and a replacement in
the configuration (format/configuration/saved_jobs.py); `Array.start` (array/array.py) begins these
jobs again. Of a move they are in the tables of both arrays (pool/array_volumes.py), and pool.py
begins it again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from raidx_fuse.documents import JobDetail
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError, MemberError, NoSpaceError, RaidxError
from raidx_fuse.layouts.numbers import Stripe

if TYPE_CHECKING:
    from raidx_fuse.documents import Job as JobStatus

log = logging.getLogger(__name__)

WINDOW_BYTES = 1 << 20  # per member
BUSY_S = 0.1  # a foreground request within this time means that the array is in use
LOG_POLL_S = 0.25  # while the log cannot be written
CHECKPOINT_S = 10.0  # longest time between two saved positions
RATE_WINDOW_S = 10.0
TRY_AGAIN_S = 1.0  # until the next attempt of `when_free` and `insist`


def is_idle(context: ArrayContext, least_s: float) -> bool:
    """Return whether no request has come for *least_s* and none is under way."""
    queues = context.member_set.queues
    waits = any(queue is not None and queue.queue_length() for queue in queues)
    return context.traffic.idle_s() >= least_s and not waits


class Job(ABC):
    """One background job over stripes in rising order.

    *kind* names the sort of job. *done_bytes* of *total_bytes* are done; `prepare` fixes the total.
    *state* is "running", "paused", "done", "cancelled" or "failed"; *error* gives the reason of a
    failure, or what the job waits for.
    """

    kind = "job"

    def __init__(self, context: ArrayContext, job_id: int) -> None:
        self.context = context
        self.job_id = job_id
        self.state = "running"
        self.error: str | None = None
        self.done_bytes = 0
        self.total_bytes = 0
        self.speed_min_bytes = 8 << 20
        self.speed_max_bytes = 0
        self.finished = trio.Event()
        self.started_s = context.member_set.clock()
        self._resumed = trio.Event()
        self._resumed.set()
        self._cancelled = False
        self._marks: list[tuple[float, int]] = []

    # -- what a subclass defines ---------------------------------------------------------------

    @abstractmethod
    async def prepare(self) -> None:
        """Set *total_bytes* and the first window."""

    @abstractmethod
    def next_window(self) -> list[Stripe] | None:
        """Return the next stripes to lock, in rising order, or None when the job has no more."""

    @abstractmethod
    async def work(self, stripes: list[Stripe]) -> int:
        """Do the work of one window, whose locks are held; return the progress in bytes."""

    async def ready(self) -> None:  # noqa: B027  # optional: most jobs never wait
        """Return when the next window may begin. The loop holds no locks here."""

    async def settle(self, stripes: list[Stripe]) -> bool:
        """Make the chains of a window hold; return whether its work may be done."""
        await self.context.journal.settle(stripes)
        return True

    async def checkpoint(self) -> None:  # noqa: B027  # optional: most jobs keep no position
        """Save the position, so that the job continues from it after a remount."""

    @abstractmethod
    async def finish(self, completed: bool) -> None:
        """Conclude the job after its last window (*completed*), or after a stop or a cancel."""

    async def undo(self) -> None:  # noqa: B027  # optional: most failed jobs leave nothing behind
        """Clean up after the job has failed; *state* and *error* are set."""

    def detail(self) -> JobDetail:
        """Return the keys that this kind of job adds to `status`."""
        return {}

    def busy(self) -> bool:
        """Return whether users access the array, so that the job runs at *speed_min*."""
        return self.context.traffic.idle_s() < BUSY_S

    # -- control by users and by the array -----------------------------------------------------

    def pause(self) -> None:
        """Pause the job before its next window; one that was stopped ends there."""
        if self.state == "running" and not self._cancelled:
            self.state = "paused"
            self._resumed = trio.Event()

    def resume(self) -> None:
        if self.state == "paused":
            self.state = "running"
            self._resumed.set()

    def cancel(self) -> None:
        """Cancel the job at its user's request."""
        self.stop()

    def stop(self) -> None:
        """End the job before its next window, because the array is being closed."""
        self._cancelled = True
        self._resumed.set()

    def limit(self, minimum_bytes: int | None, maximum_bytes: int | None) -> None:
        """Set the speed limits in bytes per second (None: unchanged; 0: no limit)."""
        if minimum_bytes is not None:
            self.speed_min_bytes = minimum_bytes
        if maximum_bytes is not None:
            self.speed_max_bytes = maximum_bytes

    def result(self, completed: bool) -> str:
        return "done" if completed else "cancelled"

    def status(self) -> JobStatus:
        """Return the job as the control socket's `status` shows it."""
        rate = self.rate()
        rest = self.total_bytes - self.done_bytes
        return {
            "id": self.job_id,
            "kind": self.kind,
            "state": self.state,
            "done": self.done_bytes,
            "total": self.total_bytes,
            "unit": "bytes",
            "rate": round(rate),
            "eta_seconds": round(rest / rate, 1) if rate > 0 else None,
            "paused": self.state == "paused",
            "speed_min": self.speed_min_bytes,
            "speed_max": self.speed_max_bytes,
            "error": self.error,
            **self.detail(),
        }

    def rate(self) -> float:
        """Return the recent speed in bytes per second, 0.0 before the second window."""
        if len(self._marks) < 2:
            return 0.0
        (first_s, first_bytes), (last_s, last_bytes) = self._marks[0], self._marks[-1]
        return (last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0

    # -- the loop ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the job until it is done, cancelled or failed. A RaidxError ends up in *error*."""
        try:
            await self.prepare()
            completed = await self._loop()
            await self.finish(completed)
            self.state = self.result(completed)
        except RaidxError as error:
            log.error("%s %d failed: %s", self.kind, self.job_id, error)
            self.state, self.error = "failed", str(error)
            try:
                await self.undo()
            except RaidxError as after:
                log.error("after the failed %s %d: %s", self.kind, self.job_id, after)
        finally:
            self.finished.set()

    async def _loop(self) -> bool:
        clock = self.context.member_set.clock
        journal, gate = self.context.journal, self.context.gate
        saved_s = clock()
        self._marks = [(clock(), self.done_bytes)]
        while True:
            if not self._resumed.is_set():
                await self._resumed.wait()
                await self.context.member_set.try_unreadable()  # it may have been paused by them
                self._marks = [(clock(), self.done_bytes)]
            await self.ready()
            if self._cancelled:
                return False
            if journal.torn is not None:  # recovery may redo what no reader sees
                said = self.error
                self.error = said or f"waits until the log can be written: {journal.torn}"
                await trio.sleep(LOG_POLL_S)
                self.error = said
                continue
            if gate.is_closed:  # what it was ready for may change
                await gate.opened()
                continue
            stripes = self.next_window()
            if stripes is None:
                return True
            start_s = clock()
            inside = gate.enter_now() if stripes else None
            try:
                progress = await self._locked(stripes)
            finally:
                if inside is not None:
                    inside.leave()
            self.done_bytes += progress
            # Users write while the job runs: chunks that were first written ahead of it were not
            # counted.
            self.total_bytes = max(self.total_bytes, self.done_bytes)
            await self._pay(progress, start_s)
            now = clock()
            if self.done_bytes < self._marks[-1][1]:  # it has turned round and counts anew
                self._marks.clear()
            self._marks.append((now, self.done_bytes))
            while len(self._marks) > 2 and self._marks[1][0] < now - RATE_WINDOW_S:
                self._marks.pop(0)
            if now - saved_s >= CHECKPOINT_S:
                await self.checkpoint()
                saved_s = clock()

    async def _locked(self, stripes: list[Stripe]) -> int:
        """Do the work of a window under the locks of *stripes*; return the progress in bytes."""
        locks, journal = self.context.locks, self.context.journal
        await locks.acquire_all(stripes)
        try:
            is_ready = journal.torn is None and await self.settle(stripes)
            return await self.work(stripes) if is_ready else 0
        finally:
            locks.release_all(stripes)

    async def when_free(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do *step*, which closes a gate; repeat it while requests keep the gate from closing.

        Raises what *step* raises; its BusyError if the job was stopped meanwhile.
        """
        while True:
            try:
                return await step()
            except BusyError as error:
                if self._cancelled:
                    raise
                log.warning("the end of the %s waits: %s", self.kind, error)
                self.error = str(error)
            await trio.sleep(TRY_AGAIN_S)
            self.error = None

    async def _pay(self, progress: int, start_s: float) -> None:
        """Sleep until *progress* bytes since *start_s* fit the speed limits; always yield."""
        clock = self.context.member_set.clock
        await trio.lowlevel.checkpoint()
        while not self._cancelled:
            now = clock()
            limits = [self.speed_max_bytes] if self.speed_max_bytes else []
            if self.speed_min_bytes and self.busy():
                limits.append(self.speed_min_bytes)
            if not limits:
                return
            rest_s = start_s + progress / min(limits) - now
            if rest_s <= 0:
                return
            await trio.sleep(min(rest_s, BUSY_S / 2))


# Jobs that move written blocks skip nothing. They wait until the cause of an error is removed:
#
# - If a host file system is full, the job tries again every few seconds.
# - If content cannot be read, the job pauses until the user resumes it. In a raidx array jobs that
#   move chunks wait instead, and try again; only a restoration gives up what nothing gives back.

NO_SPACE_S = 5.0  # until the next attempt after a host file system was full


class StallableJob(Job):
    """A job that waits at an error instead of failing; *error* says what it waits for."""

    title = ""  # its name in the log, if it is not its kind

    def note_wait(self, error: BusyError | MemberError | NoSpaceError) -> None:
        """Record *error* as what the job waits for; log it only the first time.

        A job that `stall` paused keeps its text, which says what the user has to do.
        """
        if self.state == "paused" and self.error is not None:
            return
        if self.error is None:
            log.error("the %s waits: %s", (self.title or self.kind), error)
        self.error = str(error)

    def retry_s(self) -> float:
        """Return the time, on the array's clock, at which the job may try again."""
        return self.context.member_set.clock() + (NO_SPACE_S if self.error else 0.0)

    async def insist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat *step* until it succeeds.

        Raises its BusyError, MemberError or NoSpaceError if the job was stopped meanwhile.
        """
        while True:
            try:
                await step()
                break
            except (BusyError, MemberError, NoSpaceError) as error:
                if self._cancelled:
                    raise
                self.note_wait(error)
            await trio.sleep(TRY_AGAIN_S)
        self.error = None

    async def settle(self, stripes: list[Stripe]) -> bool:
        """Make the chains of a window hold; return False if the job has to wait before that."""
        try:
            return await super().settle(stripes)
        except NoSpaceError as error:
            self.note_wait(error)
        except RaidxError as error:
            self.stall(f"stripe {stripes[0]}", error)
        return False

    def stall(self, where: str, error: RaidxError) -> None:
        """Pause the job because *error* prevents its work at *where*, until the user resumes it."""
        log.error("the %s is paused at %s: %s", (self.title or self.kind), where, error)
        self.error = f"{error}; then resume it with `raidx job ARRAY resume`, or cancel it"
        self.pause()

    def resume(self) -> None:
        """Continue a paused job; it tries again to read what it could not."""
        if self.state == "paused":
            self.error = None
        super().resume()
