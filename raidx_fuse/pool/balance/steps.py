"""A plan step by step, with the numbers by which each volume and each array was chosen.

The moves of the plan are made again, one after the other, on the system that it was made for. So
the numbers are those of the plan's result; what a planner tried and took back is not in it.

    >>> from raidx_fuse.pool.balance.dswap import paper_dswap
    >>> plan = paper_dswap(example())
    >>> [(step["does"], step.get("volumes"), step.get("back")) for step in plan_steps(plan)]
    [('begin', None, None), ('displace', ['v1'], []), ('swap', ['v2'], ['w4']), ('end', None, None)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from raidx_fuse.pool.balance.dswap import GAMMA, by_bsr, by_spare_bsr
from raidx_fuse.pool.balance.plan import Move, Plan
from raidx_fuse.pool.balance.system import ArraySpec, Assignment, System, VolumeSpec, make_system

SHOWN = 6  # of the volumes in an order
UNIT_BYTES = 1 << 30  # of the example's volumes, and of a bandwidth-to-space ratio
SWAPS = ("swap", "swap back")
DSWAP = ("displace", *SWAPS)


def example() -> System:
    """Return the two arrays of the Dswap paper's Fig. 2, with needs that fit its text."""
    needs = {"array1": (20, *[10] * 8), "array2": (20, 10, 10, 0)}
    room = {"array1": 9, "array2": 5}
    arrays = [ArraySpec(name, 100.0, room[name] * UNIT_BYTES, 0.75) for name in needs]
    volumes = [
        VolumeSpec(f"{letter}{number}", UNIT_BYTES, name, float(need))
        for letter, name in zip("vw", needs, strict=True)
        for number, need in enumerate(needs[name], 1)
    ]
    return make_system(arrays, volumes)


class StepArray(TypedDict):
    """An array after a step: its load of its bandwidth, *tau* of which is too much."""

    array: str
    load: float
    bandwidth: float
    utilisation: float
    tau: float
    free_bytes: int
    overloaded: bool


class RankedVolume(TypedDict):
    """A volume that may move, and the *need* of a GiB of it (BSR)."""

    volume: str
    need: float
    size_bytes: int
    bsr: float


class StepTarget(TypedDict):
    """An array that a volume may move to, and what each free GiB of it has to *spare*."""

    array: str
    spare: float
    free_bytes: int
    spare_bsr: float


class PlanStep(TypedDict, total=False):
    """A step of a plan as JSON values; see `plan_steps`."""

    step: int
    does: str
    overloaded: list[str]
    solved: bool
    bytes_moved: int
    volumes: list[str]
    back: list[str]
    source: str
    target: str
    ours: str
    order: list[RankedVolume]
    order_back: list[RankedVolume]
    targets: list[StepTarget]
    refused: list[dict[str, str]]
    c1: dict[str, float]
    c2: dict[str, float]
    c3: dict[str, float]
    arrays: list[StepArray]


def plan_steps(plan: Plan) -> list[PlanStep]:
    """Return the steps of *plan* as JSON values; each has *arrays*, their numbers after it.

    *does*: begin, displace, swap or end; of other planners than Dswap move or exchange, in an order
    for which there is room. A displace has the *order* of the source's volumes by BSR and that of
    the *targets* by spareBSR, a swap the checks C1 to C3.
    """
    state = Assignment(plan.system)
    hot = state.overloaded().tolist()
    overloaded = [plan.system.arrays[array] for array in hot]
    found = [_step(state, {"does": "begin", "overloaded": overloaded})]
    for moves in _groups(plan):
        first = moves[0]
        details: PlanStep
        if first.reason.step in SWAPS:
            details = _swap(state, moves)
        elif first.reason.step == "displace":
            details = _displace(state, first)
        else:
            details = {"does": "move" if len(moves) == 1 else "exchange"}
        out = [move for move in moves if move.source == first.source]
        names = plan.system.volumes
        for move in moves:
            state.move(move.volume, move.target)
        found.append(
            _step(
                state,
                {
                    "does": details["does"],
                    "volumes": [names[move.volume] for move in out],
                    "back": [names[move.volume] for move in moves if move not in out],
                    "source": plan.system.arrays[first.source],
                    "target": plan.system.arrays[first.target],
                    "ours": first.reason.ours,
                    **details,
                },
            )
        )
    end: PlanStep = {"does": "end", "solved": plan.solved, "bytes_moved": plan.cost_bytes}
    found.append(_step(state, end))
    return [{"step": number, **step} for number, step in enumerate(found)]


def _groups(plan: Plan) -> list[list[Move]]:
    """Return the moves of *plan*, those of one swap or exchange in one list."""
    found: list[list[Move]] = []
    if not any(move.reason.step in DSWAP for move in plan.moves):
        return plan.steps()
    for move in plan.moves:
        last = found[-1] if found else []
        if last and _belongs(move, last[0], last[-1]):
            last.append(move)
        else:
            found.append([move])
    return found


def _belongs(move: Move, first: Move, last: Move) -> bool:
    """Return whether *move* is of the swap that *first* began and *last* continued."""
    if first.reason.step != "swap" or {move.source, move.target} != {first.source, first.target}:
        return False
    if move.reason.step == "swap back":
        return True
    same = move.reason.step == "swap" and move.reason.partners == first.reason.partners
    return same and last.reason.step == "swap"


def _displace(state: Assignment, move: Move) -> PlanStep:
    system = state.system
    targets = [array for array in by_spare_bsr(state).tolist() if array != move.source]
    spare, space = -state.excess(), state.spare_bytes()
    return {
        "does": "displace",
        "order": _order(state, move.source, falling=True),
        "targets": [
            {
                "array": system.arrays[array],
                "spare": float(spare[array]),
                "free_bytes": int(space[array]),
                "spare_bsr": float(spare[array] / space[array] * UNIT_BYTES),
            }
            for array in targets
        ],
        "refused": [{"array": name, "why": why} for name, why in move.reason.refused],
    }


def _swap(state: Assignment, moves: Sequence[Move]) -> PlanStep:
    system, source, target = state.system, moves[0].source, moves[0].target
    out = [move.volume for move in moves if move.source == source]
    back = [move.volume for move in moves if move.source != source]
    need, size = system.need, system.size
    grown = int(size[out].sum() - size[back].sum())  # bytes by which the target grows
    return {
        "does": "swap",
        "order": _order(state, source, falling=True),
        "order_back": _order(state, target, falling=False),
        "c1": {
            "relief": float(need[out, source].sum() - need[back, source].sum()),
            "least": GAMMA * float(state.load[source]),
        },
        "c2": {
            "bytes": int(state.used[target]) + grown,
            "capacity_bytes": int(system.capacity[target]),
            "load": float(state.load[target] + need[out, target].sum() - need[back, target].sum()),
            "limit": float(state.limit[target]),
        },
        "c3": {
            "bytes": int(state.used[source]) - grown,
            "capacity_bytes": int(system.capacity[source]),
        },
    }


def _order(state: Assignment, array: int, *, falling: bool) -> list[RankedVolume]:
    """Return the first volumes on *array* that may move, in the order of their BSR."""
    system = state.system
    return [
        {
            "volume": system.volumes[volume],
            "need": float(system.need[volume, array]),
            "size_bytes": int(system.size[volume]),
            "bsr": float(system.need[volume, array] / system.size[volume] * UNIT_BYTES),
        }
        for volume in by_bsr(state, array, falling=falling)[:SHOWN].tolist()
    ]


def _step(state: Assignment, more: PlanStep) -> PlanStep:
    system, space = state.system, state.spare_bytes()
    arrays: list[StepArray] = [
        {
            "array": name,
            "load": float(state.load[number]),
            "bandwidth": float(system.bandwidth[number]),
            "utilisation": float(state.load[number] / system.bandwidth[number]),
            "tau": float(system.tau[number]),
            "free_bytes": int(space[number]),
            "overloaded": state.is_overloaded(number),
        }
        for number, name in enumerate(system.arrays)
    ]
    return {**more, "arrays": arrays}
