"""The planners by name: `make` plans with one of them, rules included.

dswap            few bytes, quickly: displace, then swap                       the default
dswap-paper      the same as the paper's text has it, without our two optimisations
exact            the fewest bytes, for small pools                             needs scipy
random-reassign, random-packing, best-fit, worst-fit, bsr                      the baselines

The baselines are those that the paper compares Dswap with (section 3.1):

    random-packing     volumes in random order, each to a random array where it fits      scratch
    best-fit           the same, to the array that is left with the least free space      scratch
    worst-fit          the same, to the array that is left with the most free space       scratch
    bsr                volumes in decreasing BSR, each to the array of highest spareBSR   scratch
    random-reassign    volumes of overloaded arrays in random order, each to the first array of a
                       random order where it fits, until nothing is overloaded

Those marked scratch begin anew: where a volume is now has no influence, but volumes that must not
move are placed first. The random ones are repeated up to TRIES times until nothing is overloaded
("the process is repeated until a valid assignment is obtained"). If no try succeeds, the plan
leaves everything where it is and is not solved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

import numpy as np

from raidx_fuse.errors import UsageError
from raidx_fuse.pool.balance.dswap import dswap, paper_dswap
from raidx_fuse.pool.balance.exact import exact
from raidx_fuse.pool.balance.plan import Plan, Reason, make_plan
from raidx_fuse.pool.balance.rules import merge
from raidx_fuse.pool.balance.system import Assignment, Bools, Floats, Ints, System

TRIES = 100

Worth = Callable[[Assignment], Floats | Ints]
"""state -> what each array is worth: of those where a volume fits, it goes to the highest"""
Planner = Callable[[System, int], Plan]
"""(system, seed) -> plan; the seed counts where chance has a part"""


def _bsr(system: System, _seed: int) -> Plan:
    rng = np.random.default_rng(0)  # without influence: one try
    order = np.argsort(-system.own_need() / system.size, kind="stable")
    found = _packed(system, order, _spare_bsr, rng)
    return make_plan("bsr", system, system.where if found is None else found)


def random_reassign(system: System, seed: int = 0, tries: int = TRIES) -> Plan:
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


def _spare_bsr(state: Assignment) -> Floats:
    return np.asarray(-state.excess() / np.maximum(state.spare_bytes(), 1))


def _pack(name: str, worth: Worth | None, system: System, seed: int) -> Plan:
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        found = _packed(system, rng.permutation(len(system.volumes)), worth, rng)
        if found is not None:
            return make_plan(name, system, found)
    return make_plan(name, system, system.where)


def _packed(
    system: System, order: Ints, worth: Worth | None, rng: np.random.Generator
) -> Ints | None:
    """Return an assignment from scratch in *order*; None if a volume fits nowhere.

    Without *worth*, each volume goes to any array where it fits.
    """
    state = Assignment(system)
    free: Bools = system.allowed.sum(axis=1) > 1
    for volume in np.flatnonzero(free).tolist():
        state.take_off(volume)
    for volume in order[free[order]].tolist():
        fits = state.fits(volume)
        if not fits.any():
            return None
        if worth is None:
            target = rng.choice(np.flatnonzero(fits))
        else:
            target = np.argmax(np.where(fits, worth(state), -np.inf))
        state.move(volume, int(target))
    return None if state.overloaded().size else state.array_of


STRATEGIES: dict[str, Planner] = {
    "dswap": lambda system, _seed: dswap(system),
    "dswap-paper": lambda system, _seed: paper_dswap(system),
    "exact": lambda system, _seed: exact(system),
    "random-reassign": random_reassign,
    "random-packing": partial(_pack, "random-packing", None),
    "best-fit": partial(_pack, "best-fit", lambda state: np.negative(state.spare_bytes())),
    "worst-fit": partial(_pack, "worst-fit", Assignment.spare_bytes),
    "bsr": _bsr,
}


def make(
    name: str, system: System, *, together: Iterable[Collection[str]] = (), seed: int = 0
) -> Plan:
    """Return the plan of planner *name* for *system*; volumes of *together* move as one.

    Raises UsageError for an unknown name, and what the planner raises.
    """
    planner = planner_named(name)
    return planned(system, together, lambda merged: planner(merged, seed))


def planner_named(name: str) -> Planner:
    """Return the planner called *name*. Raises UsageError."""
    planner = STRATEGIES.get(name)
    if planner is None:
        raise UsageError(f"there is no planner {name}; there are: {', '.join(STRATEGIES)}")
    return planner


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
