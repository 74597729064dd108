"""The McPod paper's program at small size: sign and range of growth under load."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

MIB = 1 << 20


@pytest.fixture
def mcpod(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("paper_mcpod")


def test_under_tpcc_mcpod_ends_sooner_and_serves_users_better(mcpod: ModuleType) -> None:
    ours, theirs = (mcpod.during("tpcc", 300, 32 * MIB, how) for how in (mcpod.LIVE, mcpod.MD))
    taken = [result["events"][0]["job_ended_s"] for result in (ours, theirs)]
    assert taken[0] < 0.35 * taken[1]  # the paper: 79.64 % less
    whole = [result["response_ms"]["mean"] for result in (ours, theirs)]
    assert 0.4 < whole[0] / whole[1] < 0.98  # the paper: 27.16 % less
    meanwhile = [result["events"][0]["during"]["requests"] for result in (ours, theirs)]
    assert 0 < meanwhile[0] < meanwhile[1] <= 300


def test_less_is_positive_when_it_takes_less(mcpod: ModuleType) -> None:
    assert mcpod.less(50.0, 100.0) == "+50.0 %"
    assert mcpod.less(110.0, 100.0) == "-10.0 %"


def test_a_cache_of_the_controller_passes_the_papers_milliseconds(
    program: Callable[[str], ModuleType],
) -> None:
    """1.18 ms is between the disks' time and the cache's; McPod stays beside round robin."""
    after = program("mcpod_after")
    means = {
        (share, bool(params)): after.behind_cache(share, params, 32 * MIB, 400, 1)["response_ms"][
            "mean"
        ]
        for share in (0.0, 0.8, 1.0)
        for params in ({}, {"history": [4, 5]})
    }
    for grown in (False, True):
        assert means[0.0, grown] > 4.2  # half a turn
        assert means[1.0, grown] < 1.18 < means[0.0, grown]
        assert means[1.0, grown] < means[0.8, grown] < means[0.0, grown] / 4
    assert 0.8 < means[0.0, True] / means[0.0, False] < 1.2
