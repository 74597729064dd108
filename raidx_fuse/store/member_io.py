"""One I/O on one member as a value, and how neighbouring ones become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MemberIO = tuple[int, int, list[Any], int]  # role, byte offset on the member, buffers, size


def join(requests: Sequence[MemberIO]) -> list[MemberIO]:
    """Return *requests* sorted by member and offset, with adjacent ones joined into one I/O."""
    if len(requests) < 2:
        return list(requests)
    ordered = sorted(requests, key=lambda request: request[:2])
    joined = [ordered[0]]
    for request in ordered[1:]:
        role, offset, buffers, size = joined[-1]
        if request[0] == role and request[1] == offset + size:
            joined[-1] = (role, offset, buffers + request[2], size + request[3])
        else:
            joined.append(request)
    return joined
