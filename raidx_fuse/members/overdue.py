"""Overdue writes: writes that were abandoned after a timeout and may still take effect.

A thread that is blocked in a system call, for example on a network disk without connection, cannot
be interrupted. After a timeout its write is abandoned, and the caller gets an error. But the write
takes effect when the disk answers again, seconds or hours later, and overwrites newer content:

    write A ........ abandoned                               A takes effect
                               write B, flushed; B is read          A is read

So while a write is overdue:

* no other write to its bytes starts, and content read there is not trusted (store/queue.py,
  format/superblock_round.py);
* its member gets no other role (array/membership.py).
"""

from __future__ import annotations

from collections.abc import Callable

from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member


def give_up(member: Member, offset_bytes: int, size_bytes: int) -> None:
    """Mark a started write of *member* as abandoned: it is overdue from now on."""
    member.note_overdue(offset_bytes, offset_bytes + size_bytes)


def came_back(member: Member, offset_bytes: int, size_bytes: int) -> None:
    """Note that an overdue write has ended, with or without success."""
    member.end_overdue(offset_bytes, offset_bytes + size_bytes)


def covers_overdue(
    member: Member,
    covers: Callable[[Role, int, int], bool],
    role: Role,
    offset_bytes: int,
    size_bytes: int,
) -> bool:
    """Return whether newer content *covers* every byte of a range that overdue writes may change.

    *covers* is called with *role*, begin and end of such bytes.
    """
    end = offset_bytes + size_bytes
    overdue = member.overdue
    return not overdue or all(
        covers(role, max(offset_bytes, begin), min(end, stop)) for begin, stop in overdue
    )


def is_overdue(member: Member, offset_bytes: int, size_bytes: int) -> bool:
    """Return whether an overdue write may still change bytes of this range."""
    end = offset_bytes + size_bytes
    return any(begin < end and offset_bytes < stop for begin, stop in member.overdue)
