"""Stripe locks: writes to one stripe in order, different stripes in parallel.

Who takes: every write, every degraded read, and each window of a background job; each takes all
its stripes in ascending order, which rules out deadlock. Who does not: reads of healthy cells.
A free lock is one dict insertion (0.1 us): a request that never suspends pays no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import trio


class StripeLocks:
    """Locks by stripe number; waiters are served in order of arrival."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: dict[int, deque[trio.lowlevel.Task] | None] = {}

    async def acquire(self, stripe: int) -> None:
        """Take the lock of *stripe*, suspending only if someone holds it."""
        if stripe not in self.held:
            self.held[stripe] = None
            return
        waiters = self.held[stripe]
        if waiters is None:
            waiters = self.held[stripe] = deque()
        task = trio.lowlevel.current_task()
        waiters.append(task)

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            waiters.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)  # the holder hands the lock over

    def release(self, stripe: int) -> None:
        """Give the lock to the next waiter, or free it."""
        waiters = self.held[stripe]
        if waiters:
            trio.lowlevel.reschedule(waiters.popleft())
        else:
            del self.held[stripe]

    async def acquire_all(self, stripes: Iterable[int]) -> list[int]:
        """Take the locks of *stripes* (ascending) and return them as a list."""
        wanted = list(stripes)
        if self.held.keys().isdisjoint(wanted):
            self.held.update(dict.fromkeys(wanted))
            return wanted
        taken: list[int] = []
        try:
            for stripe in wanted:
                await self.acquire(stripe)
                taken.append(stripe)
        except BaseException:
            self.release_all(taken)
            raise
        return taken

    def release_all(self, stripes: Iterable[int]) -> None:
        """Release every lock of *stripes*."""
        for stripe in stripes:
            self.release(stripe)
