"""A campaign with a minimum gives every row of the matrix so many states, and its page says so."""

from __future__ import annotations

import pytest

from raidx_fuse.lab.crash import campaign
from raidx_fuse.lab.crash.campaign import Coverage, Tally, crash_workloads
from raidx_fuse.lab.crash.state import Cell

CELL = Cell("raid4", "partial")


def test_a_focus_draws_only_moments_of_its_verb() -> None:
    tally = crash_workloads(
        Cell("raid4", "partial", theme="growth"), range(1, 40), 6, focus="grow surrogate", each=6
    )
    assert {verb for _, verb, _ in tally.states} == {"grow surrogate"}
    assert tally.total >= 6
    assert not tally.violations, tally.report()


def test_rounds_go_on_until_every_row_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """With counts instead of crashes: each task gives what it was asked for, or less."""
    monkeypatch.setattr(campaign, "themes_of", lambda _cell: {"growth": None, "writes": None})
    plan = Coverage([CELL], 10, 7)
    given: list[list[campaign.Task]] = []
    for tasks in plan.rounds():
        given.append(tasks)
        for task in tasks:
            tally = Tally()
            if task.focus:
                tally.states[str(task.cell), task.focus, "cut"] = min(task.states, 4)
            else:
                tally.states[str(task.cell), "flush", "cut"] = 30
                if task.cell.theme == "growth":
                    tally.states[str(task.cell), "grow live", "cut"] = 3
            plan.note(tally)
    assert [task.cell.theme for task in given[0]] == ["growth", "writes"]
    assert [
        (task.focus, task.cell.theme, task.states) for tasks in given[1:] for task in tasks
    ] == [
        ("grow live", "growth", 7),
        ("grow live", "growth", 3),
    ]
    seeds = [task.first_seed for tasks in given for task in tasks]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 7 * campaign.SEEDS_OF_CAMPAIGN + 500_000
    assert max(seeds) < 8 * campaign.SEEDS_OF_CAMPAIGN
    assert plan.missing() == {}


def test_rows_of_one_cell_stand_together_whatever_the_theme() -> None:
    tally = Tally(workloads=3)
    tally.states["raid4:partial", "flush", "cut"] = 5
    tally.states["raid4:partial:growth", "flush", "cut"] = 2
    tally.states["raid4:partial:growth", "grow live", "cut"] = 1
    rows = campaign.rows_of(tally)
    assert [(cell, verb, counts[0]) for cell, verb, counts in rows] == [
        ("raid4:partial", "flush", (7, 0)),
        ("raid4:partial", "grow live", (1, 0)),
        ("raid4:partial", "all", (8, 0)),
    ]
    page = campaign.markdown(tally, "command", "2026-01-01", 1.0)
    assert "A dash means" in page
