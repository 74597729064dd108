"""The error tree: what went wrong, the errno the kernel hears, the exit status the shell hears.

Where an error is translated is fixed: ``OSError`` becomes `MemberError` in members/, a
`MemberError` becomes a failed member and a new plan in the engine, a `RaidxError` becomes
``FUSEError`` in fuse/operations.py and one line with an exit status in cli/main.py. Bugs are not
in this tree: they crash.
"""

from __future__ import annotations

import errno as _errno
from collections.abc import Iterator
from contextlib import contextmanager


class RaidxError(Exception):
    """A failure that the user hears of in one line; *action* says what to type next."""

    errno = _errno.EIO
    exit_status = 1

    def __init__(self, message: str, *, action: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.action = action

    def __str__(self) -> str:
        return f"{self.message}; {self.action}" if self.action else self.message


class UsageError(RaidxError):
    """The command itself cannot be meant: unknown layout, impossible size."""

    errno = _errno.EINVAL
    exit_status = 2


class FormatError(RaidxError):
    """Bytes on a member are not a valid structure of this format."""


class AssemblyError(RaidxError):
    """The members given do not make an array that can be started."""


class SignatureFoundError(RaidxError):
    """A member carries an array, a file system or a partition table."""

    errno = _errno.EEXIST


class BusyError(RaidxError):
    """Someone else holds what is needed: a member, a mount point, a job slot."""

    errno = _errno.EBUSY


class NoSpaceError(RaidxError):
    """A write found no room on a member's host; nothing of it was acknowledged."""

    errno = _errno.ENOSPC


class UnrecoverableError(RaidxError):
    """More is lost than the code can solve at that place; the rest stays readable."""


class ArrayFailedError(RaidxError):
    """More members are gone than the layout tolerates."""


class ReadOnlyError(RaidxError):
    """A write reached an array that was started read-only."""

    errno = _errno.EROFS


def shortage(error: BaseException) -> RaidxError | None:
    """Return the line for an *error* that says that this process may have no more of something."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    number = error.errno if isinstance(error, OSError) else 0
    if number in (_errno.EMFILE, _errno.ENFILE):
        return RaidxError("too many open files", action="allow more: ulimit -n 1024")
    words = str(error) if isinstance(error, ImportError | RuntimeError) else ""
    unloaded = "failed to map segment" in words or "can't start new thread" in words
    if number == _errno.ENOMEM or isinstance(error, MemoryError) or unloaded:
        return RaidxError("not enough memory", action="free some, or allow more: ulimit -v")
    return None


class MemberError(RaidxError):
    """A member could not do an operation. *member* is its path, *operation* read, write, flush."""

    def __init__(
        self, member: str, operation: str, offset_bytes: int, errno: int, detail: str = ""
    ) -> None:
        place = f" at byte {offset_bytes}" if offset_bytes >= 0 else ""  # -1: of the whole member
        super().__init__(
            f"{member}: {operation}{place} failed: "
            f"{detail or _errno.errorcode.get(errno, str(errno))}"
        )
        self.member = member
        self.operation = operation
        self.offset_bytes = offset_bytes
        self.errno = errno


_NO_SPACE = {
    _errno.ENOSPC: "free space on the host file system",
    _errno.EDQUOT: "free space on the host file system, or ask for a larger quota",
    _errno.EFBIG: "lift the limit on the size of files (`ulimit -f`) and mount again, or use a "
    "host file system that takes such large files",
}


def no_space(error: MemberError, message: str = "") -> NoSpaceError | None:
    """Return what users hear if a member's host has no room for what it is to hold, else None.

    A quota or a limit is no fault of the disk either. *message* stands for the error's own.
    """
    action = _NO_SPACE.get(error.errno)
    if action is None:
        return None
    refused = NoSpaceError(message or error.message, action=action)
    refused.__cause__ = error
    return refused


# Out of trio's exception groups: a nursery wraps even a single exception in a group.


def single(error: BaseException) -> BaseException:
    """Return what went wrong: the exception inside groups of one, else *error* itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Let what goes wrong in nurseries inside come out as it is, where it is one exception."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise single(group) from None
