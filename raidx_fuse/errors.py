"""The exceptions of RAIDX-FUSE, each with the errno for the kernel and the exit status of the CLI.

Each translation of errors happens in one place:

* ``OSError`` becomes `MemberError` in members/.
* A `MemberError` becomes a failed member and a new plan in the engine.
* A `RaidxError` becomes ``FUSEError`` in fuse/operations.py (EIO if it names no other errno), and
  one line with an exit status in cli/main.py.

Bugs are no `RaidxError`: they end the array (loop/tasks.py) or the process. The exception is
`LawError` (laws.py): the request that would break a law of the program is refused before it does
harm.
"""

from __future__ import annotations

import errno as _errno
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum

_WORD = re.compile("(?<=[a-z])(?=[A-Z])")
NAME_CHARS_MAX = 80  # of a name that an error message repeats


class Reason(StrEnum):
    """Why something failed, for programs: what to do next differs from one to the other.

    The value stands in JSON, *meaning* in the manual. Within a version of the output, none changes
    its meaning; there may become more.
    """

    _value_: str
    meaning: str

    def __new__(cls, value: str, meaning: str) -> Reason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # the request
    UNKNOWN_COMMAND = "unknown_command", "there is no such command, or action"
    UNKNOWN_OPTION = "unknown_option", "the command has no such option"
    MISSING_ARGUMENT = "missing_argument", "something must be named besides"
    ARGUMENT = "argument", "a value is impossible or out of range, or does not fit the others"
    LIMIT = (
        "limit",
        "more members, volumes or commands at a time than there may be",
    )
    AMBIGUOUS = "ambiguous", "several are meant: name one"
    NO_SUCH_ARRAY = "no_such_array", "no array is found by that name"
    NO_SUCH_VOLUME = "no_such_volume", "no volume has that name, or not any more"
    NO_SUCH_MEMBER = "no_such_member", "no member is found by that name or role"
    NO_SUCH_JOB = "no_such_job", "no job has that number, or none runs"
    NO_SUCH_SETTING = "no_such_setting", "no setting has that name, or not any more"
    EXISTS = "exists", "the name is taken: choose another one"
    ALREADY = "already", "it is so already"
    IMPOSSIBLE_LAYOUT = "impossible_layout", "there is no such layout, or not for so many members"
    NOT_WITH_LAYOUT = "not_with_layout", "the layout of the array cannot do it"
    NOT_LAB = "not_lab", "only a mount that was made with --lab can be broken"
    # what must be accepted by an option
    LOSES_DATA = "loses_data", "bytes that were written would be lost: --lose-data accepts it"
    LOSES_REDUNDANCY = "loses_redundancy", "fewer losses would be survived: --lose-redundancy"
    SIGNATURE_FOUND = "signature_found", "something else is on the member: --overwrite-signature"
    WRITE_HOLE = "write_hole", "a crash left data in doubt: all members, or --start-degraded"
    # members and arrays
    TOO_SMALL = "too_small", "a member is too small for it"
    MEMBER_FAILED = "member_failed", "a member failed, or cannot be read or written"
    MEMBERS_MISSING = "members_missing", "members that it needs are absent: give them, too"
    NOT_A_MEMBER = "not_a_member", "what was given is no member of an array"
    SEVERAL_ARRAYS = "several_arrays", "these are members of several arrays: give those of one"
    OUTDATED = "outdated", "a member is a copy, or from before the others: leave it out"
    SPLIT = "split", "parts of the array ran without each other: start one of them"
    DAMAGED = "damaged", "bytes of the format are not valid"
    OTHER_VERSION = "other_version", "another raidx wrote it: use that, or a newer one"
    LOST = "lost", "bytes are lost, until the missing members are back or they are written again"
    ARRAY_FAILED = "array_failed", "too many members are lost, or would be"
    DEGRADED = "degraded", "a member is lost: replace it first"
    READ_ONLY = "read_only", "the array, its mount or the member can only be read"
    NO_SPACE = "no_space", "the host of a member is full, or a quota is used up"
    ARRAY_FULL = "array_full", "the array has no room: delete or shrink volumes, or add members"
    METADATA_FULL = "metadata_full", "the metadata or the log of the members has no room for it"
    # what goes by
    BUSY = "busy", "something short is under way: try again"
    IN_USE = "in_use", "another process, mount or device uses it: end that first"
    JOB_RUNNING = "job_running", "a job must end first: wait for it, or cancel it"
    REMOUNT = "remount", "something is unfinished that only the next mount ends: mount anew"
    TORN = "torn", "stripes are torn by failed writes: scrub --repair, with all members"
    CLOSING = "closing", "the array is being closed"
    TIMED_OUT = "timed_out", "what was waited for did not happen in time"
    # mounts and their daemons
    MOUNTED = "mounted", "something is mounted there already"
    NOT_MOUNTED = "not_mounted", "no array is mounted there"
    MOUNT_POINT = "mount_point", "the mount point is no empty folder of this user"
    DAEMON_GONE = "daemon_gone", "the daemon has ended: clear the mount point, then mount"
    DAEMON_ENDED = "daemon_ended", "the daemon ended before it answered or was ready"
    DAEMON_HANGS = "daemon_hangs", "the daemon does not answer, or is stopped"
    FOREIGN = "foreign", "another user owns it, or it is permitted to others only"
    BAD_ANSWER = "bad_answer", "the daemon or server sent something that is not valid"
    NOT_CLOSED = "not_closed", "what no flush covered may be lost"
    # the surroundings
    NO_ANSWER = "no_answer", "the host or server of a member does not answer"
    SERVER_REFUSED = "server_refused", "the server of a member refuses the export or the client"
    FILE = "file", "a file or socket is not there, or cannot be read, made or written"
    NOT_INSTALLED = "not_installed", "a package, a program or the FUSE device is missing"
    SHORTAGE = "shortage", "memory, threads or open files are used up: allow more"
    BUG = "bug", "a mistake of raidx: report it"


def reason_named(value: object) -> Reason | None:
    """Return the reason with that *value*, None for one that only a newer program knows."""
    return next((reason for reason in Reason if reason == value), None)


class RaidxError(Exception):
    """A failure that is reported to the user in one line; *action* says what to do next.

    *errno* is for the kernel, *exit_status* for the shell, *kind* for scripts: the name of the
    class in small letters, without "Error". *reason* is for programs that do something about it; a
    class may have one for all of its errors, and a class of one reason has the kind of that above.
    """

    errno = _errno.EIO
    exit_status = 1
    kind = "raidx"
    reason: Reason | None = None

    def __init_subclass__(cls, *, reason: Reason | None = None) -> None:
        super().__init_subclass__()
        if reason is not None:  # one of the kind above
            cls.reason = reason
        else:
            cls.kind = _WORD.sub("_", cls.__name__.removesuffix("Error")).lower()

    def __init__(
        self, message: str, *, action: str | None = None, reason: Reason | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        if reason is not None:
            self.reason = reason

    def name_in_action(self, name: Callable[[str], str]) -> None:
        """Have *name* put names into the action, where it has placeholders."""
        self.action = self.action and name(self.action)

    def __str__(self) -> str:
        return f"{self.message}; {self.action}" if self.action else self.message

    def as_dict(self) -> dict[str, str | int | None]:
        return {
            "kind": self.kind,
            "reason": self.reason,
            "message": self.message,
            "action": self.action,
            "exit_status": self.exit_status,
        }


class UsageError(RaidxError):
    """The command cannot be carried out as given: an unknown layout, an impossible size."""

    errno = _errno.EINVAL
    exit_status = 2
    reason = Reason.ARGUMENT


class NotInstalledError(RaidxError, reason=Reason.NOT_INSTALLED):
    """A package, a program or a device of the system is missing."""


class LosesDataError(UsageError, reason=Reason.LOSES_DATA):
    """What was written would be lost, and that was not accepted."""


class AmbiguousError(UsageError, reason=Reason.AMBIGUOUS):
    """Several are meant by it."""


class TooSmallError(UsageError, reason=Reason.TOO_SMALL):
    """A member is too small."""


class NotWithLayoutError(UsageError, reason=Reason.NOT_WITH_LAYOUT):
    """The layout of the array cannot do it."""


def unknown(
    what: str, name: str, known: Collection[str], reason: Reason | None = None
) -> UsageError:
    """Return the error for a *name* of a *what* that is not *known*: it suggests the nearest."""
    from difflib import get_close_matches  # late: for this error alone

    near = get_close_matches(name, known, 1)
    return UsageError(
        f"unknown {what} {name[:NAME_CHARS_MAX]!r}",
        action=f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}",
        reason=reason,
    )


class TimedOutError(RaidxError):
    """What was waited for did not happen in time."""

    reason = Reason.TIMED_OUT


class NotFastError(RaidxError):
    """A range cannot be zeroed faster than by a write of zeros, and only that was wanted."""

    errno = _errno.EOPNOTSUPP


class FormatError(RaidxError):
    """Bytes on a member are not a valid structure of the on-disk format."""

    reason = Reason.DAMAGED


class OtherVersionError(FormatError):
    """An intact structure of a format that this program does not know: it is refused by name.

    Its checksum holds, so nothing of it is torn: a program that ignored it, or kept what it does
    not know, could lose acknowledged content. *array_uuid*: of the array, where the structure has
    it.
    """

    reason = Reason.OTHER_VERSION

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

    reason = Reason.DAMAGED


class SignatureFoundError(RaidxError):
    """A member carries an array, a file system or a partition table."""

    errno = _errno.EEXIST
    reason = Reason.SIGNATURE_FOUND


class BusyError(RaidxError):
    """Something that is needed is in use: a member, a mount point, a job slot."""

    errno = _errno.EBUSY
    reason = Reason.BUSY


class InUseError(BusyError, reason=Reason.IN_USE):
    """Another process, mount or device uses it; *pid*: which process, if that is known."""

    def __init__(
        self,
        message: str,
        *,
        action: str | None = None,
        reason: Reason | None = None,
        pid: int | None = None,
    ) -> None:
        super().__init__(message, action=action, reason=reason)
        self.pid = pid


class JobRunningError(BusyError, reason=Reason.JOB_RUNNING):
    """A job must end first."""


class NoSpaceError(RaidxError):
    """The host of a member has no space for a write; no part of the write was acknowledged."""

    errno = _errno.ENOSPC
    reason = Reason.NO_SPACE


class UnrecoverableError(RaidxError):
    """More cells of a stripe are lost than its code can solve; other stripes stay readable."""

    reason = Reason.LOST


class ArrayFailedError(RaidxError):
    """More members have failed or are missing than the layout tolerates."""

    reason = Reason.ARRAY_FAILED


class ReadOnlyError(RaidxError):
    """A write reached an array that was started read-only."""

    errno = _errno.EROFS
    reason = Reason.READ_ONLY


def shortage(error: BaseException) -> RaidxError | None:
    """Return an error for the user if *error* means that a resource of the process ran out.

    The resources are file descriptors, memory and threads. None for all other errors.
    """
    error = single(error)
    number = error.errno if isinstance(error, OSError) else 0
    if number in (_errno.EMFILE, _errno.ENFILE):
        return RaidxError(
            "too many open files", action="allow more: ulimit -n 1024", reason=Reason.SHORTAGE
        )
    words = str(error) if isinstance(error, ImportError | RuntimeError) else ""
    unloaded = "failed to map segment" in words or "can't start new thread" in words
    unloaded |= isinstance(error, SystemError) and "without exception set" in str(error)  # Python
    if number == _errno.ENOMEM or isinstance(error, MemoryError) or unloaded:
        return RaidxError(
            "not enough memory",
            action="free some, or allow more: ulimit -v",
            reason=Reason.SHORTAGE,
        )
    return None


_OF_ERRNO = {
    _errno.ENOSPC: Reason.NO_SPACE,
    _errno.EDQUOT: Reason.NO_SPACE,
    _errno.EROFS: Reason.READ_ONLY,
    _errno.EBUSY: Reason.IN_USE,
    _errno.ETIMEDOUT: Reason.NO_ANSWER,
    _errno.ENOENT: Reason.FILE,
    _errno.EACCES: Reason.FOREIGN,
}


class MemberError(RaidxError):
    """An operation of a member failed.

    *member* is its path; *operation* is read, write, flush, open, ...; *offset_bytes* is -1 for
    operations on the whole member; *errno* is that of the host.
    """

    reason = Reason.MEMBER_FAILED

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
        self.reason = _OF_ERRNO.get(errno, Reason.MEMBER_FAILED)


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
