"""Is an array well? In numbers, as `raidx status --check` answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raidx_fuse.errors import TimedOutError

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayDetails

EXIT_HEALTHY, EXIT_DEGRADED, EXIT_FAILED, EXIT_UNKNOWN = 0, 1, 2, 4
REDUCED_STATES = ("degraded", "rebuilding", "restoring", "resyncing", "unclean")
HEALTHY = "healthy"  # a word for `is_in` beside the states


def exit_status(status: ArrayDetails) -> int:
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


def is_in(status: ArrayDetails, states: tuple[str, ...]) -> bool:
    """Return whether an array is in one of *states*, or healthy if that is among them."""
    return status["state"] in states or (HEALTHY in states and exit_status(status) == 0)


def nothing_helps(status: ArrayDetails, states: tuple[str, ...]) -> bool:
    """Return whether an array that is not in *states* stays so: degraded, and nothing works on it.

    A user has to do something first; *action* of the status says what.
    """
    return (
        not is_in(status, states)
        and status["state"] in ("degraded", "failed")
        and not status.get("jobs")
    )


def late(
    arrays: Sequence[ArrayDetails], states: tuple[str, ...], timeout_s: float
) -> TimedOutError:
    """Return the error for *arrays*, not all of which are in *states* after *timeout_s*."""
    wrong = next(each for each in arrays if not is_in(each, states))
    return TimedOutError(
        f"{wrong['name']} is {wrong['state']}, not {' or '.join(states)}, after {timeout_s:g} s",
        action=wrong["action"],
    )
