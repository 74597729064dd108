"""Files and devices: locks, sizes, the inline ways, threads that hang, a host that is full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio

from raidx_fuse.errors import BusyError, InUseError, MemberError, Reason, UsageError
from raidx_fuse.members import local, syscalls
from raidx_fuse.members.base import ReadBuffer, WriteBuffer
from raidx_fuse.members.local import LocalMember, create_file
from tests.support.member_contract import refused
from tests.support.reasons import because

SIZE_BYTES = 4 << 20


# -- opening ---------------------------------------------------------------------------------------


def test_a_new_file_is_sparse_and_private(path: str) -> None:
    status = os.stat(path)
    assert status.st_size == SIZE_BYTES
    assert status.st_blocks == 0
    assert status.st_mode & 0o077 == 0


def test_creation_never_touches_an_existing_file(path: str) -> None:
    Path(path).write_bytes(b"precious")
    with pytest.raises(UsageError, check=because(Reason.EXISTS)):
        create_file(path, SIZE_BYTES)
    assert Path(path).read_bytes() == b"precious"


@pytest.mark.parametrize("size_bytes", [0, -512, 511, 4097])
def test_creation_refuses_sizes_that_are_no_sectors(tmp_path: Path, size_bytes: int) -> None:
    with pytest.raises(UsageError, match="multiple of 512"):
        create_file(str(tmp_path / "odd.img"), size_bytes)
    assert not (tmp_path / "odd.img").exists()


def test_creation_that_the_host_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ftruncate(*_: int) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    with pytest.raises(MemberError, match="create failed: File too large") as caught:
        create_file(str(tmp_path / "huge.img"), 512)
    assert caught.value.errno == errno.EFBIG
    assert not (tmp_path / "huge.img").exists()
    with pytest.raises(MemberError) as caught:
        create_file(str(tmp_path / "no" / "folder.img"), 512)
    assert caught.value.errno == errno.ENOENT


def test_opening_what_is_no_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MemberError, match="open failed: No such file") as caught:
        LocalMember(str(tmp_path / "none.img"))
    assert caught.value.errno == errno.ENOENT
    os.mkfifo(tmp_path / "pipe")
    for what in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(MemberError, match="neither a file nor a block device"):
            LocalMember(str(what))


def test_a_member_is_locked_against_a_second_mount(path: str) -> None:
    first = LocalMember(path)
    for read_only in (False, True):
        with pytest.raises(InUseError) as caught:
            LocalMember(path, read_only=read_only)
        assert path in str(caught.value)
    LocalMember(path, read_only=True, lock=False).close()
    first.close()
    readers = [LocalMember(path, read_only=True) for _ in range(2)]
    with pytest.raises(BusyError):
        LocalMember(path)
    for reader in readers:
        reader.close()
    LocalMember(path).close()


def test_the_lock_holds_between_processes(path: str, member: LocalMember) -> None:
    script = (
        "import sys; from raidx_fuse.members.local import LocalMember; LocalMember(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=False
    )
    assert "InUseError" in done.stderr
    member.close()
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == 0


@pytest.mark.loop
def test_a_block_device_is_locked_too(path: str) -> None:
    attach = ["losetup", "--find", "--show", path]
    try:
        done = subprocess.run(attach, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("losetup is not installed")
    if done.returncode:
        pytest.skip(f"no loop device: {done.stderr.strip()}")
    device = done.stdout.strip()
    try:
        first = LocalMember(device)
        assert first.size_bytes == SIZE_BYTES
        with pytest.raises(InUseError):
            LocalMember(device)
        first.close()
        LocalMember(device).close()
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


async def test_a_read_only_member_refuses_writes(path: str) -> None:
    member = LocalMember(path, read_only=True)
    assert await refused(lambda: member.try_writev(0, [b"x"])) == errno.EROFS
    assert await refused(lambda: member.writev(0, [b"x"])) == errno.EROFS
    assert await refused(lambda: member.punch(0, 512)) == errno.EROFS
    await member.flush()
    buffer = bytearray(4)
    await member.readv(0, [buffer])
    member.close()


def test_the_first_reads_come_from_the_medium(path: str) -> None:
    """Pages that a failed flush left in the cache look durable, and are gone after a power cut."""

    def is_cached(descriptor: int) -> bool:
        try:
            return os.preadv(descriptor, [bytearray(1)], SIZE_BYTES // 2, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False

    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, os.urandom(SIZE_BYTES), 0)
        os.fsync(descriptor)
        assert is_cached(descriptor)
        LocalMember(path, read_only=True).close()
        assert is_cached(descriptor)
        for _ in range(5):  # the kernel may hold the page for a moment, to move or reclaim it
            LocalMember(path).close()
            if not is_cached(descriptor):
                break
            time.sleep(0.1)
        if is_cached(descriptor) and syscalls.lives_in_memory(descriptor):
            pytest.skip("the folder of the test is in memory: there is no medium")
        assert not is_cached(descriptor)
    finally:
        os.close(descriptor)


# -- inline or not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["again", "short"])
async def test_what_is_not_cached_is_left_to_a_thread(
    path: str, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    real = os.preadv
    threads: list[str] = []

    def preadv(fd: int, buffers: Sequence[WriteBuffer], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            if answer == "again":
                raise BlockingIOError(errno.EAGAIN, "would block")
            return real(fd, [memoryview(buffers[0])[:1]], offset)
        threads.append(threading.current_thread().name)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    member = LocalMember(path)
    assert member.try_writev(100, [b"cold"])
    buffer = bytearray(4)
    assert not member.try_readv(100, [buffer])
    await member.readv(100, [buffer])
    assert buffer == b"cold"
    assert threads == [f"{path}#1"]
    member.close()


def test_a_file_system_without_nowait_always_uses_a_thread(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(syscalls, "lives_in_memory", lambda _: False)
    member = LocalMember(path)
    assert not member.try_readv(0, [bytearray(1)])
    member.close()


def test_slow_writes_go_to_a_thread_for_a_while(
    member: LocalMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 0.001, 1.0, 1.0 + 2 * local.SLOW_WRITE_S, 2.0, 2.0])
    monkeypatch.setattr(local, "perf_counter", lambda: next(times))
    monkeypatch.setattr(member, "_read_flags", os.RWF_NOWAIT)  # on a disk, wherever the test runs
    assert member.try_writev(0, [b"quick"])
    assert member.try_writev(0, [b"slow"])
    for _ in range(local.SLOW_WRITES_SKIPPED):
        assert not member.try_writev(0, [b"thread"])
    assert member.try_writev(0, [b"again"])


async def test_short_writes_are_carried_on(
    member: LocalMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def pwritev(fd: int, buffers: Sequence[ReadBuffer], offset: int) -> int:
        return real(fd, [memoryview(buffers[0])[:3]], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    assert member.try_writev(0, [b"abcdefgh", b"", b"ijkl"])

    await member.writev(100, [b"mnop", b"qrst"])
    buffers = [bytearray(12), bytearray(8)]
    await member.readv(0, buffers[:1])
    await member.readv(100, buffers[1:])
    assert buffers == [b"abcdefghijkl", b"mnopqrst"]


async def test_a_file_that_shrank_is_an_error_not_zeros(path: str, member: LocalMember) -> None:
    os.truncate(path, 4096)

    assert not member.try_readv(8192, [bytearray(512)])
    with pytest.raises(MemberError, match="has become shorter"):
        await member.readv(8192, [bytearray(512)])


async def test_real_reads_take_no_virtual_time(member: LocalMember) -> None:
    with trio.fail_after(1e-9):
        for _ in range(20):
            await member.readv(0, [bytearray(65536)])
    assert trio.current_time() == 0


# -- a full host -----------------------------------------------------------------------------------


@pytest.fixture
def full_host(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this host lets nobody mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_host_says_so(full_host: Path) -> None:
    create_file(str(full_host / "disk.img"), SIZE_BYTES)
    member = LocalMember(str(full_host / "disk.img"))
    data = [b"x" * (2 << 20)]
    assert await refused(lambda: member.try_writev(0, data)) == errno.ENOSPC
    assert await refused(lambda: member.writev(0, data)) == errno.ENOSPC
    await member.punch(0, SIZE_BYTES)
    with pytest.raises(MemberError) as caught:
        member.reserve(0, 2 << 20)
    assert caught.value.errno == errno.ENOSPC
    member.reserve(0, 512 << 10)
    assert await refused(lambda: member.writev(1 << 20, data)) == errno.ENOSPC
    assert member.try_writev(0, [b"y" * (512 << 10)]), "reserved room is there"
    member.close()
