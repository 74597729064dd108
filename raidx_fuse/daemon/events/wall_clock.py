"""The wall clock: dates for people. No computation of an array uses it."""

from __future__ import annotations

import time


def unix_s() -> int:
    """Return the seconds since 1970."""
    return int(time.time())
