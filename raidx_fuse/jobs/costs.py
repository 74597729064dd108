"""What a planned change costs: bytes, time and redundancy, found before anything begins.

Each operation plans a change of the array and returns a value that has been checked. The costs that
the value has are what `--dry-run` prints, and the value itself is what begins. Documents follow the
dry-run rules of INTERFACE.md: *bytes_read* and *bytes_written* count all members, *bytes_logged*
what goes through the log besides. Commands about members and volumes print them by `dry_run_text`
(cli/status_text.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import ChangePlan, JobCosts, JobTime, RedundancyPlan

# Bytes a second of a member that was not measured yet: a present-day disk, read sequentially.
ASSUMED_RATE_BYTES = 200 << 20
SCAN_STRIPES = 1 << 14  # counted at a time: a large array takes seconds, and requests go on


Summary = TypeVar("Summary", covariant=True)


class PlannedChange(Protocol[Summary]):
    """A change of an array that was checked and has not begun."""

    async def cost(self, sizes: Sequence[int] = (), /) -> ChangePlan:
        """Return what the change costs with new members of *sizes* bytes. Raises RaidxError."""
        ...

    def begin(self, members: Sequence[Member], /) -> Awaitable[Summary]:
        """Check again, and begin with the new *members*; return a summary. Raises RaidxError."""
        ...


def redundancy_left(array: ArrayServices) -> int:
    """Return how many further members, whichever they are, may be lost without losing data.

    The result is 0 while stripes await their resync after a crash without a log: content that was
    flushed long ago is in one stripe with content that was in flight (write hole; jobs/resync.py).
    Layouts of copies are the exception.
    """
    dirty, code = array.context.dirty_bitmap, array.context.code
    if dirty.unlogged and dirty.pending_regions() and not code.is_copies:
        return 0
    return max(code.tolerance - len(array.member_set.lost), 0)


def redundancy_kept(array: ArrayServices, *, more: int = 0) -> RedundancyPlan:
    """Return the redundancy of a change that never reduces it; at the end it is *more*."""
    left = redundancy_left(array)
    return {
        "redundancy_left": left,
        "redundancy_reduced": False,
        "redundancy_reduced_seconds": 0.0,
        "redundancy": {"now": left, "worst": left, "end": left + more},
    }


def job_time(array: ArrayServices, kind: str, size_bytes: int, assumed: int) -> JobTime:
    """Return how long a job of *kind* takes for *size_bytes* of its progress.

    *rate* (bytes a second) is what the last such job on this array reached, else *assumed*, at most
    `speed_max`; *rate_source* says which.
    """
    rate: float = assumed
    source = "assumed"
    for job in array.jobs.list():
        if job["kind"] == kind and job["rate"]:
            rate, source = job["rate"], "measured"
    limit, speed_min = array.jobs.speed_max_bytes, array.jobs.speed_min_bytes
    if limit and limit < rate:
        rate, source = limit, "speed_max"
    return {
        "rate": rate,
        "rate_source": source,
        "seconds": round(size_bytes / rate, 3),
        "seconds_busy": round(size_bytes / min(rate, speed_min or rate), 3),
    }


def copy_cost(
    array: ArrayServices, kind: str, read_bytes: int, written_bytes: int, members: int
) -> JobCosts:
    """Return the cost of a job of *kind* that writes to *members* members in parallel."""
    return {
        "bytes_read": read_bytes,
        "bytes_written": written_bytes,
        "bytes_moved": read_bytes + written_bytes,
        **job_time(array, kind, written_bytes, ASSUMED_RATE_BYTES * members),
    }
