"""Tests are checked, too: what they define is used.

A test whose inner function is never run passes whatever the product does. Neither ruff nor mypy
notices it.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def unused(source: str) -> Iterator[str]:
    """Yield the names of functions that a function defines and never names again."""
    for outer in ast.walk(ast.parse(source)):
        if not isinstance(outer, FUNCTIONS):
            continue
        named = {node.id for node in ast.walk(outer) if isinstance(node, ast.Name)}
        for inner in outer.body:
            if not isinstance(inner, FUNCTIONS) or inner.decorator_list:
                continue
            if inner.name not in named:
                yield f"{outer.name}: {inner.name}"


def test_what_a_test_defines_is_used() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in unused(path.read_text())
    ]
    assert not found


def test_a_function_that_nobody_runs_is_found() -> None:
    used = "def test_it():\n    async def main():\n        assert False\n    run(main)\n"
    assert not list(unused(used))
    assert list(unused(used.removesuffix("    run(main)\n"))) == ["test_it: main"]


@settings(max_examples=1)
@given(st.integers())
def test_an_example_may_take_long(number: int) -> None:
    assert number is not None
    time.sleep(0.25)  # the deadline of Hypothesis is 0.2
