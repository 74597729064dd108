"""The FUSE front end on a real mount: an image behaves like a disk, errors keep their errno."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Make = Callable[..., Any]
pytestmark = pytest.mark.mount

KIB, MIB = 1024, 1 << 20


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def fails(code: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is what matters
        yield
    assert caught.value.errno == code, errno.errorcode.get(caught.value.errno or 0)


def test_the_directory_lists_the_image_and_nothing_else(fake_mount: Make) -> None:
    fake = fake_mount()
    assert os.listdir(fake.path) == ["disk"]
    status = fake.image.stat()
    assert stat.S_ISREG(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert (status.st_size, status.st_blocks, status.st_uid) == (MIB, MIB // 512, os.getuid())
    assert fake.path.stat().st_mode & 0o777 == 0o500
    with fails(errno.ENOENT):
        (fake.path / "other").stat()
    space = os.statvfs(fake.path)
    assert (space.f_blocks * space.f_frsize, space.f_bavail) == (MIB, 0)


@pytest.mark.parametrize("mode", [[], ["--page-cache"]], ids=["direct", "page cache"])
def test_bytes_come_back(fake_mount: Make, mode: list[str]) -> None:
    fake = fake_mount("--size", str(8 * MIB), *mode)
    content = os.urandom(8 * MIB)
    with opened(fake.image, os.O_RDWR) as image:
        for offset, size in [(0, 3 * MIB + 1), (3 * MIB + 1, 511), (3 * MIB + 512, 5 * MIB - 512)]:
            assert os.pwrite(image, content[offset : offset + size], offset) == size
        for offset, size in [(0, 8 * MIB), (4095, 2), (4097, MIB), (8 * MIB - 1, 1)]:
            data = b""
            while len(data) < size:
                data += os.pread(image, size - len(data), offset + len(data))
            assert data == content[offset : offset + size]
        os.fsync(image)
    assert fake.call("counts")["flushes"] == 1
    fake.unmount()


def test_the_end_is_the_end_of_a_disk(fake_mount: Make) -> None:
    fake = fake_mount()
    with opened(fake.image, os.O_RDWR) as image:
        assert os.pread(image, 4096, MIB) == b""
        assert os.pread(image, 4096, 5 * MIB) == b""
        assert os.pread(image, 4096, MIB - 100) == bytes(100)
        with fails(errno.ENOSPC):
            os.pwrite(image, b"x", MIB)
        with fails(errno.ENOSPC):
            os.pwrite(image, b"x", 7 * MIB)
        assert os.pwrite(image, b"y" * 4096, MIB - 100) == 100
        assert os.pread(image, 4096, MIB - 101) == b"\0" + b"y" * 100
    assert fake.image.stat().st_size == MIB


def test_truncation_never_destroys(fake_mount: Make) -> None:
    fake = fake_mount()
    fake.image.write_bytes(b"z" * MIB)  # O_TRUNC, as cp and shell redirection use it
    with opened(fake.image, os.O_RDWR | os.O_TRUNC | os.O_CREAT) as image:
        assert os.pread(image, 4096, 0) == b"z" * 4096
        for size in (0, 1, MIB - 1, MIB + 1):
            with fails(errno.EPERM):
                os.ftruncate(image, size)
        os.ftruncate(image, MIB)
    for size in (0, 4096, 2 * MIB):
        with fails(errno.EPERM):
            os.truncate(fake.image, size)
    assert fake.image.read_bytes() == b"z" * MIB


def test_files_are_not_made_or_removed(fake_mount: Make) -> None:
    fake = fake_mount()
    expected = errno.EPERM if os.geteuid() == 0 else errno.EACCES
    new = fake.path / "new"
    for change in (
        lambda: new.touch(),
        lambda: new.mkdir(),
        lambda: os.mkfifo(new),
        lambda: new.symlink_to("disk"),
        lambda: os.link(fake.image, new),
        lambda: fake.image.rename(new),
        lambda: fake.image.unlink(),
    ):
        with fails(expected):
            change()
    assert os.listdir(fake.path) == ["disk"]


def test_times_mode_and_owner_are_a_device_nodes(fake_mount: Make) -> None:
    fake = fake_mount()
    os.utime(fake.image, (1000, 2000))
    fake.image.chmod(0o640)
    status = fake.image.stat()
    assert (status.st_mtime, stat.S_IMODE(status.st_mode)) == (2000, 0o640)
    if os.geteuid() == 0:
        os.chown(fake.image, 1234, 5678)
        assert (fake.image.stat().st_uid, fake.image.stat().st_gid) == (1234, 5678)
    with fails(errno.EOPNOTSUPP):
        os.setxattr(fake.image, "user.note", b"x")
    punch = ["fallocate", "--punch-hole", "--offset", "0", "--length", "4096", str(fake.image)]
    assert subprocess.run(punch, capture_output=True, check=False).returncode != 0


def test_errors_keep_their_errno_and_bugs_do_not_end_the_mount(fake_mount: Make) -> None:
    fake = fake_mount("--faults")
    with opened(fake.image, os.O_RDWR) as image:
        with fails(errno.EIO):
            os.pread(image, 4096, 512 * KIB)
        with fails(errno.ENOSPC):
            os.pwrite(image, bytes(4096), 640 * KIB)
        assert fake.call("report")["bugs"] == 0
        with fails(errno.EIO):
            os.pread(image, 4096, 576 * KIB)
        assert fake.call("report")["bugs"] == 1
        assert os.pread(image, 4096, 0) == bytes(4096)
    logged = fake.unmount()
    assert "read of 4096 bytes at 524288 of disk failed (failure 1): stripe 8" in logged
    assert "write of 4096 bytes at 655360 of disk failed" in logged
    assert "bug: read of 4096 bytes at 589824 of disk" in logged
    assert "ZeroDivisionError" in logged


def test_a_storm_of_errors_does_not_fill_the_log(fake_mount: Make) -> None:
    fake = fake_mount("--faults")
    with opened(fake.image, os.O_RDONLY) as image:
        for _ in range(3000):
            with fails(errno.EIO):
                os.pread(image, 512, 512 * KIB)
    logged = fake.unmount()
    assert "(failure 2048)" in logged
    assert len(logged.splitlines()) < 100


@pytest.mark.parametrize("mode", [[], ["--page-cache"]], ids=["direct", "page cache"])
@pytest.mark.parametrize("flag", ["O_SYNC", "O_DSYNC"])
def test_a_synchronous_write_is_flushed_before_it_returns(
    fake_mount: Make, mode: list[str], flag: str
) -> None:
    fake = fake_mount(*mode)
    with opened(fake.image, os.O_RDWR | getattr(os, flag)) as image:
        for done in range(1, 4):
            os.pwrite(image, bytes(4096), done * 4096)
            assert fake.call("counts")["flushes"] >= done
    with opened(fake.image, os.O_RDWR) as image:
        before = fake.call("counts")["flushes"]
        os.pwrite(image, bytes(4096), 0)
        assert fake.call("counts")["flushes"] == before
        os.fdatasync(image)
        assert fake.call("counts")["flushes"] == before + 1


@pytest.mark.parametrize("flag", ["RWF_SYNC", "RWF_DSYNC"])
def test_one_synchronous_write_on_a_plain_descriptor_is_flushed(
    fake_mount: Make, flag: str
) -> None:
    # Not so with direct I/O: see the last paragraph of fuse/operations.py.
    fake = fake_mount("--page-cache")
    with opened(fake.image, os.O_RDWR) as image:
        os.pwritev(image, [bytes(4096)], 0, getattr(os, flag))
        assert fake.call("counts")["flushes"] >= 1


def test_a_read_only_volume(fake_mount: Make) -> None:
    fake = fake_mount("--read-only")
    with fails(errno.EROFS):
        os.open(fake.image, os.O_RDWR)
    with opened(fake.image, os.O_RDONLY) as image:
        assert os.pread(image, 10, 0) == bytes(10)
    assert stat.S_IMODE(fake.image.stat().st_mode) == 0o400


@pytest.mark.parametrize("mode", [[], ["--page-cache"]], ids=["direct", "page cache"])
def test_growth_is_seen_at_once(fake_mount: Make, mode: list[str]) -> None:
    fake = fake_mount(*mode)
    with opened(fake.image, os.O_RDWR) as image:
        os.pwrite(image, b"kept", MIB - 4)
        assert os.pread(image, 100, MIB - 4) == b"kept"
        fake.call("grow", by=MIB)
        assert os.fstat(image).st_size == 2 * MIB
        assert os.pread(image, 100, MIB - 4) == b"kept" + bytes(96)
        assert os.pwrite(image, b"new", 2 * MIB - 3) == 3
        assert os.pread(image, 100, 2 * MIB - 3) == b"new"
    assert fake.image.stat().st_size == 2 * MIB


def test_the_page_cache_answers_the_second_read(fake_mount: Make) -> None:
    fake = fake_mount("--page-cache")
    fake.image.read_bytes()
    reads = fake.call("counts")["reads"]
    assert fake.image.read_bytes() == bytes(MIB)
    assert fake.call("counts")["reads"] == reads
    with opened(fake.image, os.O_RDWR) as image:
        os.pwrite(image, b"fresh", 4096)
    assert fake.image.read_bytes()[4096:4101] == b"fresh"


@pytest.mark.loop
@pytest.mark.parametrize("direct", ["on", "off"])
def test_a_loop_device_on_the_image(fake_mount: Make, direct: str) -> None:
    fake = fake_mount("--size", str(16 * MIB))
    attach = ["losetup", "--find", "--show", f"--direct-io={direct}", str(fake.image)]
    device = subprocess.run(attach, capture_output=True, text=True, check=True).stdout.strip()
    try:
        content = os.urandom(4 * MIB)
        with opened(Path(device), os.O_RDWR) as loop:
            assert os.pwrite(loop, content, 4096) == 4 * MIB
            os.fsync(loop)
        assert fake.call("counts")["flushes"] >= 1
        with opened(fake.image, os.O_RDONLY) as image:
            assert os.pread(image, MIB, 4096) == content[:MIB]
        busy = subprocess.run(["umount", str(fake.path)], capture_output=True, check=False)
        assert busy.returncode != 0
    finally:
        subprocess.run(["losetup", "-d", device], check=True)
    fake.unmount()
