"""Planners on random pools: what must hold of every plan, and how good the plans are.

RAIDX_POOLS=20000 plans for as many pools, and asks the integer program about as many.
"""

from __future__ import annotations

import os
from time import process_time

import numpy as np
import pytest

from raidx_fuse.errors import NoSpaceError, UsageError
from raidx_fuse.pool.allocate import exchange_rounds
from raidx_fuse.pool.balance.actions import Action, actions_of, batches, copied_bytes
from raidx_fuse.pool.balance.dswap import dswap, paper_dswap
from raidx_fuse.pool.balance.exact import CELLS_MAX, exact
from raidx_fuse.pool.balance.plan import Plan, explain
from raidx_fuse.pool.balance.strategies import STRATEGIES, make, random_reassign
from raidx_fuse.pool.balance.system import (
    ArraySpec,
    Assignment,
    VolumeSpec,
    make_system,
    violations,
)
from tests.support.pools import random_pool

ASKED = int(os.environ.get("RAIDX_POOLS", "0"))
POOLS = ASKED or 1000
EXACT_POOLS = ASKED or 100  # 14 ms each


def check(plan: Plan) -> None:
    """No constraint is violated, and the steps are possible and lead to the plan."""
    system = plan.system
    assert violations(system, plan.array_of) == []
    assert plan.solved == (not Assignment(system, plan.array_of).overloaded().size)
    state = Assignment(system)
    for moves in plan.steps():
        for move in moves:
            assert state.array_of[move.volume] == move.source
            state.move(move.volume, move.target)
        over = state.used > np.maximum(system.capacity, Assignment(system).used)
        assert not over.any(), "a step has no room"
    assert (state.array_of == plan.array_of).all()
    assert plan.cost_bytes == sum(int(system.size[m.volume]) for m in plan.moves)
    assert explain(plan)


def follow(plan: Plan) -> list[Action] | None:
    """Return the actions of *plan*; each has room, and they lead there. None: there is no room."""
    system, state = plan.system, Assignment(plan.system)
    most = np.maximum(system.capacity, state.used)
    try:
        found = actions_of(plan)
    except NoSpaceError:
        return None
    for actions in batches(found):
        free = {array: int(room) for array, room in enumerate(most - state.used)}
        legs = [(a.source, a.target, int(system.size[a.volume])) for a in actions]
        assert exchange_rounds(free, legs) is not None
        for action in actions:
            assert state.array_of[action.volume] == action.source != action.target
            assert action.detour or system.allowed[action.volume, action.target]
            state.move(action.volume, action.target)
        assert (state.used <= most).all(), "an action has no room"
    assert (state.array_of == plan.array_of).all()
    return found


def test_the_actions_of_plans_have_room_one_after_the_other() -> None:
    plans = detours = together = impossible = 0
    for seed in range(POOLS):
        plan = dswap(random_pool(seed))
        if plan.moves:
            plans += 1
            found = follow(plan)
            impossible += found is None
            detours += any(action.detour for action in found or ())
            together += any(action.together for action in found or ())
            if found is not None:
                size = plan.system.size
                twice = sum(int(size[action.volume]) for action in found if action.detour)
                assert copied_bytes(plan, found) == plan.cost_bytes + twice
    # Measured on 1000 pools, which are 50 to 100 % full: of 978 plans with moves 21 find no room,
    # 20 of them because not a byte is free on the arrays that volumes would leave; 121 need pieces.
    assert detours > 0
    assert together > 0.05 * plans
    assert impossible < 0.05 * plans


def test_dswap_on_random_pools() -> None:
    bytes_dswap = bytes_random = 0.0
    compared = dearer = 0
    for seed in range(POOLS):
        system = random_pool(seed)
        plan, paper = dswap(system), paper_dswap(system)
        check(plan)
        check(paper)
        assert plan.solved >= paper.solved, seed
        found = [random_reassign(system, seed=i, tries=5) for i in range(8)]
        costs = [other.cost_bytes for other in found if other.solved]
        if not costs:
            continue
        # Wherever chance finds a plan, so does Dswap.
        assert plan.solved, seed
        compared += 1
        dearer += plan.cost_bytes > float(np.mean(costs))
        bytes_dswap += plan.cost_bytes
        bytes_random += float(np.mean(costs))
    assert compared > POOLS / 2
    # Measured on 1000 pools: 7 of the 697 that random reassignment solves cost more than its mean;
    # in them Dswap plans a swap where another choice of moves needs none.
    assert dearer <= compared / 50
    assert 1.5 * bytes_dswap < bytes_random


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - {"exact", "dswap", "dswap-paper"}))
def test_no_baseline_violates_a_constraint(name: str) -> None:
    solved = 0
    for seed in range(60):
        plan = make(name, random_pool(seed), seed=seed)
        check(plan)
        solved += plan.solved
    assert solved > 10


def test_dswap_against_the_least_bytes() -> None:
    pytest.importorskip("scipy", reason="the planner exact needs the extra raidx-fuse[exact]")
    possible = missed = 0
    least_bytes = bytes_dswap = 0
    for seed in range(EXACT_POOLS):
        system = random_pool(seed)
        best, plan = exact(system), dswap(system)
        if not best.solved:
            assert not plan.solved, seed
            continue
        check(best)
        assert best.proven
        possible += 1
        if plan.solved:
            assert best.cost_bytes <= plan.cost_bytes, seed
            least_bytes += best.cost_bytes
            bytes_dswap += plan.cost_bytes
        else:
            missed += 1
    # Measured on 1000 pools: 933 can be relieved, Dswap misses 50 of them (5.4 %; they need moves
    # over three arrays) and moves 1.35 times the least bytes in the others.
    assert possible > EXACT_POOLS / 2
    assert missed <= 0.1 * possible
    assert bytes_dswap < 1.6 * least_bytes


def test_exact_says_that_there_is_no_plan() -> None:
    pytest.importorskip("scipy", reason="the planner exact needs the extra raidx-fuse[exact]")
    arrays = [ArraySpec("a", 100.0, 10), ArraySpec("b", 100.0, 10)]
    volumes = [VolumeSpec("v", 5, "a", 60.0), VolumeSpec("w", 5, "a", 40.0)]
    assert exact(make_system(arrays, volumes)).solved
    assert not exact(make_system(arrays, [VolumeSpec("v", 5, "a", 100.0)])).solved
    too_many = [VolumeSpec(f"v{i}", 1, "a", 1.0) for i in range(CELLS_MAX)]
    with pytest.raises(UsageError, match="use --planner dswap"):
        exact(make_system(arrays, too_many))


@pytest.mark.parametrize("full", [0.6, 0.99, 1.0])
def test_a_hundred_arrays_and_ten_thousand_volumes_are_planned_in_two_seconds(full: float) -> None:
    rng = np.random.default_rng(1)
    arrays, volumes = [], []
    for j in range(100):
        sizes = rng.integers(4, 65, 100)
        needs = rng.permutation(sizes / sizes.sum()) * (84 if j % 2 else 50)
        arrays.append(ArraySpec(f"a{j}", 100.0, int(sizes.sum() / full)))
        volumes += [
            VolumeSpec(f"v{j}.{i}", int(size), f"a{j}", float(need))
            for i, (size, need) in enumerate(zip(sizes, needs, strict=True))
        ]
    system = make_system(arrays, volumes)
    start_s = process_time()
    plan = dswap(system)
    # Measured: 0.09, 0.09 and 0.12 s; 1.8 s with 90 arrays overloaded in a pool 99.8 % full.
    assert process_time() - start_s < 2.0
    assert plan.solved
