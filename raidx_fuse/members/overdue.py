"""Writes that nobody waits for any more and that may still land.

A thread that is stuck in a dead network disk cannot be called back. After a time its write is given
up and whoever asked for it hears of an error; but it lands when the disk answers again, seconds or
hours later, over whatever was written there in the meantime:

    write A ........ given up                                lands: A
                              write B, flushed; B is read           A is read

So until it has ended, nobody else writes to its bytes, and nobody takes for granted what is read
there (store/queue.py, format/superblock.py), and its member takes no other role
(array/membership.py).
"""

from __future__ import annotations

from raidx_fuse.members.base import Member


def give_up(member: Member, offset_bytes: int, size_bytes: int) -> None:
    """Note that a write of *member* that has begun is given up."""
    member.overdue = (*member.overdue, (offset_bytes, offset_bytes + size_bytes))


def came_back(member: Member, offset_bytes: int, size_bytes: int) -> None:
    """Note that a write that was given up has ended, well or badly."""
    rest = list(member.overdue)
    rest.remove((offset_bytes, offset_bytes + size_bytes))
    member.overdue = tuple(rest)


def is_overdue(member: Member, offset_bytes: int, size_bytes: int) -> bool:
    """Say whether a write that was given up may still change bytes of this range."""
    end = offset_bytes + size_bytes
    return any(begin < end and offset_bytes < stop for begin, stop in member.overdue)
