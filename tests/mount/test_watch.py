"""`raidx watch` of a mounted array: a rebuild as it goes, keys that do something, and its end."""

from __future__ import annotations

import asyncio
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.cli.screen.app import FrameView, WatchApp
from raidx_fuse.cli.screen.frame import Feed, Frame
from tests.mount.real_array import RealArray
from tests.support.command import RAIDX

pytestmark = [pytest.mark.mount]

WAIT_S = 120.0
WRITTEN_BYTES = 12 << 20
LEAVES_SCREEN = b"\x1b[?1049l"
MOUSE_OFF = b"\x1b[?1003l"


@pytest.fixture
def raid5(array: RealArray) -> RealArray:
    """Return a mounted RAID-5 array of four with data at its beginning."""
    array.create("raid5", 4, "16MiB").mount()
    with array.image.open("r+b") as image:
        image.write(os.urandom(WRITTEN_BYTES))
    return array


async def watch_a_rebuild(array: RealArray) -> None:
    """Fail and replace a member with the keys; compare the screen with what `status` says."""
    feed = Feed(str(array.mnt), 0.1)
    app = WatchApp(feed, Frame())
    async with app.run_test(size=(100, 30)) as pilot:
        view = app.query_one(FrameView)
        loop = asyncio.get_running_loop()

        def lines() -> list[str]:
            return [view.render_line(y).text.rstrip() for y in range(view.size.height)]

        def map_of(role: int) -> str:
            shown, at = lines(), -1
            for at, line in enumerate(shown):
                if line.startswith(f"{role:>4} ") and "active" not in line:
                    return "".join([line[5:], *_folded(shown[at + 1 :])])
            return ""

        async def until(condition: Callable[[], bool]) -> None:
            end_s = loop.time() + WAIT_S
            while not condition():
                assert loop.time() < end_s, "\n".join(lines())
                await pilot.pause(0.02)

        await until(lambda: "█" in map_of(1) and "x" not in map_of(1))
        await pilot.press("down", "f")
        await until(lambda: "would do: excludes role 1" in _dialog(app))
        full = map_of(1).count("█")  # the first look knew neither members nor size
        assert array.status()["state"] == "clean", "the dry run has changed nothing"
        await pilot.press("y")
        await until(lambda: "role 1 is failed now" in lines()[-2])
        await until(lambda: "degraded, no further loss tolerated" in lines()[0])
        await until(lambda: map_of(1).count("x") >= full)
        array.raidx("set", "ARRAY", "speed_max=16KiB")  # a minute for each window
        await pilot.press("r")
        await until(lambda: "replace-disk" in _dialog(app))
        app.screen.query_one("Input").value = f"{array.folder / 'new.img'} --create"  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(lambda: "would do: rebuilds role 1" in _dialog(app))
        await pilot.press("y")
        await until(lambda: "takes role 1; it is being rebuilt" in lines()[-2])
        await until(lambda: "x" in map_of(1) and "█" in map_of(1))
        await pilot.press("p")
        await until(lambda: ", paused" in lines()[-2])  # until the command ends, keys are refused
        await until(lambda: any(", paused" in line for line in lines()[:-2]))  # p means resume now
        await until(lambda: _agrees(lines(), array.ask("status", "ARRAY"), map_of(1)))
        await pilot.press("p")
        await until(lambda: "rebuild" in lines()[-2] and ", paused" not in lines()[-2])
        array.raidx("set", "ARRAY", "speed_max=0")
        await until(lambda: "clean, 1 more loss tolerated" in lines()[0])
        await until(lambda: map_of(1).count("█") == full and "x" not in map_of(1))
        await pilot.press("q")
    feed.close()
    assert app.return_code == 0


def _folded(lines: list[str]) -> Iterator[str]:
    """Yield the further lines of a member's map."""
    for line in lines:
        if line[:5].strip() or not line.strip():
            return
        yield line[5:]


def _dialog(app: WatchApp) -> str:
    return "\n".join(getattr(app.screen, "lines", ()))


def _agrees(lines: list[str], status: dict[str, Any], parts: str) -> bool:
    """Return whether the screen shows what *status* says; *parts* is the map of role 1."""
    (job,) = status["jobs"]
    lines = lines[:-2]  # the rest is what the last command said, and the keys
    (shown,) = [line for line in lines if line.startswith(f"  {job['id']} rebuild")]
    share = 100 * job["done"] / job["total"]
    done = parts.index("x") / (parts.rindex("x") + 1)  # of what is written
    states = {
        int(match[1]): match[2]
        for line in lines
        if line != shown and (match := re.match(r"[> ] {0,2}(\d+) ([a-z]+) ", line))
    }
    return (
        f" {share:.1f} %  " in shown
        and abs(100 * done - share) < 15
        and states == {each["role"]: each["state"] for each in status["members"]}
        and status["state"] in lines[0]
    )


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
        """Read until *condition* holds."""
        end_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end_s, self.said[-2000:]
            if select.select([self._outer], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self.said += os.read(self._outer, 65536)

    def see(self, words: bytes) -> None:
        """Read until *words* have come."""
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


def test_the_screen_follows_a_rebuild_and_ends_with_its_daemon(raid5: RealArray) -> None:
    asyncio.run(watch_a_rebuild(raid5))
    raid5.members[1] = raid5.folder / "new.img"

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
