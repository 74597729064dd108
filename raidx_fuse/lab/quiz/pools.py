"""Questions about pools: which volumes Dswap moves. Answered by the planner of a running pool.

The pools are small enough for paper: whole loads and sizes, no two volumes of one array with the
same bandwidth-to-space ratio, and a hotspot that displacing alone removes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from raidx_fuse.lab.quiz.questions import HARD, Draft
from raidx_fuse.pool.balance.dswap import paper_dswap
from raidx_fuse.pool.balance.plan import Plan
from raidx_fuse.pool.balance.system import ArraySpec, VolumeSpec, make_system

ARRAYS = ("east", "west", "south")
BANDWIDTH, THRESHOLD = 100, 75  # of every array, THRESHOLD in percent
TRIES = 10_000  # about one pool in three can be asked about


def dswap(generator: random.Random, level: str) -> Draft:
    """Which volumes does Dswap move?"""
    for _ in range(TRIES):
        facts = _pool(generator, 3 if level == HARD else 2)
        plan = _plan(facts)
        if _can_be_asked(facts, plan):
            break
    else:
        raise AssertionError("no pool in so many has a hotspot that displacing removes")
    system = plan.system
    names = [system.volumes[move.volume] for move in plan.moves]
    told = "; ".join(_told(facts, name) for name in facts["capacity"])
    begin = (
        f"Each array can serve a load of {BANDWIDTH}, its threshold is {THRESHOLD} %. Volumes "
        f"with load and size: {told}."
    )
    first = plan.moves[0]
    ratio = Fraction(facts["load"][names[0]], facts["size"][names[0]])
    why = f"east is at {round(100 * plan.before[0])} %, and {names[0]} has its highest load per GiB"
    why += f", {float(ratio):.3g}"
    if level == HARD:
        target = system.arrays[first.target]
        return Draft(
            f"{begin} Which volume does Dswap displace first, and to which array?",
            "volume, array",
            facts,
            (names[0], target),
            f"{why}; {target} has the most spare load per free GiB of those where it fits",
        )
    return Draft(
        f"{begin} Which volumes does Dswap displace from east?",
        "volumes, in its order",
        facts,
        tuple(names),
        f"{why}; afterwards east is at {round(100 * plan.after[0])} %",
    )


def _pool(generator: random.Random, arrays: int) -> dict[str, Any]:
    """Return capacities of arrays; place, size (GiB) and load of volumes."""
    facts: dict[str, Any] = {"capacity": {}, "place": {}, "size": {}, "load": {}}
    letters = iter("abcdefghijklmnop")
    for number, array in enumerate(ARRAYS[:arrays]):
        used = 0
        for _ in range(4 if number == 0 else generator.randint(1, 3)):
            volume = next(letters)
            size = generator.randint(1, 6)
            used += size
            facts["place"][volume] = array
            facts["size"][volume] = size
            facts["load"][volume] = generator.randrange(5, 45 if number == 0 else 25)
        facts["capacity"][array] = used + (0 if number == 0 else generator.randint(2, 10))
    return facts


def _plan(facts: dict[str, Any]) -> Plan:
    arrays = [
        ArraySpec(name, float(BANDWIDTH), capacity, THRESHOLD / 100)
        for name, capacity in facts["capacity"].items()
    ]
    volumes = [
        VolumeSpec(name, facts["size"][name], array, float(facts["load"][name]))
        for name, array in facts["place"].items()
    ]
    return paper_dswap(make_system(arrays, volumes))


def _can_be_asked(facts: dict[str, Any], plan: Plan) -> bool:
    """Say whether only east is overloaded, displacing is enough, and every order is clear."""
    over = [array for array in facts["capacity"] if _load(facts, array) > THRESHOLD]
    ratios = [
        Fraction(facts["load"][name], facts["size"][name])
        for name, array in facts["place"].items()
        if array == "east"
    ]
    spare = [
        Fraction(THRESHOLD - _load(facts, array), room)
        for array, room in _rooms(facts).items()
        if array != "east"
    ]
    return (
        over == ["east"]
        and _load(facts, "east") <= BANDWIDTH
        and plan.solved
        and all(move.reason.step == "displace" for move in plan.moves)
        and len(set(ratios)) == len(ratios)
        and len(set(spare)) == len(spare)
    )


def _load(facts: dict[str, Any], array: str) -> int:
    return sum(facts["load"][name] for name, place in facts["place"].items() if place == array)


def _rooms(facts: dict[str, Any]) -> dict[str, int]:
    rooms = dict(facts["capacity"])
    for name, array in facts["place"].items():
        rooms[array] -= facts["size"][name]
    return rooms


def _told(facts: dict[str, Any], array: str) -> str:
    volumes = ", ".join(
        f"{name} ({facts['load'][name]}, {facts['size'][name]} GiB)"
        for name, place in facts["place"].items()
        if place == array
    )
    return f"{array}, {_rooms(facts)[array]} GiB free: {volumes}"


POOL_KINDS: dict[str, Callable[[random.Random, str], Draft]] = {"dswap": dswap}
