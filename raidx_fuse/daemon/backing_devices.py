"""The file systems and block devices below a path, down to the hardware.

    /mnt/ext4/disk3.img  ->  ext4 on /dev/md0  ->  /dev/loop1p2  ->  /dev/loop1  ->  /mnt/array/disk

An array must not become a member of itself, through any number of layers: its daemon would wait for
an answer that only it can give, and so would every user of the disk. All functions here ask the
kernel about paths that users named, and the kernel may in turn ask this daemon. They must run in a
thread (`members.threads.in_thread`), never on the event loop.

Two cases cannot be detected: a network server that exports the array's own image, and the backing
store of a FUSE file system other than raidx.

Other names of a member's bytes: loop devices over a file, files and devices below a device.

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
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from raidx_fuse.errors import InUseError, RaidxError, Reason, UsageError
from raidx_fuse.fuse import mountpoint as mountpoints
from raidx_fuse.fuse.mountpoint import FUSE_TYPE, Mount
from raidx_fuse.members.kernel_files import kernel_text, lock_holder
from raidx_fuse.members.local import identity_of

Device = tuple[int, int]
MembersOf = Callable[[str], Sequence[str]]

_DEVICES = Path("/sys/dev/block")
_BTRFS = Path("/sys/fs/btrfs")
_STEPS_MAX = 1000
_OVERLAY_LAYERS = re.compile(r"(?:^|,)(?:lowerdir|upperdir)=([^,]*)")
_LOOPS = Path("/sys/block")
_SWAPS = "/proc/swaps"


def refuse_own(path: str, own: Device, members_of: MembersOf) -> None:
    """Raise UsageError if *path* stands on the mount whose device is *own*.

    For a path that does not exist yet its folder is checked. *members_of* returns the members of
    another array by its mount point. Raises OSError where the kernel cannot tell.
    """
    there = path if os.path.exists(path) else os.path.dirname(os.path.realpath(path))
    way = _Search(own, members_of).way_down(there)
    if way is None:
        return
    by = f" (through {', '.join(way)})" if way else ""
    raise UsageError(
        f"{path} is on this array's own image{by}: it cannot be a member of itself",
        action="name a file or device outside the mount",
        reason=Reason.IN_USE,
    )


class _Search:
    """A depth-first search below a path; each device and path is visited once."""

    def __init__(self, own: Device, members_of: MembersOf) -> None:
        self._own = own
        self._members_of = members_of
        self._mounts = {mount.mount_id: mount for mount in mountpoints.mounts()}
        self._own_paths = [m.path for m in self._mounts.values() if m.device == own]
        self._seen: set[str | Device] = set()

    def way_down(self, path: str) -> list[str] | None:
        """Return the devices and mounts between *path* and the array's own image, None if none."""
        if any(path == own or path.startswith(own.rstrip("/") + "/") for own in self._own_paths):
            return []  # without a request to it
        if self._known(path):
            return None
        try:
            # O_PATH resolves the name only; the device itself is not opened.
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return None  # the image of a loop device is deleted or in another namespace
        try:
            status = os.fstat(descriptor)
            mount = self._mounts.get(_mount_id(descriptor))
        finally:
            os.close(descriptor)
        if stat.S_ISBLK(status.st_mode):
            return self._below_device(numbers(status.st_rdev))
        if self._own in (numbers(status.st_dev), mount and mount.device):
            return []
        way = self._below_device(numbers(status.st_dev))
        if way is None and mount is not None:
            way = self._below_mount(mount)
        return way

    def _below_device(self, device: Device) -> list[str] | None:
        if self._known(device):
            return None
        for disk in disks_of(device):  # none of a file system without a device: see its mount
            for part in parts_of(disk):
                below = self.way_down(part) if isinstance(part, str) else self._below_device(part)
                if below is not None:
                    return [f"/dev/{disk.name}", *below]
        return None

    def _below_mount(self, mount: Mount) -> list[str] | None:
        """Follow a file system whose device number is not that of a block device."""
        for path in self._sources(mount):
            way = self.way_down(path)
            if way is not None:
                return [mount.path, *way]
        return None

    def _sources(self, mount: Mount) -> Iterator[str]:
        if mount.fs_type == FUSE_TYPE:
            yield from self._members_of(mount.path)
        elif mount.fs_type == "overlay":
            for layers in _OVERLAY_LAYERS.findall(mount.options):
                yield from layers.split(":")
        elif mount.fs_type == "btrfs":  # its files have device numbers of their own
            disk = os.path.basename(os.path.realpath(mount.source))
            for system in _BTRFS.glob("*/devices"):
                disks = os.listdir(system)
                if disk in disks:
                    yield from (f"/dev/{name}" for name in disks)
        elif mount.source.startswith("/"):
            yield mount.source

    def _known(self, place: str | Device) -> bool:
        if len(self._seen) >= _STEPS_MAX:
            raise RaidxError(f"too many layers of devices below {place}")
        known = place in self._seen
        self._seen.add(place)
        return known


def numbers(device: int) -> Device:
    return os.major(device), os.minor(device)


def disks_of(device: Device) -> list[Path]:
    """Return the folder of a block device in /sys, and of the disk that a partition is of."""
    folder = _DEVICES / f"{device[0]}:{device[1]}"
    if not folder.exists():
        return []
    whole = folder.resolve()
    return [whole, whole.parent] if (whole / "partition").exists() else [whole]


def parts_of(disk: Path) -> Iterator[Device | str]:
    """Yield the devices that the disk with that folder in /sys is made of; a loop device's file."""
    for slave in sorted(disk.glob("slaves/*/dev")):
        major, _, minor = kernel_text(slave).strip().partition(":")
        yield int(major), int(minor)
    backing = disk / "loop" / "backing_file"
    if backing.exists():
        yield kernel_text(backing).removesuffix("\n")


def _mount_id(descriptor: int) -> int:
    text = kernel_text(f"/proc/self/fdinfo/{descriptor}")
    found = re.search(r"(?m)^mnt_id:\s*(\d+)", text)
    return int(found[1]) if found else -1


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
        holder, pid = lock_holder(os.fstat(descriptor))
        what = f"{path}: {file}, which lies below it, is in use by {holder}"
        raise InUseError(what, pid=pid) from None


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


def drives_below(path: str) -> list[str]:
    """Return the drives that the bytes of *path* are on, through any number of layers.

    None below what this machine does not see, and below a mount of raidx. Raises OSError.
    """
    status = os.stat(path)
    is_device = stat.S_ISBLK(status.st_mode)
    seen: set[Device] = set()
    return sorted(set(_drives(numbers(status.st_rdev if is_device else status.st_dev), seen)))


def _drives(device: Device, seen: set[Device]) -> Iterator[str]:
    if device in seen:
        return
    seen.add(device)
    disk = next(reversed(disks_of(device)), None)  # of a partition, what it is a part of
    if disk is None:
        return
    parts = list(parts_of(disk))
    if not parts and (disk / "device").exists():
        yield f"/dev/{disk.name}"
    for part in parts:
        if not isinstance(part, str):
            yield from _drives(part, seen)
        elif not _is_on_raidx(part):
            with suppress(OSError):
                yield from _drives(numbers(os.stat(part).st_dev), seen)


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
