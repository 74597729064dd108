"""A pool in use: ext4 on loop devices over two volumes, fio in both, a hotspot that is dissolved.

The pool finds the hotspot and moves a volume by itself (balance.auto). In the second story the
daemon is killed in the middle of the move, in the third a member of each array fails there. fio
verifies every write that was acknowledged, and the files beside it are compared.

No speed matters: "busy" is a hotspot because a request takes longer than hot.latency of no time at
all, for as long as that is set. The move is slowed down until the story has had its way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.mount.real_array import LoopFileSystem, RealArray, need, run
from tests.support.waiting import await_that

pytestmark = [pytest.mark.mount, pytest.mark.loop]

MIB = 1 << 20
LIMIT_S = 60.0
FIO_BYTES = 16 * MIB  # 4096 writes: more than a story lasts
VOLUMES = ("mail", "logs")


class Used:
    """The volume *name* of *pool* with ext4 on a loop device, files in it and fio beside them."""

    def __init__(self, pool: RealArray, name: str) -> None:
        self.name = name
        self._pool = pool
        self._image = pool.mnt / name
        pool.call("volume-create", name=name, size=40 * MIB, on="busy")
        self.disk: LoopFileSystem = pool.file_system(self._image)
        self.disk.make()
        draw = random.Random(name)
        self.files = {f"file{n}": draw.randbytes(draw.randrange(1, 40000)) for n in range(100)}
        for file, content in self.files.items():
            (self.disk.where / file).write_bytes(content)
        (self.disk.where / "fio").write_bytes(bytes(FIO_BYTES))
        run("sync", "-f", self.disk.where)
        self._fio = pool.fio(self.disk.where / "fio", FIO_BYTES, "rate_iops=4")

    def begin(self, *, kill: bool) -> None:
        """Let fio write; its end kills the daemon if *kill*."""
        self._writing = self._fio.begin(1, kill=kill)

    def stop(self) -> None:
        """End fio, which notes what was acknowledged."""
        assert self._writing.poll() is None, "fio has written everything: FIO_BYTES is too small"
        self._fio.trigger.touch()
        self._writing.wait(LIMIT_S)

    def check(self) -> None:
        """Compare the files and verify what fio was acknowledged, from the disk."""
        self.disk.again()
        assert self._fio.check(1) > 0
        for file, content in self.files.items():
            assert (self.disk.where / file).read_bytes() == content, file


class Pool:
    """Two arrays in one mount: both volumes are on "busy", "idle" has room for one."""

    def __init__(self, array: RealArray) -> None:
        self.array = array
        for name in ("busy", "idle"):
            members = [array.folder / f"{name}{role}.img" for role in range(3)]
            words = ("--layout", "raid5", "--size", "64MiB", "--no-volume", "--name", name)
            array.raidx("create", *words, *members)
            array.members += members
        array.mount()
        self.volumes = [Used(array, name) for name in VOLUMES]
        for key, value in (
            *(("hot.interval", "500ms"), ("hot.window", "4"), ("hot.share", "50%")),
            ("balance.stay", "logs"),
        ):
            array.call("set", key=key, value=value)
        array.call("set", key="hot.latency", value="1us", in_array="busy")
        for limit in ("speed_min", "speed_max"):
            array.call("set", key=limit, value="1MiB", in_array="busy")

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Return when *holds* is true; fail if it never is."""
        await_that(holds, lambda: f"{what}; {self.array.status()['pool']}", LIMIT_S)

    def balance(self) -> dict[str, Any]:
        return dict(self.array.call("balance-status")["balance"])

    def hot(self) -> dict[str, bool]:
        """Return by array whether it is a hotspot; one is missing until seen for a window."""
        seen = self.array.status()["pool"]["arrays"]
        return {one["array"]: one["hotspot"] for one in seen if one["observations"] >= 4}

    def mail(self) -> dict[str, Any]:
        volumes = self.array.call("volume-list")["volumes"]
        return next(one for one in volumes if one["name"] == "mail")

    def begin(self, *, kill: bool = False) -> None:
        """Make the hotspot; return in the middle of the move."""
        for volume in self.volumes:
            volume.begin(kill=kill and volume.name == "mail")
        self.wait("a hotspot", lambda: self.hot() == {"busy": True, "idle": False})
        assert self.balance()["state"] == "idle"
        self.array.call("set", key="balance.auto", value="on")
        self.wait("a move", lambda: self.mail().get("moving", {}).get("job") is not None)
        assert self.balance()["steps"] == ["move mail from busy to idle"]

    def go_on(self) -> None:
        """Let the move end, with fio until then; return with *mail* on the other array."""
        for limit, value in (("speed_max", "0"), ("speed_min", "1GiB")):
            self.array.call("set", key=limit, value=value, in_array="busy")
        self.wait("mail on idle", lambda: self.mail()["array"] == "idle")
        self.array.call("set", key="hot.latency", value="0", in_array="busy")
        self.wait("the end of the move", lambda: "moving" not in self.mail())

    def end(self) -> None:
        """Unmount all; the next mount has all again, what it saw of the arrays too."""
        for volume in self.volumes:
            volume.disk.take_down()
        seen = [one["observations"] for one in self.array.status()["pool"]["arrays"]]
        self.array.unmount()
        self.array.mount()
        again = [one["observations"] for one in self.array.status()["pool"]["arrays"]]
        assert min(again) >= min(seen)
        for volume in self.volumes:
            volume.disk.bring_up()
            volume.check()


@pytest.fixture
def pool(array: RealArray) -> Pool:
    need("fio", "mkfs.ext4", "e2fsck")
    return Pool(array)


def test_a_hotspot_is_found_and_dissolved_under_file_systems(pool: Pool) -> None:
    pool.begin()
    pool.go_on()
    pool.wait("the end of the plan", lambda: pool.balance()["state"] == "done")
    pool.wait("no hotspot", lambda: pool.hot() == {"busy": False, "idle": False})
    for volume in pool.volumes:
        volume.stop()
    pool.end()


def test_a_daemon_killed_in_the_middle_goes_on(pool: Pool) -> None:
    pool.begin(kill=True)
    mail, logs = pool.volumes
    pid = pool.array.daemon_pid()
    pool.wait("a part of mail on idle", lambda: pool.mail()["moving"]["watermark"] > 0)
    logs.stop()
    mail.stop()
    pool.array.await_end(pid)
    for volume in pool.volumes:
        volume.disk.take_down()
    pool.array.clear()
    pool.array.mount()
    assert pool.mail()["moving"]["watermark"] > 0
    for volume in pool.volumes:
        volume.disk.bring_up()
        volume.check()
    pool.go_on()
    pool.end()
