"""The exceptions of RAIDX-FUSE, each with the errno for the kernel and the exit status of the CLI.

Each translation of errors happens in one place:

* ``OSError`` becomes `MemberError` in members/.
* A `MemberError` becomes a failed member and a new plan in the engine.
* A `RaidxError` becomes ``FUSEError`` in fuse/operations.py (EIO if it names no other errno), and
  one line with an exit status in cli/main.py.

Bugs are no `RaidxError`: they end the array (tasks.py) or the process. The exception is `LawError`
(laws.py): the request that would break a law of the program is refused before it does harm.
"""

from __future__ import annotations

import errno as _errno
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

_WORD = re.compile("(?<=[a-z])(?=[A-Z])")
NAME_CHARS_MAX = 80  # of a name that an error message repeats


class RaidxError(Exception):
    """A failure that is reported to the user in one line; *action* says what to do next.

    *errno* is for the kernel, *exit_status* for the shell, *kind* for scripts: the name of the
    class in small letters, without "Error".
    """

    errno = _errno.EIO
    exit_status = 1
    kind = "raidx"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kind = _WORD.sub("_", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, *, action: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.action = action

    def __str__(self) -> str:
        return f"{self.message}; {self.action}" if self.action else self.message

    def as_dict(self) -> dict[str, str | int | None]:
        """Return the error as JSON values, for another process and for ``--json``."""
        return {
            "kind": self.kind,
            "message": self.message,
            "action": self.action,
            "exit_status": self.exit_status,
        }


class UsageError(RaidxError):
    """The command cannot be carried out as given: an unknown layout, an impossible size."""

    errno = _errno.EINVAL
    exit_status = 2


def unknown(what: str, name: str, known: Collection[str]) -> UsageError:
    """Return the error for a *name* of a *what* that is not *known*: it suggests the nearest."""
    near = get_close_matches(name, known, 1)
    return UsageError(
        f"unknown {what} {name[:NAME_CHARS_MAX]!r}",
        action=f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}",
    )


class TimedOutError(RaidxError):
    """What was waited for did not happen in time."""


class NotFastError(RaidxError):
    """A range cannot be zeroed faster than by a write of zeros, and only that was wanted."""

    errno = _errno.EOPNOTSUPP


class FormatError(RaidxError):
    """Bytes on a member are not a valid structure of the on-disk format."""


class OtherVersionError(FormatError):
    """An intact structure of a format that this program does not know: it is refused by name.

    Its checksum holds, so nothing of it is torn: whoever passed over it, or kept what it does not
    know, could lose what was acknowledged. *array_uuid*: of the array, where the structure has it.
    """

    def __init__(
        self,
        message: str,
        *,
        action: str | None = "use the raidx that wrote it, or a newer one",
        array_uuid: str | None = None,
    ) -> None:
        super().__init__(message, action=action)
        self.array_uuid = array_uuid


class AssemblyError(RaidxError):
    """The given members do not form an array that can be started."""


class SignatureFoundError(RaidxError):
    """A member carries an array, a file system or a partition table."""

    errno = _errno.EEXIST


class BusyError(RaidxError):
    """Something that is needed is in use: a member, a mount point, a job slot."""

    errno = _errno.EBUSY


class NoSpaceError(RaidxError):
    """The host of a member has no space for a write; no part of the write was acknowledged."""

    errno = _errno.ENOSPC


class UnrecoverableError(RaidxError):
    """More cells of a stripe are lost than its code can solve; other stripes stay readable."""


class ArrayFailedError(RaidxError):
    """More members have failed or are missing than the layout tolerates."""


class ReadOnlyError(RaidxError):
    """A write reached an array that was started read-only."""

    errno = _errno.EROFS


def shortage(error: BaseException) -> RaidxError | None:
    """Return an error for the user if *error* means that a resource of the process ran out.

    The resources are file descriptors, memory and threads. None for all other errors.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    number = error.errno if isinstance(error, OSError) else 0
    if number in (_errno.EMFILE, _errno.ENFILE):
        return RaidxError("too many open files", action="allow more: ulimit -n 1024")
    words = str(error) if isinstance(error, ImportError | RuntimeError) else ""
    unloaded = "failed to map segment" in words or "can't start new thread" in words
    unloaded |= isinstance(error, SystemError) and "without exception set" in str(error)  # Python
    if number == _errno.ENOMEM or isinstance(error, MemoryError) or unloaded:
        return RaidxError("not enough memory", action="free some, or allow more: ulimit -v")
    return None


class MemberError(RaidxError):
    """An operation of a member failed.

    *member* is its path; *operation* is read, write, flush, open, ...; *offset_bytes* is -1 for
    operations on the whole member; *errno* is that of the host.
    """

    def __init__(
        self, member: str, operation: str, offset_bytes: int, errno: int, detail: str = ""
    ) -> None:
        place = f" at byte {offset_bytes}" if offset_bytes >= 0 else ""
        super().__init__(
            f"{member}: {operation}{place} failed: "
            f"{detail or _errno.errorcode.get(errno, str(errno))}"
        )
        self.member = member
        self.operation = operation
        self.offset_bytes = offset_bytes
        self.errno = errno


class ShorterError(MemberError):
    """A member has become shorter than it was when it was opened: nothing is written to it."""

    def __init__(self, member: str, operation: str, size_bytes: int, was_bytes: int) -> None:
        shorter = f"it has become shorter: {size_bytes} bytes, it had {was_bytes}"
        super().__init__(member, operation, -1, _errno.EIO, shorter)


_NO_SPACE = {
    _errno.ENOSPC: "free space on the host file system",
    _errno.EDQUOT: "free space on the host file system, or ask for a larger quota",
    _errno.EFBIG: "lift the limit on the size of files (`ulimit -f`) and mount again, or use a "
    "host file system that takes such large files",
}


def no_space(error: MemberError, message: str = "") -> NoSpaceError | None:
    """Return a NoSpaceError if *error* means that the host has no space for the member, else None.

    A full host, a quota or a limit on file sizes is no failure of the disk. *message* replaces the
    message of *error*.
    """
    action = _NO_SPACE.get(error.errno)
    if action is None:
        return None
    refused = NoSpaceError(message or error.message, action=action)
    refused.__cause__ = error
    return refused


def reason_of(error: RaidxError, path: str) -> str:
    """Return what *error* says, without the *path* that it may begin with: it is named already."""
    return str(error).removeprefix(f"{path}: ")


# A nursery of trio wraps even a single exception in a group. These functions unwrap it.


def single(error: BaseException) -> BaseException:
    """Return the exception inside nested groups of one exception each, else *error* itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise a single exception of the nurseries inside without the groups around it.

    A group of several exceptions is raised unchanged.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        raise single(group) from None
