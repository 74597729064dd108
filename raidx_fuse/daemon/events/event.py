"""One event of an array: what happened, to what, and what to do next."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from raidx_fuse.typed import fits, hints_of

if TYPE_CHECKING:
    from raidx_fuse.documents import Event as EventDocument

INFO, WARNING, ERROR = "info", "warning", "error"
SEVERITIES = (INFO, WARNING, ERROR)
DIGEST_EVENT = "Digest"
COMMAND = "Command"  # an administrator has changed something; no program is run for it
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

    def as_dict(self) -> EventDocument:
        return cast("EventDocument", asdict(self))


def from_dict(values: object) -> Event | None:
    """Return the event of `Event.as_dict`, None if *values* are no event."""
    if not isinstance(values, Mapping):
        return None
    known: dict[str, Any] = {name: values.get(name) for name in hints_of(Event)}
    if not all(fits(known[name], hint) for name, hint in hints_of(Event).items()):
        return None
    event = Event(**known)
    if any(isinstance(value, str) and len(value) > TEXT_CHARS_MAX for value in known.values()):
        return None
    return event if 0 <= event.at_s <= AT_S_MAX and event.severity in SEVERITIES else None


def unix_s() -> int:
    """Return the seconds since 1970: a date for people, which no computation of an array uses."""
    return int(time.time())
