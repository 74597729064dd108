"""What reaches narrow terminals, pipes and ASCII streams: nothing is cut, broken or a traceback."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.text import Text

from raidx_fuse.cli import progress
from raidx_fuse.cli.console import Table, lines_of
from raidx_fuse.cli.folding import folded
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


def test_a_word_that_is_longer_than_a_line_stays_whole_and_the_rest_is_folded() -> None:
    page = "  1. a-path-to-be-copied and some more words\n\nend"
    wanted = ["  1.", "      a-path-to-be-copied", "      and", "      some"]
    wanted += ["      more", "      words", "", "end"]
    assert folded(page, 12).splitlines() == wanted
    assert [str(line) for line in lines_of(Text(page), 12)] == wanted


def test_a_table_folds_its_last_cells_and_pads_nothing() -> None:
    table = Table("role", "state", "why", left=("state", "why"))
    table.add_row("0", "active", "because of something that takes many words to be said")
    table.add_row("1", "failed", "/a/path/that/is/longer/than/what/is/left/of/the/line")
    table.add_line(Text("next: raidx replace-disk /mnt/array 1 /srv/disks/new.img --wait"))
    assert [str(line) for line in lines_of(table, 48)] == [
        "role  state   why",
        "   0  active  because of something that takes",
        "              many words to be said",
        "   1  failed",
        "    /a/path/that/is/longer/than/what/is/left/of/the/line",
        "    next: raidx replace-disk /mnt/array 1 \\",
        "        /srv/disks/new.img --wait",
    ]


def test_a_folded_command_is_one_that_a_shell_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")  # a pipe has 80 columns
    folder = tmp_path / ("d" * 60)
    folder.mkdir()
    members = [str(folder / name) for name in "abc"]
    said = checked(folder, f"create --layout raid5 --size 4MiB {' '.join(members)}")
    first, *rest = said.partition("mount it: ")[2].splitlines()
    assert first == "raidx mount \\"
    assert len(rest) == 4
    line = "\n".join([first, *rest])
    told = subprocess.run(["bash", "-c", f"printf '%s\n' {line}"], capture_output=True, text=True)
    assert told.stdout.splitlines() == ["raidx", "mount", *members, "MOUNTPOINT"]


@pytest.mark.parametrize("variables", [{"LC_ALL": "C"}, {"LANG": "POSIX"}, {"TERM": "dumb"}])
def test_a_plain_locale_and_a_dumb_terminal_get_plain_text(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    names = {"LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING", "PYTHONUTF8"}
    environment = {k: v for k, v in os.environ.items() if k not in names} | variables
    program = (
        "from raidx_fuse.cli.main import main; from raidx_fuse.cli.output import Output, show;"
        "from raidx_fuse.cli.status_text import job_line; from tests.support.documents import job;"
        "show(job_line(job(), Output()));"
        "main.main(['layout', 'show', 'raid5', '--disks', '3'], standalone_mode=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )
    assert b"\x1b" not in done.stdout
    assert b"\xe2" not in done.stdout or "TERM" in variables


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
    assert "29.3 %" in bar
    assert "#####..............." in bar, "what is done differs from what is to do"
    assert text == "? * ~"


def test_waiting_for_a_job_keeps_to_an_ascii_terminal(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon
) -> None:
    daemon.answers["job-list"] = {"jobs": [job(state="done", done=1 << 30)]}
    with terminal(monkeypatch, 80, "ascii") as lines:
        progress.wait_for_jobs(daemon.mountpoint, [1], Output())
    assert any("1 GiB of 1 GiB" in line for line in lines)
    assert all(len(line.rpartition("\r")[2]) <= 160 for line in lines)
