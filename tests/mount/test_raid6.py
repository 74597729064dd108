"""ext4 over Uniform P-code: two members fail under load, two are replaced, nothing is lost."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.mount.real_array import Completed, RealArray

pytestmark = [pytest.mark.mount, pytest.mark.loop]

FILES_MAX = 400  # in use at once: the older ones are overwritten
WAIT_S = 30.0


class Writer:
    """Writes files of all sizes into *folder*, each made durable before it counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sums: dict[str, str] = {}
        self.written = 0
        self._end = threading.Event()
        self._problems: list[BaseException] = []
        self._rng = random.Random(6)

    def run(self) -> None:
        """Write until told to end; now and then read an older file back."""
        try:
            while not self._end.is_set():
                self._write(f"{self.written % FILES_MAX}.bin")
                if self.written % 5 == 0:
                    self.check(self._rng.choice(list(self.sums)))
        except BaseException as error:
            self._problems.append(error)

    def _write(self, name: str) -> None:
        content = self._rng.randbytes(self._rng.choice((700, 4096, 20_000, 90_000, 300_000)))
        with (self.folder / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.sums[name] = hashlib.sha256(content).hexdigest()
        self.written += 1

    def check(self, name: str) -> None:
        """Compare a file with what was written; it is read from the array, not from memory."""
        with (self.folder / name).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert hashlib.sha256(file.read()).hexdigest() == self.sums[name]

    def await_more(self, files: int) -> None:
        """Return when so many more files are durable."""
        goal, deadline_s = self.written + files, time.monotonic() + WAIT_S
        while self.written < goal:
            assert not self._problems, self._problems
            assert time.monotonic() < deadline_s, f"only {self.written} of {goal} files"
            time.sleep(0.02)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write in a thread as long as the context lasts."""
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()
        assert not self._problems, self._problems


def states(array: RealArray) -> list[Any]:
    return [member["state"] for member in array.status()["members"] if member["role"] >= 0]


def await_clean(array: RealArray) -> None:
    """Return when both members are rebuilt."""
    deadline_s = time.monotonic() + WAIT_S
    while array.status()["state"] != "clean":
        assert time.monotonic() < deadline_s, array.status()
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("width", "one", "other", "as_spares"), [(6, 1, 4, False), (10, 0, 9, True)]
)
def test_ext4_over_upc_survives_two_losses_under_load(
    array: RealArray,
    command: Callable[..., Completed],
    need: Callable[..., None],
    width: int,
    one: int,
    other: int,
    as_spares: bool,
) -> None:
    need("mkfs.ext4", "e2fsck")
    array.create("upc", width, "48MiB", "--chunk", "16KiB").mount()
    array.raidx("set", "ARRAY", "speed_min=256MiB")
    device = array.loop(direct_io=True)
    command("mkfs.ext4", "-q", device)
    where = array.mount_loop(device)
    writer = Writer(where)
    with writer.running():
        writer.await_more(30)
        array.fail(one)
        writer.await_more(30)
        array.fail(other)
        writer.await_more(30)
        status = array.status()
        assert (status["state"], status["redundancy_left"]) == ("degraded", 0)
        third = next(role for role in range(width) if role not in (one, other))
        assert f"role {third} cannot be spared" in array.refused("fail-disk", "ARRAY", str(third))
        assert array.counters()["degraded_reads"] > 0
        if as_spares:
            news = [array.folder / f"spare{number}.img" for number in range(2)]
            array.raidx("add-disk", "ARRAY", *news, "--as", "spare", "--create")
        else:
            for role in (one, other):
                array.replace(role, "--wait")
                writer.await_more(10)
        await_clean(array)
        assert states(array) == ["active"] * width
        writer.await_more(10)
    command("umount", where)
    command("e2fsck", "-fn", device)
    array.scrub()
    array.mount_loop(device)
    for name in writer.sums:
        writer.check(name)
    command("umount", where)
    array.detach(device)
    array.unmount()
