"""Figures of the papers on the pages: all come from the dated report of bench/figures/report.py."""

from __future__ import annotations

import datetime
import importlib
import json
import re
from fractions import Fraction
from typing import Any
from xml.etree import ElementTree

import pytest

from raidx_fuse.layouts.placements.elastic_mapping import ElasticMapping
from tests.docs.pages import NAMES, ROOT, TEXTS, rows

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
        words, _paper, as_paper, ours, run = (cell.strip() for cell in row.strip("|").split("|"))
        assert all((words, as_paper, ours, run)), row
    assert block.count("`--quick`") == sum(
        report[headline.section]["quick"] for headline in made.HEADLINES
    )


def test_the_report_says_when_on_which_commit_and_how(report: Any) -> None:
    assert set(report) >= PAPERS
    for name, part in report.items():
        assert datetime.date.fromisoformat(part["date"]) >= datetime.date(2026, 1, 1), name
        assert re.fullmatch(r"[0-9a-f]{7,40}\+?", part["commit"]), name
        assert isinstance(part["quick"], bool), name
        assert part["tables"], name


def test_each_figure_says_of_which_run_it_is(made: Any, report: Any) -> None:
    text = made.PAGE.read_text()
    for name, part in report.items():
        section = text.partition(f"\n## {part['title']}\n")[2].partition("\n## ")[0]
        assert section.count(f"\nRun: {made.mark_of(part)}.\n") == len(part["tables"]), name
        assert ("--quick" in made.mark_of(part)) == part["quick"]


def test_the_pictures_are_those_of_the_report(made: Any, report: Any) -> None:
    pictures = importlib.import_module("report_pictures")
    text = made.PAGE.read_text()
    wanted = {picture.name: picture.digest() for picture in made.pictures(report)}
    wanted[f"{made.PICTURE}.svg"] = pictures.headlines_digest(made.headline_lines(report))
    found = {path.name: pictures.signed(path) for path in made.FOLDER.glob("*.svg")}
    assert found == wanted, AGAIN
    for name in wanted:
        assert f"]({made.FOLDER.name}/{name})" in text
        assert ElementTree.parse(made.FOLDER / name).getroot().tag.endswith("svg")
    for section, ident, number in pictures.PAPER:
        tables = [table for table in report[section]["tables"] if table["ident"] == ident]
        assert tables, (section, ident)
        assert number < len(tables[0]["charts"])


def test_the_headline_picture_has_all_five_papers(made: Any, report: Any) -> None:
    pictures = importlib.import_module("report_pictures")
    lines = made.headline_lines(report)
    assert {line.words.partition(":")[0].partition(",")[0] for line in lines} == {
        *("UPC", "BPU", "McPod", "RAIDX", "Dswap")
    }
    for line in lines:
        for cell in (line.as_paper, line.ours):
            span = pictures.span_of(cell)
            assert span.low <= span.value <= span.high, line


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
    gain = re.compile(r"[+-]\d+\.\d %|\(s\.e\. |, n = \d")
    for name, text in TEXTS.items():
        if name == "bench/README.md":
            text = text.partition("<!-- python bench/figures/report.py")[0]
        assert not gain.findall(text), f"{name}: {gain.findall(text)} is in no report"


# -- figures of pages ------------------------------------------------------------------------------


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
