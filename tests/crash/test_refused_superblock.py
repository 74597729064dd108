"""A superblock that a member did not make durable is replaced; the one before it stays."""

from __future__ import annotations

import random

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.lab.crash.disks import Fault, SectorDisk

CUTS = 60


@pytest.mark.parametrize("rounds", [1, 2, 3])
async def test_a_cut_after_superblocks_whose_flushes_failed_leaves_an_older_one(
    rounds: int,
) -> None:
    rng = random.Random(rounds)
    disks = [SectorDisk(bytearray(1 << 20), rng, name=f"disk{n}") for n in range(2)]
    await create_array(disks, "raid0", chunk_bytes=4096, name="a", now_s=0)
    async with open_array(disks) as array:
        await array.write(0, b"x" * 4096)
        await array.flush()
        disks[1].give_fault(Fault(None, 0, 1000, lambda _event: None))
        for policy in ("rmw", "rcw", "traditional")[:rounds]:
            with pytest.raises(RaidxError):
                await array.set("parity.policy", policy)
        for _ in range(CUTS):
            states = [disk.cut.state for disk in disks]
            # Of each write nothing, one of the first sectors, or all.
            cuts = [[rng.choice((0, 1, 2, w.kept)) for w in s.open_writes] for s in states]
            left = [state.crash(cut) for state, cut in zip(states, cuts, strict=True)]
            again = [SectorDisk(i, rng, name=f"disk{n}") for n, i in enumerate(left)]
            async with open_array(again) as after:
                assert bytes(await after.read(0, 4096)) == b"x" * 4096
