"""Statistics of an interval: the difference of two snapshots, percentiles included.

Counters are subtracted, means and percentiles come from the difference of the histograms, averages
over time (queue length, utilisation) from the difference of their areas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raidx_fuse.status import bpu_ratios
from raidx_fuse.store.latency import Latency

if TYPE_CHECKING:
    from raidx_fuse.array import Array

OVER_TIME = ("queue_mean", "utilisation")  # averages: multiplied by the seconds, they add up
AS_NOW = (
    *("role", "path", "queue_now", "mean_queue_s", "mean_skew_s", "thresholds", "of_time"),
    *("size", "used"),
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The statistics of one moment and the histograms behind them; *members* is by path."""

    stats: dict[str, Any]
    latency: Latency
    members: dict[str, tuple[Latency, Latency]]


def snapshot(array: Array) -> Snapshot:
    """Return what has been counted so far."""
    queues = [queue for queue in array.store.queues if queue is not None]
    return Snapshot(
        array.stats(),
        _copy(array.core.latency),
        {q.member.path: (_copy(q.read_latency), _copy(q.write_latency)) for q in queues},
    )


def difference(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return the statistics of the time between two snapshots, shaped like those since the start.

    A member that joined in between counts from its first operation.
    """
    start_s, end_s = before.stats["interval_seconds"], after.stats["interval_seconds"]
    known = {member["path"]: member for member in before.stats["members"]}
    members = []
    for member in after.stats["members"]:
        path = member["path"]
        row = _subtract(known.get(path, {}), member, start_s, end_s)
        for index, word in enumerate(("read", "write")):
            old = before.members.get(path)
            summary = minus(after.members[path][index], old[index] if old else Latency()).summary()
            row |= {f"{word}_ms_mean": summary["mean"], f"{word}_ms_p99": summary["p99"]}
        members.append(row)
    totals = _subtract(before.stats["array"], after.stats["array"], start_s, end_s)
    totals["latency_ms"] = minus(after.latency, before.latency).summary()
    if totals["bpu"] is not None:
        totals["bpu"] |= bpu_ratios(totals["bpu"])
    return {"interval_seconds": end_s - start_s, "members": members, "array": totals}


def minus(after: Latency, before: Latency) -> Latency:
    """Return what *after* counted beyond *before*."""
    result = Latency()
    result.count = after.count - before.count
    result.total_s = after.total_s - before.total_s
    result.histogram = [a - b for a, b in zip(after.histogram, before.histogram, strict=True)]
    return result


def _copy(latency: Latency) -> Latency:
    return minus(latency, Latency())


def _subtract(
    before: dict[str, Any], after: dict[str, Any], start_s: float, end_s: float
) -> dict[str, Any]:
    row = dict(after)
    for name, value in after.items():
        if name not in AS_NOW and isinstance(value, dict):
            row[name] = _subtract(before.get(name) or {}, value, start_s, end_s)
        if name in AS_NOW or not isinstance(value, int | float):
            continue
        old = before.get(name, 0)
        if name in OVER_TIME:
            row[name] = (value * end_s - old * start_s) / max(end_s - start_s, 1e-9)
        else:
            row[name] = value - old
    return row
