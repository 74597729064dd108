"""Handlers that may be held, for the tests of fuse/workers.py, and checks of them.

A handler here gathers its request as the journal would. Whatever the test, three things are
watched: no other task ever runs while a loop is held or `DEFERRAL` is open; nobody looks on while
one is held; nothing is left at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import trio

from raidx_fuse.fuse import workers as session_workers
from raidx_fuse.journal.group_commit import CommitBatch, held
from tests.fuse.pipe_model import DEFERRAL, Model, model, until

Handle = Callable[[int], Coroutine[Any, Any, None]]


class Log:
    """Gathers requests; *records* are those written, each a list of requests.

    While *lates* is not empty, each record takes one from it: True means that no member takes it
    at once, so that its handlers wait for `come`.
    """

    def __init__(self) -> None:
        self.records: list[list[int]] = []
        self.alone: list[int] = []  # that were not to be held
        self.lates: list[bool] = []
        self.broken = False
        self._gathering: CommitBatch | None = None
        self._requests: list[int] = []
        self._over: list[trio.Event] = []

    async def write(self, request: int) -> None:
        """Write *request*, in the next record if handlers are held."""
        DEFERRAL.wrote = True
        if not DEFERRAL.holds:
            self.write_batch()
            self.alone.append(request)
            return
        batch = self._gathering
        if batch is None:
            batch = self._gathering = CommitBatch(self.write_batch, len(self.records), 0)
        self._requests.append(request)
        await held(batch)
        assert batch.written
        if batch.over is not None:
            await batch.over.wait()

    def write_batch(self) -> None:
        if self._gathering is None:
            return
        batch, self._gathering = self._gathering, None
        batch.written = True
        requests, self._requests = self._requests, []
        if self.broken:
            raise ZeroDivisionError("a record that cannot be made")
        self.records.append(requests)
        if self.lates and self.lates.pop(0):
            batch.over = trio.Event()
            self._over.append(batch.over)

    def come(self) -> None:
        """Let the late records be written."""
        while self._over:
            self._over.pop(0).set()


class Watch(trio.abc.Instrument):
    """Looks at *made* before each step of any task."""

    def __init__(self, made: Model) -> None:
        self.made = made
        self.wrong: set[str] = set()
        spin = made.readers._spin

        def watched() -> bool:
            if made.readers.deferred.held:
                self.wrong.add("a worker looks on while loops are held")
            return spin()

        made.readers._spin = watched  # type: ignore[method-assign]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Note what a task must never find."""
        if DEFERRAL.holds:
            self.wrong.add(f"handlers are held while {task.name} runs")
        if self.made.readers.deferred.held:
            self.wrong.add(f"loops are held while {task.name} runs")
        if self.made.readers.deferred.finishing:
            self.wrong.add(f"a loop is taken for a settling one while {task.name} runs")


@asynccontextmanager
async def run_watched(handle: Handle, workers: int = 1, wrote: bool = True) -> AsyncIterator[Model]:
    """Yield a model with *workers* workers; then end them. Nothing may be left.

    *wrote*: as if another write had just ended, so that the first one is held already.
    """
    # A busy machine may stop us for longer than a turn: only the number of requests ends one here.
    with patch.object(session_workers, "TURN_TIME_MAX_S", 20.0):
        with model(handle) as made, trio.fail_after(20):
            watch = Watch(made)
            DEFERRAL.wrote = wrote
            trio.lowlevel.add_instrument(watch)
            try:
                async with trio.open_nursery() as nursery:
                    made.nursery = nursery
                    for _ in range(workers):
                        nursery.start_soon(made.work)
                    yield made
                    made.terminate()
            finally:
                trio.lowlevel.remove_instrument(watch)
                assert not watch.wrong
                assert made.readers.suspended == 0
        assert made.buffers == 0
        assert not made.readers.deferred.idle_loops


async def ask_and_wait(made: Model, *requests: int) -> None:
    """Ask all at once, and wait for the answers."""
    made.ask(*requests)
    await until(lambda: len(made.done) == len(requests))
