"""The chunk cache after degraded writes: a parity that becomes the data itself is not as it was."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, parity_holds, ram_array

CHUNK = 4096


@pytest.mark.parametrize("layout", ["evenodd", "rdp"])
async def test_a_parity_that_was_read_and_becomes_a_copy_is_cached_as_the_copy(layout: str) -> None:
    members = await ram_array(layout, 5, 2 << 20, chunk_bytes=CHUNK)
    rng = random.Random(layout)
    async with open_array(members) as array:
        array.context.use_cache(1 << 20)
        context = array.context
        stripe, cells = Stripe(0), range(context.code.data_count)
        column = context.code.column_of[0]
        lost = [cell for cell in cells if context.code.column_of[cell] == column]
        array.member_set.fail(context.position(stripe, CellIndex(0))[0], "for the test")
        content: dict[int, bytes] = {}

        async def write(cell: int) -> None:
            at = context.layout.logical(stripe, CellIndex(cell)) * CHUNK
            content[at] = rng.randbytes(CHUNK)
            await array.write(at, content[at])

        for beside in set(cells).difference(lost):  # in one chain after the other of lost cells
            await write(beside)
            for _ in range(3):  # the later ones read what the earlier ones have left in the cache
                for cell in lost:
                    await write(cell)
        await array.membership.add_spare(RamMember(2 << 20, name="spare"))
        await trio.sleep(1)
        await jobs_ended(array)
        for at, wanted in content.items():
            assert await array.read(at, CHUNK) == wanted
        await parity_holds(array)
