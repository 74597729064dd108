"""Threads for I/O that would block: a few threads for each member, completions in batches.

A task gives a `Job` to the `Workers` of its member and suspends. A worker thread makes the system
call and appends the job to the list of the trio run's `Completions`. One wake-up of the run then
resumes the tasks of all jobs that have finished. (``trio.to_thread``, without batched wake-ups,
takes 1.8 times the CPU: ARCHITECTURE.md.)

Thread safety: `Workers._queue` and `Completions._done` are shared between threads; their append and
pop are atomic. `Job.task` is used only by the thread of the run.

Cancellation: a cancelled task continues immediately. Its job is never started if no worker has
started it; otherwise the job ends at some time or never, and its result is dropped. **The buffers
of a cancelled operation still belong to the member: drop them, never reuse them.** The threads are
daemons, so that one that is blocked in the kernel does not keep the process from exiting.

`in_thread` is for other calls that may block, because they access a path that the user named
(open, stat, mkdir, unlink, close): one thread for each call, a limited number at a time, each with
a timeout.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from errno import ETIMEDOUT
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import trio

from raidx_fuse.errors import BusyError, MemberError, RaidxError, Reason
from raidx_fuse.members.base import Member, WriteBuffer

T = TypeVar("T")

CALL_S = 30.0  # timeout of a call to the host
PROMPTLY_S = 30.0  # as long as an operation of a running array may take
CALLS_MAX = 16  # at a time; calls that timed out count until they end


class ThreadPolicy:
    """How one trio run uses threads, here in real time; the clock of a simulator derives its own.

    While it is held, a task waits for a thread.
    """

    inline = False  # in_thread makes its calls in the event loop, without a thread

    def hold(self) -> None: ...

    def release(self) -> None: ...


_REAL_TIME = ThreadPolicy()


def current_policy() -> ThreadPolicy:
    clock = trio.lowlevel.current_clock()
    return clock if isinstance(clock, ThreadPolicy) else _REAL_TIME


class Completions:
    """Resumes the tasks of one trio run whose jobs are done."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.policy = current_policy()
        self._done: deque[Job] = deque()
        self._woken = False

    def put(self, job: Job) -> None:
        """Report *job* as done. Called by worker threads."""
        self._done.append(job)
        # The flag is read after the append, and cleared before the list is emptied. So a thread
        # that sees it set knows that its job will be found. It saves wake-ups: system calls.
        if not self._woken:
            self._woken = True
            try:
                self._token.run_sync_soon(self._wake)
            except trio.RunFinishedError:
                self._done.clear()

    def _wake(self) -> None:
        self._woken = False
        done = self._done
        while done:
            job = done.popleft()
            task = job.take_task()
            if task is not None:
                self.policy.release()
                trio.lowlevel.reschedule(task)


@lru_cache(maxsize=1)
def _completions() -> trio.lowlevel.RunVar[Completions]:
    return trio.lowlevel.RunVar("raidx_member_completions")


def _current_completions() -> Completions:
    try:
        return _completions().get()
    except LookupError:
        fresh = Completions()
        _completions().set(fresh)
        return fresh


class Job:
    """One system call (or a loop of them) and the task that waits for it."""

    __slots__ = ("completions", "error", "task", "work")

    def __init__(self, work: Callable[[], None], completions: Completions) -> None:
        self.work: Callable[[], None] | None = work
        self.completions = completions
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self.error: BaseException | None = None

    def take_task(self) -> trio.lowlevel.Task | None:
        """Return the task that waits, None if it was cancelled; it waits no more."""
        task, self.task = self.task, None
        return task

    def abort(self, _: object) -> trio.lowlevel.Abort:
        self.take_task()
        self.completions.policy.release()
        return trio.lowlevel.Abort.SUCCEEDED

    def run(self) -> None:
        """Do the work in the calling thread, unless its task was cancelled meanwhile."""
        work, self.work = self.work, None  # frees the buffers as soon as they are not needed
        if work is not None and self.task is not None:
            try:
                work()
            except BaseException as error:  # a bug must reach the task, not end the thread
                self.error = error


class Workers:
    """At most *depth* daemon threads, started when there are more jobs than threads.

    *on_idle* is called once, in any thread, when `stop` was called and no job is running: from then
    on the file may be closed.
    """

    def __init__(self, name: str, depth: int, on_idle: Callable[[], None]) -> None:
        self._name = name
        self._depth = depth
        self._on_idle = on_idle
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._under_way = 0
        self._stopped = False

    async def do(self, work: Callable[[], None]) -> None:
        """Run *work* in a worker thread; raises its exception. Can be cancelled (see above)."""
        if _without_loop.get():
            if not _call_without_loop(self._name, work, CALL_S, _forget):
                raise _no_answer(self._name, "access", -1, CALL_S)
            return
        completions = _current_completions()
        job = Job(work, completions)

        with self._lock:
            assert not self._stopped, "the owner asks whether it is closed"
            self._under_way += 1
            start = self._threads < min(self._depth, self._under_way)
            self._threads += start
        if start:
            number = self._threads
            threading.Thread(target=self._serve, name=f"{self._name}#{number}", daemon=True).start()
        completions.policy.hold()
        self._queue.put(job)
        await trio.lowlevel.wait_task_rescheduled(job.abort)
        if job.error is not None:
            raise job.error

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run()
            with self._lock:
                self._under_way -= 1
                last = self._stopped and not self._under_way
            job.completions.put(job)
            if last:
                self._on_idle()

    def stop(self) -> None:
        """Accept no more jobs, and end the threads when all accepted jobs are done."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            idle = not self._under_way
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)
        if idle:
            self._on_idle()


_calls = threading.BoundedSemaphore(CALLS_MAX)


class _Outcome(Generic[T]):
    """The result of a call in a thread. It goes to the caller, or to *discard* after a timeout.

    Both threads use it under a lock: a result is either taken or discarded, never both.
    """

    def __init__(self, call: Callable[[], T], discard: Callable[[T], object]) -> None:
        self._call = call
        self._discard = discard
        self._lock = threading.Lock()
        self._abandoned = False
        self._error: BaseException | None = None
        self._results: list[T] = []

    def run(self) -> None:
        """Make the call. Runs in the thread."""
        try:
            result = self._call()
        except BaseException as error:  # a bug must reach the caller, not end the thread
            self._error = error
            return
        with self._lock:
            if not self._abandoned:
                self._results.append(result)
                return
        self._discard(result)

    def abandon(self) -> None:
        """Have the result discarded, whether it is there already or comes later."""
        with self._lock:
            self._abandoned = True
            results, self._results = self._results, []
        for result in results:
            in_background("discard", partial(self._discard, result))

    def take(self) -> list[T]:
        """Return [the result], [] if it was abandoned. Raises the exception of the call."""
        if self._error is not None:
            raise self._error
        return self._results


def _forget(_: object) -> None:
    """Discard a result that needs no cleaning up."""


def _no_answer(path: str, operation: str, offset_bytes: int, limit_s: float) -> MemberError:
    detail = f"no answer within {limit_s:g} s"
    return MemberError(path, operation, offset_bytes, ETIMEDOUT, detail)


def _late(what: str, limit_s: float) -> RaidxError:
    return RaidxError(
        f"{what}: the host has not answered within {limit_s:g} s",
        action="look at the disk or server that it lies on",
        reason=Reason.NO_ANSWER,
    )


def in_background(what: str, call: Callable[[], object]) -> None:
    """Start *call* in a daemon thread and do not wait for it, for example a close."""
    threading.Thread(target=call, name=what, daemon=True).start()


async def in_thread(
    what: str,
    call: Callable[[], T],
    *,
    limit_s: float = CALL_S,
    discard: Callable[[T], object] = _forget,
) -> T:
    """Return the result of *call* in a thread of its own; *what* names the path for messages.

    Raises the exception of *call*; RaidxError after *limit_s* seconds or if no thread can be
    started; BusyError while CALLS_MAX calls are unfinished. A call that timed out or was cancelled
    continues until the kernel returns; its result is then passed to *discard* in that thread.

    If the policy of the run says *inline*, the call runs at once, without a thread.
    """
    if _without_loop.get():
        if found := _call_without_loop(what, call, limit_s, discard):
            return found[0]
        raise _late(what, limit_s)
    if current_policy().inline:
        await trio.lowlevel.checkpoint()
        return call()
    if not _calls.acquire(blocking=False):
        raise BusyError(
            f"{what}: {CALLS_MAX} calls to the host are still without an answer",
            action="look at the disk or server that does not answer, then try again",
            reason=Reason.NO_ANSWER,
        )
    completions = _current_completions()
    outcome = _Outcome(call, discard)
    job = Job(outcome.run, completions)

    def serve() -> None:
        job.run()
        _calls.release()
        completions.put(job)

    try:
        threading.Thread(target=serve, name=what, daemon=True).start()
    except RuntimeError:
        _calls.release()
        raise RaidxError(
            f"{what}: no thread could be started",
            action="raise ulimit -v or ulimit -u",
            reason=Reason.SHORTAGE,
        ) from None
    completions.policy.hold()
    arrived = False
    try:
        with trio.move_on_after(limit_s):
            await trio.lowlevel.wait_task_rescheduled(job.abort)
            arrived = True
    finally:
        if not arrived:
            outcome.abandon()
    if not arrived:
        raise _late(what, limit_s)
    (result,) = outcome.take()
    return result


# -- without an event loop -------------------------------------------------------------------------

_without_loop: ContextVar[bool] = ContextVar("raidx_without_loop", default=False)


def run_without_loop(async_fn: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Return what *async_fn* returns, without trio.

    To load it adds a half to the CPU of `raidx scan` and of `raidx status` of an array at rest.

    It may wait for nothing but `in_thread` and local members, whose calls are made one by one, each
    in a thread of its own with the same timeout as in a trio run, and for the pipe to a server of a
    member, which then waits in poll.
    """
    token = _without_loop.set(True)
    steps = async_fn(*args).__await__()
    try:
        next(steps)
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        _without_loop.reset(token)
    raise RuntimeError(f"{async_fn} waits for what only an event loop can give")


def has_no_loop() -> bool:
    """Return whether the caller runs in `run_without_loop`."""
    return _without_loop.get()


async def read_promptly(member: Member, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
    """Fill *buffers* from *member*; raise MemberError if it fails or takes longer than PROMPTLY_S.

    For the start of an array, which has no queues and no watchdog yet. A read that timed out may
    still fill its buffers later: they must not be used again.
    """
    if has_no_loop():  # its members have the limit
        return await member.readv(offset_bytes, buffers)
    with trio.move_on_after(PROMPTLY_S):
        await member.readv(offset_bytes, buffers)
        return
    raise _no_answer(member.path, "read", offset_bytes, PROMPTLY_S)


def _call_without_loop(
    what: str, call: Callable[[], T], limit_s: float, discard: Callable[[T], object]
) -> list[T]:
    """Return [the result of *call*]; [] if it takes longer than *limit_s*. Raises its exception."""
    outcome = _Outcome(call, discard)
    thread = threading.Thread(target=outcome.run, name=what, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        outcome.abandon()
    return outcome.take()
