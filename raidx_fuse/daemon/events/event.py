"""One event of an array: what happened, to what, and what to do next."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

INFO, WARNING, ERROR = "info", "warning", "error"
SEVERITIES = (INFO, WARNING, ERROR)
TEXT_CHARS_MAX = 1000
AT_S_MAX = 253_402_300_799  # the last second of the year 9999


@dataclass(frozen=True, slots=True)
class Event:
    """An event; *event* is mdadm's word where mdadm has one (mdadm(8), "MONITOR MODE").

    *at_s* are seconds since 1970. *subject* is a member's path or a kind of job, or empty. *action*
    is the next step for the owner, or None.
    """

    at_s: int
    event: str
    severity: str
    array: str
    uuid: str
    mountpoint: str
    subject: str
    message: str
    action: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def from_dict(values: object) -> Event | None:
    """Return the event of `Event.as_dict`, None if *values* are no event."""
    if not isinstance(values, Mapping):
        return None
    known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(Event)}
    at_s, action = known["at_s"], known["action"]
    texts = [known[name] for name in known if name not in ("at_s", "action")]
    texts.append("" if action is None else action)
    if not all(isinstance(text, str) and len(text) <= TEXT_CHARS_MAX for text in texts):
        return None
    if type(at_s) is not int or not 0 <= at_s <= AT_S_MAX or known["severity"] not in SEVERITIES:
        return None
    return Event(**known)


def unix_s() -> int:
    """Return the seconds since 1970: a date for people, which no computation of an array uses."""
    return int(time.time())
