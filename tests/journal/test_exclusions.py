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
from tests.support.spy import SpyRig, fill, noise, restarted, spying

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
        assert rig.running.member_set.unpublished
        images = rig.images()
    return images


async def check_old_content(
    rig: SpyRig, images: list[bytes], expected: bytes, role: int, untouched: CellIndex
) -> None:
    """Start from *images*: the parity is right, and the *untouched* cell comes back by it."""
    async with restarted(images) as array:
        assert array.member_set.queues[role] is not None
        job = await array.jobs.wait(await array.start_scrub(repair=False))
        assert job["mismatches"] == 0, job["findings"]
        await array.fail_disk(array.context.position(STRIPE, untouched)[0])
        at = array.context.layout.logical(STRIPE, untouched) * CHUNK
        assert bytes(await array.read(at, CHUNK)) == expected[at : at + CHUNK]


async def test_a_record_that_was_planned_without_a_member() -> None:
    async with spying("raid5", 6, chunk_bytes=CHUNK, stripes=600) as rig:
        await rig.running.set("journal", "full")
        await fill(rig)
        await trio.sleep(30)
        await rig.in_place()
        context, expected = rig.running.context, bytes(rig.model)
        role = context.position(STRIPE, CellIndex(1))[0]
        at = context.layout.logical(STRIPE, CellIndex(1)) * CHUNK
        images = await cut_while_unpublished(
            rig, role, lambda: rig.put(at, noise(2 * CHUNK + 512, 1))
        )
        await check_old_content(rig, images, expected, role, CellIndex(0))


@pytest.mark.parametrize("journal", ["partial", "full"])
async def test_a_parity_that_was_computed_without_its_member(journal: str) -> None:
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=600) as rig:
        await rig.running.set("journal", journal)
        await fill(rig)
        await trio.sleep(30)
        await rig.in_place()
        context, expected = rig.running.context, bytes(rig.model)
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

    async with spying("raid0", 2, chunk_bytes=CHUNK, stripes=64) as rig:
        await rig.running.set("journal", journal)
        await fill(rig)
        deaf = rig.members[0].error(("write",), length_bytes=SUPERBLOCKS_BYTES)
        with pytest.raises(ArrayFailedError):
            await rig.running.member_set.update(lambda config: config)
        assert not rig.running.member_set.lost
        with pytest.raises(ArrayFailedError):
            await rig.running.write(0, noise(512, 1))
        deaf.lift()
        await rig.put(0, noise(512, 1))
        await rig.compare()
