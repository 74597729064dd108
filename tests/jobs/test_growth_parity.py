"""The parity modes of a growth from the paper, piggyback and surrogate: their cost and safety."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from raidx_fuse.engine.growth_position import PIGGYBACK, SURROGATE
from raidx_fuse.errors import NotWithLayoutError
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.journal.ring import HEAD_BYTES
from raidx_fuse.layouts.numbers import Role
from tests.support.arrays import Rig, job_ended, jobs_ended
from tests.support.growing import (
    SmallRig,
    grow,
    job_of,
    ram_of,
    remount_until_done,
    small_spies,
)
from tests.support.load import CHUNK, ended, enlarge, eventually, opened, scrubbed, under_load
from tests.support.spy import FLUSH, WRITE, restarted

WAYS = (PIGGYBACK, SURROGATE)


async def settle_members(rig: Rig, parity: str) -> None:
    """Let the rig follow what a growth made of its members: the surrogate has role 3 now."""
    if parity == SURROGATE:
        former = rig.members[3]
        record = rig.array.member_set.config.members[-1]
        assert (record.role, record.state) == (-1, "spare")
        assert list(rig.array.member_set.spares.values()) == [former]
        await rig.array.remove_disk(record.member_uuid)
        rig.members[3] = rig.members.pop()


async def take_new_end(rig: Rig) -> None:
    """Let the model have what the image's new end holds: zeros, or old copies."""
    size = len(rig.model)
    enlarge(rig)
    rig.model[size:] = bytes(await rig.array.read(size, len(rig.model) - size))


@pytest.mark.parametrize(
    ("parity", "slow", "journal"),
    [
        (SURROGATE, False, "partial"),
        (SURROGATE, True, "none"),
        (PIGGYBACK, True, "partial"),
        (PIGGYBACK, False, "none"),
    ],
)
async def test_two_growths_under_writes_keep_every_byte(
    parity: str, slow: bool, journal: str
) -> None:
    rig = await opened(SmallRig("raid4", slow=slow))
    array = rig.array
    await array.set("journal", journal)
    if slow:  # what is cached of parity must not outlive its change
        await array.set("cache.size", "16MiB")
        await array.set("parity.policy", "rmw")
    await rig.fill(0.7)
    for added in (1, 2):
        job = await grow(rig, added, parity=parity, chunks_a_second=400)
        async with under_load(rig):
            await job_ended(job)
        assert array.member_set.config.width == rig.width
        assert set(array.member_set.config.params) == {"history", "rules"}
        await take_new_end(rig)
        if parity == SURROGATE:
            assert not any(rig.model[-CHUNK:])  # nobody wrote there
        await settle_members(rig, parity)
        await rig.fill(seed=added, share=0.4)
        await scrubbed(rig)
        array = await rig.reopen()
        await scrubbed(rig)
    await array.fail_disk(1)
    await rig.compare()


@pytest.mark.parametrize("parity", WAYS)
@pytest.mark.parametrize("journal", ["partial", "none"])
@pytest.mark.parametrize("added", [1, 2])
async def test_only_what_moves_and_its_parity_are_read_and_written(
    parity: str, journal: str, added: int
) -> None:
    """Bytes of the data regions for each byte of old data; of the unmoved parity extra."""
    most = {1: {PIGGYBACK: 1.02, SURROGATE: 1.02 + 2 / 12}, 2: {PIGGYBACK: 1.36, SURROGATE: 1.5}}
    rig = await opened(small_spies())
    array = rig.array
    await array.set("journal", journal)
    await rig.fill()
    await array.context.journal.drain()
    rows = array.context.layout.stripes
    region = array.member_set.config.regions.data
    estimate = await array.grow_operation.plan(added, parity).cost()
    rig.log.clear()
    job = await grow(rig, added, windows=10**6, parity=parity)
    await job.finished.wait()
    await array.context.journal.drain()
    names = [f"ram{number}" for number in range(4 + added + (parity == SURROGATE))]
    # New members are searched for signatures; those reads are not the growth's.
    reads = [rig.log.bytes_of("read", region, name) for name in names[:4]]
    writes = [rig.log.bytes_of("write", region, name) for name in names]
    assert sum(reads) + sum(writes) <= most[added][parity] * rows * 3 * CHUNK
    assert sum(reads) == estimate["bytes_read"]
    assert sum(writes) == estimate["bytes_written"]
    assert not any(writes[:3])  # no old data disk is written
    assert (writes[3] > 0) == (parity == PIGGYBACK)


async def test_copies_are_durable_before_a_record_makes_them_part_of_the_parity() -> None:
    """A replay takes them for what the parity says, whatever a cut has dropped of them."""
    rig = await opened(small_spies(), 1.0)
    await rig.in_place()
    rig.log.clear()
    job = await grow(rig, 2, parity=PIGGYBACK)
    await job.finished.wait()
    regions = rig.array.member_set.config.regions
    unflushed: set[str] = set()
    records = 0
    for touch in rig.log.touches:
        if touch.kind == FLUSH:
            unflushed.discard(touch.member)
        if touch.kind != WRITE:
            continue
        if touch.offset_bytes >= regions.data.offset and touch.member in ("ram4", "ram5"):
            unflushed.add(touch.member)
        if regions.log.offset + HEAD_BYTES <= touch.offset_bytes < regions.log.end:
            records += 1
            assert not unflushed
    assert records > 10


@pytest.mark.parametrize("parity", WAYS)
async def test_it_goes_on_after_remounts(parity: str) -> None:
    rig = await opened(SmallRig(slow=True), 0.8)

    def check(job: Grow) -> None:
        assert job.detail()["parity"] == parity

    job = await grow(rig, 2, parity=parity)
    assert await remount_until_done(rig, job, 150, check) >= 2
    await take_new_end(rig)
    await scrubbed(rig)


@pytest.mark.parametrize("parity", WAYS)
@pytest.mark.parametrize("after_s", [0.0, 0.3])
async def test_cancelled_it_goes_back_to_the_old_shape(parity: str, after_s: float) -> None:
    rig = await opened(SmallRig())
    array = rig.array
    params = dict(array.member_set.config.params)
    await rig.fill(0.8)
    size = len(rig.model)
    job = await grow(rig, 2, parity=parity, chunks_a_second=100)
    async with under_load(rig):
        await trio.sleep(after_s)
        array.jobs.cancel(job.job_id)
        if after_s:  # and unmounted on the way back
            await trio.sleep(0.1)
            assert job.back
            assert job.layout.migrated
        else:
            await job.finished.wait()
    if after_s:
        array = await rig.reopen()
        job = job_of(rig)
        assert job.back
        await job_ended(job, "cancelled")
    rig.width -= 2
    del rig.members[4:]
    assert array.size_bytes == size
    assert array.member_set.config.width == 4
    assert array.member_set.config.params == params
    assert not array.member_set.lost
    assert not any(map(array.context.written.is_written, range(size // CHUNK, size // CHUNK * 2)))
    await scrubbed(rig)
    await rig.reopen()
    await rig.compare()
    job = await grow(rig, 1)
    await ended(rig, job)


@pytest.mark.parametrize(("parity", "role"), [(PIGGYBACK, 0), (SURROGATE, 6)])
async def test_any_member_may_be_lost_on_the_way(parity: str, role: int) -> None:
    """Old data under a piggyback, which is planned anew; the surrogate."""
    rig = await opened(SmallRig(), 0.8)
    array = rig.array
    job = await grow(rig, 2, parity=parity, chunks_a_second=100)
    async with under_load(rig):
        await trio.sleep(0.4)
        assert 0 < job.layout.migrated < job.layout.stripes
        await array.fail_disk(role)
        await trio.sleep(0.3)
    await rig.compare()
    before = job.layout.migrated
    waits = role >= 4  # nothing may move onto it, so the growth waits
    assert job.status()["waits_for_role"] == (role if waits else None)
    assert not waits or before == job.layout.migrated
    array = await rig.reopen()
    job = job_of(rig)
    await rig.compare()
    job.speed_max_bytes = job.speed_min_bytes = 400 * CHUNK
    async with under_load(rig):
        await rig._step_replace()
        with trio.fail_after(600):
            await rig._step_settle()
    assert job.state == "done", job.error
    await take_new_end(rig)
    await scrubbed(rig)
    await array.fail_disk(1)
    await rig.compare()


async def test_a_refused_copy_costs_no_chunk_of_a_lost_member() -> None:
    """They follow from the parity, which must not have changed when the growth pauses."""
    rig = await opened(SmallRig())
    array = rig.array
    await array.set("journal", "none")
    await rig.fill()
    job = await grow(rig, 1, parity=PIGGYBACK, chunks_a_second=100)
    await array.fail_disk(0)
    fault = rig.members[4].error(("write",), offset_bytes=array.member_set.data_offset)
    await eventually(lambda: job.state == "paused", 60)

    await rig.compare()
    fault.lift()
    job.resume()
    await job_ended(job)
    await take_new_end(rig)
    await rig.compare()
    await array.replace_disk(0, rig.new_member(0))
    await jobs_ended(array)
    await scrubbed(rig)


async def test_the_log_is_on_the_surrogate_when_it_has_the_role_of_the_parity() -> None:
    """A replay believes it, also when the other member of the log has lost its copy by then."""
    rig = await opened(SmallRig("raid4", 3), 1.0)
    job = await grow(rig, 1, parity=SURROGATE)
    job.pause()
    await rig.close()
    rig.members.pop(0)  # so the log is on the next one and the parity
    array = await rig.open()
    journal = array.context.journal
    reform, images = journal.reform, list[bytes]()

    async def write_and_reform() -> None:  # the former parity member is rebuilt as role 0
        assert array.member_set.lost == {0}
        assert journal.log_members.roles == (1, 2, 3)
        await array.write(0, b"placed")
        await journal.place()  # the head page is saved again
        while 3 not in journal.log_members.at(journal.ring.next_place(1024)[1]):
            await array.write(0, bytes(4096))
        rig.model[:512] = bytes([7]) * 512
        await array.write(0, bytes(rig.model[:512]))
        await array.flush()
        images[:] = [bytes(ram_of(member).memory) for member in rig.members]
        ring, size = journal.ring.offset, journal.capacity
        surrogate = array.member_set.config.record(Role(3)).path_hint
        for number, member in enumerate(rig.members):
            if member.path != surrogate:
                image = images[number]
                images[number] = image[:ring] + bytes(size) + image[ring + size :]
        await reform()

    journal.reform = write_and_reform  # type: ignore[method-assign]
    job = job_of(rig)
    await job_ended(job)
    enlarge(rig)
    await eventually(lambda: bool(images))
    async with restarted(images) as again:
        assert bytes(await again.read(0, len(rig.model))) == rig.model


async def test_what_cannot_be_meant_is_refused() -> None:
    rig = await opened(SmallRig("raid0", 2))
    array = rig.array
    newcomer: Any = rig.new_member()
    with pytest.raises(NotWithLayoutError):
        await array.grow([newcomer], PIGGYBACK)
    with pytest.raises(NotWithLayoutError):
        await array.grow([newcomer], surrogate=rig.new_member())
    assert array.member_set.config.width == 2


async def test_two_new_members_that_refuse_at_once_leave_no_block_in_parity_twice() -> None:
    """Parity and copies were written together: the parity of the first attempt stayed."""
    rig = await opened(SmallRig())
    await rig.array.set("journal", "none")
    await rig.fill()
    first = len(rig.members)
    job = await grow(rig, 2, parity=PIGGYBACK, chunks_a_second=100)
    await trio.sleep(0.3)
    data = rig.array.member_set.data_offset
    faults = [rig.members[first + k].error(("write",), offset_bytes=data) for k in (0, 1)]
    await eventually(lambda: job.state == "paused")
    for fault in faults:
        fault.lift()
    for role in sorted(rig.array.member_set.lost):
        answer = await rig.array.replace_disk(role, rig.new_member(role))
        await rig.array.jobs.wait(answer["job"])
    job.resume()
    await job_ended(job)
    await take_new_end(rig)
    await scrubbed(rig)
    await rig.array.fail_disk(0)
    await rig.compare()
