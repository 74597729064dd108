"""The McPod paper's baseline in our own engine: a restripe of everything, in three variants.

- "Large windows" is the best that a restripe can do: windows of 64 MiB of every member, each read,
  written and flushed, with the watermark in the journal.
- "md's flushes": windows of 1 MiB of a member, md's stripe cache of 256 pages, each flushed. md
  itself flushes 0.8 times for each MiB, as counters in the guest of `md_growth.py` say.
- "md's operations": windows of 64 KiB. `md_growth.py` counts 73 KiB for each read and 83 KiB for
  each write of `mdadm --grow` (4+1 members of 64 MiB), between which a user's request may pass. It
  moves slower than md where nobody asks, because it waits for each of them.

None of them writes superblocks for a window; md does so seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.jobs.restripe.job import Restripe
from raidx_fuse.lab.experiments.modelled import Event
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.members.simulated.model import ModelMember

MIB = 1 << 20


@dataclass(frozen=True)
class Habits:
    """*window_bytes* of a member in each window."""

    name: str
    window_bytes: int


LARGE_WINDOWS = Habits("restripe, large windows", 64 * MIB)
MD_FLUSHES = Habits("restripe, md's flushes", MIB)
MD = Habits("restripe, md's operations", 64 << 10)


@contextmanager
def restriping_by(habits: Habits) -> Iterator[None]:
    """Let every restripe in the block have *habits*."""
    limit = Restripe._limit

    def fixed(job: Restripe) -> int:
        code = job.schedule.source.code
        return max(1, habits.window_bytes * code.data_count // code.rows // job.context.chunk_bytes)

    Restripe._limit = fixed  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Restripe._limit = limit  # type: ignore[method-assign]


class Moved:
    """Restripes an array onto *added* members before the load, and records the cost."""

    def __init__(self, added: int, disk: Callable[[int, int], ModelMember]) -> None:
        self.added = added
        self.disk = disk
        self.seconds = 0.0
        self.bytes = self.old_bytes = 0

    async def restripe(self, array: Array) -> None:
        """Restripe *array*, and count the bytes of all members."""
        self.old_bytes = array.size_bytes
        size = array.member_set.config.regions.data.end
        members = [self.disk(size, 100 + number) for number in range(self.added)]
        before, start_s = _bytes(array), trio.current_time()
        started = await array.restripe(members, None, {})
        result = await array.jobs.wait(started["job"])
        assert result["state"] == "done", result
        self.seconds = trio.current_time() - start_s
        self.bytes = _bytes(array) - before


def _bytes(array: Array) -> int:
    queues = [queue for queue in array.member_set.queues if queue is not None]
    return sum(queue.read_bytes + queue.write_bytes for queue in queues)


def restriped(
    experiment: Callable[..., Experiment],
    added: int,
    disk: Callable[[int, int], ModelMember],
    habits: Habits | None = None,
) -> Moved:
    """Return the cost of restriping a full array without other load; None: as our engine does."""
    moved = Moved(added, disk)
    with nullcontext() if habits is None else restriping_by(habits):
        simulate(experiment(prepare=moved.restripe))
    return moved


def under_load(
    experiment: Callable[..., Experiment], how: Habits | str, rate_s: int
) -> dict[str, Any]:
    """Return the result of a load while the array gets one disk more: by a restripe, or by McPod's
    moves if *how* is a way of parity; at *rate_s* bytes a second, users or not, as a throttle does.
    """
    do, value = ("add", how) if isinstance(how, str) else ("restripe", "")
    event = Event(at_s=0.0, do=do, count=1, value=value)
    limits = dict.fromkeys(("speed_min", "speed_max"), str(rate_s))
    made = experiment(events=[event], settings={"journal": "partial", **limits})
    if isinstance(how, str):
        return simulate(made)
    habits = how
    with restriping_by(habits):
        return simulate(made)
