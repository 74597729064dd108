"""Pages without a sum: what is made of them gets none, or is made of others (law 1 of sums.py).

They have none after a loss of tables, for example. Their bytes may be wrong, and others say so: a
parity that agreed with them, and had a sum, would make them right.
"""

from __future__ import annotations

import random

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.ram import RamMember
from tests.engine.test_sums_absent import CHUNK, PAGE, forget, spare, with_sums
from tests.support.arrays import jobs_ended

SIZE = 1 << 20
JOURNALS = ["partial", "full", "none"]


async def filled(array: Array, journal: str = "partial") -> bytes:
    content = random.Random(1).randbytes(SIZE)
    await array.set("journal", journal)
    await array.write(0, content)
    await array.context.journal.drain()
    return content


def rot(array: Array, members: list[RamMember], cell: int, stripe: int = 0) -> None:
    """Change a byte of the first page of *cell* of *stripe*, and take the page its sum."""
    role, at = forget(array, stripe, cell)
    members[role].memory[at + 9] ^= 1


def lacks(array: Array, cell: int) -> bool:
    assert array.member_set.sums is not None
    place = array.context.position(Stripe(0), CellIndex(cell))
    return array.member_set.sums.lacks(*place, PAGE)


async def scrubbed(array: Array) -> None:
    """Repair all that a scrub finds."""
    job = await array.jobs.wait(await array.start_scrub(repair=True))
    assert job["state"] == "done", job


@pytest.mark.parametrize("policy", ["rcw", "rmw"])
@pytest.mark.parametrize("journal", JOURNALS)
async def test_a_parity_is_not_made_of_a_page_that_may_be_wrong(journal: str, policy: str) -> None:
    """A neighbour is written; whatever the policy is, the old parity still tells the rot."""
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        content = await filled(array, journal)
        await array.set("parity.policy", policy)
        rot(array, members, 1)
        new = random.Random(2).randbytes(PAGE)
        await array.write(0, new)
        await array.context.journal.drain()
        assert not lacks(array, 3)
        await scrubbed(array)
        assert await array.read(0, SIZE) == new + content[PAGE:]


@pytest.mark.parametrize("policy", ["rcw", "rmw"])
@pytest.mark.parametrize("journal", JOURNALS)
async def test_a_parity_made_of_a_parity_that_may_be_wrong_has_no_sum(
    journal: str, policy: str
) -> None:
    """Else a scrub would believe it, and write over a page without a sum that is right."""
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        content = await filled(array, journal)
        await array.set("parity.policy", policy)
        rot(array, members, 3)
        forget(array, 0, 1)
        new = random.Random(2).randbytes(PAGE)
        await array.write(0, new)
        await array.context.journal.drain()
        assert lacks(array, 3)
        await scrubbed(array)
        assert await array.read(0, SIZE) == new + content[PAGE:]


async def test_what_nothing_verified_has_no_sum_after_a_replay() -> None:
    """A part of such a page is written, and the machine stops with it in the log."""
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        content = await filled(array)
        forget(array, 0, 1)
        forget(array, 0, 3)
        await array.member_set.sums.tables.save_all()  # type: ignore[union-attr]
        await array.flush()
        await array.write(CHUNK + 100, b"new")
        await array.flush()
        left = [RamMember(member.size_bytes, name=member.path) for member in members]
        for member, copy in zip(members, left, strict=True):
            copy.memory[:] = member.memory
    async with open_array(left) as array:
        await array.context.journal.drain()
        await array.member_set.sums.load(  # type: ignore[union-attr]
            [(*array.context.position(Stripe(0), CellIndex(cell)), (), CHUNK) for cell in range(4)]
        )
        assert [lacks(array, cell) for cell in range(4)] == [False, True, False, True]
        assert (await array.read(CHUNK, PAGE))[:103] == content[CHUNK : CHUNK + 100] + b"new"


@pytest.mark.parametrize("change", ["live", "restripe"])
async def test_what_is_copied_is_what_the_code_gives_back(change: str) -> None:
    """Where it goes nothing would contradict it. A page of which the code cannot tell is copied."""
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        content = await filled(array)
        for stripe in range(8):
            rot(array, members, stripe % 3, stripe)
        forget(array, 8, 0)
        forget(array, 8, 3)
        if change == "restripe":
            await array.restripe([spare()], "evenodd", {})
        else:
            await array.grow([spare()], parity=change)
        await jobs_ended(array)
        await scrubbed(array)
        assert await array.read(0, SIZE) == content
