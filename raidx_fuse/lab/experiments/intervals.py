"""Means with their 95 % intervals, alone and in pairs, by Student's t.

Runs with the same seed have the same load on the same disks. Therefore a difference is taken within
each pair and then averaged: what makes one load slower than another drops out of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# The 97.5 % quantile for 1, 2, ... degrees of freedom.
_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t with so many degrees of freedom.

    >>> quantile(1), quantile(11), round(quantile(60), 3), round(quantile(10_000), 2)
    (12.706, 2.201, 2.0, 1.96)
    """
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


class Estimate(NamedTuple):
    """The *mean* of *n* values; the true one lies within *half* of it, at 95 %.

    *half* is None for a single value, of which nothing can be said.
    """

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float | None:
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        return None if self.half is None else self.mean + self.half


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of *values*, of which there is at least one, with its interval.

    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, round(found.half or 0, 3), found.n
    (2.0, 2.484, 3)
    """
    n = len(values)
    half = None
    if n > 1:
        half = quantile(n - 1) * statistics.stdev(values) / n**0.5
    return Estimate(statistics.fmean(values), half, n)


def difference(theirs: Sequence[float], ours: Sequence[float]) -> Estimate:
    """Return by how much *ours* are more than *theirs*, in pairs."""
    return estimate([b - a for a, b in zip(theirs, ours, strict=True)])


def percent(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the same in percent: (mean, low, high); None where a value is not above 0.

    The mean is the geometric mean of the ratios. An arithmetic mean would favour the side that is
    in the numerator, because the spread is wide. A single pair has no interval: low and high are
    infinite.

    >>> [round(value, 1) for value in percent([1.0, 4.0, 2.0], [0.5, 2.1, 1.0]) or ()]
    [-49.2, -52.6, -45.5]
    """
    if min(*theirs, *ours) <= 0:
        return None
    found = estimate([math.log(b / a) for a, b in zip(theirs, ours, strict=True)])
    if found.half is None:
        return 100 * (math.exp(found.mean) - 1), -math.inf, math.inf
    low, mean, high = (100 * (math.exp(found.mean + side * found.half) - 1) for side in (-1, 0, 1))
    return mean, low, high
