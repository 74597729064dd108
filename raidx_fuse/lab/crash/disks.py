"""The disks of the campaign: power-cut members that write whole sectors, each at its own pace.

Those of pairs count their operations, all together while the trigger is armed, hold one of them
back, and fail in several ways. In virtual time, with a seeded scheduler, the k-th operation is the
same in every run: a pair is replayed exactly.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.format.regions import (
    PAGE_BYTES,
    PAGE_SLOTS,
    SUPERBLOCK_SLOT_BYTES,
    SUPERBLOCK_SLOTS,
    Region,
    end_offset,
)
from raidx_fuse.format.superblock import MAGIC
from raidx_fuse.members.base import SECTOR_BYTES, Member, ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.simulated.powercut import CutRecord, Image, PowerCutMember
from raidx_fuse.members.simulated.virtual_time import sleep

PACES = ("inline", "cached", "queued", "uneven")
SLOW_FLUSHES = ("cached", "uneven")
QUEUED = ("queued", "uneven")  # reads and writes suspend
MOODY = "moody"  # not in PACES: only workloads whose requests share commit batches have it
_TAKEN = 0.6  # share of the writes that a moody disk completes synchronously
_REFUSED = 0.7  # share of the writes that a disk refuses for a while
_LANDED = 0.3  # share of these that are written nevertheless
_DELAY_S = 0.004
_FLUSH_S = 0.02
SLOTS_BYTES = SUPERBLOCK_SLOT_BYTES * SUPERBLOCK_SLOTS
POISON = random.Random("a sector that cannot be read").randbytes(SECTOR_BYTES)
DEPTH = 8  # a held operation leaves room for the others
SLOW_S, DRAG_S = 2.0, 0.3
# What a disk may do from a moment on:
DEAD = "dead"  # every operation fails
FULL = "full"  # writes fail with ENOSPC
DEAF = "deaf"  # writes to the superblocks fail
UNFLUSHED = "unflushed"  # flushes fail
HANGS = "hangs"  # no operation ends
SLOW = "slow"  # every operation takes SLOW_S
DRAGS = "drags"  # every write takes DRAG_S

T = TypeVar("T")


@dataclass(slots=True)
class Fault:
    """Errors inside operations: writes to *where*, or flushes if that is None, end in errors.

    After *sound* operations that succeed, *errors* fail, and the later ones succeed again. *struck*
    is called with the record's event before the first that fails. A flush that fails *loses_cache*,
    perhaps: what was written since the last one may be lost or torn.
    """

    where: range | None
    sound: int
    errors: int
    struck: Callable[[int], object] | None
    loses_cache: bool = False

    def strikes(self, offset_bytes: int | None, event: int) -> bool:
        """Return whether a write at *offset_bytes*, or a flush if it is None, fails at *event*."""
        is_meant = offset_bytes is None if self.where is None else offset_bytes in self.where
        if not is_meant or not self.errors:
            return False
        if self.sound:
            self.sound -= 1
            return False
        if self.struck is not None:
            self.struck(event)
            self.struck = None
        self.errors -= 1
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
        self.hangs_s = 0.0  # delay of the next write, in virtual time
        self.unread = range(0)  # bytes that cannot be read, whatever is written there
        self.refused_bytes = range(0)  # bytes that are not always written; some land nevertheless
        self._roomless: set[int] = set()  # pages that its full host has no room for
        self.judge: Judge | None = None  # it is asked about each write
        self._fault: Fault | None = None
        self.has_lost_writes = False  # a flush failed and took them along
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
        return at_once and not self.hangs_s and self._write(offset_bytes, buffers)

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
            end = offset_bytes + sum(map(len, buffers))
            for at in range(offset_bytes - offset_bytes % SECTOR_BYTES, end, SECTOR_BYTES):
                if self.cut.state.image[at : at + SECTOR_BYTES] == POISON:
                    raise MemberError(self.path, "read", at, errno.EIO)
        if offset_bytes in self.unread:
            raise MemberError(self.path, "read", offset_bytes, errno.EIO)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        hangs_s, self.hangs_s = self.hangs_s, 0.0
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
                self.has_lost_writes = True
                self.pull()
            raise MemberError(self.path, "flush", -1, errno.EIO)
        writes = self.cut.writes
        if self._pace == "cached":
            await sleep(self._random.expovariate(1 / _FLUSH_S))
        await self._dawdle()
        self.cut.make_durable(writes)

    def fill_host(self, region: Region) -> None:
        """Let the host be full: what holds zeros in *region* has no room on it."""
        image, zeros = self.cut.state.image, bytes(PAGE_BYTES)
        pages = range(region.offset, region.end, PAGE_BYTES)
        self._roomless = {at for at in pages if image[at : at + PAGE_BYTES] == zeros}

    def empty_host(self) -> None:
        """Let the host have room again."""
        self._roomless = set()

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        """Refuse what the full host has no room for."""
        self._check_room(offset_bytes, length_bytes)
        super().reserve(offset_bytes, length_bytes)

    def _check_room(self, offset_bytes: int, length_bytes: int) -> None:
        first = offset_bytes - offset_bytes % PAGE_BYTES
        pages = range(first, offset_bytes + length_bytes, PAGE_BYTES)
        if self._roomless and not self._roomless.isdisjoint(pages):
            raise MemberError(self.path, "write", offset_bytes, errno.ENOSPC)

    def give_fault(self, fault: Fault | None) -> None:
        """Let *fault* strike from now on; None: the disk is sound."""
        self._fault = fault
        self._flush_failed = False

    def reopen(self) -> None:
        """Open the disk again, sound: what a failed flush left in the cache is gone (local.py)."""
        if self._flush_failed:
            self.pull()
        self.give_fault(None)

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
        self._check_room(offset_bytes, sum(map(len, buffers)))
        refused = offset_bytes in self.refused_bytes and self._random.random() < _REFUSED
        fault = self._fault
        if refused or (fault is not None and fault.strikes(offset_bytes, self.cut.event)):
            if self._random.random() < _LANDED:
                self._land(offset_bytes, buffers)
            raise MemberError(self.path, "write", offset_bytes, errno.EIO)
        return self._land(offset_bytes, buffers)

    def _land(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        data = b"".join(buffers)
        if self.judge is not None:
            self.judge(self, offset_bytes, data)
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


def records_of(log: Region) -> range:
    """Return the bytes of the region *log* behind its head page."""
    return range(log.offset + PAGE_BYTES * PAGE_SLOTS, log.end)


def is_member(image: Image) -> bool:
    """Return whether a superblock slot of *image* begins with the magic number, at either end."""
    begins = [0, SUPERBLOCK_SLOT_BYTES]
    if (end := end_offset(len(image))) is not None:
        begins += [end, end + SUPERBLOCK_SLOT_BYTES]
    return any(image.startswith(MAGIC, begin) for begin in begins)


def lose_front(image: Image, generator: random.Random) -> None:
    """Overwrite both superblock slots in front of *image* with zeros or noise."""
    fill = bytes(PAGE_BYTES) if generator.random() < 0.5 else POISON * (PAGE_BYTES // SECTOR_BYTES)
    image[0:SLOTS_BYTES] = fill * (SLOTS_BYTES // PAGE_BYTES)


@dataclass
class Trigger:
    """Counts the operations of all disks, and holds number *at* (None: none) until `released`.

    *after*: the operation takes effect first and its answer is held. *breaks*: it ends in an error
    when it is released, and its disk is dead from then on; with *errors*, so many tries of it fail
    and the disk is sound, but for a flush: when one has failed, all do until the disk is opened.
    """

    at: int | None
    after: bool
    breaks: bool
    errors: int
    count: int = 0
    armed: bool = False
    reached: trio.Event = field(default_factory=trio.Event)
    released: trio.Event = field(default_factory=trio.Event)
    holder: PairDisk | None = None

    def note(self) -> bool:
        if not self.armed:
            return False
        self.count += 1
        return self.count == self.at


class PairDisk(SectorDisk):
    """A disk behind a *trigger*; *fault* says how it fails, None: not at all.

    *loses_cache*: a flush that fails loses what it should cover.
    """

    def __init__(
        self,
        image: Image,
        generator: random.Random,
        trigger: Trigger,
        *,
        name: str,
        record: CutRecord,
        pace: str,
        under: dict[int, bytes] | None,
    ) -> None:
        super().__init__(
            *(image, generator), name=name, record=record, pace=pace, reads_zero=True, under=under
        )
        self.depth = DEPTH
        self.fault: str | None = None
        self.loses_cache = False
        self._failing = ("", 0)  # the operation that fails, and where
        self._errors = 0  # how often it still does
        self._trigger = trigger
        self._revived = trio.Event()

    def fail(self, fault: str, *, loses_cache: bool = False) -> None:
        self.fault = fault
        self.loses_cache = loses_cache

    def revive(self) -> None:
        """Work again; what hangs goes on."""
        self.fault = None
        self._errors = 0
        self._revived.set()
        self._revived = trio.Event()

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        done = self._at_once("read", offset_bytes) and super().try_readv(offset_bytes, buffers)
        return done and not self._trigger.note()  # never the one that is held

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        done = self._at_once("write", offset_bytes) and super().try_writev(offset_bytes, buffers)
        return done and not self._trigger.note()

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await self._do("read", offset_bytes, partial(super().readv, offset_bytes, buffers))

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        await self._do("write", offset_bytes, partial(super().writev, offset_bytes, buffers))

    async def flush(self) -> None:
        await self._do("flush", -1, super().flush)

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        punch = partial(super().punch, offset_bytes, length_bytes)
        return await self._do("write", offset_bytes, punch)

    def _at_once(self, operation: str, offset_bytes: int) -> bool:
        """Return whether a synchronous try may be made. Raises MemberError."""
        trigger = self._trigger
        is_next = trigger.armed and trigger.count + 1 == trigger.at
        if is_next or self.fault in (HANGS, SLOW):
            return False
        if self.fault == DRAGS and operation == "write":
            return False
        self._check(operation, offset_bytes)
        return True

    async def _do(self, operation: str, offset_bytes: int, effect: Callable[[], Awaitable[T]]) -> T:
        trigger = self._trigger
        if trigger.note():
            done = [await effect()] if trigger.after else []
            trigger.holder = self
            trigger.reached.set()
            await trigger.released.wait()
            if trigger.breaks:
                loses_cache = operation == "flush" and self.loses_cache
                if not trigger.errors:
                    self.fault = DEAD
                elif operation == "flush":
                    self.fail(UNFLUSHED)
                else:
                    self._failing, self._errors = (operation, offset_bytes), trigger.errors - 1
                if loses_cache:
                    self.pull()
                raise MemberError(self.path, operation, offset_bytes, errno.EIO)
            if done:
                return done[0]
        if self.fault == HANGS:
            await self._revived.wait()
        elif self.fault == SLOW:
            await sleep(SLOW_S)
        elif self.fault == DRAGS and operation == "write":
            await sleep(DRAG_S)
        self._check(operation, offset_bytes)
        return await effect()

    def _check(self, operation: str, offset_bytes: int) -> None:
        if self._errors and self._failing == (operation, offset_bytes):
            self._errors -= 1
            raise MemberError(self.path, operation, offset_bytes, errno.EIO)
        writes = operation == "write"
        if self.fault == FULL and writes:
            raise MemberError(self.path, operation, offset_bytes, errno.ENOSPC)
        deaf = self.fault == DEAF and writes and 0 <= offset_bytes < SLOTS_BYTES
        unflushed = self.fault == UNFLUSHED and operation == "flush"
        if unflushed and self.loses_cache:
            self.loses_cache = False
            self.pull()
        if self.fault == DEAD or deaf or unflushed:
            raise MemberError(self.path, operation, offset_bytes, errno.EIO)
