"""The planners that the paper compares Dswap with (section 3.1).

    random_packing     volumes in random order, each to a random array where it fits      scratch
    best_fit           the same, to the array that is left with the least free space      scratch
    worst_fit          the same, to the array that is left with the most free space       scratch
    bsr                volumes in decreasing BSR, each to the array of highest spareBSR   scratch
    random_reassign    volumes of overloaded arrays in random order, each to the first array of a
                       random order where it fits, until nothing is overloaded

Those marked scratch begin anew: where a volume is now has no influence, but volumes that must not
move are placed first. The random ones are repeated up to *tries* times until nothing is overloaded
("the process is repeated until a valid assignment is obtained"). If no try succeeds, the plan
leaves everything where it is and is not solved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from raidx_fuse.pool.balance.plan import Plan, make_plan
from raidx_fuse.pool.balance.system import Assignment, Bools, Floats, Ints, System

TRIES = 100

if TYPE_CHECKING:  # numpy loads its random numbers, 3 MB, when they are first named
    Choice = Callable[[Assignment, int, Bools, np.random.Generator], int]
    """(state, volume, arrays where it fits, random numbers) -> the array that it is given to"""


def random_packing(system: System, *, seed: int = 0, tries: int = TRIES) -> Plan:
    """Return a plan of random bin packing."""
    return _pack("random-packing", system, _any, seed, tries)


def best_fit(system: System, *, seed: int = 0, tries: int = TRIES) -> Plan:
    """Return a plan of best-fit bin packing in random order."""
    return _pack("best-fit", system, _least_space, seed, tries)


def worst_fit(system: System, *, seed: int = 0, tries: int = TRIES) -> Plan:
    """Return a plan of worst-fit bin packing in random order."""
    return _pack("worst-fit", system, _most_space, seed, tries)


def bsr(system: System) -> Plan:
    """Return a plan of the BSR-based approach. It uses no chance: one try."""
    rng = np.random.default_rng(0)
    found = _packed(system, np.argsort(-system.bsr(), kind="stable"), _spare_bsr, rng)
    return make_plan("bsr", system, system.where if found is None else found)


def random_reassign(system: System, *, seed: int = 0, tries: int = TRIES) -> Plan:
    """Return a plan of randomized reassignment."""
    rng = np.random.default_rng(seed)
    hot = Assignment(system).overloaded()
    volumes = np.flatnonzero(np.isin(system.where, hot))
    for _ in range(tries if hot.size else 0):
        state = Assignment(system)
        for volume in rng.permutation(volumes).tolist():
            if state.is_overloaded(int(system.where[volume])):
                fits = np.flatnonzero(state.fits(volume))
                if fits.size:
                    state.move(volume, int(rng.choice(fits)))
        if not state.overloaded().size:
            return make_plan("random-reassign", system, state.array_of)
    return make_plan("random-reassign", system, system.where)


def _any(_state: Assignment, _volume: int, fits: Bools, rng: np.random.Generator) -> int:
    return int(rng.choice(np.flatnonzero(fits)))


def _least_space(state: Assignment, _volume: int, fits: Bools, _rng: object) -> int:
    return _best(-state.spare_bytes().astype(np.float64), fits)


def _most_space(state: Assignment, _volume: int, fits: Bools, _rng: object) -> int:
    return _best(state.spare_bytes().astype(np.float64), fits)


def _spare_bsr(state: Assignment, _volume: int, fits: Bools, _rng: object) -> int:
    space = np.maximum(state.spare_bytes(), 1)
    return _best(-state.excess() / space, fits)


def _best(worth: Floats, fits: Bools) -> int:
    return int(np.argmax(np.where(fits, worth, -np.inf)))


def _pack(name: str, system: System, choose: Choice, seed: int, tries: int) -> Plan:
    rng = np.random.default_rng(seed)
    for _ in range(tries):
        found = _packed(system, rng.permutation(len(system.volumes)), choose, rng)
        if found is not None:
            return make_plan(name, system, found)
    return make_plan(name, system, system.where)


def _packed(system: System, order: Ints, choose: Choice, rng: np.random.Generator) -> Ints | None:
    """Return an assignment from scratch in *order*; None if a volume fits nowhere."""
    state = _Empty(system)
    for volume in (order[state.free[order]]).tolist():
        fits = state.fits(volume)
        if not fits.any():
            return None
        state.move(volume, choose(state, volume, fits, rng))
    return None if state.overloaded().size else state.array_of


class _Empty(Assignment):
    """Holds the volumes that must not move; the others are on no array yet (array -1).

    *free* (m,): may the volume move?
    """

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self.free: Bools = system.allowed.sum(axis=1) > 1
        for volume in np.flatnonzero(self.free).tolist():
            j = self.array_of[volume]
            self.load[j] -= system.need[volume, j]
            self.used[j] -= system.size[volume]
        self.array_of[self.free] = -1

    def fits(self, volume: int) -> Bools:
        system = self.system
        fits = (
            (self.used + system.size[volume] <= system.capacity)
            & (self.load + system.need[volume] <= self.limit_up)
            & system.allowed[volume]
        )
        for j in self.kept_apart(volume) - {-1}:
            fits[j] = False
        return np.asarray(fits)

    def move(self, volume: int, array: int) -> None:
        self.load[array] += self.system.need[volume, array]
        self.used[array] += self.system.size[volume]
        self.array_of[volume] = array
