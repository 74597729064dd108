"""What an array that has checksums says of them, and that changes of the array keep them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.new_identity import give_new_identity
from raidx_fuse.array.open import open_array
from raidx_fuse.daemon.inspect import describe
from raidx_fuse.errors import FormatError, OtherVersionError
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.sums import StoredSums, place_for_sums, sums_of
from raidx_fuse.format.regions import SUMS_MEMBER_BYTES_MIN
from raidx_fuse.journal.journal import Journal
from raidx_fuse.lab.crash.sums import check_calm, check_copies, check_whole, live_pages
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from tests.array.test_saved_values import change
from tests.support.arrays import jobs_ended, ram_array

SIZE = 1 << 20
LOG = 400 << 10  # a restripe changes as much at once
TABLES = [[role, [[(role + 1) % 4, 0], [(role + 2) % 4, 1]]] for role in range(4)]
SUMS: dict[str, Any] = {"algorithm": 1, "copies": 2, "seed": 7, "tables": TABLES, "given": 4}


async def config_on(member: RamMember) -> ArrayConfig:
    superblock = await read_superblock(member)
    assert superblock is not None
    return superblock.config


WRONG: list[Any] = [
    None,
    {},
    {"algorithm": 1, "copies": 2},
    {**SUMS, "copies": 0},
    {**SUMS, "copies": 5},  # the region has no room for them
    {**SUMS, "tail": 4096},  # and "sums.tail" is not needed
    {**SUMS, "tail": -4096},
    {**SUMS, "copies": True},
    {**SUMS, "seed": -1},
    {**SUMS, "seed": 1 << 32},
    {**SUMS, "seed": 1.0},
    {**SUMS, "tables": TABLES[:3]},
    {**SUMS, "given": 3},
    {**SUMS, "tables": [TABLES[0], [0, TABLES[1][1]], *TABLES[2:]]},  # two with one number
    {**SUMS, "tables": [TABLES[0], [1, TABLES[0][1]], *TABLES[2:]]},  # two in one place
    {**SUMS, "tables": [TABLES[0], [1, [[4, 0], [3, 1]]], *TABLES[2:]]},
    {**SUMS, "tables": [TABLES[0], [1, [[2, 0], [3, 2]]], *TABLES[2:]]},
]


@pytest.mark.parametrize("values", WRONG)
async def test_impossible_checksums_are_refused_and_nothing_written(values: Any) -> None:
    members = await ram_array("raid5", 4, sums=True)
    await change(members, lambda c: replace(c.with_job("sums", values), needs=("sums",)))
    await _refused(members, "its unfinished 'sums' is impossible")


async def test_checksums_without_tails_are_kept_as_they_were_made() -> None:
    members = await ram_array("raid5", 4, sums=True)
    await change(members, lambda c: replace(c.with_job("sums", SUMS), needs=("sums",)))
    for _ in range(2):
        async with open_array(members) as array:
            await array.write(0, random.Random(1).randbytes(SIZE // 2))
            await array.write(8192, b"part of a page")
            await check_whole(array)
            check_calm([array], "without tails")
    after = await config_on(members[0])
    assert (after.jobs["sums"], after.needs) == (SUMS, ("sums",))


async def test_checksums_that_earlier_programs_would_not_refuse_are_refused() -> None:
    members = await ram_array("raid5", 4, sums=True)
    await change(members, lambda c: replace(c, needs=()))
    await _refused(members, "its unfinished 'sums' is impossible")


async def test_checksums_without_a_place_are_refused() -> None:
    members = await ram_array("raid5", 4)
    await change(members, lambda c: replace(c.with_job("sums", SUMS), needs=("sums",)))
    await _refused(members, "its unfinished 'sums' is impossible")


async def test_an_algorithm_that_is_not_known_is_refused_by_number() -> None:
    members = await ram_array("raid5", 4, sums=True)
    await change(members, lambda c: c.with_job("sums", {**SUMS, "algorithm": 2}))
    await _refused(members, "checksums have the algorithm 2, unknown", OtherVersionError)


async def _refused(
    members: list[RamMember], said: str, kind: type[FormatError] = FormatError
) -> None:
    before = [bytes(member.memory) for member in members]
    with pytest.raises(kind, match=said):
        async with open_array(members):
            raise AssertionError("it starts")
    assert [bytes(member.memory) for member in members] == before


# -- changes of the shape ------------------------------------------------------------------------

Plan = Callable[[Array], Awaitable[object]]


async def wider(array: Array) -> object:
    return await array.grow([RamMember(SIZE, name="new")])


async def narrower(array: Array) -> object:
    return await array.remove_disk(array.member_set.config.width - 1)


async def without_the_second(array: Array) -> object:
    return await array.remove_disk(1)


async def other_layout(array: Array) -> object:
    return await array.restripe([], "raid0", {})


def enlarged(members: list[RamMember], more_bytes: int) -> list[RamMember]:
    found = []
    for member in members:
        larger = RamMember(member.size_bytes + more_bytes, name=member.path)
        larger.memory[: member.size_bytes] = member.memory
        found.append(larger)
    return found


CHANGES: list[tuple[str, Plan]] = [
    *itertools.product(
        ("raid0", "raid1", "raid4", "raid5", "evenodd"),
        (wider, narrower, without_the_second, other_layout),
    ),
]
CHANGES.remove(("raid0", other_layout))
CHANGES.remove(("raid4", narrower))


async def _is_whole(array: Array) -> None:
    """Each written page has a sum that fits, the copies of which agree, and nothing was wrong."""
    await jobs_ended(array)
    assert not [job for job in array.jobs.list() if job["state"] != "done"]
    assert array.member_set.sums is not None
    await check_whole(array)
    check_calm([array], "after the change", after_crash=False)
    assert len(await live_pages(array)) > 20


@pytest.mark.parametrize(("layout", "begin"), CHANGES)
async def test_checksums_follow_the_members(layout: str, begin: Plan) -> None:
    """Through the change, a user's writes in it, a remount, and a growth that comes back."""
    count = 4 if (layout, begin) == ("evenodd", wider) else 5  # its prime has no room for more
    members = await ram_array(layout, count, sums=True, with_volume=False, log_bytes=LOG)
    rng = random.Random(f"{layout} {begin}")
    content = rng.randbytes(200 << 10)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.flush()
        await begin(array)
        content = rng.randbytes(100_000) + content[100_000:]
        await array.write(0, content[:100_000])
        await _is_whole(array)
        assert await array.read(0, len(content)) == content
        used = [q.member for q in array.member_set.queues if q]
    async with open_array(used) as array:
        await _is_whole(array)
        tables = sums_of(array.member_set.config)
        assert tables is not None
        assert tables.is_consistent(array.member_set.config.width)
        places = await live_pages(array)
    await check_copies(array, places, used)
    async with open_array(used) as array:
        status = await array.jobs.wait(await array.start_scrub(repair=False))
        assert (status["state"], status["mismatches"]) == ("done", 0)
        await _is_whole(array)
        assert await array.read(0, len(content)) == content


async def test_what_a_restripe_has_moved_has_sums_when_its_watermark_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine stops right behind the record of a watermark: its chunks were copied past it."""
    members = await ram_array("raid0", 5, sums=True, with_volume=False, log_bytes=LOG)
    left: list[list[RamMember]] = []
    commit = Journal.commit

    async def committed(journal: Journal, *args: Any, **options: Any) -> bool:
        done = await commit(journal, *args, **options)
        if options.get("mark") is not None:
            left.append(enlarged(members, 0))
        return done

    async with open_array(members) as array:
        await array.set("journal", "none")
        await array.write(0, random.Random(1).randbytes(200 << 10))
        await array.flush()
        with monkeypatch.context() as watched:
            watched.setattr(Journal, "commit", committed)
            await narrower(array)
            await jobs_ended(array)
    assert len(left) > 3
    for stopped in left[:: max(1, len(left) // 8)]:
        async with open_array(stopped) as array:
            await _is_whole(array)


@pytest.mark.parametrize("parity", ["piggyback", "surrogate"])
async def test_checksums_follow_each_way_of_the_parity(parity: str) -> None:
    members = await ram_array("raid4", 4, sums=True, with_volume=False, log_bytes=LOG)
    content = random.Random(parity).randbytes(300 << 10)
    async with open_array(members) as array:
        await array.write(0, content)
        surrogate = RamMember(SIZE, name="surrogate") if parity == "surrogate" else None
        way = None if surrogate else parity
        await array.grow([RamMember(SIZE, name="new")], parity=way, surrogate=surrogate)
        await _is_whole(array)
        used = [q.member for q in array.member_set.queues if q]
    async with open_array(used) as array:
        await _is_whole(array)
        assert await array.read(0, len(content)) == content
        await array.remove_disk(array.member_set.config.width - 1)
        await _is_whole(array)
        assert await array.read(0, len(content)) == content


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("layout", ["raid0", "raid1", "raid5", "rdp"])
async def test_checksums_follow_more_data_on_each_member(layout: str, times: int) -> None:
    """Under writes; their tables lie behind the data then, twice; the room before is empty."""
    members = await ram_array(layout, 5, sums=True, with_volume=False, log_bytes=LOG)
    rng = random.Random(f"{layout} {times}")
    content = bytearray(rng.randbytes(200 << 10))
    for round_ in range(times):
        members = enlarged(members, 8 * SIZE)
        async with open_array(members) as array:
            await array.write(0, bytes(content))
            before, size = array.member_set.config, array.size_bytes
            async with trio.open_nursery() as nursery:
                nursery.start_soon(array.larger_members.use)
                for at in range(0, len(content), 10_000):
                    content[at : at + 5000] = rng.randbytes(5000)
                    await array.write(at, bytes(content[at : at + 5000]))
                    await trio.sleep(0.001)
            config = array.member_set.config
            assert array.size_bytes > size + 4 * SIZE
            assert config.regions.sum_table_bytes > before.regions.sum_table_bytes
            assert config.regions.sums.offset >= before.regions.end
            assert (sums_of(config) or SUMS) == sums_of(before), "the same seed, numbers and slots"
            end = rng.randbytes(8192)
            await array.write(array.size_bytes - len(end), end)
            await _is_whole(array)
            used = [q.member for q in array.member_set.queues if q]
            if round_ == 0:
                former = before.regions.sums
                assert not any(any(member.memory[former.offset : former.end]) for member in members)
        async with open_array(members) as array:
            await _is_whole(array)
            assert await array.read(0, len(content)) == content
            assert await array.read(array.size_bytes - len(end), len(end)) == end
            places = await live_pages(array)
        await check_copies(array, places, used)
    async with open_array(members) as array:
        status = await array.jobs.wait(await array.start_scrub(repair=False))
        assert (status["state"], status["mismatches"]) == ("done", 0)
        if layout != "raid0":
            await array.replace_disk(1, RamMember(members[0].size_bytes, name="new"))
            await _is_whole(array)
        await array.remove_disk(array.member_set.config.width - 1)
        await _is_whole(array)
        assert await array.read(0, len(content)) == content


async def test_tables_stay_where_they_are_while_they_suffice() -> None:
    members = await ram_array("raid5", 4, sums=True, with_volume=False, log_bytes=LOG)
    members = enlarged(members, 64 << 10)
    async with open_array(members) as array:
        before = array.member_set.config.regions
        await array.write(0, random.Random(1).randbytes(100 << 10))
        await array.larger_members.use()
        after = array.member_set.config.regions
        assert (after.sums, after.data.length) == (before.sums, before.data.length + (64 << 10))
        await array.write(array.size_bytes - 8192, bytes(8192))
        await _is_whole(array)
    async with open_array(members) as array:
        await _is_whole(array)


async def test_more_data_leave_room_for_checksums_on_members_that_have_it_from_the_start() -> None:
    size = SUMS_MEMBER_BYTES_MIN
    members = await ram_array("raid5", 4, size, chunk_bytes=64 << 10, with_volume=False)
    content = random.Random(1).randbytes(200 << 10)
    async with open_array(members) as array:
        await array.write(0, content)
    members = enlarged(members, 8 * size)
    async with open_array(members) as array:
        await array.larger_members.use()
        config = array.member_set.config
        place = place_for_sums(config, 2)
        assert place is not None
        assert place.offset >= config.regions.data.end
        await array.set("sums", "on")
        assert array.member_set.config.regions == replace(config.regions, sums=place)
        await _is_whole(array)
    async with open_array(members) as array:
        await _is_whole(array)
        assert await array.read(0, len(content)) == content


@pytest.mark.parametrize("begin", [wider, narrower])
async def test_checksums_that_are_off_can_be_on_again_after_a_change(begin: Plan) -> None:
    members = await ram_array("raid5", 4, sums=True, with_volume=False, log_bytes=LOG)
    async with open_array(members) as array:
        await array.write(0, random.Random(1).randbytes(100 << 10))
        await array.set("sums", "off")
        await begin(array)
        await jobs_ended(array)
        assert array.status()["sums"]["state"] == "off"
        await array.set("sums", "on")
        await _is_whole(array)


async def test_an_array_made_without_checksums_does_not_show_them() -> None:
    members = await ram_array("raid5", 4)
    async with open_array(members) as array:
        assert (array.get("sums"), "sums" in array.status()) == ("off", False)
        assert await array.set("sums", "off") == "off"
        assert "sums" not in array.status()


# -- what says so --------------------------------------------------------------------------------


async def test_the_status_says_so_running_and_at_rest() -> None:
    members = await ram_array("raid5", 4, sums=True)
    nothing = {"misfits": 0, "healed": 0, "wrong_sums": 0, "unverified": 0}
    async with open_array(members) as array:
        assert array.get("sums") == "on"
        assert array.status()["sums"] == {"state": "on", **nothing}
    assert describe(await assemble(members))["sums"] == {"state": "on", **nothing}
    assert "sums" not in describe(await assemble(await ram_array("raid5", 4)))


async def test_a_new_identity_keeps_the_seed() -> None:
    members = await ram_array("raid5", 4, sums=True)
    before = await config_on(members[0])
    await give_new_identity(members)
    after = await config_on(members[0])
    assert after.array_uuid != before.array_uuid
    assert isinstance(sums_of(after), StoredSums)
    assert (sums_of(after), after.needs) == (sums_of(before), ("sums", "sums.tail"))


async def test_a_member_that_joins_holds_no_checksums() -> None:
    """Old ones, of the same place in another array or of an earlier time, would be believed."""
    members = await ram_array("raid5", 4, sums=True)
    region = (await config_on(members[0])).regions.sums
    used = [RamMember(SIZE, name=f"used{n}") for n in range(2)]
    for member in used:
        member.memory[region.offset : region.end] = b"\xff" * region.length
    async with open_array(members) as array:
        await array.add_spare(used[0])
        assert not any(used[0].memory[region.offset : region.end])
        await array.remove_disk(used[0].path)
        await array.fail_disk(Role(1))
        await array.replace_disk(Role(1), used[1])
        await jobs_ended(array)
    assert (await config_on(used[1])).record(Role(1)).state == "active"


async def test_a_rebuild_that_is_resumed_gives_its_member_the_tables() -> None:
    """A power cut may have come since it took its role, before it held them."""
    members = await ram_array("raid5", 4, sums=True)
    regions = (await config_on(members[0])).regions
    content = random.Random(1).randbytes(200_000)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.fail_disk(Role(1))
        await array.replace_disk(Role(1), RamMember(SIZE, name="d1"))
        used = [queue.member for queue in array.member_set.queues if queue]
        images = [bytes(member.memory) for member in used if isinstance(member, RamMember)]
        assert array.jobs.running()
    cut = [RamMember(SIZE, name=f"d{number}") for number in range(4)]
    for member, image in zip(cut, images, strict=True):
        member.memory[:] = image
    cut[1].memory[regions.sums.offset : regions.sums.end] = bytes(regions.sums.length)
    async with open_array(cut) as array:
        await jobs_ended(array)
        assert await array.read(0, len(content)) == content
        await _is_whole(array)
        places = await live_pages(array)
    assert (await config_on(cut[1])).record(Role(1)).state == "active"
    await check_copies(array, places, [*cut])
