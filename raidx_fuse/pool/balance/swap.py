"""The swap step of Dswap (section 3.3): volumes of high BSR for volumes of low BSR.

O, from the overloaded array in decreasing BSR, and U, from the least loaded array in increasing
BSR, grow one volume at a time until

    C1   b_O - b_U >= gamma * B_O        the swap is worth it (Eq. 4; B_O: load of the array)
    C2   Eqs. 1 and 2 on the array that takes O
    C3   Eq. 1 on the array that takes U

The constraint that is violated says which set grows: U if the least loaded array lacks room or
bandwidth (C2), O if the overloaded array lacks room or too little load leaves it (C3, C1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raidx_fuse.pool.balance.plan import Reason
from raidx_fuse.pool.balance.system import TOLERANCE, Assignment

GAMMA = 0.01
"""Least share of the overloaded array's load that a swap must take away. The paper gives none."""

STARTS_MAX = 16  # how many volumes O may begin with
TARGETS_MAX = 4  # how many of the least loaded arrays are tried for one swap
SKIPPED = "volumes that leave no room or cost more were skipped"


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
    """Swap volumes of *array* until it is not overloaded, or there is no valid swap."""
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


def _order(state: Assignment, array: int, other: int, *, falling: bool) -> _Side:
    """Return the volumes of *array* that may go to *other*, by BSR; to itself: all."""
    system = state.system
    volumes = state.on(array)
    if other != array:
        volumes = volumes[system.allowed[volumes, other]]
    ratio = system.need[volumes, array] / system.size[volumes]
    volumes = volumes[np.argsort(-ratio if falling else ratio, kind="stable")]
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
    high = _order(state, array, target, falling=True)
    low = _order(state, target, array, falling=False)
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
        order = _order(state, source, source, falling=source == array).volumes
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
