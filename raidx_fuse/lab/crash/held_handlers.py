"""Requests handled as by the session loop (fuse/session_loop.py), some held for a commit batch.

Handlers run one after the other without suspending (journal/group_commit.py):

    stretch   [ handler: held | handler: held | handler: done | handler: suspends ]
    then      the batch's record is written; held handlers go on; the suspended one keeps the task

A task can wait for only one trap of trio. Therefore:

- the handler that suspends keeps the running task;
- handlers that are held then, or whose record is written late, continue in tasks of their own;
- the handlers that have not begun yet run as a new stretch in another task.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

import trio

from raidx_fuse.journal.group_commit import CommitBatch, Deferral

Handler = Coroutine[Any, Any, None]


async def through_door(handlers: Sequence[Handler], deferral: Deferral) -> None:
    """Run *handlers*, in order, to their ends; *deferral* is that of their journal.

    Raises their exceptions in an ExceptionGroup.
    """
    waiting = list(handlers)
    try:
        async with trio.open_nursery() as nursery:
            await _stretch(waiting, nursery, deferral)
    finally:
        for handler in waiting:  # a failure came first
            handler.close()


async def _stretch(waiting: list[Handler], nursery: trio.Nursery, deferral: Deferral) -> None:
    """Step each of *waiting* until it is held or done, and remove it from the list."""
    held: list[tuple[Handler, CommitBatch]] = []
    suspended: tuple[Handler, Any] | None = None
    try:
        while waiting and suspended is None:
            handler = waiting.pop(0)
            deferral.allow(True)
            try:
                trap = handler.send(None)
            except StopIteration:
                continue
            finally:
                deferral.allow(False)
            if isinstance(trap, CommitBatch):
                held.append((handler, trap))
            else:
                suspended = handler, trap
    finally:
        for _, batch in held:
            if not batch.written:
                batch.write()
        while held:
            handler, batch = held.pop(0)
            if batch.over is not None or suspended is not None:
                nursery.start_soon(go_on_held, handler)
                continue
            with contextlib.suppress(StopIteration):
                suspended = handler, handler.send(None)
    if waiting:
        nursery.start_soon(_stretch, waiting, nursery, deferral)
    if suspended is not None:
        await _adopt(*suspended)


async def go_on_held(handler: Handler) -> None:
    """Run *handler*, which was held for a commit batch, to its end."""
    await _go_on(handler)


@types.coroutine
def _go_on(handler: Handler) -> Generator[Any, Any, None]:
    yield from handler


@types.coroutine
def _adopt(handler: Handler, trap: Any) -> Generator[Any, Any, None]:
    """Run *handler*, which suspended with *trap*, to its end in this task."""
    step: Callable[[Any], Any]
    while True:
        try:
            sent = yield trap
            step = handler.send
        except BaseException as error:
            sent = error
            step = handler.throw
        try:
            trap = step(sent)
        except StopIteration:
            return
