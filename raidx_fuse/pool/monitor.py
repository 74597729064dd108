"""What the pool has seen of its arrays and volumes: a bounded history, and hotspots in it.

Every interval (10 s) the pool notes an observation of each array: the utilisation by Eq. 5, the
utilisation as measured by the busy time of the members, and the mean latency of requests; and of
each volume: rates and mean sizes of its requests. A history keeps the newest *length* of them.

An array is a hotspot if more than *share* (75 %) of the observations of the *window* violate the
threshold: utilisation above *tau*, or, where it is set, latency above *latency_s*. Fewer
observations than a window are no hotspot: a pool that was just mounted moves nothing.

Pure: counters and times are given. `to_bytes` and `from_bytes` carry a history over a remount; the
times of its observations are seconds of any clock that does not go back, and the gap of the remount
is not bridged: `Monitor.restart` begins the next interval.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from raidx_fuse.errors import FormatError
from raidx_fuse.pool.balance.system import TAU, Floats
from raidx_fuse.pool.balance.utilisation import VolumeLoad

INTERVAL_S = 10.0
LENGTH = 360  # observations: an hour of intervals
VERSION = 1
_BYTES_MAX = 64 << 20


class Observation(NamedTuple):
    """An array over one interval that ended at *at_s*; unknown values are 0."""

    at_s: float
    estimated: float  # utilisation by Eq. 5
    measured: float  # utilisation by busy time
    latency_s: float  # mean of the requests


class VolumeCounters(NamedTuple):
    """Requests and bytes of a volume since it was opened."""

    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HotspotRule:
    """When an array is a hotspot; see the module. *latency_s* 0: latency does not count."""

    tau: float = TAU
    share: float = 0.75
    window: int = 10
    latency_s: float = 0.0


class History:
    """The newest *length* rows of *width* numbers, as a ring."""

    def __init__(self, width: int, length: int = LENGTH) -> None:
        self._rows = np.zeros((length, width))
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._rows))

    def add(self, row: Iterable[float]) -> None:
        """Note *row*; the oldest is forgotten if the history is full."""
        self._rows[self._count % len(self._rows)] = tuple(row)
        self._count += 1

    def newest(self, count: int) -> Floats:
        """Return the newest *count* rows, or all if there are fewer, the oldest of them first."""
        count = min(count, len(self))
        places = np.arange(self._count - count, self._count) % len(self._rows)
        return np.asarray(self._rows[places])


def is_hotspot(history: History, rule: HotspotRule) -> bool:
    """Say whether the observations of an array in *history* make it a hotspot by *rule*.

    >>> history = History(4)
    >>> for utilisation in (0.9, 0.9, 0.7, 0.9, 0.9):
    ...     history.add((0.0, utilisation, 0.0, 0.0))
    >>> is_hotspot(history, HotspotRule(window=5)), is_hotspot(history, HotspotRule(window=4))
    (True, False)
    """
    return violated_share(history, rule) > rule.share


def violated_share(history: History, rule: HotspotRule) -> float:
    """Return the share of the window's observations that violate *rule*; 0.0: too few of them."""
    rows = history.newest(rule.window)
    if len(rows) < rule.window:
        return 0.0
    hot = rows[:, 1] > rule.tau
    if rule.latency_s:
        hot |= rows[:, 3] > rule.latency_s
    return float(hot.mean())


def load_between(before: VolumeCounters, after: VolumeCounters, seconds: float) -> VolumeLoad:
    """Return rates and mean sizes of the requests between two readings of the counters."""
    reads, writes = after.reads - before.reads, after.writes - before.writes
    return VolumeLoad(
        reads / seconds,
        writes / seconds,
        (after.read_bytes - before.read_bytes) / reads if reads else 0.0,
        (after.write_bytes - before.write_bytes) / writes if writes else 0.0,
    )


@dataclass
class Monitor:
    """Histories of arrays and volumes by UUID (any text that names them for good)."""

    length: int = LENGTH
    arrays: dict[str, History] = field(default_factory=dict)
    volumes: dict[str, History] = field(default_factory=dict)
    _last: dict[str, VolumeCounters] = field(default_factory=dict)
    _last_s: float | None = None

    def restart(self) -> None:
        """Forget the last reading of the counters: they begin anew."""
        self._last, self._last_s = {}, None

    def note_volumes(
        self, now_s: float, counters: Mapping[str, VolumeCounters]
    ) -> dict[str, VolumeLoad]:
        """Note the *counters* of all volumes at *now_s*; return their loads since the last time.

        The first reading, and the first of a volume, gives no load. Volumes that are not in
        *counters* any more are forgotten.
        """
        loads: dict[str, VolumeLoad] = {}
        seconds = now_s - self._last_s if self._last_s is not None else 0.0
        for name, after in counters.items():
            before = self._last.get(name)
            if before is not None and seconds > 0:
                load = load_between(before, after, seconds)
                row = (now_s, load.reads_s, load.writes_s, load.read_bytes, load.write_bytes)
                self.volumes.setdefault(name, History(5, self.length)).add(row)
                loads[name] = load
        for name in self.volumes.keys() - counters.keys():
            del self.volumes[name]
        self._last, self._last_s = dict(counters), now_s
        return loads

    def note_array(self, name: str, observation: Observation) -> None:
        """Note what was seen of an array over the last interval."""
        self.arrays.setdefault(name, History(4, self.length)).add(observation)

    def hotspots(self, rules: Mapping[str, HotspotRule]) -> list[str]:
        """Return the arrays that are hotspots, in the order of *rules*."""
        return [
            name
            for name, rule in rules.items()
            if name in self.arrays and is_hotspot(self.arrays[name], rule)
        ]

    def mean_load(self, volume: str, window: int) -> VolumeLoad:
        """Return the load of *volume* over its newest *window* observations; sizes by request."""
        history = self.volumes.get(volume)
        if history is None:
            return VolumeLoad()
        rows = history.newest(window)
        reads, writes = rows[:, 1], rows[:, 2]
        return VolumeLoad(
            float(reads.mean()),
            float(writes.mean()),
            float((reads * rows[:, 3]).sum() / (reads.sum() or 1.0)),
            float((writes * rows[:, 4]).sum() / (writes.sum() or 1.0)),
        )

    def to_bytes(self) -> bytes:
        """Return the histories as JSON, without the last reading of the counters."""
        return json.dumps(
            {
                "version": VERSION,
                "length": self.length,
                "arrays": _rows_of(self.arrays),
                "volumes": _rows_of(self.volumes),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Monitor:
        """Return a monitor with the histories of `to_bytes`. Raises FormatError for other bytes."""
        try:
            if len(data) > _BYTES_MAX:
                raise ValueError("too long")
            document = json.loads(data)
            if document["version"] != VERSION:
                raise ValueError(f"version {document['version']}")
            length = int(document["length"])
            if not 0 < length <= 1 << 20:
                raise ValueError(f"length {length}")
            return cls(
                length,
                _histories(document["arrays"], 4, length),
                _histories(document["volumes"], 5, length),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"the pool's history cannot be read: {error}") from None


def _rows_of(histories: Mapping[str, History]) -> dict[str, list[list[float]]]:
    return {
        name: [[float(f"{value:.9g}") for value in row] for row in history.newest(len(history))]
        for name, history in histories.items()
    }


def _histories(saved: Any, width: int, length: int) -> dict[str, History]:
    found = {}
    for name, rows in saved.items():
        history = found[name] = History(width, length)
        for row in rows:
            if len(row) != width or not np.isfinite(np.array(row, dtype=np.float64)).all():
                raise ValueError(f"a row of {name} is not {width} numbers")
            history.add(row)
    return found
