"""The command line as a whole: every promised option, help, completion, and messages of errors."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from raidx_fuse.cli import parameters
from raidx_fuse.cli.command_table import ALIASES, TABLE
from raidx_fuse.cli.main import main
from raidx_fuse.cli.output import Output, duration
from raidx_fuse.errors import RaidxError

ROOT = Path(__file__).parents[2]


def commands(group: click.Group = main, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield (name as typed, command) of every command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def options(command: click.Command) -> set[str]:
    """Return the option names of *command*."""
    found = {"--help"}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            found |= {*parameter.opts, *parameter.secondary_opts}
    return found


@pytest.mark.parametrize("name", sorted(dict(commands())))
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: raidx {name}")
    assert "--json" in result.stdout
    command = dict(commands())[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option) and "--chunks" not in parameter.opts:
            assert parameter.help or len(parameter.opts) > 1 or parameter.required


def test_the_first_page_lists_every_command_once() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert all(result.stdout.count(f"\n  {name} ") == 1 for name in TABLE)
    assert CliRunner().invoke(main, []).exit_code == 2


@pytest.mark.parametrize("words", [[], ["volume"], ["layout"]])
def test_a_list_of_commands_cuts_no_sentence(words: list[str]) -> None:
    shown = " ".join(CliRunner().invoke(main, [*words, "--help"]).stdout.split())
    assert "..." not in shown.replace("[ARGS]...", "")
    if not words:
        assert "explain Print what the array would do for a request, and why: the state of" in shown


def test_mdadm_words_lead_to_our_commands() -> None:
    assert set(ALIASES.values()) <= set(main.commands)
    result = CliRunner().invoke(main, ["assemble", "--help"])
    assert "Assemble arrays" in result.stdout


def documented() -> Iterator[tuple[str, list[str]]]:
    """Yield (file, words) of each `raidx ...` line in the repository's documents and scripts."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("examples/**/*.sh")]
    for path in files:
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"(?m)^\s*(?:\$ |sudo |run )*raidx ([a-z].*)$", text):
            yield path.name, shlex.split(line.split(" | ")[0], comments=True)


def test_every_documented_command_line_can_be_typed() -> None:
    existing = dict(commands())
    for name, words in documented():
        groups = {path.split()[0] for path in existing if " " in path}
        verb = " ".join(words[:2]) if words[0] in groups else words[0]
        command = existing.get(ALIASES.get(verb, verb))
        assert command is not None, f"{name} tells of `raidx {verb}`"
        used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= options(command), f"{name}: raidx {' '.join(words)}"


def test_version_and_installed_command() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("raidx"), "--version"], capture_output=True, text=True
    )
    assert re.fullmatch(r"raidx \d+\.\d+\.\d+\n", done.stdout), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(main, ["completions", shell])
    assert result.exit_code == 0
    assert "_RAIDX_COMPLETE" in result.stdout
    document = json.loads(CliRunner().invoke(main, ["completions", shell, "--json"]).stdout)
    assert document["shell"] == shell
    assert document["script"].strip() == result.stdout.strip()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("raidx repl", "replace-disk"),
        ("raidx layout show rai", "raid5"),
        ("raidx create --lay", "--layout"),
        ("raidx job x pa", "pause"),
    ],
)
def test_completion_offers_commands_layouts_and_options(typed: str, offered: str) -> None:
    words = typed.split(" ")
    asked = {"_RAIDX_COMPLETE": "bash_complete", "COMP_WORDS": typed}
    done = subprocess.run(
        [Path(sys.executable).with_name("raidx")],
        env={**os.environ, **asked, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [line.partition(",")[2] for line in done.stdout.splitlines()]
    assert offered in found


def test_completion_offers_the_running_arrays_else_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    context = click.Context(main)
    parameter = click.Argument(["array"])
    monkeypatch.setattr(parameters, "running", lambda: ["/mnt/a", "/mnt/b", "/srv"])
    offered = parameters.ARRAY.shell_complete(context, parameter, "/mnt")
    assert [item.value for item in offered] == ["/mnt/a", "/mnt/b"]
    (folders,) = parameters.ARRAY.shell_complete(context, parameter, "/home")
    assert (folders.value, folders.type) == ("/home", "dir")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("stats", "Missing argument 'ARRAY'"),
        ("statsu", "did you mean"),
        ("status --chekc", "--check"),
        ("frobnicate", "see 'raidx --help'"),
        ("create --layout raid55 a b c", "did you mean raid5"),
        ("create --layout raid5 --size 1Q a b c", "'1Q' is not a size"),
        ("create --layout raid5 --size 1.1 a b c", "whole number of bytes"),
        ("create a b c", "--size S creates missing member files"),
        ("mount onlyone", "members and a mount point"),
        ("set /mnt speed_min", "KEY=VALUE"),
        ("explain /mnt -- -4", "not a size"),
        ("completions tcsh", "'tcsh' is not one of"),
    ],
)
def test_usage_mistakes_get_one_line_and_status_2(line: str, words: str) -> None:
    result = CliRunner().invoke(main, line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    (complaint,) = result.stderr.splitlines()
    assert complaint.startswith("raidx: ")
    assert words in complaint


@pytest.mark.parametrize("line", ["stats {}", "status {}", "umount {}", "scrub {}"])
def test_what_is_not_mounted_gets_one_line_and_status_1(line: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, line.format(tmp_path).split())
    assert (result.exit_code, result.stdout) == (1, "")
    (complaint,) = result.stderr.splitlines()
    assert complaint.startswith(f"raidx: no array is mounted on {tmp_path}; mount it: raidx mount")


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Output, *_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(Output, "emit", broken)
    result = CliRunner().invoke(main, ["layout", "list"])
    assert isinstance(result.exception, AssertionError)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (RaidxError("it is broken", action="mend it"), 1, "raidx: it is broken; mend it\n"),
        (KeyboardInterrupt(), 130, "raidx: interrupted\n"),
    ],
)
def test_errors_become_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    def failing(self: Output, *_: object) -> None:
        raise error

    monkeypatch.setattr(Output, "emit", failing)
    result = CliRunner().invoke(main, ["layout", "list"])
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr.lstrip() == line  # ^C leaves the cursor in the middle of a line


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    raidx = Path(sys.executable).with_name("raidx")
    done = subprocess.run(
        f"{raidx} layout map raid5 --disks 4 --chunks 6000 | head -1",  # more than a pipe holds
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("logical")
    assert done.stderr == ""


@pytest.mark.parametrize("line", ["status {0}", "umount {0}", "fail-disk {0} 1", "--version"])
def test_what_runs_without_the_engine_does_not_read_it(tmp_path: Path, line: str) -> None:
    words = line.format(tmp_path).split()
    code = f"import sys; from raidx_fuse.cli.main import main; main({words}, standalone_mode=False)"
    code += "; sys.exit('raidx_fuse.array.array' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_times_are_told_in_zpools_words() -> None:
    assert duration(None) == duration(float("inf")) == "no estimated time"
    assert duration(0.2) == "00:00:01"
    assert duration(93784) == "1 days 02:03:04"
