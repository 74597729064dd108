"""Members whose writes, flushes and reads wait until a test lets them go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.ram import RamMember

CHUNK = 4096


class Gate(WrapperMember):
    """A member of which every write to the data region waits for *open*; counts its flushes.

    A flush waits for *flush_open* before it begins, a read for *read_open* when it has read.
    """

    def __init__(self, name: str) -> None:
        super().__init__(RamMember(4 << 20, name=name))
        self.depth = 8
        self.open: trio.Event | None = None
        self.flush_open: trio.Event | None = None
        self.read_open: trio.Event | None = None
        self.written: list[tuple[int, bytes]] = []  # offset and content; none for a flush
        self.data_offset = 1 << 40
        self.flushes = 0

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        return False

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return False

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        if self.open is not None and offset_bytes >= self.data_offset:
            await self.open.wait()
        await trio.lowlevel.checkpoint()
        self.written.append((offset_bytes, b"".join(buffers)))
        await super().writev(offset_bytes, buffers)

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await super().readv(offset_bytes, buffers)
        if self.read_open is not None:
            await self.read_open.wait()

    async def flush(self) -> None:
        if self.flush_open is not None:
            await self.flush_open.wait()
        self.flushes += 1
        self.written.append((0, b""))
        await super().flush()


@asynccontextmanager
async def gated(layout: str, width: int, journal: str) -> AsyncIterator[tuple[Array, list[Gate]]]:
    """Run an array of gates, all of it written and in its place."""
    members = [Gate(f"gate{number}") for number in range(width)]
    await create_array(members, layout, chunk_bytes=CHUNK, name="gates", now_s=0)
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.write(0, bytes(64 * CHUNK))
        await array.context.journal.drain()
        await array.flush()
        for member in members:
            member.data_offset = array.member_set.data_offset
        yield array, members
