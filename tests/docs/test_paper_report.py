"""Figures of the papers on the pages: all come from the dated report of bench/figures/report.py."""

from __future__ import annotations

import datetime
import importlib
import json
import re
from typing import Any

import pytest

from tests.docs.pages import ROOT, TEXTS

AGAIN = "differ: python bench/figures/report.py --write"
PAPERS = {"upc", "bpu", "mcpod", "raidx", "raidx_disks", "dswap", "dswap_prototype"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "bench" / "figures")
    return importlib.import_module("report_page")


@pytest.fixture
def report(made: Any) -> Any:
    return json.loads(made.REPORT.read_text())


def test_the_page_is_that_of_the_report(made: Any, report: Any) -> None:
    assert made.page(report) == made.PAGE.read_text(), AGAIN


def test_the_headlines_are_those_of_the_report(made: Any, report: Any) -> None:
    text = TEXTS["bench/README.md"]
    block = made.headlines(report)
    assert made.replaced(text, block) == text, AGAIN
    assert f"{made.BEGIN}\n{block}\n" in text
    rows = [line for line in block.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(made.HEADLINES)
    for row in rows:
        words, _paper, as_paper, ours = (cell.strip() for cell in row.strip("|").split("|"))
        assert all((words, as_paper, ours)), row


def test_the_report_says_when_on_which_commit_and_how(report: Any) -> None:
    assert set(report) >= PAPERS
    for name, part in report.items():
        assert datetime.date.fromisoformat(part["date"]) >= datetime.date(2026, 1, 1), name
        assert re.fullmatch(r"[0-9a-f]{7,40}\+?", part["commit"]), name
        assert isinstance(part["quick"], bool), name
        assert part["tables"], name


def test_tables_with_figures_of_a_paper_have_three_columns_or_say_why_not(
    made: Any, report: Any
) -> None:
    """The paper's, as in the paper, ours; and each says why they differ."""
    one = set()
    for name in PAPERS:
        for table in report[name]["tables"]:
            columns = table["columns"]
            if not any(column.startswith("paper") for column in columns):
                continue
            assert table["remark"], f"{name}, {table['ident']}: nothing says why they differ"
            if not any("as in the paper" in column for column in columns):
                one.add((name, table["ident"]))
                continue
            assert any("ours" in column or "better by" in column for column in columns), table
    assert one == set(made.ONE_SETTING)


def test_why_even_addresses_gain_nothing_stands_on_the_page(made: Any) -> None:
    text = made.PAGE.read_text()
    assert "UPC's expected gain is zero, whatever the scheduler" in text
    assert "paper's piggyback *into* the surrogate" in text


def test_other_pages_have_no_gains_of_the_papers() -> None:
    gain = re.compile(r"[+-]\d+\.\d %|\(s\.e\. ")
    for name, text in TEXTS.items():
        if name == "bench/README.md":
            text = text.partition("<!-- python bench/figures/report.py")[0]
        assert not gain.findall(text), f"{name}: {gain.findall(text)} is in no report"
