"""Tails of tables of sums: what goes there, when they turn, and what a start makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import NoSpaceError
from raidx_fuse.lab.crash.sums import check_calm
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from raidx_fuse.store.io_tuples import MemberIO
from raidx_fuse.store.sums import Sums
from tests.support.arrays import jobs_ended, ram_array

CHUNK = 16 << 10
PAGE = 4096
SIZE = 32 << 20  # a table has several pages
USED = 24 << 20


async def with_tail(width: int = 4, layout: str = "raid5") -> list[RamMember]:
    """Return the members of an array, USED bytes of which are written, and its tables."""
    members = await ram_array(layout, width, SIZE, chunk_bytes=CHUNK, sums=True)
    async with open_array(members) as array:
        await array.write(0, random.Random(1).randbytes(USED))
        await saved(array, turn=True)
    return members


def sums_of(array: Array) -> Sums:
    assert array.member_set.sums is not None
    return array.member_set.sums


async def saved(array: Array, *, turn: bool = False) -> None:
    """Have all at its place, durably; *turn*: and all sums in their tables."""
    await array.context.journal.drain()
    await array.context.dirty_bitmap.clean_quiet(all_regions=True)
    if turn:
        async with sums_of(array).tables.resting():
            pass
    await array.flush()


def copied(members: Iterable[RamMember]) -> list[RamMember]:
    """Return what the members hold, as a stop of the machine leaves it."""
    copies = []
    for member in members:
        copy = RamMember(member.size_bytes, name=member.path)
        copy.memory[:] = member.memory
        copies.append(copy)
    return copies


def tables_and_tails(array: Array, members: Iterable[RamMember]) -> tuple[list[bytes], list[bytes]]:
    regions, stored = array.member_set.config.regions, sums_of(array).tables.stored
    assert stored.tail
    begin = regions.sum_tail_offset(0, stored.copies, stored.tail)
    return (
        [bytes(member.memory[regions.sums.offset : begin]) for member in members],
        [bytes(member.memory[begin : regions.sums.end]) for member in members],
    )


async def check_pages(array: Array, *, complete: bool = True) -> None:
    """Check that each page that was written has a sum, if *complete*, and fits it."""
    sums, begin, width = sums_of(array), array.member_set.data_offset, array.context.layout.width
    data_count = array.context.code.data_count
    size = -(-USED // (data_count * CHUNK)) * CHUNK
    lacking = 0
    for role in range(width):
        content = await array.member_set.read_home(Role(role), begin, size)
        assert isinstance(content, bytearray)
        await sums.load([(Role(role), begin, (), size)])
        assert sums.wrong_pages(Role(role), begin, content) == []
        lacking += sums.lacking(Role(role), begin, size)
    if complete:
        written = USED // CHUNK + -(-USED // (data_count * CHUNK)) * (width - data_count)
        assert lacking == (width * size - written * CHUNK) // PAGE
    check_calm([array], "in all of it")


async def all_fits(members: list[RamMember]) -> None:
    """Check that each page has a sum, and fits it, in the array of *members*."""
    async with open_array(members) as array:
        await array.context.journal.drain()
        await check_pages(array)


async def test_few_sums_are_written_to_the_tail_and_not_to_the_table() -> None:
    members = await with_tail()
    async with open_array(members) as array:
        tables, tails = tables_and_tails(array, members)
        await array.write(5 * CHUNK, b"\x11" * PAGE)
        await saved(array)
        after = tables_and_tails(array, members)
        assert after[0] == tables
        changed = [before != now for before, now in zip(tails, after[1], strict=True)]
        assert sum(changed) >= 2
        begun = copied(members)
    await all_fits(begun)
    async with open_array(begun) as array:
        role, at = array.context.position(*cell_of(array, 5 * CHUNK))
        begun[role].memory[at + 9] ^= 1
        assert await array.read(5 * CHUNK, PAGE) == b"\x11" * PAGE
        assert sums_of(array).misfits == 1


def cell_of(array: Array, offset: int) -> Any:
    return array.context.layout.locate(offset // CHUNK)


async def test_most_sums_of_a_page_are_written_to_the_table() -> None:
    members = await with_tail()
    async with open_array(members) as array:
        tables, tails = tables_and_tails(array, members)
        await array.write(0, random.Random(2).randbytes(12 << 20))
        await saved(array)
        after = tables_and_tails(array, members)
        assert after[0] != tables
        for before, now in zip(tails, after[1], strict=True):  # the first and the last page's
            sectors = range(0, len(now), 512)
            assert sum(before[at : at + 512] != now[at : at + 512] for at in sectors) <= 8
    await all_fits(members)


async def test_what_a_table_got_later_counts_over_what_its_tail_still_has() -> None:
    """First few sums of it changed, then most of them: the tail did not turn in between."""
    members = await with_tail()
    async with open_array(members) as array:
        await array.write(5 * CHUNK, b"\x11" * PAGE)
        await saved(array)
        assert any(tail.has_sums for tail in sums_of(array).tables._tails)
        await array.write(0, random.Random(2).randbytes(4 << 20))
        await saved(array)
        assert any(tail.has_sums for tail in sums_of(array).tables._tails)
        await all_fits(copied(members))


@pytest.mark.parametrize("layout", ["raid5", "raid0"])
async def test_whenever_the_machine_stops_all_pages_fit(layout: str) -> None:
    """The tail turns several times meanwhile."""
    rng = random.Random(3)
    members = await with_tail(layout=layout)
    turns = 0
    async with open_array(members) as array:
        sums, position = sums_of(array), 0
        for step in range(48):
            for _ in range(rng.choice([1, 3, 100])):
                await array.write(rng.randrange(USED // PAGE) * PAGE, rng.randbytes(PAGE))
            await saved(array)
            turns += sums.tables._tails[0].position < position
            position = sums.tables._tails[0].position
            if step % 8 == 0:
                await all_fits(copied(members))
        await saved(array)
        await check_pages(array)
    assert turns > 1
    await all_fits(members)


async def test_starts_one_after_the_other_continue_the_tail() -> None:
    rng = random.Random(4)
    members = await with_tail()
    for _ in range(12):
        async with open_array(members) as array:
            await array.write(rng.randrange(USED // PAGE) * PAGE, rng.randbytes(PAGE))
            await saved(array)
            await check_pages(array)
            members = copied(members)
    await all_fits(members)


@pytest.mark.parametrize("damage", ["zeros", "noise", "old"])
async def test_a_copy_that_lacks_a_part_of_the_tail_costs_nothing(damage: str) -> None:
    rng = random.Random(5)
    members = await with_tail()
    async with open_array(members) as array:
        _, old = tables_and_tails(array, members)
        for _ in range(3):
            await array.write(rng.randrange(USED // PAGE) * PAGE, rng.randbytes(PAGE))
            await saved(array)
        region = array.member_set.config.regions.sums
    begin = region.end - len(old[0])
    for lacks in (1, 3, 2, 0):  # one after the other: each is whole again before the next
        size = region.end - begin
        members[lacks].memory[begin : region.end] = {
            "zeros": bytes(size),
            "noise": rng.randbytes(size),
            "old": old[lacks],
        }[damage]
        members = copied(members)
        async with open_array(members) as array:
            await saved(array)
            await check_pages(array)
    await all_fits(members)


async def test_where_a_part_of_the_tail_is_lost_no_page_is_doubted() -> None:
    rng = random.Random(6)
    members = await with_tail()
    async with open_array(members) as array:
        for _ in range(3):
            await array.write(rng.randrange(USED // PAGE) * PAGE, rng.randbytes(PAGE))
            await saved(array)
        _, tails = tables_and_tails(array, members)
        region = array.member_set.config.regions.sums
    for member in members:  # the first sector of each tail has sums that the tables lack
        for begin in range(region.end - len(tails[0]), region.end, len(tails[0]) // 2):
            member.memory[begin : begin + 2 * 512] = rng.randbytes(2 * 512)
    for _ in range(2):
        members = copied(members)
        async with open_array(members) as array:
            await check_pages(array, complete=False)
            await array.write(0, rng.randbytes(PAGE))
            await saved(array)
    async with open_array(members) as array:
        await array.start_scrub(repair=False)
        await jobs_ended(array)
        await saved(array)
        await check_pages(array)
    await all_fits(members)


async def test_a_member_that_joins_gets_what_the_tail_has() -> None:
    rng = random.Random(7)
    members = await with_tail()
    async with open_array(members) as array:
        await array.write(rng.randrange(USED // PAGE) * PAGE, rng.randbytes(PAGE))
        await saved(array)
        await array.fail_disk(Role(1))
        await array.write(rng.randrange(USED // PAGE) * PAGE, rng.randbytes(PAGE))
        await saved(array)
        new = RamMember(SIZE, name="new")
        await array.replace_disk(Role(1), new)
        await jobs_ended(array)
        await saved(array)
        await check_pages(array)
        members[1] = new
        content = bytes(await array.read(0, USED))
        begun = copied(members)
    for lost in range(4):
        left = [member for role, member in enumerate(copied(begun)) if role != lost]
        async with open_array(left, start_degraded=True) as array:
            assert await array.read(0, USED) == content
            check_calm([array], f"without role {lost}")


async def test_on_a_full_host_sums_go_to_the_table_which_has_its_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = await with_tail()
    async with open_array(members) as array:
        regions, stored = array.member_set.config.regions, sums_of(array).tables.stored
        begin = regions.sum_tail_offset(0, stored.copies, stored.tail)

        def reserve(writes: Iterable[MemberIO]) -> None:
            if any(begin <= offset < regions.sums.end for _, offset, _, _ in writes):
                raise NoSpaceError("the host is full")

        monkeypatch.setattr(array.member_set, "reserve", reserve)
        tables, tails = tables_and_tails(array, members)
        await array.write(5 * CHUNK, b"\x22" * PAGE)
        await saved(array)
        after = tables_and_tails(array, members)
        assert after[0] != tables
        assert after[1] == tails
        begun = copied(members)
    await all_fits(begun)


async def test_a_turn_is_flushed_before_the_tail_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = await with_tail()
    async with open_array(members) as array:
        sums, order = sums_of(array), list[str]()
        await array.write(0, b"\x33" * PAGE)
        await saved(array)
        write, sync = array.member_set.write, array.member_set.sync
        begin = array.member_set.config.regions.sum_tail_offset(
            0, sums.tables.stored.copies, sums.tables.stored.tail
        )

        async def noted_write(requests: Any, **options: Any) -> None:
            order.extend("tail" if offset >= begin else "table" for _, offset, _, _ in requests)
            await write(requests, **options)

        async def noted_sync() -> None:
            order.append("sync")
            await sync()

        monkeypatch.setattr(array.member_set, "write", noted_write)
        monkeypatch.setattr(array.member_set, "sync", noted_sync)
        async with sums.tables.resting():
            pass
        assert order.index("table") < order.index("sync") < order.index("tail")
