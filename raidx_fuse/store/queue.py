"""Member queues: every operation on a member goes through its queue, which also measures it.

The data path first asks the member whether it can answer synchronously (``try_``), because
suspending in trio costs more than the I/O if the bytes are in memory. An I/O that would block
becomes an `Operation` in a queue that up to *depth* worker tasks serve, or one that the member
carries out without a task. The requester suspends once on a `CountdownLatch` for all its
operations. Foreground operations overtake background ones.

A member that answers by messages needs no task for an operation: its answer ends it. A task would
be woken twice for each, which costs as much as all the rest. Workers do what such a member cannot
begin, and second tries.

Laws:
 1. An operation ends exactly once: by its worker, by the timeout of the watchdog (`MemberSet.watch`
    in member_set.py), or because its member is failed.
 2. A latch cannot be cancelled, because a member may still write into the buffers. After a timeout
    the buffers belong to the hanging operation (`Operation.abandoned`) and are never reused.
 3. A write that timed out may still reach the member later. Until it has, every operation that
    overlaps its range is refused (members/base.py).
 4. An operation that fails is tried once more. A failed synchronous try is the first of the two.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.laws import Law, Laws
from raidx_fuse.loop.tasks import Starter
from raidx_fuse.members.base import Member, ReadBuffer, WriteBuffer
from raidx_fuse.store.latency import TIMED_ALL, TIMED_EACH, Latency

log = logging.getLogger(__name__)

READ, WRITE, FLUSH, PUNCH, CHECK = "read", "write", "flush", "punch", "check"
EWMA_WEIGHT = 0.1  # of the newest service time in the moving average
_FAILED_KEPT = 16
UNKNOWN_S = 1e3  # treats an unmeasured member as slow, so that measured copies are tried first
GONE = errno.ENODEV, "member was removed"
BARRED = errno.EIO, "an earlier write there got no answer and may still land"


def service_weight(count: int) -> float:
    """Return the weight of the newest of *count* service times: the first ones are a plain mean."""
    return EWMA_WEIGHT if count * EWMA_WEIGHT > 1 else 1 / count


@dataclass(slots=True, eq=False)
class Operation:
    """One I/O of *kind* at byte *offset*, *size_bytes* long.

    *kind* is READ, WRITE, FLUSH, PUNCH or CHECK (is the member whole?). *buffers* are scattered or
    gathered in order. *patched*: a read whose caller lays newer content over everything that
    overdue writes may change.

    Attributes: *error* (how it failed, or None); *abandoned* (the member whose worker still
    performs it though it was ended, or None); *punched* (whether a hole was made).
    """

    queue: MemberQueue
    kind: str
    offset: int
    buffers: Sequence[ReadBuffer]
    size_bytes: int
    background: bool = False
    patched: bool = False
    latch: CountdownLatch | None = None
    error: MemberError | None = None
    abandoned: Member | None = None
    punched: bool = False
    submitted_s: float = 0.0
    started_s: float = -1.0

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

    def refusal(self, number: int, why: str) -> MemberError:
        return MemberError(self.queue.member.path, self.kind, self.offset, number, why)


@dataclass(slots=True, eq=False)
class CountdownLatch:
    """Wakes one task when *pending* operations have ended."""

    pending: int
    task: trio.lowlevel.Task | None = None

    def done(self) -> None:
        """Count one operation as ended."""
        self.pending -= 1
        if not self.pending and self.task is not None:
            task, self.task = self.task, None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Suspend until nothing is pending; not cancellable, see the laws above."""
        if self.pending:
            self.task = trio.lowlevel.current_task()

            def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
                return trio.lowlevel.Abort.FAILED

            await trio.lowlevel.wait_task_rescheduled(abort)


class MemberQueue:
    """The queue of one member; *clock* returns the time in seconds.

    Attributes that policies read: *reads_waiting*, *writes_waiting* (queued or running operations),
    *read_service_s*, *write_service_s* (moving averages of the service time), and the counters.
    *on_change* is called with the time whenever the number of outstanding operations changes,
    *measured* with (offset, bytes, seconds of service, outstanding operations, is it a write) of
    each foreground read and write that a worker has done.
    *unflushed* says whether the member has writes that no flush covers.
    """

    _over: tuple[str, ...] = ()  # names of methods that others stand before

    def __init__(
        self,
        member: Member,
        nursery: Starter,
        clock: Callable[[], float],
        laws: Laws | None = None,
    ) -> None:
        self.serve_by(member)
        self._laws = laws or Laws()
        self._depth = max(1, member.depth)
        self.clock = clock
        self.closed = False
        self.reads = self.writes = self.flushes = 0
        self.read_bytes = self.write_bytes = self.errors = 0
        self.read_latency, self.write_latency = Latency(), Latency()
        self.read_service_s = self.write_service_s = 0.0
        self.reads_waiting = self.writes_waiting = 0
        self.busy_s = self.queue_area = 0.0  # the area: integral of the queue length over time
        self.unflushed = False
        self.on_change: Callable[[float], None] | None = None
        self.measured: Callable[[int, int, float, int, bool], None] | None = None
        # (kind, begin, end) of failed synchronous tries whose second try is still to come.
        self._failed: deque[tuple[str, int, int]] = deque(maxlen=_FAILED_KEPT)
        self._wary = bool(member.overdue)  # some ranges must not be tried synchronously
        self._last_change_s = clock()
        self._nursery = nursery
        self._foreground: deque[Operation] = deque()
        self._background: deque[Operation] = deque()
        self._idle: list[trio.lowlevel.Task] = []
        self._workers = 0
        self._running: set[Operation] = set()
        self._hanging = 0  # workers whose operation was given up

    def serve_by(self, member: Member) -> None:
        """Let *member*, which has the same content, do every operation from now on."""
        self.member = member
        member.note_watched()

    def watch(self, on_change: Callable[[float], None] | None) -> None:
        """Call *on_change* from now on; None: no call."""
        self.on_change = on_change

    def measure_by(self, measured: Callable[[int, int, float, int, bool], None]) -> None:
        self.measured = measured

    def flush_failed(self) -> None:
        """Note that the flush that began did not cover the writes before it."""
        self.unflushed = True

    def lay_over(self, methods: Mapping[str, Callable[..., Any]]) -> None:
        """Let *methods*, by name, stand before those of the class; nothing: only the class's.

        So a recorder (daemon/commands/trace.py) costs nothing while no trace is being recorded.
        """
        for name in self._over:
            delattr(self, name)
        for name, method in methods.items():
            setattr(self, name, method)
        self._over = tuple(methods)

    # -- synchronous ---------------------------------------------------------------------------

    def try_readv(self, offset: int, buffers: Sequence[WriteBuffer], size_bytes: int) -> bool:
        """Read without suspending, or return False. After a MemberError use `submit` to retry."""
        if self._wary and self._is_wary_of(READ, offset, size_bytes):
            return False
        number = self.reads + 1
        timed = number <= TIMED_ALL or not number % TIMED_EACH
        start = self.clock() if timed else 0.0
        try:
            if not self.member.try_readv(offset, buffers):
                return False
        except MemberError as error:
            self._note_failed(READ, offset, size_bytes, error)
            raise
        if timed:
            elapsed = self.clock() - start
            stands_for = TIMED_EACH if number > TIMED_ALL else 1
            self.read_latency.add_many(elapsed, stands_for)
            self.read_service_s += EWMA_WEIGHT * (elapsed - self.read_service_s)
            self.busy_s += elapsed * stands_for
        self.reads = number
        self.read_bytes += size_bytes
        return True

    def try_writev(self, offset: int, buffers: Sequence[ReadBuffer], size_bytes: int) -> bool:
        """Write without suspending, or return False. After a MemberError use `submit` to retry."""
        if self.writes_waiting:
            return False  # never overtake a queued write: its range may overlap
        if self._wary and self._is_wary_of(WRITE, offset, size_bytes):
            return False
        self.unflushed = True
        number = self.writes + 1
        timed = number <= TIMED_ALL or not number % TIMED_EACH
        start = self.clock() if timed else 0.0
        try:
            if not self.member.try_writev(offset, buffers):
                return False
        except MemberError as error:
            self._note_failed(WRITE, offset, size_bytes, error)
            raise
        if timed:
            elapsed = self.clock() - start
            stands_for = TIMED_EACH if number > TIMED_ALL else 1
            self.write_latency.add_many(elapsed, stands_for)
            self.write_service_s += EWMA_WEIGHT * (elapsed - self.write_service_s)
            self.busy_s += elapsed * stands_for
        self.writes = number
        self.write_bytes += size_bytes
        return True

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
        """Read (offset, buffers, size) in order without suspending; return how many were done."""
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
        """Write (offset, buffers, size) in order without suspending; return how many were done."""
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

    def _note_failed(self, kind: str, offset: int, size_bytes: int, error: MemberError) -> None:
        log.warning("%s; trying once more", error.message)
        self._failed.append((kind, offset, offset + size_bytes))
        self._wary = True

    def _is_wary_of(self, kind: str, offset: int, size_bytes: int) -> bool:
        """Return whether a failed try or an overdue write forbids a synchronous try here."""
        if self._failed_at(kind, offset, size_bytes) is not None:
            return True
        return self.member.is_overdue(offset, size_bytes)

    def _failed_at(self, kind: str, offset: int, size_bytes: int) -> tuple[str, int, int] | None:
        """Return a failed synchronous try that overlaps the range, or None."""
        end = offset + size_bytes
        for failed in self._failed:
            if failed[0] == kind and failed[1] < end and offset < failed[2]:
                return failed
        return None

    # -- queued --------------------------------------------------------------------------------

    def submit(self, operation: Operation, latch: CountdownLatch) -> None:
        """Queue *operation*; *latch* counts its end, `operation.error` is its error or None."""
        operation.latch = latch
        operation.submitted_s = self._account()
        if operation.kind == READ:
            self.reads_waiting += 1
        elif operation.kind in (WRITE, PUNCH):
            self.writes_waiting += 1
        if self.on_change is not None:
            self.on_change(operation.submitted_s)
        if self.closed:
            self._finish(operation, operation.refusal(*GONE))
            return
        if self._wary and self._is_barred(operation):
            self._finish(operation, operation.refusal(*BARRED))
            return
        begins = self.member.begins
        if begins and not (self._foreground or self._is_full()):
            if self._begin(operation, operation.submitted_s):
                return
            begins = False
        (self._background if operation.background else self._foreground).append(operation)
        if not (begins and self._running):  # else what ends next begins it
            self._wake_worker()

    def _wake_worker(self) -> None:
        if self._idle:
            trio.lowlevel.reschedule(self._idle.pop())
        elif self._workers < self._depth:
            self._workers += 1
            self._nursery.start_soon(self._work)

    def _is_full(self) -> bool:
        return len(self._running) + self._hanging >= self._depth

    def _begin(self, operation: Operation, now_s: float) -> bool:
        """Have the member carry out *operation*, if it can now; `_ended` follows."""
        is_write = operation.kind == WRITE
        if not (is_write or operation.kind == READ) or self._wary:
            return False
        operation.started_s = now_s
        self._running.add(operation)
        done = partial(self._ended, operation)
        if self.member.begin(is_write, operation.offset, operation.buffers, done):
            if not self._workers:
                self._wake_worker()
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

    def answer_s(self) -> float:
        """Return the expected response time, in seconds, of a read that is submitted now.

        Longer than any while the member's first reads are under way, by what its writes take.
        """
        if not self.reads:
            service_s = self.write_service_s or UNKNOWN_S
            return UNKNOWN_S + service_s * (1 + self.reads_waiting / self._depth)
        wait_s = self.reads_waiting * self.read_service_s
        wait_s += self.writes_waiting * self.write_service_s
        return self.read_service_s + wait_s / self._depth

    def queue_length(self) -> int:
        """Return the number of outstanding reads and writes."""
        return self.reads_waiting + self.writes_waiting

    def expire(self, timeout_s: float) -> list[Operation]:
        """End hanging operations with ETIMEDOUT and return them.

        These are the operations that have run for more than *timeout_s*. If such operations occupy
        all workers, those that have waited for a worker as long end, too.
        """
        limit = self.clock() - timeout_s
        late = errno.ETIMEDOUT, f"no answer within {timeout_s:g} s"
        stuck = [op for op in self._running if op.started_s < limit]
        for operation in stuck:
            self._give_up(operation, operation.refusal(*late))
        if self._hanging >= self._depth:
            for waiting in (self._foreground, self._background):
                for operation in [op for op in waiting if op.submitted_s < limit]:
                    waiting.remove(operation)
                    self._finish(operation, operation.refusal(*late))
                    stuck.append(operation)
        return stuck

    def begin_anew(self) -> None:
        """Let the operations that run or wait have begun now: the process was stopped meanwhile."""
        now = self.clock()
        for operations in (self._running, self._foreground, self._background):
            for operation in operations:
                operation.submitted_s = now
                if operation.started_s >= 0:
                    operation.started_s = now

    def close(self) -> None:
        """Refuse further operations; those that wait or run end with ENODEV.

        Running operations end, too, because the watchdog checks only members in use.
        """
        self.closed = True
        for operation in list(self._running):
            self._give_up(operation, operation.refusal(*GONE))
        for waiting in (self._foreground, self._background):
            while waiting:
                operation = waiting.popleft()
                self._finish(operation, operation.refusal(*GONE))
        while self._idle:
            trio.lowlevel.reschedule(self._idle.pop())

    def _give_up(self, operation: Operation, error: MemberError) -> None:
        """End a running operation with *error*; its worker still performs it."""
        operation.abandoned = self.member  # which may have left the queue when the operation ends
        self._hanging += 1
        if operation.kind in (WRITE, PUNCH):
            self.member.note_overdue(operation.offset, operation.size_bytes)
            self._wary = True
        self._finish(operation, error)

    def _came_back(self, operation: Operation) -> None:
        """Note that the worker of an operation that was given up is free again."""
        self._hanging -= 1
        if operation.kind in (WRITE, PUNCH) and operation.abandoned is not None:
            operation.abandoned.end_overdue(operation.offset, operation.size_bytes)
            self._wary = bool(self._failed or self.member.overdue)
        log.warning(
            "%s: a %s that was given up has ended after %.1f s",
            self.member.path,
            operation.kind,
            self.clock() - operation.started_s,
        )

    def _is_barred(self, operation: Operation) -> bool:
        if operation.kind in (FLUSH, CHECK) or operation.patched:
            return False
        return self.member.is_overdue(operation.offset, operation.size_bytes)

    def _account(self) -> float:
        now = self.clock()
        elapsed = now - self._last_change_s
        length = self.reads_waiting + self.writes_waiting
        if length and elapsed > 0:
            self.queue_area += elapsed * length
            self.busy_s += elapsed
        self._last_change_s = now
        return now

    def _finish(self, operation: Operation, error: MemberError | None) -> None:
        if operation.latch is None:  # nothing is left that could be refused
            self._laws.broken(Law.ONCE, f"{operation.kind} at {operation.offset} ended again")
            return
        now = self._account()
        latency = now - operation.submitted_s
        service = now - operation.started_s if operation.started_s >= 0 else latency
        if self.measured is not None and not operation.background and error is None:
            size, is_write = operation.size_bytes, operation.kind == WRITE
            if is_write or operation.kind == READ:
                self.measured(operation.offset, size, service, self.queue_length(), is_write)
        if operation.kind == READ:
            self.reads_waiting -= 1
            self.reads += 1
            self.read_bytes += operation.size_bytes
            self.read_latency.add(latency)
            self.read_service_s += service_weight(self.reads) * (service - self.read_service_s)
        elif operation.kind == WRITE:
            self.writes_waiting -= 1
            self.unflushed = True  # only now: a flush that ran meanwhile did not cover it
            self.writes += 1
            self.write_bytes += operation.size_bytes
            self.write_latency.add(latency)
            self.write_service_s += service_weight(self.writes) * (service - self.write_service_s)
        elif operation.kind == PUNCH:
            self.writes_waiting -= 1
            self.unflushed = True
        elif operation.kind == FLUSH:
            self.flushes += 1
        if self.on_change is not None:
            self.on_change(now)
        self._running.discard(operation)
        if error is not None:
            self.errors += 1
        operation.end(error)

    async def _work(self) -> None:
        try:
            await self._serve()
        except trio.Cancelled:
            self.close()  # the array's tasks are ending: no worker would serve the queue
            raise
        finally:
            self._workers -= 1

    async def _serve(self) -> None:
        begins = self.member.begins
        while not self.closed:
            full = begins and self._is_full()  # then what ends next wakes a worker
            if self._foreground and not full:
                operation = self._foreground.popleft()
            elif self._background and not full:
                operation = self._background.popleft()
            else:
                task = trio.lowlevel.current_task()
                self._idle.append(task)

                def abort(_raise: object, task: trio.lowlevel.Task = task) -> trio.lowlevel.Abort:
                    if task in self._idle:
                        self._idle.remove(task)
                    return trio.lowlevel.Abort.SUCCEEDED

                await trio.lowlevel.wait_task_rescheduled(abort)
                continue
            if self._wary and self._is_barred(operation):  # given up while this one waited
                self._finish(operation, operation.refusal(*BARRED))
                continue
            self._running.add(operation)
            try:
                error = await self._try_twice(operation)
            except BaseException:  # cancelled: end the operation, so that its requester wakes
                if not operation.abandoned:
                    self._finish(operation, operation.refusal(*GONE))
                raise
            if operation.abandoned:
                self._came_back(operation)
            else:
                self._finish(operation, error)

    async def _try_twice(self, operation: Operation) -> MemberError | None:
        """Perform *operation*, a second time if it fails, because a fault may be transient.

        Returns None, or the error of the last try, for which the caller fails the member.
        """
        first = True
        if self._failed:
            failed = self._failed_at(operation.kind, operation.offset, operation.size_bytes)
            if failed is not None:  # this is the second try
                self._failed.remove(failed)
                self._wary = bool(self._failed or self.member.overdue)
                first = False
        while True:
            try:
                await operation.perform(self.clock())
                return None
            except MemberError as error:
                if not first or operation.abandoned:
                    return error
                log.warning("%s; trying once more", error.message)
                first = False
