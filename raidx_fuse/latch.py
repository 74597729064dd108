"""One sleep for any number of operations on members (queues.py)."""

from __future__ import annotations

from typing import Any

import trio


class Latch:
    """Wakes one task when a known number of operations has ended."""

    __slots__ = ("pending", "task")

    def __init__(self) -> None:
        self.pending = 0
        self.task: trio.lowlevel.Task | None = None

    def done(self) -> None:
        """Count one operation as ended."""
        self.pending -= 1
        if not self.pending and self.task is not None:
            task, self.task = self.task, None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Sleep until nothing is pending; not cancellable, see the laws of queues.py."""
        if self.pending:
            self.task = trio.lowlevel.current_task()

            def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
                return trio.lowlevel.Abort.FAILED

            await trio.lowlevel.wait_task_rescheduled(abort)
