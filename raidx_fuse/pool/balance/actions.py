"""The moves that carry a plan out, one after the other, each into free space.

Where two volumes change places and one array has room for the other's, these are two moves. Where
nothing that waits has room, the smallest volume goes to a third array first (*detour*), which
copies it once more; the others then use the places that it leaves. Where there is no such array
either, the volumes that change places between two arrays, or more, go *together*, in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raidx_fuse.errors import NoSpaceError, Reason
from raidx_fuse.pool.allocate import exchange_rounds
from raidx_fuse.pool.balance.plan import Move, Plan
from raidx_fuse.pool.balance.system import Assignment, Bools


@dataclass(frozen=True, slots=True)
class Action:
    """*volume* moves from the array *source* to *target*; *detour*: and on from there later.

    *together*: it changes places with those that have the same number, which is not 0.
    """

    volume: int
    source: int
    target: int
    detour: bool = False
    together: int = 0


def actions_of(plan: Plan, scratch: Bools | None = None) -> list[Action]:
    """Return the actions of *plan* in an order in which each has room.

    *scratch* (m, n): the arrays that each volume may pass through; None: all. Raises NoSpaceError
    if there is no such order: every array is too full.
    """
    system = plan.system
    state = Assignment(system)
    through = np.ones(system.need.shape, dtype=np.bool_) if scratch is None else scratch
    waiting = {move.volume: move for move in plan.moves}
    detoured: set[int] = set()
    found: list[Action] = []
    while waiting:
        action = _move(state, waiting) or _detour(state, waiting, detoured, through)
        actions = [action] if action else _exchange(state, waiting, len(found) + 1)
        if not actions:
            names = ", ".join(system.volumes[volume] for volume in waiting)
            need = min(int(system.size[volume]) for volume in waiting)
            raise NoSpaceError(
                f"there is no room to carry the plan out: {names} would change places",
                action=f"free {need} bytes on any array",
                reason=Reason.ARRAY_FULL,
            )
        found += actions
        for action in actions:
            state.move(action.volume, action.target)
            if action.detour:
                detoured.add(action.volume)
            else:
                del waiting[action.volume]
    return found


def batches(actions: Sequence[Action]) -> list[list[Action]]:
    """Return *actions* in order, those that go together in one list."""
    found: list[list[Action]] = []
    for action in actions:
        if action.together and found and found[-1][0].together == action.together:
            found[-1].append(action)
        else:
            found.append([action])
    return found


def copied_bytes(plan: Plan, actions: list[Action]) -> int:
    """Return the bytes that *actions* copy: those of Eq. 3, and once more those of detours."""
    size = plan.system.size
    detours = sum(int(size[action.volume]) for action in actions if action.detour)
    return plan.cost_bytes + detours


def _move(state: Assignment, waiting: dict[int, Move]) -> Action | None:
    room = state.spare_bytes()
    for volume, move in waiting.items():
        if state.system.size[volume] <= room[move.target]:
            return Action(volume, int(state.array_of[volume]), move.target)
    return None


def _detour(
    state: Assignment, waiting: dict[int, Move], detoured: set[int], through: Bools
) -> Action | None:
    """Return the move of the smallest volume that a third array has room for."""
    system = state.system
    for volume in sorted(waiting.keys() - detoured, key=lambda v: (int(system.size[v]), v)):
        room: Bools = (state.spare_bytes() >= system.size[volume]) & through[volume]
        room[[int(state.array_of[volume]), waiting[volume].target]] = False
        if room.any():
            spare = np.where(room, -state.excess() / system.bandwidth, -np.inf)
            target = int(np.argmax(spare))
            return Action(volume, int(state.array_of[volume]), target, detour=True)
    return None


def _exchange(state: Assignment, waiting: dict[int, Move], number: int) -> list[Action]:
    """Return the moves between two arrays that can be done in pieces, all of them together.

    If there are none, all that wait: volumes may change places round several arrays.
    """
    every = [
        Action(volume, int(state.array_of[volume]), move.target, together=number)
        for volume, move in waiting.items()
    ]
    pairs = sorted({tuple(sorted((action.source, action.target))) for action in every})
    groups = [[a for a in every if {a.source, a.target} == set(pair)] for pair in pairs]
    room = dict(enumerate(state.spare_bytes().tolist()))
    for group in [*groups, every]:
        legs = [(a.source, a.target, int(state.system.size[a.volume])) for a in group]
        if len(group) > 1 and exchange_rounds(room, legs) is not None:
            return group
    return []
