"""Rebuild: only written chunks, from the saved position, beside users' requests."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import trio

from raidx_fuse.errors import ArrayFailedError, RaidxError, Reason
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.lab.crash.disks import SLOTS_BYTES
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.reasons import because
from tests.support.spy import FLUSH, READ, WRITE, SpyRig, noise, restarted, spying

CHUNK = 4096
MIB = 1 << 20


async def replace_failed(rig: SpyRig, role: int) -> tuple[int, FaultMember]:
    """Fail *role*, put a new member there; return the rebuild's job and the member."""
    await rig.in_place()
    await rig.running.fail_disk(role)
    rig.log.clear()
    new = rig.new_member()
    job = (await rig.running.replace_disk(role, new))["job"]
    rig.members[role] = new
    return job, new


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid4", 5), ("raid1", 2)])
async def test_a_rebuild_moves_what_was_written_and_nothing_else(layout: str, width: int) -> None:
    async with spying(layout, width, chunk_bytes=CHUNK, stripes=5000) as rig:
        stripe_bytes = rig.running.context.code.data_count * CHUNK
        for stripe in (0, 1234, 1235, 4999):
            await rig.put(stripe * stripe_bytes, noise(stripe_bytes, stripe))
        job, new = await replace_failed(rig, 1)
        result = await rig.running.jobs.wait(job)
        assert result["state"] == "done"
        sources = 1 if layout == "raid1" else width - 1
        survivors = [member.path for member in rig.members if member is not new]
        read = sum(rig.log.bytes_of(READ, rig.data, path) for path in survivors)
        assert read == 4 * CHUNK * sources
        assert rig.log.bytes_of(WRITE, rig.data) == 4 * CHUNK
        assert rig.log.bytes_of(WRITE, rig.data, new.path) == 4 * CHUNK
        assert result["done"] == result["total"] == 4 * CHUNK
        await rig.running.fail_disk(0)
        await rig.compare()


async def test_an_empty_array_is_rebuilt_without_touching_data() -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK, stripes=5000) as rig:
        job, new = await replace_failed(rig, 2)
        assert (await rig.running.jobs.wait(job))["state"] == "done"
        for member in rig.members:
            # The new member was searched for signatures, the others were not touched.
            assert member is new or not rig.log.of(READ, rig.data, member.path)
        assert not rig.log.of(WRITE, rig.data)
        assert rig.running.status()["state"] == "clean"


async def run_half(rig: SpyRig) -> FaultMember:
    """Fill all members, start a rebuild at 256 KiB/s, let a checkpoint pass: 12 s."""
    await rig.put(0, noise(len(rig.model), 1))
    await rig.running.flush()
    await rig.running.set("speed_max", "256KiB")
    job, new = await replace_failed(rig, 2)
    await trio.sleep(20)
    (status,) = (each for each in rig.running.jobs.list() if each["id"] == job)
    assert status["state"] == "running"
    assert 0 < status["done"] < status["total"]
    return new


async def test_a_rebuild_goes_on_after_a_remount_where_it_stopped() -> None:
    async with spying("raid5", 3, chunk_bytes=4 * CHUNK, stripes=512) as rig:
        new, data = await run_half(rig), rig.data
        await rig.close()
        await rig.open()
        total = rig.running.context.layout.stripes * 4 * CHUNK
        assert 0 < rig.log.bytes_of(WRITE, data, new.path) < total
        assert rig.running.status()["state"] == "rebuilding"
        (job,) = rig.running.jobs.running()
        await rig.running.set("speed_max", "0")
        await job.finished.wait()
        assert job.state == "done"
        written = rig.log.bytes_of(WRITE, data, new.path)
        assert written == total, "each strip is rebuilt exactly once"
        await rig.running.fail_disk(0)
        await rig.compare()


async def test_a_rebuild_goes_on_after_a_crash_from_its_checkpoint() -> None:
    async with spying("raid5", 3, chunk_bytes=4 * CHUNK, stripes=512) as rig:
        await run_half(rig)
        images, model = rig.images(), bytes(rig.model)
        del images[2]  # the replaced member is elsewhere
        async with restarted(images) as array:
            start = array.member_set.watermarks[2]
            assert start > 0, "the checkpoint of the tenth second is known"
            await array.set("speed_max", "0")
            for job in array.jobs.running():
                await job.finished.wait()
                assert job.state == "done"
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

    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=600) as rig:
        stripe_bytes = 3 * CHUNK
        for stripe in (0, 400):
            await rig.put(stripe * stripe_bytes, noise(stripe_bytes, stripe))

        async def beside(job: Rebuild, *batch: Any) -> None:
            monkeypatch.undo()
            await rig.put(100 * stripe_bytes, noise(stripe_bytes, 100))
            await rebuild_batch(job, *batch)

        monkeypatch.setattr(Rebuild, "_rebuild_batch", beside)
        job, _ = await replace_failed(rig, 1)
        assert (await rig.running.jobs.wait(job))["state"] == "done"
        await rig.running.fail_disk(2)
        await rig.compare()


async def test_a_new_member_alone_knows_what_was_written() -> None:
    async with spying("raid1", 2, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        job, _ = await replace_failed(rig, 1)
        assert (await rig.running.jobs.wait(job))["state"] == "done"
        await rig.running.flush()
        image = rig.images()[-1]
    async with restarted([image]) as array:
        assert await array.read(0, len(rig.model)) == rig.model


@pytest.mark.parametrize("seed", range(3))
def test_writes_during_a_rebuild_reach_the_new_member(seed: int) -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=400, slow=True) as rig:
            rng = random.Random(seed)
            await rig.put(0, noise(len(rig.model) // 2, seed))  # the rest is written meanwhile
            job, _ = await replace_failed(rig, seed)
            written = 0
            while rig.running.jobs.running():
                start = rng.randrange(0, len(rig.model) - 3 * CHUNK)
                await rig.put(start, rng.randbytes(rng.randint(1, 3 * CHUNK)))
                written += 1
            assert written > 5
            assert (await rig.running.jobs.wait(job))["state"] == "done"
            await rig.compare()
            await rig.running.fail_disk((seed + 1) % 4)
            await rig.compare()

    run(main, seed=seed)


async def test_the_new_member_fails_and_another_one_takes_its_place() -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK, stripes=600) as rig:
        await rig.put(0, noise(len(rig.model)))
        await rig.running.set("speed_max", "256KiB")
        job, new = await replace_failed(rig, 0)
        await trio.sleep(2)
        new.vanish()
        result = await rig.running.jobs.wait(job)
        assert result["state"] == "failed"
        assert "replace it" in str(result["error"])
        assert rig.running.member_set.config.record(0).state == "failed"
        assert rig.running.status()["state"] == "degraded"
        await rig.compare()
        await rig.running.set("speed_max", "0")
        another = rig.new_member()
        job = (await rig.running.replace_disk(0, another))["job"]
        assert (await rig.running.jobs.wait(job))["state"] == "done"
        await rig.running.fail_disk(1)
        await rig.compare()


async def test_a_rebuild_that_a_member_stops_goes_on_when_the_member_answers() -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        fault = rig.members[1].error(
            ("read",), offset_bytes=rig.data.offset + 7 * CHUNK, length_bytes=CHUNK
        )
        job_id, _ = await replace_failed(rig, 0)
        assert (await rig.running.jobs.wait(job_id))["state"] == "failed"
        await trio.sleep(100)
        tried = len(rig.running.jobs.list())
        assert 4 <= tried <= 8, "after 5, 10, 20 and 40 s"
        fault.lift()
        await trio.sleep(100)
        assert rig.running.member_set.config.record(0).state == "active"
        lost = set(rig.running.context.bad_chunks.first(10))  # given up by the first try
        await rig.running.fail_disk(2)
        for chunk in set(range(len(rig.model) // CHUNK)) - lost:
            at = chunk * CHUNK
            assert await rig.get(at, CHUNK) == rig.model[at : at + CHUNK]
        assert len(lost) == 1


async def test_an_unreadable_area_stops_the_rebuild_and_is_named() -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        rig.members[1].error(
            ("read",), offset_bytes=rig.data.offset + 7 * CHUNK, length_bytes=CHUNK
        )
        job, _ = await replace_failed(rig, 0)
        result = await rig.running.jobs.wait(job)
        assert result["state"] == "failed"
        assert rig.members[1].path in str(result["error"]), result["error"]
        assert rig.running.member_set.config.record(1).state == "active"
        assert await rig.get(0, CHUNK) == rig.model[:CHUNK]


async def test_a_member_that_is_too_small_or_known_cannot_join() -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        small = SpyRig("raid5", 3, chunk_bytes=CHUNK, stripes=1).new_member()
        small.path = "small"
        with pytest.raises(RaidxError, match=r"small has \d+ bytes"):
            await rig.running.replace_disk(0, small)
        with pytest.raises(RaidxError, check=because(Reason.ALREADY)):
            await rig.running.add_spare(rig.members[1])
        assert rig.running.status()["state"] == "clean", "a refused member costs nothing"


async def test_a_member_takes_a_role_when_no_record_names_the_one_before() -> None:
    """A replay would lay the older member's content over what was rebuilt."""

    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=32) as rig:
        await rig.put(0, noise(len(rig.model), 1))
        await rig.in_place()
        journal = rig.running.context.journal
        await rig.put(CHUNK, noise(512, 2))
        assert journal.holds(0), "the write was not logged"
        await rig.running.fail_disk(1)
        await rig.running.replace_disk(1, rig.new_member())
        assert not journal.holds(0), "a replay would redo the record"
        await rig.compare()


async def test_a_new_member_has_the_maps_before_a_superblock_names_it() -> None:
    """Else a cut could leave a member whose maps say that nothing was ever written."""

    async with spying("raid5", 4, chunk_bytes=CHUNK, slow=True) as rig:
        await rig.put(0, noise(len(rig.model), 1))
        _job, new = await replace_failed(rig, 1)
        superblocks = rig.running.member_set.config.regions.superblock
        touches = rig.log.touches
        of_others = [t for t in rig.log.of(WRITE, superblocks) if t.member != new.path]
        named = touches.index(of_others[0])
        mine = [touch for touch in touches[:named] if touch.member == new.path]
        maps = [at for at, touch in enumerate(mine) if touch.offset_bytes >= superblocks.end]
        assert maps, "the maps were not saved"
        assert any(touch.kind == FLUSH for touch in mine[maps[-1] :])


async def test_a_rebuild_waits_for_who_holds_a_stripe_that_was_never_written() -> None:
    """A first write may be under way, by a record that lacks the member."""

    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=100) as rig:
        stripe_bytes = 3 * CHUNK
        for stripe in (0, 50):
            await rig.put(stripe * stripe_bytes, noise(stripe_bytes, stripe))
        job, _new = await replace_failed(rig, 1)
        locks, member_set = rig.running.context.locks, rig.running.member_set
        await locks.acquire(20)
        await trio.sleep(60)
        passed = member_set.watermarks[1] > 20
        assert member_set.config.record(1).state == "rebuilding"
        locks.release(20)
        assert not passed
        assert (await rig.running.jobs.wait(job))["state"] == "done"
        assert member_set.config.record(1).state == "active"


@pytest.mark.parametrize("spare", [False, True], ids=["replaced", "spare"])
async def test_a_member_whose_superblocks_were_refused_is_rebuilt_all_the_same(spare: bool) -> None:
    """It has its role: without a job it would stay half there until the next mount."""

    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        await rig.in_place()
        await rig.running.fail_disk(0)
        new = rig.new_member()
        if spare:
            await rig.running.add_spare(new)
        rig.members[1].error(("write",), length_bytes=SLOTS_BYTES, count=2)
        if not spare:
            with pytest.raises(ArrayFailedError, match="lacks the newest configuration"):
                await rig.running.replace_disk(0, new)
        rig.members[0] = new
        with trio.fail_after(60):
            while rig.running.member_set.lost:  # noqa: ASYNC110
                await trio.sleep(0.1)
        await rig.compare()


@pytest.mark.parametrize("last", [False, True], ids=["position", "end"])
async def test_a_rebuild_that_superblocks_end_goes_on_when_they_can_be_written(last: bool) -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        job_id, _ = await replace_failed(rig, 0)
        journal: Any = rig.running.context.journal
        reform, refuse = journal.reform, partial(rig.members[1].error, ("write",))

        async def reform_and_refuse() -> None:
            await reform()
            faults.append(refuse(length_bytes=SLOTS_BYTES))

        faults = [] if last else [refuse(length_bytes=SLOTS_BYTES)]
        if last:
            journal.reform = reform_and_refuse
        assert (await rig.running.jobs.wait(job_id))["state"] == "failed"
        await trio.sleep(20)
        (fault,) = faults
        journal.reform = reform
        fault.lift()
        with trio.fail_after(60):
            while rig.running.member_set.unpublished or 0 in rig.running.member_set.lost:  # noqa: ASYNC110
                await trio.sleep(0.1)
        assert rig.running.member_set.config.record(0).state == "active"
        # As soon as the rebuilt one is in force, one that takes no superblock can be spared.
        assert rig.running.member_set.lost == (frozenset({1}) if last else frozenset())
        await rig.compare()
