"""The README is true: its commands exist and parse, its tour runs as printed, its tables agree."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from raidx_fuse import mountpoint
from raidx_fuse.cli.app import ALIASES
from raidx_fuse.cli.main import main
from raidx_fuse.errors import RaidxError
from raidx_fuse.layouts.registry import LAYOUTS, allowed_widths
from raidx_fuse.settings import SETTINGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SHELL = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line]
COMMANDS = [line for line in SHELL if line.startswith("raidx ")]
LAYOUT_COMMANDS = [line for line in COMMANDS if line.startswith("raidx layout")]


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


def test_it_begins_with_what_it_is_for_and_two_commands() -> None:
    first, second = (text.strip() for kind, text in BLOCKS[:2] if kind == "sh")
    assert README.startswith("# raidx-fuse\n\n**raidx** turns ")
    for program in (first, second):
        path = ROOT / program
        assert path.is_file(), f"the README's {program} does not exist"
        assert os.access(path, os.X_OK), f"{program} cannot be executed"
    assert second in (ROOT / ".ci" / "run").read_text(), ".ci/run calls the second"


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_line_parses(line: str) -> None:
    parse(line)


def test_parsing_notices_what_is_wrong() -> None:
    for line in ("raidx creat x", "raidx mount --nonsense a b", "raidx layout shaw raid5"):
        with pytest.raises(click.UsageError):
            parse(line)
    assert len(COMMANDS) > 25


def test_commands_named_in_the_text_exist() -> None:
    named = set(re.findall(r"`raidx (\w[\w-]*)", README))
    assert named <= {*main.commands, *ALIASES}
    words = re.search(r"mdadm's words \((.*?)\)", README)
    assert words is not None
    assert set(re.findall(r"`([\w-]+)`", words[1])) <= set(ALIASES)


@pytest.mark.parametrize("line", LAYOUT_COMMANDS)
def test_layout_commands_work_as_printed(line: str) -> None:
    result = CliRunner().invoke(main, shlex.split(line)[1:])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip()


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below the line that holds *heading*."""
    after = README[README.index(heading) :]
    lines = after.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def names(cell: str) -> list[str]:
    """Return the names in back quotes."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_layouts_is_that_of_the_program() -> None:
    described = [(name, row) for row in rows("## Layouts") for name in names(row[0])]
    assert {name for name, _ in described} == set(LAYOUTS)
    for name, (_, widths, losses, *_rest) in described:
        info = LAYOUTS[name]
        if not widths:
            continue  # on paper only
        least = allowed_widths(name)[0]
        assert str(least) in re.findall(r"\d+", widths), f"{name} begins at {least} members"
        if losses.isdigit():
            assert info.tolerance(least) == int(losses)


def test_the_table_of_settings_is_that_of_the_program() -> None:
    described = [name for row in rows("| setting |") for name in names(row[0])]
    assert sorted(described) == sorted(SETTINGS)


def test_the_paths_it_names_exist() -> None:
    for name in re.findall(r"`((?:[\w.]+/)+[\w.]*)`", README):
        if not name.startswith(("mnt/", ".venv")):
            assert (ROOT / name).exists(), f"the README names {name}"


PRINTED = (  # by the Python examples, in the order of the page
    r"(\w+: [\d.]+ ms, \d+ pre-reads\n){2}",
    r"(journal \w+: [\d.]+ ms for a write that is flushed\n){2}",
)


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_the_python_examples_run(number: int) -> None:
    programs = [text for kind, text in BLOCKS if kind == "python"]
    assert len(programs) == len(PRINTED)
    done = subprocess.run([sys.executable, "-c", programs[number]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[number], done.stdout)


@pytest.mark.mount
def test_the_tour_runs_as_printed(tmp_path: Path) -> None:
    """Every line that is not about paper, in the order of the page, in one folder."""
    try:
        mountpoint.check_fuse()
    except RaidxError as error:
        pytest.skip(f"no FUSE here: {error}")
    start = README.index("## A tour for administrators")
    end = README.index("## For teachers")
    lines = [
        line
        for text in re.findall(r"```sh\n(.*?)```", README[start:end], re.DOTALL)
        for line in text.splitlines()
    ]
    umount = next(index for index, line in enumerate(lines) if "umount" in line)
    explains = [line for line in COMMANDS if line.startswith("raidx explain")]
    lines[umount:umount] = explains
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
    }
    try:
        for line in lines:
            done = subprocess.run(
                line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            if line.startswith("raidx mount") and line.endswith(" mnt"):
                assert (tmp_path / "mnt" / "disk").stat().st_size >> 20 == 276
    finally:
        for name in ("mnt", "unlike", "grow"):
            if mountpoint.find(tmp_path / name):
                subprocess.run(["raidx", "umount", name], cwd=tmp_path, env=environment)
