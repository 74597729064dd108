"""ext4 on a loop device over the image, written by a process that may hold little memory.

Writeback then runs all the time, and memory is freed only as fast as the array takes the writes: a
daemon that waited for that memory itself would never answer again. A deadlock shows as a writer
that is not done in time. Where the kernel lets the daemon ask for I/O-flusher treatment, the daemon
shares the writer's limit, which is the hard case.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray, need, run

pytestmark = [pytest.mark.mount, pytest.mark.loop]

WRITER_LIMIT_BYTES = 32 << 20
DAEMON_BYTES = 192 << 20  # what the daemon holds, with its receive buffers, at most
FILE_BYTES = 160 << 20
TIME_LIMIT_S = 120
WRITER = """
import hashlib, os, random, sys
path, size = sys.argv[1], int(sys.argv[2])
digest, source = hashlib.sha256(), random.Random(1)
with open(path, "wb", buffering=0) as file:
    for _ in range(size >> 20):
        piece = source.randbytes(1 << 20)
        digest.update(piece)
        file.write(piece)
    os.fsync(file.fileno())
print(digest.hexdigest())
"""


class Cgroup:
    """A memory control group, version 1 or 2."""

    def __init__(self) -> None:
        unified = Path("/sys/fs/cgroup/cgroup.controllers")
        root = Path("/sys/fs/cgroup" if unified.exists() else "/sys/fs/cgroup/memory")
        self.limit_file = "memory.max" if unified.exists() else "memory.limit_in_bytes"
        self.path = root / f"raidx-test-{os.getpid()}"
        self.path.mkdir()
        if not (self.path / self.limit_file).exists():
            self.path.rmdir()
            raise OSError("the memory controller is not enabled")

    def limit(self, limit_bytes: int) -> None:
        (self.path / self.limit_file).write_text(str(limit_bytes))

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Free whoever is stuck in it; move all out; remove it."""
        with suppress(OSError):
            self.limit(1 << 40)
        for _ in range(100):
            for pid in (self.path / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (self.path.parent / "cgroup.procs").write_text(pid)
            with suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.1)


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    try:
        group = Cgroup()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        yield group
    finally:
        group.remove()


@pytest.mark.parametrize("direct_io", [True, False], ids=["direct", "cached"])
def test_writeback_under_a_memory_limit_comes_to_an_end(
    make_array: Callable[..., RealArray], cgroup: Cgroup, direct_io: bool
) -> None:
    need("mkfs.ext4", "e2fsck")
    array = make_array(on_disk=True).create("raid5", 3, "128MiB")
    array.mount()
    limit_bytes = WRITER_LIMIT_BYTES
    if array.status()["protections"]["io_flusher"]["active"]:
        limit_bytes += DAEMON_BYTES
        cgroup.add(array.daemon_pid())
    device = array.loop(direct_io=direct_io)
    run("mkfs.ext4", "-q", device)
    where = array.mount_loop(device)
    try:
        cgroup.limit(limit_bytes)
    except OSError as error:
        pytest.skip(f"memory cannot be limited here: {error}")
    join = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
    words = ["sh", "-c", join, "sh", cgroup.path, sys.executable, "-c", WRITER]
    written = where / "large"
    try:
        done = run(*words, written, str(FILE_BYTES), timeout_s=TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{FILE_BYTES >> 20} MiB are not written after {TIME_LIMIT_S} s: a deadlock?")
    run("umount", where)
    assert run("e2fsck", "-fn", device, check=False).returncode == 0
    where = array.mount_loop(device)
    assert run("sha256sum", written).stdout.split()[0] == done.stdout.strip()
    run("umount", where)
    array.detach(device)
    array.scrub()
    array.unmount()
