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
from typing import NamedTuple

import numpy as np

from raidx_fuse.pool.balance.plan import Plan, Reason, make_plan
from raidx_fuse.pool.balance.system import TOLERANCE, Assignment, Bools, Ints, System

GAMMA = 0.01
"""Least share of the overloaded array's load that a swap must remove. The paper gives none."""

TARGETS_MAX = 4  # how many of the least loaded arrays are tried for one swap
SKIPPED = "volumes that leave no room or cost more were skipped"
FURTHER = "volumes of higher rank fit nowhere or cost more"
LAST = "the smallest volume that removes the rest"
VARIANTS = ((True, False), (True, True), (False, False), (False, True))
"""(what can be displaced stays even if it is not enough, the arrays in increasing overload)"""

STARTS_MAX = 16  # places of the order that R, or O of a swap, may begin with


class _Side(NamedTuple):
    """One array of a swap: its volumes in order with sizes, needs here and needs at the other."""

    volumes: list[int]
    sizes: list[int]
    here: list[float]
    there: list[float]
    spare_bytes: int


class _Found(NamedTuple):
    """Volumes *chosen* to leave and to come *back*; *price*: bytes for each unit of overload."""

    target: int
    chosen: list[int]
    back: list[int]
    price: float
    ours: str


def swap(
    state: Assignment,
    array: int,
    reasons: dict[int, Reason],
    *,
    gamma: float = GAMMA,
    further: bool = True,
    skip: bool = True,
) -> None:
    """Swap volumes of *array* until it is not overloaded, or there is no valid swap.

    O, from the overloaded array in decreasing BSR, and U, from the least loaded array in increasing
    BSR, grow one volume at a time until

        C1   b_O - b_U >= gamma * B_O        the swap is worth it (Eq. 4; B_O: load of the array)
        C2   Eqs. 1 and 2 on the array that takes O
        C3   Eq. 1 on the array that takes U

    The constraint that is violated says which set grows: U if the least loaded array lacks room or
    bandwidth (C2), O if the overloaded array lacks room or too little load leaves it (C3, C1).
    """
    while state.is_overloaded(array):
        spare = -state.excess()
        targets = np.flatnonzero(spare > 0)
        targets = targets[np.argsort(-spare[targets], kind="stable")]
        best: _Found | None = None
        for target in targets[: TARGETS_MAX if further else 1].tolist():
            best = _find(state, array, target, gamma, skip, best) or best
        if best is None:
            return
        ours = "" if best.target == targets[0] else "the least loaded array gives no cheaper swap"
        _apply(state, array, best, reasons, ours)


def _side(state: Assignment, array: int, other: int, *, falling: bool) -> _Side:
    system = state.system
    volumes = by_bsr(state, array, other, falling=falling)
    return _Side(
        volumes.tolist(),
        system.size[volumes].tolist(),
        system.need[volumes, array].tolist(),
        system.need[volumes, other].tolist(),
        int(state.spare_bytes()[array]),
    )


def _find(
    state: Assignment, array: int, target: int, gamma: float, skip: bool, best: _Found | None
) -> _Found | None:
    """Return sets O and U that satisfy C1 to C3 at a lower price than *best*; None: none do."""
    system = state.system
    high = _side(state, array, target, falling=True)
    low = _side(state, target, array, falling=False)
    least = gamma * float(state.load[array])
    excess, spare = float(state.excess()[array]), -float(state.excess()[target])
    spare += TOLERANCE * float(system.bandwidth[target])
    found: _Found | None = None
    for start in range(min(len(high.volumes), STARTS_MAX if skip else 1)):
        for skipping in (False, True) if skip else (False,):
            bytes_max = best.price * excess if best else float("inf")
            sets = _grow(high, low, start, least, spare, bytes_max, skip=skipping)
            if sets is None or not _keeps_apart(state, *sets, array, target):
                continue
            chosen, back = sets
            relief = float(system.need[chosen, array].sum() - system.need[back, array].sum())
            price = float(system.size[chosen + back].sum()) / min(relief, excess)
            if best is None or price < best.price:
                ours = SKIPPED if start or skipping else ""
                found = best = _Found(target, chosen, back, price, ours)
    return found


def _grow(
    high: _Side,
    low: _Side,
    start: int,
    least: float,
    spare: float,
    bytes_max: float,
    *,
    skip: bool,
) -> tuple[list[int], list[int]] | None:
    """Grow O from *high*, beginning at *start*, and U from *low*, until C1 to C3 hold.

    *least*: the reduction that C1 asks for; *spare*: the bandwidth that C2 leaves. Gives up when
    both sets together hold *bytes_max*. With *skip* a set takes the first volume in order that
    leaves room on the other array, if there is one.
    """
    chosen, back = [start], []
    left, others = list(range(start + 1, len(high.volumes))), list(range(len(low.volumes)))
    grown = high.sizes[start]  # bytes by which the target grows
    relief, burden = high.here[start], high.there[start]
    total = grown
    while total < bytes_max:
        if grown > low.spare_bytes or burden > spare:
            if not others:
                return None
            place = _first(others, low.sizes, grown + high.spare_bytes) if skip else 0
            i = others.pop(place)
            back.append(i)
            grown -= low.sizes[i]
            total += low.sizes[i]
            relief -= low.there[i]
            burden -= low.here[i]
        elif -grown > high.spare_bytes or relief < least:
            if not left:
                return None
            place = _first(left, high.sizes, low.spare_bytes - grown) if skip else 0
            i = left.pop(place)
            chosen.append(i)
            grown += high.sizes[i]
            total += high.sizes[i]
            relief += high.here[i]
            burden += high.there[i]
        else:
            return [high.volumes[i] for i in chosen], [low.volumes[i] for i in back]
    return None


def _keeps_apart(
    state: Assignment, chosen: Sequence[int], back: Sequence[int], array: int, target: int
) -> bool:
    """Say whether no rule is broken if *chosen* and *back* change places."""
    if not state.system.apart:
        return True
    for group in state.system.apart:
        for moved, gone, to in ((chosen, back, target), (back, chosen, array)):
            arriving = sum(volume in group for volume in moved)
            there = [v for v in group if state.array_of[v] == to and v not in gone]
            if arriving and arriving + len(there) > 1:
                return False
    return True


def _first(places: Sequence[int], sizes: Sequence[int], room: int) -> int:
    """Return the first of *places* whose size is at most *room*; 0: none is."""
    for place, volume in enumerate(places):
        if sizes[volume] <= room:
            return place
    return 0


def _apply(
    state: Assignment,
    array: int,
    found: _Found,
    reasons: dict[int, Reason],
    ours: str,
) -> None:
    """Carry out a swap in *state* and note its reasons."""
    target, chosen, back = found.target, found.chosen, found.back
    ours = "; ".join(text for text in (ours, found.ours) if text)
    for volumes, partners, source, step in (
        (chosen, back, array, "swap"),
        (back, chosen, target, "swap back"),
    ):
        order = by_bsr(state, source, source, falling=source == array).tolist()
        for volume in volumes:
            reasons.pop(volume, None)  # a later decision stands behind the earlier ones
            reasons[volume] = Reason(
                step,
                float(state.load[source] / state.system.bandwidth[source]),
                float(state.system.tau[source]),
                order.index(volume) + 1,
                len(order),
                partners=tuple(state.system.volumes[i] for i in partners),
                ours=ours,
            )
    for volume in chosen:
        state.move(volume, target)
    for volume in back:
        state.move(volume, array)


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


def by_bsr(
    state: Assignment, array: int, other: int | None = None, *, falling: bool = True
) -> Ints:
    """Return the volumes on *array* that may move, to *other* if it is given, in order of BSR."""
    system = state.system
    volumes = state.on(array)
    allowed = system.allowed[volumes]
    volumes = volumes[allowed.sum(axis=1) > 1 if other is None else allowed[:, other]]
    ratio = system.need[volumes, array] / system.size[volumes]
    return np.asarray(volumes[np.argsort(-ratio if falling else ratio, kind="stable")])


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
