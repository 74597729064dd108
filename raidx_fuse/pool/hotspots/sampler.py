"""Takes an observation of every array and volume of a running pool, once an interval.

Nothing is counted for it that was not counted before: volumes, queues and arrays have their
counters for `stats`; the sampler reads them and takes differences. A request pays nothing more.

Of an array it notes the utilisation by Eq. 5 (what its users ask of it), the one by busy time
(what its members do, for users, log and jobs), and the mean latency. Members' service times come
from the queues, except in intervals in which a job runs: its long runs of neighbouring chunks need
no seeks, those of users do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from raidx_fuse.array.array import Array
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.balance.utilisation import (
    ArrayShape,
    DiskTimes,
    ServiceTimes,
    utilisation,
    utilisations,
)
from raidx_fuse.pool.hotspots.settings import PoolSettings
from raidx_fuse.pool.monitor import Monitor, Observation, VolumeCounters
from raidx_fuse.store.queue import MemberQueue

if TYPE_CHECKING:
    from raidx_fuse.documents import Load, PoolLoads
    from raidx_fuse.documents import VolumeLoad as VolumeLoadDocument

UNKNOWN = DiskTimes(0.008, 0.0, 1 / 150e6)
"""Of a hard disk; only as long as nothing was measured in the whole pool."""


@dataclass(slots=True)
class _Reading:
    """The counters of an array at *at_s*: of each queue (busy seconds, operations, bytes)."""

    at_s: float
    requests: int
    latency_s: float
    queues: dict[MemberQueue, tuple[float, int, int]]


class Sampler:
    """Reads the counters of *pool* into *monitor*; call `sample` at the end of each interval."""

    def __init__(
        self, pool: Sequence[ArrayVolumes], monitor: Monitor, settings: PoolSettings
    ) -> None:
        self.pool = pool
        self.monitor = monitor
        self.settings = settings
        self._last: dict[str, _Reading] = {}

    def sample(self, now_s: float) -> None:
        """Note what happened since the last call, at *now_s*; the first call only begins."""
        counters = {
            volume.uuid: VolumeCounters(
                volume.reads, volume.writes, volume.read_bytes, volume.write_bytes
            )
            for part in self.pool
            for volume in part.volumes
        }
        loads = self.monitor.note_volumes(now_s, counters)
        readings = {part.array.uuid: _read(part.array, now_s) for part in self.pool}
        measured = {}
        for part in self.pool:
            uuid = part.array.uuid
            before = self._last.get(uuid)
            if before is not None and now_s > before.at_s:
                measured[uuid] = self._measure(part.array, before, readings[uuid])
        for part in self.pool:  # when all are measured: times of one stand for those of others
            uuid = part.array.uuid
            if uuid in measured:
                own = [loads[volume.uuid] for volume in part.volumes if volume.uuid in loads]
                estimated = float(utilisations(self.shape(part.array), own).sum())
                self.monitor.note_array(uuid, Observation(now_s, estimated, *measured[uuid]))
        self._last = readings

    def count_noted(self) -> None:
        """Count the reads that were noted since the last call, so that their list stays short."""
        for part in self.pool:
            for volume in part.volumes:
                volume.count_noted()

    def shape(self, array: Array) -> ArrayShape:
        """Return what Eq. 5 needs of *array*."""
        layout = array.context.layout
        return ArrayShape(
            len(array.member_set.queues), layout.chunk_bytes, layout.code, self.times(array)
        )

    def measured(self, array: Array) -> bool:
        return self._times(array) is not None

    def times(self, array: Array) -> DiskTimes:
        """Return the times of *array*'s members: measured, or the mean of other arrays'."""
        found = self._times(array)
        if found is not None:
            return found
        others = [times for part in self.pool if (times := self._times(part.array))]
        return DiskTimes(*map(_mean, zip(*others, strict=True))) if others else UNKNOWN

    def _times(self, array: Array) -> DiskTimes | None:
        noted = self.monitor.times.get(array.uuid)
        return None if noted is None else noted.disk_times()

    def _measure(self, array: Array, before: _Reading, after: _Reading) -> tuple[float, float]:
        """Return (busy share of the members, mean latency) between two readings."""
        seconds = after.at_s - before.at_s
        shares, busy_s, operations, size_bytes = [], 0.0, 0, 0
        for queue, (busy, done, moved) in after.queues.items():
            was = before.queues.get(queue, (0.0, 0, 0))
            shares.append(min((busy - was[0]) / seconds, 1.0))
            busy_s += busy - was[0]
            operations += done - was[1]
            size_bytes += moved - was[2]
        if not array.jobs.running():
            self.monitor.times.setdefault(array.uuid, ServiceTimes()).note(
                operations, size_bytes, busy_s
            )
        requests = after.requests - before.requests
        latency_s = (after.latency_s - before.latency_s) / requests if requests else 0.0
        return _mean(shares) if shares else 0.0, latency_s

    def arrays(self) -> list[Load]:
        """Return the newest observation of each array as JSON values, and whether it is hot."""
        found: list[Load] = []
        for part in self.pool:
            array, uuid = part.array, part.array.uuid
            history = self.monitor.arrays.get(uuid)
            newest = history.newest(1)[0].tolist() if history else [0.0] * 4
            rule = self.settings.rule_of(array)
            found.append(
                {
                    "array": array.name,
                    "utilisation": newest[1],
                    "busy": newest[2],
                    "latency_ms": newest[3] * 1e3,
                    "tau": rule.tau,
                    "above": self.monitor.violated_share(uuid, rule),
                    "hotspot": self.monitor.is_hotspot(uuid, rule),
                    "observations": len(history) if history else 0,
                }
            )
        return found

    def report(self) -> PoolLoads:
        """Return the newest observations of arrays and volumes as JSON values."""
        volumes: list[VolumeLoadDocument] = []
        for part in self.pool:
            shape = self.shape(part.array)
            for volume in part.volumes:
                load = self.monitor.mean_load(volume.uuid, 1)
                volumes.append(
                    {
                        "volume": volume.name,
                        "array": part.array.name,
                        "reads_per_second": load.reads_s,
                        "writes_per_second": load.writes_s,
                        "mean_read": load.read_bytes,
                        "mean_write": load.write_bytes,
                        "utilisation": utilisation(shape, load),
                    }
                )
        seconds = self.settings.value("hot.interval")
        return {"interval_seconds": seconds, "arrays": self.arrays(), "volumes": volumes}


def _read(array: Array, now_s: float) -> _Reading:
    latency = array.context.traffic.latency
    queues = {
        queue: (queue.busy_s, queue.reads + queue.writes, queue.read_bytes + queue.write_bytes)
        for queue in array.member_set.queues
        if queue is not None
    }
    return _Reading(now_s, latency.count, latency.total_s, queues)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)  # statistics.fmean, without the rest of that module
