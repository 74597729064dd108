"""A raid1 array gets more copies: at once in shape, then by a rebuild; nothing is ever lost."""

from __future__ import annotations

import random

import pytest
import trio
import trio.lowlevel

from raidx_fuse.errors import (
    ArrayFailedError,
    BusyError,
    NotWithLayoutError,
    RaidxError,
    UsageError,
)
from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, parity_holds
from tests.support.spy import SpyRig, fill, filled, noise, restarted, spied, spying

CHUNK = 4096


async def add(rig: SpyRig, added: int) -> int:
    """Begin to add copies; return the id of the rebuild's job."""
    members = [rig.new_member() for _ in range(added)]
    result = await rig.array.grow(members)
    rig.members += members
    rig.width += added
    return int(result["job"])


@pytest.mark.parametrize("journal", ["partial", "full", "none"])
@pytest.mark.parametrize("added", [1, 2])
async def test_every_new_copy_alone_holds_everything(journal: str, added: int) -> None:
    rig = await filled("raid1", 2, chunk_bytes=CHUNK, journal=journal)
    job = await add(rig, added)
    await rig.put(5 * CHUNK + 100, noise(3000, 5))  # while the rebuild runs
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    assert rig.array.status()["redundancy_left"] == 1 + added
    await rig.put(9 * CHUNK + 7, noise(700, 6))
    await rig.array.flush()
    for role in range(2, 2 + added):
        async with restarted([rig.images()[role]], start_degraded=True) as array:
            assert await array.read(0, len(rig.model)) == rig.model


async def test_a_new_copy_that_fails_costs_nothing() -> None:
    rig = await filled("raid1", 2, chunk_bytes=CHUNK)
    await rig.array.set("speed_max", "4KiB")
    job = await add(rig, 1)
    await trio.sleep(1)
    await rig.array.fail_disk(2)
    assert (await rig.array.jobs.wait(job))["state"] != "running"
    assert await rig.get(0, len(rig.model)) == rig.model
    with pytest.raises(RaidxError, match="role 2 is lost"):
        await rig.array.grow([rig.new_member()])
    await rig.array.set("speed_max", "0")
    result = await rig.array.replace_disk(2, rig.new_member())
    assert (await rig.array.jobs.wait(result["job"]))["state"] == "done"
    assert rig.array.status()["redundancy_left"] == 2


async def test_a_member_that_is_too_small_or_one_too_many_is_refused() -> None:
    rig = await spied("raid1", 2, chunk_bytes=CHUNK)
    with pytest.raises(UsageError, match="bytes"):
        await rig.array.grow([RamMember(64 << 10, name="small")])
    with pytest.raises(UsageError):
        await rig.array.grow([rig.new_member() for _ in range(300)])
    assert rig.array.member_set.config.width == 2


@pytest.mark.parametrize("role", [0, 1, 2])
async def test_a_copy_leaves_at_any_time_and_the_others_keep_everything(role: int) -> None:
    chance = random.Random(role)
    async with spying("raid1", 3, chunk_bytes=CHUNK) as rig:
        await fill(rig)
        await rig.put(9 * CHUNK + 7, noise(700, 6))  # in the log, whose records name roles
        await rig.array.flush()
        pictures: list[list[bytes]] = []
        rig.log.hook = lambda _touch: (
            pictures.append(rig.images()) if chance.random() < 0.5 else None
        )
        await rig.array.remove_disk(role)
        rig.log.hook = None
        assert rig.array.status()["redundancy_left"] == 1
        await rig.put(3 * CHUNK, noise(5000, 8))
        assert await rig.get(0, len(rig.model)) == rig.model
        await rig.array.flush()
        left = [image for number, image in enumerate(rig.images()) if number != role]
        for image in left:
            async with restarted([image], start_degraded=True) as array:
                assert await array.read(0, len(rig.model)) == rig.model
        del rig.members[role]
        rig.width -= 1
    assert len(pictures) > 3
    for images in pictures:
        members = [image for image in images if is_member(bytearray(image))]
        async with restarted(members) as array:
            await jobs_ended(array)
            assert (await array.read(9 * CHUNK + 7, 700)) == noise(700, 6)


async def test_the_last_copies_stay() -> None:
    rig = await filled("raid1", 3, chunk_bytes=CHUNK)
    await rig.array.fail_disk(0)
    await rig.array.fail_disk(1)
    with pytest.raises(ArrayFailedError, match="only complete copy"):
        await rig.array.remove_disk(2)
    await rig.array.remove_disk(0)  # it is lost anyway
    with pytest.raises(NotWithLayoutError):
        await rig.array.remove_disk(0)
    assert await rig.get(0, len(rig.model)) == rig.model


async def test_copies_come_and_go_under_load() -> None:
    chance = random.Random(1)
    rig = await filled("raid1", 2, chunk_bytes=CHUNK, slow=True)

    async def work(part: int) -> None:
        """Write and read at random places of one quarter of the image."""
        size = len(rig.model) // 4
        while True:
            at = part * size + chance.randrange(size - 9000)
            length = chance.choice((1, 512, 4096, 9000))
            if chance.random() < 0.5:
                await rig.put(at, noise(length, chance.randrange(1 << 20)))
            else:
                assert await rig.get(at, length) == rig.model[at : at + length]

    async with trio.open_nursery() as nursery:
        for part in range(2):
            nursery.start_soon(work, part)
        for _ in range(2):
            result = await rig.array.grow([rig.new_member(), rig.new_member()])
            await rig.array.jobs.wait(result["job"])
            for _ in range(2):
                width = rig.array.member_set.config.width
                await rig.array.remove_disk(chance.randrange(width))
        nursery.cancel_scope.cancel()
    await parity_holds(rig.array)


async def test_two_copies_that_leave_at_once_are_those_that_were_named() -> None:
    """The first one changes the role of the other while that waits."""
    rig = await filled("raid1", 4, chunk_bytes=CHUNK)
    records = [rig.array.member_set.config.record(Role(role)) for role in range(4)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.array.remove_disk, 0)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(rig.array.remove_disk, 2)
    left = {record.member_uuid for record in rig.array.member_set.config.members}
    assert left == {records[1].member_uuid, records[3].member_uuid}
    assert await rig.get(0, len(rig.model)) == rig.model


async def test_a_copy_is_not_replaced_in_a_role_that_changed_meanwhile() -> None:
    rig = await filled("raid1", 4, chunk_bytes=CHUNK)
    refused = []

    async def replace_last() -> None:
        try:
            await rig.array.replace_disk(2, rig.new_member())
        except BusyError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.array.remove_disk, 0)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(replace_last)
    members = rig.array.member_set.config.members
    assert refused
    assert [record.state for record in members] == ["active"] * 3
