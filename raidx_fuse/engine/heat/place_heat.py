"""How often each place of the image is used, for layouts whose chunks cannot move.

`AccessStats` counts for raidx layouts, because their tuner needs every chunk. Here `REGIONS_MAX`
equal *regions* of the image are counted at most, so the memory is bounded whatever its size: a
region is one chunk of a small image, and twice as many chunks whenever the image has outgrown them.
A request appends one number to a list, which is digested in bulk.

There are two counts, of half of the accesses each, blocks of `BLOCK` in turn. So what is planned
for the one half can be judged by the other: by the accesses that a plan was made for, it looks
better than it is.

Counts fade with the time constant `FADING_S` of running time, and begin anew with each mount.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.access_stats import (
    SAMPLE_MASK,
    AccessCounter,
    AccessStats,
    Noted,
    continues_run,
)
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.store.queue import MemberQueue

REGIONS_MAX = 1 << 14
FADING_S = 3600.0
NOTED_MAX = 8192
BLOCK = 64  # accesses

Rates = NDArray[np.float64]


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
        """Reads and writes together."""
        return self.reads + self.writes

    @property
    def write_share(self) -> float:
        """The fraction of accesses that write; 0 without any."""
        return float(self.writes.sum() / (self.total.sum() or 1.0))


class PlaceHeat(AccessCounter):
    """Counts the accesses of an image of *chunks* chunks; see `engine.access_stats.Noted`.

    *queues* of the members by role; *clock* returns seconds.
    """

    def __init__(
        self,
        chunks: int,
        queues: Sequence[MemberQueue | None],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(queues, len(queues))
        self.arrivals = 0
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
        """Bring the noted accesses into the counts."""
        noted, self.noted = self.noted, []
        self.take(noted)

    def take(self, noted: Sequence[int]) -> None:
        """Count *noted*, which another counter has noted in this one's place."""
        if not noted:
            return
        self._fade()
        numbers = np.array(noted, np.int64)
        writes = numbers < 0
        chunks = np.where(writes, ~numbers, numbers)
        regions = self._regions(int(chunks.max()))
        at = chunks >> self._bits
        follows, _again = continues_run(chunks)
        halves = (np.arange(self.arrivals, self.arrivals + len(at)) // BLOCK) % 2
        at += regions * halves
        for row, which in enumerate((~writes, writes, follows)):
            counted = np.bincount(at[which], minlength=2 * regions)
            self._counts[:, row] += counted.reshape(2, regions)
        self.arrivals += len(noted)

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

    def look(self) -> Heat:
        """Return what was counted so far."""
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


def counter_of(
    layout: Layout, queues: Sequence[MemberQueue | None], clock: Callable[[], float]
) -> Noted:
    """Return what counts the accesses of an array of *layout*."""
    if isinstance(layout, BundleLayout):
        return AccessStats(layout, queues, clock)
    return PlaceHeat(layout.chunks, queues, clock)


def heat_of_bundles(layout: Layout, access: AccessStats) -> Heat:
    """Return the heat of a raidx layout, whose look-up table knows each chunk, in regions.

    The table does not tell reads from writes, so every region has their mean share.
    """
    count = layout.code.data_count
    rates, runs = access.rates()
    chunks = len(rates) // layout.code.columns * count
    bits = max(0, (chunks - 1).bit_length() - (REGIONS_MAX.bit_length() - 1))

    def by_region(cells: Rates) -> Rates:
        data = cells.reshape(-1, layout.code.columns)[:, :count].reshape(-1)
        padded = np.pad(data, (0, -len(data) % (1 << bits)))
        summed: Rates = padded.reshape(-1, 1 << bits).sum(axis=1)
        return summed

    total, in_order = by_region(rates), by_region(rates * runs)
    share = access.write_share
    parts = total * (1 - share), total * share, in_order
    return Heat(1 << bits, *parts, list(access.queue_means), FADING_S)
