"""A model of the FUSE session: a pipe is the device, a byte in it a request.

The workers, their session loops and the tasks that finish held ones are made as `installed` in
fuse/session_loop.py makes them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio

from raidx_fuse.fuse import session_loop
from raidx_fuse.fuse.workers import SessionWorkers
from raidx_fuse.journal.group_commit import Deferral, Handler
from raidx_fuse.loop.busy_poll import BusyPoll, CpuLatencyRequest, Sources

DEFERRAL = Deferral()  # of all models: one runs at a time


class Model:
    """Session loops on a pipe; *handle* is what each request runs, *done* those answered, in order.

    *buffers* counts the loops that have not come to their end: pyfuse3 frees its memory only there.
    """

    def __init__(self, handle: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        busy_poll = BusyPoll(Sources(), CpuLatencyRequest(lambda _: None, os.devnull))
        self.readers = SessionWorkers(
            self.reading, self._start_worker, self._finish, busy_poll, DEFERRAL
        )
        self.handle = handle
        self.done: list[int] = []
        self.ended = 0
        self.exited = False  # what libfuse says of the session
        self.buffers = 0
        self.nursery: trio.Nursery | None = None

    def ask(self, *requests: int) -> None:
        """Queue requests, numbers 0 to 255."""
        os.write(self.writing, bytes(requests))

    def unmount(self) -> None:
        """End the session behind what is queued, as the kernel does."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def terminate(self) -> None:
        """End the session, as `pyfuse3.terminate` does."""
        self.exited = True
        self.readers.end()

    def _start_worker(self) -> None:
        assert self.nursery is not None
        self.nursery.start_soon(self.work)

    def _finish(self, loop: Handler) -> None:
        assert self.nursery is not None
        self.nursery.start_soon(session_loop._finish, loop, self.readers)

    async def _loop(self) -> None:
        self.buffers += 1
        while not self.exited and await self.readers.wait():
            try:
                received = os.read(self.reading, 1)
            except BlockingIOError as error:
                raise OSError(error.errno, "fuse_session_receive_buf failed with EAGAIN") from None
            if not received:
                self.exited = True
                break
            await self.handle(received[0])
            self.done.append(received[0])
        self.buffers -= 1

    async def work(self) -> None:
        """Be one worker, as `poll_first.installed` makes it."""
        self.readers.worker_starts()
        try:
            await session_loop._drive(self._loop, self.readers)
        finally:
            self.readers.worker_ends()
            self.ended += 1

    def close(self) -> None:
        self.readers.close()
        os.close(self.reading)
        self.unmount()


@contextmanager
def model(handle: Callable[[int], Coroutine[Any, Any, None]]) -> Iterator[Model]:
    """Make a model; close it at the end."""
    made = Model(handle)
    try:
        yield made
    finally:
        made.close()


@asynccontextmanager
async def run_model(
    handle: Callable[[int], Coroutine[Any, Any, None]], workers: int
) -> AsyncIterator[Model]:
    """Yield a model with *workers* workers; then end them."""
    with model(handle) as made, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            made.nursery = nursery
            for _ in range(workers):
                nursery.start_soon(made.work)
            yield made
            made.readers.end()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition is of another module, with no event
        await trio.sleep(0.001)
