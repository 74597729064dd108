"""The plan under way, kept in the superblocks of the first array, so that the next mount goes on.

    jobs.plan = {"goal": "balance", "array": "", "planner": "dswap", "assumed": HASH,
                 "steps": [[volume, from, to, together], ...]} volumes and arrays by UUID

It is written once, before the first step, and removed at the end: where the volumes lie says how
many steps are done (`steps_done`). *assumed* stands for what the plan was made from: the arrays of
the pool, the volumes with their sizes, and the rules for moving them. If that is something else
now, or the volumes lie as after no step, the plan is stale: it is planned again for its *goal*.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from raidx_fuse.array.status import state
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.pool.hotspots.settings import RULES, PoolSettings
from raidx_fuse.pool.volume_table import ArrayVolumes

MOVING = ("move", "swap")  # kinds of jobs
KEY = "plan"
"""Its key in the `jobs` of a configuration."""
BALANCE, EVACUATE = "balance", "evacuate"
_TEXTS = ("goal", "array", "planner", "assumed")


class Goal(NamedTuple):
    """What a plan is for: to remove hotspots by *planner*, or to empty *array* (its UUID)."""

    kind: str = BALANCE
    planner: str = ""
    array: str = ""


class Step(NamedTuple):
    """*volume* leaves the array *source* for *target*: UUIDs; *together*: see `Action`."""

    volume: str
    source: str
    target: str
    together: int = 0


@dataclass(frozen=True)
class KeptPlan:
    """The *steps* of a plan, in order; see the module."""

    goal: Goal
    assumed: str
    steps: tuple[Step, ...]


def plan_of(config: ArrayConfig) -> KeptPlan | None:
    """Return the plan in *config*, None if there is none or it cannot be read."""
    kept = config.jobs.get(KEY)
    if not isinstance(kept, dict) or not all(isinstance(kept.get(key), str) for key in _TEXTS):
        return None
    rows = kept.get("steps")
    if kept["goal"] not in (BALANCE, EVACUATE) or not isinstance(rows, list):
        return None
    if not all(isinstance(row, list) and _is_step(row) for row in rows):
        return None
    goal = Goal(kept["goal"], kept["planner"], kept["array"])
    return KeptPlan(goal, kept["assumed"], tuple(Step(*row) for row in rows))


def _is_step(row: list[Any]) -> bool:
    return [type(one) for one in row] == [str, str, str, int]


def with_plan(config: ArrayConfig, plan: KeptPlan | None) -> ArrayConfig:
    """Return *config* with *plan*, or without one."""
    jobs: dict[str, Any] = {key: value for key, value in config.jobs.items() if key != KEY}
    if plan is not None:
        texts = (plan.goal.kind, plan.goal.array, plan.goal.planner, plan.assumed)
        rows = [list(step) for step in plan.steps]
        jobs[KEY] = {**dict(zip(_TEXTS, texts, strict=True)), "steps": rows}
    return replace(config, jobs=jobs)


def assumed(pool: Sequence[ArrayVolumes], settings: PoolSettings) -> str:
    """Return a hash of what plans for *pool* are made from, apart from where volumes lie."""
    arrays = sorted(
        (part.array.uuid, state(part.array), settings.value("balance.target", part.array))
        for part in pool
    )
    volumes = sorted((one.uuid, one.size_bytes) for part in pool for one in part.volumes)
    rules = [settings.value(key) for key in (*RULES, "balance.redundancy")]
    text = json.dumps([arrays, volumes, rules])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def steps_done(steps: Sequence[Step], where: Mapping[str, str]) -> int | None:
    """Return after how many of *steps* the volumes lie as *where* says; None: after none of them.

    >>> steps = [Step("a", "x", "y"), Step("b", "y", "x")]
    >>> steps_done(steps, {"a": "y", "b": "y"}), steps_done(steps, {"a": "x", "b": "x"})
    (1, None)
    """
    lies = {step.volume: step.target for step in steps}
    for done in range(len(steps), -1, -1):
        if done < len(steps):
            lies[steps[done].volume] = steps[done].source
        if all(where.get(volume) == array for volume, array in lies.items()):
            return done
    return None
