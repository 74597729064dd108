"""Drive a load against anything with ``read`` and ``write``: an array, a mounted image.

    recorder = Recorder()
    await drive(array, load, recorder)               # open loop: each request when it is due
    await drive(array, load, recorder, depth=16)     # as fast as possible, 16 at a time
    recorder.summary()["response_ms"]["mean"]

The papers replay traces in an open loop ("all traces are re-played according to their time stamps",
UPC section 4.2): arrivals do not wait for answers, so a slow array shows its queues. Time is trio's
clock: virtual for modelled members, real for a mount. With a `Content`, writes carry content that
later reads are compared with; `read_back` compares everything once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Protocol

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.lab.loads.record import Recorder
from raidx_fuse.lab.loads.request import Load, Request, requests_of
from raidx_fuse.lab.loads.verify import Content
from raidx_fuse.members.simulated.virtual_time import sleep_until
from raidx_fuse.store.buffers import ZERO_BYTES, ZEROS

OUTSTANDING_MAX = 20_000
READ_BACK_BYTES = 256 << 10


Perform = Callable[[Request, float], Awaitable[None]]


class Target(Protocol):
    """The target of a load. Both functions raise RaidxError; ranges lie inside the target."""

    @property
    def read(self) -> Callable[[int, int], Awaitable[Any]]:
        """Read (offset_bytes, length_bytes); returns the bytes, valid until the next await."""
        ...

    @property
    def write(self) -> Callable[[int, Any], Awaitable[None]]:
        """Write (offset_bytes, data)."""
        ...


async def drive(
    target: Target,
    load: Load,
    recorder: Recorder,
    *,
    depth: int | None = None,
    outstanding_max: int = OUTSTANDING_MAX,
    content: Content | None = None,
) -> None:
    """Send every request of *load* to *target* and return when all have ended.

    With *depth*, so many requests are under way at a time, as fast as they are answered. Without
    it, each request is sent at its time, with at most *outstanding_max* under way: later requests
    are held back and counted in *recorder.held_back*, and their response times include the wait.
    Requests that fail are counted, not raised.
    """
    start_s = trio.current_time()
    perform = partial(_perform, target, recorder, content, start_s)
    if depth is not None:
        waiting = requests_of(load)
        async with trio.open_nursery() as nursery:
            for _ in range(depth):
                nursery.start_soon(_serve, perform, waiting)
        return
    room = trio.Semaphore(outstanding_max)
    async with trio.open_nursery() as nursery:
        for request in requests_of(load):
            due_s = start_s + request.at_s
            if due_s > trio.current_time():
                await sleep_until(due_s)
            try:
                room.acquire_nowait()
            except trio.WouldBlock:
                recorder.count_held_back()
                await room.acquire()
            nursery.start_soon(_one, perform, request, due_s, room)


async def _one(perform: Perform, request: Request, due_s: float, room: trio.Semaphore) -> None:
    await perform(request, due_s)
    room.release()


async def _serve(perform: Perform, waiting: Iterator[Request]) -> None:
    for request in waiting:
        await perform(request, trio.current_time())


async def _perform(
    target: Target,
    recorder: Recorder,
    content: Content | None,
    start_s: float,
    request: Request,
    due_s: float,
) -> None:
    _, is_write, offset, length = request
    try:
        if content is not None:
            await _checked(target, content, request)
        elif is_write:
            data = ZEROS[:length] if length <= ZERO_BYTES else bytes(length)
            await target.write(offset, data)
        else:
            await target.read(offset, length)
    except RaidxError as error:
        recorder.fail(str(error))
        return
    recorder.add(due_s - start_s, trio.current_time() - due_s, is_write, length)


async def _checked(target: Target, content: Content, request: Request) -> None:
    """Perform *request* with content that can be checked. Raises what *target* raises."""
    _, is_write, offset, length = request
    if not is_write:
        ticket = content.read(offset, length)
        content.judge(ticket, await target.read(offset, length))
        return
    ticket, data = content.write(offset, length)
    acknowledged = False
    try:
        await target.write(offset, data)
        acknowledged = True
    finally:
        content.written(ticket, acknowledged)


async def read_back(target: Target, content: Content) -> None:
    """Read and check all acknowledged writes of *content*. Raises what *target* raises."""
    for start, size in content.ranges_written():
        for at in range(start, start + size, READ_BACK_BYTES):
            length = min(READ_BACK_BYTES, start + size - at)
            await _checked(target, content, Request(0.0, False, at, length))
