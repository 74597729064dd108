"""A member whose front is not what lies on the disk: how it would be after a write, before it."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

from raidx_fuse.errors import MemberError
from raidx_fuse.members.base import Member, ReadBuffer, WrapperMember, WriteBuffer


class FrontedMember(WrapperMember):
    """*inner* as it would be with *front* as its first bytes. It refuses to be written.

    An array opened over it shows what it would be if the front were written.
    """

    def __init__(self, inner: Member, front: bytes = b"") -> None:
        super().__init__(inner)
        self._front = front
        self.read_only = True

    def _has(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        return 0 <= offset_bytes <= len(self._front) - sum(map(len, buffers))

    def _lay_over(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        for buffer in buffers:
            known = self._front[offset_bytes : offset_bytes + len(buffer)]
            buffer[: len(known)] = known
            offset_bytes += len(buffer)

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        done = self._has(offset_bytes, buffers) or self.inner.try_readv(offset_bytes, buffers)
        if done:
            self._lay_over(offset_bytes, buffers)
        return done

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        if not self._has(offset_bytes, buffers):  # else the disk need not even be readable there
            await self.inner.readv(offset_bytes, buffers)
        self._lay_over(offset_bytes, buffers)

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the whole range: zeros of the disk are none in the front."""
        self.check_range("map", offset_bytes, length_bytes)
        if offset_bytes >= len(self._front):
            yield from self.inner.data_extents(offset_bytes, length_bytes)
        elif length_bytes:
            yield offset_bytes, length_bytes

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return None if offset_bytes < len(self._front) else super().view(offset_bytes, length_bytes)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        raise MemberError(self.path, "write", offset_bytes, errno.EROFS, "it is only looked at")

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        self.try_writev(offset_bytes, buffers)

    async def flush(self) -> None:
        """Do nothing: nothing was written."""

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        raise MemberError(self.path, "punch", offset_bytes, errno.EROFS, "it is only looked at")

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        """Do nothing: nothing will be written."""

    def close(self) -> None:
        """Leave *inner* open: it belongs to the caller."""
