"""Where the lines of a screen are folded, and how wide it is: for every command, in one place.

A line is folded between words. A word that is longer than a line stays whole, so that a path can be
copied; a command that is folded is continued as a shell continues it, so that it can be copied too.
What a program reads (JSON, /proc/mdstat, metrics, the line for Nagios, errors) is not folded.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final, NamedTuple

COLUMNS: Final = 80  # of a pipe and of a file: a screen is the same there
COLUMNS_MIN: Final = 40  # of anything that claims to be narrower
HANG = 4  # columns that the rest of a line stands behind its beginning

_COMMAND = re.compile(r"(?:^\s*|: )(?=raidx [a-z])")  # "mount it: raidx mount ...", to the end
_WORD = re.compile(r"\S+")
_ARGUMENT = re.compile(r"raidx [a-z-]+|(?:'[^']*'|[^\s'])+")


class Part(NamedTuple):
    """A part of a line, from character *begin* to *end*; *goes_on*: its command does."""

    begin: int
    end: int
    goes_on: bool


def columns_of(stream: Any) -> int:
    """Return how many columns a screen on *stream* has: COLUMNS, those of its terminal, or 80."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted):
        return max(int(wanted), COLUMNS_MIN)
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # a file, a pipe, a stream in memory
        return COLUMNS
    return max(found, COLUMNS_MIN) if found else COLUMNS


def parts_of(line: str, columns: int, hang: int) -> list[Part]:
    """Return the parts into which *line* is folded; those after the first are *hang* narrower."""
    line = line.rstrip()
    if len(line) <= columns:
        return [Part(0, len(line), False)]
    found = _COMMAND.search(line)
    command = found.end() if found else len(line)
    words = [*_WORD.finditer(line, 0, command), *_ARGUMENT.finditer(line, command)]
    parts: list[Part] = []
    begin, end, indent = 0, words[0].end(), 0
    for number, word in enumerate(words[1:], 1):
        goes_on = word.start() > command
        more = 2 * (word.start() >= command and number < len(words) - 1)  # for " \"
        if indent + word.end() - begin + more > columns:
            parts.append(Part(begin, end, goes_on))
            begin, indent = word.start(), hang
        end = word.end()
    return [*parts, Part(begin, end, False)]


def folded(text: str, columns: int) -> str:
    r"""Return *text* with its lines folded to *columns*.

    >>> print(folded("mount it: raidx mount a.img 'my disk' b.img MNT\nthe end", 26))
    mount it: raidx mount \
        a.img 'my disk' \
        b.img MNT
    the end
    """
    lines = []
    for line in text.split("\n"):
        hang = len(line) - len(line.lstrip()) + HANG
        for number, (begin, end, goes_on) in enumerate(parts_of(line, columns, hang)):
            lines.append(" " * (hang * bool(number)) + line[begin:end] + " \\" * goes_on)
    return "\n".join(lines)
