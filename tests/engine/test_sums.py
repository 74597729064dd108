"""Checksums of a running array: no false alarm, rot healed, wrong sums known for what they are."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import trio
from crc32c import crc32c

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.laws import Law, LawError
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.registry import make_layout
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.store.sums import Sums, stripe_crcs
from raidx_fuse.store.xor import Program, encoder
from tests.support.arrays import job_ended, jobs_ended, parity_holds, ram_array

CHUNK = 16 << 10
PAGE = 4096
LAYOUTS = [("raid5", 4), ("raid1", 2), ("rdp", 6), ("raid0", 3), ("upc", 6)]


def sums_of(array: Array) -> Sums:
    sums = array.member_set.sums
    assert sums is not None
    return sums


def counted(array: Array) -> tuple[int, int, int]:
    sums = sums_of(array)
    return sums.misfits, sums.healed, sums.wrong_sums


async def written(array: Array, seed: int, size: int = 1 << 20) -> bytes:
    content = random.Random(seed).randbytes(size)
    await array.write(0, content)
    await array.flush()
    return content


async def with_sums(layout: str, width: int, **options: Any) -> list[RamMember]:
    return await ram_array(layout, width, 4 << 20, chunk_bytes=CHUNK, sums=True, **options)


def memory_of(member: Member) -> memoryview:
    """Return the memory of a RAM member, to damage it behind the array's back."""
    assert isinstance(member, RamMember)
    return member._bytes


@pytest.mark.parametrize("journal", ["partial", "full", "none"])
@pytest.mark.parametrize(("layout", "width"), LAYOUTS)
async def test_writes_of_any_size_leave_sums_that_fit(
    layout: str, width: int, journal: str
) -> None:
    rng = random.Random(f"{layout} {journal}")
    size = 1 << 20
    model = bytearray(size)
    members = await with_sums(layout, width)
    for _ in range(3):
        async with open_array(members) as array:
            await array.set("journal", journal)
            for _ in range(60):
                length = rng.choice([1, 512, 3000, PAGE, PAGE, CHUNK, 200_000])
                at = rng.randrange(size - length)
                if rng.random() < 0.5:
                    at -= at % PAGE
                content = rng.randbytes(length)
                await array.write(at, content)
                model[at : at + length] = content
                if rng.random() < 0.1:
                    await trio.sleep(2)  # a checkpoint
                if rng.random() < 0.1:
                    await array.discard(0, 4 * CHUNK)
                    model[: 4 * CHUNK] = bytes(4 * CHUNK)
                at = rng.randrange(size - 5000)
                assert await array.read(at, 5000) == model[at : at + 5000]
            assert counted(array) == (0, 0, 0)
    async with open_array(members) as array:
        for at in range(0, size, CHUNK):
            assert await array.read(at, CHUNK) == model[at : at + CHUNK]
        if layout != "raid0":
            await parity_holds(array)
        assert counted(array) == (0, 0, 0)


@pytest.mark.parametrize("journal", ["partial", "none"])
async def test_reads_during_writes_in_place_are_no_false_alarm(journal: str) -> None:
    members: list[Member] = [
        model_member(RamMember(4 << 20, name=f"d{n}"), "hdd", seed=n) for n in range(4)
    ]
    await create_array(members, "raid5", name="slow", now_s=0, chunk_bytes=CHUNK, sums=True)
    async with open_array(members) as array:
        await array.set("journal", journal)
        content = await written(array, 1, 8 * CHUNK)
        done = False

        async def write() -> None:
            nonlocal done
            rng = random.Random(2)
            for _ in range(100):
                at = rng.randrange(0, 8 * CHUNK, PAGE)
                await array.write(at, content[at : at + PAGE])
                await array.write(0, content[: 3 * CHUNK])
            done = True

        async def read(seed: int) -> None:
            rng = random.Random(seed)
            while not done:
                at = rng.randrange(0, 8 * CHUNK, PAGE)
                assert await array.read(at, PAGE) == content[at : at + PAGE]
                await trio.sleep(rng.random() / 500)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for seed in range(4):
                nursery.start_soon(read, seed)
        assert counted(array) == (0, 0, 0)


async def test_a_lost_member_is_rebuilt_with_sums_that_fit() -> None:
    members = await with_sums("rdp", 6)
    async with open_array(members) as array:
        await written(array, 1)
        array.member_set.fail(Role(2), "for the test")
        content = await written(array, 2)
        await array.write(700, b"part of a page")
        content = content[:700] + b"part of a page" + content[714:]
        await array.membership.add_spare(RamMember(4 << 20, name="spare"))
        await trio.sleep(1)
        await jobs_ended(array)
        assert not array.member_set.lost
        for at in range(0, len(content), CHUNK):
            assert await array.read(at, CHUNK) == content[at : at + CHUNK]
        await parity_holds(array)
        assert counted(array) == (0, 0, 0)


async def test_rot_in_one_copy_of_the_sums_is_repaired_from_the_other() -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        content = await written(array, 1)
        region = array.member_set.config.regions.sums
    memory_of(members[1])[region.offset : region.end] = random.Random(1).randbytes(region.length)
    async with open_array(members) as array:
        assert await array.read(0, len(content)) == content
        assert counted(array) == (0, 0, 0)
    memory_of(members[2])[region.offset : region.end] = random.Random(2).randbytes(region.length)
    async with open_array(members) as array:
        assert await array.read(0, len(content)) == content
        assert counted(array) == (0, 0, 0)
        at = array.member_set.data_offset + 5
        memory_of(members[0])[at] ^= 1
        assert await array.read(0, len(content)) == content
        assert sums_of(array).misfits == 1  # the sums are still there


async def test_without_any_copy_of_the_sums_pages_are_read_unverified_until_a_scrub() -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        content = await written(array, 1)
        regions = array.member_set.config.regions
    for member in members:
        length = regions.sums.length
        memory_of(member)[regions.sums.offset : regions.sums.end] = random.Random(1).randbytes(
            length
        )
    async with open_array(members) as array:
        assert await array.read(0, len(content)) == content
        await parity_holds(array)
        assert counted(array) == (0, 0, 0)
    async with open_array(members) as array:
        memory_of(members[3])[regions.data.offset + 9] ^= 1
        assert await array.read(0, len(content)) == content
        await parity_holds(array)
        assert counted(array) == (1, 1, 0)


@pytest.mark.parametrize("copies", [1, 2])
async def test_stale_sums_never_cost_right_bytes(copies: int) -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        await written(array, 1)
        region = array.member_set.config.regions.sums
    stale = [bytes(memory_of(member)[region.offset : region.end]) for member in members]
    async with open_array(members) as array:
        content = await written(array, 2)
    before = [bytes(memory_of(member)[region.end :]) for member in members]
    for number in range(copies):  # lost writes: the sums of role 0 lie on roles 1 and 2
        memory_of(members[1 + number])[region.offset : region.end] = stale[1 + number]
    async with open_array(members) as array:
        assert await array.read(0, len(content)) == content
        await trio.sleep(10)
        assert bool(sums_of(array).wrong_sums) == (copies == 2)  # else the newer copy counts
        assert not array.member_set.unreadable
        await parity_holds(array)
    assert [bytes(memory_of(member)[region.end :]) for member in members] == before
    async with open_array(members) as array:
        assert await array.read(0, len(content)) == content
        assert counted(array) == (0, 0, 0)


async def test_rot_without_redundancy_is_an_error_of_exactly_its_page() -> None:
    members = await with_sums("raid0", 3)
    async with open_array(members) as array:
        content = await written(array, 1)
        at = array.member_set.data_offset
        memory_of(members[1])[at + 2 * PAGE + 7] ^= 0x80
        wrong = []
        for page in range(0, len(content), PAGE):
            try:
                assert await array.read(page, PAGE) == content[page : page + PAGE]
            except RaidxError:
                wrong.append(page)
        assert wrong == [CHUNK + 2 * PAGE]
        await array.write(wrong[0], bytes(PAGE))
        await array.flush()
        assert await array.read(wrong[0], PAGE) == bytes(PAGE)
    async with open_array(members) as array:
        assert await array.read(wrong[0], PAGE) == bytes(PAGE)
        assert counted(array) == (0, 0, 0)


async def test_rot_in_all_members_of_a_stripe_in_different_pages_is_healed() -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        content = await written(array, 1)
        for number, member in enumerate(members):
            memory_of(member)[array.member_set.data_offset + number * PAGE + 1] ^= 1
        assert await array.read(0, len(content)) == content
        await parity_holds(array)
        assert counted(array) == (4, 4, 0)


async def test_more_rot_in_a_place_than_the_code_tolerates_overwrites_nothing() -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        content = await written(array, 1)
        await trio.sleep(10)  # all of it is at home
        data = array.member_set.data_offset
        for member in members[:2]:
            memory_of(member)[data + 1] ^= 1
        before = [bytes(memory_of(member)[data:]) for member in members]
        with pytest.raises(RaidxError):
            await array.read(0, PAGE)
        await trio.sleep(10)
        assert [bytes(memory_of(member)[data:]) for member in members] == before
        assert await array.read(PAGE, PAGE) == content[PAGE : 2 * PAGE]
        assert not array.member_set.lost


async def test_sums_are_switched_off_and_on_again() -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        await written(array, 1)
        await array.set("sums", "off")
        assert array.member_set.sums is None
        content = await written(array, 2)
    async with open_array(members) as array:
        assert array.member_set.sums is None
        await array.set("sums", "on")
        await array.write(0, content[:CHUNK])
        for job in array.jobs.running():
            await job_ended(job)
    async with open_array(members) as array:
        memory_of(members[0])[array.member_set.data_offset + 40 * PAGE] ^= 1
        assert await array.read(0, len(content)) == content
        await parity_holds(array)
        assert counted(array) == (1, 1, 0)


async def test_a_part_of_a_page_is_never_written_home() -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        await written(array, 1)
        with pytest.raises(LawError) as caught:
            sums_of(array).note(Role(0), array.member_set.data_offset, [bytes(512)], 512)
        assert caught.value.law is Law.WHOLE


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("journal", ["partial", "none"])
@pytest.mark.parametrize(("layout", "width", "rotten"), [("raid5", 4, 1), ("rdp", 6, 2)])
async def test_rot_beside_what_was_being_written_at_a_crash_is_healed(
    layout: str, width: int, rotten: int, journal: str, again: bool
) -> None:
    """*again*: another crash comes before the resync, when tables have been saved."""
    members = await with_sums(layout, width)
    async with open_array(members) as array:
        await array.set("journal", journal)
        content = bytearray(await written(array, 1))
        await trio.sleep(30)  # nothing is marked any more
        stripe_bytes = array.context.code.data_count * CHUNK
        content[:stripe_bytes] = random.Random(2).randbytes(stripe_bytes)
        await array.write(0, bytes(content[:stripe_bytes]))
        assert array.context.dirty_bitmap.is_marked(array.context.layout.locate(0)[0])
        left = [bytes(memory_of(member)) for member in members]  # killed here
        data = array.member_set.data_offset
        rows = array.context.code.rows
    for member, image in zip(members, left, strict=True):
        memory_of(member)[:] = image
    for number in range(rotten):  # of the next stripe, in the region that is marked
        memory_of(members[number])[data + rows * CHUNK + 5] ^= 1
    if again:
        left = [bytes(memory_of(member)) for member in members]
        async with open_array(members) as array:
            await sums_of(array).tables.save()
            found = [bytes(memory_of(member)) for member in members]
        regions = array.member_set.config.regions
        for member, image, later in zip(members, left, found, strict=True):
            memory_of(member)[:] = image
            part = slice(regions.sums.offset, regions.sums.end)
            memory_of(member)[part] = later[part]
    before = [bytes(memory_of(member)) for member in members]
    async with open_array(members, read_only=True) as array:
        assert await array.read(0, len(content)) == content
    assert [bytes(memory_of(member)) for member in members] == before
    async with open_array(members) as array:
        assert array.context.dirty_bitmap.pending_regions()
        await jobs_ended(array)
        assert await array.read(0, len(content)) == content
        assert sums_of(array).unverified  # what was written, and nothing of what rotted
        await parity_holds(array)


async def test_rot_in_a_region_that_is_always_written_is_healed_after_a_crash() -> None:
    """What was written there before, and flushed, has had sums on the members for a while."""
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        await array.set("journal", "none")
        content = bytearray(await written(array, 1))
        await trio.sleep(30)  # nothing is marked any more
        stripe_bytes = array.context.code.data_count * CHUNK
        region_bytes = array.context.dirty_bitmap.per_region * stripe_bytes
        content[:region_bytes] = random.Random(2).randbytes(region_bytes)
        await array.write(0, bytes(content[:region_bytes]))
        for count in range(30):
            await trio.sleep(1)
            content[:stripe_bytes] = random.Random(count).randbytes(stripe_bytes)
            await array.write(0, bytes(content[:stripe_bytes]))
            await array.flush()
        left = [bytes(memory_of(member)) for member in members]  # killed here
        begin = array.member_set.data_offset
    for member, image in zip(members, left, strict=True):
        memory_of(member)[:] = image
    assert region_bytes > stripe_bytes
    for at in range(begin + CHUNK, begin + region_bytes // 3, PAGE):
        memory_of(members[0])[at + 5] ^= 1
    async with open_array(members) as array:
        assert array.context.dirty_bitmap.pending_regions()
        assert await array.read(0, len(content)) == content
        await jobs_ended(array)
        assert await array.read(0, len(content)) == content
        await parity_holds(array)


@pytest.mark.parametrize(("layout", "width"), [*LAYOUTS, ("evenodd", 7), ("xcode", 5)])
def test_crcs_of_parities_follow_from_those_of_data(layout: str, width: int) -> None:
    code = make_layout(layout, width, 1000, CHUNK).code
    rng = np.random.default_rng(width)
    stripes, count, pages = 3, code.data_count, CHUNK // PAGE
    cells = np.zeros((stripes, len(code.cells), CHUNK), np.uint8)
    cells[:, :count] = rng.integers(0, 256, (stripes, count, CHUNK), np.uint8)
    cells[1, 0] = 0
    encoder(code).run([cells[:, cell] for cell in range(len(code.cells))])
    data = memoryview(cells[:, :count].tobytes())
    half = (stripes * count // 2) * CHUNK
    found = stripe_crcs(encoder(code), [data[:half], data[half:]], count, stripes)
    assert found.shape == (stripes * len(code.cells), pages)
    content = cells.tobytes()
    wanted = [crc32c(content[at : at + PAGE]) for at in range(0, len(content), PAGE)]
    assert found.ravel().tolist() == wanted


async def test_a_parity_that_was_computed_wrongly_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        await array.set("journal", "none")
        await written(array, 6, 3 * CHUNK)  # a first write does not go by whole stripes
        steps = Program._steps

        def wrong(self: Program, arrays: list[Any]) -> None:
            steps(self, arrays)
            if arrays[0].size == CHUNK:  # not of the CRCs
                arrays[-1][5000] ^= 1

        monkeypatch.setattr(Program, "_steps", wrong)
        content = await written(array, 7, 3 * CHUNK)
        monkeypatch.undo()
        role, at = array.context.position(Stripe(0), CellIndex(3))
        parity = memory_of(members[role])[at : at + CHUNK]
        assert sums_of(array).wrong_pages(role, at, parity) == [PAGE]
        assert await array.read(0, len(content)) == content
