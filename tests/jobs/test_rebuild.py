"""Rebuild: only written chunks, from the saved position, beside users' requests."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.lab.crash.disks import SLOTS_BYTES
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import job_ended
from tests.support.load import eventually
from tests.support.reasons import because
from tests.support.spy import FLUSH, READ, WRITE, SpyRig, noise, placed, restarted, spied, spying

CHUNK = 4096
MIB = 1 << 20


async def replace_failed(rig: SpyRig, role: int) -> tuple[int, FaultMember]:
    """Fail *role*, put a new member there; return the rebuild's job and the member."""
    await rig.in_place()
    await rig.array.fail_disk(role)
    rig.log.clear()
    new = rig.new_member()
    job = (await rig.array.replace_disk(role, new))["job"]
    rig.members[role] = new
    return job, new


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid4", 5), ("raid1", 2)])
async def test_a_rebuild_moves_what_was_written_and_nothing_else(layout: str, width: int) -> None:
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=5000)
    stripe_bytes = rig.array.context.code.data_count * CHUNK
    for stripe in (0, 1234, 1235, 4999):
        await rig.put(stripe * stripe_bytes, noise(stripe_bytes, stripe))
    job, new = await replace_failed(rig, 1)
    result = await rig.array.jobs.wait(job)
    assert result["state"] == "done"
    sources = 1 if layout == "raid1" else width - 1
    survivors = [member.path for member in rig.members if member is not new]
    read = sum(rig.log.bytes_of(READ, rig.data, path) for path in survivors)
    assert read == 4 * CHUNK * sources
    assert rig.log.bytes_of(WRITE, rig.data) == 4 * CHUNK
    assert rig.log.bytes_of(WRITE, rig.data, new.path) == 4 * CHUNK
    assert result["done"] == result["total"] == 4 * CHUNK
    await rig.array.fail_disk(0)
    await rig.compare()


async def test_an_empty_array_is_rebuilt_without_touching_data() -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK, stripes=5000)
    job, new = await replace_failed(rig, 2)
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    for member in rig.members:
        # The new member was searched for signatures, the others were not touched.
        assert member is new or not rig.log.of(READ, rig.data, member.path)
    assert not rig.log.of(WRITE, rig.data)
    assert rig.array.status()["state"] == "clean"


async def run_half(rig: SpyRig) -> FaultMember:
    """Fill all members, start a rebuild at 256 KiB/s, let a checkpoint pass: 12 s."""
    await rig.put(0, noise(len(rig.model), 1))
    await rig.array.flush()
    await rig.array.set("speed_max", "256KiB")
    job, new = await replace_failed(rig, 2)
    await trio.sleep(20)
    (status,) = (each for each in rig.array.jobs.list() if each["id"] == job)
    assert status["state"] == "running"
    assert 0 < status["done"] < status["total"]
    return new


async def test_a_rebuild_goes_on_after_a_remount_where_it_stopped() -> None:
    rig = await spied("raid5", 3, chunk_bytes=4 * CHUNK, stripes=512)
    new, data = await run_half(rig), rig.data
    await rig.reopen()
    total = rig.array.context.layout.stripes * 4 * CHUNK
    assert 0 < rig.log.bytes_of(WRITE, data, new.path) < total
    assert rig.array.status()["state"] == "rebuilding"
    (job,) = rig.array.jobs.running()
    await rig.array.set("speed_max", "0")
    await job_ended(job)
    written = rig.log.bytes_of(WRITE, data, new.path)
    assert written == total, "each strip is rebuilt exactly once"
    await rig.array.fail_disk(0)
    await rig.compare()


async def test_a_rebuild_goes_on_after_a_crash_from_its_checkpoint() -> None:
    rig = await spied("raid5", 3, chunk_bytes=4 * CHUNK, stripes=512)
    await run_half(rig)
    images, model = rig.images(), bytes(rig.model)
    del images[2]  # the replaced member is elsewhere
    async with restarted(images) as array:
        start = array.member_set.watermarks[2]
        assert start > 0, "the checkpoint of the tenth second is known"
        await array.set("speed_max", "0")
        for job in array.jobs.running():
            await job_ended(job)
        assert array.status()["state"] == "clean"
        await array.fail_disk(1)
        for at in range(0, len(model), MIB):
            expected = model[at : at + MIB]
            assert bytes(await array.read(at, len(expected))) == expected


async def test_what_is_written_first_between_the_stripes_of_a_window_is_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The window has passed over it: it was unwritten when the window was made."""
    rebuild_batch = Rebuild._rebuild_batch

    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=600)
    stripe_bytes = 3 * CHUNK
    for stripe in (0, 400):
        await rig.put(stripe * stripe_bytes, noise(stripe_bytes, stripe))

    async def beside(job: Rebuild, *batch: Any) -> None:
        monkeypatch.undo()
        await rig.put(100 * stripe_bytes, noise(stripe_bytes, 100))
        await rebuild_batch(job, *batch)

    monkeypatch.setattr(Rebuild, "_rebuild_batch", beside)
    job, _ = await replace_failed(rig, 1)
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    await rig.array.fail_disk(2)
    await rig.compare()


async def test_a_new_member_alone_knows_what_was_written() -> None:
    async with spying("raid1", 2, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        job, _ = await replace_failed(rig, 1)
        assert (await rig.array.jobs.wait(job))["state"] == "done"
        await rig.array.flush()
        image = rig.images()[-1]
    async with restarted([image]) as array:
        assert await array.read(0, len(rig.model)) == rig.model


async def test_the_new_member_fails_and_another_one_takes_its_place() -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK, stripes=600)
    await rig.put(0, noise(len(rig.model)))
    await rig.array.set("speed_max", "256KiB")
    job, new = await replace_failed(rig, 0)
    await trio.sleep(2)
    new.vanish()
    result = await rig.array.jobs.wait(job)
    assert result["state"] == "failed"
    assert "replace it" in str(result["error"])
    assert rig.array.member_set.config.record(0).state == "failed"
    assert rig.array.status()["state"] == "degraded"
    await rig.compare()
    await rig.array.set("speed_max", "0")
    another = rig.new_member()
    job = (await rig.array.replace_disk(0, another))["job"]
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    await rig.array.fail_disk(1)
    await rig.compare()


async def test_a_rebuild_that_a_member_stops_goes_on_when_the_member_answers() -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK)
    await rig.put(0, noise(len(rig.model)))
    fault = rig.members[1].error(
        ("read",), offset_bytes=rig.data.offset + 7 * CHUNK, length_bytes=CHUNK
    )
    job_id, _ = await replace_failed(rig, 0)
    assert (await rig.array.jobs.wait(job_id))["state"] == "failed"
    await trio.sleep(100)
    tried = len(rig.array.jobs.list())
    assert 4 <= tried <= 8, "after 5, 10, 20 and 40 s"
    fault.lift()
    await trio.sleep(100)
    assert rig.array.member_set.config.record(0).state == "active"
    lost = set(rig.array.context.bad_chunks.first(10))  # given up by the first try
    await rig.array.fail_disk(2)
    for chunk in set(range(len(rig.model) // CHUNK)) - lost:
        at = chunk * CHUNK
        assert await rig.get(at, CHUNK) == rig.model[at : at + CHUNK]
    assert len(lost) == 1


async def test_an_unreadable_area_stops_the_rebuild_and_is_named() -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK)
    await rig.put(0, noise(len(rig.model)))
    rig.members[1].error(("read",), offset_bytes=rig.data.offset + 7 * CHUNK, length_bytes=CHUNK)
    job, _ = await replace_failed(rig, 0)
    result = await rig.array.jobs.wait(job)
    assert result["state"] == "failed"
    assert rig.members[1].path in str(result["error"]), result["error"]
    assert rig.array.member_set.config.record(1).state == "active"
    assert await rig.get(0, CHUNK) == rig.model[:CHUNK]


async def test_a_member_that_is_too_small_or_known_cannot_join() -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK)
    small = SpyRig("raid5", 3, chunk_bytes=CHUNK, stripes=1).new_member()
    small.path = "small"
    with pytest.raises(RaidxError, match=r"small has \d+ bytes"):
        await rig.array.replace_disk(0, small)
    with pytest.raises(RaidxError, check=because(Reason.ALREADY)):
        await rig.array.add_spare(rig.members[1])
    assert rig.array.status()["state"] == "clean", "a refused member costs nothing"


async def test_a_member_takes_a_role_when_no_record_names_the_one_before() -> None:
    """A replay would lay the older member's content over what was rebuilt."""
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, stripes=32)
    journal = rig.array.context.journal
    await rig.put(CHUNK, noise(512, 2))
    assert journal.holds(0), "the write was not logged"
    await rig.array.fail_disk(1)
    await rig.array.replace_disk(1, rig.new_member())
    assert not journal.holds(0), "a replay would redo the record"
    await rig.compare()


async def test_a_new_member_has_the_maps_before_a_superblock_names_it() -> None:
    """Else a cut could leave a member whose maps say that nothing was ever written."""
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, slow=True)
    await rig.put(0, noise(len(rig.model), 1))
    _job, new = await replace_failed(rig, 1)
    superblocks = rig.array.member_set.config.regions.superblock
    touches = rig.log.touches
    of_others = [t for t in rig.log.of(WRITE, superblocks) if t.member != new.path]
    named = touches.index(of_others[0])
    mine = [touch for touch in touches[:named] if touch.member == new.path]
    maps = [at for at, touch in enumerate(mine) if touch.offset_bytes >= superblocks.end]
    assert maps, "the maps were not saved"
    assert any(touch.kind == FLUSH for touch in mine[maps[-1] :])


async def test_a_rebuild_waits_for_who_holds_a_stripe_that_was_never_written() -> None:
    """A first write may be under way, by a record that lacks the member."""
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=100)
    stripe_bytes = 3 * CHUNK
    for stripe in (0, 50):
        await rig.put(stripe * stripe_bytes, noise(stripe_bytes, stripe))
    job, _new = await replace_failed(rig, 1)
    locks, member_set = rig.array.context.locks, rig.array.member_set
    await locks.acquire(20)
    await trio.sleep(60)
    passed = member_set.watermarks[1] > 20
    assert member_set.config.record(1).state == "rebuilding"
    locks.release(20)
    assert not passed
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    assert member_set.config.record(1).state == "active"


@pytest.mark.parametrize("spare", [False, True], ids=["replaced", "spare"])
async def test_a_member_whose_superblocks_were_refused_is_rebuilt_all_the_same(spare: bool) -> None:
    """It has its role: without a job it would stay half there until the next mount."""
    rig = await placed("raid5", 3, chunk_bytes=CHUNK)
    await rig.array.fail_disk(0)
    new = rig.new_member()
    if spare:
        await rig.array.add_spare(new)
    rig.members[1].error(("write",), length_bytes=SLOTS_BYTES, count=2)
    if not spare:
        assert (await rig.array.replace_disk(0, new))["does"] == "rebuilt"
    rig.members[0] = new
    await eventually(lambda: not rig.array.member_set.lost, 60, 0.1)
    await rig.compare()


@pytest.mark.parametrize("last", [False, True], ids=["position", "end"])
async def test_a_rebuild_that_superblocks_end_goes_on_when_they_can_be_written(last: bool) -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK)
    await rig.put(0, noise(len(rig.model)))
    job_id, _ = await replace_failed(rig, 0)
    journal: Any = rig.array.context.journal
    reform, refuse = journal.reform, partial(rig.members[1].error, ("write",))

    async def reform_and_refuse() -> None:
        await reform()
        faults.append(refuse(length_bytes=SLOTS_BYTES))

    faults = [] if last else [refuse(length_bytes=SLOTS_BYTES)]
    if last:
        journal.reform = reform_and_refuse
    assert (await rig.array.jobs.wait(job_id))["state"] == "failed"
    await trio.sleep(20)
    (fault,) = faults
    journal.reform = reform
    fault.lift()
    await eventually(
        lambda: not (rig.array.member_set.unpublished or 0 in rig.array.member_set.lost), 60, 0.1
    )
    assert rig.array.member_set.config.record(0).state == "active"
    # As soon as the rebuilt one is in force, one that takes no superblock can be spared.
    assert rig.array.member_set.lost == (frozenset({1}) if last else frozenset())
    await rig.compare()
