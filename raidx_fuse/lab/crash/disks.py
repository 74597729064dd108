"""The disks of the campaign: power-cut members that take whole sectors, at a pace of their own."""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio

from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import MAGIC
from raidx_fuse.members.base import SECTOR_BYTES, ReadBuffer, WriteBuffer
from raidx_fuse.members.simulated.powercut import CutRecord, PowerCutMember
from raidx_fuse.members.simulated.sparse import Image
from raidx_fuse.members.simulated.virtual_time import sleep
from raidx_fuse.members.wrapper import WrapperMember

PACES = ("inline", "cached", "queued", "uneven")
SLOW_FLUSHES = ("cached", "uneven")
MOODY = "moody"  # not among those: drawn only for workloads that come through the door
_TAKEN = 0.6  # of the writes to moody disks at once
_DELAY_S = 0.004
_FLUSH_S = 0.02


class SectorDisk(WrapperMember):
    """A power-cut member as a file or device is one: what is smaller than a sector joins it first.

    A page cache never forgets one half of a sector and keeps the other, so a write of 100 bytes is
    a write of the sector they lie in. *pace*: "inline" answers at once, "cached" all but flushes,
    "queued" by the engine's workers, "uneven" by them and late, each time by another delay, "moody"
    reads at once and takes some writes at once and others as "uneven" does. A flush that lasts
    covers what was written before it, and nothing of what comes meanwhile.
    """

    def __init__(
        self,
        image: Image,
        generator: random.Random,
        *,
        name: str,
        record: CutRecord | None = None,
        pace: str = "inline",
        reads_zero: bool = False,
    ) -> None:
        self.cut = PowerCutMember(image, name=name, record=record)
        super().__init__(self.cut)
        self.reads_zero = reads_zero
        self.depth = 1 if pace == "inline" else 3
        self._pace = pace
        self._random = generator
        self._hangs_s = 0.0
        self.late_until_s = 0.0  # when the last write that hung has reached the disk, or will

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        at_once = self._pace in ("inline", "cached", MOODY)
        return at_once and self.cut.try_readv(offset_bytes, buffers)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        at_once = self._pace in ("inline", "cached")
        if self._pace == MOODY:
            at_once = self._random.random() < _TAKEN
        return at_once and not self._hangs_s and self._write(offset_bytes, buffers)

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await self._dawdle()
        await self.cut.readv(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        hangs_s, self._hangs_s = self._hangs_s, 0.0
        if hangs_s:
            self.late_until_s = trio.current_time() + hangs_s
            await sleep(hangs_s)
        await self._dawdle()
        self._write(offset_bytes, buffers)

    async def flush(self) -> None:
        writes = self.cut.writes
        if self._pace == "cached":
            await sleep(self._random.expovariate(1 / _FLUSH_S))
        await self._dawdle()
        self.cut.make_durable(writes)

    def hang(self, delay_s: float) -> None:
        """Let the next write reach the disk *delay_s* late."""
        self._hangs_s = delay_s

    async def _dawdle(self) -> None:
        if self._pace in ("uneven", MOODY) and self._random.random() < 0.7:
            await sleep(self._random.expovariate(1 / _DELAY_S))

    def _write(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        data = b"".join(buffers)
        end = offset_bytes + len(data)
        low = offset_bytes % SECTOR_BYTES
        high = -end % SECTOR_BYTES
        if low or high:
            self.check_range("write", offset_bytes, len(data))
            image = self.cut.state.image
            data = bytes(image[offset_bytes - low : offset_bytes]) + data
            data += bytes(image[end : end + high])
        return self.cut.try_writev(offset_bytes - low, [data])


def is_member(image: Image) -> bool:
    """Say whether a user would take the disk for a member: any sign of a superblock."""
    return image.startswith(MAGIC) or image.startswith(MAGIC, SUPERBLOCK_SLOT_BYTES)
