"""One process of this machine uses an array at a time: a lock for each array's UUID.

The locks of members do not see every case. A file is locked by flock, a block device by O_EXCL, so
a disk may have two names that hide from each other; and a copy of an array, made by dd or by the
snapshot of a virtual machine, has disks of its own and the same UUID. Two processes that each take
such members for theirs lose what was written.

    /run/raidx/UUID.lock    (daemon/paths.py: for users elsewhere)    PID PLACE, NAME below

The lock is the flock of the file: exclusive for whoever may write, shared for readers, and for
arrays all of whose members are exports of servers. Those have a lock on the members themselves, the
heartbeat (members/nbd/heartbeat.py), which another process takes over from one that stands still,
also on the same machine. The lock ends with the process, however that ends. A container or another
user has a directory of its own, so their locks are not seen; the locks of the members are.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from raidx_fuse.daemon import paths
from raidx_fuse.errors import InUseError, RaidxError

_ACTION = (
    "end that first; if these are copies of its members, give them an identity of their own: "
    "raidx rename --new-uuid MEMBER..."
)


class ArrayLock:
    """The lock of the array *uuid*, called *name*; held from construction to `release`.

    *place* is its mount point or address, for the message of the next one. *shared*: for reading.
    Raises BusyError if another process has the array, RaidxError if no lock can be made.
    """

    def __init__(self, uuid: str, name: str, place: str, *, shared: bool) -> None:
        self._path = paths.own_directory() / f"{uuid}.lock"
        self._fd = _locked(self._path, name, shared=shared)
        if not shared:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, os.fsencode(f"{os.getpid()} {place}\n{name}"), 0)

    def release(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while others read
            self._path.unlink()
        os.close(self._fd)


def arrays_of(pid: int) -> str:
    """Return "array vault at /mnt" of the arrays that the process *pid* has, "" if none is known.

    Only those of this user are known.
    """
    names: dict[str, list[str]] = {}  # by place
    for path in sorted(paths.directory_of(os.getuid()).glob("*.lock")):
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                holder, place, name = _noted(fd)
            finally:
                os.close(fd)
            if holder == str(pid) and name:
                names.setdefault(place, []).append(name)
    words = []
    for place, found in names.items():
        what = f"array{'s' * (len(found) > 1)} {', '.join(sorted(found))}"
        words.append(f"{what} at {place}" if place else what)
    return "; ".join(words)


def _noted(fd: int) -> tuple[str, str, str]:
    """Return the process, the place and the name that the holder of a lock has noted in it."""
    pid, _, rest = os.fsdecode(os.pread(fd, 8192, 0)).partition(" ")
    place, _, name = rest.partition("\n")
    return pid, place, name


def refuse_running(uuid: str, name: str) -> None:
    """Raise BusyError if a process has the array *uuid*, called *name*. Nothing is locked."""
    path = paths.directory_of(os.getuid()) / f"{uuid}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _lock(fd, name, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def _locked(path: Path, name: str, *, shared: bool) -> int:
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RaidxError(f"{path} cannot be made: {os.strerror(error.errno or 0)}") from None
        try:
            _lock(fd, name, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:  # else its holder has removed it meanwhile
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int, name: str, kind: int) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        pid, place, _name = _noted(fd)
        at = f" at {place}" if place else ""
        by = f", by process {pid}{at}" if pid else ""
        raise InUseError(f"array {name!r} is in use on this machine{by}", action=_ACTION) from None
