"""`raidx watch` of a mounted array: its end, and a frame that agrees with the status.

Keys and looks: tests/cli/screen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray
from tests.support.command import RAIDX

pytestmark = [pytest.mark.mount]

WAIT_S = 120.0
WRITTEN_BYTES = 12 << 20
LEAVES_SCREEN = b"\x1b[?1049l"
MOUSE_OFF = b"\x1b[?1003l"


@pytest.fixture
def raid5(array: RealArray) -> RealArray:
    array.create("raid5", 4, "16MiB").mount()
    with array.image.open("r+b") as image:
        image.write(os.urandom(WRITTEN_BYTES))
    return array


class Terminal:
    """A terminal of 80x24 with `raidx watch` in it; *said* is all that it wrote."""

    def __init__(self, array: RealArray) -> None:
        self._outer, self.inner = pty.openpty()
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.inner)
        self.said = b""
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [RAIDX, "watch", str(array.mnt)],
            stdin=self.inner,
            stdout=self.inner,
            stderr=self.inner,
            env=environment,
            start_new_session=True,
        )

    def until(self, condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end_s, self.said[-2000:]
            if select.select([self._outer], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self.said += os.read(self._outer, 65536)

    def see(self, words: bytes) -> None:
        self.until(lambda: words in self.said)

    def ends(self, status: int) -> str:
        """Return the line that it leaves behind; the terminal must be as it was."""
        self.until(lambda: self.process.poll() is not None)
        self.until(lambda: not select.select([self._outer], [], [], 0)[0])
        assert self.process.returncode == status, self.said[-2000:]
        assert termios.tcgetattr(self.inner) == self.before
        screen, _, left = self.said.rpartition(LEAVES_SCREEN)
        assert MOUSE_OFF in self.said
        assert b"raidx: " not in screen
        os.close(self._outer)
        os.close(self.inner)
        return re.sub(r"\x1b\[[0-9;?<]*[a-z]", "", left.decode()).strip()


def test_the_screen_ends_with_its_daemon(raid5: RealArray) -> None:
    terminal = Terminal(raid5)
    terminal.see(b"more loss tolerated")
    raid5.unmount()
    said = terminal.ends(1)
    assert said == f"raidx: watching {raid5.mnt} ended: it is not mounted any more"

    raid5.mount()
    terminal, other = Terminal(raid5), Terminal(raid5)
    terminal.see(b"more loss tolerated")
    other.see(b"more loss tolerated")
    other.process.send_signal(signal.SIGTERM)
    assert other.ends(143) == ""
    raid5.send(signal.SIGKILL)
    said = terminal.ends(1)
    assert said.startswith(f"raidx: watching {raid5.mnt} ended: the daemon of"), said
    assert "is gone; clear the mount point" in said
    raid5.clear()


def test_one_frame_in_a_pipe_agrees_with_the_status(raid5: RealArray, tmp_path: Path) -> None:
    shown = raid5.raidx("watch", "ARRAY", "--once", "--ascii").stdout
    assert "\x1b" not in shown
    document = raid5.ask("watch", "ARRAY")
    assert document["status"]["uuid"] == raid5.status()["uuid"]
    for member in document["chunk_map"]["members"]:
        assert f"{member['role']:>4} ####" in shown
        assert member["written_percent"][0] == 100
    for path in raid5.members:
        assert str(path) in shown
    assert "no array is mounted" in raid5.refused("watch", tmp_path)
