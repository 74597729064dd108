"""The background tasks of one array: a bug in one of them leads to an orderly end of the array.

A nursery would cancel all of its tasks at the first exception, including tasks for which others
wait, such as the workers of the members. So no exception leaves a task here. Instead:

1. The first exception is kept as *bug*, and the hooks in *on_bug* are called.
2. *scope* is cancelled: the users of the array run inside it.
3. The code that opened the array calls `end`, which flushes and reports the bug.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from math import floor
from typing import Any, Protocol

import trio

from raidx_fuse.errors import RaidxError, Reason

log = logging.getLogger(__name__)

HALT_S = 10.0  # limit for the last flush after a bug
TICK_S = 1.0
LATE_S = 0.5  # a task that wakes up so late was not kept waiting by others: the process was stopped


def tick_after(delay_s: float) -> float:
    """Return about when *delay_s* from now is, in seconds of trio's clock: a whole tick.

    Whoever looks at something now and then waits until such a time. All of them wake together, so
    an idle process wakes at most once in TICK_S. A delay shorter than that is kept as it is.
    """
    now_s = trio.current_time()
    if delay_s < TICK_S:
        return now_s + delay_s
    ticks = max(round((now_s + delay_s) / TICK_S), floor(now_s / TICK_S) + 1)
    return ticks * TICK_S


async def rest(delay_s: float) -> None:
    """Sleep until `tick_after` *delay_s*."""
    await trio.sleep_until(tick_after(delay_s))


def was_stopped(due_s: float) -> bool:
    """Return whether the process was stopped when a task was to wake up, at *due_s*.

    By SIGSTOP, a debugger, a frozen container: nobody could answer meanwhile, or nobody could see
    it, so that no limit of a time can have passed.
    """
    return trio.current_time() - due_s > LATE_S


async def ends_within(limit_s: float, wait: Callable[[], Awaitable[None]]) -> bool:
    """Return whether *wait* ends within *limit_s*; it may be cancelled and called again.

    A time in which the process was stopped does not count.
    """
    quarters = 4
    while quarters:
        with trio.move_on_after(limit_s / 4) as quarter:
            await wait()
            return True
        quarters -= not was_stopped(quarter.deadline)
    return False


class Starter(Protocol):
    """An object that can start tasks: a nursery, or `Tasks`."""

    def start_soon(self, async_fn: Callable[..., Awaitable[Any]], /, *args: Any) -> None: ...


class Tasks:
    """The background tasks in *nursery*.

    *bug* is the first exception that ended a task. The functions in *on_bug* are called
    immediately after each such exception, because the state of the array is no longer reliable.
    *scope* is cancelled then.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.scope = trio.CancelScope()
        self.bug: Exception | None = None
        self.on_bug: list[Callable[[], None]] = []
        self._nursery = nursery

    def start_soon(self, async_fn: Callable[..., Awaitable[Any]], /, *args: Any) -> None:
        self._nursery.start_soon(self._run, async_fn, args)

    async def _run(self, async_fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        try:
            await async_fn(*args)
        except Exception as error:
            log.critical("bug: a task of the array failed; it is closed", exc_info=True)
            if self.bug is None:
                self.bug = error
            for hook in self.on_bug:
                hook()
            self.scope.cancel()

    async def end(
        self,
        close: Callable[[], Awaitable[None]],
        flush: Callable[[], Awaitable[None]],
        abandon: Callable[[], None],
    ) -> None:
        """Call *close*; after a bug only call *flush*, to make acknowledged writes durable.

        *abandon* ends all waiting for operations that will not complete any more. After a bug it is
        called at the latest after HALT_S seconds. Raises RaidxError after a bug.
        """

        async def abandon_later() -> None:
            await trio.sleep(HALT_S)
            abandon()

        try:
            if self.bug is None:
                self.on_bug.append(abandon)
                await close()
            else:
                self.start_soon(abandon_later)
                await flush()
        except RaidxError as error:
            log.error("the array could not be closed cleanly: %s", error)
        finally:
            abandon()
        if self.bug is not None:
            raise RaidxError(
                f"a bug ended the array ({self.bug!r}): it was not closed as clean",
                action="see the log; what was flushed is there at the next mount",
                reason=Reason.BUG,
            )
