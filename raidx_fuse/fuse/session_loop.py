"""The session loop: poll first, park only when the queue is empty. This makes pyfuse3 fast.

pyfuse3's session loop awaits `_wait_fuse_readable` before each request. The stock function takes a
``trio.Lock`` and a ``wait_readable``: 70 of the 90 us of CPU time of a 4 KiB request. A busy disk
needs neither, since the next request is already in the queue. Here a worker polls instead (0.3 us):

    worker asks for a request
        |-- requests in the queue? ------- yes --> take one (no await, so no lock is needed)
        `-- no: is there a watcher? ------ yes --> park
                                     `---- no ---> busy-poll for 50 us, if that paid lately; then
                                                   become the watcher: trio's wait_readable

The *watcher* is the only worker that sleeps on the device; loop/busy_poll.py says when it pays to
poll before. The laws:

1. No await comes between the poll and the receive, so that the request seen is the one received.
2. **Hand-over.** If a worker's handler suspends, no worker would read the queue. `_drive` steps the
   whole session loop as one generator, so it notices each suspension (at no cost otherwise). Then a
   parked worker becomes the watcher, or a new worker is started. Without that, 16 readers of a slow
   disk fall to the speed of one. The number of workers is one more than the largest number of
   handlers ever suspended together; each worker holds a receive buffer of 1 MiB.
3. **Checkpoint.** Handlers that never suspend starve trio: timers, rebuild and the control socket.
   After `TURNS_MAX` requests or `TURN_TIME_MAX_S` the worker lets trio run once, and after 8
   requests while other handlers are suspended, because their answers wait for that.
4. **Wake-up.** The worker that sees the end (unmount, `terminate`) wakes every parked worker;
   otherwise ``pyfuse3.main()`` would never return.

Another difference from stock: the device is non-blocking. A request can leave the queue after the
poll (its caller was killed); a blocking receive would then stop the daemon until the next request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import pyfuse3
import trio

from raidx_fuse.fuse.workers import RELEASE, SPARE, SessionWorkers
from raidx_fuse.journal.group_commit import CommitBatch, Deferral, Handler, pass_on
from raidx_fuse.loop.busy_poll import BusyPoll, CpuLatencyRequest, Sources

log = logging.getLogger(__name__)

# Versions whose source was checked: the loop looks both names up in its module on each turn.
VERSIONS_KNOWN = ((3, 4), (3, 5))

_REPLACED = ("_wait_fuse_readable", "_session_loop", "terminate")

_SessionLoop = Callable[[trio.Nursery, int, int], Coroutine[Any, Any, None]]


@types.coroutine
def _drive(
    start: Callable[[], Coroutine[Any, Any, None]], workers: SessionWorkers
) -> Generator[Any, Any, None]:
    """Step one session loop for trio and tell *workers* of each suspension.

    While loops are held it runs several loops in turn (workers.py).
    """
    deferred = workers.deferred
    idle_loops = deferred.idle_loops
    loop = idle_loops.pop() if idle_loops else start()
    step: Callable[[Any], Any] = loop.send
    sent: Any = None
    in_handler = False
    while True:
        workers.resumed = in_handler
        try:
            trap = step(sent)
            while True:
                if trap.__class__ is CommitBatch:
                    deferred.hold(loop, trap, None)
                    loop = idle_loops.pop() if idle_loops else start()
                elif trap is RELEASE:
                    suspended = deferred.release_before(loop)
                    if suspended is not None:
                        loop, trap = suspended
                        break
                else:
                    break
                trap = loop.send(None)
        except StopIteration:
            return
        except OSError as error:
            if not workers.took_nothing(error):
                raise
            # pyfuse3 leaks its receive buffer (1 MiB, one page touched) on this path.
            log.debug("a request was withdrawn between poll and receive")
            loop = start()
            step, sent, in_handler = loop.send, None, False
            continue
        workers.deferral.allow(False)
        if deferred.held:
            deferred.let_go()
        in_handler = workers.worker_suspends()
        step, sent = yield from pass_on(loop, trap)


async def _finish(loop: Handler, workers: SessionWorkers) -> None:
    """Run a loop that was held until it has answered; then it becomes an idle loop."""
    await _drive_held(loop, workers)


@types.coroutine
def _drive_held(loop: Handler, workers: SessionWorkers) -> Generator[Any, Any, None]:
    deferred = workers.deferred
    step: Callable[[Any], Any] = loop.send
    sent: Any = None
    workers.held_resumes()
    try:
        while True:
            try:
                trap = deferred.finish_step(step, sent)
            except StopIteration:
                workers.end()
                return
            if trap is SPARE:
                deferred.idle_loops.append(loop)
                return
            workers.worker_suspends()
            step, sent = yield from pass_on(loop, trap)
            workers.resumed = True
    finally:
        workers.handler_ends()


def reason_against() -> str | None:
    """Return why this pyfuse3 must run its stock loop; None if the poll-first loop fits it."""
    found = re.match(r"(\d+)\.(\d+)", str(getattr(pyfuse3, "__version__", "")))
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if not VERSIONS_KNOWN[0] <= version <= VERSIONS_KNOWN[1]:
        return f"pyfuse3 {getattr(pyfuse3, '__version__', '?')} is not a version that was checked"
    for name in ("_wait_fuse_readable", "_session_loop", "terminate", "main"):
        if not callable(getattr(pyfuse3, name, None)):
            return f"pyfuse3 has no {name}"
    if not hasattr(select, "epoll"):
        return "this system has no epoll"
    return None


@contextlib.contextmanager
def installed(
    device_fd: int, deferral: Deferral | None = None, sources: Sources | None = None
) -> Iterator[SessionWorkers | None]:
    """Make ``pyfuse3.main()`` poll first inside this context; yield None where it cannot.

    *device_fd* is the FUSE device that ``pyfuse3.init`` opened, *deferral* that of the journals,
    *sources* those of all front ends. Call inside trio.
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

    def start(task: Callable[..., Awaitable[None]], *args: Any) -> None:
        assert nursery_of_main is not None  # set by the first worker
        nursery_of_main.start_soon(task, *args)

    async def session_loop(nursery: trio.Nursery, min_tasks: int, max_tasks: int) -> None:
        nonlocal nursery_of_main
        nursery_of_main = nursery
        workers.worker_starts()
        try:
            # Give it a limit of 0 further tasks: the stock loop would start one with each request.
            await _drive(lambda: stock_loop(nursery, 0, 0), workers)
        finally:
            workers.worker_ends()

    workers = SessionWorkers(
        device_fd,
        lambda: start(session_loop, nursery_of_main, 0, 0),
        lambda loop: start(_finish, loop, workers),
        BusyPoll(sources or Sources(), CpuLatencyRequest(start)),
        deferral,
    )

    def terminate() -> None:
        workers.end()
        stock["terminate"]()

    try:
        for name, replacement in zip(
            _REPLACED, (workers.wait, session_loop, terminate), strict=True
        ):
            setattr(module, name, replacement)
        yield workers
    finally:
        for name, original in stock.items():
            setattr(module, name, original)
        workers.close()
