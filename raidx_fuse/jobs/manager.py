"""The jobs of one array: start, list, control and await them. One job of a kind runs at a time.

What a pause, a cancel and an unmount do to each kind: jobs/job.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError, JobRunningError, RaidxError, Reason, UsageError
from raidx_fuse.jobs.job import Job
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.loop.tasks import Starter

if TYPE_CHECKING:
    from raidx_fuse.documents import Job as JobStatus

ENDED_KEPT = 20


class Jobs:
    """The running and recently ended jobs.

    New jobs get the speed limits `speed_min_bytes` and `speed_max_bytes`, in bytes per second.
    """

    def __init__(self, context: ArrayContext, nursery: Starter) -> None:
        self.context = context
        self.speed_min_bytes = 8 << 20
        self.speed_max_bytes = 0
        self._nursery = nursery
        self._jobs: dict[int, Job] = {}
        self._next_id = 1
        self.closing = False
        self.on_start: list[Callable[[Job], None]] = []
        self.on_end: list[Callable[[Job], None]] = []

    def start(self, make: Callable[[ArrayContext, int], Job]) -> Job:
        """Build a job with *make*, start it, and return it.

        Raises BusyError if a job of the same kind runs, or if the array is being closed.
        """
        if self.closing:
            raise BusyError("the array is being unmounted", reason=Reason.CLOSING)
        job = make(self.context, self._next_id)
        for other in self.running():
            if other.kind == job.kind:
                raise JobRunningError(
                    f"a {job.kind} is running already (job {other.job_id})",
                    action=f"wait for it or cancel it with `raidx job ARRAY cancel {other.job_id}`",
                )
        self._next_id += 1
        job.limit(self.speed_min_bytes, self.speed_max_bytes)
        self._jobs[job.job_id] = job
        ended = [key for key, old in self._jobs.items() if old.finished.is_set()]
        for key in ended[:-ENDED_KEPT]:
            del self._jobs[key]
        for hook in self.on_start:
            hook(job)
        self._nursery.start_soon(self._run, job)
        return job

    async def _run(self, job: Job) -> None:
        await job.run()
        for hook in self.on_end:
            hook(job)

    def running(self) -> list[Job]:
        return [job for job in self._jobs.values() if not job.finished.is_set()]

    def require_finished(self, refused: str, without: Role | None = None) -> None:
        """Raise BusyError or RaidxError unless the layout may change now.

        *refused* ends the sentence "a degraded array ...", for example "does not grow". The role
        *without*, which the change gives up, may be lost.
        """
        context, running = self.context, self.running()
        member_set = context.member_set
        if context.layout.changing or running:
            what = running[0].kind if running else "change of the layout"
            raise JobRunningError(
                f"a {what} is under way", action="wait for it: `raidx job ARRAY wait`"
            )
        if context.dirty_bitmap.pending_regions():
            raise BusyError(
                "a resync is due",
                action="unmount and mount again to retry it",
                reason=Reason.REMOUNT,
            )
        if lost := member_set.lost - {without}:
            raise RaidxError(
                f"role {min(lost)} is lost: a degraded array {refused}",
                action="replace it first, or add a spare with --as spare",
                reason=Reason.DEGRADED,
            )

    def list(self) -> list[JobStatus]:
        return [job.status() for job in self._jobs.values()]

    def _get(self, job_id: int) -> Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise UsageError(
                f"there is no job {job_id}",
                action="see `raidx job ARRAY list`",
                reason=Reason.NO_SUCH_JOB,
            )
        return job

    def pause(self, job_id: int) -> None:
        self._get(job_id).pause()

    def resume(self, job_id: int) -> None:
        self._get(job_id).resume()

    def cancel(self, job_id: int) -> None:
        self._get(job_id).cancel()

    def limit(self, job_id: int, minimum: int | None, maximum: int | None) -> None:
        self._get(job_id).limit(minimum, maximum)

    def limit_all(self, minimum: int | None = None, maximum: int | None = None) -> None:
        """Set the speed limits of the running jobs and of those that start later."""
        if minimum is not None:
            self.speed_min_bytes = minimum
        if maximum is not None:
            self.speed_max_bytes = maximum
        for job in self.running():
            job.limit(minimum, maximum)

    async def wait(self, job_id: int) -> JobStatus:
        job = self._get(job_id)
        await job.finished.wait()
        return job.status()

    async def stop_all(self) -> None:
        """Stop every job and wait until all have ended; jobs/job.py says which keep a position."""
        self.closing = True
        running = self.running()
        for job in running:
            job.stop()
        for job in running:
            await job.finished.wait()
