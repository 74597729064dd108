"""Arrays of modelled disks for tests of the tuner."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from tests.support.closing import entered

MIB = 1 << 20
CHUNK = 65536


@asynccontextmanager
async def compared(
    kinds: list[tuple[str, int]], layout: str = "raidx-zero", written: int = 24 * MIB
) -> AsyncIterator[tuple[Array, bytearray]]:
    """Run an array of (model, MiB) members with *written* bytes of content, compared in the end."""
    members = [
        model_member(RamMember(size * MIB, name=f"{kind}{number}"), kind, seed=number)
        for number, (kind, size) in enumerate(kinds)
    ]
    smallest = min(size for _, size in kinds) * MIB
    await create_array(
        members,
        layout,
        chunk_bytes=CHUNK,
        name="tuned",
        now_s=0,
        log_bytes=max(smallest // 32, (2 * len(members) + 1) * CHUNK),  # two stripes at least
    )
    async with open_array(members) as array:
        model = bytearray(random.Random(5).randbytes(min(written, array.size_bytes)))
        for at in range(0, len(model), MIB):
            await array.write(at, model[at : at + MIB])
        await array.flush()
        yield array, model
        for at in range(0, len(model), MIB):
            assert await array.read(at, min(MIB, len(model) - at)) == model[at : at + MIB]
    async with open_array(members) as array:
        for at in range(0, len(model), MIB):
            assert await array.read(at, min(MIB, len(model) - at)) == model[at : at + MIB]


async def made(
    kinds: list[tuple[str, int]], layout: str = "raidx-zero", written: int = 24 * MIB
) -> tuple[Array, bytearray]:
    """Return such an array and its model."""
    return await entered(compared(kinds, layout, written))
