"""The document of `raidx status`, `wait`, `mount` and `create`: one shape, internal values apart.

A script reads every array in `arrays`. Where exactly one mount or array was asked for, its own keys
stand at the top as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayStatus, Status

# Counters and states of the implementation. They may change or go without a new output_version.
INTERNAL = (
    *("layout_parameters", "events", "poll_first", "tuning", "awake", "bugs"),
    "log",  # what log_path was called
)


def public(status: Mapping[str, Any]) -> ArrayStatus:
    """Return *status*, of one array or one mount, with its internal values below ``internal``."""
    shown = {key: value for key, value in status.items() if key not in INTERNAL}
    internal = {key: status[key] for key in INTERNAL if key in status}
    return cast("ArrayStatus", {**shown, "internal": internal})


def document(
    found: Sequence[Mapping[str, Any]], problems: Sequence[Mapping[str, Any]] = ()
) -> Status:
    """Return the document about the mounts or arrays *found*, and *problems* with other mounts."""
    arrays = [public(array) for each in found for array in each.get("arrays", [each])]
    top: Mapping[str, Any] = public(found[0]) if len(found) == 1 else {}
    return cast("Status", {**top, "arrays": arrays, "problems": list(problems)})
