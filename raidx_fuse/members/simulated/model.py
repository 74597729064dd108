"""A member with the timing of a modelled disk, on the clock of the trio run.

In virtual time it serves experiments: exact and without noise, hours in seconds. In real time it
serves teaching: a mount whose members are as slow as real disks. The data are in the wrapped member
(RAM by default) and are read or written when the operation's time is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from raidx_fuse.members.base import Member, ReadBuffer, WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.reordering import Reordering
from raidx_fuse.members.simulated.service import ServiceModel, ServiceQueue, make_model
from raidx_fuse.members.simulated.virtual_time import sleep_until
from raidx_fuse.members.simulated.write_cache import WriteCache
from raidx_fuse.members.wrapper import WrapperMember


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
