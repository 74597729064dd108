"""The McPod paper's program at small size: sign and range of growth under load."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

MIB = 1 << 20


@pytest.fixture
def mcpod(program: Callable[[str], ModuleType]) -> ModuleType:
    """The module of bench/ that makes the tables."""
    return program("paper_mcpod")


def test_under_tpcc_mcpod_ends_sooner_and_serves_users_better(mcpod: ModuleType) -> None:
    ours, theirs = (mcpod.during("tpcc", 300, 32 * MIB, how) for how in (mcpod.LIVE, mcpod.MD))
    taken = [result["events"][0]["job_ended_s"] for result in (ours, theirs)]
    assert taken[0] < 0.35 * taken[1]  # the paper: 79.64 % less
    whole = [result["response_ms"]["mean"] for result in (ours, theirs)]
    assert 0.5 < whole[0] / whole[1] < 0.98  # the paper: 27.16 % less
    meanwhile = [result["events"][0]["during"]["requests"] for result in (ours, theirs)]
    assert 0 < meanwhile[0] < meanwhile[1] <= 300


def test_less_is_positive_when_it_takes_less(mcpod: ModuleType) -> None:
    assert mcpod.less(50.0, 100.0) == "+50.0 %"
    assert mcpod.less(110.0, 100.0) == "-10.0 %"
