"""The new end of a grown image can be used as soon as `add-disk --wait` returns.

fio writes to the image and to loop devices all the while. The kernel must have the new size without
being asked: only requests that somebody waits for ask for it (fuse/operations.py says what goes
wrong).
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount import aio
from tests.mount.real_array import RealArray, grows_ext4_online, need, run

pytestmark = [
    pytest.mark.mount,
    pytest.mark.loop,
    pytest.mark.skipif(aio.why_not() is not None, reason=aio.why_not() or ""),
]

KIB, MIB = 1 << 10, 1 << 20
PIECE_BYTES = 4 * KIB
LOAD_BYTES = 2 * MIB  # which each writer of fio writes again and again


@contextmanager
def writers(array: RealArray, *targets: str | Path) -> Iterator[None]:
    """Let fio write to each of *targets*, in a place of its own."""
    lines = [
        *("[global]", "ioengine=libaio", "iodepth=16", "direct=1", "thread=1"),
        # In one go: at the end of each pass over its place fio would ask for the size of the file.
        *("rw=randwrite", "bs=4k", "norandommap=1", f"size={LOAD_BYTES}", "io_size=1000g"),
        *("runtime=120", "allow_file_create=0"),
    ]
    for number, target in enumerate(targets):
        lines += [f"[writer{number}]", f"filename={target}", f"offset={number * LOAD_BYTES}"]
    (array.folder / "load.fio").write_text("\n".join(lines) + "\n")
    then = array.counters()["write_bytes"]
    words = ["fio", f"--aux-path={array.folder}", str(array.folder / "load.fio")]
    fio = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        array.await_written(then + MIB)
        yield
        assert fio.poll() is None, fio.communicate()[0]
        array.await_written(array.counters()["write_bytes"] + MIB // 4)
    finally:
        fio.send_signal(signal.SIGINT)
        said, _ = fio.communicate(timeout=60)
    assert said.count("err= 0") == len(targets), said


class Open:
    """The image or a device, opened once and never looked at again."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_DIRECT)
        self._queue = aio.Aio(1, PIECE_BYTES)
        self._buffer = self._queue.buffers[0]

    def _do(self, kind: int, offset: int) -> int:
        self._queue.submit(0, kind, self._file, offset, PIECE_BYTES)
        ((_, answer),) = self._queue.wait()
        return answer

    def read(self, offset: int) -> bytes:
        """Read asynchronously; return what came."""
        self._buffer[:] = b"?" * PIECE_BYTES
        answer = self._do(aio.READ, offset)
        assert answer >= 0, f"{os.strerror(-answer)} at {offset}"
        return bytes(self._buffer[:answer])

    def write(self, offset: int, content: bytes) -> None:
        """Write all of *content*, asynchronously."""
        self._buffer[:] = content
        assert self._do(aio.WRITE, offset) == len(content)

    def close(self) -> None:
        self._queue.close()
        os.close(self._file)


@pytest.mark.parametrize(
    ("layout", "steps", "options"),
    [("raid4", 3, []), ("raidx-parity", 1, []), ("raid5", 1, ["--method", "restripe"])],
    ids=["raid4", "raidx-parity", "raid5 restriped"],
)
def test_image_and_loop_devices_have_the_new_end_at_once(
    array: RealArray, layout: str, steps: int, options: list[str]
) -> None:
    need("fio", "losetup")
    array.create(layout, 3, "24MiB", "--chunk", "16KiB").mount()
    loops = [array.loop(direct_io=True), array.loop(direct_io=False)]
    users = [Open(array.image), *map(Open, loops)]
    try:
        with writers(array, array.image, *loops):
            for step in range(steps):
                old = array.status()["volumes"][0]["size"]
                new = array.folder / f"more{step}.img"
                array.raidx("add-disk", "ARRAY", new, "--create", "--wait", *options)
                array.members.append(new)
                size = array.status()["volumes"][0]["size"]
                assert size > old
                assert users[0].read(old) == bytes(PIECE_BYTES)
                for device in loops:
                    run("losetup", "-c", device)
                for user in users:
                    for offset in (old, size - PIECE_BYTES):
                        assert user.read(offset) == bytes(PIECE_BYTES)
                for number, user in enumerate(users):
                    user.write(size - (number + 1) * PIECE_BYTES, bytes([number]) * PIECE_BYTES)
                for user in users:
                    assert user.read(size) == b""
                    for number in range(len(users)):
                        found = user.read(size - (number + 1) * PIECE_BYTES)
                        assert found == bytes([number]) * PIECE_BYTES
    finally:
        for user in users:
            user.close()
    for device in loops:
        array.detach(device)
    array.scrub()
    array.unmount()


@pytest.mark.parametrize(
    ("make", "grow", "check"),
    [
        pytest.param(("mkfs.ext4", "-q"), ("resize2fs", "DEVICE"), ("e2fsck", "-fn"), id="ext4"),
        pytest.param(("mkfs.xfs", "-q"), ("xfs_growfs", "WHERE"), ("xfs_repair", "-n"), id="xfs"),
        pytest.param(
            ("mkfs.btrfs", "-q"),
            ("btrfs", "filesystem", "resize", "max", "WHERE"),
            ("btrfs", "check", "--force"),
            id="btrfs",
        ),
    ],
)
def test_a_file_system_is_grown_under_load(
    array: RealArray, make: tuple[str, ...], grow: tuple[str, ...], check: tuple[str, ...]
) -> None:
    need("fio", "losetup", make[0], grow[0], check[0])
    if grow[0] == "resize2fs" and not grows_ext4_online():
        pytest.skip("a mounted ext4 is enlarged with CAP_SYS_RESOURCE only")
    array.create("raid0", 4, "96MiB").mount()
    device = array.loop(direct_io=True)
    run(*make, device)
    where = array.mount_loop(device)
    load = where / "load"
    load.write_bytes(bytes(LOAD_BYTES))
    content = os.urandom(2 * MIB)
    with writers(array, load):
        new = array.folder / "more.img"
        array.raidx("add-disk", "ARRAY", new, "--create", "--wait")
        array.members.append(new)
        before = os.statvfs(where)
        run("losetup", "-c", device)
        run(*({"DEVICE": device, "WHERE": where}.get(word, word) for word in grow))
        assert os.statvfs(where).f_blocks > before.f_blocks
        with (where / "more").open("wb") as file:  # than there was room for
            size = before.f_bavail * before.f_frsize + 16 * MIB
            os.posix_fallocate(file.fileno(), 0, size)
            os.pwrite(file.fileno(), content, size - len(content))
            os.fsync(file.fileno())
    run("umount", where)
    checked = run(*check, device, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    array.mount_loop(device)
    with (where / "more").open("rb") as file:
        file.seek(-len(content), os.SEEK_END)
        assert file.read() == content
    run("umount", where)
    array.detach(device)
    array.unmount()
