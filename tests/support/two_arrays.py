"""Arrays in one pool, for tests: RAM members wrapped for faults, mounted and unmounted at will."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.pool.move import open_pool
from raidx_fuse.pool.move_job import MoveVolumes
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes, open_volumes

PAGE = 4096
OVERHEAD_BYTES = 2 << 20


class Spec(NamedTuple):
    """An array to make: *data_pages* of 4 KiB on each of *width* members."""

    name: str
    layout: str
    width: int
    chunk_bytes: int = PAGE
    data_pages: int = 64


SPECS = (Spec("fast", "raid1", 2), Spec("slow", "raid5", 4, 2 * PAGE))


class Arrays:
    """The members of several arrays by name, *shelf*, and which of them are mounted."""

    def __init__(self, specs: Sequence[Spec] = SPECS, *, slow: bool = False) -> None:
        self.specs = specs
        self.slow = slow
        self.shelf: dict[str, list[FaultMember]] = {}

    async def create(self) -> None:
        """Make the arrays, without volumes."""
        for spec in self.specs:
            members = []
            for number in range(spec.width):
                size = OVERHEAD_BYTES + spec.data_pages * PAGE
                ram = RamMember(size, name=f"{spec.name}{number}")
                disk = model_member(ram, "ssd", seed=number) if self.slow else ram
                members.append(FaultMember(disk))
            await create_array(
                members,
                spec.layout,
                chunk_bytes=spec.chunk_bytes,
                name=spec.name,
                now_s=0,
                with_volume=False,
            )
            self.shelf[spec.name] = members

    @asynccontextmanager
    async def mounted(self, *names: str, read_only: bool = False) -> AsyncIterator[Pool]:
        """Mount the arrays called *names*, all if there are none; unmount them cleanly."""
        async with AsyncExitStack() as stack:
            arrays = []
            for name in names or self.shelf:
                array = await stack.enter_async_context(
                    open_array(list(self.shelf[name]), read_only=read_only)
                )
                arrays.append(await stack.enter_async_context(open_volumes(array)))
            yield await stack.enter_async_context(open_pool(arrays))


def noise(size: int, seed: int = 1) -> bytes:
    """Return *size* bytes that look random."""
    return random.Random(seed).randbytes(size)


async def content(volume: Volume) -> bytes:
    """Return all bytes of *volume*."""
    return bytes(await volume.read(0, volume.size_bytes))


def move_of(volumes: ArrayVolumes, number: int = 0) -> MoveVolumes:
    """Return the running move or swap from an array."""
    jobs = [job for job in volumes.array.jobs.running() if isinstance(job, MoveVolumes)]
    return jobs[number]
