"""What the pool has seen of its arrays and volumes: a bounded history, and hotspots in it.

Every interval (10 s) the pool notes an observation of each array: the utilisation by Eq. 5, the
utilisation as measured by the busy time of the members, and the mean latency of requests; and of
each volume: rates and mean sizes of its requests. A history keeps the newest *length* of them.

An array is a hotspot if more than *share* (75 %) of the observations of the *window* violate the
threshold: utilisation above *tau*, or, where it is set, latency above *latency_s*. Fewer
observations than a window are no hotspot: a pool that was just created moves nothing. After volumes
have moved, `begin_window` has the observations of before count no longer.

Pure: counters and times are given. `to_bytes` and `from_bytes` carry a history over a remount; the
times of its observations are seconds of any clock that does not go back, `resume_at` shifts them to
the clock of this mount. The gap of the remount is not bridged: the counters begin anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from raidx_fuse.errors import FormatError
from raidx_fuse.pool.balance.system import TAU, Bools, Floats
from raidx_fuse.pool.balance.utilisation import ServiceTimes, VolumeLoad
from raidx_fuse.settings import OBSERVATIONS_MAX, SETTINGS

INTERVAL_S: float = SETTINGS["hot.interval"].default
VERSION = 2
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

    def __init__(self, width: int, length: int = OBSERVATIONS_MAX) -> None:
        self._rows = np.zeros((length, width))
        self._count = 0
        self._window_from = 0

    def __len__(self) -> int:
        return min(self._count, len(self._rows))

    def add(self, row: Iterable[float]) -> None:
        """Note *row*; the oldest is forgotten if the history is full."""
        self._rows[self._count % len(self._rows)] = tuple(row)
        self._count += 1

    def begin_window(self, fresh: int = 0) -> None:
        """Let only observations from now on, and the newest *fresh*, count for hotspots."""
        self._window_from = self._count - min(fresh, len(self))

    def fresh(self) -> int:
        """Return how many of the newest rows count for hotspots."""
        return min(self._count - self._window_from, len(self))

    def shift(self, seconds: float) -> None:
        """Add *seconds* to the first column of every row: its time."""
        self._rows[:, 0] += seconds

    def newest(self, count: int) -> Floats:
        """Return the newest *count* rows, or all if there are fewer, the oldest of them first."""
        count = min(count, len(self))
        places = np.arange(self._count - count, self._count) % len(self._rows)
        return np.asarray(self._rows[places])


def violated_share(history: History, rule: HotspotRule) -> float:
    """Return the share of the window's observations that violate *rule*; 0.0: too few of them.

    >>> history = History(4)
    >>> for utilisation in (0.9, 0.9, 0.7, 0.9, 0.9):
    ...     history.add((0.0, utilisation, 0.0, 0.0))
    >>> [violated_share(history, HotspotRule(window=window)) for window in (5, 4, 6)]
    [0.8, 0.75, 0.0]
    """
    rows = history.newest(min(rule.window, history.fresh()))
    return float(_violations(rows, rule).mean()) if len(rows) == rule.window else 0.0


def _violations(rows: Floats, rule: HotspotRule) -> Bools:
    hot = rows[:, 1] > rule.tau
    if rule.latency_s:
        hot |= rows[:, 3] > rule.latency_s
    return np.asarray(hot)


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
    """Histories of arrays and volumes by UUID (any text that names them for good).

    *times*: what the members of each array need for an operation.
    """

    length: int = OBSERVATIONS_MAX
    arrays: dict[str, History] = field(default_factory=dict)
    volumes: dict[str, History] = field(default_factory=dict)
    times: dict[str, ServiceTimes] = field(default_factory=dict)
    _last: dict[str, VolumeCounters] = field(default_factory=dict)
    _last_s: float | None = None

    def begin_window(self) -> None:
        """Let only observations from now on count for hotspots: volumes have moved."""
        for history in self.arrays.values():
            history.begin_window()

    def resume_at(self, now_s: float) -> None:
        """Shift the histories so that the newest observation was made at *now_s*."""
        histories = (*self.arrays.values(), *self.volumes.values())
        newest = [float(history.newest(1)[0, 0]) for history in histories if len(history)]
        for history in histories:
            history.shift(now_s - max(newest, default=0.0))

    def part(self, array: str, volumes: Iterable[str]) -> Monitor:
        """Return a monitor with the histories of *array* and *volumes* only, which it shares."""
        return Monitor(
            self.length,
            {array: self.arrays[array]} if array in self.arrays else {},
            {name: self.volumes[name] for name in volumes if name in self.volumes},
            {array: self.times[array]} if array in self.times else {},
        )

    def take_over(self, other: Monitor) -> None:
        """Add what *other* knows of arrays and volumes that are unknown here."""
        self.arrays = {**other.arrays, **self.arrays}
        self.volumes = {**other.volumes, **self.volumes}
        self.times = {**other.times, **self.times}

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
                self.volumes.setdefault(name, History(5, self.length)).add((now_s, *load))
                loads[name] = load
        for name in self.volumes.keys() - counters.keys():
            del self.volumes[name]
        self._last, self._last_s = dict(counters), now_s
        return loads

    def note_array(self, name: str, observation: Observation) -> None:
        self.arrays.setdefault(name, History(4, self.length)).add(observation)

    def is_hotspot(self, array: str, rule: HotspotRule) -> bool:
        return self.violated_share(array, rule) > rule.share

    def violated_share(self, array: str, rule: HotspotRule) -> float:
        return violated_share(self.arrays[array], rule) if array in self.arrays else 0.0

    def hot_times(self, array: str, rule: HotspotRule) -> Floats:
        """Return at which times of the window *array* violated *rule*; empty: no hotspot."""
        if not self.is_hotspot(array, rule):
            return np.empty(0)
        rows = self.arrays[array].newest(rule.window)
        return np.asarray(rows[_violations(rows, rule), 0])

    def mean_load(self, volume: str, window: int, times: Floats | None = None) -> VolumeLoad:
        """Return the load of *volume* over its newest *window* observations; sizes by request.

        Of these only the observations at *times* count, unless none of them is at one.
        """
        history = self.volumes.get(volume)
        if history is None:
            return VolumeLoad()
        rows = history.newest(window)
        if times is not None and (chosen := np.isin(rows[:, 0], times)).any():
            rows = rows[chosen]
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
                "fresh": {name: history.fresh() for name, history in self.arrays.items()},
                "volumes": _rows_of(self.volumes),
                "times": {name: times.sums() for name, times in self.times.items()},
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
            found = cls(
                length,
                _histories(document["arrays"], 4, length),
                _histories(document["volumes"], 5, length),
                {name: ServiceTimes(sums) for name, sums in document["times"].items()},
            )
            for name, history in found.arrays.items():
                history.begin_window(int(document["fresh"][name]))
            return found
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
