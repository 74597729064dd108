"""Fault injection: a member with the faults of real disks, switched on and off while it runs.

| fault | what the caller sees | what happens |
|---|---|---|
| `error` (bad block) | MemberError | nothing is done |
| `hang` | no answer until the fault is lifted | then the operation is done |
| `slow` | a late answer | the operation is done, even if the caller abandoned it |
| kind "lost" | success | nothing is written |
| kind "misdirected" | success | the data are written elsewhere |
| kind "torn" | success, or an error if asked | a number of leading sectors is written |
| `rot` | nothing | stored bits flip (silent corruption) |
| `lose_sectors` | MemberError from reads, until they are written | nothing is done |
| `vanish` | ENODEV from every operation until `come_back` | the content stays unchanged |
| `shorten` | ShorterError from all but reads of what is left | nothing is done |

Every fault except the last four can be limited to a range of offsets, to a number of hits and to a
probability. Random decisions come from a generator of the member, so a seed reproduces them.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, TypedDict, Unpack

import trio

from raidx_fuse.errors import MemberError, ShorterError
from raidx_fuse.members.base import SECTOR_BYTES, Member, ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.simulated.virtual_time import sleep

Operation = Literal["read", "write", "flush"]
Kind = Literal["error", "hang", "slow", "lost", "misdirected", "torn"]
ALL: tuple[Operation, ...] = ("read", "write", "flush")
WRITE: tuple[Operation, ...] = ("write",)


class Limits(TypedDict, total=False):
    """To what a fault is limited: bytes of the member, a number of hits, a probability."""

    offset_bytes: int
    length_bytes: int | None
    count: int | None
    probability: float


@dataclass(slots=True, eq=False)
class Fault:
    """One active fault; `lift` ends it and releases the operations that it holds up.

    *hits* is the number of operations that it changed; *count* the number of hits left, None
    without limit. *length_bytes* is None for "up to the end of the member".
    """

    kind: Kind
    operations: Sequence[Operation]
    _: KW_ONLY
    offset_bytes: int = 0
    length_bytes: int | None = None
    count: int | None = None
    probability: float = 1.0
    number: int = errno.EIO
    delay_s: float = 0.0
    shift_bytes: int = 0
    hits: int = field(init=False, default=0)
    lifted: trio.Event = field(init=False, default_factory=trio.Event)

    def lift(self) -> None:
        """End the fault. Idempotent."""
        self.count = 0
        self.lifted.set()

    def covers(self, operation: Operation, begin: int, end: int) -> bool:
        """Return whether the fault can hit *operation* on the bytes *begin* .. *end* - 1."""
        if self.count == 0 or operation not in self.operations:
            return False
        if operation == "flush":
            return True
        length_bytes = self.length_bytes
        inside = length_bytes is None or begin < self.offset_bytes + length_bytes
        return end > self.offset_bytes and inside

    def draw(self, generator: random.Random) -> bool:
        """Return whether the fault hits one covered operation, and count the hit."""
        if self.probability < 1 and generator.random() >= self.probability:
            return False
        if self.count is not None:
            self.count -= 1
        self.hits += 1
        return True


class FaultMember(WrapperMember):
    """*inner* with faults. *injected* counts the hits by kind of fault. Deterministic by *seed*."""

    def __init__(self, inner: Member, *, seed: int = 0) -> None:
        super().__init__(inner)
        self.surface = inner  # what keeps the content, where it rots
        self.injected: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._faults: list[Fault] = []
        self._vanished = False
        self._left_bytes: int | None = None  # None: it has not become shorter
        self._unreadable: set[int] = set()  # sectors: latent sector errors
        self._healthy = True  # the only check on the path of a member without faults

    # -- switches ------------------------------------------------------------------------------

    def error(
        self,
        operations: Sequence[Operation] = ALL,
        *,
        number: int = errno.EIO,
        **limits: Unpack[Limits],
    ) -> Fault:
        """Fail operations with errno *number*: bad blocks, a burst of *count*, a bad cable."""
        return self.inject(Fault("error", operations, number=number, **limits))

    def hang(self, operations: Sequence[Operation] = ALL, **limits: Unpack[Limits]) -> Fault:
        """Complete no operation until the fault is lifted; abandoned ones take effect then."""
        return self.inject(Fault("hang", operations, **limits))

    def slow(
        self, delay_s: float, operations: Sequence[Operation] = ALL, **limits: Unpack[Limits]
    ) -> Fault:
        """Delay operations by *delay_s*: above the timeout of the array, a hang that ends."""
        return self.inject(Fault("slow", operations, delay_s=delay_s, **limits))

    def inject(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        self._healthy = False
        return fault

    def clear(self) -> None:
        """Lift every fault, including `vanish`."""
        for fault in self._faults:
            fault.lift()
        self._faults.clear()
        self._unreadable.clear()
        self.come_back()

    def vanish(self) -> None:
        """Fail every operation with ENODEV, like a disk with a pulled cable."""
        self._vanished = True
        self._healthy = False

    def come_back(self) -> None:
        """End `vanish`; the content is that of the moment of vanishing."""
        self._vanished = False
        self._healthy = self._left_bytes is None and not (self._faults or self._unreadable)

    def shorten(self, left_bytes: int) -> None:
        """Cut off all but *left_bytes*, like a truncated file; that stays so."""
        self._left_bytes = left_bytes
        self._healthy = False

    def lose_sectors(self, offset_bytes: int, count: int = 1) -> None:
        """Make *count* sectors from *offset_bytes* on unreadable until they are written."""
        first = offset_bytes // SECTOR_BYTES
        self._unreadable.update(range(first, first + count))
        self._healthy = False

    @property
    def unreadable(self) -> int:
        """How many sectors cannot be read."""
        return len(self._unreadable)

    async def rot(self, offset_bytes: int, length_bytes: int = 1, *, mask: int = 0x01) -> None:
        """Flip the bits of *mask* in every byte of a range; faults do not apply to this."""
        content = bytearray(length_bytes)
        await self.surface.readv(offset_bytes, [content])
        await self.surface.writev(offset_bytes, [bytes(byte ^ mask for byte in content)])
        self.injected["rot"] += 1

    # -- the member ----------------------------------------------------------------------------

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        if not self._healthy and not self._inline("read", offset_bytes, buffers):
            return False
        return self.inner.try_readv(offset_bytes, buffers)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        if not self._healthy and not self._inline("write", offset_bytes, buffers):
            return False
        if not self.inner.try_writev(offset_bytes, buffers):
            return False
        self._heal(offset_bytes, buffers)
        return True

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await self._hits("read", offset_bytes, sum(map(len, buffers)))
        await self.inner.readv(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        length = sum(map(len, buffers))
        self.check_range("write", offset_bytes, length)
        fault = await self._hits("write", offset_bytes, length)
        if fault is None:
            await self.inner.writev(offset_bytes, buffers)
            self._heal(offset_bytes, buffers)
        elif fault.kind == "misdirected":
            target = max(0, min(offset_bytes + fault.shift_bytes, self.size_bytes - length))
            await self.inner.writev(target, buffers)
        elif fault.kind == "torn":
            await self._tear(fault, offset_bytes, b"".join(buffers))

    async def flush(self) -> None:
        await self._hits("flush", -1, 0)
        await self.inner.flush()

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        fault = await self._hits("write", offset_bytes, length_bytes)
        return fault is None and await self.inner.punch(offset_bytes, length_bytes)

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        self._check_present("reserve", offset_bytes)
        self.inner.reserve(offset_bytes, length_bytes)

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        self._check_present("map", offset_bytes)
        return self.inner.data_extents(offset_bytes, length_bytes)

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return self.inner.view(offset_bytes, length_bytes) if self._healthy else None

    def try_check_whole(self) -> bool:
        if not self._healthy:
            self._check_size("check", -1, 0)
        return self.inner.try_check_whole()

    async def check_whole(self) -> None:
        if not self._healthy:
            self._check_size("check", -1, 0)
        await self.inner.check_whole()

    def _check_present(self, operation: str, offset_bytes: int) -> None:
        if self._vanished:
            self.injected["vanished"] += 1
            raise MemberError(self.path, operation, offset_bytes, errno.ENODEV, "the disk is gone")

    def _check_size(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        self._check_present(operation, offset_bytes)
        left = self._left_bytes
        if left is not None and (operation != "read" or offset_bytes + length_bytes > left):
            self.injected["shorter"] += 1
            raise ShorterError(self.path, operation, left, self.size_bytes)

    def _heal(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        if self._unreadable:
            self._unreadable -= set(_sectors(offset_bytes, sum(map(len, buffers))))

    def _covering(self, operation: Operation, offset_bytes: int, length: int) -> list[Fault]:
        """Return the faults that may hit an operation. Raises the errors of the disk as it is."""
        self._check_size(operation, offset_bytes, length)
        if operation == "read" and self._unreadable.intersection(_sectors(offset_bytes, length)):
            self.injected["unreadable"] += 1
            raise MemberError(self.path, operation, offset_bytes, errno.EIO)
        self._faults = [fault for fault in self._faults if fault.count != 0]
        self._healthy = self._left_bytes is None and not (self._faults or self._unreadable)
        end = offset_bytes + length
        return [fault for fault in self._faults if fault.covers(operation, offset_bytes, end)]

    def _inline(
        self, operation: Operation, offset_bytes: int, buffers: Sequence[ReadBuffer]
    ) -> bool:
        """Return whether the operation can be done inline; raises the errors of faults.

        False if a fault of another kind may hit: the async call then handles it.
        """
        covering = self._covering(operation, offset_bytes, sum(map(len, buffers)))
        if any(fault.kind != "error" for fault in covering):
            return False
        for fault in covering:
            if fault.draw(self._random):
                self._raise(fault, operation, offset_bytes)
        return True

    async def _hits(self, operation: Operation, offset_bytes: int, length: int) -> Fault | None:
        """Apply the faults that wait or raise; return the first that changes what is written.

        None if there is none.
        """
        if self._healthy:
            return None
        for fault in self._covering(operation, offset_bytes, length):
            if not fault.draw(self._random):
                continue
            if fault.kind == "error":
                self._raise(fault, operation, offset_bytes)
            self.injected[fault.kind] += 1
            if fault.kind == "hang":
                await fault.lifted.wait()
            elif fault.kind == "slow":
                await sleep(fault.delay_s)
            else:
                return fault
        self._check_present(operation, offset_bytes)  # it may have vanished during the wait
        return None

    def _raise(self, fault: Fault, operation: str, offset_bytes: int) -> None:
        self.injected["error"] += 1
        raise MemberError(self.path, operation, offset_bytes, fault.number)

    async def _tear(self, fault: Fault, offset_bytes: int, data: bytes) -> None:
        first_sector = offset_bytes // SECTOR_BYTES
        behind = -(-(offset_bytes + len(data)) // SECTOR_BYTES)
        cut = self._random.randrange(first_sector, behind) * SECTOR_BYTES - offset_bytes
        if cut > 0:
            await self.inner.writev(offset_bytes, [data[:cut]])
        if fault.number:
            raise MemberError(self.path, "write", offset_bytes, fault.number)


def _sectors(offset_bytes: int, length_bytes: int) -> range:
    return range(offset_bytes // SECTOR_BYTES, -(-(offset_bytes + length_bytes) // SECTOR_BYTES))
