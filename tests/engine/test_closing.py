"""The last part of a stripe that was filled from the front, when not all members take it at once.

Some have taken it then. The old data is gone that a read-modify-write or a lost member would need.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from raidx_fuse.array import Array
from raidx_fuse.closing import Closing
from raidx_fuse.testing.arrays import Rig
from raidx_fuse.testing.load import scrubbed
from raidx_fuse.virtual_time import run

CHUNK = 4096
STRIPE = 2  # that is filled
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width", "rows"),
    [("raid5", 5, 1), ("raid4", 6, 1), ("rdp", 4, 2), ("evenodd", 5, 2), ("upc", 4, 2)],
)


async def put(rig: Rig, offset: int, data: bytes) -> None:
    """Write to array and model."""
    assert rig.array is not None
    await rig.array.write(offset, data)
    rig.model[offset : offset + len(data)] = data


@asynccontextmanager
async def begun(
    layout: str, width: int, rows: int, policy: str, lacking: int
) -> AsyncIterator[tuple[Rig, Array, int]]:
    """Run a full array of whose stripe the log lacks *lacking* cells; give where they begin."""
    rig = Rig(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows)
    array = await rig.create()
    try:
        await put(rig, 0, random.Random(1).randbytes(len(rig.model)))
        await array.set("parity.policy", policy)
        await array.core.journal.drain()
        size = array.core.data_count * CHUNK
        await put(rig, STRIPE * size, random.Random(2).randbytes(size - lacking * CHUNK))
        assert array.core.journal.streams.cells(STRIPE), "the stripe is not being filled"
        yield rig, array, (STRIPE + 1) * size - lacking * CHUNK
    finally:
        await rig.close()


@pytest.mark.parametrize("lacking", [1, 2])
@LAYOUTS
def test_a_member_that_writes_late(layout: str, width: int, rows: int, lacking: int) -> None:
    async def main(late: int) -> None:
        async with begun(layout, width, rows, "rmw", lacking) as (rig, array, at):
            rig.members[late].error(["write"], offset_bytes=array.core.data_offset, count=1)
            await put(rig, at, random.Random(3).randbytes(lacking * CHUNK))
            assert not array.store.lost, "it was written when tried once more"
            await rig.compare()
            await scrubbed(rig)
            await array.core.journal.drain()
            await scrubbed(rig)

    for late in {1, width // 2, width - 1}:
        run(main, late)


@LAYOUTS
def test_another_member_that_fails_then(
    layout: str, width: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies on it comes back, before the write has ended as well as afterwards."""
    write = Closing.write
    lacking = 2  # one would be tried at once, which has seen that no member is lost

    async def main(gone: int) -> None:
        async with begun(layout, width, rows, "traditional", lacking) as (rig, array, at):
            last = array.core.layout.roles(STRIPE)[-1]  # written after all others
            if gone == last:
                return

            def failing(closing: Closing, offset: int, view: memoryview, length: int) -> int:
                done = write(closing, offset, view, length)
                assert not done
                assert array.store.fail(gone, "pulled out")
                return done

            monkeypatch.setattr(Closing, "write", failing)
            offset = array.core.data_offset
            rig.members[last].error(["write"], offset_bytes=offset, count=1)
            await put(rig, at, random.Random(3).randbytes(lacking * CHUNK))
            await rig.compare()
            await array.core.journal.drain()
            await rig.compare()

    for gone in range(width):
        monkeypatch.setattr(Closing, "write", write)
        run(main, gone)
