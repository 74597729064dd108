"""What reaches narrow terminals, pipes and ASCII streams: nothing is cut, broken or a traceback."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.text import Text

from raidx_fuse.cli import progress
from raidx_fuse.cli.commands.show import _fields, _stats_page
from raidx_fuse.cli.output import Output, console
from raidx_fuse.cli.status_text import job_line
from tests.cli.test_running_commands import STATS
from tests.support.command import checked
from tests.support.documents import job

if TYPE_CHECKING:
    from tests.cli.conftest import Daemon

LONG = "/srv/disks/" + "a" * 150 + ".img"


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int, encoding: str) -> Iterator[list[str]]:
    """Make standard output and error a terminal; its lines are there when the block has ended."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    lines: list[str] = []
    with os.fdopen(inner, "w", encoding=encoding) as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield lines
    said = b""
    with contextlib.suppress(OSError):  # EIO: all is read, and the other side is closed
        while part := os.read(outer, 1 << 16):
            said += part
    lines += said.decode(encoding).splitlines()
    os.close(outer)


def test_no_column_is_lost_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {**STATS, "members": [{**STATS["members"][0], "path": LONG}]}
    examined = {"members": [{"role": 0, "member_uuid": "b" * 36, "path_hint": LONG}]}
    with terminal(monkeypatch, 80, "utf-8") as lines:
        Output().emit(stats, _stats_page(stats, Output()))
        Output().emit(examined, _fields(examined, Output()))
    for word in (LONG, "read ms", "write ms", "member uuid", "b" * 36):
        assert any(word in line for line in lines), word
    assert not any("…" in line for line in lines)


def test_a_command_to_copy_stays_on_one_line_in_a_pipe(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    members = [str(folder / name) for name in "abc"]
    said = checked(folder, f"create --layout raid5 --size 4MiB {' '.join(members)}")
    assert said.splitlines()[1] == f"mount it: raidx mount {' '.join(members)} MOUNTPOINT"


def test_a_bar_in_ascii_is_drawn_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    console().print(job_line(job(), Output()))
    console().print(Text("ä • …"))
    stream.seek(0)
    bar, text = stream.read().splitlines()
    assert "-" * 30 in bar
    assert "29.3 %" in bar
    assert text == "? * ~"


def test_waiting_for_a_job_keeps_to_an_ascii_terminal(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon
) -> None:
    daemon.answers["job-list"] = {"jobs": [job(state="done", done=1 << 30)]}
    with terminal(monkeypatch, 80, "ascii") as lines:
        progress.wait_for_jobs(daemon.mountpoint, [1], Output())
    assert any("1 GiB of 1 GiB" in line for line in lines)
    assert all(len(line.rpartition("\r")[2]) <= 160 for line in lines)
