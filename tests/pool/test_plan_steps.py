"""A plan step by step: the numbers of the paper's Fig. 2, and that the steps lead to the plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raidx_fuse.pool.balance.dswap import dswap, paper_dswap
from raidx_fuse.pool.balance.steps import example, plan_steps
from raidx_fuse.pool.balance.strategies import make
from tests.support.pools import random_pool


def loads(step: dict[str, Any]) -> list[float]:
    found: list[float] = [array["load"] for array in step["arrays"]]
    return found


def test_fig_2_has_the_papers_numbers() -> None:
    begin, displaced, swapped, end = plan_steps(paper_dswap(example()))
    assert (begin["overloaded"], loads(begin)) == (["array1"], [100.0, 40.0])
    assert [one["volume"] for one in displaced["order"]] == ["v1", "v2", "v3", "v4", "v5", "v6"]
    assert displaced["order"][0]["bsr"] == 20.0
    (target,) = displaced["targets"]
    assert (target["array"], target["spare"], target["spare_bsr"]) == ("array2", 35.0, 35.0)
    assert (displaced["volumes"], loads(displaced)) == (["v1"], [80.0, 60.0])
    assert (swapped["volumes"], swapped["back"], loads(swapped)) == (["v2"], ["w4"], [70.0, 70.0])
    assert [one["volume"] for one in swapped["order_back"]][:3] == ["w4", "w2", "w3"]
    assert (swapped["c1"]["relief"], swapped["c1"]["least"]) == (10.0, 0.8)
    assert (swapped["c2"]["load"], swapped["c2"]["limit"]) == (70.0, 75.0)
    assert (end["solved"], end["bytes_moved"] >> 30) == (True, 3)


@pytest.mark.parametrize("name", ["dswap", "dswap-paper", "worst-fit", "random-reassign"])
def test_the_steps_of_random_pools_lead_to_the_plan(name: str) -> None:
    seen = set()
    for seed in range(40):
        system = random_pool(seed)
        plan = make(name, system)
        steps = plan_steps(plan)
        told = [one["utilisation"] for one in steps[-1]["arrays"]]
        assert np.allclose(told, plan.after)
        moved = [volume for step in steps[1:-1] for volume in step["volumes"] + step["back"]]
        assert sorted(moved) == sorted(system.volumes[move.volume] for move in plan.moves)
        for step in steps:
            seen.add(step["does"])
            if name == "dswap":  # takes back moves that turned out not to be needed
                continue
            assert all(one["free_bytes"] >= 0 for one in step["arrays"])
            if step["does"] == "swap":
                assert step["c1"]["relief"] >= step["c1"]["least"] - 1e-9
                assert step["c2"]["load"] <= step["c2"]["limit"] + 1e-6
    wanted = {"displace", "swap"} if "dswap" in name else {"move"}
    assert wanted < seen


def test_a_plan_with_rules_can_be_stepped_through() -> None:
    for seed in range(10):
        system = random_pool(seed)
        pairs = [system.volumes[:2], system.volumes[-2:]]
        plan = make("dswap", system, together=pairs)
        steps = plan_steps(plan)
        assert np.allclose([one["utilisation"] for one in steps[-1]["arrays"]], plan.after)
    assert plan_steps(dswap(example()))[-1]["solved"]
