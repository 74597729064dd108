"""The workers that read the FUSE device: polling, waiting in epoll, or parked (session_loop.py).

Replies are deferred, so that writes of several session loops share one record (group commit). A
session loop of pyfuse3 receives a request, runs its handler and answers. A handler that is held
(journal/group_commit.py) suspends its loop without trio's knowledge, and another loop takes the
next request:

    worker's loop --- held --> held, while an idle loop (or a new one) looks for the next request
    queue empty, HELD_MAX held, a request that wrote nothing, trio to run --> the record is written;
    each held loop continues in turn: it answers, asks for a request, and becomes an idle loop

So here a `HeldHandlers` holds whole session loops.
"""

from __future__ import annotations

import contextlib
import errno
import select
import types
from collections.abc import Callable, Generator
from typing import Any

import trio

from raidx_fuse.journal.group_commit import HELD_MAX, Deferral, Handler, HeldHandlers
from raidx_fuse.loop.busy_poll import BusyPoll

# Multiples of 4. While handlers are suspended, a pass of trio (4 to 10 us) after every 8 requests
# keeps their latency low.
TURNS_MAX = 48
TURNS_MAX_IN_COMPANY = 8
TURN_TIME_MAX_S = 0.001
WORKERS_MAX = 64


class _Step:
    """What a loop yields to its worker instead of to trio."""


SPARE = _Step()  # the loop has answered and is idle
RELEASE = _Step()  # the held loops must continue first


@types.coroutine
def idle() -> Generator[_Step, None, None]:
    """Suspend an idle loop; it returns when the loop must take a request."""
    yield SPARE


@types.coroutine
def release() -> Generator[_Step, None, None]:
    """Return when no loop is held any more."""
    yield RELEASE


class DeferredReplies(HeldHandlers[None]):
    """The held loops and the *idle_loops* of one session.

    *finishing* is true while a loop runs only to answer. *finish* finishes a loop in its own task,
    *resumes* is called before one continues.
    """

    def __init__(
        self, finish: Callable[[Handler], None], resumes: Callable[[], None], deferral: Deferral
    ) -> None:
        super().__init__(lambda loop, _: finish(loop), deferral)
        self.idle_loops: list[Handler] = []
        self.finishing = False
        self._resumes = resumes

    def release_before(self, front: Handler) -> tuple[Handler, Any] | None:
        """Write the records and run each held loop until it is idle.

        If a loop suspends, return that loop with its trap, for trio; *front*, the caller's loop,
        becomes idle. Raises StopIteration when the session is over.
        """
        done = False
        self.finishing = True
        try:
            suspended = self.release()
            done = suspended is None
        finally:
            self.finishing = False
            if not done:
                self.idle_loops.append(front)
        return None if suspended is None else suspended[:2]

    def _step(self, handler: Handler) -> Any:
        self._resumes()
        trap = handler.send(None)
        if trap is not SPARE:
            return trap
        self.idle_loops.append(handler)
        return None

    def finish_step(self, step: Callable[[Any], Any], sent: Any) -> Any:
        """Return the trap of one *step* of a loop that runs only to answer."""
        self.finishing = True
        try:
            return step(sent)
        finally:
            self.finishing = False

    def close(self) -> None:
        """Run the idle loops to their end, which frees their buffers. The session must be over."""
        while self.idle_loops:
            with contextlib.suppress(StopIteration):
                self.idle_loops.pop().send(None)


class SessionWorkers:
    """The workers of one session and their states.

    *device_fd* is the open FUSE device. *start_worker* starts one more worker; *finish* starts a
    task that finishes a held loop. *deferral* tells the journals of the handlers whether replies
    may be deferred.
    *turns* counts the requests taken since trio last ran, *passes* the waits for trio, *suspended*
    the handlers that are waiting now, *workers* the workers that exist.
    """

    def __init__(
        self,
        device_fd: int,
        start_worker: Callable[[], None],
        finish: Callable[[Handler], None],
        busy_poll: BusyPoll,
        deferral: Deferral | None = None,
    ) -> None:
        self.device_fd = device_fd
        self.deferral = deferral or Deferral()
        self.deferred = DeferredReplies(finish, self.held_resumes, self.deferral)
        self.workers = 0
        self._start_worker = start_worker
        self.ended = False
        self.turns = 0
        self.passes = 0
        self.suspended = 0
        self._epoll = select.epoll()
        self._epoll.register(device_fd, select.EPOLLIN)
        self._look = self._epoll.poll
        self._parked: list[trio.lowlevel.Task] = []
        self._watched = False
        self._coming = False
        self._passing = False
        # State of the running worker. *_taken*: it took a request and has not suspended since.
        # *resumed*: it was suspended inside a handler that has not ended yet.
        self._taken = False
        self.resumed = False
        self._left_trio_s = trio.current_time()
        busy_poll.sources.add(device_fd)
        self.busy_poll = busy_poll

    def close(self) -> None:
        self.ended = True
        self.deferred.close()
        self._epoll.close()
        self.busy_poll.cpu_latency.close()

    async def wait(self) -> bool:
        """Return True when a request can be received, False at the end of the session."""
        if self.resumed:
            self.resumed = False
            self.suspended -= 1
        deferred = self.deferred
        if deferred.finishing:
            self._taken = False
            await idle()
            if self.ended:
                return False
        turns = self.turns = self.turns + 1
        wrote = self.deferral.take_wrote()
        if (held := deferred.held) and (len(held) >= HELD_MAX or not wrote):
            await release()
            if self.ended:
                return False
        # trio's clock costs as much as the poll, so only each fourth request reads it.
        if not turns & 3 and (
            turns >= TURNS_MAX
            or (self.suspended > 0 and turns >= TURNS_MAX_IN_COMPANY)
            or trio.current_time() - self._left_trio_s > TURN_TIME_MAX_S
        ):
            if deferred.held:
                await release()
                if self.ended:
                    return False
            self._taken = False
            await self._let_trio_run()
        while not self._look(0, 1):
            # Ask each time: this loop may have been idle meanwhile, and others held since.
            if not deferred.held:
                self._taken = False
                self.deferral.allow(False)
                return await self._wait_for_request()
            await release()
            if self.ended:
                return False
        # The queue was not empty, so more requests may follow, and writes may share a record. Not
        # so after a read, which would be delayed, or while handlers are suspended, which wait for a
        # pass of trio.
        self.deferral.allow(wrote and not self.suspended)
        self._taken = True
        return True

    async def _wait_for_request(self) -> bool:
        while not self.ended:
            if self._watched:
                await self._park()
            elif self._spin():
                self._taken = True
                return True
            else:
                await self._watch()
            if self._look(0, 1):
                self._taken = True
                return True
        return False

    async def _let_trio_run(self) -> None:
        if self._passing:
            # Another worker waits for trio and polls afterwards. If both continued, a pass of trio
            # would cost two turns, and with sixty workers sixty.
            await self._park()
            return
        self._passing = True
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._passing = False
        self._start_turn()

    def _start_turn(self) -> None:
        self.turns = 0
        self.passes += 1
        self._left_trio_s = trio.current_time()

    def _spin(self) -> bool:
        """Poll, unless a handler waits for trio; return whether a request came."""
        return not self.suspended and self.busy_poll.sees(self.device_fd)

    async def _watch(self) -> None:
        self._watched = True
        try:
            await trio.lowlevel.wait_readable(self.device_fd)
        except trio.ClosedResourceError:
            self.end()
        finally:
            self._watched = False
        self._start_turn()

    async def _park(self) -> None:
        """Sleep until this worker becomes the watcher, or until the session ends."""
        task = trio.lowlevel.current_task()
        self._parked.append(task)

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._parked.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._watched = False
        self._start_turn()

    def held_resumes(self) -> None:
        """A held handler continues, in this or another task."""
        self._taken, self.resumed = True, False

    def handler_ends(self) -> None:
        """The handler of the running worker has ended, or was abandoned."""
        if self.resumed:
            self.resumed = False
            self.suspended -= 1
        self._taken = False

    def worker_suspends(self) -> bool:
        """Return whether the running worker suspends inside a handler; if so, ensure a watcher."""
        if self.resumed:
            self.resumed = False
            return True
        if not self._taken:
            return False
        self._taken = False
        self.suspended += 1
        if not self._watched and not self.ended:
            # *_watched* is set before that worker runs, so that a second hand-over wakes no other.
            if self._parked:
                self._watched = True
                trio.lowlevel.reschedule(self._parked.pop())
            elif self.workers < WORKERS_MAX:
                self._watched = self._coming = True
                self._start_worker()
        return True

    def worker_starts(self) -> None:
        """Register a new worker, which polls next."""
        self.workers += 1
        if self._coming:
            self._coming = False
            self._watched = False

    def worker_ends(self) -> None:
        """Unregister a worker. Workers end only with the session, so wake all others.

        Requests of held loops are still answered, whatever ended the worker.
        """
        self.handler_ends()
        self.deferral.allow(False)
        self.deferred.let_go()
        self.end()

    def took_nothing(self, error: OSError) -> bool:
        """Return whether *error* means that the queue was empty when the request was received."""
        return (
            self._taken
            and error.errno == errno.EAGAIN
            and str(error.strerror).startswith("fuse_session_receive_buf")
        )

    def end(self) -> None:
        """Make every `wait` return False; wake the watcher and all parked workers."""
        if self._watched and not self.ended:
            trio.lowlevel.notify_closing(self.device_fd)
        self.ended = True
        while self._parked:
            trio.lowlevel.reschedule(self._parked.pop())
