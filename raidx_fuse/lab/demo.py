"""An array to look at: the real engine on modelled disks in slow motion, under a small load.

It needs no root, no FUSE and no files, and answers the commands of a daemon, `inject` among them. A
disk takes a part of a second for each operation, so that people can follow; the clock is that of
the trio run, so tests play it in virtual time. The same seed gives the same requests.
"""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.commands.dispatch import Dispatcher
from raidx_fuse.daemon.commands.lab import LabCommands
from raidx_fuse.daemon.events.event import Event
from raidx_fuse.daemon.events.sources import Watch
from raidx_fuse.daemon.member_files import Own
from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.format.create import create_array
from raidx_fuse.layouts.registry import code_for, find_layout
from raidx_fuse.members.base import Member, ReadBuffer, WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.lab_member import LabMember
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.simulated.service import PRESETS, ServiceModel
from raidx_fuse.pool.volume import Volume

if TYPE_CHECKING:
    from raidx_fuse.documents import Event as EventDocument

CHUNK_BYTES = 4096
STRIPES = 24
METADATA_BYTES = 320 << 10
SLOW_EACH, SLOW_TIMES = 3, 3  # layouts for unlike disks: each third disk is three times as slow
EVENTS_KEPT = 40
TEXT = b"The quick brown fox jumps over the lazy dog. "
HOT_SHARE = 0.7  # of the requests go to a sixth of the image, so that there is something to tune
ACTION = "to replace a member, start the demo with --break and enter the token"
PAUSE_OPERATIONS = 8  # the longest pause between two requests, in times of an operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What is shown: *layout*, *disks*, and how long (*operation_s*) one operation takes."""

    layout: str = "raid5"
    disks: int = 4
    operation_s: float = 0.25
    seed: int = 0


class DemoDisk(ModelMember):
    """A modelled disk that takes time while *is_slow* says so: not at the start and the end."""

    def __init__(
        self, inner: Member, model: ServiceModel, seed: int, is_slow: Callable[[], bool]
    ) -> None:
        super().__init__(inner, model, seed=seed)
        self._is_slow = is_slow

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await (super().readv if self._is_slow() else self.inner.readv)(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        await (super().writev if self._is_slow() else self.inner.writev)(offset_bytes, buffers)

    async def flush(self) -> None:
        await (super().flush if self._is_slow() else self.inner.flush)()


class DemoArray:
    """A running demo; it answers as a mount would. See view/source.py for the methods."""

    where = "demo"
    actions: Collection[str] = ("fail-disk", "replace-disk", "inject", "add-disk", "tune", "scrub")

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._rows = code_for(demo.layout, demo.disks, {}).rows
        self._unlike = find_layout(demo.layout).bundled
        self._made: list[LabMember] = []
        self.memories: list[RamMember] = []
        self._told: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._handle: Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]  # since `begin`
        self.is_slow = False

    # -- members -----------------------------------------------------------------------------------

    def disk(self) -> LabMember:
        """Return a new disk, which the caller may not use before the array is open."""
        number = len(self._made)
        size = METADATA_BYTES + STRIPES * self._rows * CHUNK_BYTES
        ram = RamMember(size, name=f"disk{number}")
        is_slow = self._unlike and number % SLOW_EACH == SLOW_EACH - 1
        milliseconds = self._demo.operation_s * 1e3 * (SLOW_TIMES if is_slow else 1)
        model = replace(
            PRESETS["ram"],
            name="slow motion",
            read_access_ms=milliseconds,
            write_access_ms=1.5 * milliseconds,
            channels=2,
        )
        self.memories.append(ram)
        disk = DemoDisk(ram, model, number, lambda: self.is_slow)
        self._made.append(LabMember(disk, seed=number))
        return self._made[-1]

    async def open(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        create_bytes: int | None,
        own: Own | None = None,
    ) -> Member:
        return self.disk()

    async def check(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        may_create: bool,
        own: Own | None = None,
        look: Callable[[Member], Awaitable[None]] | None = None,
    ) -> int | None:
        return None

    async def release(self, member: Member) -> None:
        pass

    def replacement(self, path: str) -> str:
        return f"disk{len(self._made)}"

    # -- commands ----------------------------------------------------------------------------------

    def begin(self, array: Array, volume: Volume) -> None:
        started_s = trio.current_time()
        watch = Watch(self._told.append, self.where, lambda: int(trio.current_time() - started_s))
        watch.begin(array)
        array.nursery.start_soon(watch.run)
        lab = LabCommands([array], lambda: list(self._made), {})
        self._handle = Dispatcher([ArrayCommands(array, [volume], self)], lab=lab).handle
        self.is_slow = True

    async def ask(self, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        answers = [dict(await self._handle(name, dict(given))) for name, given in questions]
        for answer in answers:
            if answer.get("action") is not None:  # commands that there is no mount point for
                answer["action"] = ACTION
        return answers

    async def act(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if command == "crash":
            raise UsageError(
                "the demo has no power to cut", action="raidx mount --lab", reason=Reason.NOT_LAB
            )
        (result,) = await self.ask([(command, arguments)])
        return result

    async def events(self, uuid: str) -> list[EventDocument]:
        """Return what has happened, oldest first; times are seconds since the start."""
        return [event.as_dict() for event in self._told]


@asynccontextmanager
async def demo_array(demo: Demo) -> AsyncIterator[DemoArray]:
    """Yield a running *demo* under its load. Raises RaidxError, LayoutError."""
    shown = DemoArray(demo)
    chance = random.Random(demo.seed)
    disks = [shown.disk() for _ in range(demo.disks)]
    await create_array(  # at full speed: nobody waits for it
        shown.memories,
        demo.layout,
        chunk_bytes=CHUNK_BYTES,
        name="demo",
        now_s=0,
        uuid_source=lambda: str(uuid.UUID(int=chance.getrandbits(128), version=4)),
    )
    async with open_array(disks) as array:
        volume = Volume(
            "demo", array.size_bytes, read=array.read, write=array.write, flush=array.flush
        )
        await array.write(0, _text(array.size_bytes * 3 // 4 // CHUNK_BYTES * CHUNK_BYTES, chance))
        await array.flush()
        await array.context.journal.place()
        shown.begin(array, volume)
        stripe_bytes = array.context.code.data_count * CHUNK_BYTES
        async with trio.open_nursery() as nursery:
            pause_s = PAUSE_OPERATIONS * demo.operation_s
            nursery.start_soon(load, volume, stripe_bytes, pause_s, random.Random(demo.seed))
            try:
                yield shown
            finally:
                shown.is_slow = False  # nobody waits for the end
                nursery.cancel_scope.cancel()


async def load(volume: Volume, stripe_bytes: int, pause_s: float, chance: random.Random) -> None:
    """Send requests to *volume* until cancelled: small and large writes, reads, some flushes."""
    hot = max(1, volume.size_bytes // CHUNK_BYTES // 6)
    while True:
        chunks = volume.size_bytes // CHUNK_BYTES
        chunk = chance.randrange(min(hot, chunks) if chance.random() < HOT_SHARE else chunks)
        offset, kind = chunk * CHUNK_BYTES, chance.random()
        try:
            if kind < 0.3:
                await volume.read(offset, CHUNK_BYTES)
            elif kind < 0.6:
                await volume.write(offset, _text(512, chance))
            elif kind < 0.8:
                await volume.write(offset, _text(CHUNK_BYTES, chance))
            elif kind < 0.95:
                begin = offset - offset % stripe_bytes
                await volume.write(begin, _text(stripe_bytes, chance))
            else:
                await volume.flush()
        except RaidxError:
            pass  # the class has broken more than the code tolerates: the page says so
        await trio.sleep(pause_s * chance.random())


def _text(size_bytes: int, chance: random.Random) -> bytes:
    at = chance.randrange(len(TEXT))
    return (TEXT * (size_bytes // len(TEXT) + 2))[at : at + size_bytes]
