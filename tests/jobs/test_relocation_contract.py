"""The contract of all jobs that move content: tests/support/relocations.py has the table."""

from __future__ import annotations

import errno

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.errors import BusyError
from raidx_fuse.format.shapes import layout_of
from raidx_fuse.jobs.job import Job
from raidx_fuse.layouts.numbers import Stripe, cell_range
from raidx_fuse.layouts.placements.restriping import restripe_of
from tests.support.relocations import (
    LOST,
    RELOCATIONS,
    RESYNC,
    SPACE,
    TURNS,
    Relocation,
    fill_host,
    idle,
    under_way,
)

pytestmark = pytest.mark.usefixtures("own_placement")
EVERY = pytest.mark.parametrize("relocation", RELOCATIONS, ids=str)
# The rest is planned anew: moves of bundles are records; a copy by a clean end only has a position.
BUNDLES = {"growth-of-bundles", "evacuation"}
PLANNED_ANEW = BUNDLES | {"replacement", "replacement-in-own"}
EACH_LOSS = pytest.mark.parametrize(
    ("relocation", "role"),
    [(kind, role) for kind in RELOCATIONS for role in kind.lost],
    ids=str,
)
SHARES = (0.05, 0.2, 0.4, 0.6)  # of a total that counts whole stripes: some are written in part


@EVERY
async def test_users_read_what_they_wrote_meanwhile_and_afterwards(relocation: Relocation) -> None:
    async with under_way(relocation) as scene:
        job = scene.job
        async with scene.under_load():
            assert await scene.reach(scene.job, 0.5)
            await scene.ended()
        assert job.state == "done", job.status()
        assert job.error is None
        await scene.tidy()
        await scene.remount()
        await scene.tidy()


@EVERY
async def test_a_kill_in_any_window_loses_nothing_even_with_a_member(
    relocation: Relocation,
) -> None:
    async with under_way(relocation) as scene:
        job = scene.job
        for number, share in enumerate(SHARES):
            assert await scene.reach(job, share)
            job.pause()  # or it ends while the array of afterwards runs
            await scene.write(number * 5000, bytes([number + 1]) * 9000)
            for without in (-1, relocation.lost[number % len(relocation.lost)]):
                async with scene.restarted(without) as (arrays, everything):
                    assert await everything() == scene.model, (share, without)
                    if without < 0:
                        with trio.fail_after(3600):
                            await idle(arrays)
                        assert await everything() == scene.model, (share, "afterwards")
            job.resume()
        await scene.compare()


@pytest.mark.parametrize("share", [0.1, 0.8])
@EVERY
async def test_a_cancel_turns_round_or_stops_and_keeps_every_byte(
    relocation: Relocation, share: float
) -> None:
    async with under_way(relocation) as scene:
        job = scene.job
        sizes = [array.size_bytes for array in scene.arrays]
        async with scene.under_load():
            assert await scene.reach(scene.job, share)
            job.cancel()
            await job.finished.wait()
        assert job.state == "cancelled", job.status()
        if TURNS in relocation.promises:
            assert [array.size_bytes for array in scene.arrays] == sizes
        await scene.compare()
        await scene.remount()
        await idle(scene.arrays)
        await scene.compare()


@EVERY
async def test_an_unmount_keeps_the_position(relocation: Relocation) -> None:
    async with under_way(relocation) as scene:
        assert await scene.reach(scene.job, 0.5)
        left = scene.job.total_bytes - scene.job.done_bytes
        await scene.remount()
        job = scene.job
        scene.slow_down()
        await trio.sleep(0.1)
        assert job.total_bytes - job.done_bytes <= left
        await scene.compare()
        await scene.ended()
        assert job.state == "done", job.status()
        await scene.tidy()


@pytest.mark.parametrize(
    "relocation", [one for one in RELOCATIONS if one.name not in PLANNED_ANEW], ids=str
)
async def test_the_next_start_finds_the_position_that_is_saved(relocation: Relocation) -> None:
    async with under_way(relocation) as scene:
        job = scene.job
        assert await scene.reach(job, 0.3)
        job.pause()
        await trio.sleep(2)  # the window that it was in
        await job.checkpoint()
        saved = [position.saved for position in job.positions()]
        assert any(saved)
        async with scene.restarted() as (arrays, _everything):
            running = [one for array in arrays for one in array.jobs.running()]
            (again,) = (one for one in running if one.kind == job.kind)
            assert [position.saved for position in again.positions()] == saved


def described(array: Array) -> None:
    """Assert that the superblocks place every cell where the layout in memory does."""
    layout, found = array.context.layout, layout_of(array.member_set.config)
    if array.context.restripe is not None:  # its watermark is in the log
        restripe = restripe_of(found)
        assert restripe is not None
        restripe.watermark = array.context.restripe.watermark
    assert (found.chunks, found.stripes) == (layout.chunks, layout.stripes)
    for stripe in map(Stripe, range(layout.stripes)):
        for cell in cell_range(0, len(layout.code.cells)):
            assert found.place(stripe, cell) == layout.place(stripe, cell), (stripe, cell)


@pytest.mark.parametrize(
    "relocation",
    [one for one in RELOCATIONS if one.rig is not None and one.name not in BUNDLES],
    ids=str,
)
async def test_the_superblocks_describe_the_layout_that_is_in_use(relocation: Relocation) -> None:
    """Bundles are left out: their places are in the look-up table, not in the superblocks."""
    async with under_way(relocation) as scene:
        (array,) = scene.arrays
        job = scene.job
        assert await scene.reach(job, 0.3)
        job.pause()
        await trio.sleep(2)
        await job.checkpoint()
        described(array)
        job.resume()
        await scene.ended()
        described(array)


@EVERY
async def test_paused_it_stands_and_users_do_not(relocation: Relocation) -> None:
    async with under_way(relocation) as scene:
        assert await scene.reach(scene.job, 0.3)
        scene.job.pause()
        await trio.sleep(1)
        done = scene.job.done_bytes
        async with scene.under_load():
            await trio.sleep(1)
        assert scene.job.done_bytes == done
        await scene.remount()  # no pause outlasts it
        assert scene.job.state == "running"
        job = await scene.ended()
        assert job.state == "done", job.status()
        await scene.tidy()


@EVERY
async def test_a_second_change_is_refused_and_changes_nothing(relocation: Relocation) -> None:
    async with under_way(relocation) as scene:
        job = scene.job
        assert await scene.reach(job, 0.3)
        for change in scene.further():
            members = [array.member_set.config.members for array in scene.arrays]
            with pytest.raises(BusyError):
                await change()
            assert [array.member_set.config.members for array in scene.arrays] == members
        await scene.ended()
        assert job.state == "done", job.status()
        await scene.tidy()


@EACH_LOSS
async def test_any_one_member_may_be_lost_on_the_way(relocation: Relocation, role: int) -> None:
    async with under_way(relocation) as scene:
        job = scene.job
        assert await scene.reach(job, 0.4)
        scene.members[role].vanish()
        async with scene.under_load():
            await trio.sleep(2)
        await scene.compare()
        if LOST in relocation.promises and role in relocation.targets:
            assert not job.finished.is_set()
            assert job.status()["waits_for_role"] is not None
        scene.let_run()
        await trio.sleep(120)
        await scene.replace_lost()
        with trio.fail_after(3600):
            await idle(scene.arrays)
        assert not any(array.member_set.lost for array in scene.arrays)
        await scene.tidy()


@EVERY
async def test_a_full_host_loses_nothing(relocation: Relocation) -> None:
    async with under_way(relocation) as scene:
        job = scene.job
        assert await scene.reach(job, 0.2)
        targets = [scene.members[number] for number in relocation.targets]
        if SPACE not in relocation.promises:
            for target in targets:
                target.error(("write",), number=errno.ENOSPC, offset_bytes=scene.data_offset)
            await job.finished.wait()
            assert job.state == "failed", job.status()
            await scene.compare()
            return
        there_is_space = [fill_host(target) for target in targets]
        await trio.sleep(60)
        assert not job.finished.is_set()
        assert job.error is not None
        assert not any(array.member_set.lost for array in scene.arrays)
        await scene.compare()
        for end in there_is_space:
            end()
        await scene.ended()
        assert job.state == "done", job.status()
        await scene.tidy()


@pytest.mark.parametrize(
    "relocation", [kind for kind in RELOCATIONS if RESYNC in kind.promises], ids=str
)
async def test_nothing_moves_before_the_resync_has_ended(
    relocation: Relocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resync would zero the places that content has left or come to."""
    pending: list[int] = []

    async def watched(job: Job, stripes: list[Stripe]) -> int:
        pending.append(job.context.dirty_bitmap.pending_regions())
        return await work(job, stripes)

    async with under_way(relocation) as scene:
        kind: type[Job] = type(scene.job)
        assert await scene.reach(scene.job, 0.3)
        work = kind.work
        await scene.arrays[0].set("journal", "none")
        await scene.write(0, bytes(len(scene.model) // 2))  # marks its regions
        async with scene.restarted() as (arrays, everything):
            assert arrays[0].context.dirty_bitmap.pending_regions()
            monkeypatch.setattr(kind, "work", watched)
            await idle(arrays)
            assert await everything() == scene.model
    assert pending
    assert not any(pending)
