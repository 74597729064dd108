"""Other names of a member's bytes, by tables of the kernel that are made up: tests/mount has real
loop devices, here are partitions, mapped devices and users without permission.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from raidx_fuse.daemon import backing_devices, paths
from raidx_fuse.daemon.array_lock import ArrayLock, refuse_running
from raidx_fuse.errors import BusyError, InUseError
from raidx_fuse.fuse import mountpoint as mountpoints
from raidx_fuse.fuse.mountpoint import Mount

UUID = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file under loop0, whose partition is below the mapped device 253:0."""
    sys, file = tmp_path / "sys", tmp_path / "disk"
    file.write_bytes(bytes(4096))
    loop = sys / "block" / "loop0"
    (loop / "loop").mkdir(parents=True)
    (loop / "loop" / "backing_file").write_text(f"{file}\n")
    (loop / "dev").write_text("7:0\n")
    (loop / "holders").mkdir()
    (loop / "loop0p1" / "holders").mkdir(parents=True)
    (loop / "loop0p1" / "partition").write_text("1\n")
    (loop / "loop0p1" / "dev").write_text("259:1\n")
    (sys / "dm-0" / "slaves" / "loop0p1").mkdir(parents=True)
    (sys / "dm-0" / "slaves" / "loop0p1" / "dev").write_text("259:1\n")
    numbers = sys / "dev"
    numbers.mkdir()
    for number, place in (("7:0", loop), ("259:1", loop / "loop0p1"), ("253:0", sys / "dm-0")):
        (numbers / number).symlink_to(place)
    monkeypatch.setattr(backing_devices, "_DEVICES", numbers)
    monkeypatch.setattr(backing_devices, "_LOOPS", sys / "block")
    swaps = tmp_path / "swaps"
    swaps.write_text("Filename Type\n")
    monkeypatch.setattr(backing_devices, "_SWAPS", str(swaps))
    monkeypatch.setattr(mountpoints, "mounts", lambda: iter(()))
    return file


def test_the_file_below_a_mapped_partition_is_found_and_none_on_a_mount_of_raidx(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(backing_devices._files_below((253, 0), set())) == [str(disk)]
    assert list(backing_devices._files_below((8, 0), set())) == []
    raidx = Mount(str(disk.parent), (0, 99), "fuse.raidx", "v", 0, 1, "")
    monkeypatch.setattr(mountpoints, "mounts", lambda: iter([raidx]))
    real = os.stat

    def stat(path: object, *args: object, **named: object) -> os.stat_result:
        assert str(path) != str(disk), "its daemon would be asked, which may be the caller"
        return real(path, *args, **named)

    monkeypatch.setattr(os, "stat", stat)
    assert list(backing_devices._files_below((253, 0), set())) == []


@pytest.mark.parametrize("by", ["holder", "holder of a partition", "mount", "swap"])
def test_without_permission_the_kernels_lists_say_whether_a_loop_device_is_used(
    disk: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    real = os.open

    def refuse(path: str, *args: int, **named: int) -> int:
        if str(path) == "/dev/loop0":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **named)

    monkeypatch.setattr(os, "open", refuse)
    backing_devices.refuse_used_loops(str(disk))
    loop = disk.parent / "sys" / "block" / "loop0"
    if by == "mount":
        ext4 = Mount("/mnt", (259, 1), "ext4", "/dev/loop0p1", 0, 1, "")
        monkeypatch.setattr(mountpoints, "mounts", lambda: iter([ext4]))
    elif by == "swap":
        (disk.parent / "swaps").write_text("Filename Type\n/dev/loop0 partition 1 0 -2\n")
    else:
        part = loop / "loop0p1" if "partition" in by else loop
        (part / "holders" / "dm-0").mkdir()
    with pytest.raises(BusyError, match="/dev/loop0 is on it and in use; end that and type: los"):
        backing_devices.refuse_used_loops(str(disk))
    backing_devices.refuse_used_loops(str(disk.parent / "swaps"))  # another file


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "directory_of", lambda user: tmp_path / "run")
    return tmp_path / "run"


def test_readers_share_the_lock_of_an_array_and_a_writer_has_it_alone(directory: Path) -> None:
    def lock(*, shared: bool) -> ArrayLock:
        return ArrayLock(UUID, "v", "/mnt", shared=shared)

    refuse_running(UUID, "v")
    assert not directory.exists(), "a look makes nothing"
    first, second = lock(shared=True), lock(shared=True)
    with pytest.raises(InUseError):
        lock(shared=False)
    first.release()
    with pytest.raises(BusyError):
        refuse_running(UUID, "v")
    second.release()
    assert list(directory.iterdir()) == []
    writer = lock(shared=False)
    for attempt in (lambda: lock(shared=True), lambda: refuse_running(UUID, "v")):
        with pytest.raises(BusyError, match=rf"by process {os.getpid()} at /mnt; .*--new-uuid"):
            attempt()
    writer.release()


def test_a_lock_whose_file_its_holder_removes_meanwhile_is_taken_anew(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = ArrayLock(UUID, "v", "", shared=False)
    real: Callable[[int, int], None] = fcntl.flock

    def flock(fd: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        holder.release()
        real(fd, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    taken = ArrayLock(UUID, "v", "", shared=False)
    with pytest.raises(BusyError):
        ArrayLock(UUID, "v", "", shared=True)
    taken.release()
