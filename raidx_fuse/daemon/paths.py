"""The directory of a mount's control socket and log, which only its owner can enter.

    root              /run/raidx/
    with a session    $XDG_RUNTIME_DIR/raidx/
    otherwise         /tmp/raidx-UID/

    <hash of the mount point's real path>.sock, .log, .log.1, .end

A log outlives its mount, to show why the mount ended. The directory is often on a tmpfs, so each
new mount removes the logs of ended mounts, except for the newest few.

/tmp is writable by everyone. Therefore the path is used only if it is a directory that this user
owns and that is closed to others; a path prepared by another user is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.fuse import mountpoint as mountpoints

if TYPE_CHECKING:
    from raidx_fuse.documents import DaemonReport

ENDED_LOGS_KEPT = 8
ENDED_LOGS_BYTES_MAX = 16 << 20
_END_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class RuntimeFiles:
    """The socket and the log of one mount, and why its arrays were not closed cleanly (*end*).

    The last is for `raidx umount`: a daemon has no connection to anybody when it ends.
    """

    socket: Path
    log: Path
    end: Path

    def as_dict(self) -> DaemonReport:
        """Return where this process is found, as JSON values, for `raidx status`."""
        return {
            "pid": os.getpid(),
            "socket": str(self.socket),
            "log_path": str(self.log),
            "log": str(self.log),  # its name until log_path
        }


def directory_of(user: int) -> Path:
    """Return the directory of *user* (a uid), whether or not it exists."""
    if user == 0:
        run = Path("/run")
        return run / "raidx" if run.is_dir() else Path(tempfile.gettempdir()) / "raidx-0"
    session = os.environ.get("XDG_RUNTIME_DIR") if user == os.getuid() else f"/run/user/{user}"
    if session and Path(session).is_dir():
        return Path(session) / "raidx"
    return Path("/tmp") / f"raidx-{user}"


def own_directory() -> Path:
    """Create and return this user's directory; raise RaidxError if it is not safe to use."""
    path = directory_of(os.getuid())
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise RaidxError(
            f"{path} cannot be created: {os.strerror(error.errno or 0)}",
            action="set XDG_RUNTIME_DIR to a directory that you own",
            reason=Reason.FILE,
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise RaidxError(
            f"{path} belongs to another user",
            action="set XDG_RUNTIME_DIR to a directory that you own",
            reason=Reason.FOREIGN,
        )
    if status.st_mode & 0o077:
        raise RaidxError(
            f"{path} is accessible to other users",
            action=f"close it: chmod 700 {path}",
            reason=Reason.FOREIGN,
        )
    return path


def files_in(directory: Path, mountpoint: str | os.PathLike[str]) -> RuntimeFiles:
    """Return the paths in *directory* that belong to *mountpoint*."""
    real = os.fsencode(mountpoints.real_path(mountpoint))
    name = hashlib.sha256(real).hexdigest()[:32]
    return RuntimeFiles(*(directory / f"{name}.{kind}" for kind in ("sock", "log", "end")))


def note_end(files: RuntimeFiles, why: str) -> None:
    """Note *why* this process, which ends now, did not close its arrays cleanly."""
    line = json.dumps({"pid": os.getpid(), "why": why})
    with suppress(OSError):  # a full disk: the log has it, too
        files.end.write_text(line)


def end_of(files: RuntimeFiles, pid: int) -> str:
    """Return what the process *pid* noted when it ended, "" if nothing; root asks for any user."""
    try:
        descriptor = os.open(files.end, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            noted = json.loads(file.read(_END_BYTES_MAX))
        return str(noted["why"]) if noted["pid"] == pid else ""
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def own_files(mountpoint: str | os.PathLike[str]) -> RuntimeFiles:
    """Return the files of a mount that this process makes; create their directory.

    Old logs of ended mounts are removed.
    """
    directory = own_directory()
    files = files_in(directory, mountpoint)
    _sweep(directory, {files.log.stem})
    return files


def _sweep(directory: Path, kept: Iterable[str]) -> None:
    """Remove logs of ended mounts, except for the newest ones and those named in *kept*."""
    mounts = (mount.path for mount in mountpoints.mounts())
    used = {*kept, *(files_in(directory, path).log.stem for path in mounts)}
    ended = []
    for log in directory.glob("*.log*"):
        name = log.name.partition(".")[0]
        with suppress(OSError):  # another mount may remove them at the same time
            if name not in used and not _is_answered(directory / f"{name}.sock"):
                status = log.lstat()
                ended.append((status.st_mtime, status.st_size, log))
    taken = 0
    for number, (_, size, log) in enumerate(sorted(ended, reverse=True)):
        taken += size
        if number >= ENDED_LOGS_KEPT or taken > ENDED_LOGS_BYTES_MAX:
            with suppress(OSError):
                log.unlink()
                log.with_suffix(".end").unlink(missing_ok=True)


def is_served(place: str | os.PathLike[str]) -> bool:
    """Return whether a daemon of this user serves *place* without a mount (`raidx serve`).

    The socket of one that was killed is still there, until the next daemon starts.
    """
    return _is_answered(files_in(directory_of(os.getuid()), place).socket)


def _is_answered(path: Path) -> bool:
    """Return whether a daemon listens on *path*; after an unmount it still flushes its members."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError as error:
            return error.errno is not None  # else the name is too long for a socket
    return True


def files_of_mount(mountpoint: str | os.PathLike[str]) -> RuntimeFiles:
    """Return the files of an existing mount; root finds those of the user who mounted."""
    mount = mountpoints.find(mountpoint)
    owner = mount.owner if mount is not None and mount.owner is not None else os.getuid()
    return files_in(directory_of(owner if os.getuid() == 0 else os.getuid()), mountpoint)
