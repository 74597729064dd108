"""The base of members that wrap another member. Wrappers stack: faults over a model over RAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raidx_fuse.members.base import HostSpace, Member, ReadBuffer, WriteBuffer


class WrapperMember(Member):
    """Forwards every operation to *inner*; subclasses change some of them.

    Only `writable_view` returns None: writes to that memory would bypass the wrapper.
    """

    def __init__(self, inner: Member) -> None:
        self.inner = inner
        self.kind = inner.kind
        self.path = inner.path
        self.size_bytes = inner.size_bytes
        self.reads_zero = inner.reads_zero
        self.depth = inner.depth
        self.read_only = inner.read_only
        self.identity = inner.identity
        self.rotates = inner.rotates

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        return self.inner.try_readv(offset_bytes, buffers)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return self.inner.try_writev(offset_bytes, buffers)

    def try_check_whole(self) -> bool:
        return self.inner.try_check_whole()

    async def check_whole(self) -> None:
        await self.inner.check_whole()

    async def path_problem(self) -> str | None:
        return await self.inner.path_problem()

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await self.inner.readv(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        await self.inner.writev(offset_bytes, buffers)

    async def flush(self) -> None:
        await self.inner.flush()

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        return await self.inner.punch(offset_bytes, length_bytes)

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        self.inner.reserve(offset_bytes, length_bytes)

    def host_space(self) -> HostSpace | None:
        return self.inner.host_space()

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        return self.inner.data_extents(offset_bytes, length_bytes)

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return self.inner.view(offset_bytes, length_bytes)

    def note_watched(self) -> None:
        self.inner.note_watched()

    def is_settled(self) -> bool:
        return not self.overdue and self.inner.is_settled()

    def close(self) -> None:
        self.inner.close()
