"""Service times of disks: pure arithmetic, without clock, I/O or waiting.

An operation is a *positioning* (command, seek, rotation, flash access) followed by a *transfer*.
Operations are served in order of arrival. Each is positioned on the channel that is free first;
transfers share one path:

    channel 0  |--position A--|=A=|--position D--|        |=D=|
    channel 1  |--position B--|   |=B=|
    channel 2  |--position C--|       |=C=|                          = is the shared path

So a disk with one channel is a FIFO queue, unless its *order* lets it choose (model.py). A
write cache (*cache_mb*) takes writes at once and writes them to the medium in its own order
(model.py). A flash drive that collects garbage stalls for *stall_ms* after every
*stall_each_mb* written, all channels at once.

The seek time depends on the distance d between head and target on a member of S bytes:
``min + (max - min) * sqrt(d / S)``. For random pairs of places the mean of sqrt(d / S) is 8/15,
which gives *max* from the mean in data sheets. An operation that begins where the last one ended
needs neither seek nor rotation. A short gap ahead is passed over at transfer speed if that is
faster than a seek.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from math import sqrt

from raidx_fuse.errors import UsageError

_MEAN_ROOT_OF_DISTANCE = 8 / 15
_MB = 1e6


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """The parameters of one kind of device; a member's specification can override each by name.

    * *seek_ms*: mean over random places; *settle_ms*: the shortest seek; *write_settle_ms*: added
      for writes.
    * *rpm*: 0 for devices without rotation; *rotation*: "random" (uniform) or "mean" (half).
    * *read_access_ms*, *write_access_ms*: the fixed part of each operation.
    * *read_mb_s*, *write_mb_s*: transfer rates in 10^6 bytes a second, 0 for no limit.
    * *channels*: how many operations are positioned concurrently.
    * *flush_ms*: the time of a cache flush after writes.
    * *order*: "fifo"; "ncq" (of *queue_depth* waiting operations that with the shortest
      positioning); "cscan" (the next one upwards, then from the lowest again).
    * *cache_mb*: size of a write cache, 0 for none; in 10^6 bytes, like *stall_each_mb*.
    """

    name: str
    seek_ms: float = 0.0
    settle_ms: float = 0.0
    write_settle_ms: float = 0.0
    rpm: float = 0.0
    read_access_ms: float = 0.0
    write_access_ms: float = 0.0
    read_mb_s: float = 0.0
    write_mb_s: float = 0.0
    channels: int = 1
    flush_ms: float = 0.0
    rotation: str = "random"
    order: str = "fifo"
    queue_depth: int = 32
    cache_mb: float = 0.0
    stall_ms: float = 0.0
    stall_each_mb: float = 0.0

    @property
    def depth(self) -> int:
        """How many operations the device takes at a time: more than it serves, if it chooses."""
        if self.order != "fifo" or self.cache_mb:
            return max(self.channels, self.queue_depth)
        return self.channels

    @property
    def immediate(self) -> bool:
        slow = (self.seek_ms, self.settle_ms, self.write_settle_ms, self.rpm, self.flush_ms)
        slower = (self.read_access_ms, self.write_access_ms, self.read_mb_s, self.write_mb_s)
        return not any(slow + slower)


WORDS = {"rotation": ("random", "mean"), "order": ("fifo", "ncq", "cscan")}
COUNTS = ("channels", "queue_depth")

# Data-sheet figures of typical drives: 7200 rpm SATA 3.5 inch; 10k SAS 2.5 inch; SATA TLC; PCIe 4.
# In order: seek, settle, write settle in ms; rpm; read and write access in ms; read and write in
# MB/s; channels; flush in ms.
PRESETS: dict[str, ServiceModel] = {
    model.name: model
    for model in (
        ServiceModel("hdd", 8.5, 0.8, 0.5, 7200, 0.1, 0.1, 180, 180, 1, 4.0),
        ServiceModel("sas10k", 3.8, 0.3, 0.4, 10000, 0.05, 0.05, 220, 220, 1, 3.0),
        ServiceModel("ssd", 0.0, 0.0, 0.0, 0, 0.09, 0.06, 540, 500, 8, 0.5),
        ServiceModel("nvme", 0.0, 0.0, 0.0, 0, 0.07, 0.02, 5000, 3500, 32, 0.05),
        ServiceModel("ram", channels=64),
    )
}


def make_model(name: str, /, **numbers: str) -> ServiceModel:
    """Return the preset *name* with the parameters in *numbers* replaced. Raises UsageError."""
    if name not in PRESETS:
        raise UsageError(f"no disk model {name!r}", action=f"choose from {', '.join(PRESETS)}")
    model = PRESETS[name]
    known = {field.name: field.type for field in fields(model) if field.name != "name"}
    changes: dict[str, float | int | str] = {}
    for key, text in numbers.items():
        if key not in known:
            raise UsageError(f"no model number {key!r}", action=f"choose from {', '.join(known)}")
        if key in WORDS:
            if text not in WORDS[key]:
                raise UsageError(f"{key} is {' or '.join(map(repr, WORDS[key]))}, not {text!r}")
            changes[key] = text
            continue
        try:
            value = int(text) if key in COUNTS else float(text)
        except ValueError:
            raise UsageError(f"{key}={text}: not a number") from None
        if not 0 <= value < 1e9 or (key in COUNTS and not 1 <= value <= 1024):
            raise UsageError(f"{key}={text}: out of range")
        changes[key] = value
    made: ServiceModel = replace(model, **changes)  # type: ignore[arg-type]
    if bool(made.stall_ms) != bool(made.stall_each_mb):
        raise UsageError("stall_ms and stall_each_mb only have a meaning together")
    if made.cache_mb and made.order == "ncq":
        raise UsageError("cache_mb: a write cache goes with order=fifo or cscan")
    return made


class ServiceQueue:
    """The state of one device: when each channel and the path become free, and the head position.

    Times are in seconds on any one clock of the caller. Deterministic by *seed*.
    """

    def __init__(self, model: ServiceModel, size_bytes: int, *, seed: int = 0) -> None:
        self.model = model
        self._random = random.Random(seed)
        self._channels = [0.0] * model.channels
        self._path_free_s = 0.0
        self._last_end_s = 0.0
        self.head_bytes = 0
        self._unflushed = False
        self._turn_s = 60.0 / model.rpm if model.rpm else 0.0
        self._settle_s = model.settle_ms / 1e3
        span_ms = max(0.0, model.seek_ms - model.settle_ms) / _MEAN_ROOT_OF_DISTANCE
        self._seek_span_s = span_ms / 1e3 / sqrt(max(1, size_bytes))
        self._mechanical = bool(model.seek_ms or model.rpm)
        self._access_s = (model.read_access_ms / 1e3, model.write_access_ms / 1e3)
        self._byte_s = tuple(
            1 / (rate * _MB) if rate else 0.0 for rate in (model.read_mb_s, model.write_mb_s)
        )
        self._stall_bytes = model.stall_each_mb * _MB
        # Where in its cycle the device is: without this, all members of an array would stall at
        # once.
        self._until_stall_bytes = self._stall_bytes and self._random.random() * self._stall_bytes

    def submit(
        self,
        now_s: float,
        is_write: bool,
        offset_bytes: int,
        length_bytes: int,
        position_s: float | None = None,
    ) -> float:
        """Accept an operation that arrives at *now_s*; return the time when it completes.

        *position_s*: how long positioning takes, if the caller has drawn it already.
        """
        channels = self._channels
        channel = 0
        if len(channels) > 1:
            channel = channels.index(min(channels))
        start_s = max(now_s, channels[channel])
        ready_s = start_s + self._access_s[is_write]
        if self._mechanical:
            if position_s is None:
                position_s = self.positioning_s(is_write, offset_bytes)
            ready_s += position_s
            self.head_bytes = offset_bytes + length_bytes
        end_s = max(ready_s, self._path_free_s) + length_bytes * self._byte_s[is_write]
        channels[channel] = self._path_free_s = end_s
        if end_s > self._last_end_s:
            self._last_end_s = end_s
        self._unflushed |= is_write
        if is_write and self._stall_bytes:
            self._until_stall_bytes -= length_bytes
            if self._until_stall_bytes <= 0:
                self._until_stall_bytes += self._stall_bytes
                self._stall(end_s)
        return end_s

    def _stall(self, from_s: float) -> None:
        """Let nothing begin for *stall_ms* after *from_s*."""
        until_s = from_s + self.model.stall_ms / 1e3
        self._channels = [max(until_s, free_s) for free_s in self._channels]
        self._path_free_s = max(until_s, self._path_free_s)

    def free_s(self) -> float:
        return min(self._channels)

    def flush(self, now_s: float) -> float:
        """Accept a flush; return the time when it completes.

        It completes after all earlier operations; if there were writes, later ones wait for it.
        """
        end_s = max(now_s, self._last_end_s)
        if self._unflushed:
            self._unflushed = False
            end_s += self.model.flush_ms / 1e3
            self._channels = [end_s] * len(self._channels)
            self._last_end_s = end_s
        return end_s

    def positioning_s(self, is_write: bool, offset_bytes: int) -> float:
        """Return what positioning would take now, with a rotation that is drawn anew."""
        if not self._mechanical:
            return 0.0
        gap_bytes = offset_bytes - self.head_bytes
        if gap_bytes == 0:
            return 0.0
        seek_s = self._settle_s + self._seek_span_s * sqrt(abs(gap_bytes))
        if is_write:
            seek_s += self.model.write_settle_ms / 1e3
        share = 0.5 if self.model.rotation == "mean" else self._random.random()
        move_s = seek_s + share * self._turn_s
        pass_over_s = gap_bytes * self._byte_s[is_write]
        return min(move_s, pass_over_s) if pass_over_s > 0 else move_s
