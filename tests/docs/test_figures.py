"""Figures on the pages: all of them come from the dated report of bench/speed/table.py."""

from __future__ import annotations

import datetime
import importlib
import json
import re
from fractions import Fraction
from typing import Any

import pytest

from raidx_fuse.layouts.placements.elastic_mapping import ElasticMapping
from tests.docs.pages import NAMES, ROOT, TEXTS, rows

SPEED = r"\d[\d.]*x\b|\d[\d.,]* ?(?:[KMG]i?B/s|/s|us|ms|times (?:as|the)|requests)\b"
PAGES = ("README.md", "bench/README.md")
ASKED = re.compile(r"speed_(?:max|min)=\S+|at \d+ MiB/s \(assumed\)")  # settings, and their default


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that makes the pages' figures."""
    monkeypatch.syspath_prepend(ROOT / "bench" / "speed")
    return importlib.import_module("page")


def test_the_figures_are_those_of_the_report(page: Any) -> None:
    report = json.loads(page.REPORT.read_text())
    made = page.blocks(report)
    assert set(made) == set(PAGES)
    for name, text in made.items():
        assert page.replaced(TEXTS[name], text) == TEXTS[name], (
            f"{name} and bench/speed/report.json differ: python bench/speed/table.py --write"
        )


def test_the_report_says_when_and_how_it_was_measured(page: Any) -> None:
    report = json.loads(page.REPORT.read_text())
    for name, part in report.items():
        assert datetime.date.fromisoformat(part["date"]) >= datetime.date(2026, 1, 1), name
        assert re.fullmatch(r"[0-9a-f]{7,40}\+?", part["commit"]), name
        assert min(part["processors"], part["rounds"], len(part["lines"])) >= 1, name
        assert part["load"] >= 0, name
        for line in part["lines"]:
            assert line["low"] <= line["value"] <= line["high"], f"{name}: {line['row']}"


@pytest.mark.parametrize("name", NAMES)
def test_no_page_has_a_speed_that_the_report_does_not_have(name: str, page: Any) -> None:
    text = TEXTS[name]
    if name in PAGES:
        text = page.replaced(text, "")
    text = re.sub(r"```(?!text|console).*?```", "", text, flags=re.DOTALL)
    found = re.findall(SPEED, ASKED.sub("", text))
    assert not found, f"{name}: {found} is in no report"


def test_figures_are_noticed() -> None:
    for text in ("3.1x", "412 MiB/s", "12,000 /s", "21 us", "2 times as fast", "300 requests"):
        assert re.search(SPEED, text), text


def test_what_a_growth_moves_is_what_the_placement_moves() -> None:
    (row,) = (row for row in rows("bench/README.md", "## Growth") if "what moves" in row[0])
    assert row[0] == "what moves, 4+1 and 4+2 members of raid4"
    stripes = 4 * 5 * 20
    old = ElasticMapping((3,)).members(0, stripes)  # data disks: one of four members has the parity
    moved = []
    for added in (1, 2):
        new = ElasticMapping((3, 3 + added)).members(0, stripes)[:, :3]
        moved.append(Fraction(int((old != new).sum()), old.size))
    assert moved == [Fraction(text) for text in re.findall(r"\d/\d", row[1])]
