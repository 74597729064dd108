"""A plan: which volumes move where, what that costs (Eq. 3), and in which order there is room.

A planner decides only where each volume shall be. The order of the moves follows from the free
space: a move whose target has room for the whole volume is done by itself; if none that is left
has room, volumes change places. Either way the bytes of a volume are copied once, as Eq. 3 counts
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raidx_fuse.pool.balance.system import Assignment, Floats, Ints, System


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a planner moved a volume, and why there.

    * *step*: displace, swap, or the planner's name.
    * *utilisation*: of the array that the volume leaves, when it was chosen; *tau*: its threshold.
    * *rank*, *among*: the place of the volume in the order of candidates, from 1.
    * *refused*: arrays that came first in the order of targets: (name, which constraint).
    * *partners*: the volumes that a swap moves in return.
    * *ours*: what beyond the paper's text led to this choice, "" if nothing.
    """

    step: str
    utilisation: float = 0.0
    tau: float = 0.0
    rank: int = 0
    among: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    partners: tuple[str, ...] = ()
    ours: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """*volume* moves from the array *source* to *target*."""

    volume: int
    source: int
    target: int
    reason: Reason


@dataclass(frozen=True, eq=False)
class Plan:
    """What a planner found for *system*: *array_of* (m,) and the *moves* that lead there.

    *solved*: no array is overloaded afterwards. A plan that is not solved shows how far the planner
    came; nothing of it should be carried out ("only after a complete solution is found", 3.2.1).
    *proven*: no plan costs less.
    """

    strategy: str
    system: System
    array_of: Ints
    moves: tuple[Move, ...]
    solved: bool
    proven: bool = False

    @property
    def cost_bytes(self) -> int:
        """Eq. 3: the bytes of all volumes that are on another array than before."""
        return int(self.system.size[self.array_of != self.system.where].sum())

    @property
    def before(self) -> Floats:
        """The utilisation of each array now, shape (n,)."""
        return np.asarray(Assignment(self.system).load / self.system.bandwidth)

    @property
    def after(self) -> Floats:
        """The utilisation of each array expected after the plan, shape (n,)."""
        return np.asarray(Assignment(self.system, self.array_of).load / self.system.bandwidth)

    def steps(self) -> list[list[Move]]:
        """Return the moves in an order in which there is room; those that change places in one."""
        state = Assignment(self.system)
        waiting = list(self.moves)
        steps: list[list[Move]] = []
        while waiting:
            room = state.spare_bytes()
            ready = next((m for m in waiting if self.system.size[m.volume] <= room[m.target]), None)
            steps.append([ready] if ready else _circle(state, waiting))
            for move in steps[-1]:
                state.move(move.volume, move.target)
                waiting.remove(move)
        return steps


def make_plan(
    strategy: str,
    system: System,
    array_of: Ints,
    reasons: dict[int, Reason] | None = None,
    *,
    proven: bool = False,
) -> Plan:
    """Return the plan that leads to *array_of*; moves for which *reasons* has no entry get one.

    The moves stand in the order of *reasons*, which planners fill as they decide.
    """
    reasons = reasons or {}
    changed = np.flatnonzero(array_of != system.where).tolist()
    order = {volume: number for number, volume in enumerate(reasons)}
    changed.sort(key=lambda volume: order.get(volume, len(order)))
    moves = tuple(
        Move(i, int(system.where[i]), int(array_of[i]), reasons.get(i) or Reason(strategy))
        for i in changed
    )
    solved = not Assignment(system, array_of).overloaded().size
    return Plan(strategy, system, array_of.copy(), moves, solved, proven and solved)


def _circle(state: Assignment, waiting: list[Move]) -> list[Move]:
    """Return moves of *waiting* that only have room together.

    All between the arrays of one move, if both arrays have room for what they get for what they
    give. Else everything that waits changes places at once: that is what the plan has room for.
    """
    size, room = state.system.size, state.spare_bytes()
    for first in waiting:
        pair = {first.source, first.target}
        between = [m for m in waiting if {m.source, m.target} == pair]
        gained = sum(int(size[m.volume]) * (1 if m.target == first.target else -1) for m in between)
        if -room[first.source] <= gained <= room[first.target]:
            return between
    return list(waiting)


def explain(plan: Plan) -> list[str]:
    """Return the plan in sentences: the hotspots, each move with its reason, what is expected."""
    system, before, after = plan.system, plan.before, plan.after
    lines = []
    for j in Assignment(system).overloaded().tolist():
        lines.append(
            f"{system.arrays[j]} is a hotspot: utilisation {before[j]:.0%}, "
            f"threshold {system.tau[j]:.0%}"
        )
    if not lines and not plan.moves:
        return ["no array is overloaded; nothing is to be moved"]
    lines += [_sentence(system, move) for move in plan.moves]
    for j in np.flatnonzero(np.abs(after - before) > 1e-9).tolist():
        lines.append(f"expected of {system.arrays[j]}: {before[j]:.0%} -> {after[j]:.0%}")
    if not plan.solved:
        left = ", ".join(system.arrays[j] for j in np.flatnonzero(after > system.tau + 1e-9))
        lines.append(f"{plan.strategy} found no complete plan: {left} would stay overloaded")
    return lines


def _sentence(system: System, move: Move) -> str:
    why, source, target = move.reason, system.arrays[move.source], system.arrays[move.target]
    parts = [f"{system.volumes[move.volume]}: {source} -> {target}, {why.step}"]
    if why.among:
        end = "highest" if not why.step.endswith("back") else "lowest"
        parts.append(
            f"{source} was at {why.utilisation:.0%} (threshold {why.tau:.0%}), "
            f"the volume is number {why.rank} of {why.among} by {end} bandwidth per byte"
        )
    if why.partners:
        parts.append(f"in exchange for {', '.join(why.partners)}")
    if why.refused:
        refused = ", ".join(f"{name} ({constraint})" for name, constraint in why.refused)
        parts.append(f"arrays passed over: {refused}")
    elif why.step == "displace":
        parts.append(f"{target} has the most spare bandwidth per spare byte")
    if why.ours:
        parts.append(f"beyond the paper: {why.ours}")
    return "; ".join(parts)
