"""What reaches narrow terminals, pipes and ASCII streams: nothing is cut, broken or a traceback."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.text import Text

from raidx_fuse.cli import progress
from raidx_fuse.cli.console import broken
from raidx_fuse.cli.main import main
from raidx_fuse.cli.output import Output, console
from raidx_fuse.cli.status_text import job_line
from tests.cli.conftest import Daemon
from tests.support.command import checked
from tests.support.documents import job

BOLD = re.compile(r"\x1b\[[0-9;]*m")
LONG = "/srv/disks/" + "a" * 150 + ".img"


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int, encoding: str) -> Iterator[list[str]]:
    """Make standard output and error a terminal; its lines are there when the block has ended.

    They are read while the block runs: a terminal holds a few KiB, and whoever writes more waits.
    """
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    lines: list[str] = []
    said = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # EIO: all is read, and the other side is closed
            while part := os.read(outer, 1 << 16):
                said.extend(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with os.fdopen(inner, "w", encoding=encoding) as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield lines
    reader.join()
    lines += said.decode(encoding).splitlines()
    os.close(outer)


def test_a_page_longer_than_a_terminal_holds_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, 80, "utf-8") as lines:
        for number in range(5000):
            print("a line", number)
    assert lines[-1] == "a line 4999"


@pytest.mark.parametrize(
    "command",
    [
        "layout list",
        "layout show upc --disks 6 --chains",
        "layout show raid5 --disks 12",
        "layout recover rdp --disks 6 --lost 0,1 --step",
        "layout map mcpod --disks 4 --disks-after 6 --step",
        "balance --step",
        "quiz --kind dswap --count 3",
        "quiz --level hard --count 20 --answers",
    ],
)
def test_what_a_class_reads_fits_80_columns(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    wide = CliRunner().invoke(main, command.split()).stdout
    with terminal(monkeypatch, 80, "utf-8") as lines:
        main.main(command.split(), standalone_mode=False)
    text = BOLD.sub("", "\n".join(lines))
    assert max(map(len, text.splitlines())) <= 80, text
    missing = set(re.findall(r"[\w#]+", wide)) - set(re.findall(r"[\w#]+", text))
    assert missing <= {"name", "efficiency", "what", "it", "is"}, "the titles of a table"


def test_a_word_that_is_longer_than_a_line_stays_whole_and_the_rest_is_broken() -> None:
    page = broken(Text("  1. a-path-to-be-copied and some more words\n\nend"), 12)
    wanted = [
        "  1.",
        "     a-path-to-be-copied",
        "     and",
        "     some",
        "     more",
        "     words",
    ]
    assert page.plain.splitlines() == [*wanted, "", "end"]


def test_a_command_to_copy_stays_on_one_line_in_a_pipe(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    members = [str(folder / name) for name in "abc"]
    said = checked(folder, f"create --layout raid5 --size 4MiB {' '.join(members)}")
    assert said.splitlines()[1] == f"mount it: raidx mount {' '.join(members)} MOUNTPOINT"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("rdp", "grows to at most 6 members by the fewest moves (--max-members)"),
        ("rdp --max-members 9", "grows to at most 12 members by the fewest moves (--max-members)"),
        ("evenodd", "grows to at most 7 members by the fewest moves (--max-members)"),
        ("raid5", None),
    ],
)
def test_create_says_how_far_a_prime_lets_an_array_grow(
    tmp_path: Path, options: str, said: str | None
) -> None:
    lines = checked(tmp_path, f"create --layout {options} --size 16MiB --chunk 4KiB a b c d e f")
    assert lines.splitlines()[2:] == ([said] if said else [])


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
