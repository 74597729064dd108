"""Access statistics: how often chunks are used, how busy members are (raidx paper, section IV).

A request only appends to a list. The list is digested into the look-up table in bulk. The table
has, for each cell, the time of its *last* access and its *interval*, the moving average of the time
between two accesses (in the 15-byte entry). In memory one byte more says how often a cell was used
in order: soon after the chunk before it (*runs*).

One request in 16 samples the queue lengths of all members: the moving average of arrival-instant
queue lengths (section IV.A). Times are in ticks of 1/64 s of the array's running time. They wrap
after two years, intervals are limited to 17 minutes, and an interval of 0 means that it is not
known yet.

`AccessStats` counts so for raidx layouts, because their tuner needs every chunk. For layouts whose
chunks cannot move, `PlaceHeat` counts at most `REGIONS_MAX` equal *regions* of the image, whatever
its size: whenever the image has outgrown them, a region has twice as many chunks. It has two
counts, of half of the accesses each, blocks of `BLOCK` in turn: by the accesses that a plan was
made for, it looks better than it is, so the other half judges it. Counts fade with the time
constant `FADING_S` of running time, and begin anew with each mount.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.planning.allocate import BLOCK_CELLS
from raidx_fuse.store.queue import MemberQueue

TICKS_A_SECOND = 64
INTERVAL_MAX = 65535
NOTED_MAX = 8192  # chunks in the list before they are digested into the table
SAMPLE_MASK = 15  # one chunk in 16
QUEUE_WEIGHT = 1 / 16  # weight of the newest queue length in its moving average
SHARE_WEIGHT = 1 / 128  # weight of the newest request in the fraction of writes
RUN_WINDOW = 8  # accesses: as many streams may be read or written at a time
RUN_HALF = 128  # of 255: half of the uses were in order
OLD_WEIGHT = 3  # weight of the old interval; the newest time between two accesses weighs 1
REGIONS_MAX = 1 << 14
FADING_S = 3600.0
BLOCK = 64  # accesses that the same half counts

Rates = NDArray[np.float64]
Intervals = NDArray[np.float64]
Chunks = NDArray[np.int64]


class AccessCounter(ABC):
    """Collects every chunk that a request uses: in *noted*, chunk for a read, ~chunk for a write.

    The data path appends single chunks to *noted* itself, and calls `sample` whenever the length of
    the list is a multiple of `SAMPLE_MASK` + 1. *queue_means* are the arrival-instant queue lengths
    by role, of *queues*.
    """

    def __init__(self, queues: Sequence[MemberQueue | None], roles: int) -> None:
        self._queues = queues
        self._digested = 0
        self.noted: list[int] = []
        self.queue_means = [0.0] * roles

    def note(self, first: int, last: int, *, is_write: bool) -> None:
        noted = self.noted
        before = len(noted)
        noted.extend(range(~first, ~last - 1, -1) if is_write else range(first, last + 1))
        if (before ^ len(noted)) > SAMPLE_MASK:
            self.sample()

    @property
    def arrivals(self) -> int:
        """The number of chunk accesses so far; it changes with every request."""
        return self._digested + len(self.noted)

    @abstractmethod
    def look(self) -> Heat:
        """Return how often each region of the image was used lately."""

    def halves(self) -> tuple[Heat, Heat]:
        """Return two halves of `look`, one to plan by and one to judge the plan; if it has two."""
        heat = self.look()
        return heat, heat

    def hottest(self, count: int) -> list[tuple[int, float]]:
        """Return up to *count* (logical chunk, mean seconds between accesses), hottest first.

        None where chunks are not counted one by one.
        """
        return []

    @abstractmethod
    def sample(self) -> None:
        """Look at the list; called at least once for every `SAMPLE_MASK` + 1 chunks noted."""

    def sample_queues(self) -> None:
        """Note how many operations a request finds at each member now."""
        means = self.queue_means
        for role, queue in enumerate(self._queues):
            if queue is not None:
                length = queue.reads_waiting + queue.writes_waiting
                means[role] += QUEUE_WEIGHT * (length - means[role])


class AccessStats(AccessCounter):
    """Counts the accesses of each logical chunk.

    *write_share* is the fraction of requests that write. *runs* has, for each cell, the fraction of
    uses in order, in 1/255; *in_order* counts all of them, *uses* all uses of cells.
    """

    def __init__(
        self,
        layout: BundleLayout,
        queues: Sequence[MemberQueue | None],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(queues, layout.width)
        self.layout = layout
        self._clock = clock
        self._started_s = clock()
        self._base = -1  # the table is not loaded yet
        self._newest = 0  # ticks of the last digest
        self.write_share = 0.0
        self._runs = np.zeros(0, np.uint8)
        self.in_order = self.uses = 0

    def renew(self, fresh: Iterable[int] = ()) -> None:
        """Add entries for new roles, and reset those of *fresh* roles, whose members are new."""
        self.queue_means += [0.0] * (self.layout.width - len(self.queue_means))
        for role in fresh:
            self.queue_means[role] = 0.0

    @property
    def runs(self) -> NDArray[np.uint8]:
        """The fraction of the uses of each cell that were in order, in 1/255."""
        cells = len(self.layout.interval)
        if len(self._runs) != cells:  # bundles were appended, or dropped
            kept = self._runs[:cells]
            self._runs = np.zeros(cells, np.uint8)  # takes memory only for touched pages
            self._runs[: len(kept)] = kept
        return self._runs

    def sample(self) -> None:
        self.sample_queues()
        if len(self.noted) >= NOTED_MAX:
            self.digest()

    def ticks(self) -> int:
        """Return the present time in ticks."""
        if self._base < 0:  # time continues from the moment the table was saved
            self._base = int(self.layout.last.max(initial=0))
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
        layout = self.layout
        self._note_runs(np.where(noted < 0, ~noted, noted))
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
        self.uses += int(counts.sum())
        layout.last[cells] = self._newest = now

    def _note_runs(self, chunks: Chunks) -> None:
        """Note which of *chunks*, used in this order, continue a run."""
        follows, again = continues_run(chunks)
        self.in_order += int(np.count_nonzero(follows))
        used, at = np.unique(chunks, return_inverse=True)
        counts = np.bincount(at, ~again)
        newest = 255 * np.bincount(at, follows) / np.maximum(counts, 1)
        layout = self.layout
        bundles, columns = np.divmod(used, layout.code.data_count)
        copies = layout.length if layout.code.is_copies else 1
        for copy in range(copies):
            cells = bundles * layout.length + columns + copy
            first = (layout.interval[cells] == 0) & (counts > 0)
            old = np.where(first, newest, self.runs[cells])
            self.runs[cells] = (newest + (old - newest) * 0.5**counts).astype(np.uint8)

    def rates(self) -> tuple[Intervals, Intervals]:
        """Return for each cell the accesses a second and the fraction of them in order."""
        self.digest()
        cells = self.layout.cells
        rates = TICKS_A_SECOND / self.intervals(slice(0, cells))
        return rates, self.runs[:cells] / 255

    def _cells(self, reads: Chunks, writes: Chunks) -> Chunks:
        """Return the cells that *reads* and *writes* of chunks use.

        A write uses parities and copies too. Any copy may have answered a read, so a read counts
        for all copies.
        """
        layout = self.layout
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

    def look(self) -> Heat:
        """Return what the look-up table knows of each chunk, in regions.

        The table does not distinguish reads from writes, so every region has their mean share.
        """
        columns, count = self.layout.code.columns, self.layout.code.data_count
        rates, runs = self.rates()
        chunks = len(rates) // columns * count
        bits = max(0, (chunks - 1).bit_length() - (REGIONS_MAX.bit_length() - 1))

        def by_region(cells: Rates) -> Rates:
            data = cells.reshape(-1, columns)[:, :count].reshape(-1)
            padded = np.pad(data, (0, -len(data) % (1 << bits)))
            summed: Rates = padded.reshape(-1, 1 << bits).sum(axis=1)
            return summed

        total, in_order = by_region(rates), by_region(rates * runs)
        parts = total * (1 - self.write_share), total * self.write_share, in_order
        return Heat(1 << bits, *parts, list(self.queue_means), FADING_S)

    def hottest(self, count: int) -> list[tuple[int, float]]:
        self.digest()
        layout = self.layout
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

    def last_use(self, cells: Chunks) -> NDArray[np.uint32]:
        """Return the ticks of the last accesses of *cells*, 0 where unknown."""
        return self.layout.last[cells]

    def used_once(self) -> Chunks:
        """Return the cells that were used only once since this mount."""
        layout = self.layout
        parts = []
        for start in range(0, layout.cells, BLOCK_CELLS):  # bounds the temporary arrays
            block = slice(start, start + BLOCK_CELLS)
            once = (layout.interval[block] == INTERVAL_MAX) & (layout.last[block] > self._base)
            parts.append(np.flatnonzero(once) + start)
        return np.concatenate(parts)

    def intervals(self, cells: Any) -> Intervals:
        """Return the mean intervals of *cells* in ticks, as if each were used with the last ones.

        The value is infinite where nothing is known. A chunk that was hot cools down this way
        (section V.A) while others are used. Idle time of the array does not cool chunks: after some
        seconds of it all would seem equally hot.
        """
        layout = self.layout
        interval = layout.interval[cells].astype(np.float64)
        if not self._newest:
            self._newest = self.ticks()
        passed = (np.uint32(self._newest) - layout.last[cells]).astype(np.float64)
        aged = np.where(passed > interval, (OLD_WEIGHT * interval + passed) / 4, interval)
        return np.where(interval == 0, np.inf, aged)


def continues_run(chunks: Chunks) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which of *chunks*, used in this order, continue a run, and which were used just now.

    A run is continued if the chunk before was used just now and the one behind was not. A chunk
    that was used just now itself says nothing: a stream of small requests meets it often, a hot
    set, too.
    """
    before, behind, again = np.zeros((3, len(chunks)), bool)
    for lag in range(1, min(RUN_WINDOW, len(chunks) - 1) + 1):
        earlier, now = chunks[:-lag], chunks[lag:]
        before[lag:] |= now == earlier + 1
        behind[lag:] |= now == earlier - 1
        again[lag:] |= now == earlier
    return before & ~behind & ~again, again


@dataclass(frozen=True, slots=True)
class Heat:
    """Accesses a second of each region of *region_chunks* chunks, from the first chunk on.

    *reads*, *writes*: of chunks; *in_order*: those of both that continue a run. *queues*: the mean
    number of operations that a request finds at each member. *seconds*: what was seen in so many
    seconds, recent ones counting more.
    """

    region_chunks: int
    reads: Rates
    writes: Rates
    in_order: Rates
    queues: Sequence[float]
    seconds: float

    @property
    def total(self) -> Rates:
        return self.reads + self.writes

    @property
    def write_share(self) -> float:
        """The fraction of accesses that write; 0 without any."""
        return float(self.writes.sum() / (self.total.sum() or 1.0))


class PlaceHeat(AccessCounter):
    """Counts the accesses of an image of *chunks* chunks.

    *queues* of the members by role; *clock* returns seconds.
    """

    def __init__(
        self,
        chunks: int,
        queues: Sequence[MemberQueue | None],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(queues, len(queues))
        self._clock = clock
        self._began_s = self._faded_s = clock()
        self._bits = max(0, (chunks - 1).bit_length() - (REGIONS_MAX.bit_length() - 1))
        regions = max(1, -(-chunks >> self._bits))
        # Of each half: reads, writes, accesses in order.
        self._counts = np.zeros((2, 3, regions))

    def sample(self) -> None:
        """Sample the queues, every fourth time; called for every `SAMPLE_MASK` + 1 chunks noted."""
        if not len(self.noted) & 3 * (SAMPLE_MASK + 1):
            self.sample_queues()
        if len(self.noted) >= NOTED_MAX:
            self.digest()

    def sample_queues(self) -> None:
        """Note how many operations a request finds at each member now."""
        means = self.queue_means
        if len(means) < len(self._queues):  # members have joined
            means += [0.0] * (len(self._queues) - len(means))
        super().sample_queues()

    def digest(self) -> None:
        noted, self.noted = self.noted, []
        if not noted:
            return
        self._fade()
        numbers = np.array(noted, np.int64)
        writes = numbers < 0
        chunks = np.where(writes, ~numbers, numbers)
        regions = self._regions(int(chunks.max()))
        at = chunks >> self._bits
        follows, _again = continues_run(chunks)
        halves = (np.arange(self._digested, self._digested + len(at)) // BLOCK) % 2
        at += regions * halves
        for row, which in enumerate((~writes, writes, follows)):
            counted = np.bincount(at[which], minlength=2 * regions)
            self._counts[:, row] += counted.reshape(2, regions)
        self._digested += len(noted)

    def _regions(self, last_chunk: int) -> int:
        """Return the number of regions, which *last_chunk* is in; widen them if need be."""
        counts = self._counts
        while last_chunk >> self._bits >= REGIONS_MAX:
            self._bits += 1
            counts = np.pad(counts, ((0, 0), (0, 0), (0, counts.shape[2] % 2)))
            counts = counts[:, :, ::2] + counts[:, :, 1::2]
        missing = (last_chunk >> self._bits) + 1 - counts.shape[2]
        self._counts = np.pad(counts, ((0, 0), (0, 0), (0, max(0, missing))))
        return self._counts.shape[2]

    def _fade(self) -> None:
        now_s = self._clock()
        self._counts *= exp((self._faded_s - now_s) / FADING_S)
        self._faded_s = now_s

    def counts(self) -> tuple[int, Rates]:
        """Return the bits of a chunk's number in its region; faded (2, regions) reads, writes."""
        self.digest()
        self._fade()
        return self._bits, self._counts[:, :2].sum(axis=0)

    def look(self) -> Heat:
        self.digest()
        self._fade()
        return self._heat(self._counts.sum(axis=0), 1.0)

    def halves(self) -> tuple[Heat, Heat]:
        """Return the two halves of what was counted so far."""
        self.digest()
        self._fade()
        first, second = self._counts
        return self._heat(first, 0.5), self._heat(second, 0.5)

    def _heat(self, counts: Rates, share: float) -> Heat:
        # A count that has faded all the time stands for so many seconds.
        age_s = max(1.0, self._clock() - self._began_s)
        seconds = share * FADING_S * (1 - exp(-age_s / FADING_S))
        reads, writes, in_order = counts / seconds
        return Heat(1 << self._bits, reads, writes, in_order, list(self.queue_means), seconds)
