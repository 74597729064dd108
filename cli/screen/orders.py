"""What a key does: a command line of `raidx`, run as a user would run it.

So the screen has the rules, the words and the dry runs of the commands, and shows what was typed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raidx_fuse.cli.printable import shown
from raidx_fuse.errors import UsageError

COMMAND_S = 600.0
LINES_MAX = 20
LINE_CHARS_MAX = 400


@dataclass(frozen=True, slots=True)
class Order:
    """A command line without "raidx"; *dry* is its dry run, to be shown before it is confirmed.

    An order without a dry run is harmless.
    """

    words: tuple[str, ...]
    dry: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    lines: tuple[str, ...]


def fail(array: str, member: str) -> Order:
    words = ("fail-disk", array, member)
    return Order(words, (*words, "--dry-run"))


def replace(array: str, member: str, typed: str) -> Order:
    """Replace a member; *typed* is the rest of the command line, as in a shell.

    Raises UsageError if it has open quotation marks or is empty.
    """
    try:
        rest = shlex.split(typed)
    except ValueError as error:
        raise UsageError(f"{typed!r}: {str(error).lower()}") from None
    if not rest:
        raise UsageError("name the new member")
    words = ("replace-disk", array, member, *rest)
    return Order(words, (*words, "--dry-run"))


def tune(array: str) -> Order:
    return Order(("tune", array, "--now"), ("tune", array, "--dry-run"))


def pause(array: str, jobs: Mapping[int, bool], typed: str | None = None) -> Order | None:
    """Pause a job, or resume it if it is paused; *jobs* are their numbers and whether they are.

    *typed* is the number of a job. Returns None if there are several and none is named. Raises
    UsageError if there is no such job.
    """
    if not jobs:
        raise UsageError("no job is running")
    if typed is None and len(jobs) > 1:
        return None
    word = str(next(iter(jobs))) if typed is None else typed.strip()
    if not word.isascii() or not word.isdigit() or int(word) not in jobs:
        raise UsageError(f"there is no job {word!r}: {', '.join(map(str, jobs))}")
    return Order(("job", array, "resume" if jobs[int(word)] else "pause", word))


def line_of(words: Sequence[str]) -> str:
    """Return a command line as a shell takes it."""
    return shown(shlex.join(("raidx", *words)))


def carry_out(words: Sequence[str]) -> Said:
    """Run a command line of `raidx` in a process of its own; return what it said."""
    environment = {**os.environ, "NO_COLOR": "1"}
    environment.pop("FORCE_COLOR", None)
    program = [sys.executable, "-m", "raidx_fuse.cli.main", *words]
    try:
        done = subprocess.run(
            program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=COMMAND_S,
        )
    except subprocess.TimeoutExpired:
        return Said(1, (f"no answer within {COMMAND_S:g} s",))
    except (OSError, ValueError) as error:  # no process may be started; a word has a null byte
        return Said(1, (f"the command cannot be run: {error}",))
    lines = done.stdout.decode(errors="replace").splitlines()
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], f"and {len(lines) - LINES_MAX} more lines"]
    return Said(done.returncode, tuple(shown(line)[:LINE_CHARS_MAX] for line in lines))
