"""`raidx damage` and `raidx check`: the ranges of the image that are lost, exactly those."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.check import check_members
from raidx_fuse.array.damage import damage
from raidx_fuse.array.open import open_array
from raidx_fuse.engine.write.mend import Mender
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.configuration.volumes import (
    Extent,
    VolumeRecord,
    VolumeTable,
    parts_by_volume,
)
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import ram_array

CHUNK = 16 << 10
PAGE = 4096
SIZE = 24 * CHUNK


async def written(layout: str, width: int) -> tuple[list[RamMember], bytes]:
    """Return the members of an array with checksums, and its content, all of it at home."""
    members = await ram_array(layout, width, 4 << 20, chunk_bytes=CHUNK, sums=True)
    content = random.Random(width).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
    return members, content


def rot(array: Array, *offsets: int) -> None:
    """Change a byte of the page at each of *offsets* of the image, behind the array's back."""
    for offset in offsets:
        stripe, cell = array.context.layout.locate(offset // CHUNK)
        role, begin = array.context.position(stripe, cell)
        rot_at(array.member_set.queues[role].member, begin + offset % CHUNK + 9)  # type: ignore[union-attr]


def rot_at(member: Member, at: int) -> None:
    assert isinstance(member, RamMember)
    member._bytes[at] ^= 4


async def listed(array: Array, content: bytes) -> list[tuple[int, int, str]]:
    """Return the damaged ranges; assert that reads of them fail, and of all other pages do not."""
    failing = set()
    for at in range(0, SIZE, PAGE):
        try:
            assert await array.read(at, PAGE) == content[at : at + PAGE]
        except RaidxError:
            failing.add(at)
    found = await damage(array)
    ranges = [(each["image_offset"], each["length"], each["why"]) for each in found["ranges"]]
    assert failing == {at for low, size, _ in ranges for at in range(low, low + size, PAGE)}
    assert found["lost_bytes"] == len(failing) * PAGE
    assert all(each["volume_offset"] == each["image_offset"] for each in found["ranges"])
    return ranges


async def test_misfitting_pages_without_redundancy_are_listed_until_they_are_written() -> None:
    members, content = await written("raid0", 3)
    async with open_array(members) as array:
        first = CHUNK + PAGE
        rot(array, first, first + PAGE, 5 * CHUNK)
        assert await listed(array, content) == [
            (first, 2 * PAGE, "misfits"),
            (5 * CHUNK, PAGE, "misfits"),
        ]
        await array.write(first, content[first : first + PAGE])
        assert await listed(array, content) == [
            (first + PAGE, PAGE, "misfits"),
            (5 * CHUNK, PAGE, "misfits"),
        ]
    checked = await check_members(members)
    places = [each["image_offset"] for each in checked["problems"] if "lost" in each["what"]]
    assert places == [first + PAGE, 5 * CHUNK], "at rest they are found without a read before"


async def test_of_two_pages_that_rotted_in_a_row_one_is_written_and_the_other_stays() -> None:
    members, content = await written("raid5", 4)
    async with open_array(members) as array:
        assert array.context.layout.locate(4)[0] == array.context.layout.locate(5)[0]
        four, five = 4 * CHUNK + PAGE, 5 * CHUNK + PAGE
        rot(array, four, five, 9 * CHUNK)  # the last is healed
        assert await listed(array, content) == [
            (four, PAGE, "misfits"),
            (five, PAGE, "misfits"),
        ]
        await array.write(four, content[four : four + PAGE])
        assert await listed(array, content) == [(five, PAGE, "misfits")]
        assert "raidx damage" in str(array.status()["action"])
    async with open_array(members) as array:
        assert await listed(array, content) == [(five, PAGE, "misfits")]
    problems = (await check_members(members))["problems"]
    assert [each["image_offset"] for each in problems if "lost" in each["what"]] == [five]
    async with open_array(members) as array:
        await array.write(five, content[five : five + PAGE])
        assert await listed(array, content) == []
    async with open_array(members) as array:
        assert await listed(array, content) == []
    assert (await check_members(members))["ok"]


async def test_rot_beside_a_lost_member_takes_the_pages_of_both() -> None:
    members, content = await written("raid5", 4)
    async with open_array(members) as array:
        stripe, other = array.context.layout.locate(5)
        assert array.context.layout.locate(4)[0] == stripe
        await trio.sleep(60)  # nothing is in flight
        await array.fail_disk(array.context.position(stripe, other)[0])
        rot(array, 4 * CHUNK)
        assert await listed(array, content) == [
            (4 * CHUNK, PAGE, "misfits"),
            (5 * CHUNK, PAGE, "cannot be read"),
        ]


@pytest.mark.parametrize("killed", [False, True])
async def test_pages_that_misfit_are_known_after_a_restart_without_being_read(killed: bool) -> None:
    members, content = await written("raid5", 4)
    async with open_array(members) as array:
        four, five = 4 * CHUNK + PAGE, 5 * CHUNK + PAGE
        rot(array, four, five, 9 * CHUNK)  # the last is healed
        assert await listed(array, content) == [
            (four, PAGE, "misfits"),
            (five, PAGE, "misfits"),
        ]
        await trio.sleep(5 if killed else 0)  # an end waits for nothing
        left = [bytes(member.memory) for member in members]
    if killed:
        for member, image in zip(members, left, strict=True):
            member.memory[:] = image
    for read_only in (True, False):
        async with open_array(members, read_only=read_only) as array:
            ranges = (await damage(array))["ranges"]
            assert [(each["image_offset"], each["why"]) for each in ranges] == [
                (four, "misfits"),
                (five, "misfits"),
            ]
            assert array.member_set.sums is not None
            assert array.status()["unreadable"]["count"] == 2
    rot(array, four)  # the bit is as it was
    async with open_array(members) as array:
        assert not (await damage(array))["ranges"], "what can be read is off the list"
        await trio.sleep(5)
        assert not array.health.misfits
    async with open_array(members) as array:
        assert not array.health.misfits
        assert await listed(array, content) == []


async def test_a_page_of_a_lost_member_that_contradicts_its_sum_is_listed() -> None:
    members, content = await written("raid5", 4)
    async with open_array(members) as array:
        stripe, other = array.context.layout.locate(5)
        role, begin = array.context.position(stripe, CellIndex(3))
        await trio.sleep(60)  # nothing is in flight
        await array.fail_disk(array.context.position(stripe, other)[0])
        sums = array.member_set.sums
        assert sums is not None
        await sums.load([(role, begin, (), PAGE)])
        sums.tables.memory.views[role][sums.page_at(role, begin)[1]] = (
            0  # as if its table were lost
        )
        rot_at(members[role], begin + 9)
        assert await listed(array, content) == [(5 * CHUNK, PAGE, "misfits")]
        await trio.sleep(5)
        assert array.health.misfits == ((5 * CHUNK // PAGE, 1),)
        await array.write(5 * CHUNK, content[5 * CHUNK : 5 * CHUNK + PAGE])
        assert await listed(array, content) == []
        await trio.sleep(5)
        assert not array.health.misfits


async def test_a_page_is_listed_if_what_the_others_give_back_misfits_as_well() -> None:
    members, content = await written("raid5", 4)
    async with open_array(members) as array:
        sums = array.member_set.sums
        assert sums is not None
        role, begin = array.context.position(*array.context.layout.locate(4))
        await array.read(4 * CHUNK, PAGE)  # the table is in memory
        sums.replace(role, begin, bytes(PAGE))  # a checksum of other content, and rot
        rot(array, 4 * CHUNK)
        assert await listed(array, content) == [(4 * CHUNK, PAGE, "misfits")]
        await array.write(4 * CHUNK, content[4 * CHUNK : 5 * CHUNK])
        assert await listed(array, content) == []


async def test_check_compares_pages_that_no_chain_covers_and_all_copies_of_the_sums() -> None:
    members, _ = await written("rdp", 6)
    async with open_array(members) as array:
        sums = array.member_set.sums
        assert sums is not None
        holders = [*sums.tables._holders(Role(2))]
        for role in (0, 1):  # all chains lack a cell
            await array.fail_disk(Role(role))
        rot(array, 2 * CHUNK + PAGE)
        at_rest = [members[role] for role in range(2, 6)]
    before = [bytes(member._bytes) for member in at_rest]
    checked = await check_members(at_rest)
    assert [bytes(member._bytes) for member in at_rest] == before
    assert checked["sums"]["misfits"] == 1
    assert any(each["image_offset"] == 2 * CHUNK + PAGE for each in checked["problems"])
    holder, offset = holders[-1]
    rot_at(members[holder], offset + 9)
    problems = (await check_members(at_rest))["problems"]
    assert any("sectors of checksums" in each["what"] for each in problems)


async def test_check_joins_rotten_pages_into_ranges_and_does_not_log_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members, _ = await written("raid5", 4)
    async with open_array(members) as array:
        role, begin = array.context.position(Stripe(0), CellIndex(0))
    for page in range(32):
        rot_at(members[role], begin + page * PAGE)
    rot_at(members[role ^ 1], begin + PAGE)
    rot_at(members[role ^ 1], begin + 3 * PAGE)
    problems = (await check_members(members))["problems"]
    found = {each["member"]: each["what"] for each in problems}
    what = "pages do not fit theirs: at bytes"
    assert found[members[role].path] == f"32 {what} {begin} to {begin + 32 * PAGE - 1}"
    two = (f"{begin + page * PAGE} to {begin + (page + 1) * PAGE - 1}" for page in (1, 3))
    assert found[members[role ^ 1].path] == f"2 {what} {', '.join(two)}"
    lines = [each for each in caplog.messages if "its checksum does not fit" in each]
    assert len(lines) == 16 + 1 + 2
    assert sum(each.endswith("(32 such pages so far)") for each in lines) == 1


def test_a_range_is_cut_where_volumes_begin_and_end() -> None:
    table = VolumeTable(
        volumes=(
            VolumeRecord("0" * 8, "a", 300, (Extent(0, 100), Extent(500, 200))),
            VolumeRecord("1" * 8, "b", 100, (Extent(100, 100),)),
        )
    )
    assert [*parts_by_volume("disk", table, 50, 600)] == [
        (50, 100, "a", 50),
        (100, 200, "b", 0),
        (200, 500, None, None),
        (500, 600, "a", 100),
    ]
    assert [*parts_by_volume("disk", None, 50, 600)] == [(50, 600, "disk", 50)]


async def test_a_lost_chunk_that_is_written_again_and_flushed_can_be_read_after_a_crash() -> None:
    members = await ram_array("raid5", 4, 4 << 20, chunk_bytes=CHUNK)
    content = random.Random(1).randbytes(CHUNK)
    async with open_array(members) as array:
        await array.write(0, bytes(SIZE))
        array.context.bad_chunks.add(Chunk(0))
        await array.lost_list.save()
        await array.write(0, content)
        await array.flush()
        left = []
        for member in members:
            left.append(RamMember(len(member.memory), name=member.path))
            left[-1].memory[:] = member.memory
    async with open_array(left) as array:
        assert await array.read(0, CHUNK) == content


@pytest.mark.parametrize("what", ["tables", "tables and tail"])
async def test_a_page_that_misfits_does_so_after_its_sum_was_damaged_as_well(what: str) -> None:
    """Noise came over pages and over all copies of their sums: only memory has these."""
    members, content = await written("raid1", 2)
    async with open_array(members) as array:
        await array.fail_disk(0)
        sums = array.member_set.config.regions.sums
        end = sums.end
        if what == "tables":
            tables = array.member_set.sums.tables  # type: ignore[union-attr]
            end = min(offset for role in range(2) for _, offset in tables._tail_holders(Role(role)))
        assert await array.read(0, CHUNK) == content[:CHUNK]  # its sums are in memory
        noise = random.Random(1).randbytes(end - sums.offset)
        members[1]._bytes[sums.offset : end] = noise
        rot_at(members[1], array.context.position(Stripe(0), CellIndex(1))[1])
        with pytest.raises(RaidxError):
            await array.read(0, PAGE)
    async with open_array(members[1:], start_degraded=True) as array:
        await trio.sleep(2)
        why = "cannot be read" if what == "tables" else "lost"
        assert await listed(array, content) == [(0, PAGE, why)]
        await array.write(0, content[:PAGE])
        assert await listed(array, content) == []


async def test_a_page_that_nothing_gives_back_is_tried_again_only_if_something_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each one that is found costs as much as all before it, and readers wait for it."""
    visited: list[tuple[Role, int]] = []
    visit = Mender._visit

    async def noted(mender: Mender, role: Role, page: int) -> None:
        visited.append((role, page))
        await visit(mender, role, page)

    monkeypatch.setattr(Mender, "_visit", noted)
    members, content = await written("raid0", 2)
    async with open_array(members) as array:
        count = 40
        rot(array, *range(0, count * PAGE, PAGE))
        for at in range(0, count * PAGE, PAGE):
            with pytest.raises(RaidxError):
                await array.read(at, PAGE)
            await trio.sleep(0.1)
        assert len(visited) == count
        await array.write(count * PAGE, content[:PAGE])
        await array.context.journal.place()
        await trio.sleep(1)
        assert len(visited) == count
