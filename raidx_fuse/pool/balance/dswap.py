"""Displace and swap (Dswap): a hotspot is removed with few bytes moved (sections 3.2 and 3.3).

    displace   the arrays in decreasing overload; from each, volumes in decreasing BSR (bandwidth
               need over size) to the array with the highest spareBSR (spare bandwidth over spare
               space) where Eqs. 1 and 2 hold
    swap       what is overloaded still gives its volumes of highest BSR for those of lowest BSR of
               the least loaded array

Figure 2 of the paper: tau = 75 %, every volume of size 1. The text gives 100 % and 40 %, one free
place on array 2, and a swap of 10 for 0; these needs fit it:

               array 1                        array 2
    before     20 10 10 10 10 10 10 10 10     20 10 10 0 -       100 %  40 %
    displace      10 10 10 10 10 10 10 10     20 10 10 0 20       80 %  60 %
    swap        0    10 10 10 10 10 10 10     20 10 10 10 20      70 %  70 %

Two optimisations are ours; the paper names them and leaves them to its report (TR05-51):

* *further* candidates. Displace: the set R may also begin with a later volume of the order, a
  volume of R that fits nowhere is replaced by later ones, the last one by the smallest that removes
  the rest, and what is not needed in the end stays; of the sets that remove the overload, the one
  of fewest bytes is taken. If displacing alone does not remove it, swaps with and without the part
  that can be displaced are compared. Swap: the next least loaded arrays are tried, too.
* *skip*. Swap: O may begin with a later volume, and a volume that would not leave room enough is
  passed over while O and U grow; the sets of fewest bytes for the overload removed are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raidx_fuse.pool.balance.plan import Plan, Reason, make_plan
from raidx_fuse.pool.balance.swap import GAMMA, swap
from raidx_fuse.pool.balance.system import Assignment, Bools, Ints, System

FURTHER = "volumes of higher rank fit nowhere or cost more"
LAST = "the smallest volume that removes the rest"
VARIANTS = ((True, False), (True, True), (False, False), (False, True))
"""(what can be displaced stays even if it is not enough, the arrays in increasing overload)"""

STARTS_MAX = 16  # places of the order that R may begin with


def dswap(system: System, *, gamma: float = GAMMA, further: bool = True, skip: bool = True) -> Plan:
    """Return the plan of displace and swap; *further* and *skip* are the optimisations above."""
    plans = []
    for keep_part, rising in VARIANTS if further else VARIANTS[:1]:
        state = Assignment(system)
        reasons: dict[int, Reason] = {}
        complete = True
        hot = state.overloaded().tolist()
        for array in reversed(hot) if rising else hot:
            done = displace(state, array, reasons, further=further, keep_part=keep_part)
            complete = complete and done
        displaced = bool(reasons)
        for array in state.overloaded().tolist():
            swap(state, array, reasons, gamma=gamma, further=further, skip=skip)
        if further:
            _give_back(state)
        plans.append(make_plan("dswap", system, state.array_of, reasons))
        if complete or not displaced:
            break  # the other variants would not differ
    return min(plans, key=lambda plan: (not plan.solved, plan.cost_bytes))


def _give_back(state: Assignment) -> None:
    """Return volumes whose move turned out not to be needed, the largest first."""
    system = state.system
    moved = np.flatnonzero(state.array_of != system.where)
    for volume in moved[np.argsort(-system.size[moved], kind="stable")].tolist():
        if state.fits(volume)[system.where[volume]]:
            state.move(volume, int(system.where[volume]))


def paper_dswap(system: System) -> Plan:
    """Return the plan of displace and swap as the paper's text has it, without our additions."""
    return replace(dswap(system, further=False, skip=False), strategy="dswap-paper")


def evacuate(system: System, array: int) -> Plan:
    """Return a plan that moves every volume off *array*, by displacing alone. Ours.

    Volumes that fit nowhere stay: the plan leaves them where they are.
    """
    state = Assignment(system)
    reasons: dict[int, Reason] = {}
    leaving = by_bsr(state, array).tolist()
    for rank, volume in enumerate(leaving, 1):
        _displace_one(state, volume, reasons, rank, len(leaving))
    return make_plan("evacuate", system, state.array_of, reasons)


def by_bsr(state: Assignment, array: int) -> Ints:
    """Return the volumes on *array* that may move, in decreasing order of BSR."""
    system = state.system
    volumes = state.on(array)
    volumes = volumes[system.allowed[volumes].sum(axis=1) > 1]
    ratio = system.need[volumes, array] / system.size[volumes]
    return np.asarray(volumes[np.argsort(-ratio, kind="stable")])


def by_spare_bsr(state: Assignment) -> Ints:
    """Return the arrays that have free space, in decreasing order of spareBSR.

    Arrays that are overloaded have negative spare bandwidth and come last; no volume fits there.
    """
    space = state.spare_bytes()
    arrays = np.flatnonzero(space > 0)
    ratio = -state.excess()[arrays] / space[arrays]
    return arrays[np.argsort(-ratio, kind="stable")]


def displace(
    state: Assignment,
    array: int,
    reasons: dict[int, Reason],
    *,
    further: bool = True,
    keep_part: bool = True,
) -> bool:
    """Move volumes from *array* to free space; say whether it is not overloaded any more.

    If free space does not suffice, *keep_part* keeps what could be moved.
    """
    order = by_bsr(state, array)
    if not further:
        left = state.load[array] - np.cumsum(state.system.need[order, array])
        in_r = int((left > state.limit[array]).sum()) + 1  # the size of the set R
        for rank, volume in enumerate(order[:in_r].tolist(), 1):
            _displace_one(state, volume, reasons, rank, len(order))
        return not state.is_overloaded(array)
    order = order[_fits_somewhere(state, order)]  # targets only fill up: others never will
    best: dict[int, Reason] = {}
    targets: list[int] = []
    least = -1
    for start in range(min(len(order), STARTS_MAX)):
        tried, solved = _attempt(state, array, order, start)
        size = int(state.system.size[list(tried)].sum())
        if (solved and (least < 0 or size < least)) or (keep_part and not start):
            best, targets = tried, [int(state.array_of[volume]) for volume in tried]
            least = size if solved else -1
        for volume in tried:
            state.move(volume, array)
    for volume, target in zip(best, targets, strict=True):
        state.move(volume, target)
    reasons.update(best)
    return least >= 0


def _fits_somewhere(state: Assignment, volumes: Ints) -> Bools:
    """Return for which of *volumes*, all of one array, some array has room and bandwidth."""
    system = state.system
    fits = state.used + system.size[volumes, None] <= system.capacity
    fits &= state.load + system.need[volumes] <= state.limit_up
    fits &= system.allowed[volumes]
    fits[np.arange(len(volumes)), state.array_of[volumes]] = False
    return np.asarray(fits.any(axis=1))


def _attempt(
    state: Assignment, array: int, order: Ints, start: int
) -> tuple[dict[int, Reason], bool]:
    """Displace volumes of *order* from place *start* on; return those moved, and if it sufficed."""
    tried: dict[int, Reason] = {}
    for place in range(start, len(order)):
        if _displace_last(state, array, order, place, tried):
            break
        _displace_one(state, int(order[place]), tried, place + 1, len(order), FURTHER * bool(start))
    if state.is_overloaded(array):
        return tried, False
    need, size = state.system.need, state.system.size
    for volume in sorted(tried, key=lambda i: -int(size[i])):
        if state.load[array] + need[volume, array] <= state.limit[array]:
            state.move(volume, array)
            del tried[volume]
    return tried, True


def _displace_one(
    state: Assignment,
    volume: int,
    reasons: dict[int, Reason],
    rank: int,
    among: int,
    ours: str = "",
) -> bool:
    """Move *volume* to the array of highest spareBSR where it fits; False: it fits nowhere."""
    fits = state.fits(volume)
    if not fits.any():
        return False
    targets = by_spare_bsr(state)
    place = int(np.flatnonzero(fits[targets])[0])
    source = int(state.array_of[volume])
    passed = [int(target) for target in targets[:place] if target != source]
    reasons[volume] = Reason(
        "displace",
        float(state.load[source] / state.system.bandwidth[source]),
        float(state.system.tau[source]),
        rank,
        among,
        refused=_refusals(state, volume, passed),
        ours=ours,
    )
    state.move(volume, int(targets[place]))
    return True


def _displace_last(
    state: Assignment,
    array: int,
    order: Ints,
    place: int,
    reasons: dict[int, Reason],
) -> bool:
    """If one volume of *order* from *place* on removes what is left, move the smallest that fits.

    Only if it is no larger than the volume at *place*, which would go next.
    """
    rest = order[place:]
    sizes = state.system.size[rest]
    enough = state.load[array] - state.system.need[rest, array] <= state.limit[array]
    enough &= (sizes < sizes[0]) | ((sizes == sizes[0]) & ~enough[0])
    enough[0] |= state.load[array] - state.system.need[rest[0], array] <= state.limit[array]
    found = np.flatnonzero(enough)
    for at in found[np.argsort(sizes[found], kind="stable")].tolist():
        ours = LAST if at else FURTHER * bool(place)
        if _displace_one(state, int(rest[at]), reasons, place + at + 1, len(order), ours):
            return True
    return False


def _refusals(state: Assignment, volume: int, arrays: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Return why *volume* may not move to each of *arrays*: (name, constraint)."""
    system, apart = state.system, state.kept_apart(volume)
    found = []
    for j in arrays:
        if not system.allowed[volume, j]:
            why = "not allowed"
        elif j in apart:
            why = "kept apart"
        elif state.used[j] + system.size[volume] > system.capacity[j]:
            why = "no room"
        else:
            why = "would be overloaded" if not state.is_overloaded(j) else "overloaded"
        found.append((system.arrays[j], why))
    return tuple(found)
