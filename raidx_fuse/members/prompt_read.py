"""Reads with a time limit, for the start of an array: it has no queues and no watchdog yet."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.members.base import Member, WriteBuffer
from raidx_fuse.members.threads import has_no_loop

LIMIT_S = 30.0  # as long as an operation of a running array may take


async def read_promptly(member: Member, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
    """Fill *buffers* from *member*; raise MemberError if it fails or takes longer than LIMIT_S.

    A read that was given up may still fill its buffers later: they must not be used again.
    """
    if has_no_loop():  # its members have the limit
        return await member.readv(offset_bytes, buffers)
    with trio.move_on_after(LIMIT_S):
        await member.readv(offset_bytes, buffers)
        return
    detail = f"no answer within {LIMIT_S:g} s"
    raise MemberError(member.path, "read", offset_bytes, errno.ETIMEDOUT, detail)
