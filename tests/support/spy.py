"""Members that record their operations: what was done to them, in which order, and their content.

A `SpyMember` writes every read, write and flush into a `Log` that all members of a rig share, so
that a test can say "the superblocks were flushed before the write returned" or "the rebuild read
three chunks and no more". `SpyRig` is the rig of arrays.py with spies below its fault wrappers.
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.format.regions import Region
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.base import Member, ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import Fault, FaultMember
from tests.support.arrays import Rig
from tests.support.closing import entered

READ, WRITE, FLUSH = "read", "write", "flush"


@dataclass(frozen=True, slots=True)
class Touch:
    """One operation that reached a member: *size_bytes* at *offset_bytes* (-1 for a flush)."""

    member: str
    kind: str
    offset_bytes: int = -1
    size_bytes: int = 0


@dataclass
class Log:
    """The operations on all members of a rig, in order. *hook* is called before each write."""

    touches: list[Touch] = field(default_factory=list)
    hook: Callable[[Touch], None] | None = None

    def clear(self) -> None:
        """Remove all recorded operations."""
        self.touches.clear()

    def of(self, kind: str, region: Region | None = None, member: str | None = None) -> list[Touch]:
        """Return the operations of *kind*, of those that begin in *region*, of *member*."""
        return [
            touch
            for touch in self.touches
            if touch.kind == kind
            and (region is None or region.offset <= touch.offset_bytes < region.end)
            and (member is None or touch.member == member)
        ]

    def bytes_of(self, kind: str, region: Region, member: str | None = None) -> int:
        """Return how many bytes those operations moved."""
        return sum(touch.size_bytes for touch in self.of(kind, region, member))


class SpyMember(WrapperMember):
    """*inner*, whose operations go into *log*; lends no memory, so that nothing passes it by."""

    def __init__(self, inner: Member, log: Log) -> None:
        super().__init__(inner)
        self.log = log

    def _note(self, kind: str, offset_bytes: int = -1, buffers: Sequence[Any] = ()) -> None:
        touch = Touch(self.path, kind, offset_bytes, sum(map(len, buffers)))
        if kind == WRITE and self.log.hook is not None:
            self.log.hook(touch)
        self.log.touches.append(touch)

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        done = self.inner.try_readv(offset_bytes, buffers)
        if done:
            self._note(READ, offset_bytes, buffers)
        return done

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        if not isinstance(self.inner, RamMember):
            return False  # the hook must come before the write, and only the async way is sure
        self._note(WRITE, offset_bytes, buffers)
        return self.inner.try_writev(offset_bytes, buffers)

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        self._note(READ, offset_bytes, buffers)
        await self.inner.readv(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        self._note(WRITE, offset_bytes, buffers)
        await self.inner.writev(offset_bytes, buffers)

    async def flush(self) -> None:
        self._note(FLUSH)
        await self.inner.flush()

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        self._note(WRITE, offset_bytes, (bytes(length_bytes),))
        return await self.inner.punch(offset_bytes, length_bytes)

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return None


class SpyRig(Rig):
    """A rig whose members are watched.

    *rams* are the bare memories in the order in which they were made; *faults* the wrappers.
    """

    def __init__(self, layout: str, width: int, **options: Any) -> None:
        super().__init__(layout, width, **options)
        self.log = Log()
        self.rams: list[RamMember] = []

    def new_member(self, role: int | None = None) -> FaultMember:
        """Return a fresh, watched member."""
        member = super().new_member(role)
        ram = member.inner
        while isinstance(ram, WrapperMember):
            ram = ram.inner
        assert isinstance(ram, RamMember)
        self.rams.append(ram)
        member.inner = SpyMember(member.inner, self.log)
        return member

    @property
    def data(self) -> Region:
        """Where the data of every member lies."""
        return self.array.member_set.config.regions.data

    def images(self) -> list[bytes]:
        """Return what every member holds now: a power cut that loses nothing."""
        return [bytes(ram.memory) for ram in self.rams]

    async def in_place(self) -> None:
        """Wait until all logged content is at its home place and the log is empty."""
        await self.array.context.journal.drain()
        await self.array.flush()

    async def survives(self, **options: Any) -> None:
        """Assert that a start from what the members hold now, as after a cut, has the content."""
        images, model = self.images(), bytes(self.model)
        async with restarted(images, **options) as array:
            assert bytes(await array.read(0, len(model))) == model

    async def get(self, offset: int, length: int) -> bytes:
        """Read from the array."""
        return bytes(await self.array.read(offset, length))


@asynccontextmanager
async def spying(layout: str, width: int, **options: Any) -> AsyncIterator[SpyRig]:
    """Make members and an array, and close it in the end."""
    rig = SpyRig(layout, width, **options)
    await rig.create()
    try:
        yield rig
    finally:
        await rig.close()


async def spied(layout: str, width: int, **options: Any) -> SpyRig:
    """Return a rig with an open array, which is closed when the test ends."""
    return await entered(spying(layout, width, **options))


def lift(faults: Iterable[Fault]) -> None:
    """Let what *faults* were given to work again."""
    for fault in faults:
        fault.lift()


def members_from(images: Sequence[bytes]) -> list[RamMember]:
    """Return members with the content of *images*, as after a power cut."""
    members = []
    for number, image in enumerate(images):
        member = RamMember(len(image), name=f"cut{number}")
        member.memory[:] = image
        members.append(member)
    return members


@contextmanager
def locked(context: ArrayContext, *stripes: int) -> Iterator[None]:
    """Hold the locks of *stripes*, which are free."""
    taken = context.locks.take_free(map(Stripe, stripes))
    try:
        yield
    finally:
        context.locks.release_all(taken)


@asynccontextmanager
async def restarted(images: Sequence[bytes], **options: Any) -> AsyncIterator[Array]:
    """Run the array of *images*."""
    async with open_array(members_from(images), **options) as array:
        yield array


@functools.lru_cache(64)  # many tests fill many images alike
def noise(length: int, seed: int = 0) -> bytes:
    """Return random bytes: no mistake produces them."""
    return random.Random(seed).randbytes(length)


async def fill(rig: SpyRig) -> None:
    """Write the whole image once."""
    await rig.put(0, noise(len(rig.model), 99))
    await rig.array.flush()


async def filled(layout: str, width: int, *, journal: str = "", **options: Any) -> SpyRig:
    """Return a rig as `spied` does, whose image is written once, in the *journal* mode if any."""
    rig = await spied(layout, width, **options)
    if journal:
        await rig.array.set("journal", journal)
    await fill(rig)
    return rig


async def placed(layout: str, width: int, **options: Any) -> SpyRig:
    """Return a rig as `filled` does, all of it in its place; what follows is in its `Log`."""
    rig = await filled(layout, width, **options)
    await rig.in_place()
    rig.log.clear()
    return rig


def state_of(rig: SpyRig, role: int) -> str:
    """Return the state of the member in *role*."""
    return rig.array.member_set.config.record(role).state
