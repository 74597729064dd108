"""Events and event settings on this machine: files in a directory that survives a reboot.

    root               /var/lib/raidx/
    others             $XDG_STATE_HOME/raidx/ or ~/.local/state/raidx/
    anyone             $RAIDX_STATE/

    <UUID of the array>.events, .events.1      one JSON object a line, newest last
    <UUID of the array>.json                   events.program, events.mail

The program is kept here, not in the superblocks: whoever mounts members from elsewhere must not run
what their superblocks name. Events are not flushed: a power cut may take the last ones. All
functions block: the daemon calls them in a thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from raidx_fuse.daemon.events.event import Event, from_dict

FILE_BYTES_MAX = 512 << 10  # of two files for each array
ARRAYS_MAX = 64
SETTINGS_BYTES_MAX = 64 << 10


def state_directory() -> Path:
    """Return this user's directory, whether or not it exists."""
    given = os.environ.get("RAIDX_STATE")
    if given:
        return Path(given)
    if os.getuid() == 0:
        return Path("/var/lib/raidx")
    home = os.environ.get("XDG_STATE_HOME")
    return Path(home) / "raidx" if home else Path.home() / ".local" / "state" / "raidx"


class EventStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, event: Event) -> None:
        """Keep *event*; the oldest ones make room. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(event.uuid)
        line = json.dumps(event.as_dict()).encode() + b"\n"
        size = path.stat().st_size if path.exists() else 0
        if size + len(line) > FILE_BYTES_MAX:
            path.replace(path.with_suffix(".events.1"))
        with open(path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(line)
        if not size:
            self._sweep(keep=path)

    def _sweep(self, keep: Path) -> None:
        """Remove the files of the arrays that have been silent longest."""
        logs = [path for path in self.folder.glob("*.events") if path != keep]
        logs.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in logs[ARRAYS_MAX - 1 :]:
            for old in (path, path.with_suffix(".events.1")):
                with suppress(OSError):
                    old.unlink()

    def read(self) -> list[Event]:
        """Return the events of all arrays, oldest first; lines that cannot be read are left out."""
        found = [event for path in self._logs() for event in _events(path)]
        return sorted(found, key=lambda event: event.at_s)

    def stamp(self) -> list[tuple[str, int, int]]:
        """Return a value that changes with every event."""
        found = []
        for path in self._logs():
            with suppress(OSError):
                status = path.stat()
                found.append((path.name, status.st_size, status.st_mtime_ns))
        return found

    def _logs(self) -> list[Path]:
        return [*sorted(self.folder.glob("*.events.1")), *sorted(self.folder.glob("*.events"))]

    def _path(self, uuid: str) -> Path:
        return self.folder / f"{uuid}.events"

    # -- settings ----------------------------------------------------------------------------------

    def load(self, uuid: str) -> dict[str, str]:
        try:
            with (self.folder / f"{uuid}.json").open("rb") as file:
                values = json.loads(file.read(SETTINGS_BYTES_MAX))
        except (OSError, ValueError):
            return {}
        pairs: dict[str, object] = values if isinstance(values, dict) else {}
        return {key: value for key, value in pairs.items() if isinstance(value, str)}

    def save(self, uuid: str, values: dict[str, str]) -> None:
        """Keep the event settings of an array. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"{uuid}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.chmod(0o600)
        new.replace(path)


def _events(path: Path) -> Iterator[Event]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, RecursionError):
            event = from_dict(json.loads(line))
            if event is not None:
                yield event
