"""`raidx watch` as a command: one frame, its document, what it refuses, what it loads."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from raidx_fuse.cli.commands.teach import watch as command
from raidx_fuse.cli.main import main
from raidx_fuse.cli.screen.frame import Feed
from raidx_fuse.daemon import control_client
from raidx_fuse.daemon.control_client import DaemonEndedError
from raidx_fuse.errors import UsageError
from tests.cli.conftest import Daemon
from tests.support.documents import chunk_map, member, stats, status


def scripted(daemon: Daemon) -> dict[str, Any]:
    """Let *daemon* answer what a look asks; return the answers."""
    answers = {
        "status": status(members=[member(0), member(1)]),
        "stats": stats(0, 1),
        "chunk-map": chunk_map(0, 1),
    }
    daemon.answers |= answers
    return answers


@pytest.mark.parametrize("options", [(), ("--once",), ("--once", "--ascii", "--interval", "7")])
def test_without_a_terminal_there_is_one_plain_frame(
    daemon: Daemon, options: tuple[str, ...]
) -> None:
    scripted(daemon)
    result = daemon.run("watch", "ARRAY", *options)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("disk  clean, 1 more loss tolerated  raid5 on 2 members")
    assert "/disks/d1.img" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stdout.isascii() == ("--ascii" in options)
    interval_s = 7.0 if "7" in options else 0.5
    assert [call for call in daemon.calls if call[0] == "stats"] == [
        ("stats", {"interval_s": interval_s})
    ]
    names = [name for name, _ in daemon.calls]
    assert names == ["chunk-map", "stats", "status", "chunk-map"], "counted before it is measured"


def test_the_document_has_the_three_answers(daemon: Daemon) -> None:
    answers = scripted(daemon)
    document = daemon.run_json("watch", "ARRAY")
    assert document == {
        "stats": answers["stats"],
        "status": answers["status"],
        "chunk_map": answers["chunk-map"],
    }


def test_what_cannot_be_watched_is_refused_in_one_line(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(daemon)
    daemon.answers["stats"] = UsageError("this mount has 2 arrays", action="name one: a, b")
    result = daemon.run("watch", "ARRAY")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "raidx: this mount has 2 arrays; name one: a, b\n"
    monkeypatch.setattr(control_client, "peer", lambda _: (os.getpid(), os.getuid() + 1))
    scripted(daemon)
    daemon.answers["chunk-map"] = {"members": 5}
    result = daemon.run("watch", "ARRAY")
    assert result.exit_code == 1
    assert result.stderr == "raidx: the daemon's answer to chunk-map has no valid 'sampled_ratio'\n"


@pytest.mark.parametrize(
    "words",
    [
        ("watch",),
        ("watch", "ARRAY", "--interval", "0"),
        ("watch", "ARRAY", "--interval", "inf"),
        ("watch", "ARRAY", "ARRAY"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_asked(
    daemon: Daemon, words: tuple[str, ...]
) -> None:
    result = daemon.run(*words)
    assert result.exit_code == 2
    assert not daemon.calls


def test_an_array_that_is_not_mounted_is_named(tmp_path: Any) -> None:
    result = CliRunner().invoke(main, ["watch", str(tmp_path)])
    assert result.exit_code == 1
    assert f"no array is mounted on {tmp_path}" in result.stderr


def test_the_live_screen_without_textual_is_one_line(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(daemon)
    monkeypatch.setattr(command, "_is_terminal", lambda: True)
    for name in [name for name in sys.modules if name.startswith("raidx_fuse.cli.screen.app")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    result = daemon.run("watch", "ARRAY")
    assert result.exit_code == 1
    assert result.stderr == (
        "raidx: the live screen needs Textual, which is not installed; "
        "pip install 'raidx-fuse[watch]', or add --once for one frame\n"
    )


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_draw_gets_the_plain_frame(
    term: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("stdin", "stdout", "__stderr__"):
        monkeypatch.setattr(sys, name, Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert command._is_terminal()
    monkeypatch.delenv("TERM") if term is None else monkeypatch.setenv("TERM", term)
    assert not command._is_terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "__stderr__", io.StringIO())  # raidx watch 2>file
    assert not command._is_terminal()


def test_no_other_command_and_no_plain_frame_loads_textual() -> None:
    program = (
        "import sys, raidx_fuse.cli.main as m; m.main.commands['watch'];"
        "print([n for n in sys.modules if n.startswith(('textual', 'raidx_fuse.cli.screen.app'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_connection_that_was_closed_for_another_client_is_made_again(daemon: Daemon) -> None:
    scripted(daemon)
    feed = Feed(daemon.mountpoint, 0.5)
    feed.look(8)
    feed.stop()  # as if the daemon had closed it
    with pytest.raises(DaemonEndedError):
        feed.look(8)
    feed = Feed(daemon.mountpoint, 0.5)
    feed.open().interrupt()
    assert feed.look(8)["status"]["name"] == "disk"
    feed.close()
