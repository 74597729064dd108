"""I/O on one member for its queue (queue.py): an operation with its errors; many I/Os in a row."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.members.base import Member, ReadBuffer, WriteBuffer
from raidx_fuse.store.latency import Latency

READ, WRITE, FLUSH, PUNCH, CHECK = "read", "write", "flush", "punch", "check"
EWMA_WEIGHT = 0.1  # of the newest service time in the moving average


def service_weight(count: int) -> float:
    """Return the weight of the newest of *count* service times: the first ones are a plain mean."""
    return EWMA_WEIGHT if count * EWMA_WEIGHT > 1 else 1 / count


class Queue(Protocol):
    """The queue of *member*; *unflushed* says whether it has writes that no flush covers."""

    member: Member
    unflushed: bool

    def submit(self, operation: Operation, latch: CountdownLatch) -> None:
        """Queue *operation*; *latch* counts its end."""

    def flush_failed(self) -> None:
        """Note that the flush that began did not cover the writes before it."""


class Operation:
    """One I/O of *kind* at byte *offset*, *size_bytes* long.

    *kind* is READ, WRITE, FLUSH, PUNCH or CHECK (is the member whole?). *buffers* are scattered or
    gathered in order.

    Attributes: *error* (how it failed, or None); *punched* (whether a hole was made); *patched* (a
    read whose caller lays newer content over everything that overdue writes may change);
    *abandoned* (the member whose worker still performs it though it was ended, or None).
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
        self.abandoned: Member | None = None
        self.punched = False
        self.submitted_s = 0.0
        self.started_s = -1.0

    def submit(self, latch: CountdownLatch, now_s: float) -> None:
        """Note that the operation waits since *now_s*; *latch* counts its end."""
        self.latch = latch
        self.submitted_s = now_s

    def start(self, now_s: float) -> None:
        """Note that the first try starts at *now_s*."""
        self.started_s = now_s

    def begin_anew(self, now_s: float) -> None:
        """Note that its time counts from *now_s* on."""
        self.submitted_s = now_s
        if self.started_s >= 0:
            self.started_s = now_s

    def abandon(self, member: Member) -> None:
        """Note that the operation ends although a worker of *member* still performs it."""
        self.abandoned = member

    def end(self, error: MemberError | None) -> None:
        """End the operation with *error*, or None for success."""
        if error is not None:
            self.error = error
        latch, self.latch = self.latch, None
        if latch is not None:
            latch.done()

    async def perform(self, now_s: float) -> None:
        """Perform the I/O on the member; the first try starts at *now_s*. Raises MemberError."""
        if self.started_s < 0:
            self.started_s = now_s
        member = self.queue.member
        if self.kind == READ:
            await member.readv(self.offset, self.buffers)  # type: ignore[arg-type]  # a MemberRead
        elif self.kind == WRITE:
            await member.writev(self.offset, self.buffers)
        elif self.kind == PUNCH:
            self.punched = await member.punch(self.offset, self.size_bytes)
        elif self.kind == CHECK:
            await member.check_whole()
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
    """Wakes one task when *pending* operations have ended."""

    __slots__ = ("pending", "task")

    def __init__(self, pending: int) -> None:
        self.pending = pending
        self.task: trio.lowlevel.Task | None = None

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


class TasklessOperations(ABC):
    """The part of a member's queue (queue.py) that begins operations without a worker.

    A member that answers by messages needs no task for an operation: its answer ends it. A task
    would be woken twice for each, which costs as much as all the rest. Workers do what the member
    cannot begin, and second tries.
    """

    member: Member
    _wary: bool
    _depth: int
    _hanging: int
    _running: set[Operation]
    _foreground: deque[Operation]
    _background: deque[Operation]

    @abstractmethod
    def _note_failed(self, kind: str, offset: int, size_bytes: int, error: MemberError) -> None:
        """Note a failed try: the next one is the second."""

    @abstractmethod
    def _finish(self, operation: Operation, error: MemberError | None) -> None:
        """End *operation*."""

    @abstractmethod
    def _came_back(self, operation: Operation) -> None:
        """Note that an operation that was given up has ended."""

    @abstractmethod
    def _wake_worker(self) -> None:
        """Have a worker look what waits, unless all are busy."""

    @abstractmethod
    def _have_worker(self) -> None:
        """Start a worker if there is none: it closes the queue when the array's tasks end."""

    def _is_full(self) -> bool:
        return len(self._running) + self._hanging >= self._depth

    def _begin(self, operation: Operation, now_s: float) -> bool:
        """Have the member carry out *operation*, if it can now; `_ended` follows."""
        is_write = operation.kind == WRITE
        if not (is_write or operation.kind == READ) or self._wary:
            return False
        operation.start(now_s)
        self._running.add(operation)
        done = partial(self._ended, operation)
        if self.member.begin(is_write, operation.offset, operation.buffers, done):
            self._have_worker()
            return True
        self._running.discard(operation)
        return False

    def _ended(self, operation: Operation, error: MemberError | None) -> None:
        if operation.abandoned is not None:
            self._came_back(operation)
        elif error is None:
            self._finish(operation, None)
        else:
            self._note_failed(operation.kind, operation.offset, operation.size_bytes, error)
            self._running.discard(operation)
            (self._background if operation.background else self._foreground).appendleft(operation)
            self._wake_worker()
            return
        while waiting := self._foreground or self._background:
            if self._is_full():
                return
            following = waiting.popleft()
            if not self._begin(following, following.submitted_s):
                waiting.appendleft(following)
                self._wake_worker()
                return


class SynchronousBatches(ABC):
    """The part of a member's queue (queue.py) that does I/Os of (offset, buffers, size) in a row.

    `try_reads` and `try_writes` return how many were done; the caller submits the others.
    """

    member: Member
    clock: Callable[[], float]
    unflushed: bool
    reads: int
    writes: int
    read_bytes: int
    write_bytes: int
    writes_waiting: int
    read_latency: Latency
    write_latency: Latency
    read_service_s: float
    write_service_s: float
    busy_s: float
    _wary: bool
    _over: tuple[str, ...] = ()  # names of methods that others stand before

    def lay_over(self, methods: Mapping[str, Callable[..., Any]]) -> None:
        """Let *methods*, by name, stand before those of the class; nothing: only the class's.

        Who notes what passes (daemon/commands/trace.py) costs nothing while nobody wants to know.
        """
        for name in self._over:
            delattr(self, name)
        for name, method in methods.items():
            setattr(self, name, method)
        self._over = tuple(methods)

    @abstractmethod
    def _note_failed(self, kind: str, offset: int, size_bytes: int, error: MemberError) -> None:
        """Note a failed try: the next one is the second."""

    @abstractmethod
    def _is_wary_of(self, kind: str, offset: int, size_bytes: int) -> bool:
        """Return whether the range must not be tried synchronously."""

    def view(self, offset: int, size_bytes: int, fraction: float = 1.0) -> memoryview | None:
        """Return a RAM member's memory of a range, else None; count *fraction* of it as read."""
        if self._wary and self._is_wary_of(READ, offset, size_bytes):
            return None
        view = self.member.view(offset, size_bytes)
        if view is not None:
            self.reads += 1
            self.read_bytes += int(size_bytes * fraction)
        return view

    def writable_view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return a RAM member's memory of a range, else None; the caller fills it immediately."""
        if self._wary and self._is_wary_of(WRITE, offset, size_bytes):
            return None
        view = self.member.writable_view(offset, size_bytes)
        if view is not None:
            self.unflushed = True
            self.writes += 1
            self.write_bytes += size_bytes
        return view

    def try_reads(self, reads: Sequence[tuple[int, Sequence[WriteBuffer], int]]) -> int:
        """Read in order without suspending."""
        if self._wary or not reads:
            return 0
        start = self.clock()
        try:
            done = self.member.try_reads(reads)
        except MemberError as error:
            offset, _, size_bytes = reads[0]
            self._note_failed(READ, offset, size_bytes, error)
            return 0
        if done:
            elapsed = self.clock() - start
            self.read_latency.add_many(elapsed / done, done)
            self.read_service_s += EWMA_WEIGHT * (elapsed / done - self.read_service_s)
            self.busy_s += elapsed
            self.reads += done
            self.read_bytes += sum(read[2] for read in reads[:done])
        return done

    def try_writes(self, writes: Sequence[tuple[int, Sequence[ReadBuffer], int]]) -> int:
        """Write in order without suspending."""
        if self.writes_waiting or self._wary:
            return 0
        self.unflushed = True
        start = self.clock()
        try:
            done = self.member.try_writes(writes)
        except MemberError as error:
            offset, _, size_bytes = writes[0]
            self._note_failed(WRITE, offset, size_bytes, error)
            return 0
        if done:
            elapsed = self.clock() - start
            self.write_latency.add_many(elapsed / done, done)
            self.write_service_s += EWMA_WEIGHT * (elapsed / done - self.write_service_s)
            self.busy_s += elapsed
            self.writes += done
            self.write_bytes += sum(write[2] for write in writes[:done])
        return done
