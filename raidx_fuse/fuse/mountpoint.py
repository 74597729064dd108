"""Mount points: find mounts, check whether a mount is possible, unmount.

Only `check` accesses a mounted file system: ``stat`` of a mount point sends a request to its
daemon, which hangs if the daemon hangs, and deadlocks if the daemon itself calls it. The kernel's
mount table (/proc/self/mountinfo) is read without a request to any file system.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raidx_fuse.errors import (
    BusyError,
    InUseError,
    NotInstalledError,
    RaidxError,
    Reason,
    UsageError,
)
from raidx_fuse.members.kernel_files import kernel_text

FUSE_TYPE = "fuse.raidx"
_DEVICE = "/dev/fuse"
_MOUNTINFO = "/proc/self/mountinfo"
_LOOPS = Path("/sys/block")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's mount table; *device* is (major, minor), *owner* the mounting uid.

    *options* are those of the file system, not of this mount of it.
    """

    path: str
    device: tuple[int, int]
    fs_type: str
    source: str
    owner: int | None
    mount_id: int
    options: str

    @property
    def is_foreign(self) -> bool:
        """Whether another user mounted it, and this one is not root."""
        return self.owner not in {None, os.getuid()} and os.getuid() != 0


def mounts() -> Iterator[Mount]:
    """Yield all mounts; of several on one path, the topmost last."""
    for line in kernel_text(_MOUNTINFO).removesuffix("\n").split("\n"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        major, _, minor = fields[2].partition(":")
        owner = re.search(r"(?:^|,)user_id=(\d+)", kind[2])
        yield Mount(
            path=_unescape(fields[4]),
            device=(int(major), int(minor)),
            fs_type=kind[0],
            source=_unescape(kind[1]),
            owner=int(owner[1]) if owner else None,
            mount_id=int(fields[0]),
            options=_unescape(kind[2]),
        )


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def find(mountpoint: str | os.PathLike[str]) -> Mount | None:
    """Return the topmost mount on exactly *mountpoint*, None if there is none."""
    path = real_path(mountpoint)
    return next((mount for mount in reversed(list(mounts())) if mount.path == path), None)


def real_path(mountpoint: str | os.PathLike[str]) -> str:
    """Resolve links in *mountpoint* without accessing a file system that is mounted on it."""
    path = os.path.abspath(mountpoint)
    parent, name = os.path.split(path)
    unresolved = os.path.join(os.path.realpath(parent), name)
    if any(mount.path == unresolved for mount in mounts()):
        return unresolved
    return os.path.realpath(path)


def check(mountpoint: str | os.PathLike[str], *, allow_other: bool = False) -> str:
    """Return the real path if a volume can be mounted there; raise RaidxError if not."""
    path = real_path(mountpoint)
    mount = find(path)
    if mount is not None:
        _raise_mounted(mount)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise UsageError(
            f"mount point {path} does not exist",
            action=f"make it: mkdir {path}",
            reason=Reason.MOUNT_POINT,
        ) from None
    except OSError as error:
        raise RaidxError(
            f"mount point {path}: {os.strerror(error.errno or 0)}", reason=Reason.MOUNT_POINT
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"mount point {path} is not a directory", reason=Reason.MOUNT_POINT)
    try:
        busy = os.listdir(path)
    except PermissionError:
        raise RaidxError(
            f"mount point {path} is not readable for this user", reason=Reason.MOUNT_POINT
        ) from None
    if busy:
        raise UsageError(
            f"mount point {path} is not empty (it holds {sorted(busy)[0]})",
            action="choose an empty directory",
            reason=Reason.MOUNT_POINT,
        )
    if os.geteuid() and not os.access(path, os.W_OK):
        raise RaidxError(
            f"mount point {path} is not writable for this user", reason=Reason.MOUNT_POINT
        )
    check_fuse(allow_other=allow_other)
    return path


def _raise_mounted(mount: Mount) -> None:
    try:
        # A mount whose daemon died fails immediately with this errno.
        os.statvfs(mount.path)
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise BusyError(
                f"mount point {mount.path} is left over from a daemon that died",
                action=f"clear it: {unmount_command(mount.path)}",
                reason=Reason.DAEMON_GONE,
            ) from None
    if mount.fs_type == FUSE_TYPE:
        raise BusyError(
            f"{mount.source} is already mounted on {mount.path}",
            action=f"unmount it first: raidx umount {mount.path}",
            reason=Reason.MOUNTED,
        )
    raise BusyError(
        f"{mount.path} is already a mount point ({mount.fs_type})", reason=Reason.MOUNTED
    )


def check_fuse(*, allow_other: bool = False) -> None:
    """Raise RaidxError unless this machine and user can mount FUSE file systems."""
    if not os.path.exists(_DEVICE):
        raise NotInstalledError(
            f"{_DEVICE} is missing",
            action="load it: modprobe fuse (in a container: start it with --device /dev/fuse)",
        )
    root = os.geteuid() == 0
    try:
        # fusermount3 opens it with its caller's permissions, and root in a container may lack them.
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise NotInstalledError(
            f"{_DEVICE} cannot be opened: {os.strerror(error.errno or 0)}",
            action="in a container: start it with --device /dev/fuse --cap-add SYS_ADMIN"
            if root
            else f"as root, type: chmod 666 {_DEVICE}",
        ) from None
    if root:
        return  # root mounts without the helper
    if shutil.which("fusermount3") is None:
        raise NotInstalledError("fusermount3 is missing", action="install it: apt install fuse3")
    if allow_other and not _config_allows_other():
        raise RaidxError(
            "--allow-other is permitted only to root here",
            action="as root, put the line user_allow_other into /etc/fuse.conf",
            reason=Reason.FOREIGN,
        )


def _config_allows_other() -> bool:
    try:
        text = kernel_text("/etc/fuse.conf")
    except OSError:
        return False
    return re.search(r"(?m)^\s*user_allow_other\s*$", text) is not None


def unmount_command(path: str) -> str:
    """Return the shell command with which this user unmounts *path*."""
    return f"fusermount3 -u {path}" if shutil.which("fusermount3") else f"umount {path}"


def unmount_argv(path: str) -> list[str]:
    """Return the argument vector that unmounts *path* unless it is busy."""
    if os.geteuid() == 0 and shutil.which("umount"):
        return ["umount", path]
    return ["fusermount3", "-u", path]


def split_array(text: str) -> tuple[str, str | None]:
    """Return the mount point and the array that *text* names, MOUNT or MOUNT:ARRAY.

    The array is None if none is named, as in a path with a colon that is a mount point itself.
    """
    mount, colon, array = text.rpartition(":")
    if not colon or find(text) is not None or find(mount) is None:
        return text, None
    return mount, array


def loop_devices(path: str) -> list[tuple[str, str]]:
    """Return (loop device, image) of each loop device whose image is below mount point *path*."""
    found = []
    for backing in sorted(_LOOPS.glob("loop*/loop/backing_file")):
        try:
            image = kernel_text(backing).removesuffix("\n")
        except OSError:
            continue  # detached between listing and reading
        if image.startswith(path.rstrip("/") + "/"):
            found.append((f"/dev/{backing.parent.parent.name}", image))
    return found


def unmount(mountpoint: str | os.PathLike[str]) -> None:
    """Unmount a raidx mount unless it is in use; raise BusyError naming a loop device.

    Raises UsageError if there is no raidx mount of this user.
    The caller waits for the daemon's end: see `control_client.wait_for_exit`.
    """
    path = real_path(mountpoint)
    mount = find(path)
    if mount is None:
        raise UsageError(f"nothing is mounted on {path}", reason=Reason.NOT_MOUNTED)
    if mount.fs_type != FUSE_TYPE:
        raise UsageError(
            f"{path} is a mount of {mount.fs_type}, not of raidx", reason=Reason.NOT_MOUNTED
        )
    if mount.is_foreign:
        raise UsageError(
            f"the mount on {path} belongs to another user (uid {mount.owner})",
            reason=Reason.FOREIGN,
        )
    for device, image in loop_devices(path):
        raise InUseError(
            f"{device} is on {image}",
            action=f"unmount what is on it, then type: losetup -d {device}",
        )
    done = subprocess.run(unmount_argv(path), capture_output=True, check=False)
    if done.returncode and find(path) is not None:
        said = os.fsdecode(done.stderr or done.stdout).strip().rpartition("\n")[2]
        if "busy" in said.lower():
            raise InUseError(
                f"{path} is in use", action=f"see by whom: fuser -vm {path}, or lsof +f -- {path}"
            )
        raise RaidxError(f"{path} could not be unmounted: {said or 'no reason given'}")
