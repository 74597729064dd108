"""One I/O operation on one member, and the errors it may end with (queue.py runs it)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, Protocol

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.members.base import Member, ReadBuffer

READ, WRITE, FLUSH, PUNCH = "read", "write", "flush", "punch"


class Queue(Protocol):
    """The queue of *member*; *unflushed* says whether it has writes that no flush covers."""

    member: Member
    unflushed: bool

    def submit(self, operation: Operation, latch: CountdownLatch) -> None:
        """Queue *operation*; *latch* counts its end."""

    def flush_failed(self) -> None:
        """Note that the flush that began did not cover the writes before it."""


class Operation:
    """One I/O of *kind* (READ, WRITE, FLUSH or PUNCH) at byte *offset*, *size_bytes* long.

    *buffers* are scattered or gathered in order.

    Attributes: *error* (how it failed, or None); *punched* (whether a hole was made); *patched* (a
    read whose caller lays newer content over everything that overdue writes may change);
    *abandoned* (it was ended while its worker still performs it).
    """

    __slots__ = (
        "abandoned",
        "background",
        "buffers",
        "error",
        "kind",
        "latch",
        "offset",
        "patched",
        "punched",
        "queue",
        "size_bytes",
        "started_s",
        "submitted_s",
    )

    def __init__(
        self,
        queue: Queue,
        kind: str,
        offset: int,
        buffers: Sequence[ReadBuffer],
        size_bytes: int,
        background: bool = False,
        patched: bool = False,
    ) -> None:
        self.queue = queue
        self.kind = kind
        self.offset = offset
        self.buffers = buffers
        self.size_bytes = size_bytes
        self.background = background
        self.latch: CountdownLatch | None = None
        self.error: MemberError | None = None
        self.patched = patched
        self.abandoned = self.punched = False
        self.submitted_s = 0.0
        self.started_s = -1.0

    def submit(self, latch: CountdownLatch, now_s: float) -> None:
        """Note that the operation waits since *now_s*; *latch* counts its end."""
        self.latch = latch
        self.submitted_s = now_s
        latch.add()

    def start(self, now_s: float) -> None:
        """Note that a worker performs the operation since *now_s*."""
        self.started_s = now_s

    def abandon(self) -> None:
        """Note that the operation ends although its worker still performs it."""
        self.abandoned = True

    def end(self, error: MemberError | None) -> None:
        """End the operation with *error*, or None for success."""
        if error is not None:
            self.error = error
        latch, self.latch = self.latch, None
        assert latch is not None, "an operation ends exactly once"
        latch.done()

    async def perform(self) -> None:
        """Perform the I/O on the member. Raises MemberError."""
        member = self.queue.member
        if self.kind == READ:
            await member.readv(self.offset, self.buffers)  # type: ignore[arg-type]  # a MemberRead
        elif self.kind == WRITE:
            await member.writev(self.offset, self.buffers)
        elif self.kind == PUNCH:
            self.punched = await member.punch(self.offset, self.size_bytes)
        else:
            await member.flush()

    def timed_out(self, timeout_s: float) -> MemberError:
        """Return the error for no answer within *timeout_s* (ETIMEDOUT)."""
        return self._refusal(errno.ETIMEDOUT, f"no answer within {timeout_s:g} s")

    def barred(self) -> MemberError:
        """Return the error for an overlap with an overdue write (EIO)."""
        return self._refusal(errno.EIO, "an earlier write there got no answer and may still land")

    def gone(self) -> MemberError:
        """Return the error for a closed queue (ENODEV)."""
        return self._refusal(errno.ENODEV, "member was removed")

    def _refusal(self, number: int, why: str) -> MemberError:
        return MemberError(self.queue.member.path, self.kind, self.offset, number, why)


# Lets a task suspend once for any number of operations (queue.py).


class CountdownLatch:
    """Wakes one task when a known number of operations has ended."""

    __slots__ = ("pending", "task")

    def __init__(self) -> None:
        self.pending = 0
        self.task: trio.lowlevel.Task | None = None

    def add(self) -> None:
        """Count one operation that has not ended yet."""
        self.pending += 1

    def done(self) -> None:
        """Count one operation as ended."""
        self.pending -= 1
        if not self.pending and self.task is not None:
            task, self.task = self.task, None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Suspend until nothing is pending; not cancellable, see the laws of queue.py."""
        if self.pending:
            self.task = trio.lowlevel.current_task()

            def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
                return trio.lowlevel.Abort.FAILED

            await trio.lowlevel.wait_task_rescheduled(abort)
