"""The memory of the tables of checksums: what goes, what stays, and what comes back."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import trio
import trio.testing

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.lab.crash.sums import check_calm
from raidx_fuse.laws import Laws
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


async def test_what_is_counted_is_the_memory_that_is_taken() -> None:
    rng = random.Random(6)
    memory = SumMemory(Laws())
    memory.take([None, None], 2 * GROUP + 7)
    for _ in range(200):
        role, number = Role(rng.randrange(2)), rng.randrange(2 * GROUP + 7)
        memory.bring(role, number, np.ones(1008, np.uint32))
        taken = {
            (role, at * PAGE_MEMORY_BYTES // 4096 + more)
            for role, loaded in enumerate(memory.loaded)
            for at, state in enumerate(loaded)
            if state
            for more in range(1 + (at % GROUP not in (0, GROUP - 1)))
        }
        assert memory.taken_bytes == len(taken) * 4096
    memory.take([1, 0], 2 * GROUP + 7)
    assert memory.taken_bytes == len(taken) * 4096
    memory.limit_bytes = 0
    memory.evict(0, lambda role: role == 0)  # of the others no member has a copy
    assert any(memory.loaded[1])
    assert not any(memory.loaded[0])
    memory.look_again()
    memory.evict(0, lambda _: True)
    assert memory.taken_bytes == 0
    assert not any(np.concatenate(memory.values))


async def test_what_is_read_ahead_is_not_taken_over_what_was_set_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = await members_of_array()
    async with open_array(members) as array:
        member_set, memory, tables = array.member_set, memory_of(array), sums_of(array).tables
        role, page = Role(0), 1008 + 5
        await tables.load([(role, 3 * GROUP)])  # knows the tail
        monkeypatch.setattr(tables, "_wait_s", 1.0)  # as of members that answer late
        read_homes, gate, calls = member_set.read_homes, trio.Event(), list[int]()

        async def late(places: Sequence[tuple[Role, int, int]]) -> object:
            found = await read_homes(places)
            calls.append(len(places))
            if len(calls) == 1:
                await gate.wait()
            return found

        async def change() -> None:
            await tables.load([(role, 1)])
            memory.put(role, page, 7, 1)
            await tables.save()
            tables.limit(0)
            assert not memory.loaded[role][1]

        monkeypatch.setattr(member_set, "read_homes", late)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tables.load, [(role, 0)])
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(change)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        await tables.load([(role, 1)])
        assert memory.known_one(role, page) == 7


async def test_a_cold_read_reads_its_data_and_all_copies_of_its_sums_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = await members_of_array()
    async with open_array(members) as array:
        at = spread(array, 4)[1]
        await array.write(at, b"\x33" * PAGE)
    async with open_array(members) as array:
        member_set, read_homes = array.member_set, array.member_set.read_homes
        role, offset = place_of(array, at)
        await sums_of(array).tables.load([(role, 3 * GROUP)])  # knows the tail
        queue, gate, calls = member_set.queues[role], trio.Event(), list[int]()
        assert queue is not None

        async def late(places: Sequence[tuple[Role, int, int]]) -> object:
            calls.append(len(places))
            await gate.wait()
            return await read_homes(places)

        monkeypatch.setattr(member_set, "read_homes", late)
        before = queue.reads
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.read, at, PAGE)
            await trio.testing.wait_all_tasks_blocked()
            assert calls == [2]
            assert queue.reads >= before + 2  # without waiting, and again beside the sums
            gate.set()
        assert sums_of(array).has(role, offset)


async def test_a_turn_of_the_tail_reads_its_pages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    members = await members_of_array()
    async with open_array(members) as array:
        await array.set("sums.cache", "0")
        for at in spread(array, 100):
            await array.write(at, b"\x44" * PAGE)
        await settled(array)
        member_set, calls = array.member_set, list[int]()
        read_homes = member_set.read_homes

        async def counted(places: Sequence[tuple[Role, int, int]]) -> object:
            calls.append(len(places))
            return await read_homes(places)

        monkeypatch.setattr(member_set, "read_homes", counted)
        async with sums_of(array).tables.resting():
            pass
        assert sum(calls) > 200
        assert len(calls) <= WIDTH
