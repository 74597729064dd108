"""A member that still answers is replaced without losing redundancy meanwhile."""

from __future__ import annotations

import errno
import random
from collections.abc import Mapping
from typing import Any

import pytest
import trio

from raidx_fuse.errors import JobRunningError, MemberError
from raidx_fuse.format.log_record import holder_of
from raidx_fuse.jobs.replace import Replace, Twin
from raidx_fuse.lab.crash.disks import SLOTS_BYTES
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import job_ended, parity_holds
from tests.support.load import eventually
from tests.support.spy import (
    FLUSH,
    SpyRig,
    fill,
    filled,
    noise,
    placed,
    restarted,
    spied,
    spying,
    state_of,
)

CHUNK = 4096
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width"),
    [("raid0", 2), ("raid1", 2), ("raid5", 4), ("rdp", 4), ("raidx-copy", 3), ("raidx-parity", 5)],
)


async def begin(rig: SpyRig, role: int, member: FaultMember | None = None) -> Replace:
    """Begin to replace the member in *role*, slowly; return the job."""
    new = member or rig.new_member(role if rig.member_chunks else None)
    rig.members.append(new)
    await rig.array.replace_disk(role, new)
    (job,) = (j for j in rig.array.jobs.running() if isinstance(j, Replace))
    job.limit(8192, 8192)
    job.window = 1
    return job


async def finish(rig: SpyRig, job: Replace) -> Mapping[str, Any]:
    """Let *job* end; return its status."""
    job.limit(0, 0)
    return await rig.array.jobs.wait(job.job_id)


async def consistent(rig: SpyRig) -> None:
    """Check every byte, and every chain."""
    await rig.compare()
    await parity_holds(rig.array)


@pytest.mark.parametrize("reads_zero", [True, False])
@LAYOUTS
async def test_the_role_is_never_lost_and_the_new_member_has_everything(
    layout: str, width: int, reads_zero: bool
) -> None:
    rig = await spied(layout, width, chunk_bytes=CHUNK, reads_zero=reads_zero)
    await rig.put(0, noise(len(rig.model) // 2, 1))  # the rest is unwritten
    left = rig.array.status()["redundancy_left"]
    old = rig.members[1]
    job = await begin(rig, 1)
    draw = random.Random(2)
    for _ in range(30):
        length = draw.choice((100, 512, CHUNK, 3 * CHUNK))
        await rig.put(draw.randrange(len(rig.model) - length), noise(length, length))
        status = rig.array.status()
        assert status["redundancy_left"] == left
        assert state_of(rig, 1) == "active"
    assert (await finish(rig, job))["state"] == "done"
    assert rig.array.status()["members"][1]["path"] == rig.members[-1].path
    old.vanish()  # nobody needs it
    await consistent(rig)
    rig.members.remove(old)
    await rig.reopen()
    await consistent(rig)


async def test_it_ends_with_everything_done_where_stripes_are_written_in_part() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    await rig.put(0, noise(CHUNK, 1))  # a data cell of stripe 0, and its parity
    for role in (1, 2):
        done = await finish(rig, await begin(rig, role))
        assert (done["state"], done["done"]) == ("done", done["total"])
    await consistent(rig)


async def test_what_the_member_cannot_read_comes_from_the_others() -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK)
    context = rig.array.context
    old = rig.members[2]
    for stripe in range(12):  # neither can it be written there again
        cell = next(c for c in range(4) if context.position(Stripe(stripe), CellIndex(c))[0] == 2)
        place = context.position(Stripe(stripe), CellIndex(cell))[1]
        old.error(("read", "write"), offset_bytes=place, length_bytes=SECTOR_BYTES)
    job = await begin(rig, 2)
    assert (await finish(rig, job))["state"] == "done"
    assert state_of(rig, 2) == "active"
    assert not rig.array.member_set.unreadable
    await consistent(rig)


@pytest.mark.parametrize("spare_takes_over", [True, False])
async def test_if_the_member_fails_meanwhile_its_role_is_rebuilt_onto_the_new_one(
    spare_takes_over: bool,
) -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    await trio.sleep(1)
    if spare_takes_over:
        rig.members[1].vanish()
        await rig.put(0, noise(9 * CHUNK, 1))
    else:
        await rig.array.fail_disk(1)
    await job_ended(job, "failed")
    await eventually(lambda: state_of(rig, 1) == "active", 3600, 1)
    assert rig.array.status()["members"][1]["path"] == rig.members[-1].path
    await consistent(rig)


async def test_a_cancelled_one_leaves_a_spare_that_others_can_use() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    with pytest.raises(JobRunningError):
        await rig.array.remove_disk(rig.members[-1].path)
    with pytest.raises(JobRunningError):
        await rig.array.replace_disk(2, rig.new_member())
    job.cancel()
    await job_ended(job, "cancelled")
    assert [r.state for r in rig.array.member_set.config.members] == [*["active"] * 4, "spare"]
    await rig.array.fail_disk(3)
    await trio.sleep(60)
    assert state_of(rig, 3) == "active"
    await consistent(rig)


@pytest.mark.parametrize("end", ["cancel", "absent", "old member fails"])
@pytest.mark.parametrize(("layout", "width"), [("raid1", 2), ("raid5", 4), ("raidx-parity", 5)])
async def test_what_was_copied_before_it_ended_is_not_there_after_a_discard(
    layout: str, width: int, end: str
) -> None:
    """The new member is a spare then, on which nothing is punched."""
    rig = await filled(layout, width, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    new = rig.members[-1]
    job.limit(0, 0)
    while job.next_stripe < rig.array.context.layout.stripes // 2:
        await trio.lowlevel.checkpoint()
    if end == "cancel":
        job.cancel()
        await job.finished.wait()
    elif end == "absent":
        rig.members.remove(new)
        await rig.reopen()
        await rig.close()
        rig.members.append(new)
        await rig.open()
    else:
        rig.array.membership.hold_spares()
        await rig.array.fail_disk(1)
        await job.finished.wait()
    await rig.discard(0, len(rig.model))
    if end == "old member fails":
        rig.array.membership.release_spares()
    else:
        await rig.array.fail_disk(1)
    await trio.sleep(60)
    queue = rig.array.member_set.queues[1]
    assert queue is not None
    assert queue.member is new
    for at in range(0, len(rig.model), CHUNK):
        await rig.put(at + 100, noise(10, at))
    await consistent(rig)
    rig.members[0].vanish()
    await rig.compare()


@pytest.mark.parametrize("clean", [True, False])
async def test_it_goes_on_after_a_remount(clean: bool) -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    await trio.sleep(3)
    await rig.put(0, noise(CHUNK, 1))
    copied = job.next_stripe
    assert copied > 2
    if not clean:
        rig.array.member_set.end_superblocks()
    array = await rig.reopen()
    (job,) = (j for j in array.jobs.running() if isinstance(j, Replace))
    assert job.next_stripe >= copied if clean else job.next_stripe <= copied
    await rig.put(5 * CHUNK, noise(CHUNK, 2))
    old = rig.members[1]
    assert (await finish(rig, job))["state"] == "done"
    old.vanish()
    rig.members.remove(old)
    await consistent(rig)


@LAYOUTS
async def test_an_old_copy_of_the_new_member_is_copied_anew(layout: str, width: int) -> None:
    """Put back while the array is not mounted: the position counts for what it was made from."""
    rig = await filled(layout, width, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    old = bytes(rig.rams[-1].memory)
    job.limit(0, 0)
    while job.next_stripe < rig.array.context.layout.stripes // 2:
        await trio.lowlevel.checkpoint()
    await rig.close()
    rig.rams[-1].memory[:] = old
    array = await rig.open()
    (job,) = (j for j in array.jobs.running() if isinstance(j, Replace))
    assert (await finish(rig, job))["state"] == "done"
    rig.members.pop(1).vanish()
    await consistent(rig)


@pytest.mark.parametrize("mode", ["partial", "none"])
@pytest.mark.parametrize("reads_zero", [True, False])
@pytest.mark.parametrize(("layout", "width"), [("raid0", 2), ("raid1", 2), ("raid5", 3)])
async def test_a_first_write_that_was_under_way_when_it_began_is_not_left_out(
    layout: str, width: int, reads_zero: bool, mode: str
) -> None:
    """It reached the member alone, in a stripe that the copy took for unwritten."""
    rig = await spied(layout, width, chunk_bytes=CHUNK, reads_zero=reads_zero)
    await rig.array.set("journal", mode)
    await rig.put(0, noise(CHUNK, 1))
    async with trio.open_nursery() as nursery:
        data_offset = rig.array.member_set.data_offset
        rig.members[1].slow(1.0, ("write",), offset_bytes=data_offset, count=1)
        nursery.start_soon(rig.put, 4 * CHUNK, noise(4 * CHUNK, 2))
        await trio.sleep(0.1)
        job = await begin(rig, 1)
        assert (await finish(rig, job))["state"] == "done"
    rig.members[1].vanish()
    await consistent(rig)


async def test_a_flush_makes_the_copies_durable() -> None:
    """A clean end flushes, then saves the position: what lies below it must not be taken back."""
    rig = await filled("raid0", 3, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    await trio.sleep(3)
    await rig.array.flush()
    copied = job.next_stripe
    await eventually(lambda: job.next_stripe != copied, 60, 0.1)
    rig.log.clear()
    await rig.array.flush()
    assert rig.log.of(FLUSH, member=rig.members[-1].path)


async def test_a_start_without_the_new_member_ends_the_replacement() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    await begin(rig, 1)
    await trio.sleep(3)
    new = rig.members.pop()
    await rig.reopen()  # without the new member, which misses this:
    await rig.put(0, noise(len(rig.model), 5))
    await rig.close()
    rig.members.append(new)
    array = await rig.open()
    assert not [j for j in array.jobs.running() if isinstance(j, Replace)]
    await consistent(rig)


async def test_a_position_counts_for_the_next_start_alone() -> None:
    """A start that was cut off may have written what the new member lacks, behind the position."""
    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await fill(rig)
        await begin(rig, 1)
        await trio.sleep(3)
        array = await rig.reopen()
        (job,) = (j for j in array.jobs.running() if isinstance(j, Replace))
        assert job.next_stripe > 2
        job.limit(8192, 8192)
        behind = 2 * array.context.code.data_count * CHUNK
        await rig.put(0, noise(behind, 4))  # its region is marked
        await trio.sleep(0.1)
        before = rig.images()[-1]
        await rig.put(0, noise(behind, 5))  # past the log
        images = [*rig.images()[:-1], before]
        model = bytes(rig.model)
    async with restarted(images) as array:
        (job,) = (j for j in array.jobs.running() if isinstance(j, Replace))
        assert bytes(await array.read(0, len(model))) == model
        assert (await array.jobs.wait(job.job_id))["state"] == "done"
        assert bytes(await array.read(0, len(model))) == model
        await parity_holds(array)


async def test_a_log_that_could_not_move_to_the_new_member_moves_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then its records are not believed, and would have a copy less than they need."""
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    await rig.put(0, noise(len(rig.model), 1))
    job = await begin(rig, 1)
    ring = rig.array.context.journal.ring

    async def fail(_others: Any) -> None:
        monkeypatch.undo()
        raise MemberError("ram0", "write", 0, errno.EIO)

    monkeypatch.setattr(ring, "believe_also", fail)
    assert (await finish(rig, job))["state"] == "done"
    new = holder_of(rig.array.member_set.config.record(Role(1)).member_uuid)
    assert new not in ring.holders, "the log did not fail to move"
    await eventually(lambda: not (new not in ring.holders), 60, 1)
    await consistent(rig)


@pytest.mark.parametrize("fault", ["vanish", "superblock"])
async def test_the_new_member_may_fail_when_it_gets_the_role(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    new = rig.members[-1]
    assert isinstance(new, FaultMember)
    pass_on = Twin.pass_on

    def pass_on_and_fail(twin: Twin) -> None:
        pass_on(twin)
        if fault == "vanish":
            new.vanish()
        else:  # neither of its superblocks can be written
            new.error(("write",), offset_bytes=0, length_bytes=SLOTS_BYTES)

    monkeypatch.setattr(Twin, "pass_on", pass_on_and_fail)
    await finish(rig, job)
    assert rig.array.nursery.bug is None
    assert state_of(rig, 1) == "failed"
    rig.members.remove(new)
    await rig.compare()
    await rig.array.replace_disk(1, rig.new_member(1))
    for rebuild in rig.array.jobs.running():
        await rig.array.jobs.wait(rebuild.job_id)
    await consistent(rig)
