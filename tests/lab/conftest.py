"""What tests of the laboratory share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "figures"
sys.path.insert(0, str(BENCH))


@pytest.fixture
def program() -> Callable[[str], ModuleType]:
    """Import a module of bench/figures, which makes the tables of a paper, by its name."""
    return importlib.import_module
