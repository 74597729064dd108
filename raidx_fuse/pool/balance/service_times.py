"""What an operation costs a member: positioning and transfer, from what its queue has measured.

For each interval the queues give the time for which the members were busy, the number of their
operations and the bytes of these. Busy time over operations is the mean service time, also where
several operations are outstanding (iostat's svctm). Intervals with operations of unlike mean sizes
part it into

    service time = positioning + bytes * transfer time per byte

by weighted least squares in which older intervals count less. While all sizes are alike, nothing
tells the two apart, and nothing depends on it; the transfer is then assumed to run at
`TRANSFER_BYTES_S`, but to take no more than half of the service time.

Pure. Members of unlike speeds of one array are taken together: Eq. 5 wants their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from raidx_fuse.pool.balance.utilisation import DiskTimes

TRANSFER_BYTES_S = 150e6  # of a hard disk
OPERATIONS_MIN = 100  # fewer, as those of a mount, say nothing
KEPT = 0.95  # of the weight of an interval when the next one comes
WEIGHT_MAX = 1000.0  # operations: one busy interval must not outweigh all others
SPREAD_MIN = 0.2  # standard deviation of mean sizes over their mean that parts the two


class ServiceTimes:
    """Running sums over intervals: weight, and weighted means' sums of sizes and service times."""

    def __init__(self, sums: Sequence[float] = (0.0,) * 6) -> None:
        """Go on from *sums*. Raises ValueError or TypeError if they are not six numbers from 0."""
        self._sums = [float(value) for value in sums]
        if len(self._sums) != 6 or not all(0 <= value < math.inf for value in self._sums):
            raise ValueError("service times are not six numbers")

    def sums(self) -> list[float]:
        """Return what a further instance goes on from."""
        return [float(f"{value:.12g}") for value in self._sums]

    def note(self, operations: int, size_bytes: float, busy_s: float) -> None:
        """Note an interval: so many *operations* of *size_bytes* in all, busy for *busy_s*."""
        if operations <= 0 or size_bytes <= 0 or busy_s < 0:
            return
        mean, service_s = size_bytes / operations, busy_s / operations
        weight = min(float(operations), WEIGHT_MAX)
        new = (1.0, mean, service_s, mean * mean, mean * service_s)
        self._sums[0] += operations
        for number, value in enumerate(new, 1):
            self._sums[number] = KEPT * self._sums[number] + weight * value

    def disk_times(self) -> DiskTimes | None:
        """Return the times; None: too few operations were seen."""
        seen, weight, sizes, services, squares, products = self._sums
        if seen < OPERATIONS_MIN or not weight:
            return None
        mean, service_s = sizes / weight, services / weight
        variance = squares / weight - mean * mean
        if variance > (SPREAD_MIN * mean) ** 2:
            slope = (products / weight - mean * service_s) / variance
            slope = min(max(slope, 0.0), service_s / mean)
        else:
            slope = min(1 / TRANSFER_BYTES_S, service_s / mean / 2)
        return DiskTimes.measured(service_s, mean, slope)
