"""A sector that cannot be read is mended in place; it does not cost a whole member."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import UnrecoverableError
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Stripe
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.unreadable import PAGE_BYTES
from tests.support.arrays import parity_holds
from tests.support.load import eventually
from tests.support.spy import SpyRig, fill, noise, placed, spying, state_of

CHUNK = 16384  # four pages: what is lost, and what lies beside it
PACE = pytest.mark.parametrize("slow", [False, True], ids=["at-once", "queued"])
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width"),
    [("raid1", 2), ("raid4", 3), ("raid5", 4), ("rdp", 4), ("raidx-copy", 3), ("raidx-parity", 5)],
)


def place_of(rig: SpyRig, chunk: int) -> tuple[FaultMember, int, int]:
    """Return member, role and byte offset of logical *chunk*."""
    context = rig.array.context
    role, position = context.position(*context.layout.locate(chunk))
    return rig.members[role], role, position


def lose_page(rig: SpyRig, chunk: int, page: int = 1) -> int:
    """Make a sector in *page* of logical *chunk* unreadable; return its role."""
    member, role, position = place_of(rig, chunk)
    member.lose_sectors(position + page * PAGE_BYTES + 3 * SECTOR_BYTES)
    return role


def lose_parity(rig: SpyRig, stripe: int, page: int = 1) -> int:
    """Make a sector of the first parity of *stripe* unreadable; return its role."""
    context = rig.array.context
    role, position = context.position(Stripe(stripe), CellIndex(context.code.data_count))
    rig.members[role].lose_sectors(position + page * PAGE_BYTES)
    return role


async def mended(rig: SpyRig) -> None:
    """Wait until every unreadable place is mended."""
    with trio.fail_after(600):  # virtual
        while rig.array.member_set.unreadable or any(  # noqa: ASYNC110
            m.unreadable for m in rig.members
        ):
            await trio.sleep(0.1)


async def all_active(rig: SpyRig) -> None:
    """Check that no member was failed, that all is right, and that every chain holds."""
    assert {r.state for r in rig.array.member_set.config.members} == {"active"}
    await rig.compare()
    await parity_holds(rig.array)


@PACE
@LAYOUTS
async def test_a_latent_error_is_read_around_and_mended(
    layout: str, width: int, slow: bool
) -> None:
    rig = await placed(layout, width, chunk_bytes=CHUNK, slow=slow)
    lose_page(rig, 5)
    assert await rig.get(5 * CHUNK, CHUNK) == rig.model[5 * CHUNK : 6 * CHUNK]
    await mended(rig)
    await all_active(rig)
    await rig.in_place()
    assert await rig.get(5 * CHUNK, CHUNK) == rig.model[5 * CHUNK : 6 * CHUNK]


@pytest.mark.parametrize("mode", ["none", "partial", "full"])
async def test_it_is_mended_in_every_journal_mode_with_newer_content_in_the_log(mode: str) -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, journal=mode)
    role = lose_page(rig, 4)
    await rig.put(4 * CHUNK + PAGE_BYTES + 512, noise(512, 1))  # a part of the page
    assert await rig.get(4 * CHUNK, CHUNK) == rig.model[4 * CHUNK : 5 * CHUNK]
    await rig.in_place()
    await mended(rig)
    assert state_of(rig, role) == "active"
    await all_active(rig)


@PACE
async def test_a_write_that_must_read_it_first_mends_it(slow: bool) -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, slow=slow)
    await rig.array.set("parity.policy", "rmw")
    lose_page(rig, 7)
    lose_parity(rig, 0)
    await rig.put(7 * CHUNK + PAGE_BYTES + 3 * SECTOR_BYTES, noise(100, 1))
    await rig.put(PAGE_BYTES + 5, noise(100, 2))
    await rig.in_place()
    await mended(rig)
    await all_active(rig)


@PACE
@pytest.mark.parametrize("layout", ["raid5", "rdp"])
@pytest.mark.parametrize("in_parity", [False, True], ids=["data", "parity"])
async def test_parity_at_the_checkpoint_is_computed_around_it(
    layout: str, in_parity: bool, slow: bool
) -> None:
    rig = await placed(layout, 6, chunk_bytes=CHUNK, slow=slow)
    journal = rig.array.context.journal
    for number in (7, 30):
        await rig.put(number * CHUNK + PAGE_BYTES + 3 * SECTOR_BYTES, noise(100, number))
        stripe = rig.array.context.layout.locate(number)[0]
        assert stripe in journal.unsettled
        if in_parity:
            lose_parity(rig, stripe)
        else:
            lose_page(rig, number)
    await rig.in_place()
    await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
    await mended(rig)
    await all_active(rig)


async def test_a_scrub_finds_what_nobody_reads() -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK)
    for stripe in range(3):
        lose_parity(rig, stripe, page=stripe)
    await parity_holds(rig.array)
    assert not any(member.unreadable for member in rig.members)
    await all_active(rig)


async def test_a_member_that_cannot_write_the_place_again_is_failed() -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK)
    member, role, position = place_of(rig, 5)
    member.error(("read",), offset_bytes=position, length_bytes=512)  # whatever is written
    assert await rig.get(5 * CHUNK, 512) == rig.model[5 * CHUNK : 5 * CHUNK + 512]
    await eventually(lambda: state_of(rig, role) != "active", 600, 0.1)
    assert not rig.array.member_set.unreadable
    await rig.compare()


async def test_a_member_with_too_many_errors_within_an_hour_is_failed() -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK)
    await rig.array.set("errors.max", "2")
    chunks = [c for c in range(30) if place_of(rig, c)[1] == 1]
    for hour in range(3):  # two in each hour are forgiven
        for chunk in chunks[2 * hour : 2 * hour + 2]:
            lose_page(rig, chunk)
            await rig.get(chunk * CHUNK, CHUNK)
            await mended(rig)
        await trio.sleep(3601)
    assert state_of(rig, 1) == "active"
    for chunk in chunks[:3]:
        lose_page(rig, chunk)
        await rig.get(chunk * CHUNK, CHUNK)
    assert state_of(rig, 1) == "failed"
    await rig.compare()


# -- degraded: nothing gives it back -------------------------------------------------------------


async def test_random_latent_errors_under_load_lose_nothing() -> None:
    for seed in range(3):
        draw = random.Random(seed)
        async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=12, slow=bool(seed % 2)) as rig:
            await fill(rig)
            await rig.array.set("errors.max", "1000")
            chunks = len(rig.model) // CHUNK
            for _ in range(20):
                if not rig.array.member_set.unreadable:  # one at a time can always be mended
                    await rig.in_place()
                    if draw.random() < 0.5:
                        lose_page(rig, draw.randrange(chunks), draw.randrange(4))
                    else:
                        lose_parity(rig, draw.randrange(12), draw.randrange(4))
                length = draw.choice((100, 512, 4096, CHUNK, 5 * CHUNK))
                at = draw.randrange(len(rig.model) - length)
                if draw.random() < 0.5:
                    await rig.put(at, noise(length, draw.randrange(1 << 30)))
                else:
                    assert await rig.get(at, length) == rig.model[at : at + length]
                await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
            await mended(rig)
            await all_active(rig)


async def test_a_read_only_array_reads_around_and_writes_nothing() -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK)
    member, _, position = place_of(rig, 5)
    model = bytes(rig.model)
    members = list(rig.members)
    await rig.close()
    member.lose_sectors(position)
    async with open_array(members, read_only=True) as array:
        assert bytes(await array.read(5 * CHUNK, CHUNK)) == model[5 * CHUNK : 6 * CHUNK]
    assert member.unreadable == 1
    await rig.open()
    await rig.compare()
    await mended(rig)


async def test_what_parity_at_the_checkpoint_gives_up_does_not_come_back() -> None:
    """Else a member that can be read again brings content that the parity does not count."""
    rig = await placed("raid5", 4, chunk_bytes=CHUNK)
    new, given_up = 6, 8  # chunks of one stripe
    stripe, _ = rig.array.context.layout.locate(Chunk(new))
    await rig.put(new * CHUNK + PAGE_BYTES, noise(SECTOR_BYTES))
    assert stripe in rig.array.context.journal.unsettled
    await rig.array.fail_disk(place_of(rig, new)[1])
    member, _, position = place_of(rig, given_up)
    fault = member.error(("read",), offset_bytes=position, length_bytes=CHUNK)
    await rig.array.context.journal.place()
    fault.lift()  # a bad cable, say
    await mended(rig)
    assert list(rig.array.context.bad_chunks) == [given_up]
    with pytest.raises(UnrecoverableError):
        await rig.get(given_up * CHUNK, CHUNK)
    assert await rig.get(new * CHUNK, CHUNK) == rig.model[new * CHUNK :][:CHUNK]
    await rig.put(given_up * CHUNK, noise(CHUNK))
    await rig.compare()
