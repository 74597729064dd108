"""The document of `raidx status`, `wait`, `mount` and `create`: one shape, internal values apart.

A script reads every array in `arrays`. Where exactly one mount or array was asked for, its own keys
stand at the top as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayReport, ArrayStatus, MountProblem, Status

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
