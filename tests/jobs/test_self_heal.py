"""Self-healing of raidx arrays: lost chunks are restored onto the others' free chunks."""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.array.advice import action
from raidx_fuse.errors import UnrecoverableError
from raidx_fuse.layouts.numbers import Role, Stripe
from tests.support.arrays import job_ended
from tests.support.unlike import CHUNK, UnlikeRig


async def test_redundancy_comes_back_by_itself_after_a_while_unless_it_shall_not() -> None:
    rig = UnlikeRig("raidx-parity", 3, (40, 34, 38, 36, 40), room=0.7)
    array = await rig.create(0.8)
    await array.set("restore.after", "off")
    await array.fail_disk(0)
    await trio.sleep(600)
    assert array.member_set.lost == {0}
    assert array.status()["state"] == "degraded"
    await array.set("restore.after", "30s")
    await trio.sleep(2)
    await rig.settle()
    assert not array.member_set.lost
    assert array.status()["redundancy_left"] == 1
    await rig.check()
    await array.fail_disk(2)  # as redundant as before: another one may go
    await rig.compare()
    await trio.sleep(20)
    assert array.member_set.lost == {2}
    await trio.sleep(15)
    await rig.settle()
    assert len(array.member_set.config.roles()) == 3
    await rig.check()
    await rig.remount()


async def test_without_room_for_all_written_chunks_are_restored_first() -> None:
    rig = UnlikeRig("raidx-copy", 2, (40, 12, 14), room=0.0)
    array = await rig.create(0.2)
    lost = rig.bundles.used_chunks()[2]
    free = sum(rig.bundles.counts) - sum(rig.bundles.used_chunks())
    await array.fail_disk(2)
    status = array.status()
    assert status["restore"]["chunks_without_place"] > 0, "said at once"
    assert "have no free place" in str(action({**status, "mountpoint": "/mnt"}))
    await trio.sleep(63)
    await rig.settle()
    assert array.member_set.lost == {2}  # there is no room for all
    left = rig.bundles.used_chunks()[2]
    assert 0 < left < lost
    assert lost - left <= free
    await rig.compare()
    member = rig.disk(60)
    await array.replace_disk(2, member)
    rig.members.append(member)
    await rig.settle()
    assert not array.member_set.lost
    await rig.check()
    await rig.remount()


async def test_a_new_disk_goes_before_a_restoration_and_a_small_spare_does_not() -> None:
    rig = UnlikeRig("raidx-parity", 3, (40, 34, 38, 36, 30), room=0.5, slow=True)
    array = await rig.create(0.8)
    await array.set("speed_max", "8KiB")
    await array.set("restore.after", "0")
    await array.fail_disk(0)
    await trio.sleep(3)
    assert array.status()["state"] == "restoring"
    moved = array.jobs.running()[0].status()["chunks_moved"]
    assert moved
    await array.replace_disk(0, disk := rig.disk(40))
    await array.set("speed_max", "0")  # not before: the restoration would end meanwhile
    rig.members.append(disk)
    await rig.settle()
    assert array.member_set.config.record(0).state == "active"
    assert rig.bundles.used_chunks()[0] > 0
    await rig.check()
    await rig.remount()


async def test_a_degraded_array_without_room_takes_a_small_disk_for_what_it_lost() -> None:
    rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26, 22))
    array = await rig.create(0.7)
    size = array.size_bytes
    await array.fail_disk(1)
    await trio.sleep(63)
    await rig.settle()
    await trio.sleep(63)
    status = array.status()
    assert status["state"] == "degraded"
    assert status["restore"]["chunks_without_place"] > 0
    new = [rig.disk(18), rig.disk(19)]  # each smaller than what was lost
    said = await array.rebundle.plan().cost([disk.size_bytes for disk in new])
    await array.grow(new)
    rig.members += new
    assert array.jobs.running()[0].status()["kind"] == "grow"
    await trio.sleep(125)
    await rig.settle()
    status = array.status()
    assert (status["state"], status["redundancy_left"]) == ("clean", 1)
    assert status["restore"] is None
    assert array.size_bytes == said["size_after"] >= size
    await rig.check()
    await rig.remount()


async def test_a_restoration_that_a_user_cancels_does_not_begin_again() -> None:
    rig = UnlikeRig("raidx-parity", 3, (40, 34, 38, 36, 40), room=0.5, slow=True)
    array = await rig.create(0.9)
    await array.set("speed_max", "8KiB")
    await array.set("restore.after", "0")
    await array.fail_disk(0)
    await trio.sleep(3)
    (job,) = array.jobs.running()
    array.jobs.cancel(job.job_id)
    await job_ended(job, "cancelled")
    await array.set("speed_max", "0")
    await trio.sleep(300)
    assert array.member_set.lost == {0}
    assert not array.jobs.running()
    await array.remove_disk(0)  # the user's word
    await rig.settle()
    assert not array.member_set.lost
    await rig.check()


async def test_a_restoration_passes_what_nothing_gives_back_and_lists_it() -> None:
    rig = UnlikeRig("raidx-parity", 3, (40, 34, 38, 36, 40), room=0.7)
    array = await rig.create(0.8)
    await array.context.journal.drain()
    damaged, lost = 1, 0
    held = [set(rig.bundles.cells_of(Role(role)).tolist()) for role in (damaged, lost)]
    both = [{cell // 3 for cell in cells if cell >= 0} for cells in held]
    unwritten = array.context.unwritten_cells
    bundle = min(b for b in both[0] & both[1] if not unwritten(Stripe(b)))
    chunk = next(n for n, cell in enumerate(rig.bundles.cells_of(Role(1))) if cell // 3 == bundle)
    rig.members[damaged].lose_sectors(array.context.member_set.data_offset + chunk * CHUNK)
    await array.set("restore.after", "0")
    await array.fail_disk(lost)
    await trio.sleep(3)
    with trio.fail_after(600):  # virtual
        await rig.settle()
    assert not array.member_set.lost
    assert lost not in array.member_set.config.roles()
    numbers = array.context.bad_chunks.first(10)
    assert numbers
    assert {rig.bundles.locate(number)[0] for number in numbers} == {bundle}
    for number in numbers:
        with pytest.raises(UnrecoverableError):
            await array.read(number * CHUNK, CHUNK)
        data = bytes([number & 255]) * CHUNK
        await rig.put(number * CHUNK, data)
    await rig.check()
    await rig.remount()
