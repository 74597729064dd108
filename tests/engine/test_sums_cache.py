"""The memory of the tables of checksums: what goes, what stays, and what comes back."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.lab.crash.sums import check_calm
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from raidx_fuse.store.sum_memory import GROUP, GROUP_BYTES, PAGE_MEMORY_BYTES, SumMemory
from raidx_fuse.store.sums import Sums
from tests.support.arrays import jobs_ended

CHUNK = 16 << 10
PAGE = 4096
MEMBER_BYTES = 1 << 30  # of which little is touched: a table has four groups
WIDTH = 4


def sums_of(array: Array) -> Sums:
    assert array.member_set.sums is not None
    return array.member_set.sums


def memory_of(array: Array) -> SumMemory:
    return sums_of(array).tables.memory


async def members_of_array(layout: str = "raid5") -> list[RamMember]:
    members = [RamMember(MEMBER_BYTES, name=f"ram{number}") for number in range(WIDTH)]
    await create_array(members, layout, name="cache", now_s=0, chunk_bytes=CHUNK, sums=True)
    return members


def spread(array: Array, count: int, seed: int = 1) -> list[int]:
    """Return *count* places of the image, in all groups of the tables."""
    rng = random.Random(seed)
    step = array.size_bytes // count
    return [at * step // PAGE * PAGE + rng.randrange(step // PAGE) * PAGE for at in range(count)]


async def settled(array: Array) -> None:
    """Have all at its place, durably, and nothing in memory that need not be."""
    await array.context.journal.drain()
    await array.context.dirty_bitmap.clean_quiet(all_regions=True)
    await sums_of(array).tables.save()
    await array.flush()


def in_memory(array: Array) -> int:
    """Return how many bytes of sums are in memory."""
    loaded = memory_of(array).loaded
    return sum(state > 1 for of_role in loaded for state in of_role) * PAGE_MEMORY_BYTES


@pytest.fixture(params=["partial", "none"])
def journal(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_what_is_in_memory_has_a_limit_and_all_is_verified_still(journal: str) -> None:
    members = await members_of_array()
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.set("sums.cache", str(GROUP_BYTES))
        places, rng = spread(array, 200), random.Random(2)
        contents = {at: rng.randbytes(PAGE) for at in places}
        most = 0
        for number, (at, content) in enumerate(contents.items()):
            await array.write(at, content)
            if number % 20 == 0:
                await array.flush()
            most = max(most, in_memory(array))
        await settled(array)
        assert in_memory(array) <= GROUP_BYTES
        assert most < 4 * GROUP_BYTES  # with what was not saved
        assert memory_of(array).evicted > 3
        check_calm([array], "after the writes")
        for at, content in contents.items():
            assert await array.read(at, PAGE) == content
        await settled(array)
        assert in_memory(array) <= GROUP_BYTES
        await check_each_sum(array, contents)
        check_calm([array], "after the reads")
    async with open_array(members) as array:
        assert array.get("sums.cache") == GROUP_BYTES
        await check_each_sum(array, contents)


async def check_each_sum(array: Array, places: Sequence[int] | dict[int, bytes]) -> None:
    """Check that the pages of the image at *places* have sums, and fit them."""
    sums = sums_of(array)
    for at in places:
        role, offset = place_of(array, at)
        content = await array.member_set.read_home(role, offset, PAGE)
        assert isinstance(content, bytearray)
        await sums.load([(role, offset, (), PAGE)])
        assert sums.has(role, offset)
        assert sums.fits(role, offset, content)


def place_of(array: Array, at: int) -> tuple[Role, int]:
    """Return role and byte offset of the page of the image at byte *at*."""
    role, offset = array.context.position(*array.context.layout.locate(at // CHUNK))
    return role, offset + at % CHUNK


async def test_rot_is_found_by_sums_that_were_gone_meanwhile() -> None:
    members = await members_of_array()
    async with open_array(members) as array:
        await array.set("sums.cache", "0")
        places, rng = spread(array, 40), random.Random(3)
        contents = {at: rng.randbytes(PAGE) for at in places}
        for at, content in contents.items():
            await array.write(at, content)
        await settled(array)
        assert in_memory(array) == 0
        for at in places[::2]:
            role, offset = place_of(array, at)
            members[role].memory[offset + 77] ^= 16
        for at, content in contents.items():
            assert await array.read(at, PAGE) == content
        assert sums_of(array).misfits == sums_of(array).healed == len(places[::2])
        assert sums_of(array).wrong_sums == 0
        await array.start_scrub(repair=False)
        await jobs_ended(array)
        check_calm_but(array, misfits=len(places[::2]))


def check_calm_but(array: Array, misfits: int) -> None:
    sums = sums_of(array)
    assert (sums.misfits, sums.suspects, sums.unverified) == (misfits, set(), 0)


async def test_pages_that_are_not_saved_and_that_a_task_holds_stay() -> None:
    members = await members_of_array()
    async with open_array(members) as array:
        await array.set("sums.cache", "0")
        await array.set("journal", "none")
        memory, sums = memory_of(array), sums_of(array)
        await array.write(0, b"\x11" * PAGE)
        assert memory.unsaved
        unsaved = set(memory.unsaved)
        far = array.member_set.data_offset + 3 * GROUP * 1008 * PAGE // 2
        await sums.load([(Role(0), far, (), PAGE)])
        assert all(memory.loaded[role][number] for role, number in unsaved)
        await settled(array)
        assert in_memory(array) == 0
        role, offset = place_of(array, 0)
        async with sums.holding([(role, offset, (), PAGE)]):
            sums.tables.make_room()
            await settled(array)
            assert sums.has(role, offset)
        await array.set("sums.cache", "0")
        assert in_memory(array) == 0


async def test_sums_of_before_a_crash_stay_until_the_resync() -> None:
    members = await members_of_array()
    async with open_array(members) as array:
        await array.set("journal", "none")
        await array.set("sums.cache", "0")
        await array.write(0, random.Random(4).randbytes(64 * CHUNK))
        await settled(array)
        await array.write(0, b"\x22" * PAGE)  # its region is marked
        begun = []
        for member in members:
            copy = RamMember(MEMBER_BYTES, name=member.path)
            copy.memory[:] = member.memory
            begun.append(copy)
        role, offset = place_of(array, 5 * PAGE)
    begun[role].memory[offset + 9] ^= 1
    content = bytes(random.Random(4).randbytes(64 * CHUNK))
    async with open_array(begun) as array:
        assert await array.read(5 * PAGE, PAGE) == content[5 * PAGE : 6 * PAGE]
        await jobs_ended(array)
        await settled(array)
        assert in_memory(array) == 0
        await check_each_sum(array, [5 * PAGE, 0])


async def test_without_a_copy_on_a_member_nothing_goes() -> None:
    members = await members_of_array("raid5")
    async with open_array(members) as array:
        await array.set("sums.cache", "0")
        places, rng = spread(array, 40), random.Random(5)
        contents = {at: rng.randbytes(PAGE) for at in places}
        tables, lost = sums_of(array).tables.stored, Role(1)
        await array.fail_disk(lost)
        few = [r for r, table in enumerate(tables.tables) if any(h == lost for h, _ in table.slots)]
        assert few
        for at, content in contents.items():
            await array.write(at, content)
        await settled(array)
        for at, content in contents.items():
            assert await array.read(at, PAGE) == content
        new = RamMember(MEMBER_BYTES, name="new")
        await array.replace_disk(lost, new)
        await jobs_ended(array)
        await settled(array)
        check_calm([array], "after the rebuild")
        await check_each_sum(array, contents)
        members[lost] = new
    async with open_array(members) as array:
        await check_each_sum(array, contents)


async def test_readers_and_writers_beside_each_other_lose_no_sum() -> None:
    members = await members_of_array()
    async with open_array(members) as array:
        await array.set("sums.cache", "0")
        contents: dict[int, bytes] = {}

        async def use(number: int) -> None:
            rng = random.Random(number)
            for at in spread(array, 60, seed=number):
                if at // CHUNK % 8 != number:
                    continue
                contents[at] = rng.randbytes(PAGE)
                await array.write(at, contents[at])
                await trio.lowlevel.checkpoint()
                assert await array.read(at, PAGE) == contents[at]

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(use, number)
        await settled(array)
        check_calm([array], "after all")
        await check_each_sum(array, contents)
