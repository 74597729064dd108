"""What a scrub says of pages and their checksums, by member, and that a check writes nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.check import check_members
from raidx_fuse.array.open import open_array
from raidx_fuse.cli.progress import exit_status
from raidx_fuse.cli.status_text import pages_lines
from raidx_fuse.documents import Job
from raidx_fuse.jobs import scrub
from raidx_fuse.jobs.scrub import holds
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import ram_array

CHUNK = 16 << 10
PAGE = 4096
SIZE = 1 << 20
ROLE_0 = 84  # pages of SIZE on role 0 of a raid5 of four


async def written(layout: str, width: int) -> tuple[list[RamMember], bytes]:
    members = await ram_array(layout, width, 4 << 20, chunk_bytes=CHUNK, sums=True)
    content = random.Random(layout).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
    return members, content


async def scrubbed(array: Array, *, repair: bool = False) -> Job:
    """Return what `raidx scrub --check` or --repair finds."""
    return await array.jobs.wait(await array.start_scrub(repair, heals=repair))


def pages_of(job: Job) -> dict[int, tuple[int, int, int, int]]:
    """Return by role how many pages misfit, were healed, are damaged, had no sum."""
    return {
        int(row["role"]): (row["misfits"], row["healed"], row["damaged"], row["without_sums"])
        for row in job["members"]
    }


def rot(members: list[RamMember], array: Array, role: int, *pages: int) -> None:
    for page in pages:
        members[role].memory[array.member_set.data_offset + page * PAGE + 5] ^= 4


@pytest.mark.parametrize(
    ("layout", "width"), [("raid5", 4), ("raid1", 2), ("rdp", 6), ("raidx-parity", 4)]
)
async def test_a_check_names_the_member_and_leaves_its_pages_a_repair_heals_them(
    layout: str, width: int
) -> None:
    members, content = await written(layout, width)
    async with open_array(members) as array:
        if array.tuner is not None:  # what it reads is healed
            await array.set("tuner.enabled", "off")
        rot(members, array, 1, 0, 1, 9)
        rot(members, array, 0, 2)
        data = array.member_set.data_offset
        before = [bytes(member.memory[data:]) for member in members]
        job = await scrubbed(array)
        assert pages_of(job) == {0: (1, 0, 0, 0), 1: (3, 0, 0, 0)}
        assert all(found["located"] for found in job["findings"])
        blamed = {int(each["role"]) for found in job["findings"] for each in found["members"]}
        assert blamed == {0, 1}
        assert exit_status(job) == 3
        await trio.sleep(60)
        assert [bytes(member.memory[data:]) for member in members] == before
        assert not array.member_set.unreadable
        job = await scrubbed(array, repair=True)
        assert pages_of(job) == {0: (1, 1, 0, 0), 1: (3, 3, 0, 0)}
        assert (job["mismatches"], exit_status(job)) == (0, 0)
        assert await array.read(0, SIZE) == content
        assert pages_of(await scrubbed(array)) == {}


async def test_what_a_check_has_found_is_healed_by_the_next_reader() -> None:
    members, content = await written("raid5", 4)
    async with open_array(members) as array:
        rot(members, array, 2, 1)
        await scrubbed(array)
        assert await array.read(0, SIZE) == content
        await trio.sleep(10)
        assert pages_of(await scrubbed(array)) == {}


@pytest.mark.parametrize("repair", [False, True])
async def test_pages_that_nothing_gives_back_are_damaged(repair: bool) -> None:
    members, _ = await written("raid5", 4)
    async with open_array(members) as array:
        for role in (0, 2):
            rot(members, array, role, 3)
        rot(members, array, 3, 7)
        before = [bytes(member.memory[array.member_set.data_offset :]) for member in members]
        job = await scrubbed(array, repair=repair)
        assert pages_of(job) == {0: (1, 0, 1, 0), 2: (1, 0, 1, 0), 3: (1, int(repair), 0, 0)}
        assert exit_status(job) == 3
        found = [bytes(member.memory[array.member_set.data_offset :]) for member in members]
        assert (found[0], found[2]) == (before[0], before[2])
        assert (found[3] != before[3]) == repair


async def test_without_redundancy_and_degraded_pages_are_compared_as_well() -> None:
    members, _ = await written("raid0", 3)
    async with open_array(members) as array:
        rot(members, array, 1, 6)
        job = await scrubbed(array)
        assert (pages_of(job), exit_status(job)) == ({1: (1, 0, 1, 0)}, 3)
    members, _ = await written("rdp", 6)
    async with open_array(members) as array:
        array.member_set.fail(Role(3), "for the test")
        rot(members, array, 1, 6)
        before = bytes(members[1].memory[array.member_set.data_offset :])
        assert pages_of(await scrubbed(array)) == {1: (1, 0, 0, 0)}
        assert bytes(members[1].memory[array.member_set.data_offset :]) == before
        assert pages_of(await scrubbed(array, repair=True)) == {1: (1, 1, 0, 0)}


async def test_pages_without_checksums_are_counted_until_they_have_one() -> None:
    members, _ = await written("raid5", 4)
    async with open_array(members) as array:
        regions = array.member_set.config.regions
    for role in (1, 2):  # both copies of the sums of role 0
        members[role].memory[regions.sums.offset : regions.sums.end] = bytes(regions.sums.length)
    checked = await check_members(members)
    assert [row["without_sums"] for row in checked["scrubbed"] if row["role"] == 0] == [ROLE_0]
    async with open_array(members) as array:
        assert pages_of(await scrubbed(array))[0] == (0, 0, 0, ROLE_0)
        assert pages_of(await scrubbed(array)) == {}


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid1", 2), ("rdp", 6), ("upc", 6)])
async def test_chains_are_checked_by_the_sums_of_their_pages(
    layout: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[bool] = []

    def counted(*arguments: Any) -> bool:
        computed.append(holds(*arguments))
        return computed[-1]

    monkeypatch.setattr(scrub, "holds", counted)
    members, content = await written(layout, width)
    async with open_array(members) as array:
        await array.write(SIZE, content[:PAGE])  # a stripe in part
        assert pages_of(await scrubbed(array)) == {}
        assert computed  # what is in the log has no sums yet
        computed.clear()
        await array.context.journal.drain()
        assert pages_of(await scrubbed(array)) == {}
        assert not computed
        # A parity that is wrong together with its sum contradicts those of the data.
        code, sums = array.context.code, array.member_set.sums
        assert sums is not None
        role, at = array.context.position(Stripe(1), CellIndex(code.data_count))
        wrong = bytearray(members[role].memory[at : at + PAGE])
        wrong[7] ^= 1
        members[role].memory[at : at + PAGE] = wrong
        sums.note(role, at, [wrong], PAGE)
        job = await scrubbed(array)
        assert (job["mismatches"], job["findings"][0]["stripe"]) == (1, 1)
        assert False in computed


def test_the_table_has_a_line_for_each_member_with_something() -> None:
    assert pages_lines([{"role": 0, "wrong": 1, "repaired": 0, "misfits": 0}]) == []
    assert pages_lines(
        [{"role": 12, "wrong": 0, "repaired": 0, "misfits": 6, "healed": 5, "without_sums": 3}]
    ) == [
        "member  pages that misfit  healed  lost  without checksum",
        "    12                  6       5     0                 3",
    ]
