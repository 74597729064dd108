"""`raidx events`: what happened to the arrays of this machine, and a test of their hooks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import array_named, ask
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import OUTPUT_VERSION, Output, show
from raidx_fuse.cli.parameters import ARRAYS, ParameterType
from raidx_fuse.cli.printable import shown
from raidx_fuse.daemon.events.event import Event, unix_s
from raidx_fuse.daemon.events.store import EventStore, state_directory
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.fuse.mountpoint import real_path, split_array

LOOK_S = 0.5  # between two looks of --follow
STYLES = {"info": "", "warning": "yellow", "error": "bold red"}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}  # in seconds


class Since(ParameterType):
    """A date such as 2026-11-22 or 2026-11-22T14:00, or a time ago such as 90m, 12h, 7d."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        """Return seconds since 1970, or for a time ago, the text with its unit."""
        if isinstance(value, float):
            return value
        if value[:-1].isdecimal() and len(value) < 8 and value[-1] in UNITS:
            return str(value)
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is neither a date (2026-11-22) nor a time ago (7d)", param, ctx)


@verb()
@click.argument("array", required=False, type=ARRAYS)
@click.option("--since", type=Since(), metavar="TIME", help="From a date, or 90m, 12h, 7d ago on.")
@click.option("--follow", is_flag=True, help="Continue to print events as they happen.")
@click.option("--test", is_flag=True, help="Run the hooks of a running ARRAY for a test event.")
def events(
    out: Output, array: str | None, since: float | str | None, follow: bool, test: bool
) -> int:
    """Show what happened to arrays on this machine: failures, rebuilds, scrubs, starts, ends.

    ARRAY is a mount point, a name or a UUID, also of an array that is not mounted. Hooks, set for a
    running array: `raidx set ARRAY events.program=/PATH` is run as `PROGRAM EVENT ARRAY [MEMBER]`,
    like a program of `mdadm --monitor`, with the event as JSON on its standard input;
    `raidx set ARRAY events.mail=ADDRESS` mails warnings and errors by sendmail. "off" ends both.
    With --follow --json, each event is one line of JSON.
    """
    if test:
        return _test(out, None if array is None else array_named(array))
    store = EventStore(state_directory())
    kept = store.read()
    uuids = None if array is None else _uuids(array, kept)
    start_s = _start_s(since)
    found = [e for e in kept if e.at_s >= start_s and (uuids is None or e.uuid in uuids)]
    if not follow:
        out.emit({"events": [event.as_dict() for event in found]}, _table(out, found))
        return 0
    known: set[Event] = set(kept)
    stamp = None  # what was written since `read` is seen at once
    _print(out, found)
    while True:
        time.sleep(LOOK_S)
        if stamp == (stamp := store.stamp()):
            continue
        news = [event for event in store.read() if event not in known]
        known.update(news)
        _print(out, (event for event in news if uuids is None or event.uuid in uuids))


def _test(out: Output, array: str | None) -> int:
    if array is None:
        raise UsageError("--test needs the mount point of a running array")
    result = ask(out, array, "events-test")
    hooks = result["hooks"]
    lines = [f"{name}: {hook['problem'] or 'done'}" for name, hook in hooks.items()]
    hint = f"no hook is set: raidx set {array} events.program=/PATH"
    out.emit(result, Text("\n".join(lines) or hint))
    return 0 if all(hook["ok"] for hook in hooks.values()) else 1


def _uuids(array: str, kept: list[Event]) -> set[str]:
    """Return the UUIDs of the array that a user calls *array*. Raises UsageError if none is."""
    where, named = split_array(array)
    path = real_path(where) if os.path.isdir(where) else None
    found = {
        event.uuid
        for event in kept
        if array in (event.array, event.uuid)
        or (path is not None and event.mountpoint == path and named in (None, event.array))
    }
    if not found:
        if (place := array_named(array)) != array:  # an image, or a member
            return _uuids(place, kept)
        raise UsageError(
            f"no event of {array} is known here",
            action="see raidx events",
            reason=Reason.NO_SUCH_ARRAY,
        )
    return found


def _start_s(since: float | str | None) -> float:
    if isinstance(since, str):
        return unix_s() - int(since[:-1]) * UNITS[since[-1]]
    return since or 0.0


def _table(out: Output, found: Iterable[Event]) -> Table | Text:
    table = Table()
    for event in found:
        at = datetime.fromtimestamp(event.at_s).isoformat(" ")
        style = STYLES[event.severity]
        words = Text(shown(event.message), style=style)
        table.add_row(at, shown(event.array), Text(shown(event.event), style=style), words)
        if event.action:
            table.add_line(Text(f"next: {shown(event.action)}", style=style))
    return table if table.rows else Text("no events")


def _print(out: Output, found: Iterable[Event]) -> None:
    events = list(found)
    if out.json:
        for event in events:
            print(json.dumps({"output_version": OUTPUT_VERSION, **event.as_dict()}), flush=True)
    elif events:
        show(_table(out, events))
