"""The interface of a member: one disk file, block device or memory region of an array.

The size of a member is fixed. No write extends one: a file that was cut off, and that a write
extends again, reads as zeros where content was. A kind whose storage can become shorter looks at
its size before each write, and at each read that ends early.

Each operation has two forms:

* The ``try_`` calls are synchronous. They do the operation, or return False if it would block; then
  nothing was done. The data path calls them first: if the bytes are in memory, suspending in trio
  costs ten times as much as the I/O.
* The async calls always do the operation. One can be cancelled; whether a cancelled write took
  place is unknown. Its buffers then still belong to the member, because a thread may still use
  them: drop them, never reuse them.

Buffers are lists, so that adjacent ranges form one I/O (preadv, pwritev). A memoryview among them
must be one of bytes (format "B").

Overdue writes are writes that were abandoned after a timeout and may still take effect. A thread
that is blocked in a system call, for example on a network disk without connection, cannot be
interrupted: the caller gets an error, but the write takes effect when the disk answers again,
seconds or hours later, and overwrites newer content:

    write A ........ abandoned                               A takes effect
                               write B, flushed; B is read          A is read

So while a write is overdue:

* no other write to its bytes starts, and content read there is not trusted (store/queue.py,
  format/superblock.py);
* its member gets no other role (array/membership.py).
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar, cast

from raidx_fuse.errors import MemberError
from raidx_fuse.layouts.numbers import Role

ReadBuffer = bytes | bytearray | memoryview
WriteBuffer = bytearray | memoryview

Identity = tuple[int, int]

SECTOR_BYTES = 512  # the unit that a disk writes atomically

Method = TypeVar("Method", bound=Callable[..., object])
Buffers = TypeVar("Buffers", Sequence[ReadBuffer], Sequence[WriteBuffer])


def _done_at_once(
    attempt: Callable[[int, Buffers], bool], requests: Sequence[tuple[int, Buffers, int]]
) -> int:
    """Return how many of *requests*, in order, *attempt* did before one would block or failed.

    Raises MemberError if the first one fails.
    """
    done = 0
    for offset_bytes, buffers, _ in requests:
        try:
            if not attempt(offset_bytes, buffers):
                break
        except MemberError:
            if not done:
                raise
            break
        done += 1
    return done


@dataclass(frozen=True, slots=True)
class HostSpace:
    """The file system of a member: its *device* number and *free_bytes*.

    *missing_bytes* of the member occupy no space there yet: it is a sparse file.
    """

    device: int
    free_bytes: int
    missing_bytes: int


class Member(ABC):
    """A fixed number of bytes at offsets 0..size_bytes-1.

    * *kind*: "file", "block", "ram", "model", ...; *path*: its name in messages; *size_bytes*.
    * *reads_zero*: unwritten bytes are known to read as zero (a new sparse file, RAM).
    * *depth*: how many operations the member can do concurrently; *read_only*.
    * *identity*: the same for all paths of one file or device, and different for different ones;
      None if the kind has none.
    * *rotates*: whether it is a rotating disk, where seeks cost; None if that is not known.
    * *begins*: whether `begin` may be called: the kind needs no task for an operation.
    * *overdue*: (begin, end) in bytes of each abandoned write that may still take effect.
    * *closed*: every operation is refused.
    """

    kind: str
    path: str
    size_bytes: int
    reads_zero: bool = False
    depth: int = 1
    read_only: bool = False
    identity: Identity | None = None
    rotates: bool | None = None
    overdue: tuple[tuple[int, int], ...] = ()
    begins: bool = False
    closed: bool = False

    def note_overdue(self, offset_bytes: int, size_bytes: int) -> None:
        """Mark a started write as abandoned: it is overdue from now on."""
        self.overdue = (*self.overdue, (offset_bytes, offset_bytes + size_bytes))

    def end_overdue(self, offset_bytes: int, size_bytes: int) -> None:
        """Note that an overdue write has ended, with or without success."""
        rest = list(self.overdue)
        rest.remove((offset_bytes, offset_bytes + size_bytes))
        self.overdue = tuple(rest)

    def is_overdue(self, offset_bytes: int, size_bytes: int) -> bool:
        """Return whether an overdue write may still change bytes of this range."""
        end = offset_bytes + size_bytes
        return any(begin < end and offset_bytes < stop for begin, stop in self.overdue)

    def covers_overdue(
        self,
        covers: Callable[[Role, int, int], bool],
        role: Role,
        offset_bytes: int,
        size_bytes: int,
    ) -> bool:
        """Return whether newer content *covers* what overdue writes may change of a range.

        *covers* is called with *role*, begin and end of such bytes.
        """
        end = offset_bytes + size_bytes
        return not self.overdue or all(
            covers(role, max(offset_bytes, begin), min(end, stop)) for begin, stop in self.overdue
        )

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        """Fill *buffers* in order from *offset_bytes*, or return False if that would block.

        After False the buffers' content is undefined. Raises MemberError.
        """
        return False

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        """Write *buffers* in order at *offset_bytes*, or return False, having written nothing.

        Raises MemberError.
        """
        return False

    def try_reads(self, reads: Sequence[tuple[int, Sequence[WriteBuffer], int]]) -> int:
        """Do reads of (offset, buffers, size in bytes) in order until one would block.

        Returns how many were done. Raises MemberError only if the first read fails; if a later one
        fails, it returns the number of reads before it.
        """
        return _done_at_once(self.try_readv, reads)

    def try_writes(self, writes: Sequence[tuple[int, Sequence[ReadBuffer], int]]) -> int:
        """Do writes of (offset, buffers, size in bytes) in order until one would block.

        Returns how many were done. Raises MemberError only if the first write fails; if a later one
        fails, it returns the number of writes before it.
        """
        return _done_at_once(self.try_writev, writes)

    def begin(
        self,
        is_write: bool,
        offset_bytes: int,
        buffers: Sequence[ReadBuffer],
        done: Callable[[MemberError | None], None],
    ) -> bool:
        """Begin to read into *buffers*, or to write them, and return at once; or return False.

        Later *done* is called, once, with the error or None. Until then a read fills the buffers;
        those of a write are the caller's again at once. Only if *begins*, in the event loop.
        """
        return False

    def try_check_whole(self) -> bool:
        """Check that the member is still as long as it was, or return False if that would block.

        Raises MemberError; `ShorterError` if it has become shorter: then every later write and
        flush of it is refused, and every read beyond what was left.
        """
        return True

    async def check_whole(self) -> None:
        """Check that the member is still there, and as long as it was. Raises as the other one."""
        self.try_check_whole()

    async def path_problem(self) -> str | None:
        """Return how *path* does not lead to the member any more, None if it does."""
        return None

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        """Fill *buffers* in order from *offset_bytes*. Raises MemberError, also for short reads."""
        done = self.try_readv(offset_bytes, buffers)
        assert done, "a kind that may block has its own"

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        """Write *buffers* in order at *offset_bytes*. Raises MemberError."""
        done = self.try_writev(offset_bytes, buffers)
        assert done, "a kind that may block has its own"

    @abstractmethod
    async def flush(self) -> None:
        """Return when everything written before this call is durable. Raises MemberError."""

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        """Make a range read as zero without storing it; False if this kind cannot."""
        return False

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:  # noqa: B027  # few kinds run out
        """Reserve space on the host for a later write of the range; its content does not change.

        Raises MemberError with ENOSPC. Kinds that cannot run out of space do nothing.
        """

    def host_space(self) -> HostSpace | None:
        """Return the space on the file system of this member, None if it lies on none.

        May block, as the host answers. Raises OSError.
        """
        return None

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of the parts of a range that may contain nonzero bytes.

        In order, without overlap. A kind that does not know yields the whole range. Raises
        MemberError.
        """
        self.check_range("map", offset_bytes, length_bytes)
        if length_bytes:
            yield offset_bytes, length_bytes

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        """Return the memory that holds a range, read-only, or None if there is none."""
        return None

    def writable_view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        """Return the memory that holds a range, for the caller to fill completely, or None.

        The whole range counts as written. Only kinds whose writes are copies in memory offer this.
        """
        return None

    def note_watched(self) -> None:  # noqa: B027  # few kinds have a limit of their own
        """Note that from now on the caller limits the time of every operation (``io.timeout_s``).

        Until then a kind whose operations may wait without end has to limit them itself.
        """

    def is_settled(self) -> bool:
        """Return whether no write that was begun can take effect later."""
        return not self.overdue

    @abstractmethod
    def close(self) -> None:
        """Release the member and its lock. Idempotent."""

    def check_range(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        """Raise MemberError(EINVAL) for a range outside the member: a wrong or truncated disk."""
        if offset_bytes < 0 or offset_bytes + length_bytes > self.size_bytes:
            raise MemberError(
                self.path, operation, offset_bytes, errno.EINVAL, "beyond the member's end"
            )

    def refuse(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        """Raise MemberError if the member is closed, opened read-only, or ends before the range."""
        if self.closed:
            raise MemberError(self.path, operation, offset_bytes, errno.ENODEV, "member is closed")
        if operation == "write" and self.read_only:
            raise MemberError(self.path, operation, offset_bytes, errno.EROFS, "opened read-only")
        if operation != "flush":
            self.check_range(operation, offset_bytes, length_bytes)


def host_error(
    path: str, operation: str, error: OSError, offset_bytes: int = -1, detail: str = ""
) -> MemberError:
    """Return *error* of the host as one of the member *path*."""
    number, detail = error.errno or errno.EIO, detail or error.strerror or ""
    return MemberError(path, operation, offset_bytes, number, detail)


@contextmanager
def host_errors(path: str, operation: str, offset_bytes: int = -1) -> Iterator[None]:
    """Raise an OSError inside the block as `host_error`."""
    try:
        yield
    except OSError as error:
        raise host_error(path, operation, error, offset_bytes) from None


def _of_inner(method: Method) -> Method:
    """Return what finds *method* of the wrapped member, which is then called."""
    return cast(Method, property(attrgetter(f"inner.{method.__name__}")))


class WrapperMember(Member):
    """The base of members that wrap another one; they stack: faults over a model over RAM.

    Forwards every operation to *inner*; subclasses change some of them.

    Only `writable_view` returns None: writes to that memory would bypass the wrapper.
    """

    def __init__(self, inner: Member) -> None:
        self.inner = inner
        self.kind = inner.kind
        self.path = inner.path
        self.size_bytes = inner.size_bytes
        self.reads_zero = inner.reads_zero
        self.depth = inner.depth
        self.read_only = inner.read_only
        self.identity = inner.identity
        self.rotates = inner.rotates

    # Written out for the data path: what finds them would take 60 ns more.
    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        return self.inner.try_readv(offset_bytes, buffers)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return self.inner.try_writev(offset_bytes, buffers)

    try_check_whole = _of_inner(Member.try_check_whole)
    check_whole = _of_inner(Member.check_whole)
    path_problem = _of_inner(Member.path_problem)
    readv = _of_inner(Member.readv)
    writev = _of_inner(Member.writev)
    flush = _of_inner(Member.flush)
    punch = _of_inner(Member.punch)
    reserve = _of_inner(Member.reserve)
    host_space = _of_inner(Member.host_space)
    data_extents = _of_inner(Member.data_extents)
    view = _of_inner(Member.view)
    note_watched = _of_inner(Member.note_watched)
    close = _of_inner(Member.close)

    def is_settled(self) -> bool:
        return not self.overdue and self.inner.is_settled()
