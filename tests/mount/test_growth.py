"""Growth under a mount, from 4 to 5 to 7 to 8 members, with ext4 on a loop device under fio.

In the middle of each growth (the job is held there, and its status has to say so) the daemon is
killed, or a member fails, or nothing happens. fio writes a file all the while and verifies it, and
every other file has its checksum. RAIDX_TEST_SCALE=2 runs every trouble in every growth.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mount.real_array import SCALE, RealArray, checksums, need

pytestmark = [pytest.mark.mount]

MIB = 1 << 20
MEMBER_MIB = 64
MEMBER_BYTES = f"{MEMBER_MIB}MiB"
FIO_MIB = 32  # written once over; takes longer than a growth
FIO_RATE = "128k"  # of each of its jobs
FILE_MIB = 16  # written before each growth, so that it moves several windows
GROWTHS = ((1, 5), (2, 7), (1, 8))  # members added, members then
PARITY = 3
WAIT_S = 60.0


def grow_of(array: RealArray) -> dict[str, Any]:
    """Return the newest growth, by the fewest moves or by moving everything."""
    return [job for job in array.jobs() if job["kind"] in ("grow", "restripe")][-1]


def await_job(array: RealArray, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the growth when it has *reached* something."""
    deadline_s = time.monotonic() + WAIT_S
    while not reached(job := grow_of(array)):
        assert time.monotonic() < deadline_s, job
        time.sleep(0.02)
    return job


def await_share(array: RealArray, share: float) -> None:
    """Return when *share* of the growth is done."""
    await_job(array, lambda job: bool(job["done"] >= share * job["total"] > 0))


class Growing:
    """ext4 on *array* with *files* whose checksums are known, and a file that fio writes."""

    def __init__(self, array: RealArray) -> None:
        self.array = array
        self.disk = array.file_system()
        self.disk.make("-m", "0")
        self.sums: dict[str, str] = {}
        size_bytes = int(FIO_MIB * SCALE) * MIB
        self._write(self.disk.where / "fio.bin", size_bytes)
        self.fio = array.fio(self.disk.where / "fio.bin", size_bytes, f"rate={FIO_RATE}")
        self.seed = 0
        self.verified = 0

    @staticmethod
    def _write(path: Path, size_bytes: int) -> None:
        with path.open("xb", buffering=0) as file:
            for _ in range(0, size_bytes, MIB):
                file.write(os.urandom(MIB))
            os.fsync(file.fileno())

    @property
    def files(self) -> Path:
        return self.disk.where / "files"

    def add_file(self) -> None:
        """Write one file more."""
        self.files.mkdir(exist_ok=True)
        self._write(self.files / f"{len(self.sums)}.bin", int(FILE_MIB * SCALE) * MIB)
        self.sums = checksums(self.files)

    def check(self) -> None:
        """Compare all files, read from the array and not from memory."""
        self.disk.again()
        assert checksums(self.files) == self.sums

    # -- fio --

    @contextmanager
    def under_fio(self, *, kill: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """Run fio; at the end of the block it is stopped, or the daemon killed under it."""
        self.seed += 1
        process = self.fio.begin(self.seed, kill=kill)
        try:
            self.await_fio(process)
            yield process
            self.await_fio(process)
        finally:
            self.fio.trigger.touch()
            process.wait(WAIT_S)

    def await_fio(self, process: subprocess.Popen[bytes]) -> None:
        """Return when fio has written some more: it must not have ended before the growth."""
        goal = self.array.counters()["write_bytes"] + MIB // 4
        while self.array.counters()["write_bytes"] < goal:
            assert process.poll() is None, "fio ended before the growth: make its file larger"
            time.sleep(0.02)

    def verify(self) -> None:
        """Let fio verify what it wrote last."""
        self.verified += self.fio.check(self.seed)

    # -- growth --

    def begin(self, added: int, width: int, way: str = "live") -> None:
        """Begin to grow, in this *way*, and hold the growth in the middle."""
        array = self.array
        array.call("set", key="speed_max", value="1MiB")  # 12 s are left to look at it
        new = [array.folder / f"more{width}-{n}.img" for n in range(added)]
        taker = array.folder / f"surrogate{width}.img"
        asked: dict[str, list[str | Path]] = {
            "live": [],  # what users get who ask for nothing
            "piggyback": ["--parity", way],
            "surrogate": ["--surrogate", taker],
            "restripe": ["--method", way],
        }
        said = array.raidx("add-disk", "ARRAY", *new, *asked[way], "--create").stdout
        if way != "restripe":
            assert f"growing from {width - added} to {width} members" in said
        steps = f"losetup -c {self.disk.device} && resize2fs {self.disk.device}"
        assert (steps in said) != ("the image keeps its size" in said)
        array.members += [*new, *([taker] if way == "surrogate" else [])]
        await_share(array, 0.01)
        array.call("job-pause", job=grow_of(array)["id"])
        job = grow_of(array)
        assert job["state"] == "paused", job
        assert 0 < job["done"] < job["total"], "not in the middle"
        assert array.status()["state"] == ("restriping" if way == "restripe" else "growing")

    def finish(self) -> None:
        """Let the growth run to its end at full speed."""
        array, job = self.array, grow_of(self.array)
        assert job["state"] in ("running", "paused"), job
        assert job["done"] < job["total"], "the growth was over before"
        for key in ("speed_min", "speed_max"):  # fio works on, and a resync may come first
            array.call("set", key=key, value="0")
        if job["paused"]:
            array.call("job-resume", job=job["id"])
        assert await_job(array, lambda job: job["state"] != "running")["state"] == "done"

    def kill(self) -> None:
        """Mount again what was killed in the middle: the growth is still there and goes on."""
        self.disk.take_down()
        self.array.clear()
        self.array.mount()
        job = grow_of(self.array)
        assert job["state"] == "running", job
        assert job["done"] < job["total"], job
        self.disk.bring_up()
        self.fio.target = self.disk.where / "fio.bin"
        self.verify()

    def fail(self, role: int, width: int) -> None:
        """Take a member out in the middle, let the growth end, with another where it must."""
        array = self.array
        array.fail(role)
        if role == PARITY:
            self.finish()
            assert array.status()["state"] == "degraded"
            array.replace(role)
        elif role < width:
            array.replace(role)
            self.finish()
        else:
            array.call("job-resume", job=grow_of(array)["id"])
            job = await_job(array, lambda job: job["waits_for_role"] is not None)
            assert job["waits_for_role"] == role
            assert job["done"] < job["total"]
            array.replace(role)
            self.finish()
        array.wait_jobs()
        assert array.status()["state"] == "clean"


def cases() -> list[Any]:
    """Return (layout, how it grows, what happens in each growth)."""
    chosen = [
        ("raid4", "live", ("fail data", "fail parity", "fail new")),
    ]
    if SCALE > 1:
        chosen += [
            ("raid4", "live", ("kill", "kill", "kill")),
            ("raid5", "live", ("kill", "kill", "kill")),
            ("raid5", "live", ("kill", "fail new", "kill")),
            ("raid5", "live", ("fail data", "fail parity", "fail new")),
            ("raid4", "live", ("nothing", "nothing", "nothing")),
            ("raid4", "live", ("fail parity", "fail new", "fail data")),
            ("raid4", "live", ("fail new", "fail data", "fail parity")),
            ("raid4", "piggyback", ("kill", "kill", "kill")),
            ("raid4", "piggyback", ("fail data", "fail parity", "fail new")),
            ("raid4", "surrogate", ("kill", "nothing", "kill")),
            ("raid5", "restripe", ("kill", "kill", "kill")),
            ("raid5", "restripe", ("fail data", "fail parity", "nothing")),
            ("raid0", "live", ("nothing", "nothing", "nothing")),
            ("raid0", "live", ("kill", "kill", "kill")),
        ]
    return [pytest.param(*case, id=f"{case[0]} {case[1]}: {', '.join(case[2])}") for case in chosen]


@pytest.mark.loop
@pytest.mark.parametrize(("layout", "way", "troubles"), cases())
def test_ext4_under_fio_grows_from_four_members_to_eight(
    array: RealArray, layout: str, way: str, troubles: tuple[str, ...]
) -> None:
    need("fio", "mkfs.ext4", "e2fsck", "resize2fs", "losetup")
    array.create(layout, 4, f"{int(MEMBER_MIB * SCALE)}MiB").mount()
    growing = Growing(array)
    for (added, width), trouble in zip(GROWTHS, troubles, strict=True):
        growing.add_file()
        size = array.image.stat().st_size
        room = os.statvfs(growing.disk.where).f_blocks
        if trouble == "kill":
            with growing.under_fio(kill=True):
                growing.begin(added, width, way)
                assert array.image.stat().st_size == size
                array.call("set", key="speed_max", value="1MiB")  # not over before we look
            growing.kill()
            with growing.under_fio():
                growing.finish()
        else:
            with growing.under_fio():
                growing.begin(added, width, way)
                if trouble == "nothing":
                    growing.finish()
                else:
                    roles = {"data": 1, "parity": PARITY, "new": width - added}
                    growing.fail(roles[trouble.removeprefix("fail ")], width - added)
        growing.verify()
        assert array.image.stat().st_size > size
        growing.disk.enlarge()
        assert os.statvfs(growing.disk.where).f_blocks > room
        growing.check()
        if layout != "raid0":
            array.scrub()
    assert growing.verified > len(GROWTHS) * MIB // 4
    growing.disk.take_down()
    array.unmount()
    array.mount()
    assert array.status()["state"] == "clean"
    growing.disk.bring_up()
    growing.check()


@pytest.mark.loop
def test_ext4_under_fio_on_raid5_gains_three_members_and_two_of_all_leave(array: RealArray) -> None:
    need("fio", "mkfs.ext4", "e2fsck", "resize2fs", "losetup")
    array.create("raid5", 4, MEMBER_BYTES, "--chunk", "16KiB", "--image-size", "96MiB").mount()
    growing = Growing(array)
    growing.add_file()
    with growing.under_fio(kill=True):
        growing.begin(1, 5)
        array.call("set", key="speed_max", value="1MiB")  # not over before we look
    growing.kill()
    growing.finish()
    growing.check()
    growing.add_file()
    with growing.under_fio():
        growing.begin(2, 7)
        growing.fail(1, 5)
    growing.verify()
    growing.check()
    for role, width, kill in ((1, 7, True), (5, 6, False)):  # an old one, and one that came
        array.call("set", key="speed_max", value="2MiB")
        with growing.under_fio(kill=kill):
            said = array.raidx("remove-disk", "ARRAY", str(role)).stdout
            assert f"shrinking from {width} to {width - 1} members" in said
            await_share(array, 0.02)
            if not kill:
                growing.finish()
        if kill:
            growing.kill()
            growing.finish()
        else:
            growing.verify()
        del array.members[role]
        growing.check()
        array.scrub()
    growing.disk.take_down()
    array.unmount()
    array.mount()
    status = array.status()
    assert (status["state"], len(status["members"])) == ("clean", 5)
    growing.disk.bring_up()
    growing.check()
