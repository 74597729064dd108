"""The model of a pool that a planner works on: arrays, volumes, and which volume is on which array.

In the words of the paper (section 2): n arrays A_j with storage capacity S_j (*capacity*, bytes)
and bandwidth capacity B_j (*bandwidth*), m volumes L_i with size s_i and bandwidth need b_i.

    Eq. 1    sum of s_i on A_j  <=  S_j              hard
    Eq. 2    sum of b_i on A_j  <=  tau_j * B_j      violated: the array is overloaded, a hotspot

The paper's arrays are alike, so that a volume needs the same bandwidth everywhere. Here a need is a
number for each array, because a volume of small writes costs a RAID 6 of disks more than a mirror
of flash. Any unit serves if B_j and the needs on A_j have the same (utilisation.py: requests a
second).

Beside the two equations a move respects rules, which are ours: a volume stays, may go to certain
arrays only, keeps with others (rules.py), or keeps apart from others.

    >>> pool = make_system(
    ...     [ArraySpec("old", 100.0, 40), ArraySpec("new", 100.0, 40)],
    ...     [VolumeSpec("mail", 10, "old", 60.0), VolumeSpec("www", 20, "old", 30.0)],
    ... )
    >>> state = Assignment(pool)
    >>> state.overloaded().tolist(), round(float(state.excess()[0]), 6)
    ([0], 10.0)
    >>> state.fits(0).tolist()
    [False, True]
    >>> state.move(0, 1)
    >>> state.overloaded().tolist(), state.used.tolist()
    ([], [20, 10])
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.errors import UsageError
from raidx_fuse.settings import SETTINGS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TAU: float = SETTINGS["hot.tau"].default
"""Default of the threshold of utilisation (section 6.1)."""

NOWHERE = -1
TOLERANCE = 1e-9
"""Of an array's bandwidth: sums of floats in another order must not look like an overload."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array: *bandwidth* (B_j), *capacity_bytes* for volumes (S_j), *tau*."""

    name: str
    bandwidth: float
    capacity_bytes: int
    tau: float = TAU


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """A volume on *array*; *need* is its bandwidth on each array, or one number for all.

    *stays*: it does not move. *only*: the arrays that it may move to; None: all.
    """

    name: str
    size_bytes: int
    array: str
    need: float | Sequence[float]
    stays: bool = False
    only: Collection[str] | None = None


@dataclass(frozen=True, eq=False)
class System:
    """Arrays 0..n-1 and volumes 0..m-1.

    * *arrays*, *volumes*: names. *bandwidth* (n,), *capacity* (n,) bytes, *tau* (n,).
    * *size* (m,) bytes; *need* (m, n); *where* (m,): the array that the volume is on now.
    * *allowed* (m, n): the arrays that a volume may move to; where it is counts as allowed.
    * *apart*: sets of volumes of which an array takes at most one. Volumes of a set that share an
      array already may stay.
    """

    arrays: tuple[str, ...]
    bandwidth: Floats
    capacity: Ints
    tau: Floats
    volumes: tuple[str, ...]
    size: Ints
    need: Floats
    where: Ints
    allowed: Bools
    apart: tuple[frozenset[int], ...] = ()

    def own_need(self) -> Floats:
        """Return the need of each volume on the array that it is on now, shape (m,)."""
        return self.need[np.arange(len(self.volumes)), self.where]


def make_system(
    arrays: Sequence[ArraySpec],
    volumes: Sequence[VolumeSpec],
    apart: Iterable[Collection[str]] = (),
) -> System:
    """Return the system of *arrays* and *volumes*.

    Raises UsageError for a name that is given twice or unknown, a size or bandwidth that is not
    positive, and a need that is negative.
    """
    array_at = _numbered("array", [array.name for array in arrays])
    volume_at = _numbered("volume", [volume.name for volume in volumes])
    count = len(arrays)
    need = np.empty((len(volumes), count))
    allowed = np.ones((len(volumes), count), dtype=np.bool_)
    where = np.empty(len(volumes), dtype=np.int64)
    for i, volume in enumerate(volumes):
        need[i] = volume.need
        where[i] = _find("array", volume.array, array_at)
        if volume.stays:
            allowed[i] = False
        elif volume.only is not None:
            allowed[i] = False
            allowed[i, [_find("array", name, array_at) for name in volume.only]] = True
        allowed[i, where[i]] = True
        if volume.size_bytes <= 0:
            raise UsageError(f"volume {volume.name} has a size of {volume.size_bytes} bytes")
    if volumes and not (np.isfinite(need).all() and need.min() >= 0):
        raise UsageError("the bandwidth that a volume needs is a number from 0")
    for array in arrays:
        if not (array.bandwidth > 0 and array.capacity_bytes >= 0 and array.tau > 0):
            raise UsageError(
                f"array {array.name}: bandwidth and threshold must be above 0, capacity at least 0"
            )
    return System(
        tuple(array_at),
        np.array([array.bandwidth for array in arrays], dtype=np.float64),
        np.array([array.capacity_bytes for array in arrays], dtype=np.int64),
        np.array([array.tau for array in arrays], dtype=np.float64),
        tuple(volume_at),
        np.array([volume.size_bytes for volume in volumes], dtype=np.int64),
        need,
        where,
        allowed,
        tuple(frozenset(_find("volume", name, volume_at) for name in names) for names in apart),
    )


def _numbered(kind: str, names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        if name in found:
            raise UsageError(f"two {kind}s are called {name}")
        found[name] = len(found)
    return found


def _find(kind: str, name: str, found: Mapping[str, int]) -> int:
    if name not in found:
        raise UsageError(f"there is no {kind} {name}; there are: {', '.join(found) or 'none'}")
    return found[name]


class Assignment:
    """Which array each volume of *system* is on while a planner tries; begins with *where*.

    *array_of* (m,): NOWHERE is no array yet. *load* (n,): bandwidth needed of each array, *used*
    (n,): bytes on each; *limit* (n,): tau_j * B_j, the most bandwidth that may be needed,
    *limit_up* (n,): with the tolerance for rounding.
    """

    def __init__(self, system: System, array_of: Ints | None = None) -> None:
        self.system = system
        self.array_of: Ints = (system.where if array_of is None else array_of).copy()
        count = len(system.arrays)
        needs = system.need[np.arange(len(system.volumes)), self.array_of]
        self.load: Floats = np.bincount(self.array_of, needs, count).astype(np.float64)
        self.used: Ints = np.zeros(count, dtype=np.int64)
        np.add.at(self.used, self.array_of, system.size)
        self.limit = system.tau * system.bandwidth
        self.limit_up = self.limit + TOLERANCE * system.bandwidth
        self._apart_of: dict[int, list[frozenset[int]]] = {}
        for group in system.apart:
            for volume in group:
                self._apart_of.setdefault(volume, []).append(group)

    def excess(self) -> Floats:
        """Return the load above the limit of each array; negative: spare bandwidth. Shape (n,)."""
        return self.load - self.limit

    def spare_bytes(self) -> Ints:
        """Return the free bytes of each array, shape (n,)."""
        return self.system.capacity - self.used

    def is_overloaded(self, array: int) -> bool:
        """Say whether Eq. 2 is violated on *array*."""
        return bool(self.load[array] > self.limit_up[array])

    def overloaded(self) -> Ints:
        """Return the arrays that violate Eq. 2, the greatest overload first."""
        excess = self.excess()
        found = np.flatnonzero(self.load > self.limit_up)
        return found[np.argsort(-excess[found], kind="stable")]

    def on(self, array: int) -> Ints:
        """Return the volumes on *array*, in the order of their numbers."""
        return np.flatnonzero(self.array_of == array)

    def fits(self, volume: int) -> Bools:
        """Return to which arrays *volume* may move, shape (n,): Eqs. 1 and 2 and the rules."""
        system = self.system
        fits = (
            (self.used + system.size[volume] <= system.capacity)
            & (self.load + system.need[volume] <= self.limit_up)
            & system.allowed[volume]
        )
        for array in {int(self.array_of[volume]), *self.kept_apart(volume)} - {NOWHERE}:
            fits[array] = False
        return np.asarray(fits)

    def kept_apart(self, volume: int) -> set[int]:
        """Return the arrays that hold a volume that *volume* is to be kept apart from."""
        return {
            int(self.array_of[other])
            for group in self._apart_of.get(volume, ())
            for other in group
            if other != volume
        }

    def take_off(self, volume: int) -> None:
        """Let *volume* be on no array."""
        source = self.array_of[volume]
        if source != NOWHERE:
            self.load[source] -= self.system.need[volume, source]
            self.used[source] -= self.system.size[volume]
            self.array_of[volume] = NOWHERE

    def move(self, volume: int, array: int) -> None:
        """Move *volume* to *array*; nothing is checked."""
        self.take_off(volume)
        self.load[array] += self.system.need[volume, array]
        self.used[array] += self.system.size[volume]
        self.array_of[volume] = array


def violations(system: System, array_of: Ints) -> list[str]:
    """Return what *array_of* breaks that *system* did not break before, one line each.

    Eq. 1; Eq. 2 of arrays that were not overloaded, and more overload on those that were; the
    rules. Every planner keeps this list empty, also where it does not remove the hotspot.
    """
    before, after = Assignment(system), Assignment(system, array_of)
    found = []
    slack = TOLERANCE * system.bandwidth
    for j, name in enumerate(system.arrays):
        if after.used[j] > max(system.capacity[j], before.used[j]):
            found.append(f"array {name} would hold {after.used[j]} bytes: more than it has")
        if after.load[j] > max(after.limit[j], before.load[j]) + 2 * slack[j]:
            found.append(f"array {name} would be overloaded")
    for i in np.flatnonzero(array_of != system.where).tolist():
        if not system.allowed[i, array_of[i]]:
            found.append(f"volume {system.volumes[i]} may not be on {system.arrays[array_of[i]]}")
        if int(array_of[i]) in after.kept_apart(i):
            found.append(f"volume {system.volumes[i]} would not be kept apart")
    return found
