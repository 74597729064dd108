"""A replacement whose new member fails ends cleanly: nothing of it is left for what comes next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.configuration.saved_jobs import REPLACE
from raidx_fuse.jobs.replace import Twin
from raidx_fuse.lab.crash.disks import SLOTS_BYTES
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.base import Member
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.jobs.test_replace import CHUNK, begin, consistent, finish
from tests.support.arrays import job_ended
from tests.support.hanging import hanging, refused
from tests.support.spy import SpyRig, filled, noise, spied, state_of

Next = Callable[[SpyRig], Awaitable[None]]


async def break_new(rig: SpyRig, role: int, fault: str) -> FaultMember:
    """Begin to replace *role*; break the new member meanwhile; return it when the job has ended."""
    job = await begin(rig, role)
    new = rig.members.pop()
    await trio.sleep(1)
    if fault == "vanish":
        new.vanish()
    else:
        new.hang(("write",))
    await rig.put(0, noise(9 * CHUNK, 1))
    await job_ended(job, "failed")
    assert "the new member failed" in (job.error or "")
    return new


def nothing_left(rig: SpyRig) -> None:
    """Check that neither memory nor superblocks know of a replacement."""
    member_set = rig.array.member_set
    assert rig.array.replacement.twin is None
    assert not [key for key in member_set.config.jobs if key.startswith(REPLACE)]
    assert not [q for q in member_set.queues if q is not None and isinstance(q.member, Twin)]


async def fails_another(rig: SpyRig) -> None:
    await rig.array.fail_disk(0)
    await rig.put(CHUNK, noise(5 * CHUNK, 3))


async def fails_the_same(rig: SpyRig) -> None:
    await rig.array.fail_disk(2)
    await rig.put(CHUNK, noise(5 * CHUNK, 3))


async def replaces_another(rig: SpyRig) -> None:
    assert (await finish(rig, await begin(rig, 1)))["state"] == "done"
    assert [state_of(rig, role) for role in range(3)] == ["active"] * 3


async def replaces_the_same(rig: SpyRig) -> None:
    assert (await finish(rig, await begin(rig, 2)))["state"] == "done"
    assert rig.array.status()["members"][2]["path"] == rig.members[-1].path


async def removes_one(rig: SpyRig) -> None:
    """The last role, the one of the replacement, is another member's or nobody's afterwards."""
    left = await rig.array.remove_disk(0)
    if "job" in left:
        await rig.array.jobs.wait(left["job"])
    assert rig.array.context.layout.width == 2


async def restripes(rig: SpyRig) -> None:
    rig.members.append(rig.new_member())
    begun = await rig.array.restripe([rig.members[-1]], "raid5", {})
    assert (await rig.array.jobs.wait(begun["job"]))["state"] == "done"


async def nothing(rig: SpyRig) -> None:
    pass


MIRRORED = (
    *(fails_another, fails_the_same, replaces_another, replaces_the_same),
    *(removes_one, nothing),
)
STRIPED = (replaces_another, replaces_the_same, restripes, nothing)


@pytest.mark.parametrize(
    ("layout", "fault", "follows"),
    [
        *(("raid1", "vanish", follows) for follows in MIRRORED),
        *(("raid0", "vanish", follows) for follows in STRIPED),
        *(("raid1", "hang", follows) for follows in (replaces_the_same, removes_one)),
    ],
)
async def test_what_follows_a_failed_one_knows_nothing_of_it(
    layout: str, fault: str, follows: Next
) -> None:
    rig = await spied(layout, 3, chunk_bytes=CHUNK)
    await rig.put(0, noise(len(rig.model) // 3, 99))
    rig.array.on_release.append(rig.members.remove)
    await break_new(rig, 2, fault)
    nothing_left(rig)
    assert [record.role for record in rig.array.member_set.config.members] == [0, 1, 2]
    await follows(rig)
    await consistent(rig)
    await rig.reopen()
    nothing_left(rig)
    await consistent(rig)


@pytest.mark.parametrize("fault", ["vanish", "hang"])
async def test_only_the_new_member_is_let_go_and_it_can_come_again(fault: str) -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    gone: list[Member] = []
    rig.array.replacement.on_failed.append(gone.append)
    new = await break_new(rig, 1, fault)
    assert gone == [new]
    assert [state_of(rig, role) for role in range(4)] == ["active"] * 4
    await consistent(rig)
    assert new not in rig.array.member_set.present().values()
    new.clear()
    new.come_back()
    await trio.sleep(60)
    assert (await finish(rig, await begin(rig, 1, new)))["state"] == "done"
    await consistent(rig)


@pytest.mark.parametrize("operation", ["write", "flush"])
async def test_one_that_fails_before_it_begins_leaves_nothing(operation: Any) -> None:
    rig = await filled("raidx-parity", 5, chunk_bytes=CHUNK)
    new = rig.new_member()
    fault = None

    def after_joining(_touch: object) -> None:
        nonlocal fault
        if new in rig.array.member_set.spares.values() and fault is None:
            noted = [k for k in rig.array.member_set.config.jobs if k.startswith(REPLACE)]
            if noted:
                fault = new.error((operation,), offset_bytes=1 << 17)

    rig.log.hook = after_joining
    with pytest.raises(RaidxError):
        await rig.array.replace_disk(1, new)
    assert fault is not None
    rig.log.hook = None
    nothing_left(rig)
    await consistent(rig)
    await rig.reopen()
    assert not rig.array.jobs.running()


async def test_the_member_may_fail_while_its_replacement_begins() -> None:
    rig = await filled("raidx-parity", 5, chunk_bytes=CHUNK)
    new = rig.new_member()
    rig.members.append(new)
    failed = False

    def noted(_touch: object) -> None:
        nonlocal failed
        jobs = rig.array.member_set.config.jobs
        if not failed and any(key.startswith(REPLACE) for key in jobs):
            failed = True
            assert rig.array.member_set.fail(1, "the test")

    rig.log.hook = noted
    with pytest.raises(RaidxError, match="failed meanwhile"):
        await rig.array.replace_disk(1, new)
    assert failed
    rig.log.hook = None
    assert new not in rig.array.member_set.present().values()
    nothing_left(rig)
    rebuilt = await rig.array.replace_disk(1, new)
    assert rebuilt["does"] == "rebuilt"
    assert (await rig.array.jobs.wait(rebuilt["job"]))["state"] == "done"
    await consistent(rig)


async def test_a_new_member_whose_superblock_cannot_be_written_gets_no_role() -> None:
    rig = await filled("raid0", 3, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    new = rig.members.pop()
    new.error(("write",), length_bytes=1 << 17)  # its superblocks, and nothing else
    assert (await finish(rig, job))["state"] == "failed"
    nothing_left(rig)
    await rig.compare()
    await rig.reopen()
    await rig.compare()


async def test_what_an_older_version_left_behind_does_not_keep_the_array_from_its_start() -> None:
    rig = await filled("raid1", 3, chunk_bytes=CHUNK)
    stale = {"member_uuid": "00" * 16, "next_stripe": 1, "starts": 1}
    jobs = {f"{REPLACE}2": stale, f"{REPLACE}3": stale, f"{REPLACE}4": stale}
    await rig.array.member_set.update(lambda config: replace(config, jobs=jobs))
    await rig.reopen()
    nothing_left(rig)
    await consistent(rig)


async def test_a_write_that_the_replaced_member_answers_too_late_ends_nothing() -> None:
    """The role has failed, and its queue is that of the member alone, when the answer comes."""
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    job = await begin(rig, 1)
    old = rig.members[1]
    hang = old.hang(("write",), offset_bytes=1 << 17)
    await rig.put(0, noise(5 * CHUNK, 3))
    await job.finished.wait()
    assert old.overdue, "no other write to its bytes may start"
    await trio.sleep(60)
    assert state_of(rig, 1) == "active"  # the new member was rebuilt
    await rig.put(0, noise(7 * CHUNK, 4))
    await rig.in_place()
    hang.lift()
    await trio.sleep(60)
    assert not old.overdue
    await consistent(rig)  # what came late is nowhere


async def test_a_write_that_comes_late_reaches_no_new_member_that_has_the_role() -> None:
    """A RAID-0 keeps its member in use, so the replacement completes before the write ends."""
    rig = await hanging("raid0", 4, mode="none")
    job = await begin(rig, 1)
    old = rig.members[1]
    at = rig.array.context.position(Stripe(2), CellIndex(1))
    assert at[0] == 1
    await trio.sleep(30)
    assert 2 < job.next_stripe < rig.array.context.layout.stripes
    hang = old.hang(("write",), offset_bytes=at[1], length_bytes=CHUNK)
    await refused(lambda: rig.put(9 * CHUNK, noise(CHUNK, 3)))
    assert (await finish(rig, job))["state"] == "done"
    assert old.overdue
    await rig.put(0, noise(14 * CHUNK, 4))
    hang.lift()
    await trio.sleep(60)
    assert not old.overdue
    await consistent(rig)


async def test_a_new_member_is_rebuilt_though_another_one_does_not_take_its_superblock() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    await rig.array.fail_disk(1)
    late, slots = rig.members[2], (0, SLOTS_BYTES)
    late.note_overdue(*slots)
    rig.members[1] = rig.new_member()
    begun = await rig.array.replace_disk(1, rig.members[1])
    assert begun["does"] == "rebuilt"
    await trio.sleep(1)
    late.end_overdue(*slots)
    await trio.sleep(60)  # a rebuild that cannot save its end begins again
    assert state_of(rig, 1) == "active"
    await rig.reopen()
    await consistent(rig)


async def test_a_page_that_stays_unreadable_though_it_is_written_again_does_not_hold_the_job() -> (
    None
):
    """Nothing gives it back, and its member cannot be spared: the job ends, and says why."""
    rig = await filled("raid0", 3, chunk_bytes=CHUNK, stripes=64)
    start = rig.array.member_set.config.regions.data.offset
    rig.members[1].error(("read",), offset_bytes=start + 10 * CHUNK, length_bytes=CHUNK)
    job = await begin(rig, 1)
    with trio.fail_after(600):
        await job.finished.wait()
    assert (job.state, "cannot recover" in str(job.error)) == ("failed", True)
    nothing_left(rig)


async def test_as_many_pages_may_be_given_up_in_one_window_as_are_found_there() -> None:
    """However many: each is written anew, and can be read then."""
    rig = await filled("raid0", 3, chunk_bytes=CHUNK, stripes=64)
    start = rig.array.member_set.config.regions.data.offset
    for number in range(0, 24, 2):
        rig.members[1].lose_sectors(start + number * CHUNK, 1)
    job = await begin(rig, 1)
    with trio.fail_after(600):
        await job.finished.wait()
    assert (job.state, job.error) == ("done", None)
    assert rig.array.context.bad_chunks.count() == 12
