"""How long a disk takes: the arithmetic of service times, without clock, I/O or waiting.

One operation is a *positioning* (command, seek, rotation, flash access) followed by a *transfer*.
Positionings run on as many channels as the device has, each operation on the channel that is free
first, in order of arrival; transfers share one path:

    channel 0  |--position A--|=A=|--position D--|        |=D=|
    channel 1  |--position B--|   |=B=|
    channel 2  |--position C--|       |=C=|                          = is the shared path

A disk with one channel is then a plain FIFO queue. Seek time follows the distance d between head
and target on a member of S bytes: ``min + (max - min) * sqrt(d / S)``. Over random pairs of places
the mean of sqrt(d / S) is 8/15, so *max* follows from the mean that data sheets print. An operation
that begins where the last one ended neither seeks nor rotates; a short gap ahead is passed over at
transfer speed when that is quicker than seeking.
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
    """The numbers of one kind of device, all overridable by name in a member's spec.

    *seek_ms* is the mean over random places, *settle_ms* the shortest seek, *write_settle_ms* what
    a write waits longer; *rpm* 0 means nothing rotates; *access_ms* the fixed part of every
    operation by direction; *mb_s* the transfer rate (10^6 bytes a second) by direction, 0 for
    without limit; *channels* how many operations position at once; *flush_ms* a cache flush that
    had something to do. *rotation* is "random" (uniform, drawn) or "mean" (always half a turn).
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

    @property
    def immediate(self) -> bool:
        """Whether every operation takes no time at all."""
        slow = (self.seek_ms, self.settle_ms, self.write_settle_ms, self.rpm, self.flush_ms)
        slower = (self.read_access_ms, self.write_access_ms, self.read_mb_s, self.write_mb_s)
        return not any(slow + slower)


# Data-sheet figures of typical drives: 7200 rpm SATA 3.5 inch; 10k SAS 2.5 inch; SATA TLC; PCIe 4.
PRESETS: dict[str, ServiceModel] = {
    model.name: model
    for model in (
        ServiceModel("hdd", 8.5, 0.8, 0.5, 7200, 0.1, 0.1, 180, 180, 1, 4.0),
        ServiceModel("sas10k", 3.8, 0.3, 0.4, 10000, 0.05, 0.05, 220, 220, 1, 3.0),
        ServiceModel(
            "ssd",
            read_access_ms=0.09,
            write_access_ms=0.06,
            read_mb_s=540,
            write_mb_s=500,
            channels=8,
            flush_ms=0.5,
        ),
        ServiceModel(
            "nvme",
            read_access_ms=0.07,
            write_access_ms=0.02,
            read_mb_s=5000,
            write_mb_s=3500,
            channels=32,
            flush_ms=0.05,
        ),
        ServiceModel("ram", channels=64),
    )
}


def make_model(name: str, /, **numbers: str) -> ServiceModel:
    """Return the preset *name* with *numbers* put in by hand. Raises UsageError."""
    if name not in PRESETS:
        raise UsageError(f"no disk model {name!r}", action=f"choose from {', '.join(PRESETS)}")
    model = PRESETS[name]
    known = {field.name: field.type for field in fields(model) if field.name != "name"}
    changes: dict[str, float | int | str] = {}
    for key, text in numbers.items():
        if key not in known:
            raise UsageError(f"no model number {key!r}", action=f"choose from {', '.join(known)}")
        if key == "rotation":
            if text not in ("random", "mean"):
                raise UsageError(f"rotation is 'random' or 'mean', not {text!r}")
            changes[key] = text
            continue
        try:
            value = int(text) if key == "channels" else float(text)
        except ValueError:
            raise UsageError(f"{key}={text}: not a number") from None
        if not 0 <= value < 1e9 or (key == "channels" and not 1 <= value <= 1024):
            raise UsageError(f"{key}={text}: out of range")
        changes[key] = value
    return replace(model, **changes)  # type: ignore[arg-type]


class ServiceQueue:
    """The state of one device: when each channel and the path are free, and where the head is.

    Times are seconds on any clock that the caller keeps to. Deterministic from *seed*.
    """

    def __init__(self, model: ServiceModel, size_bytes: int, *, seed: int = 0) -> None:
        self.model = model
        self._random = random.Random(seed)
        self._channels = [0.0] * model.channels
        self._path_free_s = 0.0
        self._last_end_s = 0.0
        self._head_bytes = 0
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

    def submit(self, now_s: float, is_write: bool, offset_bytes: int, length_bytes: int) -> float:
        """Accept an operation that arrives at *now_s*; return when it is finished."""
        channels = self._channels
        channel = 0
        if len(channels) > 1:
            channel = channels.index(min(channels))
        start_s = max(now_s, channels[channel])
        ready_s = start_s + self._access_s[is_write]
        if self._mechanical:
            ready_s += self._position_s(is_write, offset_bytes)
            self._head_bytes = offset_bytes + length_bytes
        end_s = max(ready_s, self._path_free_s) + length_bytes * self._byte_s[is_write]
        channels[channel] = self._path_free_s = end_s
        if end_s > self._last_end_s:
            self._last_end_s = end_s
        self._unflushed |= is_write
        return end_s

    def flush(self, now_s: float) -> float:
        """Accept a flush: it ends after everything accepted before, and holds up what follows."""
        end_s = max(now_s, self._last_end_s)
        if self._unflushed:
            self._unflushed = False
            end_s += self.model.flush_ms / 1e3
            self._channels = [end_s] * len(self._channels)
            self._last_end_s = end_s
        return end_s

    def _position_s(self, is_write: bool, offset_bytes: int) -> float:
        gap_bytes = offset_bytes - self._head_bytes
        if gap_bytes == 0:
            return 0.0
        seek_s = self._settle_s + self._seek_span_s * sqrt(abs(gap_bytes))
        if is_write:
            seek_s += self.model.write_settle_ms / 1e3
        share = 0.5 if self.model.rotation == "mean" else self._random.random()
        move_s = seek_s + share * self._turn_s
        pass_over_s = gap_bytes * self._byte_s[is_write]
        return min(move_s, pass_over_s) if pass_over_s > 0 else move_s
