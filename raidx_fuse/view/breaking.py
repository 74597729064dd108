"""What the page's buttons ask for, as commands of the daemon: nothing else can be asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raidx_fuse.errors import UsageError, unknown
from raidx_fuse.view.source import Source

MEMBER_CHARS_MAX = 4096
INJECTED = (
    "rot",
    "bad-area",
    "bad-sector",
    "lose-write",
    "torn-write",
    "misdirect",
    "hang",
    "slow",
    "vanish",
    "return",
)
FIELDS = {  # action -> the fields that it needs, all of them texts
    "fail-disk": ("member",),
    "replace-disk": ("member",),
    "inject": ("member", "fault"),
    "add-disk": (),
    "tune": (),
    "scrub": (),
}


def command_of(request: Mapping[str, Any], source: Source) -> tuple[str, dict[str, Any]]:
    """Return (command, arguments) for the daemon. Raises UsageError."""
    action = request.get("action")
    if not isinstance(action, str) or action not in FIELDS or action not in source.actions:
        raise unknown("action", str(action)[:40], source.actions)
    if set(request) - {"action", *FIELDS[action]}:
        raise UsageError(f"{action} takes {', '.join(FIELDS[action]) or 'nothing else'}")
    values = {}
    for name in FIELDS[action]:
        value = request.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= MEMBER_CHARS_MAX:
            raise UsageError(f"{action} needs {name}, a text")
        values[name] = value
    if action == "inject" and values["fault"] not in INJECTED:
        raise unknown("fault", values["fault"], INJECTED)
    if action == "replace-disk":
        member = values["member"]
        return action, {"old": member, "new": source.replacement(member)}
    if action == "add-disk":
        return action, {"members": [source.replacement("")]}
    return action, values
