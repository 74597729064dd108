"""The arrays of a workload or of a state, mounted as the daemon mounts them, and what they owe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.documents import JobDetail
from raidx_fuse.errors import BusyError
from raidx_fuse.jobs.job import Job
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.members.base import Member
from raidx_fuse.members.simulated.virtual_time import sleep
from raidx_fuse.pool.move import MoveVolumes, open_pool
from raidx_fuse.pool.pool import Pool, check_names
from raidx_fuse.pool.volume_table import open_volumes

PATIENCE_S = 120.0  # more than what fails for a while
POLL_S, RETRY_S, RETRIES = 0.25, 2.0, 40


@asynccontextmanager
async def mounted(arrays: Sequence[Sequence[Member]], **options: Any) -> AsyncIterator[Pool]:
    """Mount *arrays* as one pool; unmount it cleanly. *options* are those of `open_array`."""
    async with AsyncExitStack() as stack:
        opened = []
        for members in arrays:
            array: Array = await stack.enter_async_context(open_array(members, **options))
            opened.append(await stack.enter_async_context(open_volumes(array)))
        pool = await stack.enter_async_context(open_pool(opened))
        check_names(pool.arrays)
        yield pool


def moves_of(pool: Pool) -> list[MoveVolumes]:
    """Return the running moves and swaps."""
    jobs = [job for volumes in pool.arrays for job in volumes.array.jobs.running()]
    return [job for job in jobs if isinstance(job, MoveVolumes)]


def waits(job: JobDetail) -> bool:
    """Return whether *job*, a growth, waits for a lost member."""
    return job.get("waits_for_role") is not None


class Attendant:
    """Does what a user would with jobs of *pool* that an error has paused.

    They are resumed; where content is lost, one that stays paused for PATIENCE_S is cancelled.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._paused_s: dict[Job, float] = {}

    def attend(self, job: Job) -> None:
        """Resume or cancel *job*, if it is paused."""
        if job.state != "paused":
            return
        now = trio.current_time()
        arrays = [volumes.array for volumes in self.pool.arrays]
        lost = any(a.member_set.unreadable or a.context.bad_chunks for a in arrays)
        if lost and now - self._paused_s.setdefault(job, now) > PATIENCE_S:
            job.cancel()
        else:
            job.resume()


async def wait_for_jobs(pool: Pool) -> None:
    """Wait until all jobs of *pool* have ended or wait for a member, and nothing is to be wiped.

    A rebuild that superblocks have ended begins again by itself.
    """
    idle, attendant = 0, Attendant(pool)
    while idle < 2:  # the end of a job may start the next one, in another task
        running = [
            job
            for volumes in pool.arrays
            for job in volumes.array.jobs.running()
            if not waits(job.status())
        ]
        halted = any(volumes.array.member_set.watermarks for volumes in pool.arrays)
        if any(volumes.table().wiping for volumes in pool.arrays) or running or halted:
            idle = 0
        else:
            idle += 1
        for job in running:
            attendant.attend(job)
            job.limit(0, 0)
        await sleep(POLL_S)


async def take_back(array: Array, disk: Member) -> None:
    """Take *disk* back; again while a job runs, or a write to any disk of *array* is overdue.

    While it is, a page that the array saves for the member may be refused there. The role that
    *disk* had may have another number in the end, or be gone.
    """
    member_set = array.member_set
    for left in reversed(range(RETRIES + 1)):
        record = member_set.config.record
        roles = [role for role in member_set.lost if record(role).path_hint == disk.path]
        if not roles:
            return
        if left and not all(
            queue is None or queue.member.is_settled() for queue in member_set.queues
        ):
            await sleep(RETRY_S)
            continue
        try:
            await array.replace_disk(roles[0], disk)
        except BusyError:
            if not left:
                raise
            await sleep(RETRY_S)
        else:
            return


async def check_parity(array: Array, excused: Callable[[int], bool] = lambda stripe: False) -> None:
    """Scrub *array*, unless it lacks a member. Raises ViolationError.

    Parity has to be right in all stripes but those that are *excused*.
    """
    if array.member_set.lost:
        return
    result = await array.jobs.wait(await array.start_scrub(repair=False))
    if result["state"] != "done":
        raise ViolationError(f"scrub ended as {result['state']}: {result['error']}")
    if wrong := [found for found in result["findings"] if not excused(found["stripe"])]:
        raise ViolationError(f"parity is not consistent: {wrong[:2]}")
