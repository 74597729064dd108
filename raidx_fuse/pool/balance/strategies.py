"""The planners by name: `make` plans with one of them, rules included.

dswap            few bytes, quickly: displace, then swap                       the default
dswap-paper      the same as the paper's text has it, without our two optimisations
exact            the fewest bytes, for small pools                             needs scipy
random-reassign, random-packing, best-fit, worst-fit, bsr                      the baselines

The baselines are those that the paper compares Dswap with (section 3.1):

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

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raidx_fuse.errors import UsageError
from raidx_fuse.pool.balance.dswap import dswap, paper_dswap
from raidx_fuse.pool.balance.exact import exact
from raidx_fuse.pool.balance.plan import Plan, Reason, make_plan
from raidx_fuse.pool.balance.rules import merge
from raidx_fuse.pool.balance.system import Assignment, Bools, Floats, Ints, System

TRIES = 100

if TYPE_CHECKING:  # numpy loads its random numbers, 3 MB, when they are first named
    Choice = Callable[[Assignment, int, Bools, np.random.Generator], int]
    """(state, volume, arrays where it fits, random numbers) -> the array that it is given to"""

Planner = Callable[[System], Plan]


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


@dataclass(frozen=True, slots=True)
class Strategy:
    """A planner with its *title*; *seeded*: it takes a keyword *seed*."""

    name: str
    title: str
    plan: Callable[..., Plan]
    seeded: bool = False

    def run(self, system: System, *, seed: int = 0) -> Plan:
        """Return the plan for *system*; *seed* counts where chance has a part."""
        return self.plan(system, seed=seed) if self.seeded else self.plan(system)


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("dswap", "displace and swap by bandwidth-to-space ratio", dswap),
        Strategy("dswap-paper", "the same without our two optimisations", paper_dswap),
        Strategy("exact", "least bytes, by integer programming (small pools)", exact),
        Strategy(
            "random-reassign",
            "random volumes of overloaded arrays to random arrays",
            random_reassign,
            seeded=True,
        ),
        Strategy("random-packing", "from scratch, random", random_packing, seeded=True),
        Strategy("best-fit", "from scratch, least free space left", best_fit, seeded=True),
        Strategy("worst-fit", "from scratch, most free space left", worst_fit, seeded=True),
        Strategy("bsr", "from scratch, by bandwidth-to-space ratio", bsr),
    )
}


def make(
    name: str,
    system: System,
    *,
    together: Iterable[Collection[str]] = (),
    seed: int = 0,
) -> Plan:
    """Return the plan of strategy *name* for *system*; volumes of *together* move as one.

    Raises UsageError for an unknown name, and what the planner raises.
    """
    strategy = strategy_named(name)
    return planned(system, together, lambda merged: strategy.run(merged, seed=seed))


def strategy_named(name: str) -> Strategy:
    """Return the strategy called *name*. Raises UsageError."""
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise UsageError(f"there is no planner {name}; there are: {', '.join(STRATEGIES)}")
    return strategy


def planned(
    system: System, together: Iterable[Collection[str]], plan_of: Callable[[System], Plan]
) -> Plan:
    """Return the plan of *plan_of* for *system*; volumes of *together* move as one."""
    merged, number_of = merge(system, together)
    plan = plan_of(merged)
    if merged is system:
        return plan
    reasons: dict[int, Reason] = {}
    for move in plan.moves:
        for volume in np.flatnonzero(number_of == move.volume).tolist():
            reasons[volume] = move.reason
    return make_plan(plan.strategy, system, plan.array_of[number_of], reasons, proven=plan.proven)
