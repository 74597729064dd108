"""Sums of members that are absent: they say what their pages must be when they are given back."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import ArrayFailedError, RaidxError, UnrecoverableError
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, parity_holds, ram_array
from tests.support.load import eventually

CHUNK = 16 << 10
PAGE = 4096
SIZE = 1 << 20
CHAINED = [("raid5", 4), ("rdp", 6), ("upc", 6)]
REDUNDANT = [*CHAINED, ("raid1", 2)]


async def with_sums(layout: str, width: int) -> list[RamMember]:
    return await ram_array(layout, width, 4 << 20, chunk_bytes=CHUNK, sums=True)


def spare() -> RamMember:
    return RamMember(4 << 20, name="spare")


def forget(array: Array, stripe: int, cell: int, page: int = 0) -> tuple[Role, int]:
    """Take a page its sum, as if all copies of its table had been lost; return its place."""
    sums = array.member_set.sums
    assert sums is not None
    role, begin = array.context.position(Stripe(stripe), CellIndex(cell))
    at = begin + page * PAGE
    sums.tables.memory.views[role][sums.page_at(role, at)[1]] = 0
    return role, at


def where(array: Array, at: int) -> tuple[Role, int]:
    """Return on which role byte *at* of the image lies, the first one of a chunk, and where."""
    return array.context.position(*array.context.layout.locate(at // CHUNK))


def calm(array: Array) -> bool:
    sums = array.member_set.sums
    assert sums is not None
    return (sums.misfits, sums.wrong_sums) == (0, 0) and not sums.suspects


@pytest.mark.parametrize("journal", ["partial", "full", "none"])
@pytest.mark.parametrize(("layout", "width"), REDUNDANT)
async def test_what_changes_while_a_member_is_absent_is_no_contradiction(
    layout: str, width: int, journal: str
) -> None:
    """It fails, is written around, returns or is replaced; all pages have sums that fit."""
    rng = random.Random(f"{layout} {journal}")
    model = bytearray(SIZE)
    members = await with_sums(layout, width)
    for role in range(2):
        async with open_array(members) as array:
            await array.set("journal", journal)
            for _ in range(10):
                await _change(array, rng, model)
            await array.fail_disk(role)
        others = [member for number, member in enumerate(members) if number != role]
        async with open_array(others, start_degraded=True) as array:
            for _ in range(30):
                await _change(array, rng, model)
            assert calm(array)
        if role:
            members[role] = spare()
        async with open_array(others, start_degraded=True) as array:
            for _ in range(10):
                await _change(array, rng, model)
            await array.replace_disk(role, members[role])
            await jobs_ended(array)
            assert calm(array)
            for at in range(0, SIZE, CHUNK):
                assert await array.read(at, CHUNK) == model[at : at + CHUNK]
            await parity_holds(array)
            await jobs_ended(array)
            await array.context.journal.drain()
            await _all_have_sums(array)


async def _change(array: Array, rng: random.Random, model: bytearray) -> None:
    length = rng.choice([1, 3000, PAGE, PAGE, CHUNK, 200_000])
    at = rng.randrange(SIZE - length)
    if rng.random() < 0.5:
        at -= at % PAGE
    if rng.random() < 0.1:
        await array.discard(0, 8 * CHUNK)
        model[: 8 * CHUNK] = bytes(8 * CHUNK)
    content = rng.randbytes(length)
    await array.write(at, content)
    model[at : at + length] = content
    at = rng.randrange(SIZE - 5000)
    assert await array.read(at, 5000) == model[at : at + 5000]


async def _all_have_sums(array: Array) -> None:
    context, sums = array.context, array.member_set.sums
    assert sums is not None
    for stripe in range(context.layout.stripes):
        for cell in range(len(context.code.cells)):
            if not context.unwritten_cells(Stripe(stripe)) >> cell & 1:
                role, at = context.position(Stripe(stripe), CellIndex(cell))
                assert not sums.lacks(role, at, CHUNK)


async def test_a_survivor_that_lies_without_a_sum_is_no_reason_to_read_wrong_bytes() -> None:
    """The parity has rotted, and nothing but the sum of the absent page says so."""
    members = await with_sums("raid5", 4)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.fail_disk(0)
        new = random.Random(2).randbytes(PAGE)
        place = next(at for at in range(0, SIZE, CHUNK) if where(array, at)[0] == 0)
        await array.write(place, new)
        content = content[:place] + new + content[place + PAGE :]
        await array.context.journal.drain()
        role, at = forget(array, place // CHUNK // 3, 3)
        members[role].memory[at] ^= 1
        with pytest.raises(RaidxError):
            await array.read(place, PAGE)
        assert await array.read(place + PAGE, CHUNK) == content[place + PAGE :][:CHUNK]
        await array.replace_disk(0, spare())
        await jobs_ended(array)
        assert array.member_set.sums is not None
        assert array.member_set.sums.lacks(*where(array, place), PAGE)
        with pytest.raises(RaidxError):
            await array.read(place, PAGE)
        for at in range(0, SIZE, CHUNK):
            if at != place:
                assert await array.read(at, CHUNK) == content[at : at + CHUNK]
        await array.write(place, content[place : place + CHUNK])
        assert await array.read(place, CHUNK) == content[place : place + CHUNK]
        await parity_holds(array)


@pytest.mark.parametrize("layout", ["rdp", "upc"])
async def test_survivors_that_have_no_sum_are_left_out_one_after_the_other(layout: str) -> None:
    members = await with_sums(layout, 6)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.fail_disk(0)
        await array.context.journal.drain()
        context = array.context
        for stripe in range(4):
            cell = next(c for c in range(context.code.data_count, len(context.code.cells)))
            if context.position(Stripe(stripe), CellIndex(cell))[0] != 0:
                role, at = forget(array, stripe, cell)
                members[role].memory[at] ^= 1
        for at in range(0, SIZE, CHUNK):
            assert await array.read(at, CHUNK) == content[at : at + CHUNK]
        await array.replace_disk(0, spare())
        await jobs_ended(array)
        assert not array.context.bad_chunks
        for at in range(0, SIZE, CHUNK):
            assert await array.read(at, CHUNK) == content[at : at + CHUNK]


async def test_a_member_that_returns_keeps_a_page_that_the_others_do_not_give_back() -> None:
    members = await with_sums("raid5", 4)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.flush()
        await array.fail_disk(0)
    async with open_array(members[1:], start_degraded=True) as array:
        place = next(at for at in range(0, 12 * CHUNK, CHUNK) if where(array, at)[0] == 0)
        await array.write(place, content[place : place + PAGE])  # so that it is caught up there
        await array.context.journal.drain()
        role, at = forget(array, place // CHUNK // 3, 3, 1)
        members[role].memory[at] ^= 1
        answer = await array.replace_disk(0, members[0])
        assert answer["catches_up"]
        await jobs_ended(array)
        assert not array.context.bad_chunks
        for at in range(0, SIZE, CHUNK):
            assert await array.read(at, CHUNK) == content[at : at + CHUNK]


@pytest.mark.parametrize(
    ("layout", "width", "rotten"),
    [("raid1", 2, "parity"), *((*each, what) for each in CHAINED for what in ("data", "parity"))],
)
async def test_a_page_that_only_a_returned_member_gives_back_is_healed(
    layout: str, width: int, rotten: str
) -> None:
    """As many members as may be lost are absent, and a page of another one rots meanwhile."""
    members = await with_sums(layout, width)
    content = bytearray(random.Random(1).randbytes(SIZE))
    async with open_array(members) as array:
        await array.write(0, content)
        await array.flush()
        context = array.context
        code, away = context.code, range(context.code.tolerance)
        for role in away:
            await array.fail_disk(role)
        stripe = next(
            Stripe(stripe)
            for stripe in range(context.layout.stripes)
            if not context.unwritten_cells(Stripe(stripe)) & code.data_mask
            and any(context.position(Stripe(stripe), CellIndex(0))[0] == role for role in away)
        )
        cells = (
            range(code.data_count) if rotten == "data" else range(code.data_count, len(code.cells))
        )
        places = [context.position(stripe, CellIndex(cell)) for cell in cells]
        role, begin = next(place for place in places if place[0] not in away)
        at = context.layout.logical(stripe, CellIndex(0)) * CHUNK
        new = random.Random(2).randbytes(PAGE)
        await array.write(at, new)  # so that the stripe is visited; the rotten page is another one
        content[at : at + PAGE] = new
        await array.context.journal.drain()
        members[role].memory[begin + PAGE] ^= 1
        with suppress(RaidxError):
            await array.read(at, CHUNK)
        for back in away:
            assert (await array.replace_disk(back, members[back]))["catches_up"]
            await jobs_ended(array)
        assert not array.context.bad_chunks
        for at in range(0, SIZE, CHUNK):
            assert await array.read(at, CHUNK) == content[at : at + CHUNK]
        await parity_holds(array)


@pytest.mark.parametrize(("layout", "width"), REDUNDANT)
async def test_a_member_is_not_taken_out_while_it_alone_gives_back_a_page(
    layout: str, width: int
) -> None:
    members = await with_sums(layout, width)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.flush()
        spared = array.context.code.tolerance - 1
        for role in range(spared):
            await array.fail_disk(role)
        place = next(at for at in range(0, SIZE, CHUNK) if where(array, at)[0] >= spared)
        role, at = where(array, place)
        last = width - 1 if role != width - 1 else width - 2
        members[role].memory[at] ^= 1
        unreadable = array.member_set.unreadable
        mender, unreadable.mender = unreadable.mender, None  # it has not come to it yet
        await array.read(place, PAGE)
        with pytest.raises(ArrayFailedError, match="only it gives them back"):
            await array.fail_disk(last)
        unreadable.mender = mender
        await array.jobs.wait(await array.start_scrub(repair=True))
        await array.fail_disk(last)
        for at in range(0, SIZE, CHUNK):
            assert await array.read(at, CHUNK) == content[at : at + CHUNK]


async def test_what_is_discarded_while_a_member_is_absent_has_no_sums() -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        await array.write(0, random.Random(1).randbytes(12 * CHUNK))
        await array.fail_disk(0)
        await array.discard(3 * CHUNK, 6 * CHUNK)  # stripes 1 and 2
        sums = array.member_set.sums
        assert sums is not None
        for at in range(0, 12 * CHUNK, CHUNK):
            role, place = where(array, at)
            assert sums.lacks(role, place, PAGE) == (3 * CHUNK <= at < 9 * CHUNK)


@pytest.mark.parametrize(("layout", "width"), [("rdp", 6), ("upc", 6), ("evenodd", 7)])
async def test_two_parities_say_which_page_without_a_sum_is_wrong(layout: str, width: int) -> None:
    """Others of the stripe have sums, but not so many that the code gives back the rest."""
    members = await with_sums(layout, width)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.context.journal.drain()
        for cell in range(1, len(array.context.code.cells)):
            forget(array, 0, cell)
            forget(array, 0, cell, 2)
        role, at = where(array, CHUNK)
        for page in (0, 2):
            members[role].memory[at + page * PAGE + 9] ^= 1
        result = await array.jobs.wait(await array.start_scrub(repair=True))
        assert (result["state"], result["mismatches"], result["repaired"]) == ("done", 1, 1)
        for at in range(0, SIZE, CHUNK):
            assert await array.read(at, CHUNK) == content[at : at + CHUNK]
        await parity_holds(array)


@pytest.mark.parametrize("journal", ["partial", "none"])
async def test_a_part_of_a_page_without_a_sum_is_written_beside_what_the_code_gives_back(
    journal: str,
) -> None:
    members = await with_sums("raid5", 4)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.write(0, content)
        await array.context.journal.drain()
        role, at = forget(array, 0, 1)
        members[role].memory[at + 9] ^= 1
        await array.write(CHUNK + 100, b"new")
        content = content[: CHUNK + 100] + b"new" + content[CHUNK + 103 :]
        assert await array.read(0, 3 * CHUNK) == content[: 3 * CHUNK]
        await array.context.journal.drain()
        await _all_have_sums(array)
        await parity_holds(array)


async def test_a_checkpoint_between_two_records_of_a_request_gives_no_sum_to_what_is_unverified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = await with_sums("raid5", 4)
    async with open_array(members) as array:
        await array.set("journal", "full")
        content = random.Random(1).randbytes(array.context.journal.capacity)
        await array.write(0, content)
        journal = array.context.journal
        await journal.drain()
        role, at = forget(array, 0, 0)
        gone = array.context.position(Stripe(0), CellIndex(1))[0]
        await array.fail_disk(gone)  # so that all of it is logged with its parity
        forget(array, 0, 2)
        commit, records = journal.commit, 0

        async def placed(*args: Any, **options: Any) -> bool:
            nonlocal records
            records += 1
            done = await commit(*args, **options)
            await journal.place()
            return done

        monkeypatch.setattr(journal, "commit", placed)
        await array.write(100, content[100 : len(content) // 2])
        assert records > 1
        assert array.member_set.sums is not None
        assert array.member_set.sums.lacks(role, at, PAGE)
        assert await array.read(0, len(content)) == content


@pytest.mark.parametrize("journal", ["partial", "full", "none"])
async def test_nothing_that_was_not_verified_gets_a_sum(journal: str) -> None:
    """Neither the page of which a part is written, nor its neighbour, has one: the code is mute."""
    members = await with_sums("raid5", 4)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.write(0, content)
        await array.context.journal.drain()
        sums = array.member_set.sums
        assert sums is not None
        role, at = forget(array, 0, 1)
        forget(array, 0, 2)
        for _ in range(2):
            await array.write(CHUNK + 100, b"new")
            await array.context.journal.drain()
            assert sums.lacks(role, at, PAGE)
            parity = array.context.position(Stripe(0), CellIndex(3))
            assert sums.lacks(*parity, PAGE)
            assert not sums.lacks(parity[0], parity[1] + PAGE, PAGE)
        content = content[: CHUNK + 100] + b"new" + content[CHUNK + 103 :]
        assert await array.read(0, 3 * CHUNK) == content[: 3 * CHUNK]
        await parity_holds(array)  # a scrub, which gives them sums
        await _all_have_sums(array)


@pytest.mark.parametrize("job", ["live", "piggyback", "restripe"])
@pytest.mark.parametrize("journal", ["partial", "full", "none"])
async def test_jobs_list_a_page_that_contradicts_its_sum_and_go_on(job: str, journal: str) -> None:
    """A survivor has rotted, and has no sum, while another member is absent."""
    members = await with_sums("raid5" if job != "piggyback" else "raid4", 4)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.write(0, content)
        await array.context.journal.drain()
        if job == "restripe":
            await array.restripe([spare()], "raid4", {})
        else:
            await array.grow([spare()], job if job == "piggyback" else None)
        (running,) = array.jobs.running()
        running.pause()
        await array.fail_disk(1)
        layout, growth, gone = array.context.layout, array.context.growth, list[int]()
        for at in range(0, SIZE, CHUNK):
            source = layout.locate(at // CHUNK)
            stays = growth and growth.layout.place_in(*source, after=True) == layout.place(*source)
            if layout.place(*source)[0] == 1 and not stays:
                gone.append(at)
        lost = gone[len(gone) // 2] + 2 * PAGE
        stripe, cell = layout.locate(lost // CHUNK)
        beside = (layout.locate(at // CHUNK) for at in range(0, SIZE, CHUNK))
        other = next(c for s, c in beside if s == stripe and c != cell)
        role, at = forget(array, stripe, other, 2)
        members[role].memory[at] ^= 1
        rotten = layout.logical(stripe, other) * CHUNK + 2 * PAGE
        running.resume()
        with trio.fail_after(60):
            result = await array.jobs.wait(running.job_id)
        assert (result["state"], result["error"]) == ("done", None)
        for place in range(0, SIZE, PAGE):
            if place == lost:
                with pytest.raises(RaidxError):
                    await array.read(place, PAGE)
            elif place != rotten:  # of that nothing says that it is wrong
                assert await array.read(place, PAGE) == content[place : place + PAGE]
        assert array.context.bad_chunks.parts == {lost // CHUNK: 0b0100}
        role, at = where(array, lost - lost % CHUNK)
        sums = array.member_set.sums
        assert sums is not None
        assert sums.lacks(role, at + 2 * PAGE, PAGE)
        assert not sums.lacks(role, at, PAGE)
        await array.write(lost, content[lost : lost + PAGE])
        assert await array.read(lost, PAGE) == content[lost : lost + PAGE]
    async with open_array(array.member_set.present().values(), start_degraded=True) as array:
        assert await array.read(lost, PAGE) == content[lost : lost + PAGE]
        assert not array.context.bad_chunks


async def test_what_was_not_verified_proves_no_sum_wrong() -> None:
    """The same bit has flipped in a page, and in its neighbour without a sum, which is logged."""
    members = await with_sums("raid5", 4)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.set("parity.policy", "rmw")
        await array.write(0, content)
        await array.context.journal.drain()
        sums = array.member_set.sums
        assert sums is not None
        role, at = forget(array, 0, 1)
        forget(array, 0, 3)
        other = forget(array, 0, 2)  # else the parity comes from what has sums
        members[role].memory[at + 9] ^= 1
        await array.write(CHUNK + 100, b"new")  # page and parity are in the log
        sums.fill(*other, bytes(members[other[0]].memory[other[1] :][:PAGE]))
        place = array.context.position(Stripe(0), CellIndex(0))
        members[place[0]].memory[place[1] + 9] ^= 1
        with pytest.raises(UnrecoverableError):
            await array.read(0, PAGE)
        await array.member_set.unreadable.mend((Stripe(0),))
        assert sums.wrong_sums == 0
        assert not sums.fits(*place, bytes(members[place[0]].memory[place[1] :][:PAGE]))


@pytest.mark.parametrize(
    ("layout", "width", "job"),
    [
        (layout, width, job)
        for layout, width in [("raid0", 3), ("raidx-zero", 3), ("raid5", 4), ("raid1", 2)]
        for job in ("replace", "grow", "restripe", "scrub")
        if (layout, job) != ("raidx-zero", "restripe")  # it has none
    ],
)
async def test_jobs_list_pages_that_nothing_gives_back_and_end(
    layout: str, width: int, job: str
) -> None:
    """They misfit on as many members as the layout tolerates losses, and on one more."""
    members = await with_sums(layout, width)
    content = random.Random(1).randbytes(SIZE)
    async with open_array(members) as array:
        await array.write(0, content)
        await array.context.journal.drain()
        context, page = array.context, 2 * PAGE
        for chunk in range(5, SIZE // CHUNK, 12):
            stripe, cell = context.layout.locate(chunk)
            rotten = {context.position(stripe, cell)}
            for other in range(len(context.code.cells)):
                if len(rotten) <= context.code.tolerance:
                    rotten.add(context.position(stripe, CellIndex(other)))
            for role, at in rotten:
                members[role].memory[at + page] ^= 1
        damaged = set()
        for place in range(0, SIZE, PAGE):
            try:
                assert await array.read(place, PAGE) == content[place : place + PAGE]
            except RaidxError:
                damaged.add(place)
        assert damaged
        with trio.fail_after(600):
            if job == "replace":
                await array.replace_disk(where(array, 5 * CHUNK)[0], spare())
            elif job == "grow":
                await array.grow([spare()])
            elif job == "restripe":
                await array.restripe([spare(), spare()], "raid5", {})
            else:
                await array.start_scrub(repair=True)
            await jobs_ended(array)
        for place in range(0, SIZE, PAGE):
            if place in damaged:
                with pytest.raises(RaidxError):
                    await array.read(place, PAGE)
                await array.write(place, content[place : place + PAGE])
            assert await array.read(place, PAGE) == content[place : place + PAGE]
        assert not array.context.bad_chunks


@pytest.mark.parametrize("target", ["rdp", "raid4"])
async def test_pages_that_nothing_gives_back_are_errors_while_a_restripe_is_under_way(
    target: str,
) -> None:
    """The place of a page is that of an unwritten cell of the new layout, too."""
    chunk_bytes, rng = CHUNK // 2, random.Random(5)
    members = await ram_array("raid5", 4, 4 << 20, chunk_bytes=chunk_bytes, sums=True)
    content = rng.randbytes(SIZE)
    damaged = set()
    async with open_array(members) as array:
        await array.write(0, content)
        await array.context.journal.drain()
        for number in range(SIZE // chunk_bytes // 3):
            page = rng.randrange(2) * PAGE
            for cell in rng.sample(range(4), 1 + number % 2):
                role, begin = array.context.position(Stripe(number), CellIndex(cell))
                members[role].memory[begin + page] ^= 1
                if number % 2 and cell < 3:
                    damaged.add((number * 3 + cell) * chunk_bytes + page)
        await array.restripe([spare()] if target == "rdp" else [], target, {})
        (job,) = array.jobs.running()
        await eventually(lambda: job.done_bytes > 0.3 * job.total_bytes > 0, 60, 0.001)
        job.pause()
        for _ in range(2):
            with trio.fail_after(600):
                for place in range(0, SIZE, PAGE):
                    if place in damaged:
                        with pytest.raises(RaidxError):
                            await array.read(place, PAGE)
                    else:
                        assert await array.read(place, PAGE) == content[place : place + PAGE]
            job.resume()
            await jobs_ended(array)
