"""A member with an overdue write: what is not written, not read for parity, not assigned."""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.errors import ArrayFailedError, BusyError, MemberError, Reason
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import parity_holds
from tests.support.hanging import (
    OVER_S,
    hanging,
    landed,
    refused,
)
from tests.support.reasons import because
from tests.support.spy import noise, restarted

CHUNK = 4096


async def test_an_overdue_superblock_never_lands_over_a_newer_one() -> None:
    """A round that one member does not answer, two more updates, then it lands."""
    rig = await hanging("raid0", 2)
    fault = rig.members[0].hang(("write",), count=1)
    for speed in ("1MiB", "2MiB", "3MiB"):
        with pytest.raises(ArrayFailedError, match="superblock of ram0 lacks"):
            await rig.array.set("speed_max", speed)
    fault.lift()
    await landed()
    await rig.array.set("speed_max", "4MiB")
    await trio.sleep(OVER_S)
    for member in rig.members:
        superblock = await read_superblock(member)
        assert superblock is not None
        assert superblock.config.settings["speed_max"] == 4 << 20
    await rig.compare()


async def test_an_overdue_superblock_and_a_kill_leave_an_array_that_starts() -> None:
    """The member missed two rounds, and nobody else may rule without it."""
    rig = await hanging("raid0", 2)
    rig.members[0].hang(("write",), count=1)
    for speed in ("1MiB", "2MiB"):
        with pytest.raises(ArrayFailedError):
            await rig.array.set("speed_max", speed)
    new = noise(CHUNK, 3)
    with pytest.raises(ArrayFailedError):
        await rig.array.write(CHUNK, new)
    with pytest.raises(ArrayFailedError):
        await rig.array.flush()
    images, model = rig.images(), bytes(rig.model)
    rig.members[0].clear()
    async with restarted(images) as array:
        got = bytes(await array.read(0, len(model)))
    assert got[CHUNK : 2 * CHUNK] in (new, model[CHUNK : 2 * CHUNK])
    assert (got[:CHUNK], got[2 * CHUNK :]) == (model[:CHUNK], model[2 * CHUNK :])


def test_of_two_overdue_writes_the_second_one_stays_so_when_the_first_one_lands() -> None:
    member = RamMember(1 << 20, name="ram")
    member.note_overdue(0, CHUNK)
    member.note_overdue(4 * CHUNK, CHUNK)
    member.end_overdue(0, CHUNK)
    assert not member.is_overdue(0, CHUNK)
    assert member.is_overdue(5 * CHUNK - 1, 1)
    member.end_overdue(4 * CHUNK, CHUNK)
    assert not member.overdue


async def test_a_member_with_an_overdue_write_takes_no_role() -> None:
    rig = await hanging("raid5", 4)
    fault = rig.members[1].hang(("write",), count=1)
    await rig.put(0, noise(6 * CHUNK, 1))
    assert rig.array.member_set.config.record(1).state == "failed"
    with pytest.raises(BusyError, check=because(Reason.NO_ANSWER)):
        await rig.array.replace_disk(1, rig.members[1])
    fault.lift()
    await landed()
    job = (await rig.array.replace_disk(1, rig.members[1]))["job"]
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    await rig.compare()
    await rig.array.fail_disk(0)
    await rig.compare()


async def test_parity_is_not_computed_from_bytes_that_may_still_change() -> None:
    """A member hangs while a degraded stripe is rewritten, and while the lost one is rebuilt."""
    rig = await hanging("raid5", 4, mode="none")
    await rig.array.fail_disk(0)
    fault = rig.members[1].hang(("write",), count=1)
    written = noise(len(rig.model) // 2, 1)
    await refused(lambda: rig.array.write(0, written))
    spare = rig.new_member()
    job = (await rig.array.replace_disk(0, spare))["job"]
    await trio.sleep(3 * OVER_S)
    fault.lift()
    await landed()
    result = await rig.array.jobs.wait(job)
    if result["state"] != "done":
        job = (await rig.array.replace_disk(0, rig.new_member()))["job"]
        assert (await rig.array.jobs.wait(job))["state"] == "done"
    await parity_holds(rig.array)


async def test_reads_around_an_overdue_placement_still_work() -> None:
    """What is logged is known: only its way to its place hangs."""
    rig = await hanging("raid5", 4)
    await rig.array.fail_disk(0)
    await rig.in_place()
    data = rig.data
    for member in rig.members[1:]:
        member.hang(("write",), offset_bytes=data.offset, length_bytes=data.length)
    await rig.put(700, noise(100, 1))
    await rig.array.flush()
    await trio.sleep(2 * OVER_S)
    await rig.compare()
    for member in rig.members:
        member.clear()
    await trio.sleep(2 * OVER_S)
    await rig.compare()
    await rig.in_place()
    await rig.compare()


async def test_errors_name_the_member() -> None:
    rig = await hanging("raid0", 2)
    fault = rig.members[0].hang(("write",), count=1)
    await refused(lambda: rig.array.write(0, noise(CHUNK)))
    error = await refused(lambda: rig.array.write(0, noise(CHUNK)))
    assert isinstance(error, MemberError)
    assert "ram0: write at byte" in str(error)
    fault.lift()
    await landed()
    await rig.put(0, noise(CHUNK))
