"""Members of a mount for teaching (`raidx mount --lab`): faults, and a power cut on real files.

A `LabMember` is a `FaultMember` over an `UnflushedMember`, which has the volatile cache of a disk:

    write     goes to the file at once; the content before it is remembered
    flush     forgets the contents before the writes that it covers: they are durable
    power cut takes back the writes that are still remembered, then stores those sectors of them
              that the cut keeps (members/simulated/powercut.py)

So the file has what a real disk would have after the cut. The daemon is expected to end then: every
later operation fails.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import trio

from raidx_fuse.errors import BusyError, MemberError, Reason
from raidx_fuse.members.base import Member, ReadBuffer, WrapperMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.powercut import OpenWrite, cut_writes, draw_cut

Keep = Literal["none", "some", "all"]
CACHE_BYTES = 64 << 20  # like a disk, which writes the oldest out when its cache is full
HOLE_BYTES_MAX = 8 << 20  # a larger punched hole is durable at once, with all writes before it
IN_FLIGHT_S = 10.0  # for writes that a thread of the host is doing


@dataclass(frozen=True, slots=True)
class Cut:
    """What a power cut did to the unflushed writes of one member, in numbers of writes."""

    kept: int
    lost: int
    torn: int


class UnflushedMember(WrapperMember):
    """*inner* behind a volatile cache that a power cut loses."""

    def __init__(self, inner: Member) -> None:
        super().__init__(inner)
        self._open: list[OpenWrite] = []
        self._open_bytes = 0
        self._durable = 0  # writes so far that are no longer in `_open`
        self._in_flight = 0
        self.off = False

    @property
    def unflushed(self) -> int:
        """The number of writes that no flush has covered."""
        return len(self._open)

    def try_readv(self, offset_bytes: int, buffers: Sequence[bytearray | memoryview]) -> bool:
        self._check_power("read", offset_bytes)
        return self.inner.try_readv(offset_bytes, buffers)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        self._check_power("write", offset_bytes)
        data = b"".join(buffers)
        before = bytearray(len(data))
        self.check_range("write", offset_bytes, len(data))
        if not self.inner.try_readv(offset_bytes, [before]):
            return False
        if not self.inner.try_writev(offset_bytes, [data]):
            return False
        self._note(offset_bytes, data, bytes(before))
        return True

    async def readv(self, offset_bytes: int, buffers: Sequence[bytearray | memoryview]) -> None:
        self._check_power("read", offset_bytes)
        await self.inner.readv(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        self._check_power("write", offset_bytes)
        data = b"".join(buffers)
        self.check_range("write", offset_bytes, len(data))
        self._in_flight += 1
        try:
            before = bytearray(len(data))
            await self.inner.readv(offset_bytes, [before])
            self._note(offset_bytes, data, bytes(before))  # a cut during the write may keep it
            await self.inner.writev(offset_bytes, [data])
        finally:
            self._in_flight -= 1

    async def flush(self) -> None:
        self._check_power("flush", -1)
        covered = self._durable + len(self._open)
        await self.inner.flush()
        self._check_power("flush", -1)
        self._make_durable(covered - self._durable)

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        self._check_power("write", offset_bytes)
        if length_bytes > HOLE_BYTES_MAX:
            done = await self.inner.punch(offset_bytes, length_bytes)
            await self.flush()
            return done
        before = bytearray(length_bytes)
        await self.inner.readv(offset_bytes, [before])
        done = await self.inner.punch(offset_bytes, length_bytes)
        if done:
            self._note(offset_bytes, bytes(length_bytes), bytes(before))
        return done

    async def cut_power(self, keep: Keep, seed: str, origin_bytes: int = 0) -> Cut:
        """Cut the power: store of the unflushed writes what *keep* says, then refuse everything.

        With "some", *seed* and the offset of a write, counted from *origin_bytes*, decide whether
        it is stored, lost, or stored in part: other writes do not change the decision about it.
        Raises BusyError if the host does not end its writes, MemberError.
        """
        self.off = True
        with trio.move_on_after(IN_FLIGHT_S) as waiting:
            while self._in_flight or not self.is_settled():  # noqa: ASYNC110  # threads notify no task
                await trio.sleep(0.01)
        if waiting.cancelled_caught:
            raise BusyError(
                f"{self.path}: a write does not end",
                action="raidx umount it",
                reason=Reason.NO_ANSWER,
            )
        decisions = [write.kept if keep == "all" else 0 for write in self._open]
        if keep == "some":
            seeds = (f"{seed}/{write.offset_bytes - origin_bytes}" for write in self._open)
            decisions = list(map(draw_cut, self._open, map(random.Random, seeds)))
        after = _Writes()
        cut_writes(after, self._open, decisions)
        for offset_bytes, content in after.writes:
            await self.inner.writev(offset_bytes, [content])
        await self.inner.flush()
        kept = sum(d == write.kept for write, d in zip(self._open, decisions, strict=True))
        lost = decisions.count(0)
        return Cut(kept, lost, len(decisions) - kept - lost)

    def _note(self, offset_bytes: int, data: bytes, before: bytes) -> None:
        self._open.append(OpenWrite(offset_bytes, data, before))
        self._open_bytes += len(data)
        while self._open_bytes > CACHE_BYTES:
            self._make_durable(1)

    def _make_durable(self, count: int) -> None:
        for write in self._open[: max(0, count)]:
            self._open_bytes -= len(write.data)
            self._durable += 1
        del self._open[: max(0, count)]

    def _check_power(self, operation: str, offset_bytes: int) -> None:
        if self.off:
            raise MemberError(self.path, operation, offset_bytes, errno.ENODEV, "the power was cut")


class _Writes:
    """Collects what `cut_writes` writes, as (offset in bytes, content), in order."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, bytes]] = []

    def __setitem__(self, key: slice, content: bytes) -> None:
        self.writes.append((key.start, bytes(content)))


class LabMember(FaultMember):
    """*inner*, opened as *spec*, with faults and a power switch. Deterministic by *seed*."""

    def __init__(self, inner: Member, *, spec: str = "", seed: int = 0) -> None:
        self.unflushed = UnflushedMember(inner)
        super().__init__(self.unflushed, seed=seed)
        self.surface = inner  # behind the cache: no power cut takes rot back
        self.spec = spec or inner.path

    def in_force(self) -> list[str]:
        """Return the kinds of the faults that can still hit, "vanished" among them."""
        kinds = [fault.kind for fault in self._faults if fault.count != 0]
        bad = ["unreadable"] if self._unreadable else []
        return [*kinds, *bad, *(["vanished"] if self._vanished else [])]

    def reseed(self, seed: int) -> None:
        self._random.seed(seed)

    async def rot(self, offset_bytes: int, length_bytes: int = 1, *, mask: int = 0x01) -> None:
        await super().rot(offset_bytes, length_bytes, mask=mask)
        await self.surface.flush()

    def switch_off(self) -> None:
        self.clear()
        self.unflushed.off = True

    async def cut_power(self, keep: Keep, seed: str, origin_bytes: int = 0) -> Cut:
        """Cut the power of the disk; see `UnflushedMember.cut_power`."""
        self.switch_off()
        return await self.unflushed.cut_power(keep, seed, origin_bytes)
