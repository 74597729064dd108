"""The background tasks of one array: one that meets a bug ends the array in order.

A nursery would cancel all of its tasks at the first exception, and among them those that the others
wait for: members' workers, for instance. So nothing leaves a task here. The bug is kept, *scope* is
cancelled, in which whoever uses the array works, and who opened the array closes it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from raidx_fuse.errors import RaidxError

log = logging.getLogger(__name__)

HALT_S = 10.0  # that a last flush may take after a bug


class Starter(Protocol):
    """What can start tasks: a nursery, or `Tasks`."""

    def start_soon(self, async_fn: Callable[..., Awaitable[Any]], /, *args: Any) -> None:
        """Start *async_fn* with *args*."""


class Tasks:
    """Tasks in *nursery*. *bug* is the first exception that one ended with.

    *on_bug* is called then, at once: from there on nothing may be taken for granted.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.scope = trio.CancelScope()
        self.bug: Exception | None = None
        self.on_bug: list[Callable[[], None]] = []
        self._nursery = nursery

    def start_soon(self, async_fn: Callable[..., Awaitable[Any]], /, *args: Any) -> None:
        """Start *async_fn* with *args*."""
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
        """Close the array; after a bug make durable what was acknowledged, and nothing else.

        *abandon* lets nobody wait for what will not come any more. Raises RaidxError after a bug.
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
            )
