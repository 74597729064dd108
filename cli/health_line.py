"""The one line of ``raidx status --check``: a verdict and performance data, as Nagios reads them.

    OK: disk clean, 1 more loss tolerated | 'disk members_active'=4;4:;;0;4 'disk errors'=0c ...

Guidelines of the plugins of Nagios: 'label'=value[UOM];[warn];[crit];[min];[max]; "4:" alerts below
4. The exit status is that of `raidx status --check`, where 4, not 3, means unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raidx_fuse.cli.status_text import redundancy
from raidx_fuse.client.status_document import EXIT_DEGRADED, EXIT_FAILED, EXIT_HEALTHY, exit_status

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayReport

VERDICTS = {EXIT_HEALTHY: "OK", EXIT_DEGRADED: "WARNING", EXIT_FAILED: "CRITICAL"}


def health_line(arrays: Sequence[ArrayReport], problems: Sequence[str], worst: int) -> str:
    """Return the line about *arrays*; *worst* is the exit status of the command."""
    found = [_words(array) for array in sorted(arrays, key=exit_status, reverse=True)]
    words = "; ".join([*found, *problems]) or "no array is mounted"
    data = " ".join(each for array in arrays for each in _data(array))
    line = f"{VERDICTS.get(worst, 'UNKNOWN')}: {words}"
    return f"{line} | {data}" if data else line


def _words(array: ArrayReport) -> str:
    text = f"{array['name']} {array['state']}"
    if exit_status(array) == EXIT_HEALTHY:
        return f"{text}, {redundancy(array['redundancy_left'])}"
    action = f"; {array['action']}" if array.get("action") else ""
    return (text + action).replace("|", "/")  # a bar begins the performance data


def _data(array: ArrayReport) -> list[str]:
    members = [member for member in array["members"] if member["role"] >= 0]
    active = sum(member["state"] == "active" for member in members)
    errors = sum(member.get("errors_ever") or 0 for member in members)
    values = {
        "members_active": f"{active};{len(members)}:;;0;{len(members)}",
        "redundancy_left": f"{array['redundancy_left']};;;0",
        "errors": f"{errors}c",
        "jobs": f"{len(array.get('jobs', ()))};;;0",
    }
    if "lost_chunks" in array:  # at rest this and what was written are not known
        values["lost_chunks"] = f"{array['lost_chunks']};0;0;0"
    if "written" in array:
        values["written"] = f"{array['written']}B;;;0;{array['size']}"
    name = array["name"].replace("'", "").replace("=", "_")
    return [f"'{name} {key}'={value}" for key, value in values.items()]
