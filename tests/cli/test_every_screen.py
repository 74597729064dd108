"""Every command at 80, 120 and 200 columns, in a pipe, without colours, and in ASCII.

What a command says is the same everywhere, in the same words, and at 80 columns it is folded: only
a word that is longer, a path, is on a longer line, and no line ends in blanks. What programs read
(`WHOLE`) is not folded. Stripes and the bytes of one are drawn for the width (`DRAWN`). The answers
of the daemon are canned:
answers.json was recorded from a mount with two arrays, whose members have long paths. `mount`,
`serve` and `umount` leave this process, `crash` and `replay` need a mount; what they print goes
through the same function, and tests/mount/test_habits.py reads it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from raidx_fuse.cli.main import main
from tests.cli.conftest import Daemon
from tests.cli.test_screens import terminal
from tests.support.command import checked
from tests.support.documents import job

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("answers.json").read_text())
WIDTHS = (80, 120, 200)
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:[349]\d|10\d)[;m]")  # bold is no colour
SHOW_CURSOR = "\x1b[?25h"  # after a live line
BOLD = re.compile(r"\x1b\[[0-9;]*m")
ASKED = """
status ARRAY
status ARRAY --brief
status ARRAY --check
status ARRAY --bytes
wait ARRAY
stats ARRAY
stats ARRAY --hot
get ARRAY
set ARRAY speed_min=1M
explain ARRAY 0
explain ARRAY 0 4KiB --write
explain ARRAY --stripe 0
damage ARRAY
peek ARRAY 0
add-disk ARRAY /srv/new -n
reshape ARRAY --layout raid4 -n
remove-disk ARRAY 1 -n
fail-disk ARRAY 1 -n
replace-disk ARRAY 1 /srv/new -n
online ARRAY 1
clear ARRAY
scrub ARRAY
advise ARRAY
tune ARRAY
tune ARRAY --now -n
job ARRAY
inject ARRAY 0 slow
trim ARRAY 0 64KiB -n
events ARRAY --test
volume create ARRAY west --size 32MiB
volume list ARRAY
volume resize ARRAY west 2MiB -n
resize ARRAY max -n
volume rename ARRAY west east
volume delete ARRAY west -n
volume move ARRAY west east -n
volume swap ARRAY west east -n
array list ARRAY
array forget ARRAY east
array evacuate ARRAY east -n
balance ARRAY -n
balance ARRAY --status
""".splitlines()[1:]
OFFLINE = """
create --layout raid5 --size 4MiB --overwrite-signature -n a b c
scan .
examine a
check a b c
save-metadata a b c saved.json
restore-metadata saved.json a b c
wipe text
destroy a b c -n
events
layout list
layout show rdp --disks 6 --chains
layout chains rdp --disks 6
layout map raid5 --disks 4 --chunks 4
layout recover rdp --disks 6 --lost 0,1 --step
layout bundles --length 3 --disk-chunks 7,4,5,4
layout load upc --disks 6 --writes random:10:1
quiz --answers
schema
completions bash
simulate small.toml
--help
volume --help
create --help
""".splitlines()[1:]
# They start or end a daemon or a server, change the name that they print, or have a screen of their
# own (tests/cli/screen).
ELSEWHERE = {"mount", "serve", "umount", "crash", "replay", "lab", "view", "rename", "watch"}
DRAWN = ("layout show", "peek ")
WHOLE = ("status ARRAY --brief", "status ARRAY --check", "completions ", "schema")
EXPERIMENT = """
name = "small"
[array]
layout = "raid5"
disks = 3
model = "ssd"
disk_size = "8MiB"
[load]
source = "uniform"
requests = 20
rate = 100
"""


def answer_all(daemon: Daemon) -> None:
    """Let the daemon answer every command as it was recorded."""

    def explained(arguments: dict[str, Any]) -> dict[str, Any]:
        kind = "stripe" if "stripe" in arguments else "write" if arguments["write"] else "read"
        return dict(ANSWERS[f"explain {kind}"])

    def either(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        planned = ANSWERS.get(f"{name} -n")
        return dict(planned if arguments.get("dry_run") and planned else ANSWERS.get(name, {}))

    for name in {key.removesuffix(" -n") for key in ANSWERS}:
        daemon.answers[name] = partial(either, name)
    told = f"raidx replace-disk {'/mnt/' * 30} 1 NEW"
    arrays = [{**array, "action": told} for array in ANSWERS["status all"]["arrays"]]
    long = {**ANSWERS["status all"], "arrays": arrays}
    daemon.answers |= {"status": long, "explain": explained}
    daemon.answers["job-list"] = {"jobs": [job(), job(error="a reason " * 20)]}
    daemon.answers["remove-disk"] = ANSWERS["fail-disk -n"]
    daemon.answers["volume-swap"] = ANSWERS["volume-move -n"]
    daemon.answers["array-forget"] = {"forgotten": "east", "uuid": "u"}
    counted = {"role": 1, "path": "/srv/disks/name/a", "errors": 2, "repairs": 1}
    daemon.answers["clear"] = {"members": [counted]}
    daemon.answers["balance"] = {**ANSWERS["array-evacuate -n"], **ANSWERS["balance-status"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a long name, an array at rest in it, that is the working directory."""
    folder = tmp_path / ("long-" * 20)
    folder.mkdir()
    checked(folder, "create --layout raid5 --size 4MiB a b c")
    (folder / "text").write_text("text")
    (folder / "small.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAIDX_STATE", str(folder))
    return folder


def screens(monkeypatch: pytest.MonkeyPatch, line: list[str], say: str) -> Iterator[list[str]]:
    """Yield what a command line shows on terminals of each width, then on one of ASCII.

    Without the progress line of `simulate`, which shows how far it is at each redraw.
    """
    monkeypatch.setattr(Console, "status", lambda *_: contextlib.nullcontext())
    for columns, encoding in (*((width, "utf-8") for width in WIDTHS), (80, "ascii")):
        with terminal(monkeypatch, columns, encoding) as lines:
            # The width of help is for people to read, and click's own: it follows the terminal.
            status = main.main(line, standalone_mode=False)
        assert status in (0, 1, None), f"{say}: {lines}"
        # How often a live line is drawn depends on the time that the work takes.
        ends = [number for number, each in enumerate(lines) if SHOW_CURSOR in each]
        yield lines[ends[-1] + 1 :] if ends else lines


def words_of(lines: list[str]) -> list[str]:
    """Return the words of *lines*, without what continues a folded command."""
    return [word for line in lines for word in line.removesuffix(" \\").split()]


def test_every_command_says_the_same_at_every_width(
    daemon: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_all(daemon)
    for say in (*ASKED, *OFFLINE):
        line = [daemon.mountpoint if w == "ARRAY" else w for w in shlex.split(say)]
        *wide, ascii_only = screens(monkeypatch, line, say)
        assert wide[0], f"{say} says nothing"
        assert not any(COLOURS.search(each) for lines in wide for each in lines), say
        assert "".join(ascii_only).isascii()
        if "--help" in line:
            assert all(len(each) <= WIDTHS[0] for each in wide[0]), say
            continue
        plain = [[BOLD.sub("", each) for each in lines] for lines in wide]
        if say.startswith(WHOLE):
            assert plain[0] == plain[1] == plain[2], f"{say} depends on the width"
            continue
        for width, lines in zip(WIDTHS, plain, strict=True):
            for each in lines:
                if each.startswith("raidx: "):
                    continue  # an error is one line
                assert each == each.rstrip(), f"{say}: blanks behind {each!r}"
                room = width - (len(each) - len(each.lstrip()))
                assert len(each) <= width or len(words_of([each])[0]) + 2 > room, f"{say}: {each!r}"
        if not say.startswith(DRAWN):
            said = [sorted(words_of(lines)) for lines in plain]
            assert said[0] == said[1] == said[2], f"{say} says other words at another width"
        assert len(ascii_only) == len(wide[0]), f"{say} has other lines in ASCII"


def test_peek_has_the_text_beside_its_bytes_on_a_narrow_screen(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {"newest": "home", "home": "41" * 16, "content": "41" * 16, "written": True}
    for place, count in ((4 << 20, 8), (1 << 40, 4)):
        cells = [{**each, **seen, "member_offset": place} for each in ANSWERS["peek"]["cells"]]
        daemon.answers["peek"] = {**ANSWERS["peek"], "cells": cells}
        for each in cells:
            each["sum"] = "fits"
        with terminal(monkeypatch, 80, "utf-8") as lines:
            main.main(["peek", daemon.mountpoint, "0"], standalone_mode=False)
        shown = [BOLD.sub("", each) for each in lines if " 41 " in each]
        assert len(shown) == 16 // count * len(cells)
        assert all(each.endswith(f"41  {'A' * count}") for each in shown)


def test_a_pipe_gets_what_a_terminal_shows(daemon: Daemon, folder: Path) -> None:
    answer_all(daemon)
    for say in ASKED:
        result = daemon.run(*shlex.split(say))
        assert "\x1b" not in result.stdout, say
        for path in re.findall(r"/srv/disks/[\w./-]+", result.stdout):
            assert "name/" in path, f"{say} cuts or breaks {path}"
    text = daemon.run("status", "ARRAY").stdout
    actions = [each for each in text.splitlines() if "raidx replace-disk" in each]
    assert len(actions) == 2
    assert all(each.endswith(" 1 NEW") for each in actions), "COLUMNS says that there is room"


def test_no_command_is_left_out() -> None:
    seen = {tuple(line.split()[:2]) for line in (*ASKED, *OFFLINE)}
    for name, command in main.commands.items():
        if name in ELSEWHERE:
            continue
        if isinstance(command, click.Group):
            assert all((name, verb) in seen for verb in command.commands), name
        else:
            assert any(words[0] == name for words in seen), name


def test_colours_are_for_terminals_only(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_all(daemon)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(terminal(monkeypatch, 80, "utf-8"))
        monkeypatch.delenv("NO_COLOR")
        main.main(["status", daemon.mountpoint], standalone_mode=False)
    assert any(COLOURS.search(each) for each in lines)
