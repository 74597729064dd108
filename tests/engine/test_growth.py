"""Growth in virtual time: what every read gives back, before, during and after; what it costs."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio

from raidx_fuse.array import Array, open_array
from raidx_fuse.check import check_members
from raidx_fuse.errors import MemberError
from raidx_fuse.jobs.grow import Grow
from raidx_fuse.members.faulty import FaultMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.testing.arrays import Rig
from raidx_fuse.testing.growing import (
    CHUNK,
    SmallRig,
    enlarge,
    fill,
    grow,
    job_of,
    play,
    ram_of,
    scrubbed,
    small_spies,
    under_load,
)
from raidx_fuse.testing.spy import SpyRig


@pytest.mark.parametrize(
    ("layout", "slow", "reads_zero"),
    [
        ("raid4", False, True),
        ("raid4", True, False),
        ("raid0", False, False),
        ("raid0", True, True),
    ],
)
def test_two_growths_under_writes_keep_every_byte(
    layout: str, slow: bool, reads_zero: bool
) -> None:
    parities = layout == "raid4"

    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig, share=0.7)
        for added in (1, 2):
            size = array.size_bytes
            job = await grow(rig, added)
            job.speed_max_bytes = job.speed_min_bytes = 200 * CHUNK
            async with under_load(rig):
                while not job.finished.is_set():
                    assert array.size_bytes == size  # nothing new before all is moved
                    await trio.sleep(0.003)
            assert job.state == "done", job.error
            disks = rig.width - parities
            assert array.size_bytes * (disks - added) == size * disks
            enlarge(rig)
            await rig.compare()
            await fill(rig, seed=added, share=0.4)  # also where blocks have left
            await rig.compare()
            if parities:
                await scrubbed(rig)
            await rig.close()
            array = await rig.open()
            await rig.compare()

    play(SmallRig(layout, slow=slow, reads_zero=reads_zero), body)


def test_only_the_blocks_that_must_move_are_read_and_written() -> None:
    """Bytes read and written in the data region for each byte of old data."""
    for added, most in ((1, 0.5), (2, 0.8)):

        async def body(rig: Rig, added: int = added, most: float = most) -> None:
            assert isinstance(rig, SpyRig)
            array = rig.array
            assert array is not None
            await fill(rig)
            await array.core.journal.drain()
            old, parity = range(3), 3
            rows = array.core.layout.stripes
            region = array.store.config.regions.data
            rig.log.clear()
            job = await grow(rig, added, windows=10**6)
            await job.finished.wait()
            moved = [rig.log.bytes_of("read", region, f"ram{role}") for role in old]
            landed = [
                rig.log.bytes_of("write", region, f"ram{4 + number}") for number in range(added)
            ]
            assert sum(moved) + sum(landed) <= (most + 0.01) * rows * 3 * CHUNK
            for role in old:
                assert not rig.log.bytes_of("write", region, f"ram{role}")  # no old disk is written
            assert not rig.log.of("read", region, f"ram{parity}")  # and no parity touched
            assert not rig.log.of("write", region, f"ram{parity}")
            whole = rows // (3 + added) * (3 + added)
            share = added / (3 + added)
            assert sum(moved) >= whole * 3 * CHUNK * share
            assert job.done_bytes == job.total_bytes == sum(moved) == sum(landed)
            # One read a run of neighbours: each old disk one a region, joined across regions.
            reads = [rig.log.of("read", region, f"ram{role}") for role in old]
            assert sum(map(len, reads)) <= 3 * -(-rows // (3 + added))

        play(small_spies(), body)


def test_every_data_disk_holds_the_same_number_of_blocks_of_every_whole_region() -> None:
    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig)
        for added in (1, 2):
            chunks = array.size_bytes // CHUNK
            job = await grow(rig, added)
            await job.finished.wait()
            layout = array.core.layout
            disks = rig.width - 1
            whole = layout.stripes // disks * disks
            held = Counter(
                cell for stripe, cell in map(layout.locate, range(chunks)) if stripe < whole
            )
            assert len(held) == disks
            assert len(set(held.values())) == 1
            enlarge(rig)
            await fill(rig, seed=added)

    play(SmallRig(), body)


def test_it_goes_on_after_each_of_many_remounts() -> None:
    async def body(rig: Rig) -> None:
        await fill(rig, share=0.8)
        size = len(rig.model)
        job = await grow(rig, 2)
        mounts = 0
        while True:
            job.speed_max_bytes = job.speed_min_bytes = 100 * CHUNK
            async with under_load(rig):
                with trio.move_on_after(0.3):
                    await job.finished.wait()
            if job.finished.is_set():
                break
            before = job.layout.migrated
            await rig.close()
            if not mounts:
                report = await check_members(rig.members)  # at rest, in the middle
                assert report["ok"], report["problems"]
                assert report["state"] == "growing"
            array = await rig.open()
            mounts += 1
            assert array.size_bytes == size
            job = job_of(rig)
            assert job.layout.migrated >= before  # a clean end loses no progress
            job._batch = 4
            await rig.compare()
        assert mounts >= 3
        enlarge(rig)
        assert len(rig.model) == size * 5 // 3
        await rig.compare()
        await scrubbed(rig)

    play(SmallRig(slow=True), body)


@pytest.mark.parametrize("slow", [False, True])
def test_cancelled_it_goes_back_to_the_old_shape(slow: bool) -> None:
    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        params = dict(array.store.config.params)
        await fill(rig, share=0.8)
        size = len(rig.model)
        for after_s in (0.0, 0.2, 0.4):
            job = await grow(rig, 2)
            job.speed_max_bytes = job.speed_min_bytes = 100 * CHUNK
            released: list[object] = []
            array.grower.on_release.append(released.append)
            async with under_load(rig):
                await trio.sleep(after_s)
                array.jobs.cancel(job.job_id)
                if after_s == 0.2:  # and unmounted on the way back
                    await trio.sleep(0.1)
                    assert job.back
                else:
                    await job.finished.wait()
            if after_s == 0.2:
                await rig.close()
                array = await rig.open()
                array.grower.on_release.append(released.append)
                job = job_of(rig)
                assert job.back
                await job.finished.wait()
            assert job.status()["state"] == "cancelled", job.error
            rig.width -= 2
            assert released == rig.members[-2:]
            del rig.members[-2:]
            assert array.size_bytes == size
            assert array.store.config.width == 4
            assert array.store.config.params == params
            assert not array.store.lost
            await rig.compare()
            await scrubbed(rig)
            await rig.close()
            array = await rig.open()
            await rig.compare()
        job = await grow(rig, 1)
        await job.finished.wait()
        enlarge(rig)
        await rig.compare()
        await fill(rig, seed=7, share=0.5)
        await scrubbed(rig)

    play(SmallRig(slow=slow), body)


@pytest.mark.parametrize("role", range(6))
def test_any_member_may_be_lost_on_the_way(role: int) -> None:
    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig, share=0.8)
        job = await grow(rig, 2)
        job.speed_max_bytes = job.speed_min_bytes = 100 * CHUNK
        async with under_load(rig):
            await trio.sleep(0.3)
            assert 0 < job.layout.migrated < job.layout.stripes
            if role in (0, 3, 5):  # the others vanish: the array finds out by itself
                await array.fail_disk(role)
            else:
                await rig._step_eio(role, True)
            await trio.sleep(0.4)
        await rig.compare()
        if role >= 4:  # a new disk: nothing may move onto it, so the growth waits
            assert job.status()["waits_for_role"] == role
            before = job.layout.migrated
            await trio.sleep(1.0)
            assert job.layout.migrated == before
        else:
            assert job.layout.migrated > 0
        async with under_load(rig):
            if array.store.lost:
                await rig._step_replace()
            with trio.fail_after(600):
                await rig._step_settle()
        assert job.state == "done", job.error
        enlarge(rig)
        await rig.compare()
        await scrubbed(rig)
        await array.fail_disk((role + 1) % 6)
        await rig.compare()

    play(SmallRig(slow=role in (2, 3, 4)), body)


@pytest.mark.parametrize("back", [False, True])
def test_a_killed_process_at_any_point_loses_nothing_even_with_a_member(back: bool) -> None:
    """Everything acknowledged is there, whichever member is missing, after a kill at any moment."""

    async def check(images: list[bytes], model: bytes, size: int) -> None:
        for lost in range(-1, len(images)):
            members = []
            for number, image in enumerate(images):
                if number != lost:
                    ram = RamMember(len(image), name=f"again{number}")
                    ram.memory[:] = image
                    members.append(ram)
            async with open_array(members) as array:
                with trio.fail_after(3600):
                    got = bytes(await array.read(0, size))
                    assert got == model, f"lost {lost}"
                    if lost < 0:
                        for job in array.jobs.running():
                            await job.finished.wait()
                        assert array.core.growth is None
                        assert bytes(await array.read(0, size)) == model

    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig, share=0.8)
        size = len(rig.model)
        job = await grow(rig, 2)
        job.speed_max_bytes = job.speed_min_bytes = 150 * CHUNK
        rng = random.Random(back)
        while not job.finished.is_set():
            for _ in range(rng.randrange(12)):
                start = rng.randrange(size)
                data = rng.randbytes(min(rng.choice((100, CHUNK, 9000)), size - start))
                await array.write(start, data)
                rig.model[start : start + len(data)] = data
                await trio.sleep(rng.choice((0.0, 0.002)))
            if back and job.layout.migrated > 30:
                job.cancel()
            unsaved.append(len(job.growth.unsaved))
            images = [bytes(ram_of(member).memory) for member in rig.members]
            await check(images, bytes(rig.model), size)
            await trio.sleep(0.02)
        if back:
            rig.width -= 2
            del rig.members[-2:]
        await rig.compare()

    unsaved: list[int] = []
    play(SmallRig(), body)
    assert sum(count > 0 for count in unsaved) > 3  # some fell where nothing was checkpointed


async def eventually(condition: Callable[[], bool]) -> None:
    """Return when *condition* holds, within a second of virtual time."""
    for _ in range(10_000):
        if condition():
            return
        await trio.sleep(0.0001)
    raise AssertionError("it never comes true")


async def reopened(rig: Rig, check: Callable[[Array], Awaitable[None]]) -> None:
    """Kill the process as it were, start from what the members hold, and check that array."""
    members = []
    for number, member in enumerate(rig.members):
        ram = RamMember(rig.member_bytes, name=f"again{number}")
        ram.memory[:] = ram_of(member).memory
        members.append(ram)
    async with open_array(members) as array:
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


def test_a_rebuild_may_end_while_copies_are_not_checkpointed() -> None:
    """It leaves out places that are dead as stripes lie now: they must lie so after a crash."""

    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig)
        job = await paused_with_unsaved(rig, 2)
        await array.fail_disk(0)
        await rig._step_replace()
        (rebuild,) = (other for other in array.jobs.running() if other is not job)
        await rebuild.finished.wait()
        del rig.members[0]
        rig.members.insert(0, rig.members.pop())
        model = bytes(rig.model)

        async def check(again: Array) -> None:
            assert not again.store.lost
            assert bytes(await again.read(0, len(model))) == model
            for other in again.jobs.running():
                await other.finished.wait()
            result = await again.jobs.wait(await again.start_scrub(repair=False))
            assert result["mismatches"] == 0

        await reopened(rig, check)

    play(SmallRig(), body)


def test_only_writes_to_moved_blocks_wait_for_a_checkpoint() -> None:
    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig)
        job = await paused_with_unsaved(rig, 2)
        layout, growth = job.layout, job.growth
        stays = next(
            layout.logical(s, c)
            for s in growth.unsaved
            for c in range(3)
            if layout.logical(s, c) * CHUNK < array.size_bytes
        )
        saves = growth.checkpoints
        await array.write(stays * CHUNK, b"stays")
        assert growth.checkpoints == saves
        moves = next(
            layout.logical(s, c)
            for s in growth.unsaved
            for c in range(3, 5)
            if layout.moved(s, c) and layout.logical(s, c) * CHUNK < array.size_bytes
        )
        await array.write(moves * CHUNK, b"moves")
        assert growth.checkpoints == saves + 1
        assert not growth.unsaved
        assert array.store.config.params["migrated"] == layout.migrated
        rig.model[stays * CHUNK : stays * CHUNK + 5] = b"stays"
        rig.model[moves * CHUNK : moves * CHUNK + 5] = b"moves"

        async def check(again: Array) -> None:
            assert bytes(await again.read(0, len(rig.model))) == rig.model

        await reopened(rig, check)
        job.resume()
        await job.finished.wait()
        enlarge(rig)
        await rig.compare()

    play(SmallRig(), body)


def test_an_old_record_in_the_journal_does_not_undo_a_block_that_came_back() -> None:
    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig)
        chunk = 0  # the first stripe moves its first block
        job = await grow(rig, 2)
        job.pause()
        await array.write(chunk, b"old" * 100)  # a record of the old place
        assert array.core.journal.holds(0)
        job.resume()
        await eventually(lambda: job.layout.migrated > 0)
        assert array.core.layout.locate(0) == (0, 3)
        await array.write(chunk, b"new" * 100)  # and one of the new place
        job.cancel()
        await eventually(lambda: job.back and not job.layout.migrated)
        assert array.core.journal.holds(0)  # it did come back before its records were placed
        await job.finished.wait()
        rig.width -= 2
        del rig.members[-2:]
        rig.model[:300] = b"new" * 100

        async def check(again: Array) -> None:
            assert bytes(await again.read(0, len(rig.model))) == rig.model

        await reopened(rig, check)
        await rig.compare()

    play(SmallRig(), body)


def test_a_full_host_holds_the_growth_up_and_nothing_else() -> None:
    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig)
        members = [rig.new_member()]
        data = array.store.config.regions.data.offset

        def no_room(offset: int, length: int) -> None:
            if offset >= data:
                raise MemberError(members[0].path, "reserve", offset, errno.ENOSPC, "no space")

        members[0].reserve = no_room  # type: ignore[method-assign,assignment]
        await array.grow(members)
        rig.members += members
        job = job_of(rig)
        await trio.sleep(60.0)
        assert job.state == "running"
        assert "free space" in job.status()["error"]
        assert not job.layout.migrated
        assert not array.store.lost
        assert array.status()["state"] == "growing"
        await rig.compare()
        del members[0].reserve
        await job.finished.wait()  # it goes on by itself
        assert job.state == "done"
        assert job.status()["error"] is None
        enlarge(rig)
        await rig.compare()

    play(SmallRig(), body)


def test_a_spare_of_before_takes_over_while_the_array_grows() -> None:
    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig)
        await rig._step_spare()
        job = await grow(rig, 1)
        job.speed_max_bytes = job.speed_min_bytes = 100 * CHUNK
        records = array.store.config.members
        assert [record.role for record in records] == [0, 1, 2, 3, 4, -1]
        async with under_load(rig):
            await trio.sleep(0.2)
            await array.fail_disk(4)  # the new one: the spare is rebuilt in its place
            with trio.fail_after(600):
                await job.finished.wait()
        assert job.state == "done", job.error
        assert [record.state for record in array.store.config.members] == ["active"] * 5
        enlarge(rig)
        await rig.compare()
        await scrubbed(rig)
        await rig.close()
        array = await rig.open()
        await rig.compare()

    play(SmallRig(), body)


@pytest.mark.parametrize("cancelled", [False, True])
def test_it_pauses_at_a_block_that_nobody_can_give_back(cancelled: bool) -> None:
    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig)
        await array.core.journal.drain()
        size = len(rig.model)
        await array.fail_disk(1)
        (other,) = (m for m in rig.members if m.path == "ram0")
        start = array.store.config.regions.data.offset
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
        assert "resume" in job.status()["error"]
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
        with trio.fail_after(600):
            await job.finished.wait()
        assert job.state == ("cancelled" if cancelled else "done")
        assert job.error is None
        if cancelled:
            rig.width -= 1
            assert array.size_bytes == size
        else:
            enlarge(rig)
        await rig.compare()

    play(SmallRig(), body)


def test_places_that_blocks_left_go_back_to_the_host_once_that_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    punched: list[tuple[str, int]] = []
    punch = FaultMember.punch

    async def body(rig: Rig) -> None:
        array = rig.array
        assert array is not None
        await fill(rig)
        await array.core.journal.drain()
        start = array.store.data_offset

        async def noting(member: FaultMember, offset: int, length: int) -> bool:
            growth = array.core.growth
            if growth is None:  # a newcomer's metadata
                return await punch(member, offset, length)
            rows = range((offset - start) // CHUNK, (offset - start + length) // CHUNK)
            assert rows.stop <= growth.saved  # durable before a byte goes
            assert array.store.config.params["migrated"] >= rows.stop
            punched.extend((member.path, row) for row in rows)
            await trio.sleep(0.001)  # a user reads and writes meanwhile
            return await punch(member, offset, length)

        monkeypatch.setattr(FaultMember, "punch", noting)
        job = await grow(rig, 2)
        job.speed_max_bytes = job.speed_min_bytes = 20 * CHUNK  # some checkpoints on the way
        async with under_load(rig, pause_s=0.01):
            await job.finished.wait()
        monkeypatch.setattr(FaultMember, "punch", punch)
        assert job.state == "done", job.error
        assert job.growth.checkpoints > 2
        layout = job.layout
        moves = zip(*layout.moving(0, layout.stripes), strict=True)
        left = {(f"ram{old}", row) for row, old, _, _ in moves}
        assert set(punched) == left
        assert len(punched) == len(left)
        enlarge(rig)
        await rig.compare()
        await scrubbed(rig)
        await fill(rig, seed=3, share=0.3)
        await rig.compare()

    play(SmallRig(slow=True), body)
