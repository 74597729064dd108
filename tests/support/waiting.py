"""Waiting in real time for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def await_that(holds: Callable[[], object], what: object = "", limit_s: float = 60.0) -> None:
    """Return when *holds* returns something true; fail, saying *what*, if it never does."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, f"never: {what() if callable(what) else what}"
        time.sleep(0.02)
