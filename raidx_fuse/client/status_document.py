"""The document of `raidx status`, `wait`, `mount` and `create`: one shape, internal values apart.

A script reads every array in `arrays`. Where exactly one mount or array was asked for, its own keys
stand at the top as well. The functions at the end say whether an array is well, in numbers, as
`raidx status --check` answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from raidx_fuse.errors import TimedOutError

if TYPE_CHECKING:
    from raidx_fuse.documents import (
        ArrayDetails,
        ArrayReport,
        ArrayStatus,
        MountProblem,
        Status,
    )

EXIT_HEALTHY, EXIT_DEGRADED, EXIT_FAILED, EXIT_UNKNOWN = 0, 1, 2, 4
REDUCED_STATES = ("degraded", "rebuilding", "restoring", "resyncing", "unclean")
HEALTHY = "healthy"  # a word for `is_in` beside the states

# Counters and states of the implementation. They may change or go without a new output_version.
INTERNAL = (
    *("layout_parameters", "events", "poll_first", "tuning", "awake", "bugs"),
    "log",  # what log_path was called
)


def public(status: ArrayReport) -> ArrayStatus:
    """Return *status*, of one array or one mount, with its internal values below ``internal``."""
    values: Mapping[str, object] = status
    shown = {key: value for key, value in values.items() if key not in INTERNAL}
    internal = {key: values[key] for key in INTERNAL if key in values}
    return cast("ArrayStatus", {**shown, "internal": internal})


def document(found: Sequence[ArrayReport], problems: Sequence[MountProblem] = ()) -> Status:
    """Return the document about the mounts or arrays *found*, and *problems* with other mounts."""
    arrays = [public(array) for each in found for array in each.get("arrays", [each])]
    lists = {"arrays": arrays, "problems": list(problems)}
    return cast("Status", {**public(found[0]), **lists} if len(found) == 1 else lists)


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

    A user has to do something first; *action* of the status says what. A raidx array may be about
    to restore lost chunks by itself.
    """
    restore = status.get("restore")
    restores = restore is not None and restore["begins_in_seconds"] is not None
    return (
        not is_in(status, states)
        and status["state"] in ("degraded", "failed")
        and not status.get("jobs")
        and not (restores and status["state"] == "degraded")
    )


def late(
    arrays: Sequence[ArrayDetails], states: tuple[str, ...], timeout_s: float
) -> TimedOutError:
    """Return the error for *arrays*, not all of which are in *states* after *timeout_s*."""
    wrong = next(each for each in arrays if not is_in(each, states))
    stays = ", and stays so: no job runs" if nothing_helps(wrong, states) else ""
    return TimedOutError(
        f"{wrong['name']} is {wrong['state']}, not {' or '.join(states)}, after {timeout_s:g} s"
        f"{stays}",
        action=wrong["action"],
    )


class Standstill:
    """Arrays that are looked at until they are in one of *states*, and that nothing leads there.

    That is found at *looks* looks one after the other, as a spare may be about to take over.
    """

    def __init__(self, states: tuple[str, ...], looks: int) -> None:
        self._states = states
        self._looks = looks
        self._stuck: Counter[str] = Counter()

    def look(self, arrays: Sequence[ArrayDetails]) -> tuple[TimedOutError, bool] | None:
        """Return why one of *arrays* stays as it is, and whether that is sure; None if it may not.

        The first look at which it seems so counts only.
        """
        for each in arrays:
            name = each["name"]
            self._stuck[name] += 1
            if not nothing_helps(each, self._states):
                self._stuck[name] = 0
            elif self._stuck[name] in (1, self._looks):
                error = TimedOutError(
                    f"{name} is {each['state']} and no job runs, so it stays as it is",
                    action=each.get("action"),
                )
                return error, self._stuck[name] == self._looks
        return None
