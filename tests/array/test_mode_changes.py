"""The mode of the journal does not change while regions are marked under the promise of another."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import BusyError, JobRunningError, Reason
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_SLOTS
from raidx_fuse.layouts.numbers import Stripe
from tests.support.reasons import because
from tests.support.spy import WRITE, SpyRig, Touch, fill, members_from, noise, spied, spying

CHUNK = 4096
STRIPE = 2 * CHUNK
SLOTS_BYTES = SUPERBLOCK_SLOT_BYTES * SUPERBLOCK_SLOTS


async def killed(rig: SpyRig, mode: str) -> list[bytes]:
    """Write full stripes past the log; return what the members hold then."""
    await rig.array.set("journal", mode)
    await fill(rig)
    await trio.sleep(30)
    await rig.in_place()
    await rig.put(0, noise(40 * STRIPE, 1))
    return rig.images()


@pytest.mark.parametrize(
    ("before", "after"), [("partial", "none"), ("full", "none"), ("none", "full")]
)
async def test_it_waits_for_the_resync_of_what_a_crash_left(before: str, after: str) -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK, stripes=600) as rig:
        images = await killed(rig, before)
    members = members_from(images if before == "none" else images[:2])
    async with open_array(members) as array:
        dirty = array.context.dirty_bitmap
        if before != "full":  # which bypasses nothing
            assert dirty.pending_regions()
            with pytest.raises(JobRunningError):
                await array.set("journal", after)
            assert array.get("journal") == before
    async with open_array(members) as array:  # a clean end: it starts, degraded or not
        for job in list(array.jobs.running()):
            await job.finished.wait()
        await array.set("journal", after)
    async with open_array(members) as array:
        assert array.get("journal") == after


async def test_it_waits_for_the_repair_of_torn_stripes() -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK, stripes=600)
    await killed(rig, "none")
    array = rig.array
    array.context.dirty_bitmap.note_torn([Stripe(3)])
    with pytest.raises(BusyError, check=because(Reason.TORN)):
        await array.set("journal", "partial")
    await array.jobs.wait(await array.start_scrub(repair=True))
    await array.set("journal", "partial")


@pytest.mark.parametrize(("before", "after"), [("none", "partial"), ("full", "none")])
async def test_superblocks_name_another_mode_only_when_no_request_is_under_way(
    before: str, after: str
) -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK, slow=True)
    context = rig.array.context
    await rig.array.set("journal", before)
    await fill(rig)
    held: list[list[Stripe]] = []

    def look(touch: Touch) -> None:
        if touch.kind == WRITE and touch.offset_bytes < SLOTS_BYTES:
            held.append(list(context.locks.held))

    rig.log.hook = look
    async with trio.open_nursery() as nursery:
        for stripe in range(20):
            nursery.start_soon(rig.put, stripe * STRIPE + 100, noise(CHUNK, stripe))
        await trio.testing.wait_all_tasks_blocked()
        assert context.locks.held
        await rig.array.set("journal", after)
    assert held
    assert not any(held)
    await rig.compare()
