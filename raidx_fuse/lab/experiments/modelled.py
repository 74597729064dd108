"""Arrays on modelled disks for experiments: made, opened, and given new members during the run."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.engine.stripe_locks import StripeLocks
from raidx_fuse.format.configuration.volumes import Extent
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import Region
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.base import Member, ReadBuffer, WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.simulated.network import Link, NetworkMember, NetworkModel
from raidx_fuse.members.simulated.service import make_model
from raidx_fuse.members.spec import parse_spec
from raidx_fuse.store.buffers import ZEROS


class BlankMember(RamMember):
    """A member that keeps its metadata and drops its data: to measure only time.

    Writes to the region *forgotten* are dropped, and it reads as zeros. Zeros are consistent under
    every code (the XOR of zeros is zero), so rebuild and scrub find nothing wrong. An array of any
    size takes a few megabytes of memory, whatever a load writes.
    """

    forgotten = Region(0, 0)

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


MEMBER_BYTES = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The members of an array and how it is created.

    *members*: models, perhaps with own numbers, as behind ``model=`` in a member's spec. *size*:
    bytes of the image, None: all that fits. *log_bytes*: of the log, None: as `raidx create` makes
    it. *with_volume*: it has one volume, the whole image.
    *seed*: of the first member's rotation; those of the others follow.
    """

    layout: str
    members: Sequence[str]
    name: str = "lab"
    member_bytes: int = MEMBER_BYTES
    chunk_bytes: int = 64 << 10
    params: Mapping[str, Any] = field(default_factory=dict)
    size_bytes: int | None = None
    log_bytes: int | None = None
    with_volume: bool = True
    keeps_content: bool = False
    seed: int = 0
    network: NetworkModel | None = None


class Modelled:
    """The modelled members of an array on *hardware*, and those that join it later.

    *link* is the network that they share, if there is one.
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.link = Link(hardware.network, hardware.seed) if hardware.network else None
        self._forgotten = Region(0, 0)
        self._memories: list[RamMember] = []

    def member(self, model: str = "") -> Member:
        """Return a new member; *model* "": that of its number. Raises UsageError."""
        hardware, number = self.hardware, len(self._memories)
        memory: RamMember = (RamMember if hardware.keeps_content else BlankMember)(
            hardware.member_bytes, name=f"disk{number}"
        )
        text = model or hardware.members[number % len(hardware.members)]
        spec = parse_spec(f"ram:1MiB,model={text}")
        assert spec.model is not None
        self._memories.append(memory)
        if isinstance(memory, BlankMember):
            memory.forgotten = self._forgotten
        disk = ModelMember(
            memory, make_model(spec.model, **spec.numbers), seed=hardware.seed + number
        )
        return disk if self.link is None else NetworkMember(disk, self.link)

    def forget(self, region: Region) -> None:
        """Drop what is written to *region* of any member, unless the content is needed."""
        self._forgotten = region
        for memory in self._memories:
            if isinstance(memory, BlankMember):
                memory.forgotten = region


@asynccontextmanager
async def modelled_array(
    hardware: Hardware, chance: random.Random
) -> AsyncIterator[tuple[Array, Modelled]]:
    """Yield a new array on *hardware*, and its members. Raises RaidxError.

    *chance* is the source of UUIDs.
    """
    modelled = Modelled(hardware)
    members = [modelled.member() for _ in hardware.members]
    config = await create_array(
        members,
        hardware.layout,
        chunk_bytes=hardware.chunk_bytes,
        params=hardware.params,
        name=hardware.name,
        now_s=0,
        size_bytes=hardware.size_bytes,
        log_bytes=hardware.log_bytes,
        with_volume=hardware.with_volume,
        uuid_source=lambda: str(uuid.UUID(int=chance.getrandbits(128), version=4)),
    )
    modelled.forget(config.regions.data)
    async with open_array(members) as array:
        yield array, modelled


class NoLocks(StripeLocks):
    """Stripe locks that lock nothing: two writes of one stripe may both begin from the old parity.

    For experiments on members that keep no data, to see what taking turns on a stripe costs.
    """

    __slots__ = ()

    async def acquire(self, stripe: Stripe) -> None:
        pass

    def take_free(self, stripes: Iterable[Stripe]) -> list[Stripe]:
        return list(dict.fromkeys(stripes))

    async def acquire_all(self, stripes: Iterable[Stripe]) -> list[Stripe]:
        return list(stripes)

    def release(self, stripe: Stripe) -> None:
        pass


def assume_written(array: Array, extents: Sequence[Extent] | None = None) -> None:
    """Make every chunk of a fresh array, or of *extents* of it, count as written.

    The members read as zero, and zeros are consistent. Only the map in memory changes, so the array
    must not outlive its members.
    """
    written, size = array.context.written, array.context.layout.chunk_bytes
    for extent in extents or [Extent(0, written.chunks * size)]:
        first, end = extent.offset // size, -(-extent.end // size)
        whole_from, whole_to = -(-first // 8), end // 8
        ends = range(first, min(8 * whole_from, end)), range(max(first, 8 * whole_to), end)
        for chunk in chain(*ends):
            written.bits[chunk // 8] |= 1 << chunk % 8
        if whole_from < whole_to:
            written.bits[whole_from:whole_to] = b"\xff" * (whole_to - whole_from)
