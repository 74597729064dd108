"""Access statistics: how often chunks are used, how busy members are (raidx paper, section IV).

A request only appends to a list. The list is digested into the look-up table in bulk. The table
has, for each cell, the time of its *last* access and its *interval*, the moving average of the time
between two accesses (in the 15-byte entry). The set *changed* has the cells whose interval changed
by a quarter or more; the tuner takes some of them.

One request in 16 samples the queue lengths of all members: the moving average of arrival-instant
queue lengths (section IV.A). Times are in ticks of 1/64 s of the array's running time. They wrap
after two years, intervals are limited to 17 minutes, and an interval of 0 means that it is not
known yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.store.queue import MemberQueue

TICKS_A_SECOND = 64
INTERVAL_MAX = 65535
NOTED_MAX = 8192  # chunks in the list before they are digested into the table
SAMPLE_MASK = 15  # one chunk in 16
QUEUE_WEIGHT = 1 / 8  # weight of the newest queue length in its moving average
SPEED_STEP = 1 / 16  # step of a member's median service time towards the newest
SHARE_WEIGHT = 1 / 128  # weight of the newest request in the fraction of writes
CHANGED_MAX = 1 << 16
OLD_WEIGHT = 3  # weight of the old interval; the newest time between two accesses weighs 1

Intervals = NDArray[np.float64]
Chunks = NDArray[np.int64]


def _towards(middle_s: float, newest_s: float) -> float:
    """Return *middle_s*, a running median in seconds, one step nearer to *newest_s*.

    A median moves by one step at most. One answer that took a thousand times as long, because the
    host was busy, would move a mean by more than the difference between members.
    """
    if not middle_s or not newest_s:
        return middle_s or newest_s
    return middle_s * (1 + SPEED_STEP if newest_s > middle_s else 1 - SPEED_STEP)


class Noted(Protocol):
    """Is told of every chunk that a request uses: in *noted*, chunk for a read, ~chunk for a write.

    A caller that appends to *noted* itself calls `sample` whenever the length of the list is a
    multiple of `SAMPLE_MASK` + 1.
    """

    noted: list[int]

    def note(self, first: int, last: int, *, is_write: bool) -> None:
        """Note a request of chunks *first*..*last* (the data path itself notes single chunks)."""

    def sample(self) -> None:
        """Look at the list; called at least once for every `SAMPLE_MASK` + 1 chunks noted."""


class AccessStats:
    """Notes accesses of logical chunks, as `Noted` says.

    *queue_means* are the arrival-instant queue lengths by role. *speeds* are the service times
    (read, write) in seconds, medians over the samples, 0 where unknown. *write_share* is the
    fraction of requests that write.
    """

    __slots__ = (
        "_base",
        "_clock",
        "_digested",
        "_done",
        "_layout",
        "_queues",
        "_started_s",
        "changed",
        "noted",
        "queue_means",
        "speeds",
        "write_share",
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
        self.noted: list[int] = []
        self._digested = 0
        self._done = [(0, 0)] * layout.width  # reads and writes of each role at the last sample
        self.write_share = 0.0
        self.queue_means = [0.0] * layout.width
        self.speeds = [(0.0, 0.0)] * layout.width
        self.changed: set[int] = set()

    def renew(self, fresh: Iterable[int] = ()) -> None:
        """Add entries for new roles, and reset those of *fresh* roles, whose members are new."""
        new = self._layout.width - len(self.speeds)
        self.queue_means += [0.0] * new
        self._done += [(0, 0)] * new
        self.speeds += [(0.0, 0.0)] * new
        for role in fresh:
            self.queue_means[role], self.speeds[role] = 0.0, (0.0, 0.0)

    @property
    def arrivals(self) -> int:
        """The number of chunk accesses so far; it changes with every request."""
        return self._digested + len(self.noted)

    def note(self, first: int, last: int, *, is_write: bool) -> None:
        """Note a request of chunks *first*..*last* (the data path itself notes single chunks)."""
        noted = self.noted
        before = len(noted)
        noted.extend(range(~first, ~last - 1, -1) if is_write else range(first, last + 1))
        if (before ^ len(noted)) > SAMPLE_MASK:
            self.sample()

    def sample(self) -> None:
        """Sample the queues; called once for every `SAMPLE_MASK` + 1 chunks noted."""
        means, speeds = self.queue_means, self.speeds
        for role, queue in enumerate(self._queues):
            if queue is not None:
                length = queue.reads_waiting + queue.writes_waiting
                means[role] += QUEUE_WEIGHT * (length - means[role])
                done = queue.reads, queue.writes
                before, self._done[role] = self._done[role], done
                if done != before:
                    read_s, write_s = speeds[role]
                    if done[0] != before[0]:
                        read_s = _towards(read_s, queue.read_service_s)
                    if done[1] != before[1]:
                        write_s = _towards(write_s, queue.write_service_s)
                    speeds[role] = read_s, write_s
        if len(self.noted) >= NOTED_MAX:
            self.digest()

    def ticks(self) -> int:
        """Return the present time in ticks."""
        if self._base < 0:  # time continues from the moment the table was saved
            self._base = int(self._layout.last.max(initial=0))
        passed = self._clock() - self._started_s
        return (self._base + 1 + int(passed * TICKS_A_SECOND)) & 0xFFFFFFFF

    def digest(self) -> None:
        """Bring the noted accesses into the table."""
        if not self.noted:
            return
        noted = np.array(self.noted, np.int64)
        self._digested += len(noted)
        self.noted = []
        writes = ~noted[noted < 0]
        newest_share = len(writes) / len(noted)
        self.write_share += (1 - (1 - SHARE_WEIGHT) ** len(noted)) * (
            newest_share - self.write_share
        )
        layout = self._layout
        cells, counts = np.unique(self._cells(noted[noted >= 0], writes), return_counts=True)
        now = self.ticks()
        last = layout.last[cells]
        old = layout.interval[cells].astype(np.float64)
        passed = (np.uint32(now) - last).astype(np.float64)
        # A cell that was never used has no last access: assume evenly spread accesses in one
        # second.
        passed[last == 0] = TICKS_A_SECOND
        newest = passed / counts
        seen_once = (last == 0) & (counts == 1)
        newest[seen_once] = INTERVAL_MAX
        # One step of the moving average for each access.
        share = (OLD_WEIGHT / (OLD_WEIGHT + 1)) ** counts
        mixed = np.where(old == 0, newest, share * old + (1 - share) * newest)
        mixed = np.clip(np.ceil(mixed), 1, INTERVAL_MAX)
        layout.interval[cells] = mixed.astype(np.uint16)
        layout.last[cells] = now
        if len(self.changed) < CHANGED_MAX:
            differing = np.abs(mixed - old) > np.maximum(old, mixed) / 4
            self.changed.update(cells[differing].tolist())

    def _cells(self, reads: Chunks, writes: Chunks) -> Chunks:
        """Return the cells that *reads* and *writes* of chunks use.

        A write uses parities and copies too. Any copy may have answered a read, so a read counts
        for all copies.
        """
        layout = self._layout
        length, data = layout.length, layout.code.data_count
        parts = []
        whole = np.concatenate((writes, reads)) if layout.code.is_copies else writes
        if len(whole):
            bundles, columns = np.divmod(whole, data)
            parts.append(bundles * length + columns)
            parts.extend(bundles * length + column for column in range(data, length))
        if len(reads) and not layout.code.is_copies:
            bundles, columns = np.divmod(reads, data)
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
        """Return the mean intervals of *cells* in ticks, as if each were accessed now.

        The value is infinite where nothing is known. A chunk that was hot cools down this way
        (section V.A).
        """
        layout = self._layout
        interval = layout.interval[cells].astype(np.float64)
        passed = (np.uint32(self.ticks()) - layout.last[cells]).astype(np.float64)
        aged = np.where(passed > interval, (OLD_WEIGHT * interval + passed) / 4, interval)
        return np.where(interval == 0, np.inf, aged)
