"""One I/O on one member as a plain tuple: a NamedTuple makes a small write 9 % slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

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
