"""Dswap by hand: the paper's Fig. 2 move by move, C1 to C3, the rules, the order of the moves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from raidx_fuse.errors import UsageError
from raidx_fuse.pool.balance.dswap import displace, dswap, evacuate, paper_dswap, swap
from raidx_fuse.pool.balance.plan import Plan, Reason, explain
from raidx_fuse.pool.balance.rules import repaid
from raidx_fuse.pool.balance.strategies import make
from raidx_fuse.pool.balance.system import (
    ArraySpec,
    Assignment,
    System,
    VolumeSpec,
    make_system,
    violations,
)

Volumes = list[tuple[str, int, float]]  # name, size, need
Content = tuple[int, Volumes]  # capacity and volumes of an array


def pool(*, apart: tuple[tuple[str, ...], ...] = (), **arrays: Content) -> System:
    """Return a pool; each array is (capacity, [(name, size, need), ...]) of bandwidth 100."""
    specs, volumes = [], []
    for name, (capacity, content) in arrays.items():
        specs.append(ArraySpec(name, 100.0, capacity, 0.75))
        volumes += [VolumeSpec(v, size, name, need) for v, size, need in content]
    return make_system(specs, volumes, apart)


def fig_2() -> System:
    needs_1, needs_2 = [20, *[10] * 8], [20, 10, 10, 0]
    return pool(
        array1=(9, [(f"1.{i}", 1, float(need)) for i, need in enumerate(needs_1)]),
        array2=(5, [(f"2.{i}", 1, float(need)) for i, need in enumerate(needs_2)]),
    )


def moves(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Return (volume, from, to, step) of each move."""
    names, system = plan.system.arrays, plan.system
    return [
        (system.volumes[m.volume], names[m.source], names[m.target], m.reason.step)
        for m in plan.moves
    ]


# -- Fig. 2 --------------------------------------------------------------------------------------


def test_fig_2_displace_moves_the_volume_of_highest_bsr() -> None:
    state = Assignment(fig_2())
    assert (state.load.tolist(), state.spare_bytes().tolist()) == ([100.0, 40.0], [0, 1])
    reasons: dict[int, Reason] = {}
    displace(state, 0, reasons, further=False)
    assert [state.system.volumes[i] for i in reasons] == ["1.0"]
    assert (state.load.tolist(), state.spare_bytes().tolist()) == ([80.0, 60.0], [1, 0])
    assert state.overloaded().tolist() == [0]


def test_fig_2_swap_gives_10_for_0() -> None:
    state = Assignment(fig_2())
    state.move(0, 1)
    reasons: dict[int, Reason] = {}
    swap(state, 0, reasons, further=False, skip=False)
    assert {state.system.volumes[i]: reason.step for i, reason in reasons.items()} == {
        "1.1": "swap",
        "2.3": "swap back",
    }
    assert state.load.tolist() == [70.0, 70.0]


@pytest.mark.parametrize("planner", [dswap, paper_dswap])
def test_fig_2_as_a_whole(planner: Callable[[System], Plan]) -> None:
    plan = planner(fig_2())
    assert moves(plan) == [
        ("1.0", "array1", "array2", "displace"),
        ("1.1", "array1", "array2", "swap"),
        ("2.3", "array2", "array1", "swap back"),
    ]
    assert plan.solved
    assert plan.cost_bytes == 3
    assert (plan.before.tolist(), plan.after.tolist()) == ([1.0, 0.4], [0.7, 0.7])
    # The first move leaves array 1 one free place: the swap goes through it, without scratch.
    assert [[move.volume for move in moves] for moves in plan.steps()] == [[0], [12], [1]]


# -- orders and constraints ----------------------------------------------------------------------


def test_the_most_overloaded_array_goes_first_to_the_highest_spare_bsr() -> None:
    system = pool(
        a=(40, [("a1", 10, 50.0), ("a2", 10, 30.0)]),
        b=(40, [("b1", 10, 60.0), ("b2", 10, 40.0)]),
        c=(100, [("c1", 50, 10.0)]),  # spare bandwidth 65, space 50: 1.3
        d=(25, [("d1", 10, 0.0)]),  # 75 over 15: 5.0
    )
    plan = paper_dswap(system)
    # b is 25 over, a 5. d takes b1 first; then it has 15 left for 5 bytes, too little space.
    assert moves(plan) == [("b1", "b", "d", "displace"), ("a1", "a", "c", "displace")]
    assert "arrays passed over" not in explain(plan)[2]


def test_a_volume_that_would_overload_its_target_goes_to_the_next() -> None:
    system = pool(
        a=(40, [("a1", 10, 60.0), ("a2", 10, 30.0)]),
        b=(30, [("b1", 10, 30.0)]),  # 45 spare
        c=(200, [("c1", 10, 10.0)]),  # 65 spare in much space
    )
    plan = paper_dswap(system)
    assert moves(plan) == [("a1", "a", "c", "displace")]
    assert plan.moves[0].reason.refused == (("b", "would be overloaded"),)
    assert "b (would be overloaded)" in explain(plan)[1]


def test_gamma_asks_for_a_least_reduction() -> None:
    system = pool(
        a=(20, [("a1", 10, 50.0), ("a2", 10, 26.0)]),
        b=(20, [("b1", 10, 20.0), ("b2", 10, 10.0)]),
    )
    assert moves(dswap(system, gamma=0.3)) == [
        ("a1", "a", "b", "swap"),
        ("b2", "b", "a", "swap back"),
    ]
    assert not dswap(system, gamma=0.6).moves


def test_sets_grow_until_the_storage_fits_both_ways() -> None:
    system = pool(
        a=(16, [("big", 8, 60.0), ("a2", 8, 30.0)]),
        b=(16, [("b1", 4, 1.0), ("b2", 4, 3.0), ("b3", 8, 9.0)]),
    )
    plan = paper_dswap(system)
    assert {name for name, *_ in moves(plan)} == {"big", "b1", "b2"}
    assert plan.solved
    assert [len(moves) for moves in plan.steps()] == [3]  # both arrays are full
    assert plan.cost_bytes == 16


def test_an_incomplete_plan_is_not_solved_and_says_so() -> None:
    system = pool(a=(10, [("a1", 10, 90.0)]), b=(5, [("b1", 5, 1.0)]))
    plan = dswap(system)
    assert not plan.solved
    assert not plan.moves
    assert explain(plan)[-1] == "dswap found no complete plan: a would stay overloaded"


def test_nothing_is_moved_without_a_hotspot() -> None:
    system = pool(a=(10, [("a1", 5, 75.0)]), b=(10, [("b1", 5, 1.0)]))
    for name in ("dswap", "dswap-paper", "random-reassign"):
        plan = make(name, system)
        assert plan.solved
        assert not plan.moves
        assert explain(plan) == ["no array is overloaded; nothing is to be moved"]


# -- our two optimisations -----------------------------------------------------------------------


def test_further_candidates_go_where_those_of_r_do_not_fit() -> None:
    system = pool(
        a=(40, [("large", 20, 60.0), ("small", 10, 25.0)]),
        b=(12, [("b1", 1, 1.0)]),
    )
    assert not dswap(system, further=False, skip=False).solved
    assert moves(dswap(system)) == [("small", "a", "b", "displace")]


def test_the_last_volume_is_the_smallest_that_removes_the_rest() -> None:
    system = pool(
        a=(40, [("dense", 10, 60.0), ("small", 4, 22.0)]),
        b=(40, [("b1", 1, 1.0)]),
    )
    assert moves(dswap(system, further=False)) == [("dense", "a", "b", "displace")]
    plan = dswap(system)
    assert moves(plan) == [("small", "a", "b", "displace")]
    assert "beyond the paper: the smallest volume that removes the rest" in explain(plan)[1]


def test_swaps_skip_a_volume_that_leaves_no_room() -> None:
    system = pool(
        a=(12, [("high", 2, 40.0), ("other", 10, 50.0)]),
        b=(12, [("idle", 10, 0.0), ("b2", 2, 10.0)]),
    )
    assert not paper_dswap(system).solved
    plan = dswap(system)
    assert {name for name, *_ in moves(plan)} == {"high", "b2"}
    assert plan.solved


# -- rules ---------------------------------------------------------------------------------------


def test_volumes_that_stay_or_keep_apart_do() -> None:
    content: Volumes = [("a1", 10, 50.0), ("a2", 10, 40.0)]
    free = pool(a=(40, content), b=(40, [("b1", 5, 10.0)]))
    assert moves(dswap(free)) == [("a1", "a", "b", "displace")]
    apart = pool(apart=(("a1", "b1"),), a=(40, content), b=(40, [("b1", 5, 10.0)]))
    assert moves(dswap(apart)) == [("a2", "a", "b", "displace")]
    arrays = [ArraySpec("a", 100.0, 40, 0.75), ArraySpec("b", 100.0, 40, 0.75)]
    stays = make_system(
        arrays,
        [VolumeSpec("a1", 10, "a", 50.0, stays=True), VolumeSpec("a2", 10, "a", 40.0)],
    )
    assert moves(dswap(stays)) == [("a2", "a", "b", "displace")]
    only = make_system(
        [*arrays, ArraySpec("c", 100.0, 40, 0.75)],
        [VolumeSpec("a1", 10, "a", 50.0, only=["c"]), VolumeSpec("a2", 10, "a", 40.0)],
    )
    assert moves(dswap(only)) == [("a1", "a", "c", "displace")]


def test_volumes_that_keep_together_move_together() -> None:
    system = pool(
        a=(40, [("a1", 5, 50.0), ("a2", 5, 10.0), ("a3", 10, 40.0)]),
        b=(40, [("b1", 5, 10.0)]),
    )
    plan = make("dswap", system, together=[["a1", "a2"]])
    assert {name for name, *_ in moves(plan)} == {"a1", "a2"}
    assert plan.cost_bytes == 10
    with pytest.raises(UsageError, match="together and apart"):
        make("dswap", pool(apart=(("x", "y"),), a=(9, [("x", 1, 1.0), ("y", 1, 1.0)])),
             together=[["x", "y"]])  # fmt: skip
    with pytest.raises(UsageError, match="no volume z"):
        make("dswap", system, together=[["a1", "z"]])


def test_a_move_that_is_not_repaid_in_time_is_not_made() -> None:
    system = pool(
        a=(2000, [("large", 1000, 60.0), ("small", 300, 30.0)]),
        b=(2000, [("b1", 5, 10.0)]),
    )
    # At 10 bytes a second large is repaid after 167 s, small after 100 s.
    for within_s, expected in ((200, ["large", "small"]), (120, ["small"]), (90, [])):
        limited = repaid(system, 10.0, within_s)
        free = limited.allowed.sum(axis=1) > 1
        assert [name for name, may in zip(system.volumes, free, strict=True) if may] == [
            *expected,
            "b1",
        ]
        assert bool(dswap(limited).moves) == bool(expected)
    dense = pool(
        a=(2000, [("large", 1000, 90.0), ("small", 300, 10.0)]),
        b=(2000, [("b1", 5, 10.0)]),
    )
    assert not dswap(repaid(dense, 10.0, 60)).solved
    assert (repaid(dense, 10.0, 60).allowed[2]).all()  # volumes elsewhere stay free


def test_parts_of_a_rule_on_two_arrays_move_only_to_each_other() -> None:
    system = pool(
        a=(40, [("a1", 5, 60.0), ("a2", 5, 20.0)]),
        b=(40, [("b1", 5, 5.0)]),
        c=(999, [("c1", 5, 0.0)]),
    )
    assert moves(make("dswap", system, together=[["a1", "b1"]])) == [("a1", "a", "b", "displace")]


def test_evacuation_moves_everything_off_an_array() -> None:
    system = pool(
        a=(40, [("a1", 10, 20.0), ("a2", 20, 10.0)]),
        b=(40, [("b1", 10, 30.0)]),
        c=(15, [("c1", 2, 10.0)]),
    )
    plan = evacuate(system, 0)
    assert not (plan.array_of == 0).any()
    ranks = sorted((move.reason.rank, move.reason.among) for move in plan.moves)
    assert ranks == [(rank, len(ranks)) for rank in range(1, len(ranks) + 1)]
    assert not violations(system, plan.array_of)


# -- bad input -----------------------------------------------------------------------------------


def test_bad_input_is_named() -> None:
    array = ArraySpec("a", 1.0, 10)
    with pytest.raises(UsageError, match="two volumes are called v"):
        make_system([array], [VolumeSpec("v", 1, "a", 1.0)] * 2)
    with pytest.raises(UsageError, match="no array b; there are: a"):
        make_system([array], [VolumeSpec("v", 1, "b", 1.0)])
    with pytest.raises(UsageError, match="size of 0"):
        make_system([array], [VolumeSpec("v", 0, "a", 1.0)])
    with pytest.raises(UsageError, match="a number from 0"):
        make_system([array], [VolumeSpec("v", 1, "a", float("nan"))])
    with pytest.raises(UsageError, match="above 0"):
        make_system([ArraySpec("a", 0.0, 10)], [])
    system = make_system([array], [VolumeSpec("v", 1, "a", 1.0)])
    with pytest.raises(UsageError, match="no planner magic; there are: dswap"):
        make("magic", system)


def test_the_judge_of_plans_sees_every_kind_of_violation() -> None:
    system = make_system(
        [ArraySpec("a", 100.0, 20), ArraySpec("b", 100.0, 10)],
        [
            VolumeSpec("v", 8, "a", 50.0),
            VolumeSpec("w", 8, "b", 50.0),
            VolumeSpec("x", 1, "a", 1.0, stays=True),
        ],
        [["v", "w"]],
    )
    found = violations(system, np.array([1, 1, 1]))
    assert len(found) == 4
    assert [line.split()[-1] for line in found] == ["has", "overloaded", "apart", "b"]
