"""Is an array well? In numbers, as `raidx status --check` answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXIT_HEALTHY, EXIT_DEGRADED, EXIT_FAILED, EXIT_UNKNOWN = 0, 1, 2, 4
REDUCED_STATES = ("degraded", "rebuilding", "restoring", "resyncing", "unclean")
HEALTHY = "healthy"  # a word for `is_in` beside the states


def exit_status(status: Mapping[str, Any]) -> int:
    """Return the exit status of ``status --check``: 0 healthy, 1 degraded, 2 failed, 4 unknown."""
    if status["state"] == "unknown":
        return EXIT_UNKNOWN
    if status["state"] == "failed":
        return EXIT_FAILED
    in_role = [member for member in status["members"] if member["role"] >= 0]
    if status["state"] in REDUCED_STATES or any(m["state"] != "active" for m in in_role):
        return EXIT_DEGRADED
    if status.get("host_full"):  # new writes fail
        return EXIT_DEGRADED
    return EXIT_HEALTHY


def is_in(status: Mapping[str, Any], states: tuple[str, ...]) -> bool:
    """Return whether an array is in one of *states*, or healthy if that is among them."""
    return status["state"] in states or (HEALTHY in states and exit_status(status) == 0)


def nothing_helps(status: Mapping[str, Any], states: tuple[str, ...]) -> bool:
    """Return whether an array that is not in *states* stays so: degraded, and nothing works on it.

    A user has to do something first; *action* of the status says what.
    """
    return (
        not is_in(status, states)
        and status["state"] in ("degraded", "failed")
        and not status.get("jobs")
    )
