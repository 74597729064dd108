"""Checksums have a copy for each loss that is tolerated and one more, wherever there is room."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.configuration.sums import StoredSums, sums_of, with_tables
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import SUMS_MEMBER_BYTES_MIN
from raidx_fuse.jobs.move_sums import MovedSums
from raidx_fuse.lab.crash.sums import check_calm, check_copies, check_whole, live_pages
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, ram_array

MIB = 1 << 20
LOG = 400 << 10
CHUNK = 64 << 10


def tables_of(array: Array) -> StoredSums:
    kept = sums_of(array.member_set.config)
    assert kept is not None
    return kept


async def settled(array: Array) -> None:
    await jobs_ended(array)
    await array.sum_copies.complete()
    await check_whole(array)
    check_calm([array], "after the change", after_crash=False)


async def is_same_after_a_remount(members: list[RamMember], content: bytes) -> None:
    async with open_array(members) as array:
        await settled(array)
        assert await array.read(0, len(content)) == content
        places = await live_pages(array)
    await check_copies(array, places, members)


def larger(members: list[RamMember], more_bytes: int) -> list[RamMember]:
    found = [RamMember(member.size_bytes + more_bytes, name=member.path) for member in members]
    for new, old in zip(found, members, strict=True):
        new.memory[: old.size_bytes] = old.memory
    return found


async def test_a_restripe_to_a_layout_that_tolerates_more_brings_copies_where_there_is_room() -> (
    None
):
    """Without room the status says so, until larger members bring it."""
    members = await ram_array("raid5", 5, sums=True, with_volume=False, log_bytes=LOG)
    content = random.Random(1).randbytes(300 << 10)
    async with open_array(members) as array:
        await array.write(0, content)
        assert array.status()["warnings"] == []
        await array.restripe([], "rdp", {})
        await settled(array)
        assert tables_of(array).copies == 2
        (text,) = array.status()["warnings"]
        assert "checksums have 2 copies, 3 would outlast the 2 losses" in text
    members = larger(members, 8 * MIB)
    async with open_array(members) as array:
        await array.larger_members.use()
        await settled(array)
        kept = tables_of(array)
        assert kept.copies == 3
        assert all(len(table.slots) == 3 for table in kept.tables)
        assert array.status()["warnings"] == []
    await is_same_after_a_remount(members, content)
    async with open_array(members) as array:  # two losses leave all pages their sums
        await array.fail_disk(0)
        await array.fail_disk(1)
        await check_whole(array)
        assert await array.read(0, len(content)) == content


async def test_free_space_behind_the_data_takes_tables_with_more_copies() -> None:
    """Under writes: the smallest member is replaced, and the mirror gets a third copy."""
    sizes = (MIB + (256 << 10), MIB)
    members = [RamMember(size, name=f"d{number}") for number, size in enumerate(sizes)]
    await create_array(
        members, "raid1", name="disk", now_s=0, chunk_bytes=4096, log_bytes=LOG, sums=True
    )
    rng = random.Random(2)
    content = bytearray(rng.randbytes(300 << 10))
    new = [RamMember(MIB + (128 << 10), name=f"new{number}") for number in range(2)]
    async with open_array(members) as array:
        await array.write(0, bytes(content))
        former = array.member_set.config.regions.sums
        await array.replace_disk(1, new[0])
        await settled(array)
        assert array.member_set.config.regions.sums == former
        await array.grow([new[1]])
        while tables_of(array).copies == 2:
            at = rng.randrange(len(content) // 512) * 512
            content[at : at + 512] = rng.randbytes(512)
            await array.write(at, bytes(content[at : at + 512]))
            await trio.sleep(0.01)
        await settled(array)
        regions = array.member_set.config.regions
        assert regions.sums.offset == regions.data.end
        assert tables_of(array).copies == 3
        assert array.status()["warnings"] == []
        used = [members[0], *new]
        assert not any(any(m.memory[former.offset : former.end]) for m in used)
    await is_same_after_a_remount(used, bytes(content))


@pytest.mark.parametrize("layout", ["raid1", "raid5"])
async def test_copies_that_a_cut_has_left_out_are_made_at_the_next_start(layout: str) -> None:
    members = await ram_array(layout, 4, sums=True, with_volume=False, log_bytes=LOG)
    content = random.Random(3).randbytes(300 << 10)
    async with open_array(members) as array:
        await array.write(0, content)
        kept = tables_of(array)
        fewer = [
            table._replace(slots=table.slots[:-1]) if role in (1, 3) else table
            for role, table in enumerate(kept.tables)
        ]
        short = replace(kept, tables=tuple(fewer))
        async with array.context.closed():
            await array.context.cells.save_sums()
            assert array.member_set.sums is not None
            array.member_set.sums.adopt(short, range(4))
            await array.member_set.update(lambda config: with_tables(config, short))
        for role in (1, 3):  # what lies there is old by now
            await array.write(role * 4096, content[role * 4096 :][:4096])
    async with open_array(members) as array:
        await settled(array)
        assert all(len(table.slots) == kept.copies for table in tables_of(array).tables)
    await is_same_after_a_remount(members, content)


async def test_nothing_is_moved_while_a_member_is_lost_or_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[object] = []
    prepare = MovedSums.prepare

    async def note(self: MovedSums) -> None:
        moved.append(self)
        await prepare(self)

    monkeypatch.setattr(MovedSums, "prepare", note)
    for layout, count in (("raid5", 4), ("raid1", 2), ("raid0", 1), ("raidx-copy", 4)):
        members = await ram_array(layout, count, 4 * MIB, sums=True)
        async with open_array(members) as array:
            await array.write(0, bytes(range(256)) * 100)
            await settled(array)
            if array.context.code.tolerance:
                await array.fail_disk(0)
                await array.sum_copies.complete()
    assert moved == []


async def test_members_of_64_mib_have_room_for_more_copies_beside_those_that_they_have() -> None:
    members = await ram_array(
        "raid5", 5, SUMS_MEMBER_BYTES_MIN, chunk_bytes=CHUNK, sums=True, with_volume=False
    )
    async with open_array(members) as array:
        await array.restripe([], "rdp", {})
        await jobs_ended(array)
        await trio.sleep(60)
        await settled(array)
        assert tables_of(array).copies == 3
        assert not array.status()["warnings"]
        regions = array.member_set.config.regions
        assert regions.table.end <= regions.sums.offset < regions.sums.end <= regions.data.offset
    await is_same_after_a_remount(members, b"")


async def test_a_mirror_that_grows_keeps_a_copy_of_each_table_on_a_member_that_it_had() -> None:
    """New ones are not read before they are rebuilt: a remount until then would lose the sums."""
    members = await ram_array("raid1", 2, sums=True, with_volume=False, log_bytes=LOG)
    content = random.Random(4).randbytes(300 << 10)
    new = [RamMember(MIB, name=f"new{number}") for number in range(2)]
    async with open_array(members) as array:
        await array.write(0, content)
        await array.grow(new)
        for job in array.jobs.running():
            job.pause()
        for table in tables_of(array).tables[:2]:
            assert any(holder < 2 for holder, _ in table.slots)
    async with open_array([*members, *new]) as array:
        assert array.member_set.lost == {2, 3}
        await check_whole(array)
        assert array.member_set.sums is not None
        assert array.member_set.sums.tables.damaged_sectors == 0
        await settled(array)
    await is_same_after_a_remount([*members, *new], content)


async def test_sums_that_no_member_has_any_more_are_missed_until_a_scrub() -> None:
    members = await ram_array("raid5", 3, sums=True, with_volume=False, log_bytes=LOG)
    content = random.Random(5).randbytes(300 << 10)
    async with open_array(members) as array:
        await array.write(0, content)
        place = array.member_set.config.regions.sums
    for member in members:
        member.memory[place.offset : place.end] = b"\xff" * place.length
    async with open_array(members) as array:
        assert await array.read(0, len(content)) == content
        (text,) = array.status()["warnings"]
        assert "checksums of role 0, 1, 2 were lost with members" in text
        await array.jobs.wait(await array.start_scrub(repair=False))
        assert array.status()["warnings"] == []
        await settled(array)
    await is_same_after_a_remount(members, content)
    for member in members[:2]:
        member.memory[place.offset : place.end] = b"\xff" * place.length
    async with open_array(members[:2]) as array:  # its scrub proves nothing, so it fills nothing
        await array.read(0, len(content))
        text = " ".join(array.status()["warnings"])
        assert "until all members are there again and a scrub has filled them" in text
