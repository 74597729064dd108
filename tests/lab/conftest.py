"""What tests of the laboratory share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "figures"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of bench/figures, which makes the tables of a paper, by its name."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module
