"""What an array says of itself: `status` and `stats` as INTERFACE.md fixes them, plus more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raidx_fuse.format.shapes import RESTRIPE

if TYPE_CHECKING:
    from raidx_fuse.array import Array

HOTTEST_SHOWN = 10


def redundancy_left(array: Array) -> int:
    """Return how many more members, whichever they are, may be lost without losing data.

    None while stripes await their resync after a crash without a log, unless they are copies: what
    was flushed lies beside what was in flight (jobs/resync.py).
    """
    store, core = array.store, array.core
    if core.dirty.unlogged and core.dirty.pending_regions() and not core.code.is_copies:
        return 0
    left = array.core.code.tolerance - len(store.lost)
    return max(left, 0)


def state(array: Array) -> str:
    """Return one word: clean, growing, restriping, evacuating, resyncing, rebuilding, restoring,
    degraded or failed.
    """
    store = array.store
    if store.lost and not store.tolerates(store.lost):
        return "failed"
    kinds = {job.kind for job in array.jobs.running()}
    if "rebuild" in kinds:
        return "rebuilding"
    if store.lost:
        return "restoring" if "restore" in kinds else "degraded"
    if "resync" in kinds:
        return "resyncing"
    if RESTRIPE in store.config.params:
        return "restriping"
    if "evacuate" in kinds:
        return "evacuating"
    growing = array.core.growth is not None or "grow" in kinds
    return "growing" if growing else "clean"


def _action(array: Array, word: str) -> str | None:
    if array.core.bad_chunks:
        return (
            f"the content of {array.core.bad_chunks.count()} chunks was lost: restore the files "
            "that lie there from a copy (`stats` lists the image offsets)"
        )
    if word == "failed":
        return "too many members are lost: attach them again and mount anew"
    if word == "degraded":
        lost = sorted(array.store.lost)
        return (
            f"role {lost[0]} is lost: put a new member in its place with "
            f"`raidx replace-disk ARRAY {lost[0]} NEW`"
        )
    return None


def status(array: Array) -> dict[str, Any]:
    """Return the status of a running array."""
    store, config, core = array.store, array.store.config, array.core
    word = state(array)
    members = []
    for record in config.members:
        queue = store.queues[record.role] if record.role >= 0 else None
        members.append(
            {
                "role": record.role,
                "path": array.membership.path_of(record),
                "uuid": record.member_uuid,
                "state": record.state,
                "kind": queue.member.kind if queue else None,
                "size": record.size_bytes,
                "errors": queue.errors if queue else None,
            }
        )
    return {
        "uuid": config.array_uuid,
        "name": config.name,
        "layout": config.layout,
        "layout_parameters": dict(config.params),
        "chunk_size": config.chunk_bytes,
        "size": array.size_bytes,
        "written": min(core.written.count_written() * config.chunk_bytes, array.size_bytes),
        "state": word,
        "redundancy_left": redundancy_left(array),
        "read_only": array.read_only,
        "events": config.events,
        "members": members,
        "jobs": [job.status() for job in array.jobs.running()],
        "volumes": [{"name": config.name, "size": array.size_bytes, "path": None}],
        "lost_chunks": core.bad_chunks.count(),
        "tuner": None if array.tuner is None else array.tuner.status(),
        "restore": None if array.restore is None else array.restore.status(),
        "warnings": list(array.warnings),
        "action": _action(array, word),
    }


def bpu_ratios(counts: dict[str, Any]) -> dict[str, Any]:
    """Return the shares that *counts*, of BPU over any time, come to.

    *of_time* by state; *touched_longest_ratio*, of the decisions that found a queue, those that
    read from the longest (the paper's Fig. 2); *extra_pre_reads_ratio*, to those of `traditional`
    (Fig. 5); *against_ratio*, of all decisions, those against the count of pre-reads.
    """
    seconds = counts["seconds"]
    whole_s = sum(seconds.values()) or 1.0
    decisions = sum(counts["decisions"].values())
    return {
        "of_time": {state: value / whole_s for state, value in seconds.items()},
        "touched_longest_ratio": counts["touched_longest"] / (counts["queued"] or 1),
        "extra_pre_reads_ratio": counts["extra_pre_reads"] / (counts["pre_reads_least"] or 1),
        "against_ratio": counts["against_pre_reads"] / (decisions or 1),
    }


def _bpu(array: Array) -> dict[str, Any] | None:
    """Return what BPU did; None while another policy chooses."""
    core = array.core
    if core.policy is not core.bpu:
        return None
    counts = core.bpu.report()
    return counts | bpu_ratios(counts)


def stats(array: Array) -> dict[str, Any]:
    """Return the counters of a running array since its start."""
    store, core = array.store, array.core
    now = store.clock()
    elapsed = max(now - array.started_s, 1e-9)
    members = []
    for role, queue in enumerate(store.queues):
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
    counters = core.counters
    return {
        "interval_seconds": elapsed,
        "members": members,
        "array": {
            "reads": counters.reads,
            "writes": counters.writes,
            "read_bytes": counters.read_bytes,
            "write_bytes": counters.write_bytes,
            "flushes": counters.flushes,
            "latency_ms": core.latency.summary(),
            "pre_reads": counters.pre_reads,
            "rmw": counters.rmw,
            "rcw": counters.rcw,
            "full_stripe": counters.full_stripe,
            "degraded_reads": counters.degraded_reads,
            "chunks_moved": counters.chunks_moved,
            "cache": _cache(array),
            "hottest": _hottest(array),
            "parity_policy": array.get("parity.policy"),
            "bpu": _bpu(array),
            "lost_image_offsets": [c << core.shift for c in core.bad_chunks.first(1000)],
        },
    }


def _cache(array: Array) -> dict[str, int]:
    """Return what the chunk cache did: reads answered without a member or not, cells spared."""
    cache, counters = array.core.cache, array.core.counters
    return {
        "size": 0 if cache is None else cache.size_bytes,
        "used": 0 if cache is None else cache.used_bytes,
        "hits": counters.cache_hits,
        "misses": counters.cache_misses,
        "pre_reads_spared": counters.cache_pre_reads,
    }


def _hottest(array: Array) -> list[dict[str, Any]]:
    """Return the chunks that are used most; a layout without a table does not know."""
    core = array.core
    if core.access is None:
        return []
    found = []
    for chunk, seconds in core.access.hottest(HOTTEST_SHOWN):
        role, _ = core.layout.place(*core.layout.locate(chunk))
        found.append(
            {"image_offset": chunk << core.shift, "interval_seconds": seconds, "role": role}
        )
    return found
