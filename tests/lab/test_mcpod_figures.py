"""The McPod paper's program at small size: sign and range of growth under load."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

MIB = 1 << 20


@pytest.fixture
def mcpod(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("paper_mcpod")


def test_at_the_papers_rates_mcpod_takes_as_much_less_time_as_in_the_paper(
    mcpod: ModuleType,
) -> None:
    """Under tpcc; both jobs are held at their rates, where nobody asks, too."""
    ours, theirs = (
        mcpod.during("tpcc", 300, 32 * MIB, how) for how in (mcpod.LIVE, mcpod.MD_FLUSHES)
    )
    taken = [result["events"][0]["job_ended_s"] for result in (ours, theirs)]
    disk_kib = (taken[0] * mcpod.PAPER_MCPOD_KIB_S["tpcc"], taken[1] * mcpod.PAPER_MD_KIB_S)
    assert disk_kib == pytest.approx((32 << 10, 32 << 10), rel=0.1)
    assert 1 - taken[0] / taken[1] == pytest.approx(0.7964, abs=0.02)  # the paper's 79.64 %
    whole, during = (
        [r["response_ms"]["mean"] for r in each]
        for each in ((ours, theirs), [result["events"][0]["during"] for result in (ours, theirs)])
    )
    assert 0.4 < whole[0] / whole[1] < 0.98
    assert during[0] < during[1]  # the paper: 27.16 % less
    meanwhile = [result["events"][0]["during"]["requests"] for result in (ours, theirs)]
    assert 0 < meanwhile[0] < meanwhile[1] <= 300


def test_the_papers_times_are_its_throttles(mcpod: ModuleType) -> None:
    alone = {(row[0], row[1]): (row[4], row[3]) for row in mcpod.throttles().rows}
    for case, hours_or_s, unit_s in (
        (("financial1", "McPod"), 13_107, 1),
        (("tpcc", "McPod"), 2.91, 3600),
        (("tpcc", "MD-Reshape"), 14.56, 3600),
    ):
        by_throttle, paper = alone[case]
        assert by_throttle / unit_s == pytest.approx(hours_or_s, rel=1e-3)
        assert by_throttle == pytest.approx(paper, rel=0.01)
    by_throttle, paper = alone["financial1", "MD-Reshape"]
    assert paper < 0.8 * by_throttle  # md was quicker than its throttle


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
