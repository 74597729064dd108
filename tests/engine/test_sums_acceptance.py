"""What checksums are for: a member full of noise, or of the past, costs no byte and no member."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.registry import LAYOUTS, allowed_widths, code_for
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, parity_holds, ram_array

PAGE = 4096
CHUNK = 4 * PAGE
MEMBER_BYTES = 6 << 20
SIZE = 1 << 20
WIDTHS = {"raid0": 3, "raid1": 3, "raid4": 4, "raid5": 4}
WIDTHS |= {name: 5 for name, layout in LAYOUTS.items() if layout.bundled}
COPIES_3 = "raidx-copy of 3"  # tolerates one loss more
MADE = [*(name for name, layout in LAYOUTS.items() if layout.build or layout.bundled), COPIES_3]


def params_of(layout: str) -> dict[str, int]:
    return {"length": 3} if layout == COPIES_3 else {}


def tolerance_of(layout: str) -> int:
    name, width = layout.split()[0], width_of(layout)
    return code_for(name, width, params_of(layout)).tolerance


def width_of(layout: str) -> int:
    name = layout.split()[0]
    return WIDTHS.get(name) or allowed_widths(name)[1]


REDUNDANT = [layout for layout in MADE if tolerance_of(layout)]


async def filled(layout: str) -> tuple[list[RamMember], bytes]:
    """Return members of an array with checksums, and its first SIZE bytes: all that is written."""
    options = {"chunk_bytes": CHUNK, "sums": True}
    name, width = layout.split()[0], width_of(layout)
    members = await ram_array(name, width, MEMBER_BYTES, params=params_of(layout), **options)
    content = random.Random(layout).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
    return members, content


def live_pages(array: Array, role: Role) -> list[int]:
    """Return where the written pages of *role* lie on its member, in order."""
    context, found = array.context, list[int]()
    for stripe in context.written.written_stripes(context.layout, 0, context.layout.stripes):
        unwritten = context.unwritten_cells(stripe)
        for cell in range(len(context.code.cells)):
            holder, at = context.position(stripe, cell)
            if holder == role and not unwritten >> cell & 1:
                found += range(at, at + CHUNK, PAGE)
    return sorted(found)


def spoil(array: Array, member: RamMember, role: Role, seed: int) -> list[int]:
    """Write noise over a tenth of the pages of *role*, half of it in a row; return where."""
    rng, pages = random.Random(seed), live_pages(array, role)
    count = max(2, len(pages) // 10)
    chosen = {*pages[: count // 2], *rng.sample(pages, count - count // 2)}
    for at in chosen:
        member.memory[at : at + PAGE] = rng.randbytes(PAGE)
    return sorted(chosen)


async def read_all(array: Array, content: bytes, seed: int) -> None:
    """Read *content* in random requests of any size and alignment, and compare."""
    rng = random.Random(seed)
    for _ in range(60):
        length = rng.choice((512, PAGE, 3 * PAGE, CHUNK, 100_000))
        at = rng.randrange(SIZE - length)
        assert await array.read(at, length) == content[at : at + length]
    for at in range(0, SIZE, CHUNK):
        assert await array.read(at, CHUNK) == content[at : at + CHUNK]


async def healed(array: Array, content: bytes, seed: int) -> None:
    """Check that readers get *content*, and that nothing is wrong after they and a scrub were."""
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(read_all, array, content, seed + number)
    await array.jobs.wait(await array.start_scrub(repair=False))
    with trio.fail_after(600):
        while array.member_set.unreadable:  # noqa: ASYNC110  # mending tells nobody
            await trio.sleep(0.1)
    await parity_holds(array)
    sums = array.member_set.sums
    assert sums is not None
    assert not sums.suspects
    assert not sums.wrong_sums


def restored(members: list[RamMember], before: list[bytes], array: Array) -> bool:
    """Return whether the written pages of *members* are as they were *before*."""
    return all(
        bytes(member.memory[at : at + PAGE]) == before[role][at : at + PAGE]
        for role, member in enumerate(members)
        for at in live_pages(array, Role(role))
    )


@pytest.mark.parametrize("away", [False, True], ids=["healthy", "degraded"])
@pytest.mark.parametrize("layout", REDUNDANT)
async def test_noise_over_a_tenth_of_a_member_is_healed(layout: str, away: bool) -> None:
    members, content = await filled(layout)
    before = [bytes(member.memory) for member in members]
    lost = tolerance_of(layout) - 1
    gone = [Role(len(members) - 1 - number) for number in range(lost)] if away else []
    if away and not gone:
        pytest.skip("one member less is one too many")
    async with open_array(members) as array:
        for role in gone:
            await array.fail_disk(role)
        wrong = spoil(array, members[0], Role(0), 7)
        await healed(array, content, 11)
        assert array.member_set.lost == frozenset(gone), "the member stays"
        sums = array.member_set.sums
        assert sums is not None
        assert sums.misfits == sums.healed == len(wrong)
        await array.context.journal.drain()
        assert restored(members, before, array)


@pytest.mark.parametrize("layout", ["raid0", "raidx-zero"])
async def test_without_redundancy_exactly_the_noise_is_an_error(layout: str) -> None:
    members, content = await filled(layout)
    async with open_array(members) as array:
        wrong = set(spoil(array, members[1], Role(1), 7))
        bad = []
        for at in range(0, SIZE, PAGE):
            stripe, cell = array.context.layout.locate(at // CHUNK)
            role, begin = array.context.position(stripe, cell)
            is_wrong = role == 1 and begin + at % CHUNK in wrong
            try:
                assert await array.read(at, PAGE) == content[at : at + PAGE]
                assert not is_wrong
            except RaidxError:
                assert is_wrong
                bad.append(at)
        assert len(bad) == len(wrong)
        for at in bad:
            await array.write(at, content[at : at + PAGE])
        assert await array.read(0, SIZE) == content
        assert not array.member_set.lost
    async with open_array(members) as array:
        assert await array.read(0, SIZE) == content


@pytest.mark.parametrize("layout", ["raid5", "raid1", "rdp", "xcode", "raidx-parity", COPIES_3])
async def test_rot_while_a_member_is_replaced_reaches_nobody(layout: str) -> None:
    members, content = await filled(layout)
    async with open_array(members) as array:
        await array.replace_disk(Role(1), RamMember(MEMBER_BYTES, name="new"))
        spoil(array, members[1], Role(1), 4)  # the one that is copied
        if tolerance_of(layout) > 1:
            spoil(array, members[0], Role(0), 3)
        await jobs_ended(array)
        await healed(array, content, 5)
        assert not array.member_set.lost


@pytest.mark.parametrize("layout", ["rdp", "xcode", "evenodd", "pcode", COPIES_3])
async def test_rot_under_a_rebuild_reaches_nobody(layout: str) -> None:
    members, content = await filled(layout)
    async with open_array(members) as array:
        await array.fail_disk(Role(1))
        spoil(array, members[0], Role(0), 3)
        await array.replace_disk(Role(1), RamMember(MEMBER_BYTES, name="new"))
        await jobs_ended(array)
        await healed(array, content, 5)
        assert not array.member_set.lost


@pytest.mark.parametrize("layout", ["raid5", "raid1", "rdp", "upc", "raidx-parity", "raidx-copy"])
@pytest.mark.parametrize("whole", [False, True], ids=["data", "all"])
async def test_a_copy_of_the_past_is_found_page_by_page(layout: str, whole: bool) -> None:
    """A member's data, or also its checksums, are those of a copy that was made while it ran."""
    members, content = await filled(layout)
    rng = random.Random(9)
    async with open_array(members) as array:
        region = array.member_set.config.regions
        old = bytes(members[0].memory)
        new = bytearray(content)
        for at in range(0, SIZE, 3 * CHUNK):
            new[at : at + CHUNK] = rng.randbytes(CHUNK)
            await array.write(at, new[at : at + CHUNK])
        await array.flush()
        await array.context.journal.drain()
    before = [bytes(member.memory) for member in members]
    parts = [region.data, region.sums] if whole else [region.data]
    for part in parts:
        members[0].memory[part.offset : part.end] = old[part.offset : part.end]
    async with open_array(members) as array:
        await healed(array, bytes(new), 13)
        assert not array.member_set.lost
        sums = array.member_set.sums
        assert sums is not None
        assert sums.healed
        assert restored(members, before, array)
    async with open_array(members) as array:
        await healed(array, bytes(new), 14)
        assert array.member_set.sums is not None
        assert not array.member_set.sums.misfits
