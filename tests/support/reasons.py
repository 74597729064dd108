"""Checks of why something was refused: the sentence of an error is for people."""

from __future__ import annotations

from collections.abc import Callable

from raidx_fuse.errors import RaidxError, Reason


def because(reason: Reason) -> Callable[[RaidxError], bool]:
    """Return the *check* of `pytest.raises` for errors with that *reason*."""
    return lambda error: error.reason is reason
