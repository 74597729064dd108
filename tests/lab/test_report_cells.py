"""A cheap cell of each section of the papers' report, made again: the page is of today's code."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.lab.conftest import BENCH

REPORT: dict[str, Any] = json.loads((BENCH / "report.json").read_text())


@pytest.fixture
def cells(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("report_cells")


def test_each_section_has_a_cell_or_is_known_to_be_older(cells: ModuleType) -> None:
    assert sorted([*(again.section for again in cells.AGAIN), *cells.OLDER]) == sorted(REPORT)


@pytest.mark.parametrize("section", sorted(REPORT))
def test_a_cell_that_is_made_again_is_that_of_the_report_to_the_digit(
    cells: ModuleType, section: str
) -> None:
    for again in (again for again in cells.AGAIN if again.section == section):
        assert REPORT[section]["quick"], "cells are those of quick runs"
        (table,) = (t for t in REPORT[section]["tables"] if t["ident"] == again.ident)
        row = next(r for r in table["rows"] if tuple(r[: len(again.cells)]) == again.cells)
        shown = row[table["columns"].index(again.column)]
        assert again.make() == shown, (
            f"{section}, {again.ident}: python bench/figures/report.py --quick --write "
            f"--only {section}"
        )
