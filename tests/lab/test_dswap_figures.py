"""The Dswap paper's Figs. 3 to 5 at a small size: sign and range of what the paper says."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from raidx_fuse.pool.balance.dswap import dswap
from raidx_fuse.pool.balance.system import ArraySpec, VolumeSpec, make_system

BENCH = Path(__file__).parents[2] / "bench" / "figures"
RUNS = 10


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dswap_runs", BENCH / "dswap_runs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dswap_runs"] = module
    spec.loader.exec_module(module)
    return module


Cost = Callable[..., tuple[float, float]]


@pytest.fixture
def cost(runs: ModuleType) -> Cost:
    """A function: mean cost in percent and share of runs with a plan, of one planner."""

    def of(planner: str, **how: float) -> tuple[float, float]:
        found = [runs.planned(runs.Run((planner,), seed, **how))[0] for seed in range(RUNS)]
        costs = [cost for solved, cost in found if solved]
        return statistics.fmean(costs) if costs else 0.0, len(costs) / RUNS

    return of


def test_the_default_system_is_the_papers(runs: ModuleType) -> None:
    systems = [runs.paper_system(runs.Run((), seed)) for seed in range(RUNS)]
    volumes = statistics.fmean(len(system.volumes) for system in systems)
    assert volumes == pytest.approx(100, rel=0.1)  # "around 100 volumes in the system"
    for system in systems:
        assert system.size.min() >= runs.GB / 4
        assert system.size.max() <= 16 * runs.GB
        used = [int(system.size[system.where == j].sum()) for j in range(4)]
        assert used == [216 * runs.GB] * 4
        loads = sorted(float(system.own_need()[system.where == j].sum()) for j in range(4))
        assert loads == pytest.approx([50, 50, 85, 85])


@pytest.mark.parametrize("arrays", [2, 6])
def test_fig_3a_dswap_moves_less_than_half_of_random_reassignment(cost: Cost, arrays: int) -> None:
    random = cost("random-reassign", arrays=arrays)[0]
    assert 2 * cost("dswap-paper", arrays=arrays)[0] < random
    assert cost("dswap", arrays=arrays)[0] <= cost("dswap-paper", arrays=arrays)[0]


def test_fig_3a_the_cost_of_dswap_does_not_depend_on_the_size(cost: Cost) -> None:
    found = [cost("dswap", arrays=arrays)[0] for arrays in (2, 6, 10)]
    assert max(found) < 2 * min(found)


def test_fig_3a_random_reassignment_rises_with_the_size_if_it_is_read_literally(
    runs: ModuleType, cost: Cost
) -> None:
    small, large = (cost(runs.LITERAL, arrays=arrays) for arrays in (2, 10))
    assert small[1] == large[1] == 1.0
    assert 3 < small[0] < 6  # percent
    assert 1.2 * small[0] < large[0] < 9
    ours = [cost("random-reassign", arrays=arrays)[0] for arrays in (2, 10)]
    assert ours[1] < 1.2 * ours[0]


def test_fig_3b_from_scratch_costs_about_ten_times_more_and_rises(cost: Cost) -> None:
    for planner in ("random-packing", "bsr"):
        small, large = (cost(planner, arrays=arrays)[0] for arrays in (2, 6))
        assert 8 * cost("random-reassign", arrays=2)[0] < small < large
        assert 10 * cost("dswap", arrays=2)[0] < small


def test_fig_4a_the_cost_does_not_depend_on_the_utilisation(cost: Cost) -> None:
    low, high = (cost("dswap", load=load)[0] for load in (0.5, 0.65))
    assert 0.5 < low / high < 2


def test_fig_4b_the_cost_rises_with_the_overload(cost: Cost) -> None:
    for planner in ("dswap", "dswap-paper", "random-reassign"):
        small, large = (cost(planner, over=over)[0] for over in (0.02, 0.1))
        assert 1.5 * small < large < 10 * small


def test_fig_5a_the_cost_hardly_depends_on_the_space_used(cost: Cost) -> None:
    low, high = (cost("dswap", space=space)[0] for space in (0.6, 0.9))
    assert 0.5 < low / high < 2


def test_fig_5b_only_dswap_and_best_fit_succeed_without_free_space(cost: Cost) -> None:
    assert cost("dswap", space=1.0)[1] == 1.0
    assert cost("best-fit", space=1.0)[1] >= 0.9
    for planner in ("bsr", "random-reassign", "worst-fit"):
        assert cost(planner, space=1.0)[1] <= 0.1


@pytest.mark.parametrize(("gamma", "swapped"), [(0.01, 1), (0.14, 1), (0.2, 2), (0.25, 2)])
def test_fig_7_has_two_swaps_if_gamma_is_larger(gamma: float, swapped: int) -> None:
    """The prototype's loads when the hotspot is found, as the monitor sees them in bench/."""
    unlike = (4, 4, 8, 8, 16, 16)
    need = {0: 0.0907, 1: 0.0122, 2: 0.0082, 3: 0.0166}  # of an array, by each of its volumes
    sizes = {0: unlike, 1: unlike, 2: (4,) * 14, 3: (4,) * 14, 4: ()}
    targets = ["a0", "a1", "a2", "a3"]  # the fifth is scratch
    system = make_system(
        [ArraySpec(f"a{j}", 1.0, 56, 0.5) for j in sizes],
        [
            VolumeSpec(f"v{j}.{i}", size, f"a{j}", need[j], only=targets)
            for j, several in sizes.items()
            for i, size in enumerate(several)
        ],
    )
    plan = dswap(system, gamma=gamma)
    assert plan.solved
    gone = [move for move in plan.moves if move.source == 0]
    assert [int(system.size[move.volume]) for move in gone] == [4] * swapped
    assert plan.cost_bytes == 2 * 4 * swapped
