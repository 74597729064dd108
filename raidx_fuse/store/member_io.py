"""One I/O on one member as a value, and what is laid over what members hold.

An I/O is a plain tuple: a NamedTuple makes a small write 9 % slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import ReadBuffer, WriteBuffer

PAGE_SHIFT = 12  # newer content is kept in pages of 4 KiB
PAGE_BYTES = 1 << PAGE_SHIFT
PAGE_MASK = PAGE_BYTES - 1

# role, byte offset on the member, buffers, size in bytes
MemberRead = tuple[Role, int, Sequence[WriteBuffer], int]  # fills its buffers
MemberIO = tuple[Role, int, Sequence[ReadBuffer], int]  # a write, or either
Buffer = TypeVar("Buffer")


def join(
    requests: Sequence[tuple[Role, int, Sequence[Buffer], int]],
) -> list[tuple[Role, int, Sequence[Buffer], int]]:
    """Return *requests* sorted by member and offset, with adjacent ones joined into one I/O."""
    if len(requests) < 2:
        return list(requests)
    ordered = sorted(requests, key=lambda request: request[:2])
    joined = [ordered[0]]
    for request in ordered[1:]:
        role, offset, buffers, size = joined[-1]
        if request[0] == role and request[1] == offset + size:
            joined[-1] = (role, offset, [*buffers, *request[2]], size + request[3])
        else:
            joined.append(request)
    return joined


class MemberLostError(Exception):
    """A member was failed during the operation: the caller plans again (degraded read)."""


class NewerContent(Protocol):
    """Content newer than that of the members, laid over every read: the overlay of the log.

    *current* and *frozen* are its layers: both are empty if there is no newer content.
    """

    @property
    def current(self) -> Mapping[int, Any]:
        """The layer on top."""
        ...

    @property
    def frozen(self) -> Mapping[int, Any]:
        """The layer that is being written to the home places."""
        ...

    def newest(self, role: Role, offset: int, length: int) -> Any:
        """Return the bytes of a range within one page as a buffer, if all are known.

        Otherwise None if nothing of the page is known, and an empty tuple if parts may be known.
        """
        ...

    def __bool__(self) -> bool:
        """Return whether there is any newer content."""
        ...

    def read(self, role: Role, offset: int, buffer: WriteBuffer) -> bool:
        """Fill *buffer* and return True if whole pages cover the range; else return False."""
        ...

    def covers(self, role: Role, begin: int, end: int) -> bool:
        """Return whether all bytes from *begin* to *end* are known."""
        ...

    def patch(self, role: Role, offset: int, buffers: Sequence[WriteBuffer]) -> None:
        """Copy newer content over *buffers*, which were read from the member at *offset*."""

    def patch_frozen(self, role: Role, offset: int, buffer: Any) -> None:
        """Copy the content of the frozen layer over *buffer*, read from the member at *offset*."""
