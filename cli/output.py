"""The output of all commands: ``--json`` and ``--bytes``, one line per error, text and tables.

In JSON mode, standard output carries exactly one document and everything else goes to standard
error, so that ``raidx ... --json | jq`` always works. Consoles are made at each use, because tests
and shells replace the streams.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from raidx_fuse.cli.folding import columns_of, folded
from raidx_fuse.cli.printable import fitting, shown
from raidx_fuse.units import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from raidx_fuse.cli.console import FittingConsole

OUTPUT_VERSION = 1
UNBROKEN_COLUMNS = 16 << 10  # of rich, which would break words: lines are folded before it

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


def screen_columns() -> int:
    """Return how many columns a screen on the present standard output has."""
    return columns_of(sys.stdout)


def show(screen: RenderableType, *, stderr: bool = False) -> None:
    """Print *screen*, folded, on the present standard output (or error)."""
    console(stderr=stderr).show(screen, columns_of(sys.stderr if stderr else sys.stdout))


def console(*, stderr: bool = False, live: bool = False) -> FittingConsole:
    """Return a console on the present standard output (or error).

    A *live* display, which is drawn again in place, keeps to the terminal's width.
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

    def emit(
        self,
        document: Mapping[str, object],
        text: RenderableType | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Print *document* in JSON mode, else *text* (nothing when there is none), folded.

        *whole*: a program reads the lines of *text*, so they are not folded.
        """
        if self.json:
            print(json.dumps({"output_version": OUTPUT_VERSION, **document}, indent=2))
        elif isinstance(text, str):
            _say(text if whole else folded(text, screen_columns()))
        elif text is not None:
            show(text)

    def fit(self, document: Document) -> Document:
        """Return *document* with printable texts; unchanged for JSON, which has its own escapes."""
        fit: Document = document if self.json else _shown_all(document)
        return fit

    def note(self, line: str) -> None:
        """Print a line for people: standard output, or standard error beside JSON."""
        stream = sys.stderr if self.json else sys.stdout
        _say(folded(line, columns_of(stream)), stderr=self.json)

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
