"""The daemon is killed at random moments, repeatedly: acknowledged writes are there.

A killed process loses nothing that it has answered: it lies in the page cache of the members. Each
round mounts what the last one left, checks it, works, and kills. fio says itself what was
acknowledged, in the state that it saves before the kill; beside it writers of our own write over
one another and remember each answer. A database commits on ext4 on a loop device.
"""

from __future__ import annotations

import hashlib
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

import pytest

from tests.mount.real_array import RealArray, need

pytestmark = [pytest.mark.mount]

MIB = 1 << 20
SECTOR_BYTES = 512
KILLS = 6  # of each test
FIO_BYTES = 48 * MIB  # from the start of the image; more than fio gets to write in a round
OWN_BYTES = 2 * MIB  # for each writer of our own, behind fio's
WRITERS = 2


class Killer:
    """Kills the daemon of *array* at moments drawn from *seed*, and mounts it again."""

    def __init__(self, array: RealArray, seed: int) -> None:
        self.array = array
        self.random = random.Random(seed)
        self.kills = 0

    def kill(self) -> None:
        self.array.send(signal.SIGKILL)
        self.kills += 1

    def mount_again(self) -> None:
        """Clear what the killed daemon left and mount; nobody has ended the array cleanly."""
        assert self.array.is_mounted(), "the kernel keeps the mount of a killed daemon"
        self.array.clear()
        assert not self.array.is_mounted()
        self.array.mount()

    def settle(self) -> None:
        """Wait for the resync of what was in flight; then everything must be consistent."""
        self.array.wait_jobs()
        assert [job["error"] for job in self.array.jobs() if job["error"]] == []
        assert self.array.status()["state"] == "clean"
        self.array.scrub()

    def end(self) -> None:
        """End cleanly, begin again: nothing is left to do."""
        self.array.unmount()
        assert self.array.ask("status", *self.array.members)["clean"]
        self.array.mount()
        assert self.array.jobs() == []
        self.array.unmount()


# ---- fio, and writers of our own ----


class Writer(threading.Thread):
    """Writes over and over a part of *image* from *start* on, until the disk goes away.

    *model* has what was answered; *in_flight* is the write (offset, data) that was not.
    """

    def __init__(self, image: Path, start: int, seed: int) -> None:
        super().__init__()
        self.image = image
        self.start_offset = start
        self.random = random.Random(seed)
        self.model = bytearray(OWN_BYTES)
        self.in_flight: tuple[int, bytes] | None = None
        self.answered = 0

    def run(self) -> None:
        # The disk goes away under a write, or at the latest under close(2).
        with suppress(OSError), self.image.open("r+b", buffering=0) as image:
            while self._write(image):
                pass

    def _write(self, image: IO[bytes]) -> bool:
        draw = self.random
        length = draw.choice((512, 2048, 4096, 4096, 20000, 65536, 300000))
        offset = draw.randrange((OWN_BYTES - length) // SECTOR_BYTES) * SECTOR_BYTES
        data = draw.randbytes(length)
        self.in_flight = offset, data
        image.seek(self.start_offset + offset)
        if image.write(data) != length:
            return False
        self.model[offset : offset + length] = data
        self.in_flight = None
        self.answered += 1
        return True

    def check(self) -> None:
        """Compare every sector: the newest answered write, or the one that was in flight."""
        with self.image.open("rb", buffering=0) as image:
            image.seek(self.start_offset)
            found = image.read(OWN_BYTES)
        assert len(found) == OWN_BYTES
        newer = bytearray(self.model)
        if self.in_flight is not None:
            offset, data = self.in_flight
            newer[offset : offset + len(data)] = data
        for at in range(0, OWN_BYTES, SECTOR_BYTES):
            sector = found[at : at + SECTOR_BYTES]
            old, new = self.model[at : at + SECTOR_BYTES], newer[at : at + SECTOR_BYTES]
            assert sector in (old, new), f"sector at {self.start_offset + at} is neither"
        self.model[:] = found

    def again(self) -> Writer:
        """Return a thread that goes on from what was found."""
        following = Writer(self.image, self.start_offset, self.random.getrandbits(32))
        following.model = self.model
        return following


@pytest.mark.parametrize("mode", ["partial", "full"])
def test_killed_under_fio_and_overlapping_writes(array: RealArray, mode: str) -> None:
    need("fio")
    array.create("raid5", 4, "32MiB").mount()
    array.raidx("set", "ARRAY", f"journal={mode}")
    killer = Killer(array, seed=len(mode))
    fio = array.fio(array.image, FIO_BYTES, "rate=1536k")
    writers = [Writer(array.image, FIO_BYTES + n * OWN_BYTES, n) for n in range(WRITERS)]
    for number in range(KILLS):
        pid = array.daemon_pid()
        process = fio.begin(number + 1, kill=True)
        array.await_written(MIB // 2, timeout_s=30)
        for writer in writers:
            writer.start()
        array.await_written(array.counters()["write_bytes"] + MIB, timeout_s=30)
        time.sleep(killer.random.uniform(0, 0.5))
        fio.trigger.touch()
        process.wait(60)
        array.await_end(pid)
        killer.kills += 1
        for writer in writers:
            writer.join(30)
            assert not writer.is_alive()
        killer.mount_again()
        assert fio.check(number + 1) > 0
        for writer in writers:
            assert writer.answered
            writer.check()
        writers = [writer.again() for writer in writers]
    assert killer.kills == KILLS
    killer.settle()
    killer.end()


# ---- a database ----

COMMIT = """
import hashlib, sqlite3, sys
path, first = sys.argv[1], int(sys.argv[2])
database = sqlite3.connect(path, isolation_level=None)
database.execute("PRAGMA journal_mode=" + sys.argv[3])
database.execute("PRAGMA synchronous=FULL")
database.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, content BLOB)")
number = first
while True:
    content = hashlib.shake_128(str(number).encode()).digest(200 + number % 7 * 900)
    database.execute("BEGIN")
    database.execute("INSERT INTO rows VALUES (?, ?)", (number, content))
    database.execute("COMMIT")
    print(number, flush=True)
    number += 1
"""


class Database:
    """An SQLite database on ext4 on a loop device on the image of *array*."""

    def __init__(self, array: RealArray) -> None:
        self.disk = array.file_system()
        self.committed = 0

    def commit(self, style: str) -> Iterator[int]:
        """Commit rows until the disk goes away; yield the number of each once it is committed."""
        words = [sys.executable, "-c", COMMIT, str(self.disk.where / "data.db")]
        process = subprocess.Popen(
            [*words, str(self.committed + 1), style],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        with process, process.stdout as lines:
            for line in lines:
                self.committed = int(line)
                yield self.committed

    def check(self) -> None:
        """Every committed row is there, whole; at most one more, whose commit was under way."""
        with closing(sqlite3.connect(self.disk.where / "data.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            rows = dict(database.execute("SELECT number, content FROM rows"))
        assert len(rows) in (self.committed, self.committed + 1)
        assert sorted(rows) == list(range(1, len(rows) + 1))
        for number, content in rows.items():
            assert content == self._content(number), f"row {number}"
        self.committed = len(rows)

    @staticmethod
    def _content(number: int) -> bytes:
        size = 200 + number % 7 * 900
        return hashlib.shake_128(str(number).encode()).digest(size)


@pytest.mark.loop
# Not with DELETE: SQLite syncs the directory only if told EXTRA, so a crash may take a commit back.
@pytest.mark.parametrize(("mode", "style"), [("partial", "TRUNCATE"), ("full", "WAL")])
def test_killed_under_a_database(array: RealArray, mode: str, style: str) -> None:
    need("mkfs.ext4", "e2fsck")
    array.create("raid5", 4, "32MiB").mount()
    array.raidx("set", "ARRAY", f"journal={mode}")
    killer = Killer(array, seed=len(mode + style))
    database = Database(array)
    database.disk.make()
    for _ in range(KILLS // 2):
        wanted = killer.random.randint(3, 60)
        before = database.committed
        delay_s = killer.random.uniform(0, 0.05)
        for number in database.commit(style):
            if number == before + wanted:
                time.sleep(delay_s)
                killer.kill()
        assert database.committed >= before + wanted
        database.disk.take_down()
        killer.mount_again()
        database.disk.bring_up()
        database.check()
    assert killer.kills == KILLS // 2
    database.disk.take_down()
    killer.settle()
    killer.end()
