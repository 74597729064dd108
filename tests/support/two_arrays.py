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
from raidx_fuse.pool.allocate import free_ranges
from raidx_fuse.pool.array_volumes import ArrayVolumes, open_volumes
from raidx_fuse.pool.move import MoveVolumes, open_pool, start_move
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume
from tests.support.arrays import small_log
from tests.support.closing import entered

PAGE = 4096
OVERHEAD_BYTES = 2 << 20
PAGES = 40  # of a volume
SLOW_BYTES = 16 * PAGE  # a second: a move of 40 pages lasts for some seconds


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
            size = OVERHEAD_BYTES + spec.data_pages * PAGE
            for number in range(spec.width):
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
                log_bytes=small_log(spec.layout, size, spec.width, spec.chunk_bytes, {}),
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


def volume_of(volumes: ArrayVolumes, ref: str) -> Volume:
    """Return the volume of an array with that name or UUID."""
    return next(one for one in volumes.volumes if ref in (one.name, one.uuid))


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


async def created(**options: bool) -> Arrays:
    """Return two arrays, which are not mounted."""
    arrays = Arrays(**options)
    await arrays.create()
    return arrays


async def mounted(arrays: Arrays) -> Pool:
    """Mount *arrays* until the test ends."""
    return await entered(arrays.mounted())


async def make(pool: Pool, array: str = "fast", name: str = "mail", pages: int = PAGES) -> Volume:
    """Create a volume that is written half."""
    volume = await pool.array(array).create(name, pages * PAGE)
    await volume.write(0, noise(pages // 2 * PAGE))
    await volume.flush()
    return volume


async def slow_move(pool: Pool, volume: str = "mail", array: str = "slow") -> None:
    """Start a move of small windows that takes some seconds."""
    source, _ = pool.find(volume)
    await start_move(pool, volume, array)
    move_of(source).limit(0, SLOW_BYTES)
    move_of(source).window = 1


async def ended(pool: Pool) -> None:
    """Return when all moves have ended."""
    for volumes in pool.arrays:
        for job in volumes.array.jobs.running():
            await job.finished.wait()
            assert job.state in ("done", "cancelled"), job.status()


async def is_tidy(pool: Pool) -> None:
    """Assert that no table names a move, and that every free byte reads as zero."""
    for volumes in pool.arrays:
        await volumes.wiped()
        table = volumes.table()
        assert not table.arrived
        assert all(record.move is None for record in table.volumes)
        assert {record.uuid for record in table.volumes} == {v.uuid for v in volumes.volumes}
        for extent in free_ranges(table.taken(), volumes.array.size_bytes):
            assert not any(await volumes.array.read(extent.offset, extent.length))
