"""The pages of the project, and what is read from them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import click

from raidx_fuse.cli.main import main

ROOT = Path(__file__).parents[2]
NAMES = (
    "README.md",
    "cli/MANUAL.md",
    "examples/administration.md",
    *sorted(f"examples/lab/{path.name}" for path in ROOT.glob("examples/lab/*.md")),
    "examples/network.md",
    "examples/own-code/README.md",
    "examples/teaching.md",
    "bench/README.md",
    "raidx_fuse/ARCHITECTURE.md",
    "raidx_fuse/FORMAT.md",
    "raidx_fuse/CHANGELOG.md",
    "raidx_fuse/PROMISES.md",
    ".github/CONTRIBUTING.md",
)
TEXTS = {name: (ROOT / name).read_text() for name in NAMES}
README = TEXTS["README.md"]


def blocks(name: str, kind: str) -> list[str]:
    """Return the fenced blocks of *kind* on the page *name*, in order."""
    return re.findall(rf"```{kind}\n(.*?)```", TEXTS[name], re.DOTALL)


def commands(name: str) -> list[str]:
    """Return the shell lines of the page *name*, those of transcripts included."""
    lines = [line for text in blocks(name, "sh") for line in text.splitlines()]
    for text in blocks(name, "console"):
        lines += [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    return [line for line in lines if line]


def parse(line: str) -> click.Context:
    """Parse a `raidx ...` line as the command would; nothing is run. Raises click.UsageError."""
    words = shlex.split(line)[1:]
    group: click.Group = main
    context = click.Context(main, info_name="raidx")
    while True:
        name, command, words = group.resolve_command(context, words)
        assert command is not None
        if isinstance(command, click.Group):
            group = command
            context = click.Context(command, parent=context, info_name=name)
            continue
        return command.make_context(name, list(words), parent=context)


def rows(name: str, heading: str) -> list[list[str]]:
    """Return the cells of the table on the page *name* below the text *heading*."""
    text = TEXTS[name]
    lines = text[text.index(heading) :].splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def quoted(text: str) -> list[str]:
    """Return what stands in back quotes."""
    return re.findall(r"`([^`]+)`", text)


def shell_environment() -> dict[str, str]:
    """Return an environment in which the `raidx` of this Python is found."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
    return {**os.environ, "PATH": path, "COLUMNS": "10000"}
