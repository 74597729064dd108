"""Growth in virtual time when things go wrong: losses, kills, full hosts, unreadable blocks."""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.engine.peek import Peek
from raidx_fuse.errors import MemberError
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.jobs.restripe.job import Restripe
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.settings import MODES
from tests.support.arrays import Rig, job_ended, jobs_ended, parity_holds
from tests.support.growing import (
    SmallRig,
    check_after_kill,
    grow,
    job_of,
    ram_of,
    small_spies,
    write_about,
)
from tests.support.load import CHUNK, ended, enlarge, eventually, opened, scrubbed, under_load
from tests.support.restriping import SmallRig as RestripeRig
from tests.support.restriping import restripe
from tests.support.spy import FLUSH, WRITE, restarted


async def test_a_killed_process_at_any_point_loses_nothing_even_with_a_member() -> None:
    """Everything acknowledged is there, whichever member is missing, after a kill at any moment."""
    unsaved: list[int] = []
    rig = await opened(SmallRig(), 0.8)
    job = await grow(rig, 2, chunks_a_second=150)
    rng = random.Random(0)
    while not job.finished.is_set():
        await write_about(rig, rng, 12)
        unsaved.append(len(job.growth.unsaved))
        await check_after_kill(rig, range(-1, len(rig.members)))
        await trio.sleep(0.02)
    await rig.compare()
    assert sum(count > 0 for count in unsaved) > 3  # some fell where nothing was checkpointed


async def reopened(rig: Rig, check: Callable[[Array], Awaitable[None]]) -> None:
    """Kill the process as it were, start from what the members hold, and check that array."""
    images = [bytes(ram_of(member).memory) for member in rig.members]
    async with restarted(images) as array:
        await check(array)


async def paused_with_unsaved(rig: Rig, added: int) -> Grow:
    """Begin a growth and stop it with stripes moved that no checkpoint knows."""
    job = await grow(rig, added)
    job.speed_max_bytes = 100 * CHUNK
    await eventually(lambda: len(job.growth.unsaved) >= 20)
    job.pause()
    await trio.sleep(1.0)
    assert len(job.growth.unsaved) >= 20
    return job


async def test_a_rebuild_may_end_while_copies_are_not_checkpointed() -> None:
    """It skips places that are unwritten now; they must be unwritten after a crash too."""
    rig = await opened(SmallRig(), 1.0)
    array = rig.array
    job = await paused_with_unsaved(rig, 2)
    await array.fail_disk(0)
    await rig._step_replace()
    (rebuild,) = (other for other in array.jobs.running() if other is not job)
    await rebuild.finished.wait()
    del rig.members[0]
    rig.members.insert(0, rig.members.pop())
    model = bytes(rig.model)

    async def check(again: Array) -> None:
        assert not again.member_set.lost
        assert bytes(await again.read(0, len(model))) == model
        await jobs_ended(again)
        await parity_holds(again)

    await reopened(rig, check)


async def test_no_block_moves_before_the_resync_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fill the places with zeros that blocks have left or come to."""
    work = Grow.work
    begun: list[int] = []

    async def watched(job: Grow, stripes: list[Stripe]) -> int:
        begun.append(job.context.dirty_bitmap.pending_regions())
        return await work(job, stripes)

    rig = await opened(SmallRig(), 1.0)
    await paused_with_unsaved(rig, 2)

    async def check(again: Array) -> None:
        assert again.context.dirty_bitmap.pending_regions()
        await jobs_ended(again)

    monkeypatch.setattr(Grow, "work", watched)
    await reopened(rig, check)
    assert begun
    assert not any(begun)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "width"), [("raid4", 4), ("raid0", 3)])
async def test_only_writes_to_moved_blocks_wait_for_a_checkpoint(
    name: str, width: int, mode: str
) -> None:
    """Without parity a write to a moved block could do without a look at the rest of its stripe."""
    rig = await opened(SmallRig(name, width))
    array = rig.array
    await array.set("journal", mode)
    await rig.fill()
    job = await paused_with_unsaved(rig, 2)
    layout, growth = job.layout, job.growth
    stays = next(
        layout.logical(s, c)
        for s in growth.unsaved
        for c in range(3)
        if not layout.moved_cells(s) >> c & 1
    )
    saves = growth.checkpoints
    await array.write(stays * CHUNK, b"stays")
    assert growth.checkpoints == saves
    moves = next(
        layout.logical(s, c)
        for s in growth.unsaved
        for c in range(3)
        if layout.moved_cells(s) >> c & 1 and layout.logical(s, c) * CHUNK < array.size_bytes
    )
    await array.write(moves * CHUNK, b"moves")
    assert growth.checkpoints == saves + 1
    assert not growth.unsaved
    assert array.member_set.config.params["migrated"] == layout.migrated
    rig.model[stays * CHUNK : stays * CHUNK + 5] = b"stays"
    rig.model[moves * CHUNK : moves * CHUNK + 5] = b"moves"

    async def check(again: Array) -> None:
        assert bytes(await again.read(0, len(rig.model))) == rig.model

    await reopened(rig, check)
    job.resume()
    await ended(rig, job)


async def test_an_old_record_in_the_journal_does_not_undo_a_block_that_came_back() -> None:
    rig = await opened(SmallRig(), 1.0)
    array = rig.array
    chunk = 0  # the first stripe moves its first block
    job = await grow(rig, 2)
    job.pause()
    await array.write(chunk, b"old" * 100)  # a record of the old place
    assert array.context.journal.holds(0)
    job.resume()
    await eventually(lambda: job.layout.migrated > 0)
    assert array.context.layout.place(0, 0) == (4, 0)
    await array.write(chunk, b"new" * 100)  # and one of the new place
    job.cancel()
    await eventually(lambda: job.back and not job.layout.migrated)
    assert array.context.journal.holds(0)  # it did come back before its records were placed
    await job.finished.wait()
    rig.width -= 2
    del rig.members[-2:]
    rig.model[:300] = b"new" * 100

    async def check(again: Array) -> None:
        assert bytes(await again.read(0, len(rig.model))) == rig.model

    await reopened(rig, check)
    await rig.compare()


async def test_newcomers_have_the_maps_before_a_superblock_gives_them_a_role() -> None:
    rig = await opened(small_spies(), 1.0)
    await rig.in_place()
    rig.log.clear()
    await grow(rig, 2)
    superblocks = rig.array.member_set.config.regions.superblock
    for member in rig.members[4:]:
        mine = [touch for touch in rig.log.touches if touch.member == member.path]
        writes = [at for at, touch in enumerate(mine) if touch.kind == WRITE]
        maps = max(at for at in writes if mine[at].offset_bytes >= superblocks.end)
        named = next(at for at in writes if at > maps)
        assert any(touch.kind == FLUSH for touch in mine[maps:named])


async def test_a_full_host_holds_the_growth_up_and_nothing_else() -> None:
    rig = await opened(SmallRig(), 1.0)
    array = rig.array
    members = [rig.new_member()]
    data = array.member_set.config.regions.data.offset

    def no_room(offset: int, length: int) -> None:
        if offset >= data:
            raise MemberError(members[0].path, "reserve", offset, errno.ENOSPC, "no space")

    members[0].reserve = no_room  # type: ignore[method-assign,assignment]
    await array.grow(members)
    rig.members += members
    job = job_of(rig)
    await trio.sleep(60.0)
    assert job.state == "running"
    assert "free space" in str(job.status()["error"])
    assert not job.layout.migrated
    assert not array.member_set.lost
    assert array.status()["state"] == "growing"
    await rig.compare()
    del members[0].reserve
    await job.finished.wait()  # it goes on by itself
    assert job.state == "done"
    assert job.status()["error"] is None
    enlarge(rig)
    await rig.compare()


async def test_a_spare_of_before_takes_over_while_the_array_grows() -> None:
    rig = await opened(SmallRig(), 1.0)
    array = rig.array
    await rig._step_spare()
    job = await grow(rig, 1, chunks_a_second=100)
    records = array.member_set.config.members
    assert [record.role for record in records] == [0, 1, 2, 3, 4, -1]
    async with under_load(rig):
        await trio.sleep(0.2)
        await array.fail_disk(4)  # the new one: the spare is rebuilt in its place
        await job_ended(job)
    assert [record.state for record in array.member_set.config.members] == ["active"] * 5
    await ended(rig, job)


@pytest.mark.parametrize("kind", ["growth", "restripe"])
async def test_a_spare_does_not_wait_for_a_paused_job_that_the_end_waits_for(kind: str) -> None:
    rig = await opened(SmallRig() if kind == "growth" else RestripeRig("raid4", 4), 0.8)
    array = rig.array
    if kind == "growth":
        job: Grow | Restripe = await grow(rig, 1)
        job.cancel()
    else:
        job = await restripe(rig, "raid5", 4)
    scrub = await array.start_scrub(repair=False)
    array.jobs.pause(scrub)
    await trio.sleep(600)
    assert job.done_bytes == job.total_bytes
    assert not job.finished.is_set()
    await array.add_spare(spare := rig.new_member())
    await array.fail_disk(1)
    await trio.sleep(600)
    assert not array.member_set.lost
    array.jobs.resume(scrub)
    await job_ended(job, "cancelled" if kind == "growth" else "done")
    if kind == "growth":
        rig.width -= 1
        del rig.members[-1]
    rig.members[1] = spare
    await scrubbed(rig)


async def test_it_ends_while_a_stripe_is_looked_at() -> None:
    """A look, or a mend, takes stripe locks while the superblocks get the end of the growth."""
    rig = await opened(SmallRig(slow=True), 0.8)
    array = rig.array
    job = await grow(rig, 2)
    peek = Peek(array.context)
    while not job.finished.is_set():
        await peek.peek(0)
        await trio.sleep(0.0005)
    await ended(rig, job)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_it_pauses_at_a_block_that_nobody_can_give_back(cancelled: bool) -> None:
    rig = await opened(SmallRig(), 1.0)
    array = rig.array
    await array.context.journal.drain()
    size = len(rig.model)
    await array.fail_disk(1)
    (other,) = (m for m in rig.members if m.path == "ram0")
    start = array.member_set.config.regions.data.offset
    # A degraded array does not begin to grow, but it goes on: so lose the member after that.
    await rig._step_replace()
    await rig._step_settle()
    rig.members[1] = rig.members.pop()
    job = await grow(rig, 1)
    job.pause()
    await array.fail_disk(1)
    fault = other.error(("read",), offset_bytes=start + 40 * CHUNK, length_bytes=CHUNK)
    job.resume()
    await eventually(lambda: job.state == "paused")
    stopped = job.layout.migrated
    assert 20 < stopped <= 40
    assert "resume" in str(job.status()["error"])
    assert array.status()["state"] == "degraded"
    array.jobs.resume(job.job_id)  # it is still unreadable
    await eventually(lambda: job.state == "paused" and job.error is not None)
    assert job.layout.migrated >= stopped
    if cancelled:
        array.jobs.cancel(job.job_id)
        fault.lift()
        await eventually(lambda: job.status()["waits_for_role"] == 1)  # blocks go back there
        await rig._step_replace()
    else:
        fault.lift()
        array.jobs.resume(job.job_id)
    await job_ended(job, "cancelled" if cancelled else "done")
    assert job.error is None
    if cancelled:
        rig.width -= 1
        assert array.size_bytes == size
    else:
        enlarge(rig)
    await rig.compare()


async def test_it_pauses_where_the_parity_that_a_stripe_lacks_cannot_be_computed() -> None:
    rig = await opened(SmallRig(), 1.0)
    array = rig.array
    (other,) = (m for m in rig.members if m.path == "ram0")
    job = await grow(rig, 1)
    job.pause()
    await rig.put(0, b"alone" * 100)
    assert Stripe(0) in array.context.journal.unsettled
    await array.fail_disk(1)  # a second loss is too much: the member that fails stays
    fault = other.error(
        ("read",), number=errno.ENXIO, offset_bytes=array.member_set.config.regions.data.offset
    )
    job.resume()
    await eventually(lambda: job.state != "running")
    assert job.state == "paused", job.error
    assert "resume" in str(job.status()["error"])
    assert not job.layout.migrated
    fault.lift()
    array.jobs.resume(job.job_id)
    await job_ended(job)
    enlarge(rig)
    await rig.compare()
