"""A restripe that meets a lost member, a full host, a lost chunk, or writes at the wrong moment."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.lowlevel

from raidx_fuse.errors import ArrayFailedError, BusyError, Reason
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.placements.restriping import RestripeLayout
from tests.support.arrays import Rig, job_ended, parity_holds
from tests.support.load import CHUNK, ended, enlarge, eventually, opened, under_load
from tests.support.reasons import because
from tests.support.restriping import SmallRig, reach, restripe


@pytest.mark.parametrize("role", [0, 2, 4])
async def test_it_goes_on_without_a_member_that_is_lost_and_waits_while_one_is_rebuilt(
    role: int,
) -> None:
    rig = await opened(SmallRig("raid5", 4, slow=True), 1.0)
    async with under_load(rig, 2):
        job = await restripe(rig, "raid5", 5)
        await reach(job, 0.3 * job.total_bytes)
        await rig.array.fail_disk(role)
        await reach(job, job.done_bytes + 20 * CHUNK)
        member = rig.new_member()
        await rig.array.replace_disk(role, member)
        rig.members[role] = member
        rebuild = next(j for j in rig.array.jobs.running() if j.kind == "rebuild")
        await job_ended(rebuild)
        await job.finished.wait()
    await ended(rig, job)
    assert not rig.array.member_set.lost


async def test_stripes_at_the_end_of_members_are_checked_and_rebuilt_with_their_own_rows() -> None:
    """Stripes of raid5 have one row, those of rdp four; memory is lent no further than they go."""
    rig = Rig("raid5", 4, chunk_bytes=CHUNK)
    rig.member_bytes = 2 << 20
    await opened(rig, 1.0)
    await rig.array.restripe([rig.new_member() for _ in range(2)], "rdp", {})
    (job,) = rig.array.jobs.running()
    await reach(job, 0.3 * job.total_bytes)
    job.pause()
    await parity_holds(rig.array)
    await rig.array.fail_disk(1)
    begun = await rig.array.replace_disk(1, rig.new_member())
    rebuild = await rig.array.jobs.wait(begun["job"])
    assert rebuild["state"] == "done", rebuild
    job.resume()
    await job.finished.wait()
    assert bytes(await rig.array.read(0, len(rig.model))) == rig.model


async def test_a_layout_without_redundancy_needs_all_members_and_has_them_when_it_begins() -> None:
    rig = await opened(SmallRig("raid5", 4), 1.0)
    job = await restripe(rig, "raid0", 4)
    with pytest.raises(ArrayFailedError, match="role 1 cannot be spared"):
        await rig.array.fail_disk(1)
    assert rig.array.status()["redundancy_left"] == 0
    await ended(rig, job)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_it_pauses_at_a_chunk_that_nobody_can_give_back(cancelled: bool) -> None:
    rig = await opened(SmallRig("raid0", 3), 1.0)
    array = rig.array
    await array.context.journal.drain()
    start = array.member_set.config.regions.data.offset
    fault = rig.members[1].error(("read",), offset_bytes=start + 40 * CHUNK, length_bytes=CHUNK)
    job = await restripe(rig, "raid5", 4)
    await trio.sleep(5)
    assert job.state == "paused"
    assert isinstance(array.context.layout, RestripeLayout)
    assert 100 < array.context.layout.watermark <= 121
    assert "resume" in str(job.status()["error"])
    array.jobs.resume(job.job_id)  # it is still unreadable
    await trio.sleep(1)
    assert job.state == "paused"
    fault.lift()
    if cancelled:
        array.jobs.cancel(job.job_id)
        await job.finished.wait()
        del rig.members[3]
    else:
        array.jobs.resume(job.job_id)
    await ended(rig, job, "cancelled" if cancelled else "done")
    assert job.error is None


async def test_who_takes_a_role_on_the_way_is_not_taken_to_read_as_zero() -> None:
    """It was given what has moved away from there since: a first write must fill its chunk."""
    rig = SmallRig("raid5", 4)

    async def write_into_the_dead(first: int) -> None:
        for chunk in range(first, len(rig.model) // CHUNK, 2):
            if not rig.array.context.written.is_written(chunk):
                at = chunk * CHUNK + 50
                await rig.put(at, b"one hundred" * 9)

    await opened(rig, 0.5)
    job = await restripe(rig, "raid5", 5)
    job.pause()
    await rig.array.fail_disk(1)
    rig.members[1] = rig.new_member()
    await rig.array.jobs.wait((await rig.array.replace_disk(1, rig.members[1]))["job"])
    job.speed_max_bytes = 1 << 20
    job.resume()
    await eventually(lambda: job.done_bytes >= 0.6 * job.total_bytes, 3600, 0.01)
    job.pause()
    await write_into_the_dead(0)
    await rig.compare()
    job.resume()
    await job.finished.wait()
    enlarge(rig)
    await write_into_the_dead(1)
    await ended(rig, job)


async def test_a_write_while_a_restripe_turns_back_is_not_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its record names a stripe as it was: nothing bypasses the log before that gave it up."""
    rig = await opened(SmallRig("raid5", 4), 1.0)
    job = await restripe(rig, "raid5", 5)
    context, array = rig.array.context, rig.array
    drain = context.journal.drain
    at = slice(24 * CHUNK, 27 * CHUNK)  # a stripe, which may bypass the log

    async def put(seed: int) -> None:
        rig.model[at] = random.Random(seed).randbytes(3 * CHUNK)
        await array.write(at.start, bytes(rig.model[at]))

    async def drain_and_write(*then: Any) -> None:
        await drain(*then)
        alone = context.gate.is_closed  # then a write waits
        if isinstance(context.layout, RestripeLayout) and not alone:
            await put(1)

    monkeypatch.setattr(context.journal, "drain", drain_and_write)
    await reach(job, 1)
    job.cancel()
    await job.finished.wait()
    del rig.members[4:]
    await ended(rig, job, "cancelled")


async def test_it_turns_round_when_reads_from_before_have_ended() -> None:
    """Such a read may have looked up a place that the way there has given to others since.

    The way back makes it the place of the same chunk again, so that nothing would show.
    """
    rig = await opened(SmallRig("raid5", 4), 1.0)
    job = await restripe(rig, "raid5", 5)
    reading = rig.array.context.gate.enter_now()
    await reach(job, 1)
    job.cancel()
    await trio.sleep(60)
    assert not job.back
    reading.leave()
    await job.finished.wait()
    del rig.members[4:]
    await ended(rig, job, "cancelled")


async def test_stripes_that_failed_writes_have_torn_are_repaired_first() -> None:
    """Its bit would mean another stripe after a crash, whose resync would leave the torn one."""
    rig = await opened(SmallRig("raid5", 4))
    array = rig.array
    await array.set("journal", "none")
    await rig.fill()
    chunk = 30 * 3
    await rig.put(chunk * CHUNK, rig.model[chunk * CHUNK : (chunk + 3) * CHUNK])
    array.context.dirty_bitmap.note_torn([Stripe(30)])
    with pytest.raises(BusyError, check=because(Reason.TORN)):
        await restripe(rig, "raid5", 5)
    assert not array.member_set.spares
    await array.jobs.wait(await array.start_scrub(repair=True))
    await ended(rig, await restripe(rig, "raid5", 5))
