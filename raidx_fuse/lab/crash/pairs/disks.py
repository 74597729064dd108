"""The disks of pairs: they count their operations, hold one of them back, and fail in several ways.

The operations of all disks are counted together while the trigger is armed. In virtual time,
with a seeded scheduler, the k-th one is the same in every run: a pair is replayed exactly.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.lab.crash.disks import SectorDisk
from raidx_fuse.lab.crash.durable import SLOTS_BYTES
from raidx_fuse.members.base import ReadBuffer, WriteBuffer
from raidx_fuse.members.simulated.powercut import CutRecord, Image
from raidx_fuse.members.simulated.virtual_time import sleep

T = TypeVar("T")

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


class Trigger:
    """Counts the operations of all disks, and holds number *at* (None: none) until `released`.

    *after*: the operation takes effect first and its answer is held. *breaks*: it ends in an error
    when it is released, and its disk is dead from then on; with *errors*, so many tries of it fail
    and the disk is sound, but for a flush: when one has failed, all do until the disk is opened.
    """

    def __init__(
        self, at: int | None, *, after: bool = False, breaks: bool = False, errors: int = 0
    ) -> None:
        self.at = at
        self.after = after
        self.breaks = breaks
        self.errors = errors
        self.count = 0
        self.armed = False
        self.reached = trio.Event()
        self.released = trio.Event()
        self.holder: PairDisk | None = None

    def note(self) -> bool:
        """Count one operation; return whether it is to be held."""
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
        """Fail in the way *fault*; with *loses_cache* a failed flush loses what it should cover."""
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
        """Raise MemberError if the disk's fault lets *operation* fail."""
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
