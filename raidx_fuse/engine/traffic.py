"""What users ask of an array: counters, latencies, when they asked last, and for which chunks.

Jobs are slow while users ask (`Job._pay` in jobs/job.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raidx_fuse.engine.access_stats import AccessCounter, AccessStats, PlaceHeat
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.store.latency import TIMED_ALL, TIMED_EACH, Latency


@dataclass(slots=True)
class Traffic:
    """Operations since the start of an array, as plain integers; `stats` reads them.

    *heat* counts the chunks that requests use (None: nothing does). It is *by_chunk* where a
    look-up table places each chunk, else *by_region*. *synchronous* are the requests that did not
    suspend, *last_s* is when the last one ended.

    *past_log* counts the writes past the log, even if only some members have taken one yet. A log
    record may end inside a sector; the checkpoint then keeps the rest of that sector as it is on
    the member. If this rest is itself part of a write past the log that is not durable, a power cut
    may drop the write but keep the record: half of each, a content that was never written. So a
    record that covers part of a sector waits for a flush while there are any (`may_tear`).
    """

    clock: Callable[[], float]
    by_chunk: AccessStats | None
    by_region: PlaceHeat | None
    heat: AccessCounter | None = field(init=False)
    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    pre_reads: int = 0
    rmw: int = 0
    rcw: int = 0
    full_stripe: int = 0
    degraded_reads: int = 0
    chunks_moved: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_pre_reads: int = 0
    flushes: int = 0
    synchronous: int = 0
    last_s: float = -1e9
    latency: Latency = field(default_factory=Latency)
    past_log: int = 0
    _flushing: int = 0  # of *past_log*: those that the flush under way covers
    _covered: int = 0  # those that a flush has covered

    def __post_init__(self) -> None:
        self.heat = self.by_region if self.by_chunk is None else self.by_chunk

    def flush_begins(self) -> None:
        self._flushing = self.past_log

    def flush_ends(self) -> None:
        self._covered = self._flushing

    def may_tear(self, offset: int, length: int) -> bool:
        """Return True if a record of these bytes could leave a torn sector after a power cut."""
        return bool((offset | length) % SECTOR_BYTES) and self.past_log != self._covered

    def idle_s(self) -> float:
        """Return for how long no request has ended."""
        return self.clock() - self.last_s

    def count_flush(self) -> None:
        self.flushes += 1

    def count_moved(self, chunks: int) -> None:
        self.chunks_moved += chunks

    def count_plan(self, kind: str, pre_reads: int, times: int = 1) -> None:
        """Count the writes of stripes by the *kind* of their plan (rmw, rcw or full stripe)."""
        self.pre_reads += pre_reads * times
        if kind == "rmw":
            self.rmw += times
        elif kind == "rcw":
            self.rcw += times
        else:
            self.full_stripe += times

    def count_synchronous(self, started_s: float) -> None:
        """Count a request that ended without suspending (sampled: store/latency.py)."""
        self.last_s = started_s
        number = self.synchronous = self.synchronous + 1
        if number <= TIMED_ALL:
            self.latency.add(self.clock() - started_s)
        elif not number % TIMED_EACH:
            self.latency.add_many(self.clock() - started_s, TIMED_EACH)

    def count_suspended(self, started_s: float) -> None:
        """Count a request that may have suspended, and add its latency."""
        now = self.last_s = self.clock()
        self.latency.add(now - started_s)
