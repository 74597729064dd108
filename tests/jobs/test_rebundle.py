"""Rebundling: members of raidx arrays join, leave and are lost, under load."""

from __future__ import annotations

import contextlib
import os
import random
from dataclasses import replace
from typing import Any

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import BusyError, RaidxError, Reason, UsageError
from raidx_fuse.format.configuration.sums import SumTable, sums_of
from raidx_fuse.jobs.tuner.speeds import Mean
from raidx_fuse.lab.crash.sums import check_copies, check_whole, live_pages
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import Operation
from tests.support.arrays import job_ended
from tests.support.growing import ram_of
from tests.support.reasons import because
from tests.support.spy import lift, members_from
from tests.support.unlike import CHUNK, UnlikeRig, usable


@pytest.mark.parametrize("seed", range(14))
async def test_what_a_dry_run_says_is_what_happens(seed: int) -> None:
    """Members of random sizes, 3 to 10: usable space to the byte, written chunks to the chunk."""
    rng = random.Random(seed)
    width, added = rng.randint(3, 7), rng.randint(1, 3)
    name, length = rng.choice(
        [("raidx-zero", 1), ("raidx-copy", 2), ("raidx-copy", 3), ("raidx-parity", 3)]
    )
    chunks = tuple(rng.randint(4, 60) for _ in range(width))
    rig = UnlikeRig(name, length, chunks, reads_zero=bool(seed % 2))
    array = await rig.create()
    assert array.size_bytes == usable(rig)
    await rig.fill(0.7, seed)
    new = [rig.disk(rng.randint(2, 120)) for _ in range(added)]
    said = await array.rebundle.plan().cost([disk.size_bytes for disk in new])
    result = await array.grow(new)
    rig.members += new
    (job,) = await rig.settle()
    assert job["state"] == "done"
    assert said["chunks_to_move"] == result["chunks_to_move"] == job["chunks_moved"]
    assert said["places_to_change"] == job["places_changed"]
    assert said["bytes_written"] == job["done"] == job["chunks_moved"] * CHUNK
    assert said["size_after"] == result["size_after"] == array.size_bytes == usable(rig)
    await rig.check()
    await rig.fill(0.5, seed + 1)
    await rig.remount()
    assert rig.array.size_bytes == said["size_after"]


SEEDS = int(os.environ.get("RAIDX_RESHAPE_SEEDS", "2"))  # of longer runs
STEPS = ("add", "remove", "fail", "larger", "write")


async def _load(rig: UnlikeRig, seed: int) -> None:
    """Write and read as long as jobs run, and a little longer."""
    rng = random.Random(seed)
    for _ in range(60):
        await rig._step_write(rng.random(), rng.random(), rng.randrange(1 << 30))
        await rig._step_read(rng.random(), rng.random())
        await trio.sleep(rng.random() * 0.01)


async def _turn(rig: UnlikeRig, step: str, rng: random.Random) -> None:
    array = rig.array
    roles = array.member_set.config.roles()
    with contextlib.suppress(BusyError, UsageError):
        if step == "add":
            new = [rig.disk(rng.randint(3, 60)) for _ in range(rng.randint(1, 2))]
            await array.grow(new)
            rig.members += new
        elif step == "remove":
            with contextlib.suppress(RaidxError):
                await array.remove_disk(rng.choice(roles))
        elif step == "fail" and array.context.code.tolerance and not array.member_set.lost:
            await array.fail_disk(rng.choice(roles))
            await trio.sleep(rng.choice((0.0, 61.5)))
            if rng.random() < 0.4 and (lost := sorted(array.member_set.lost)):
                with contextlib.suppress(RaidxError):  # no room
                    await array.remove_disk(lost[0])
        elif step == "larger" and array.context.code.tolerance and not array.member_set.watermarks:
            role = rng.choice(sorted(array.member_set.lost) or roles)
            disk = rig.disk(100)
            await array.replace_disk(role, disk)
            rig.members.append(disk)


@pytest.mark.parametrize(
    ("name", "length", "chunks", "slow", "seed", "sums"),
    [
        (*kind, (number + seed) % 2 == 1, seed, sums)
        for number, kind in enumerate(
            [
                ("raidx-zero", 1, (40, 18, 25)),
                ("raidx-copy", 2, (40, 18, 25, 20)),
                ("raidx-copy", 3, (30, 24, 40, 22)),
                ("raidx-parity", 3, (44, 30, 36, 22, 21)),
            ]
        )
        for seed in range(SEEDS)
        for sums in (False, True)
    ],
)
async def test_the_image_equals_the_model_whoever_comes_or_leaves(
    name: str, length: int, chunks: tuple[int, ...], slow: bool, seed: int, sums: bool
) -> None:
    """Every change under load; stopped in the middle by a remount, it goes on."""
    rng = random.Random(seed)
    room, zeros = rng.choice((0.0, 0.4)), seed == 0
    rig = UnlikeRig(name, length, chunks, room=room, slow=slow, reads_zero=zeros, sums=sums)
    await rig.create()
    await rig.fill(0.5, seed)
    for _ in range(7):
        step = rng.choice(STEPS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_load, rig, rng.randrange(1 << 30))
            await _turn(rig, step, rng)
        if rng.random() < 0.3:
            await rig.close()  # in the middle of it, perhaps
            await rig.open()
        for job in await rig.settle():
            assert job["state"] in ("done", "failed"), job
        if lost := rig.array.member_set.lost:
            await rig.array.replace_disk(min(lost), disk := rig.disk(110))
            rig.members.append(disk)
            await rig.settle()
            await rig.settle()
        await rig.check()
    await rig.remount()


async def test_a_member_leaves_only_if_the_others_have_room() -> None:
    rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26))
    array = await rig.create(0.3)
    used = rig.bundles.used_chunks()
    with pytest.raises(RaidxError, match=rf"holds {used[1]} chunks, and the other .* free"):
        await array.remove_disk(1)
    with pytest.raises(RaidxError, check=because(Reason.ARRAY_FULL)):
        await array.membership.plan_removing(1)
    assert "reshape" not in array.member_set.config.jobs
    await array.grow([disk := rig.disk(60)])
    rig.members.append(disk)
    await rig.settle()
    assert array.size_bytes == usable(rig)
    with pytest.raises(RaidxError, check=because(Reason.ARRAY_FULL)):  # the image uses it all
        await array.remove_disk(1)
    await rig.check()


async def test_a_dry_run_is_refused_as_the_removal_is_while_a_resync_is_due() -> None:
    """No loss is survived then, whatever the dry run of a raidx array said."""
    rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26), room=0.5)
    await rig.create(0.6)
    await rig.array.set("journal", "none")
    await rig.put(0, bytes(CHUNK))
    pictures = [bytes(ram_of(member).memory) for member in rig.members]
    async with open_array(members_from(pictures)) as array:
        (job,) = array.jobs.running()
        job.stop()
        await job.finished.wait()
        assert array.status()["redundancy_left"] == 0
        with pytest.raises(BusyError, match="a resync is due"):
            await array.membership.plan_removing(1)


async def test_who_left_is_no_member_and_may_come_back_as_a_new_one() -> None:
    rig = UnlikeRig("raidx-copy", 2, (30, 24, 28, 26), room=0.5)
    array = await rig.create(0.6)
    said = await (await array.membership.plan_removing(1)).cost()
    released: list[Any] = []
    array.on_release.append(released.append)
    member = rig.members[1]
    result = await array.remove_disk(1)
    (job,) = await rig.settle()
    assert said["chunks_to_move"] == result["chunks_to_move"] == job["chunks_moved"] > 0
    assert released == [member]
    assert array.status()["state"] == "clean"
    assert [m["role"] for m in array.status()["members"]] == [0, 2, 3]
    await array.grow([member])
    await rig.settle()
    assert [m["role"] for m in array.status()["members"]] == [0, 1, 2, 3]
    await rig.check()
    await rig.remount()


async def test_a_larger_disk_is_used_to_its_end() -> None:
    rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26))
    array = await rig.create(0.7)
    before = array.size_bytes
    sizes: list[int] = []

    async def note_size() -> None:
        sizes.append(array.size_bytes)

    array.on_size.append(note_size)
    for role in (1, 2, 3):
        left = array.status()["redundancy_left"]
        answer = await array.replace_disk(role, disk := rig.disk(60))
        assert answer["does"] == "copied"
        rig.members.append(disk)
        while any(job.kind == "replace" for job in array.jobs.running()):
            status = array.status()
            assert status["redundancy_left"] == left
            assert all(each["state"] in ("active", "spare") for each in status["members"])
            await trio.sleep(0.001)
        await rig.settle()
        await rig.check()
    assert array.size_bytes == usable(rig) > before
    assert sizes[-1] == array.size_bytes
    await rig.remount()


async def test_of_a_larger_disk_is_used_what_has_checksums() -> None:
    rig = UnlikeRig("raidx-copy", 2, (30, 24, 28), sums=True)
    array = await rig.create(0.5)
    most = array.member_set.config.regions.data.length // CHUNK
    assert most > 2 * max(rig.bundles.counts)
    await array.grow([disk := rig.disk(300)])
    rig.members.append(disk)
    await rig.settle()
    await rig.check()
    await array.replace_disk(0, disk := rig.disk(200))
    rig.members.append(disk)
    await rig.settle()
    assert [rig.bundles.counts[role] for role in (0, 3)] == [most, most]
    await rig.fill(0.9, 3)
    await rig.check()
    await rig.remount()


async def test_tables_of_checksums_lie_where_members_are() -> None:
    rig = UnlikeRig("raidx-parity", 3, (40, 40, 40, 40, 40), room=0.5, sums=True)
    array = await rig.create(0.9)

    def tables() -> tuple[SumTable, ...]:
        stored = sums_of(array.member_set.config)
        assert stored is not None
        assert stored.is_consistent(array.member_set.config.width)
        return stored.tables

    before = tables()
    await array.remove_disk(1)
    await rig.settle()
    assert array.member_set.config.vacant_roles() == {1}
    assert tables()[1] == (1, ())
    for role, table in enumerate(tables()):
        assert len(table.slots) == (0 if role == 1 else 2)
        assert not {1, role} & {on for on, _ in table.slots}
        stays = [slot for slot in before[role].slots if slot[0] != 1]
        assert role == 1 or set(stays) <= {*table.slots}
    await rig.check()
    await rig.remount()
    array = rig.array
    await array.grow([disk := rig.disk(60), other := rig.disk(20)])
    rig.members += [disk, other]
    await rig.settle()
    assert [table.number for table in tables()] == [0, 5, 2, 3, 4, 6]
    assert all(len(table.slots) == 2 for table in tables())
    await rig.fill(0.9, 3)
    await rig.check()
    places = await live_pages(array)
    await rig.remount()
    await rig.close()
    await check_copies(array, places, [member.inner for member in rig.members])
    await rig.open()


async def test_pages_that_tell_of_a_move_follow_its_sums() -> None:
    """New bundles save pages of the table beside a checkpoint; the array ends right then."""
    rig = UnlikeRig("raidx-parity", 3, (30, 30, 30, 30), sums=True)
    array = await rig.create()
    await rig.put(0, bytes(range(256)) * (2 * CHUNK // 256))
    layout, journal = rig.bundles, array.context.journal
    role, _ = layout.place(Stripe(0), CellIndex(0))
    for _ in range(2):  # the first place follows from the sizes of the members
        await journal.place()
        free = MemberChunk(int(layout.free_chunks(role)[-1]))
        assert await array.rebundle.mover.move([(0, role, free)])
    async with journal.placing:
        await journal.chunk_table.save_places(range(3))
    left = [RamMember(member.size_bytes, name=member.path) for member in rig.members]
    for copy, member in zip(left, rig.members, strict=True):
        assert isinstance(member.inner, RamMember)
        copy.memory[:] = member.inner.memory
    async with open_array(left) as again:
        assert again.replayed is not None
        assert again.replayed.records
        await check_whole(again)
        assert await again.read(0, 2 * CHUNK) == rig.model[: 2 * CHUNK]


async def test_a_growth_waits_for_a_lost_member_and_goes_on() -> None:
    rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26), slow=True)
    array = await rig.create(0.9)
    await array.set("speed_max", "8KiB")
    await array.grow([disk := rig.disk(90)])
    rig.members.append(disk)
    await trio.sleep(1)
    await array.fail_disk(1)
    await trio.sleep(30)
    (job,) = array.jobs.running()
    assert job.status()["waits_for_role"] == 1
    await array.set("speed_max", "0")
    await array.replace_disk(1, other := rig.disk(24))
    rig.members.append(other)
    await rig.settle()
    await rig.settle()
    assert array.size_bytes == usable(rig)
    await rig.check()


@pytest.mark.parametrize(
    ("name", "length", "chunks", "new"),
    [
        ("raidx-copy", 2, (6, 23, 10), (10, 32)),
        ("raidx-parity", 3, (10, 13, 8), (6, 22)),
    ],
)
async def test_new_bundles_keep_their_content_where_a_record_is_still_to_be_placed(
    name: str, length: int, chunks: tuple[int, ...], new: tuple[int, ...]
) -> None:
    """Chunks move to a place and on from there, all in the log; a new bundle gets the place, and
    is written past the log if nobody notices: the record would undo that, or be read instead."""
    rig = UnlikeRig(name, length, chunks)
    array = await rig.create()
    await array.set("journal", "none")
    ring = array.context.journal.ring
    ring.hurry_bytes = ring.capacity  # nothing is placed before it must be
    await rig.fill(1.0)
    layout = rig.bundles
    mover, rng = ChunkMover(array.context, layout), random.Random(1)
    before = layout.stripes
    await array.set("speed_max", "4KiB")
    await array.grow(disks := [rig.disk(count) for count in new])
    rig.members += disks
    for _ in range(30):
        moves = mover.exchange(rng.randrange(layout.cells), rng.randrange(layout.cells))
        if mover.problem(moves) is None:
            await mover.move(moves)
    await array.set("speed_max", "0")
    await rig.settle()
    places = {layout.place(s, k) for s in range(before, layout.stripes) for k in range(length)}
    at = array.member_set.data_offset
    page, overlay = memoryview(bytearray(CHUNK)), array.context.journal.overlay
    assert any(overlay.read(role, at + chunk * CHUNK, page) for role, chunk in places), (
        "no new bundle got a place that a record names"
    )
    data = rng.randbytes(array.size_bytes - len(rig.model))
    for begin in range(0, len(data), CHUNK):
        await array.write(len(rig.model) + begin, data[begin : begin + CHUNK])
    rig.model += data
    await rig.check()
    await trio.sleep(30)  # the records are placed
    await rig.check()
    assert not array.context.journal.holds(layout.stripes - 1), "held no longer than needed"


@pytest.mark.parametrize("operation", ["read", "write"])
async def test_a_move_that_a_member_refuses_waits_and_the_array_goes_on(
    operation: Operation,
) -> None:
    """Without redundancy no member can be spared, so the error reaches the job."""
    rig = UnlikeRig("raidx-zero", 1, (40, 34, 38), room=0.5)
    array = await rig.create(1.0)
    await array.context.journal.drain()
    await array.remove_disk(1)
    faults = [member.error((operation,)) for member in rig.members]
    (job,) = array.jobs.running()
    await trio.sleep(30)
    assert job.state == "running"
    assert "EIO" in str(job.error), job.status()
    lift(faults)
    await job_ended(job)
    assert array.member_set.config.roles() == [0, 2]
    await rig.check()
    await rig.remount()


async def test_moves_of_bundles_that_could_not_be_settled_are_done_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = UnlikeRig("raidx-copy", 2, (40, 34, 38), room=0.5)
    array = await rig.create()
    await rig.fill(0.1)  # two windows move all of it

    async def settle(_stripes: object) -> None:
        raise RaidxError("no parity")

    with monkeypatch.context() as refusing:
        refusing.setattr(array.context.journal, "settle", settle)
        await array.remove_disk(1)
        (job,) = array.jobs.running()
        for _ in range(2):
            await trio.sleep(1)
            assert job.state == "paused", job.status()
            job.resume()
        await trio.sleep(1)
        assert job.state == "paused", "it goes on as if all had been moved"
    job.resume()
    await job_ended(job)
    assert array.member_set.config.roles() == [0, 2]
    await rig.check()


async def test_the_tuner_forgets_who_left() -> None:
    rig = UnlikeRig("raidx-copy", 2, (40, 34, 38, 36), room=0.6, slow=True)
    array = await rig.create(0.9)
    tuner = array.tuner
    assert tuner is not None
    for _ in range(3):  # hot chunks on role 0, which is far slower than role 2, it is said
        for at in range(0, len(rig.model), CHUNK):
            await array.read(at, CHUNK)
    for role, queue in enumerate(array.member_set.queues):
        assert queue is not None
        meter = tuner.measured.meter(Role(role), queue)
        for speed in (meter.read, meter.write):
            speed.latency_s = Mean(1e-4 if role == 2 else 1.0, 100)
            speed.busy_s = replace(speed.latency_s)
            speed.byte_s = Mean(speed.latency_s.value / CHUNK, 100)
    assert tuner.plan().steps
    await array.remove_disk(2)
    await rig.settle()
    assert 2 not in {load.role for load in tuner.loads()}
    assert all(step.target != 2 for step in tuner.plan().steps)
    await trio.sleep(30)
    await rig.check()
