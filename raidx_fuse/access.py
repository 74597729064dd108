"""How often chunks are used, and how busy members are when requests arrive (raidx, section IV).

The way of a request pays for one append to a list; the list goes into the look-up table in bulk:

* a cell's *last* access and *interval*, the moving average of the time between two (15-byte entry);
* the set of cells whose interval changed by a quarter or more, of which the tuner takes some.

One request in eight notes the lengths of all members' queues: the moving average of arrival-instant
queue lengths (section IV.A). Times are ticks of 1/64 s that the array has been running for; they
wrap after two years, intervals end at 17 minutes, and 0 is an interval that nobody knows yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.raidx import BundleLayout
from raidx_fuse.queues import MemberQueue

TICKS_A_SECOND = 64
INTERVAL_MAX = 65535
NOTED_MAX = 8192  # chunks in the lists before they go into the table
SAMPLE_EACH = 8  # requests; a power of two
QUEUE_WEIGHT = 1 / 16  # of the newest queue length in its moving average
CHANGED_MAX = 1 << 16
OLD_WEIGHT = 3  # of the old interval beside the newest time between two accesses

Intervals = NDArray[np.float64]


class Access:
    """Notes accesses of logical chunks.

    *queue_means* are the arrival-instant queue lengths by role, *speeds* the service times (read,
    write; 0: unknown) at the last sample, *write_share* the part of requests that are writes.
    """

    __slots__ = (
        "_base",
        "_clock",
        "_layout",
        "_queues",
        "_started_s",
        "arrivals",
        "changed",
        "queue_means",
        "reads",
        "speeds",
        "write_arrivals",
        "write_share",
        "writes",
    )

    def __init__(
        self,
        layout: BundleLayout,
        queues: Sequence[MemberQueue | None],
        clock: Callable[[], float],
    ) -> None:
        self._layout = layout
        self._queues = queues
        self._clock = clock
        self._started_s = clock()
        self._base = -1  # the table is not loaded yet
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.arrivals = 0
        self.write_arrivals = 0
        self.write_share = 0.0
        self.queue_means = [0.0] * layout.width
        self.speeds = [(0.0, 0.0)] * layout.width
        self.changed: set[int] = set()

    def read(self, first: int, last: int) -> None:
        """Note a read of the chunks *first*..*last*."""
        if first == last:
            self.reads.append(first)
        else:
            self.reads.extend(range(first, last + 1))
        arrivals = self.arrivals = self.arrivals + 1
        if not arrivals % SAMPLE_EACH:
            self._sample()

    def write(self, first: int, last: int) -> None:
        """Note a write of the chunks *first*..*last*."""
        if first == last:
            self.writes.append(first)
        else:
            self.writes.extend(range(first, last + 1))
        self.write_arrivals += 1
        arrivals = self.arrivals = self.arrivals + 1
        if not arrivals % SAMPLE_EACH:
            self._sample()

    def _sample(self) -> None:
        share = self.write_arrivals / SAMPLE_EACH
        self.write_arrivals = 0
        self.write_share += QUEUE_WEIGHT * (share - self.write_share)
        means, speeds = self.queue_means, self.speeds
        for role, queue in enumerate(self._queues):
            if queue is not None:
                length = queue.reads_waiting + queue.writes_waiting
                means[role] += QUEUE_WEIGHT * (length - means[role])
                speeds[role] = queue.read_service_s, queue.write_service_s
        if len(self.reads) + len(self.writes) >= NOTED_MAX:
            self.digest()

    def ticks(self) -> int:
        """Return the time in ticks."""
        if self._base < 0:  # time goes on from where it stood when the table was saved
            self._base = int(self._layout.last.max(initial=0))
        passed = self._clock() - self._started_s
        return (self._base + 1 + int(passed * TICKS_A_SECOND)) & 0xFFFFFFFF

    def digest(self) -> None:
        """Bring what was noted into the table."""
        reads, self.reads = self.reads, []
        writes, self.writes = self.writes, []
        if not reads and not writes:
            return
        layout = self._layout
        cells, counts = np.unique(self._cells(reads, writes), return_counts=True)
        now = self.ticks()
        last = layout.last[cells]
        old = layout.interval[cells].astype(np.float64)
        passed = (np.uint32(now) - last).astype(np.float64)
        # Those never seen before have no time to count from: as if they came evenly in one second.
        passed[last == 0] = TICKS_A_SECOND
        newest = passed / counts
        seen_once = (last == 0) & (counts == 1)
        newest[seen_once] = INTERVAL_MAX
        # As many steps of the moving average as there were accesses.
        share = (OLD_WEIGHT / (OLD_WEIGHT + 1)) ** counts
        mixed = np.where(old == 0, newest, share * old + (1 - share) * newest)
        mixed = np.clip(np.ceil(mixed), 1, INTERVAL_MAX)
        layout.interval[cells] = mixed.astype(np.uint16)
        layout.last[cells] = now
        if len(self.changed) < CHANGED_MAX:
            differing = np.abs(mixed - old) > np.maximum(old, mixed) / 4
            self.changed.update(cells[differing].tolist())

    def _cells(self, reads: list[int], writes: list[int]) -> NDArray[np.int64]:
        """Return the cells that reads and writes of chunks use: parities and copies by writes.

        Any copy may have answered a read, so it counts for all of them.
        """
        layout = self._layout
        length, data = layout.length, layout.code.data_count
        parts = []
        whole = writes + reads if layout.code.is_copies else writes
        if whole:
            bundles, columns = np.divmod(np.asarray(whole, np.int64), data)
            parts.append(bundles * length + columns)
            parts.extend(bundles * length + column for column in range(data, length))
        if reads and not layout.code.is_copies:
            bundles, columns = np.divmod(np.asarray(reads, np.int64), data)
            parts.append(bundles * length + columns)
        return np.concatenate(parts)

    def hottest(self, count: int) -> list[tuple[int, float]]:
        """Return up to *count* (logical chunk, mean seconds between accesses), hottest first."""
        self.digest()
        layout = self._layout
        length, data = layout.length, layout.code.data_count
        known = np.flatnonzero(layout.interval)
        known = known[known % length < data]
        if not len(known):
            return []
        seconds = self.intervals(known) / TICKS_A_SECOND
        count = min(count, len(known))
        top = np.argpartition(seconds, count - 1)[:count]
        chunks = known // length * data + known % length
        return [(int(chunks[i]), float(seconds[i])) for i in top[np.argsort(seconds[top])]]

    def intervals(self, cells: Any) -> Intervals:
        """Return the mean intervals of *cells* in ticks as they would be if accessed now.

        Infinite where nothing is known: what was hot once cools down (section V.A).
        """
        layout = self._layout
        interval = layout.interval[cells].astype(np.float64)
        passed = (np.uint32(self.ticks()) - layout.last[cells]).astype(np.float64)
        aged = np.where(passed > interval, (OLD_WEIGHT * interval + passed) / 4, interval)
        return np.where(interval == 0, np.inf, aged)
