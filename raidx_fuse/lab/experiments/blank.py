"""A member that keeps its metadata and drops its data: for experiments that measure only time.

Writes to the data region are dropped, and the region reads as zeros. Zeros are consistent under
every code (the XOR of zeros is zero), so rebuild and scrub find nothing wrong. An array of any size
takes a few megabytes of memory, whatever a load writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raidx_fuse.format.regions import Region
from raidx_fuse.members.base import ReadBuffer, WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.store.buffers import ZEROS


class BlankMember(RamMember):
    """*size_bytes* of memory; writes to the region *forgotten* are dropped."""

    forgotten = Region(0, 0)

    def forget(self, region: Region) -> None:
        """Drop the content of *region*, now and of later writes."""
        self.forgotten = region

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        if not self.forgotten.offset <= offset_bytes < self.forgotten.end:
            return super().try_readv(offset_bytes, buffers)
        self.check_range("read", offset_bytes, sum(map(len, buffers)))
        for buffer in buffers:
            for at in range(0, len(buffer), len(ZEROS)):
                part = memoryview(buffer)[at : at + len(ZEROS)]
                part[:] = ZEROS[: len(part)]
        return True

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        if not self.forgotten.offset <= offset_bytes < self.forgotten.end:
            return super().try_writev(offset_bytes, buffers)
        self.check_range("write", offset_bytes, sum(map(len, buffers)))
        return True

    def writable_view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return None

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        self.check_range("map", offset_bytes, length_bytes)
        if length_bytes:
            yield offset_bytes, length_bytes
