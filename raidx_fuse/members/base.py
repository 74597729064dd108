"""The contract of a member: one disk file, device or memory region of an array.

Two ways lead to the bytes, and every kind offers both. The ``try_`` calls answer at once or say
`False` ("this would block; nothing was done"): the data path asks them first, because suspending
in trio costs ten times the I/O itself when the bytes are in memory. The async calls always do the
work. Buffers are lists, so that adjacent ranges join into one I/O (preadv, pwritev); a memoryview
among them is one of bytes (format "B").

An async call may be cancelled. Its buffers then still belong to the member, which may be at work on
them: drop them, never reuse them. Whether a cancelled write happened is not known.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from raidx_fuse.errors import MemberError

ReadBuffer = bytes | bytearray | memoryview
WriteBuffer = bytearray | memoryview

Identity = tuple[int, int]

SECTOR_BYTES = 512  # what a disk writes whole or not at all


class Member(ABC):
    """A fixed number of bytes at offsets 0..size_bytes-1.

    Attributes: *kind* ("file", "block", "ram", "model", ...); *path* names the member in messages;
    *size_bytes*; *reads_zero* is true while bytes that nobody wrote are known to read as zero
    (a fresh sparse file, RAM); *depth* is how many operations the member can work on at once;
    *read_only*; *identity* tells a file or device from all others, whatever it is called; *overdue*
    has (begin, end) of each write that was given up and may still land (members/overdue.py).
    """

    kind: str
    path: str
    size_bytes: int
    reads_zero: bool = False
    depth: int = 1
    read_only: bool = False
    identity: Identity | None = None
    overdue: tuple[tuple[int, int], ...] = ()

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

    def try_writes(self, writes: Sequence[tuple[int, Sequence[ReadBuffer], int]]) -> int:
        """Write (offset, buffers, bytes) one after the other while that does not block.

        Return how many are written. Raises MemberError for the first, else stops before the one
        that would.
        """
        done = 0
        for offset_bytes, buffers, _ in writes:
            try:
                if not self.try_writev(offset_bytes, buffers):
                    break
            except MemberError:
                if not done:
                    raise
                break
            done += 1
        return done

    @abstractmethod
    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        """Fill *buffers* in order from *offset_bytes*. Raises MemberError, also for short reads."""

    @abstractmethod
    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        """Write *buffers* in order at *offset_bytes*. Raises MemberError."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when everything written before this call is durable. Raises MemberError."""

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        """Make a range read as zero without storing it; False if this kind cannot."""
        return False

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:  # noqa: B027  # few kinds run out
        """Make sure that a later write of the range finds room on the host, without changing it.

        Raises MemberError with ENOSPC. Kinds that cannot run out of room have nothing to do.
        """

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of the parts of a range that may hold anything but zeros.

        In order, without overlap. A kind that does not know names the whole range. Raises
        MemberError.
        """
        self.check_range("map", offset_bytes, length_bytes)
        if length_bytes:
            yield offset_bytes, length_bytes

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        """Return the member's own memory of a range, to be read only, or None (not in memory)."""
        return None

    def writable_view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        """Return the member's own memory of a range to be filled whole at once, or None.

        All of it counts as written. Only kinds in which a write is a copy in memory offer it.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Release the member and its lock. Idempotent."""

    def check_range(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        """Raise MemberError(EINVAL) for a range outside the member: a foreign or shrunk disk."""
        if offset_bytes < 0 or offset_bytes + length_bytes > self.size_bytes:
            raise MemberError(
                self.path, operation, offset_bytes, errno.EINVAL, "beyond the member's end"
            )
