"""Members in memory: for tests, benchmarks, models, and arrays that need not outlive the process.

The memory is an anonymous mapping without reserved swap (MAP_NORESERVE). Untouched pages cost
nothing, so a member of 1 TiB needs only address space. All operations are synchronous.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.members.base import Member, ReadBuffer, WriteBuffer
from raidx_fuse.members.syscalls import MAP_NORESERVE

_PAGE_BYTES = mmap.PAGESIZE
_UNIT_SHIFT = 20  # one "touched" flag for each MiB: 1 MiB of flags for a member of 1 TiB


class RamMember(Member):
    """*size_bytes* of zeroed memory. *name* is its name in messages."""

    kind = "ram"

    def __init__(
        self,
        size_bytes: int,
        *,
        name: str = "ram",
        read_only: bool = False,
        reads_zero: bool = True,
    ) -> None:
        """Map the memory. Raises UsageError if the address space is too small."""
        self.path = name
        self.size_bytes = size_bytes
        self.read_only = read_only
        self.reads_zero = reads_zero
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        try:
            self._map: mmap.mmap | None = mmap.mmap(-1, size_bytes, flags=flags)
        except (OSError, ValueError, OverflowError) as error:
            raise UsageError(
                f"{name}: cannot map {size_bytes} bytes of memory ({error})", reason=Reason.SHORTAGE
            ) from None
        self._bytes = memoryview(self._map)
        self._touched = bytearray((size_bytes >> _UNIT_SHIFT) + 1)
        # One comparison on the hot path checks range, permission and "not closed" together.
        self._readable_bytes = size_bytes
        self._writable_bytes = -1 if read_only else size_bytes

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        content = self._bytes
        limit = self._readable_bytes if offset_bytes >= 0 else -1
        for buffer in buffers:
            end = offset_bytes + len(buffer)
            if end > limit:
                self.refuse("read", offset_bytes, len(buffer))
            buffer[:] = content[offset_bytes:end]
            offset_bytes = end
        return True

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        content = self._bytes
        length = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        end = offset_bytes + length
        if end > self._writable_bytes or offset_bytes < 0:
            self.refuse("write", offset_bytes, length)
        first, last = offset_bytes >> _UNIT_SHIFT, (end - 1) >> _UNIT_SHIFT
        if first == last:
            self._touched[first] = 1
        elif length:
            self._touched[first : last + 1] = b"\1" * (last + 1 - first)
        for buffer in buffers:
            end = offset_bytes + len(buffer)
            content[offset_bytes:end] = buffer
            offset_bytes = end
        return True

    def try_reads(self, reads: Sequence[tuple[int, Sequence[WriteBuffer], int]]) -> int:
        content, limit = self._bytes, self._readable_bytes
        done = 0
        for offset_bytes, buffers, size_bytes in reads:
            end = offset_bytes + size_bytes
            if len(buffers) != 1 or end > limit or offset_bytes < 0:
                return done or super().try_reads(reads)
            buffers[0][:] = content[offset_bytes:end]
            done += 1
        return done

    @property
    def memory(self) -> memoryview:
        """The whole content, writable, for tests and models; the whole member counts as written."""
        self._touched[:] = b"\1" * len(self._touched)
        return self._bytes

    async def flush(self) -> None:
        self.refuse("flush", -1, 0)

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        """Zero a range and release the whole pages in it."""
        end = offset_bytes + length_bytes
        if end > self._writable_bytes or offset_bytes < 0:
            self.refuse("write", offset_bytes, length_bytes)
        first = -(-offset_bytes // _PAGE_BYTES) * _PAGE_BYTES
        last = end // _PAGE_BYTES * _PAGE_BYTES
        if first < last and self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
            self._bytes[offset_bytes:first] = bytes(first - offset_bytes)
            self._bytes[last:end] = bytes(end - last)
            units = range(-(-offset_bytes >> _UNIT_SHIFT), end >> _UNIT_SHIFT)
            self._touched[units.start : units.stop] = bytes(len(units))
        else:
            self._bytes[offset_bytes:end] = bytes(length_bytes)
        return True

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        self.check_range("map", offset_bytes, length_bytes)
        touched, end = self._touched, offset_bytes + length_bytes
        position = offset_bytes
        while position < end:
            first = touched.find(1, position >> _UNIT_SHIFT, (end - 1 >> _UNIT_SHIFT) + 1)
            if first < 0:
                return
            behind = touched.find(0, first)  # there is one more flag than needed
            start = max(position, first << _UNIT_SHIFT)
            position = min(behind << _UNIT_SHIFT, end) if behind >= 0 else end
            yield start, position - start

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        if offset_bytes < 0 or offset_bytes + length_bytes > self._readable_bytes:
            self.refuse("read", offset_bytes, length_bytes)
        return self._bytes[offset_bytes : offset_bytes + length_bytes].toreadonly()

    def writable_view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        end = offset_bytes + length_bytes
        if end > self._writable_bytes or offset_bytes < 0:
            self.refuse("write", offset_bytes, length_bytes)
        first, last = offset_bytes >> _UNIT_SHIFT, (end - 1) >> _UNIT_SHIFT
        self._touched[first : last + 1] = b"\1" * (last + 1 - first)
        return self._bytes[offset_bytes:end]

    def close(self) -> None:
        """Drop the content. Views that were returned stay valid and keep the memory alive."""
        self.closed = True
        self._readable_bytes = self._writable_bytes = -1
        self._map = None
        self._bytes = memoryview(b"")
