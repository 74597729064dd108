"""Pages that must not be believed, and pages that must not be doubted."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.write.mend import CHOICES_MAX, Mender
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from tests.support.arrays import parity_holds, ram_array

CHUNK = 16 << 10
PAGE = 4096


@pytest.mark.parametrize("alike", [False, True])
async def test_what_the_code_gives_back_is_compared_with_the_sum_as_well(alike: bool) -> None:
    """The parity has rotted and has no sum, as all copies of its table are lost.

    If *alike*, as the data has, the code gives back what was read: that proves nothing.
    """
    members = await ram_array("raid5", 4, 4 << 20, chunk_bytes=CHUNK, sums=True)
    content = random.Random(1).randbytes(1 << 20)
    async with open_array(members) as array:
        await array.write(0, content)
        region = array.member_set.config.regions.sums
        cells = [array.context.position(Stripe(0), CellIndex(cell)) for cell in (0, 3)]
    parity = int(cells[1][0])
    for holder in (parity + 1, parity + 2):
        members[holder % 4].memory[region.offset : region.end] = bytes(region.length)
    for bit, (role, at) in enumerate(cells):
        members[role].memory[at + 7] ^= 1 << bit * (not alike)
    async with open_array(members) as array:
        with pytest.raises(RaidxError):
            await array.read(0, PAGE)
        await array.jobs.wait(await array.start_scrub(repair=True))
        with pytest.raises(RaidxError):
            await array.read(0, PAGE)
        assert array.member_set.sums is not None
        assert not array.member_set.sums.wrong_sums
        assert await array.read(PAGE, CHUNK) == content[PAGE : PAGE + CHUNK]


@pytest.mark.parametrize(("layout", "width", "rotten"), [("raid5", 4, 1), ("rdp", 6, 2)])
async def test_of_more_misfits_than_the_code_tolerates_some_may_be_right(
    layout: str, width: int, rotten: int
) -> None:
    """One has a wrong sum: what its bytes give back fits the sums of the others."""
    members = await ram_array(layout, width, 4 << 20, chunk_bytes=CHUNK, sums=True)
    content = random.Random(1).randbytes(1 << 20)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.context.journal.drain()
        sums = array.member_set.sums
        assert sums is not None
        cells = [array.context.position(Stripe(0), CellIndex(cell)) for cell in range(rotten + 1)]
        (role, at), *wrong = cells
        sums.replace(role, at, bytes(PAGE))
        for number, (other, place) in enumerate(wrong):
            members[other].memory[place + 7 + number] ^= 1
        before = bytes(members[role].memory[at : at + PAGE])
        assert await array.read(0, len(content)) == content
        assert (sums.wrong_sums, sums.suspects) == (2, set())
        assert bytes(members[role].memory[at : at + PAGE]) == before
        await parity_holds(array)


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("rdp", 6)])
async def test_a_parity_that_contradicts_data_is_wrong_though_it_fits_its_sum(
    layout: str, width: int
) -> None:
    members = await ram_array(layout, width, 4 << 20, chunk_bytes=CHUNK, sums=True)
    content = random.Random(1).randbytes(1 << 20)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.context.journal.drain()
        sums = array.member_set.sums
        assert sums is not None
        code = array.context.code
        role, at = array.context.position(Stripe(0), CellIndex(code.data_count))
        members[role].memory[at + 7] ^= 1
        sums.replace(role, at, bytes(members[role].memory[at : at + PAGE]))
        before = [bytes(member.memory) for member in members]
        status = await array.jobs.wait(await array.start_scrub(repair=False))
        assert (status["mismatches"], status["uncorrected"]) == (1, 1)
        assert [bytes(member.memory) for member in members] == before
        status = await array.jobs.wait(await array.start_scrub(repair=True))
        assert (status["mismatches"], status["repaired"], status["assumed"]) == (1, 1, 0)
        await parity_holds(array)
        assert await array.read(0, len(content)) == content


@pytest.mark.parametrize("journal", ["none", "partial", "full"])
@pytest.mark.parametrize("zeroed", [False, True])
async def test_a_write_beside_a_page_that_nothing_gives_back_costs_no_other(
    journal: str, zeroed: bool
) -> None:
    """Two pages of a row have rotted; one is written, and the other one stays as it is."""
    members = await ram_array("raid5", 4, 4 << 20, chunk_bytes=CHUNK, sums=True)
    content = bytearray(random.Random(1).randbytes(1 << 20))
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.write(0, bytes(content))
        await array.context.journal.drain()
        cells = [array.context.position(Stripe(0), CellIndex(cell)) for cell in range(2)]
        for role, at in cells:
            members[role].memory[at + 7] ^= 1
        role, at = cells[1]
        if zeroed:
            members[role].memory[at : at + PAGE] = bytes(PAGE)
        rotten = bytes(members[role].memory[at : at + PAGE])
        content[:PAGE] = bytes(range(256)) * 16
        with pytest.raises(RaidxError):
            await array.read(0, PAGE)
        await array.write(0, bytes(content[:PAGE]))
    for _ in range(2):
        async with open_array(members) as array:
            assert await array.read(0, CHUNK) == content[:CHUNK]
            with pytest.raises(RaidxError):
                await array.read(CHUNK, PAGE)
            rest = len(content) - CHUNK - PAGE
            assert await array.read(CHUNK + PAGE, rest) == content[CHUNK + PAGE :]
            await array.jobs.wait(await array.start_scrub(repair=True))
            assert bytes(members[role].memory[at : at + PAGE]) == rotten
    content[CHUNK : CHUNK + PAGE] = bytes(range(256)) * 16
    async with open_array(members) as array:
        await array.write(CHUNK, bytes(content[CHUNK : CHUNK + PAGE]))
        assert await array.read(0, len(content)) == content
        await parity_holds(array)


@pytest.mark.parametrize(("layout", "width"), [("raid0", 2), ("raid1", 2), ("raid5", 3)])
async def test_a_page_that_is_written_again_and_again_is_never_taken_for_rot(
    layout: str, width: int
) -> None:
    members: list[Member] = [
        model_member(RamMember(4 << 20, name=f"d{n}"), "hdd", seed=n) for n in range(width)
    ]
    await create_array(members, layout, name="slow", now_s=0, chunk_bytes=CHUNK, sums=True)
    async with open_array(members) as array:
        await array.set("journal", "none")
        await array.write(0, bytes(CHUNK))
        versions = {bytes(PAGE)}
        writing = 2

        async def write(seed: int) -> None:
            nonlocal writing
            rng = random.Random(seed)
            for _ in range(150):
                content = rng.randbytes(PAGE)
                versions.add(content)
                await array.write(0, content)
            writing -= 1

        async def read(seed: int) -> None:
            rng = random.Random(seed)
            while writing:
                assert bytes(await array.read(0, PAGE)) in versions
                await trio.sleep(rng.random() / 200)

        async with trio.open_nursery() as nursery:
            for seed in range(2):
                nursery.start_soon(write, seed)
            for seed in range(4):
                nursery.start_soon(read, 10 + seed)
        sums = array.member_set.sums
        assert sums is not None
        assert (sums.misfits, sums.healed, sums.wrong_sums) == (0, 0, 0)


async def test_what_is_discarded_has_no_sums() -> None:
    members = await ram_array("raid5", 4, 4 << 20, chunk_bytes=CHUNK, sums=True)
    async with open_array(members) as array:
        await array.write(0, random.Random(1).randbytes(12 * CHUNK))
        await array.discard(3 * CHUNK, 6 * CHUNK)  # stripes 1 and 2
        context, sums = array.context, array.member_set.sums
        assert sums is not None
        for stripe in range(4):
            for cell in range(4):
                role, at = context.position(Stripe(stripe), CellIndex(cell))
                assert sums.lacks(role, at, PAGE) == (stripe in (1, 2))


async def test_many_misfits_of_one_stripe_do_not_stop_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A code with many rows has millions of choices of pages whose sums may be wrong."""
    members = await ram_array("xcode", 7, 4 << 20, chunk_bytes=CHUNK, sums=True)
    async with open_array(members) as array:
        await array.write(0, random.Random(1).randbytes(1 << 20))
        await array.context.journal.drain()
        for cell in range(len(array.context.code.cells)):
            role, at = array.context.position(Stripe(0), CellIndex(cell))
            members[role].memory[at + 7] ^= 1
        tried, solved_by = 0, Mender._solved_by

        async def counted(*args: Any) -> Any:
            nonlocal tried
            tried += 1
            assert tried < 40 * CHOICES_MAX, "each read of it may try them"
            return await solved_by(*args)

        monkeypatch.setattr(Mender, "_solved_by", counted)
        with pytest.raises(RaidxError):
            await array.read(0, PAGE)
        assert tried
