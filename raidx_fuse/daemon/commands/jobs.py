"""The commands about background jobs of a running array."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.errors import BusyError, UsageError

RATE_BYTES_MAX = 1 << 50
CANCEL_WAIT_S = 2.0
WAITING_MAX = 32  # commands that only wait: they must not occupy all connections

Result = dict[str, Any]


class JobCommands:
    """The commands that start, list, wait for and change the jobs of *array*."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._waiting = 0

    def handlers(self) -> dict[str, Callable[..., Awaitable[Result]]]:
        """Return name -> command, as `Commands` needs it."""
        return {
            "scrub": self.scrub,
            "tune": self.tune,
            "job-list": self.job_list,
            "job-pause": self.job_pause,
            "job-resume": self.job_resume,
            "job-cancel": self.job_cancel,
            "job-wait": self.job_wait,
            "job-limit": self.job_limit,
        }

    async def scrub(self, repair: bool = False) -> Result:
        """Start a scrub that reports mismatches, or with *repair* corrects them."""
        return {"job": await self._array.start_scrub(repair)}

    async def tune(self, now: bool = False, dry_run: bool = False) -> Result:
        """Return the tuner's state; *now* starts it as a job, *dry_run* returns its moves."""
        tuner = self._array.require_tuner()
        if dry_run:
            return await tuner.dry_run()
        if now:
            return {"job": self._array.start_tuning()}
        return tuner.status()

    async def job_list(self) -> Result:
        """Return the running and the recently ended jobs."""
        return {"jobs": self._array.jobs.list()}

    async def job_pause(self, job: int) -> Result:
        """Pause a job before its next window."""
        self._array.jobs.pause(job)
        return self._job(job)

    async def job_resume(self, job: int) -> Result:
        """Continue a paused job."""
        self._array.jobs.resume(job)
        return self._job(job)

    async def job_cancel(self, job: int) -> Result:
        """Cancel a job; return when it has ended, or when it is clear that this takes a while.

        A growth has to move everything back first.
        """
        self._array.jobs.cancel(job)
        with trio.move_on_after(CANCEL_WAIT_S):
            await self._array.jobs.wait(job)
        return self._job(job)

    async def job_wait(self, job: int) -> Result:
        """Wait until a job has ended and return its final status."""
        with self.waits():
            return await self._array.jobs.wait(job)

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Count a command that only waits. Raises BusyError if too many do."""
        if self._waiting >= WAITING_MAX:
            raise BusyError(
                f"{WAITING_MAX} commands wait already", action="poll `raidx job ARRAY list` instead"
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def job_limit(
        self, job: int, minimum: int | None = None, maximum: int | None = None
    ) -> Result:
        """Set a job's speed limits in bytes per second; 0 means no limit."""
        for value in (minimum, maximum):
            if value is not None and not 0 <= value <= RATE_BYTES_MAX:
                raise UsageError(f"a limit of {value} bytes per second is out of range")
        self._array.jobs.limit(job, minimum, maximum)
        return self._job(job)

    def _job(self, job: int) -> Result:
        return next(status for status in self._array.jobs.list() if status["id"] == job)
