"""Other names of a member's bytes: loop devices over a file, files and devices below a device.

    /dev/mapper/v  ->  /dev/loop1p2  ->  /dev/loop1  ->  disk3.img

The flock of a file does not keep a loop device over it from being used, nor the O_EXCL of a device
the file below it from being opened. Therefore a device that becomes a member holds the files below
it by a shared flock, which conflicts with the exclusive one of a member file; and a file that
becomes a member must not be below a loop device that is in use.

These functions ask about paths that other users may have chosen, on disks that may not answer, so
they run in a thread. What lies on a mount of raidx is never opened: its daemon may be the caller.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from raidx_fuse.daemon.backing_devices import Device, disks_of, numbers, parts_of
from raidx_fuse.errors import InUseError
from raidx_fuse.fuse import mountpoint as mountpoints
from raidx_fuse.members.kernel_files import kernel_text
from raidx_fuse.members.local import identity_of

_LOOPS = Path("/sys/block")
_SWAPS = "/proc/swaps"


def hold_files_below(path: str) -> list[int]:
    """Return descriptors of the files below the device *path*, locked until they are closed.

    None for a file. What this user may not open is not locked. Raises BusyError, OSError.
    """
    status = os.stat(path)
    if not stat.S_ISBLK(status.st_mode):
        return []
    held: list[int] = []
    try:
        for file in _files_below(numbers(status.st_rdev), set()):
            with suppress(FileNotFoundError, PermissionError):
                held.append(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
                _share(held[-1], path, file)
    except BaseException:
        for descriptor in held:
            os.close(descriptor)
        raise
    return held


def _share(descriptor: int, path: str, file: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUseError(
            f"{path}: {file}, which lies below it, is in use by another mount or command"
        ) from None


def _files_below(device: Device, seen: set[Device]) -> Iterator[str]:
    """Yield the files that hold the bytes of *device*, through any number of layers."""
    if device in seen:
        return
    seen.add(device)
    for disk in disks_of(device):
        for below in parts_of(disk):
            if not isinstance(below, str):
                yield from _files_below(below, seen)
            elif not _is_on_raidx(below):
                with suppress(OSError):
                    mode = os.stat(below)
                    if stat.S_ISBLK(mode.st_mode):
                        yield from _files_below(numbers(mode.st_rdev), seen)
                    else:
                        yield below


def refuse_used_loops(path: str) -> None:
    """Raise BusyError if a loop device over the file *path* is in use. Raises OSError."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        return
    for backing in sorted(_LOOPS.glob("loop*/loop/backing_file")):
        loop = backing.parent.parent
        try:
            file = kernel_text(backing).removesuffix("\n")
            if _is_on_raidx(file):
                same = file == os.path.realpath(path)
            else:
                same = identity_of(os.stat(file)) == identity_of(status)
        except OSError:
            continue  # detached between listing and reading, or its file is gone
        if same and _is_used(loop):
            raise InUseError(
                f"{path}: /dev/{loop.name} is on it and in use",
                action=f"end that and type: losetup -d /dev/{loop.name}; or name the device",
            )


def _is_on_raidx(path: str) -> bool:
    """Return whether *path* lies on a mount of raidx, without a request to it."""
    inside = [
        mount
        for mount in mountpoints.mounts()
        if path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
    ]
    deepest = max(inside, key=lambda mount: len(mount.path), default=None)
    return deepest is not None and deepest.fs_type == mountpoints.FUSE_TYPE


def _is_used(loop: Path) -> bool:
    """Return whether a file system, another device or a program uses a loop device."""
    try:
        flags = os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(f"/dev/{loop.name}", flags))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
    else:
        return False
    # Without permission to ask the device itself, by what the kernel lists.
    disks = [loop, *(each.parent for each in loop.glob("loop*/partition"))]
    if any(next(disk.glob("holders/*"), None) is not None for disk in disks):
        return True
    found = {kernel_text(disk / "dev").strip() for disk in disks}
    if any("{}:{}".format(*mount.device) in found for mount in mountpoints.mounts()):
        return True
    swaps = {line.split(" ")[0] for line in kernel_text(_SWAPS).split("\n")}
    return any(f"/dev/{disk.name}" in swaps for disk in disks)
