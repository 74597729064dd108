"""The output of all commands: ``--json`` and ``--bytes``, one line per error, text and tables.

In JSON mode, standard output carries exactly one document and everything else goes to standard
error, so that ``raidx ... --json | jq`` always works. Consoles are made at each use, because tests
and shells replace the streams.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from raidx_fuse.cli.printable import fitting, shown
from raidx_fuse.units import format_size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

OUTPUT_VERSION = 1
UNBROKEN_COLUMNS = 16 << 10  # no line is broken or cut: it may be copied, or read by a program

Document = TypeVar("Document")


def _shown_all(value: Any) -> Any:
    """Return *value* with `shown` applied to every text in it."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list):
        return [_shown_all(item) for item in value]
    if isinstance(value, dict):
        return {shown(key): _shown_all(item) for key, item in value.items()}
    return value


def _say(text: str, *, stderr: bool = False) -> None:
    """Print plain *text* on the present standard output (or error)."""
    stream = sys.stderr if stderr else sys.stdout
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    print(fitting(text, encoding), file=stream, flush=True)


def terminal_columns() -> int | None:
    """Return the width of the terminal on standard output, None if there is no terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):  # a file, a pipe, a stream in memory
        return None


def console(*, stderr: bool = False, live: bool = False) -> Console:
    """Return a console on the present standard output (or error).

    It breaks and cuts no line: a terminal wraps what is too long, so that a path or a command can
    still be copied. A *live* display, which is drawn again in place, keeps to the terminal's width.
    """
    from raidx_fuse.cli.console import FittingConsole  # late: a plain line needs no rich

    stream = sys.stderr if stderr else sys.stdout
    width = None if live and stream.isatty() else UNBROKEN_COLUMNS
    return FittingConsole(file=stream, highlight=False, emoji=False, markup=False, width=width)


@dataclass(frozen=True, slots=True)
class Output:
    """The output options of a call: *json*, one document; *exact*, sizes in bytes, not in KiB."""

    json: bool = False
    exact: bool = False

    def emit(self, document: Mapping[str, object], text: RenderableType | None = None) -> None:
        """Print *document* in JSON mode, else *text* (nothing when there is none)."""
        if self.json:
            print(json.dumps({"output_version": OUTPUT_VERSION, **document}, indent=2))
        elif isinstance(text, str):
            _say(text)
        elif text is not None:
            console().print(text)

    def explain(self, document: Mapping[str, object], page: Text) -> None:
        """Do as `emit`, but break long lines of *page* between words on a terminal: it is prose."""
        columns = None if self.json else terminal_columns()
        if columns is not None:
            from raidx_fuse.cli.console import broken

            page = broken(page, columns)
        self.emit(document, page)

    def fit(self, document: Document) -> Document:
        """Return *document* with printable texts; unchanged for JSON, which has its own escapes."""
        fit: Document = document if self.json else _shown_all(document)
        return fit

    def note(self, line: str) -> None:
        """Print a line for people: standard output, or standard error beside JSON."""
        _say(line, stderr=self.json)

    def size(self, size_bytes: float) -> str:
        """Return *size_bytes* as KiB, MiB, ... or as the exact number under ``--bytes``."""
        return str(int(size_bytes)) if self.exact else format_size(int(size_bytes))

    def rate(self, bytes_per_s: float) -> str:
        return f"{self.size(bytes_per_s)}/s"


def warn(line: str) -> None:
    """Print *line* on standard error, behind "raidx: "."""
    _say(f"raidx: {shown(line)}", stderr=True)


def duration(seconds: float | None) -> str:
    """Return a time in the format of zpool.

    >>> duration(None), duration(59.2), duration(3723), duration(93784)
    ('no estimated time', '00:01:00', '01:02:03', '1 days 02:03:04')
    """
    if seconds is None or not math.isfinite(seconds):
        return "no estimated time"
    minutes, second = divmod(math.ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days} days {clock}" if days else clock


def percent(done: float, total: float) -> float:
    """Return *done* of *total* in percent; 100 if *total* is 0."""
    return 100.0 * done / total if total else 100.0


def plural(count: int, word: str) -> str:
    """Return "1 member", "2 members", "3 losses".

    >>> plural(1, "member"), plural(2, "loss")
    ('1 member', '2 losses')
    """
    ending = "" if count == 1 else "es" if word.endswith(("s", "ch")) else "s"
    return f"{count} {word}{ending}"
