"""A member with the timing of a modelled disk, on the clock of the trio run.

In virtual time it serves experiments: exact and without noise, hours in seconds. In real time it
serves teaching: a mount whose members are as slow as real disks. The data are in the wrapped member
(RAM by default) and are read or written when the operation's time is over. How long a disk takes
for an operation: service.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from raidx_fuse.members.base import Member, ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.service import ServiceModel, ServiceQueue, make_model
from raidx_fuse.members.simulated.virtual_time import sleep_until

_MB = 1e6


class WriteCache:
    """The write cache of the device of *queue*, of the size that its model says.

    The disk writes the cache's content to the medium whenever it has nothing else to do: the next
    piece upwards of the head, then from the lowest again ("cscan"), or the oldest ("fifo"). A piece
    that is written again before that is written once. A read waits for the one piece that is being
    written; a write that finds the cache full waits for room; a flush writes everything. All of it
    is computed when the next request comes, so the cache needs no task.
    """

    def __init__(self, queue: ServiceQueue) -> None:
        self._queue = queue
        self._size_bytes = queue.model.cache_mb * _MB
        self._pieces: dict[int, tuple[int, float]] = {}  # offset -> length, since when
        self._used_bytes = 0
        self._access_s = queue.model.write_access_ms / 1e3
        rate = queue.model.write_mb_s * _MB
        self._byte_s = 1 / rate if rate else 0.0

    def submit(self, now_s: float, is_write: bool, offset_bytes: int, length_bytes: int) -> float:
        """Accept an operation that arrives at *now_s*; return the time when it completes."""
        self._write_back(now_s)
        held = self._pieces.get(offset_bytes)
        if not is_write:
            if held is not None and held[0] >= length_bytes:
                return now_s + self._access_s + length_bytes * self._byte_s
            return self._queue.submit(now_s, False, offset_bytes, length_bytes)
        if held is not None:
            del self._pieces[offset_bytes]
            self._used_bytes -= held[0]
            length_bytes = max(length_bytes, held[0])
        room_s = now_s
        while self._pieces and self._used_bytes + length_bytes > self._size_bytes:
            room_s = self._write_one(now_s)
        self._pieces[offset_bytes] = (length_bytes, room_s)
        self._used_bytes += length_bytes
        return room_s + self._access_s + length_bytes * self._byte_s

    def flush(self, now_s: float) -> float:
        """Accept a flush; return the time when it completes."""
        self._write_back(now_s)
        while self._pieces:
            self._write_one(now_s)
        return self._queue.flush(now_s)

    def _write_back(self, until_s: float) -> None:
        """Write what an idle medium has begun to write before *until_s*."""
        while self._pieces and self._queue.free_s() < until_s:
            _, since_s = self._pieces[self._next()]
            if since_s >= until_s:
                return
            self._write_one(since_s)

    def _write_one(self, from_s: float) -> float:
        """Write the next piece to the medium, not before *from_s*; return when it is there."""
        offset = self._next()
        length, since_s = self._pieces.pop(offset)
        self._used_bytes -= length
        return self._queue.submit(max(from_s, since_s), True, offset, length)

    def _next(self) -> int:
        if self._queue.model.order == "fifo":
            return next(iter(self._pieces))
        head = self._queue.head_bytes
        return min(self._pieces, key=lambda offset: (offset < head, offset))


@dataclass(slots=True, eq=False)
class Waiting:
    """An operation that waits, until *chosen* is set; *position_s* was drawn when it was chosen."""

    is_write: bool
    offset_bytes: int
    chosen: trio.Event = field(default_factory=trio.Event)
    position_s: float | None = None


class Reordering:
    """The operations that wait at the device of *queue*, whose model says in which order.

    Operations that arrive while all channels are busy wait here. When one ends, "ncq" takes the
    waiting one with the shortest positioning (seek and rotation: what a disk knows of its own
    platters), and "cscan" the nearest one upwards of the head, then the lowest. Rotation is drawn
    anew at each choice, because the angle between the head and a sector is another one after each
    operation.
    """

    def __init__(self, queue: ServiceQueue) -> None:
        self._queue = queue
        self._waiting: list[Waiting] = []
        self._serving = 0
        self._choose: Callable[[], Waiting] = (
            self._nearest if queue.model.order == "ncq" else self._upwards
        )

    async def turn(self, is_write: bool, offset_bytes: int) -> float | None:
        """Return when the device begins with this operation, with its positioning if it is known.

        `ended` must be called after it, however it ends.
        """
        if self._serving < self._queue.model.channels:
            self._serving += 1
            return None
        mine = Waiting(is_write, offset_bytes)
        self._waiting.append(mine)
        try:
            await mine.chosen.wait()
        except trio.Cancelled:
            if mine in self._waiting:
                self._waiting.remove(mine)
            else:
                self.ended()
            raise
        return mine.position_s

    def ended(self) -> None:
        """Let the next operation begin."""
        if not self._waiting:
            self._serving -= 1
            return
        chosen = self._choose()
        self._waiting.remove(chosen)
        chosen.chosen.set()

    def _nearest(self) -> Waiting:
        drawn = []
        for one in self._waiting:
            one.position_s = self._queue.positioning_s(one.is_write, one.offset_bytes)
            drawn.append(one.position_s)
        return self._waiting[drawn.index(min(drawn))]

    def _upwards(self) -> Waiting:
        head = self._queue.head_bytes
        return min(self._waiting, key=lambda one: (one.offset_bytes < head, one.offset_bytes))


class ModelMember(WrapperMember):
    """*inner* with the timing of *model*; *depth*: how many operations the device takes at a time.

    A cancelled operation keeps its place in the queue of the disk, but transfers no data.
    Operations out of range fail immediately.
    """

    def __init__(self, inner: Member, model: ServiceModel, *, seed: int = 0) -> None:
        super().__init__(inner)
        self.kind = "model"
        self.rotates = model.rpm > 0 if not model.immediate else None
        self.model = model
        self.depth = model.depth
        self.queue = ServiceQueue(model, inner.size_bytes, seed=seed)
        self._cache = WriteCache(self.queue) if model.cache_mb else None
        self._reordering = (
            Reordering(self.queue) if model.order != "fifo" and not model.cache_mb else None
        )
        self._immediate = model.immediate

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        return self._immediate and self.inner.try_readv(offset_bytes, buffers)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return self._immediate and self.inner.try_writev(offset_bytes, buffers)

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await self._wait("read", offset_bytes, sum(map(len, buffers)))
        if not self.inner.try_readv(offset_bytes, buffers):
            await self.inner.readv(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        await self._wait("write", offset_bytes, sum(map(len, buffers)))
        if not self.inner.try_writev(offset_bytes, buffers):
            await self.inner.writev(offset_bytes, buffers)

    async def flush(self) -> None:
        device = self._cache or self.queue
        await sleep_until(device.flush(trio.current_time()))
        await self.inner.flush()

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return self.inner.view(offset_bytes, length_bytes) if self._immediate else None

    async def _wait(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        self.check_range(operation, offset_bytes, length_bytes)
        if self._immediate:
            return
        is_write = operation == "write"
        if self._reordering is not None:
            position_s = await self._reordering.turn(is_write, offset_bytes)
            now_s = trio.current_time()
            try:
                await sleep_until(
                    self.queue.submit(now_s, is_write, offset_bytes, length_bytes, position_s)
                )
            finally:
                self._reordering.ended()
            return
        device = self._cache or self.queue
        now_s = trio.current_time()
        await sleep_until(device.submit(now_s, is_write, offset_bytes, length_bytes))


def model_member(
    inner: Member | int, name: str, /, *, seed: int = 0, **numbers: str
) -> ModelMember:
    """Return *inner*, or so many bytes of RAM, as a disk of preset *name* with changed *numbers*.

    Raises UsageError for an unknown preset or parameter.
    """
    model = make_model(name, **numbers)
    if isinstance(inner, int):
        inner = RamMember(inner, name=name)
    return ModelMember(inner, model, seed=seed)
