"""Poll first, park only when the queue is empty: the reader wait that makes pyfuse3 fast.

pyfuse3's session loop asks `_wait_fuse_readable` before each request. The stock answer takes a
``trio.Lock`` and a ``wait_readable``: 70 of the 90 us of CPU that a 4 KiB request costs. A busy
disk needs neither, since the next request is already in the queue. So here a worker looks (0.3 us):

    worker comes back for work
        |-- requests in the queue? ------- yes --> take one (nothing suspends: no lock is needed)
        `-- no: is there a watcher? ------ yes --> park
                                     `---- no ---> look on for 50 us, if that paid lately; then
                                                   become the watcher: trio's wait_readable

*Watcher* is the one worker that sleeps on the device. A caller that waits for each answer needs
5 to 20 us to ask again, where sleeping and waking cost 30; so looking on doubles its speed if it
runs on another processor, and awake.py doubles it again. Where it does not pay (a slow caller, no
free processor) the pauses between two attempts double. The law of this file:

1. Between the look and the receive nothing suspends, so what was seen is what is received.
2. **Hand-over.** A worker whose handler suspends leaves nobody to read the queue. `_drive` steps
   the whole session loop as one generator, so it sees each suspension (and costs nothing while
   there is none); a parked worker is then appointed watcher, or a new one started. Without that
   16 readers of a slow disk fall to the speed of one. There are as many workers as handlers were
   ever suspended at once, and one: each holds a receive buffer of 1 MiB.
3. **Checkpoint.** Handlers that never suspend starve trio: timers, rebuild and the control socket.
   After `TURNS_MAX` requests or `TURN_TIME_MAX_S` the worker lets trio run once, and after 8 while
   handlers of other requests are suspended, because their answers wait for that.
4. **Wake-up.** Whoever sees the end (unmount, `terminate`) wakes every parked worker; otherwise
   ``pyfuse3.main()`` would never return.

One more thing differs from stock: the device is non-blocking. A request can leave the queue after
the look (its caller was killed); a blocking receive would then stop the daemon until the next one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import select
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import pyfuse3
import trio

from raidx_fuse.awake import Awake

log = logging.getLogger(__name__)

# The sources of these versions were read: the loop looks both names up in its module on each turn.
VERSIONS_KNOWN = ((3, 3), (3, 5))
# Multiples of 4. With suspended handlers about, a pass of trio (4 to 10 us) after each 8 requests
# buys their latency.
TURNS_MAX = 48
TURNS_MAX_IN_COMPANY = 8
TURN_TIME_MAX_S = 0.001
WORKERS_MAX = 64
SPIN_LOOKS = 150  # 50 us
SPIN_PAUSE_MAX = 255

_REPLACED = ("_wait_fuse_readable", "_session_loop", "terminate")

_SessionLoop = Callable[[trio.Nursery, int, int], Coroutine[Any, Any, None]]


class Readers:
    """The workers of one session: who looks, who watches, who is parked.

    *device_fd* is the open FUSE device; *start_worker* starts one more worker; *awake*, if set,
    hears whether looking on pays. *turns* counts requests taken since trio last ran, *passes* the
    waits for trio, *suspended* the handlers now waiting for something, *workers* those there are.
    """

    def __init__(self, device_fd: int, start_worker: Callable[[], None]) -> None:
        self.device_fd = device_fd
        self.awake: Awake | None = None
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
        # Of the worker that runs now: it took a request and has not suspended since; it came out
        # of a suspension inside a handler that has not ended yet.
        self._taken = False
        self._resumed = False
        self._left_trio_s = trio.current_time()
        # Empty queues to go by without looking on; how many it will be after the next failure.
        self._spin_pause = 0
        self._spin_backoff = 0
        self._spin_allowed = len(os.sched_getaffinity(0)) > 1

    def close(self) -> None:
        self._epoll.close()
        if self.awake is not None:
            self.awake.close()

    async def wait(self) -> bool:
        """Return True when a request can be received, False at the end of the session."""
        if self._resumed:
            self._resumed = False
            self.suspended -= 1
        turns = self.turns = self.turns + 1
        # trio's clock costs as much as the look, so only each fourth request asks it.
        if not turns & 3 and self._turn_is_over():
            self._taken = False
            await self._let_trio_run()
        if self._look(0, 1):
            self._taken = True
            return True
        self._taken = False
        return await self._wait_for_request()

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

    def _turn_is_over(self) -> bool:
        return (
            self.turns >= TURNS_MAX
            or (self.suspended > 0 and self.turns >= TURNS_MAX_IN_COMPANY)
            or trio.current_time() - self._left_trio_s > TURN_TIME_MAX_S
        )

    async def _let_trio_run(self) -> None:
        if self._passing:
            # Another worker waits for trio and will look then. Were both to go on, a pass of trio
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
        """Look on for a while, if it may pay; say whether a request came."""
        if not self._spin_allowed or self.suspended:
            return False
        if self._spin_pause:
            self._spin_pause -= 1
            return False
        look = self._look
        for _ in range(SPIN_LOOKS):
            if look(0, 1):
                self._spin_backoff >>= 1
                if self.awake is not None:
                    self.awake.hit()
                return True
        if self.awake is not None:
            self.awake.miss()
        self._spin_backoff = min(2 * self._spin_backoff + 1, SPIN_PAUSE_MAX)
        self._spin_pause = self._spin_backoff
        return False

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
        """Sleep until appointed watcher or until the end."""
        task = trio.lowlevel.current_task()
        self._parked.append(task)

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._parked.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._watched = False
        self._start_turn()

    def worker_resumes(self, in_handler: bool) -> None:
        """Note that a worker runs on, after a suspension inside a handler or not."""
        self._resumed = in_handler

    def worker_suspends(self) -> bool:
        """Say whether the running worker suspends inside a handler; if so see to a watcher."""
        if self._resumed:
            self._resumed = False
            return True
        if not self._taken:
            return False
        self._taken = False
        self.suspended += 1
        if not self._watched and not self.ended:
            # *_watched* is set before that worker runs: a second hand-over need not wake another.
            if self._parked:
                self._watched = True
                trio.lowlevel.reschedule(self._parked.pop())
            elif self.workers < WORKERS_MAX:
                self._watched = self._coming = True
                self._start_worker()
        return True

    def worker_starts(self) -> None:
        """Note a new worker; it looks next."""
        self.workers += 1
        if self._coming:
            self._coming = False
            self._watched = False

    def worker_ends(self) -> None:
        """Note the end of a worker: workers end only with the session, so wake all others."""
        if self._resumed:
            self._resumed = False
            self.suspended -= 1
        self._taken = False
        self.end()

    def took_nothing(self, error: OSError) -> bool:
        """Say whether *error* is the receive finding the queue empty after the look."""
        return (
            self._taken
            and error.errno == errno.EAGAIN
            and str(error.strerror).startswith("fuse_session_receive_buf")
        )

    def end(self) -> None:
        """Make each `wait` say False; wake the watcher and whoever is parked."""
        if self._watched and not self.ended:
            trio.lowlevel.notify_closing(self.device_fd)
        self.ended = True
        while self._parked:
            trio.lowlevel.reschedule(self._parked.pop())


@types.coroutine
def _drive(
    start: Callable[[], Coroutine[Any, Any, None]], readers: Readers
) -> Generator[Any, Any, None]:
    """Run one session loop for trio step by step, telling *readers* of each suspension."""
    loop = start()
    step: Callable[[Any], Any] = loop.send
    sent: Any = None
    in_handler = False
    while True:
        readers.worker_resumes(in_handler)
        try:
            trap = step(sent)
        except StopIteration:
            return
        except OSError as error:
            if not readers.took_nothing(error):
                raise
            # pyfuse3 cannot free its receive buffer (1 MiB, one page touched) on this way out.
            log.debug("a request was withdrawn between the look and the receive")
            loop = start()
            step, sent, in_handler = loop.send, None, False
            continue
        in_handler = readers.worker_suspends()
        try:
            sent = yield trap
            step = loop.send
        except BaseException as error:
            sent = error
            step = loop.throw


def reason_against() -> str | None:
    """Say why this pyfuse3 must run its stock loop; None if poll-first fits it."""
    found = re.match(r"(\d+)\.(\d+)", str(getattr(pyfuse3, "__version__", "")))
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if not VERSIONS_KNOWN[0] <= version <= VERSIONS_KNOWN[1]:
        return f"pyfuse3 {getattr(pyfuse3, '__version__', '?')} is not a version known to fit"
    for name in ("_wait_fuse_readable", "_session_loop", "terminate", "main"):
        if not callable(getattr(pyfuse3, name, None)):
            return f"pyfuse3 has no {name}"
    if not hasattr(select, "epoll"):
        return "this system has no epoll"
    return None


@contextlib.contextmanager
def installed(device_fd: int) -> Iterator[Readers | None]:
    """Let ``pyfuse3.main()`` wait poll-first inside this context; yield None where it cannot.

    *device_fd* is the FUSE device that ``pyfuse3.init`` opened. Call inside trio.
    """
    reason = reason_against()
    if reason is not None:
        log.warning("using pyfuse3's stock loop, about four times slower: %s", reason)
        yield None
        return
    module: Any = pyfuse3
    stock_loop: _SessionLoop = module._session_loop
    stock = {name: getattr(module, name) for name in _REPLACED}
    os.set_blocking(device_fd, False)
    nursery_of_main: trio.Nursery | None = None

    def start_worker() -> None:
        assert nursery_of_main is not None  # the first worker, which calls this, has set it
        nursery_of_main.start_soon(session_loop, nursery_of_main, 0, 0)

    async def session_loop(nursery: trio.Nursery, min_tasks: int, max_tasks: int) -> None:
        nonlocal nursery_of_main
        nursery_of_main = nursery
        readers.worker_starts()
        try:
            # No more tasks than there are: the stock loop would start one with each request.
            await _drive(lambda: stock_loop(nursery, 0, 0), readers)
        finally:
            readers.worker_ends()

    def start_task(task: Callable[[], Awaitable[None]]) -> None:
        assert nursery_of_main is not None
        nursery_of_main.start_soon(task)

    readers = Readers(device_fd, start_worker)
    readers.awake = Awake(start_task)

    def terminate() -> None:
        readers.end()
        stock["terminate"]()

    try:
        for name, replacement in zip(
            _REPLACED, (readers.wait, session_loop, terminate), strict=True
        ):
            setattr(module, name, replacement)
        yield readers
    finally:
        for name, original in stock.items():
            setattr(module, name, original)
        readers.close()
