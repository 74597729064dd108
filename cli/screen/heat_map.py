"""The map of chunks by member: a character for each part of a member's places.

The shade says how much of the part is written, the colour how often it is used. Without colours a
used part is a digit instead. A part that has changed since the last frame is bright for that frame,
so that a rebuild, a growth and a tuning are seen on their way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from rich.text import Text

from raidx_fuse.cli.screen.snapshot import Part

LIMITS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Accesses per second of a part from which it has the next degree of heat."""
COLOURS = ("#5f00af", "#0087d7", "#00af5f", "#d7af00", "#ffff00")
"""Each brighter than the last, and apart for those who see red and green alike (as viridis is)."""
UNWRITTEN, LOST = ("·", "."), "x"
SHADES = ("░▒▓█", ":+%#")  # a quarter .. all of it, in Unicode and in ASCII
LOST_STYLE = "bold red"
COLD_STYLE = "bright_black"
NEW_STYLE = "bold bright_white"


def degree(uses: float) -> int:
    """Return the degree of heat of a part, 0 (cold) to 5, by its accesses per second.

    >>> degree(0), degree(0.1), degree(55), degree(1e6)
    (0, 1, 3, 5)
    """
    return bisect_right(LIMITS, uses)


def glyph(part: Part, *, ascii_only: bool, colour: bool) -> str:
    """Return the character of a part.

    >>> [glyph(Part(w, 0, 0), ascii_only=True, colour=True) for w in (0, 1, 40, 60, 99, 100)]
    ['.', ':', '+', '+', '%', '#']
    """
    if part.lost:
        return LOST
    if not part.written:
        return UNWRITTEN[ascii_only]
    if not colour and (hot := degree(part.uses)):
        return str(hot)
    return SHADES[ascii_only][3 if part.written == 100 else min(2, part.written // 34)]


def style(part: Part, *, is_new: bool) -> str:
    """Return the colour of a part; *is_new*: it has changed since the last frame."""
    if part.lost:
        return LOST_STYLE
    if is_new:
        return NEW_STYLE
    hot = degree(part.uses) if part.written else 0
    return COLOURS[hot - 1] if hot else COLD_STYLE if part.written else ""


def map_lines(
    parts: Sequence[Part],
    before: Sequence[Part],
    columns: int,
    *,
    ascii_only: bool,
    colour: bool,
) -> list[Text]:
    """Return the parts of one member, *columns* to a line; *before* are those of the last frame."""
    lines = []
    known = before if len(before) == len(parts) else parts
    for start in range(0, len(parts), columns):
        marks = []
        for part, old in zip(parts[start : start + columns], known[start:], strict=False):
            is_new = (part.written, part.lost) != (old.written, old.lost)
            character = glyph(part, ascii_only=ascii_only, colour=colour)
            marks.append((style(part, is_new=is_new) if colour else "", character))
        line = Text()
        for name, run in groupby(marks, itemgetter(0)):
            line.append("".join(character for _, character in run), name)
        lines.append(line)
    return lines


def legend(*, ascii_only: bool, colour: bool) -> Text:
    """Return what the characters and colours mean, as one line."""
    shades = SHADES[ascii_only]
    text = Text(f"{UNWRITTEN[ascii_only]} unwritten {shades} written {LOST} lost; accesses/s")
    for number, limit in enumerate(LIMITS):
        text.append(" ")
        text.append(shades[3] if colour else str(number + 1), COLOURS[number] if colour else "")
        text.append(f" {limit:g}" if colour else f":{limit:g}")
    return text
