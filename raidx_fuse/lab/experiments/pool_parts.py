"""What an experiment on several arrays consists of: arrays, volumes on them, and their loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.experiments.events import Event
from raidx_fuse.lab.experiments.modelled import Hardware
from raidx_fuse.lab.loads.request import Load
from raidx_fuse.settings import is_of_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolArray:
    """An array of the pool: its *hardware* and *settings*, its own or the pool's for it."""

    hardware: Hardware
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolVolume:
    """A volume of *size_bytes* on the array with that name."""

    name: str
    array: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeLoad:
    """A load of *volume* from *begin_s* on; *load* and *depth* as in `Experiment`."""

    volume: str
    load: Callable[[int], Load]
    begin_s: float = 0.0
    depth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolExperiment:
    """Several arrays, their volumes and the loads of these; what has no word here: `Experiment`.

    *settings* are those of the pool. *events* name their array, except those that set a setting of
    the pool.
    """

    arrays: Sequence[PoolArray]
    volumes: Sequence[PoolVolume]
    loads: Sequence[VolumeLoad]
    name: str = "experiment"
    settings: Mapping[str, str] = field(default_factory=dict)
    prefilled: bool = True
    verify: bool = False
    section_s: float = 0.0
    events: Sequence[Event] = ()
    seed: int = 0

    def check(self) -> None:
        """Raise UsageError if a part names another one that is not there."""
        arrays = [array.hardware.name for array in self.arrays]
        volumes = [volume.name for volume in self.volumes]
        for kind, names in (("arrays", arrays), ("volumes", volumes)):
            if not names or len(set(names)) != len(names):
                raise UsageError(f"an experiment needs {kind}, and each needs its own name")
        for volume in self.volumes:
            _require("array", volume.array, arrays)
        for load in self.loads:
            _require("volume", load.volume, volumes)
        for event in self.events:
            event.check()
            if event.array or not (event.do == "set" and is_of_pool(event.key)):
                _require("array", event.array, arrays)


def _require(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UsageError(f"there is no {kind} {name!r}", action=f"there is: {', '.join(known)}")
