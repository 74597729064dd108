"""A machine that is busy fails no test of drawn examples."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=1)
@given(st.integers())
def test_an_example_may_take_long(number: int) -> None:
    assert number is not None
    time.sleep(0.25)  # the deadline of Hypothesis is 0.2
