"""The disks of the campaign: power-cut members that write whole sectors, each at its own pace."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.format.regions import PAGE_BYTES, PAGE_SLOTS, SUPERBLOCK_SLOT_BYTES, Region
from raidx_fuse.format.superblock import MAGIC
from raidx_fuse.members.base import SECTOR_BYTES, Member, ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.simulated.powercut import CutRecord, Image, PowerCutMember
from raidx_fuse.members.simulated.virtual_time import sleep

PACES = ("inline", "cached", "queued", "uneven")
SLOW_FLUSHES = ("cached", "uneven")
MOODY = "moody"  # not in PACES: only workloads whose requests share commit batches have it
_TAKEN = 0.6  # share of the writes that a moody disk completes synchronously
_REFUSED = 0.7  # share of the writes that a disk refuses for a while
_LANDED = 0.3  # share of these that are written nevertheless
_DELAY_S = 0.004
_FLUSH_S = 0.02
POISON = random.Random("a sector that cannot be read").randbytes(SECTOR_BYTES)


class Fault:
    """Errors inside operations: writes to *where*, or flushes if that is None, end in errors.

    After *sound* operations that succeed, *errors* fail, and the later ones succeed again. *struck*
    is called with the record's event before the first that fails. A flush that fails *loses_cache*,
    perhaps: what was written since the last one may be lost or torn.
    """

    def __init__(
        self,
        where: range | None,
        sound: int,
        errors: int,
        struck: Callable[[int], object],
        *,
        loses_cache: bool = False,
    ) -> None:
        self._where = where
        self._sound = sound
        self._errors = errors
        self._struck: Callable[[int], object] | None = struck
        self.loses_cache = loses_cache

    def strikes(self, offset_bytes: int | None, event: int) -> bool:
        """Return whether a write at *offset_bytes*, or a flush if it is None, fails at *event*."""
        is_meant = offset_bytes is None if self._where is None else offset_bytes in self._where
        if not is_meant or not self._errors:
            return False
        if self._sound:
            self._sound -= 1
            return False
        if self._struck is not None:
            self._struck(event)
            self._struck = None
        self._errors -= 1
        return True


Judge = Callable[[Member, int, bytes], None]  # a disk, byte offset and content of a write


class SectorDisk(WrapperMember):
    """A power-cut member with the atomic unit of a file or device: one sector.

    A page cache never loses one half of a sector and keeps the other, so a write of 100 bytes
    becomes a write of the whole sector that holds them. A flush that takes time covers the writes
    that ended before it began, and none that come meanwhile. *pace* says how operations complete:

    - "inline": all synchronously;
    - "cached": reads and writes synchronously, flushes after a delay;
    - "queued": all in the member's queue, without a delay;
    - "uneven": all in the queue, after random delays;
    - "moody": reads synchronously, some writes synchronously and the others as "uneven".

    *under*: what was in the sectors that cannot be read, by byte offset; None: the disk has none.
    Such a sector has the content `POISON`, also after a cut that drops what was written there. A
    write of a part of it brings the rest back.
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
        under: dict[int, bytes] | None = None,
    ) -> None:
        self._under = under
        self.cut = PowerCutMember(image, name=name, record=record)
        super().__init__(self.cut)
        self.reads_zero = reads_zero
        self.depth = 1 if pace == "inline" else 3
        self._pace = pace
        self._random = generator
        self._hangs_s = 0.0
        self._unread = range(0)  # bytes that cannot be read, whatever is written there
        self._refused = range(0)  # bytes that are not always written
        self._judge: Judge | None = None
        self._fault: Fault | None = None
        self._flush_failed = False
        self.late_until_s = 0.0  # when the last write that hung reaches the disk (virtual time)

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        at_once = self._pace in ("inline", "cached", MOODY)
        if at_once:
            self._check_readable(offset_bytes, buffers)
        return at_once and self.cut.try_readv(offset_bytes, buffers)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        at_once = self._pace in ("inline", "cached")
        if self._pace == MOODY:
            at_once = self._random.random() < _TAKEN
        return at_once and not self._hangs_s and self._write(offset_bytes, buffers)

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await self._dawdle()
        self._check_readable(offset_bytes, buffers)
        await self.cut.readv(offset_bytes, buffers)

    async def poison(self, offset_bytes: int) -> bytes:
        """Make a sector unreadable, durably, until it is written; return what it holds."""
        assert self._under is not None
        image = self.cut.state.image
        content = bytes(image[offset_bytes : offset_bytes + SECTOR_BYTES])
        self._under[offset_bytes] = content
        await self.cut.writev(offset_bytes, [POISON])
        await self.cut.flush()
        return content

    def _check_readable(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        if self._under is not None:
            self._check_poison(offset_bytes, buffers)
        if offset_bytes in self._unread:
            raise MemberError(self.path, "read", offset_bytes, errno.EIO)

    def _check_poison(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        end = offset_bytes + sum(map(len, buffers))
        for at in range(offset_bytes - offset_bytes % SECTOR_BYTES, end, SECTOR_BYTES):
            if self.cut.state.image[at : at + SECTOR_BYTES] == POISON:
                raise MemberError(self.path, "read", at, errno.EIO)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        hangs_s, self._hangs_s = self._hangs_s, 0.0
        if hangs_s:
            self.late_until_s = trio.current_time() + hangs_s
            await sleep(hangs_s)
        await self._dawdle()
        self._write(offset_bytes, buffers)

    async def flush(self) -> None:
        """Make earlier writes durable.

        When this has failed, it fails until the disk is opened again, as that of other members.
        """
        if self._flush_failed:
            raise MemberError(self.path, "flush", -1, errno.EIO, "an earlier flush lost data")
        if self._fault is not None and self._fault.strikes(None, self.cut.event):
            self._flush_failed = True
            if self._fault.loses_cache:
                self.pull()
            raise MemberError(self.path, "flush", -1, errno.EIO)
        writes = self.cut.writes
        if self._pace == "cached":
            await sleep(self._random.expovariate(1 / _FLUSH_S))
        await self._dawdle()
        self.cut.make_durable(writes)

    def lose_log(self, log: Region) -> None:
        """Let no record of the region *log* be read; its head page can be."""
        self._unread = _records_of(log)

    def refuse(self, log: Region | None) -> None:
        """Answer most writes to records of the region *log* with an error; some land nevertheless.

        None: do not any more.
        """
        self._refused = range(0) if log is None else _records_of(log)

    def give_fault(self, fault: Fault | None) -> None:
        """Let *fault* strike from now on; None: the disk is sound."""
        self._fault = fault
        self._flush_failed = False

    def reopen(self) -> None:
        """Open the disk again, sound: what a failed flush left in the cache is gone (local.py)."""
        if self._flush_failed:
            self.pull()
        self.give_fault(None)

    def obey(self, judge: Judge) -> None:
        """Ask *judge* about each write from now on (laws.py)."""
        self._judge = judge

    def hang(self, delay_s: float) -> None:
        """Delay the next write by *delay_s* seconds of virtual time."""
        self._hangs_s = delay_s

    def pull(self) -> None:
        """Pull the disk: each write that no flush has covered is kept, lost or torn."""
        state = self.cut.state
        left = state.crash(state.sample(self._random))
        for write in list(state.open_writes):
            low, high = write.offset_bytes, write.offset_bytes + len(write.data)
            if (content := bytes(left[low:high])) != bytes(state.image[low:high]):
                self.cut.try_writev(low, [content])
        self.cut.make_durable(self.cut.writes)

    async def _dawdle(self) -> None:
        if self._pace in ("uneven", MOODY) and self._random.random() < 0.7:
            await sleep(self._random.expovariate(1 / _DELAY_S))

    def _write(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        if offset_bytes in self._refused and self._random.random() < _REFUSED:
            if self._random.random() < _LANDED:
                self._land(offset_bytes, buffers)
            raise MemberError(self.path, "write", offset_bytes, errno.EIO)
        if self._fault is not None and self._fault.strikes(offset_bytes, self.cut.event):
            if self._random.random() < _LANDED:
                self._land(offset_bytes, buffers)
            raise MemberError(self.path, "write", offset_bytes, errno.EIO)
        return self._land(offset_bytes, buffers)

    def _land(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        data = b"".join(buffers)
        if self._judge is not None:
            self._judge(self, offset_bytes, data)
        end = offset_bytes + len(data)
        low = offset_bytes % SECTOR_BYTES
        high = -end % SECTOR_BYTES
        if low or high:
            self.check_range("write", offset_bytes, len(data))
            image = self.cut.state.image
            for at in {offset_bytes - low, end + high - SECTOR_BYTES}:
                if self._under and image[at : at + SECTOR_BYTES] == POISON:
                    image[at : at + SECTOR_BYTES] = self._under.pop(at)
            data = bytes(image[offset_bytes - low : offset_bytes]) + data
            data += bytes(image[end : end + high])
        return self.cut.try_writev(offset_bytes - low, [data])


def _records_of(log: Region) -> range:
    """Return the bytes of the region *log* behind its head page."""
    return range(log.offset + PAGE_BYTES * PAGE_SLOTS, log.end)


def is_member(image: Image) -> bool:
    """Return whether either superblock slot of *image* begins with the magic number."""
    return image.startswith(MAGIC) or image.startswith(MAGIC, SUPERBLOCK_SLOT_BYTES)
