"""A pool of arrays on modelled disks in virtual time, with clients that read its volumes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.format.configuration.volumes import VolumeTable
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.pool.array_volumes import open_volumes
from raidx_fuse.pool.move import open_pool
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume

MIB = 1 << 20
CHUNK = 16 << 10


class PoolRig:
    """Arrays by name, each of *width* disks of *model* in RAM; *members* outlive the mounts."""

    def __init__(
        self,
        arrays: Mapping[str, Mapping[str, int]],
        *,
        layout: str = "raid5",
        layouts: Mapping[str, str] | None = None,
        width: int = 4,
        member_bytes: int = 6 * MIB,
        model: str = "hdd",
    ) -> None:
        self.arrays = arrays
        self.layouts = dict.fromkeys(arrays, layout) | dict(layouts or {})
        self.members: dict[str, list[Member]] = {
            name: [
                model_member(
                    RamMember(member_bytes, name=f"{name}{i}"), model, seed=100 * number + i
                )
                for i in range(width)
            ]
            for number, name in enumerate(arrays)
        }

    async def create(self) -> None:
        """Create the arrays with their volumes, all of them written."""
        for name, members in self.members.items():
            await create_array(members, self.layouts[name], chunk_bytes=CHUNK, name=name, now_s=0)
        async with self.mounted(volumes=False) as pool:
            for volumes in pool.arrays:
                table = VolumeTable()
                await volumes.array.member_set.update(
                    lambda config, table=table: replace(config, volumes=table)  # type: ignore[misc]
                )
                for name, size in self.arrays[volumes.array.name].items():
                    volume = await volumes.create(name, size)
                    for at in range(0, size, MIB):
                        await volume.write(at, bytes(min(MIB, size - at)))

    @asynccontextmanager
    async def mounted(self, *, volumes: bool = True) -> AsyncIterator[Pool]:
        """Yield the pool; close everything after the block."""
        async with AsyncExitStack() as stack:
            parts = []
            for members in self.members.values():
                array = await stack.enter_async_context(open_array(members))
                parts.append(await stack.enter_async_context(open_volumes(array)))
            yield await stack.enter_async_context(open_pool(parts))


async def read_for_ever(volume: Volume, clients: int, think_s: float, seed: int) -> None:
    """Let *clients* read random chunks of *volume*, each thinking *think_s* in the mean between."""

    async def client(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        while True:
            await trio.sleep(rng.expovariate(1 / think_s))
            offset = rng.randrange(volume.size_bytes // CHUNK) * CHUNK
            volume.count_read(CHUNK)  # as a front end does
            await volume.read(offset, CHUNK)

    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(client, number)
