"""Counters and latency histograms, cheap enough to be updated for every request.

A histogram has four buckets per octave of the latency in quarter microseconds. Percentiles are
exact to 19 %, an update is one integer increment, and `BUCKETS` integers describe any number of
requests.

Reading the clock twice and counting costs as much as an I/O from memory. Operations that a member
answers synchronously are therefore all counted, but after the first `TIMED_ALL` only every
`TIMED_EACH`th one is timed; its latency is counted `TIMED_EACH` times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raidx_fuse.documents import Latencies


OCTAVE_BUCKETS = 4
BUCKETS = 160  # up to 2**40 us
TIMED_ALL = 64
TIMED_EACH = 8  # a power of two


def bucket_of(latency_s: float) -> int:
    """Return the histogram bucket of a latency: four buckets per octave, starting at 1/4 us."""
    quarter_us = int(latency_s * 4e6)
    if quarter_us < 4:
        return quarter_us
    octave = quarter_us.bit_length() - 3
    return min(OCTAVE_BUCKETS * octave + (quarter_us >> octave), BUCKETS - 1)


_BUCKETS = tuple(bucket_of((quarter_us + 0.5) / 4e6) for quarter_us in range(1024))


def bucket_top_s(bucket: int) -> float:
    """Return the latency at the upper edge of *bucket*, in seconds."""
    if bucket < 4:
        return (bucket + 1) / 4e6
    octave, rest = divmod(bucket - OCTAVE_BUCKETS, OCTAVE_BUCKETS)
    return ((rest + OCTAVE_BUCKETS + 1) << octave) / 4e6


def percentile_s(histogram: Sequence[int], fraction: float) -> float:
    """Return the latency in seconds that *fraction* (0 to 1) of the requests did not exceed.

    Returns 0.0 if the histogram is empty.
    """
    total = sum(histogram)
    if not total:
        return 0.0
    rank = fraction * total
    seen = 0
    for bucket, count in enumerate(histogram):
        seen += count
        if seen >= rank:
            return bucket_top_s(bucket)
    return bucket_top_s(BUCKETS - 1)


class Latency:
    """Count, sum and histogram of one kind of request, in seconds."""

    __slots__ = ("count", "histogram", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.histogram = [0] * BUCKETS

    def add(self, latency_s: float) -> None:
        """Count one request that took *latency_s*."""
        self.count += 1
        self.total_s += latency_s
        quarter_us = int(latency_s * 4e6)
        bucket = _BUCKETS[quarter_us] if quarter_us < 1024 else bucket_of(latency_s)
        self.histogram[bucket] += 1

    def add_many(self, latency_s: float, count: int) -> None:
        """Count *count* requests, of which one was timed and took *latency_s*."""
        self.count += count
        self.total_s += latency_s * count
        self.histogram[bucket_of(latency_s)] += count

    def summary(self) -> Latencies:
        """Return the mean and the 50th, 95th and 99th percentile in milliseconds."""
        mean_s = self.total_s / self.count if self.count else 0.0
        return {
            "mean": mean_s * 1e3,
            "p50": percentile_s(self.histogram, 0.50) * 1e3,
            "p95": percentile_s(self.histogram, 0.95) * 1e3,
            "p99": percentile_s(self.histogram, 0.99) * 1e3,
        }
