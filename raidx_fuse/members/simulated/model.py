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
from raidx_fuse.members.simulated.service import ServiceModel, ServiceQueue, make_model
from raidx_fuse.members.simulated.virtual_time import sleep_until
from raidx_fuse.members.wrapper import WrapperMember


class ModelMember(WrapperMember):
    """*inner* with the timing of *model*; *depth* is the number of channels of the model.

    A cancelled operation keeps its place in the queue of the disk, but transfers no data.
    Operations out of range fail immediately.
    """

    def __init__(self, inner: Member, model: ServiceModel, *, seed: int = 0) -> None:
        super().__init__(inner)
        self.kind = "model"
        self.model = model
        self.depth = model.channels
        self.queue = ServiceQueue(model, inner.size_bytes, seed=seed)
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
        await sleep_until(self.queue.flush(trio.current_time()))
        await self.inner.flush()

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return self.inner.view(offset_bytes, length_bytes) if self._immediate else None

    async def _wait(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        self.check_range(operation, offset_bytes, length_bytes)
        if self._immediate:
            return
        now_s = trio.current_time()
        await sleep_until(
            self.queue.submit(now_s, operation == "write", offset_bytes, length_bytes)
        )


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
