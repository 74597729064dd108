"""What was planned without a member is in the log only when superblocks say that the member is out.

Each test cuts the power while a member has failed and no superblock says so. All members are there
again at the next start: who failed is taken for whole, with what it held.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from raidx_fuse.errors import ArrayFailedError
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from tests.support.arrays import parity_holds
from tests.support.spy import SpyRig, filled, noise, restarted

CHUNK = 4096
SUPERBLOCKS_BYTES = 128 << 10
STRIPE = Stripe(40)


async def cut_while_unpublished(
    rig: SpyRig, role: int, begin: Callable[[], Awaitable[None]]
) -> list[bytes]:
    """Let *role* vanish and *begin* something; return what members hold before a superblock."""
    for other, member in enumerate(rig.members):
        if other != role:
            member.slow(5.0, ("write",), length_bytes=SUPERBLOCKS_BYTES)
    rig.members[role].vanish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        await trio.sleep(1)
        assert rig.array.member_set.unpublished
        images = rig.images()
    return images


async def check_old_content(
    rig: SpyRig, images: list[bytes], expected: bytes, role: int, untouched: CellIndex
) -> None:
    """Start from *images*: the parity is right, and the *untouched* cell comes back by it."""
    async with restarted(images) as array:
        assert array.member_set.queues[role] is not None
        await parity_holds(array)
        await array.fail_disk(array.context.position(STRIPE, untouched)[0])
        at = array.context.layout.logical(STRIPE, untouched) * CHUNK
        assert bytes(await array.read(at, CHUNK)) == expected[at : at + CHUNK]


async def test_a_record_that_was_planned_without_a_member() -> None:
    rig = await filled("raid5", 6, chunk_bytes=CHUNK, stripes=600, journal="full")
    await trio.sleep(30)
    await rig.in_place()
    context, expected = rig.array.context, bytes(rig.model)
    role = context.position(STRIPE, CellIndex(1))[0]
    at = context.layout.logical(STRIPE, CellIndex(1)) * CHUNK
    images = await cut_while_unpublished(rig, role, lambda: rig.put(at, noise(2 * CHUNK + 512, 1)))
    await check_old_content(rig, images, expected, role, CellIndex(0))


@pytest.mark.parametrize("journal", ["partial", "full"])
async def test_a_parity_that_was_computed_without_its_member(journal: str) -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=600, journal=journal)
    await trio.sleep(30)
    await rig.in_place()
    context, expected = rig.array.context, bytes(rig.model)
    at = context.layout.logical(STRIPE, CellIndex(1)) * CHUNK
    await rig.put(at, noise(512, 1))
    assert STRIPE in context.journal.unsettled
    role = context.position(STRIPE, CellIndex(context.code.data_count))[0]
    images = await cut_while_unpublished(rig, role, context.journal.place)
    await check_old_content(rig, images, expected, role, CellIndex(0))


@pytest.mark.parametrize("journal", ["none", "partial"])
async def test_no_small_write_is_acknowledged_while_a_superblock_lacks_the_configuration(
    journal: str,
) -> None:
    """No member is lost: this one cannot be spared."""
    rig = await filled("raid0", 2, chunk_bytes=CHUNK, stripes=64, journal=journal)
    deaf = rig.members[0].error(("write",), length_bytes=SUPERBLOCKS_BYTES)
    with pytest.raises(ArrayFailedError):
        await rig.array.member_set.update(lambda config: config)
    assert not rig.array.member_set.lost
    with pytest.raises(ArrayFailedError):
        await rig.array.write(0, noise(512, 1))
    deaf.lift()
    await rig.put(0, noise(512, 1))
    await rig.compare()
