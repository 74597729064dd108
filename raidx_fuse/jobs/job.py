"""The one loop under every background job: lock a window, work, commit progress, unlock, pay.

A job says which stripes come next and what to do with them; the loop holds their locks, measures,
throttles and obeys pause, resume and cancel. Speed follows md: at least *speed_min* while users
work on the array, up to *speed_max* (0: no limit) while they do not. A window is small (about
1 MiB a member), so that a user's write never waits for long.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import MemberError, NoSpaceError, RaidxError

log = logging.getLogger(__name__)


WINDOW_BYTES = 1 << 20  # per member

BUSY_S = 0.1  # a foreground request this recent means that users are at work

CHECKPOINT_S = 10.0  # longest time between two saved positions

RATE_WINDOW_S = 10.0


class Job(ABC):
    """One background job over stripes in rising order.

    *kind*; *done_bytes* of *total_bytes*, fixed at the start; *state*: "running", "paused",
    "done", "cancelled" or "failed" (then *error* says why).
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

    # -- what a job says -----------------------------------------------------------------------

    @abstractmethod
    async def prepare(self) -> None:
        """Fix *total_bytes* and the first window."""

    @abstractmethod
    def next_window(self) -> list[int] | None:
        """Return the next stripes to lock, ascending, or None at the end."""

    @abstractmethod
    async def work(self, stripes: list[int]) -> int:
        """Do the work of one window under its locks; return the bytes of progress."""

    async def ready(self) -> None:  # noqa: B027  # optional: most jobs never wait
        """Return when the next window may begin; no locks are held."""

    async def checkpoint(self) -> None:  # noqa: B027  # optional: most jobs keep no position
        """Make the progress so far survive a remount."""

    @abstractmethod
    async def finish(self, completed: bool) -> None:
        """Conclude after the last window (*completed*) or after a cancel."""

    def detail(self) -> dict[str, Any]:
        """Return what `job list` adds for this kind."""
        return {}

    # -- what users do -------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop before the next window."""
        if self.state == "running":
            self.state = "paused"
            self._resumed = trio.Event()

    def resume(self) -> None:
        """Go on after a pause."""
        if self.state == "paused":
            self.state = "running"
            self._resumed.set()

    def cancel(self) -> None:
        """Give the job up, as its user asks."""
        self.stop()

    def stop(self) -> None:
        """End before the next window, because the array is closed."""
        self._cancelled = True
        self._resumed.set()

    def result(self, completed: bool) -> str:
        """Return the state after the end."""
        return "done" if completed else "cancelled"

    def status(self) -> dict[str, Any]:
        """Return the job as INTERFACE's `status` shows it."""
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
        """Return bytes a second over the last seconds of work."""
        if len(self._marks) < 2:
            return 0.0
        (first_s, first_bytes), (last_s, last_bytes) = self._marks[0], self._marks[-1]
        return (last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0

    # -- the loop ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run to the end, a cancel or a failure; never raises for the members' misdeeds."""
        try:
            await self.prepare()
            completed = await self._loop()
            await self.finish(completed)
            self.state = self.result(completed)
        except RaidxError as error:
            log.error("%s %d failed: %s", self.kind, self.job_id, error)
            self.state, self.error = "failed", str(error)
        finally:
            self.finished.set()

    async def _loop(self) -> bool:
        clock = self.context.member_set.clock
        locks = self.context.locks
        saved_s = clock()
        self._marks = [(clock(), self.done_bytes)]
        while True:
            if not self._resumed.is_set():
                await self._resumed.wait()
                self._marks = [(clock(), self.done_bytes)]
            await self.ready()
            if self._cancelled:
                return False
            stripes = self.next_window()
            if stripes is None:
                return True
            start_s = clock()
            await locks.acquire_all(stripes)
            try:
                progress = await self.work(stripes)
            finally:
                locks.release_all(stripes)
            self.done_bytes += progress
            # Users write on meanwhile: what came alive ahead of the job was not counted before.
            self.total_bytes = max(self.total_bytes, self.done_bytes)
            await self._pay(progress, start_s)
            now = clock()
            self._marks.append((now, self.done_bytes))
            while len(self._marks) > 2 and self._marks[1][0] < now - RATE_WINDOW_S:
                self._marks.pop(0)
            if now - saved_s >= CHECKPOINT_S:
                await self.checkpoint()
                saved_s = clock()

    async def _pay(self, progress: int, start_s: float) -> None:
        """Sleep as long as the speed limits ask for *progress* bytes; at least let others run."""
        clock = self.context.member_set.clock
        await trio.lowlevel.checkpoint()
        while not self._cancelled:
            now = clock()
            busy = now - self.context.foreground_s < BUSY_S
            limits = [self.speed_max_bytes] if self.speed_max_bytes else []
            if busy and self.speed_min_bytes:
                limits.append(self.speed_min_bytes)
            if not limits:
                return
            rest_s = start_s + progress / min(limits) - now
            if rest_s <= 0:
                return
            await trio.sleep(min(rest_s, BUSY_S / 2))


# Jobs that move what lives: they never skip anything, but wait until somebody mends what is amiss.
#
# A host without room is tried again now and then; at content that cannot be had a job pauses until
# it is told to go on.

NO_SPACE_S = 5.0  # until a host without room is tried again

TRY_AGAIN_S = 1.0  # until something else is


class StallableJob(Job):
    """A job that waits for whoever mends; *error* says for what."""

    @property
    def title(self) -> str:
        """Its name in the log."""
        return self.kind

    def note_wait(self, error: MemberError | NoSpaceError) -> None:
        """Say what is waited for; the log says it once."""
        if self.error is None:
            log.error("the %s waits: %s", self.title, error)
        self.error = str(error)

    def retry_s(self) -> float:
        """Return when, on the array's clock, what was in the way may be tried again."""
        return self.context.member_set.clock() + (NO_SPACE_S if self.error else 0.0)

    async def insist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do *step*, again and again until the members let it be done.

        Raises what they raise if the array is closed meanwhile.
        """
        while True:
            try:
                await step()
                break
            except (MemberError, NoSpaceError) as error:
                if self._cancelled:
                    raise
                self.note_wait(error)
            await trio.sleep(TRY_AGAIN_S)
        self.error = None

    def stall(self, where: str, error: RaidxError) -> None:
        """Pause at something, *where*, that cannot be had: whoever mends it lets the job go on."""
        log.error("the %s is paused at %s: %s", self.title, where, error)
        self.error = f"{error}; then let it go on: `raidx job ARRAY resume`, or cancel it"
        self.pause()

    def resume(self) -> None:
        """Go on after a pause; what could not be read is tried again."""
        if self.state == "paused":
            self.error = None
        super().resume()
