"""Statistics: the counters of an array as `stats` shows them, since the start or of an interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from raidx_fuse.array.services import RunningArray
from raidx_fuse.array.settings import value_of
from raidx_fuse.layouts.numbers import by_role
from raidx_fuse.settings import POLICY
from raidx_fuse.store.latency import Latency

if TYPE_CHECKING:
    from raidx_fuse.documents import (
        ArrayCounters,
        Bpu,
        BpuCounts,
        BpuRatios,
        Cache,
        Counters,
        HotChunk,
        MemberCounters,
    )

HOTTEST_SHOWN = 10


def bpu_ratios(counts: BpuCounts) -> BpuRatios:
    seconds = counts["seconds"]
    whole_s = sum(seconds.values()) or 1.0
    decisions = sum(counts["decisions"].values())
    return {
        "of_time": {state: value / whole_s for state, value in seconds.items()},
        "touched_longest_ratio": counts["touched_longest"] / (counts["queued"] or 1),
        "extra_pre_reads_ratio": counts["extra_pre_reads"] / (counts["pre_reads_least"] or 1),
        "against_ratio": counts["against_pre_reads"] / (decisions or 1),
    }


def _bpu(array: RunningArray) -> Bpu | None:
    """Return the counters and ratios of BPU; None while another policy is in use."""
    context = array.context
    if context.policies.current is not context.policies.bpu:
        return None
    counts = context.policies.bpu.report()
    return {**counts, **bpu_ratios(counts)}


def stats(array: RunningArray) -> ArrayCounters:
    """Return the counters of a running array since its start."""
    member_set, context = array.member_set, array.context
    now = member_set.clock()
    elapsed = max(now - array.started_s, 1e-9)
    members: list[MemberCounters] = []
    for role, queue in by_role(member_set.queues):
        if queue is None:
            continue
        reading, writing = queue.read_latency, queue.write_latency
        members.append(
            {
                "role": role,
                "path": queue.member.path,
                "reads": queue.reads,
                "writes": queue.writes,
                "flushes": queue.flushes,
                "read_bytes": queue.read_bytes,
                "write_bytes": queue.write_bytes,
                "queue_mean": queue.queue_area / elapsed,
                "queue_now": queue.queue_length(),
                "utilisation": min(1.0, queue.busy_s / elapsed),
                "read_ms_mean": reading.summary()["mean"],
                "read_ms_p99": reading.summary()["p99"],
                "write_ms_mean": writing.summary()["mean"],
                "write_ms_p99": writing.summary()["p99"],
                "errors": queue.errors,
            }
        )
    counters = context.traffic
    return {
        "interval_seconds": elapsed,
        "members": members,
        "array": {
            "reads": counters.reads,
            "writes": counters.writes,
            "read_bytes": counters.read_bytes,
            "write_bytes": counters.write_bytes,
            "flushes": counters.flushes,
            "latency_ms": context.traffic.latency.summary(),
            "pre_reads": counters.pre_reads,
            "rmw": counters.rmw,
            "rcw": counters.rcw,
            "full_stripe": counters.full_stripe,
            "degraded_reads": counters.degraded_reads,
            "chunks_moved": counters.chunks_moved,
            "cache": _cache(array),
            "hottest": _hottest(array),
            "parity_policy": value_of(array, POLICY),
            "bpu": _bpu(array),
            "lost_image_offsets": [c * context.chunk_bytes for c in context.bad_chunks.first(1000)],
        },
    }


def _cache(array: RunningArray) -> Cache:
    """Return the counters of the chunk cache: hits, misses, and pre-reads saved."""
    cache, counters = array.context.cache, array.context.traffic
    return {
        "size": 0 if cache is None else cache.size_bytes,
        "used": 0 if cache is None else cache.used_bytes,
        "hits": counters.cache_hits,
        "misses": counters.cache_misses,
        "pre_reads_spared": counters.cache_pre_reads,
    }


def _hottest(array: RunningArray) -> list[HotChunk]:
    """Return the most used chunks; empty for a layout without a chunk table."""
    context = array.context
    found: list[HotChunk] = []
    heat = context.traffic.heat
    for chunk, seconds in [] if heat is None else heat.hottest(HOTTEST_SHOWN):
        role, _ = context.layout.place(*context.layout.locate(chunk))
        found.append(
            {"image_offset": chunk * context.chunk_bytes, "interval_seconds": seconds, "role": role}
        )
    return found


# Statistics of an interval: the difference of two snapshots, percentiles included.
#
# Counters are subtracted. Means and percentiles come from the difference of the histograms.
# Averages over time (queue length, utilisation) come from the difference of value times seconds.

OVER_TIME = ("queue_mean", "utilisation")  # averages over time: they add up times the seconds

AS_NOW = (
    *("role", "path", "queue_now", "mean_queue_s", "mean_skew_s", "thresholds", "of_time"),
    *("size", "used"),
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The statistics of one moment and the histograms behind them; *members* is keyed by path."""

    stats: ArrayCounters
    latency: Latency
    members: dict[str, tuple[Latency, Latency]]


def snapshot(array: RunningArray) -> Snapshot:
    """Return the statistics and histograms so far."""
    queues = [queue for queue in array.member_set.queues if queue is not None]
    return Snapshot(
        stats(array),
        _copy(array.context.traffic.latency),
        {q.member.path: (_copy(q.read_latency), _copy(q.write_latency)) for q in queues},
    )


def difference(before: Snapshot, after: Snapshot) -> ArrayCounters:
    """Return the statistics between two snapshots, in the form of `stats`.

    A member that was attached in between counts from its first operation.
    """
    start_s, end_s = before.stats["interval_seconds"], after.stats["interval_seconds"]
    known = {member["path"]: member for member in before.stats["members"]}
    members: list[MemberCounters] = []
    for member in after.stats["members"]:
        path = str(member["path"])
        row = _subtract(known.get(path, {}), member, start_s, end_s)
        for index, word in enumerate(("read", "write")):
            old = before.members.get(path)
            summary = minus(after.members[path][index], old[index] if old else Latency()).summary()
            row |= {f"{word}_ms_mean": summary["mean"], f"{word}_ms_p99": summary["p99"]}
        members.append(cast("MemberCounters", row))
    totals = _subtract(before.stats["array"], after.stats["array"], start_s, end_s)
    totals["latency_ms"] = minus(after.latency, before.latency).summary()
    if totals["bpu"] is not None:
        totals["bpu"] |= bpu_ratios(totals["bpu"])
    array = cast("Counters", totals)
    return {"interval_seconds": end_s - start_s, "members": members, "array": array}


def minus(after: Latency, before: Latency) -> Latency:
    """Return the latencies that *after* has counted since *before*."""
    result = Latency()
    result.count = after.count - before.count
    result.total_s = after.total_s - before.total_s
    result.histogram = [a - b for a, b in zip(after.histogram, before.histogram, strict=True)]
    return result


def _copy(latency: Latency) -> Latency:
    return minus(latency, Latency())


def _subtract(
    before: Mapping[str, Any], after: Mapping[str, Any], start_s: float, end_s: float
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
