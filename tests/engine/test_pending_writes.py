"""Full-stripe writes of which some members took their part synchronously and others did not.

What is there then is no stripe: nobody may plan by it, and it may not stay, whatever becomes of the
request.
"""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.members.simulated.faulty import WRITE, Fault
from tests.support.arrays import parity_holds
from tests.support.load import scrubbed
from tests.support.spy import SpyRig, members_from, restarted, spying

CHUNK = 4096
STRIPE = 2  # that is written whole
WAITED_FOR = 1  # stripe before it, which somebody holds
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width", "rows"),
    [("raid5", 5, 1), ("raid4", 6, 1), ("rdp", 4, 2), ("evenodd", 5, 2), ("upc", 4, 2)],
)


def noise(length: int, seed: int) -> bytes:
    """Return bytes of *seed*."""
    return random.Random(seed).randbytes(length)


async def _full(rig: SpyRig) -> int:
    """Fill *rig*, its log empty; return the bytes of a stripe."""
    await rig.put(0, noise(len(rig.model), 99))
    await rig.array.set("parity.policy", "rmw")
    await rig.in_place()
    return rig.array.context.code.data_count * CHUNK


def _late_in_data(rig: SpyRig, role: int) -> None:
    data = rig.array.member_set.config.regions.data
    fault = Fault(
        "slow", WRITE, offset_bytes=data.offset, length_bytes=data.length, delay_s=0.01, count=1
    )
    rig.members[role].inject(fault)


@pytest.mark.parametrize("chunks", [0.125, 2])  # inside a chunk, and a beginning of the stripe
@LAYOUTS
async def test_another_write_waits_for_the_rest(
    layout: str, width: int, rows: int, chunks: float
) -> None:
    """Whichever member is lost after its flush, in a cut while the first request still waits."""
    async with spying(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows) as rig:
        array, size = rig.array, await _full(rig)
        await array.context.locks.acquire_all([WAITED_FOR])
        _late_in_data(rig, width - 1)
        second = noise(int(chunks * CHUNK), 2)
        first_done = trio.Event()

        async def first() -> None:
            await array.write(STRIPE * size - CHUNK, noise(size + CHUNK, 1))
            first_done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.sleep(0.001)
            assert STRIPE in array.context.locks.held, "others may plan by half a stripe"
            await array.write(STRIPE * size, second)
            await array.flush()
            assert not first_done.is_set(), "it did not wait for the other stripe"
            images = rig.images()
            array.context.locks.release(WAITED_FOR)
        rig.model[STRIPE * size - CHUNK : (STRIPE + 1) * size] = noise(size + CHUNK, 1)
        rig.model[STRIPE * size : STRIPE * size + len(second)] = second
        await scrubbed(rig)
    for gone in range(width):
        left = [m for role, m in enumerate(members_from(images)) if role != gone]
        async with open_array(left) as array:
            assert bytes(await array.read(STRIPE * size, len(second))) == second


@LAYOUTS
async def test_a_cancelled_request_leaves_no_torn_stripe(
    layout: str, width: int, rows: int
) -> None:
    async with spying(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows) as rig:
        array, size = rig.array, await _full(rig)
        await array.context.locks.acquire_all([WAITED_FOR])
        _late_in_data(rig, width - 1)
        with trio.move_on_after(0.001) as scope:
            await array.write(STRIPE * size - CHUNK, noise(size + CHUNK, 1))
        assert scope.cancelled_caught
        assert list(array.context.locks.held) == [WAITED_FOR]
        array.context.locks.release(WAITED_FOR)
        rig.model[STRIPE * size : (STRIPE + 1) * size] = noise(size + CHUNK, 1)[CHUNK:]
        await rig.compare()
        await array.close()
        images = rig.images()
    async with restarted(images) as array:
        await parity_holds(array)


@LAYOUTS
async def test_the_member_that_was_late_fails(layout: str, width: int, rows: int) -> None:
    for role in range(width):
        async with spying(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows) as rig:
            array, size = rig.array, await _full(rig)
            rig.members[role].error(["write"], offset_bytes=array.context.member_set.data_offset)
            await rig.put(STRIPE * size, noise(2 * size, 1))
            assert role in array.member_set.lost
            assert not array.member_set.unpublished, "the superblocks do not say so yet"
            assert not array.context.locks.held
            await rig.compare()
