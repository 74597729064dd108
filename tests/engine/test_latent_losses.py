"""Latent sector errors that nothing gives back: members are lost, or there is no redundancy."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.peek import Peek
from raidx_fuse.errors import MemberError, RaidxError, UnrecoverableError
from raidx_fuse.jobs import rebuild, scrub, strips
from raidx_fuse.jobs.replace import Replace
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.unreadable import ASKS_MAX, PAGE_BYTES
from raidx_fuse.store.io_tuples import MemberLostError
from tests.engine.test_latent_errors import (
    CHUNK,
    PACE,
    all_active,
    lose_page,
    lose_parity,
    mended,
    place_of,
)
from tests.support.arrays import parity_holds
from tests.support.load import eventually
from tests.support.spy import (
    SpyRig,
    fill,
    members_from,
    noise,
    placed,
    spied,
    spying,
    state_of,
)


async def degraded(rig: SpyRig) -> tuple[int, int]:
    """Lose a member and a page of another one in one stripe; return (chunk there, lost chunk)."""
    await fill(rig)
    await rig.in_place()
    await trio.sleep(60)  # no region is dirty: a member that leaves lacks nothing
    layout = rig.array.context.layout
    chunk, other = 6, 7  # data of one stripe
    assert layout.locate(chunk)[0] == layout.locate(other)[0]
    lose_page(rig, chunk)
    await rig.array.fail_disk(place_of(rig, other)[1])
    return chunk, other


async def refused(rig: SpyRig, offset: int, length: int = PAGE_BYTES) -> None:
    """Check that a range reads as an error."""
    with pytest.raises(UnrecoverableError):
        await rig.get(offset, length)


@PACE
async def test_a_place_that_nothing_gives_back_is_an_error_and_its_neighbours_are_not(
    slow: bool,
) -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, slow=slow)
    chunk, other = await degraded(rig)
    for lost in (chunk, other):
        await refused(rig, lost * CHUNK + PAGE_BYTES)
        for page in (0, 2, 3):
            at = lost * CHUNK + page * PAGE_BYTES
            assert await rig.get(at, PAGE_BYTES) == rig.model[at : at + PAGE_BYTES]
    status = rig.array.status()
    role, position = rig.array.context.position(*rig.array.context.layout.locate(chunk))
    assert status["unreadable"]["count"] == 1
    assert status["unreadable"]["places"] == [
        {
            "role": role,
            "path": rig.members[role].path,
            "member_offset": position + PAGE_BYTES,
            "length": PAGE_BYTES,
            "image_offset": chunk * CHUNK + PAGE_BYTES,
        }
    ]
    assert status["lost_chunks"] == 0, "the member that was lost may come back"


async def test_it_is_healed_when_the_lost_member_is_back() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    chunk, other = await degraded(rig)
    await refused(rig, chunk * CHUNK + PAGE_BYTES)
    role = place_of(rig, other)[1]
    answer = await rig.array.replace_disk(role, rig.members[role])
    assert answer["catches_up"]
    await rig.array.jobs.wait(answer["job"])
    await mended(rig)
    await all_active(rig)


@pytest.mark.parametrize("mode", ["none", "partial", "full"])
@PACE
async def test_it_is_healed_when_it_is_written(mode: str, slow: bool) -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, slow=slow)
    await rig.array.set("journal", mode)
    chunk, other = await degraded(rig)
    await refused(rig, chunk * CHUNK + PAGE_BYTES)
    await rig.put(chunk * CHUNK + PAGE_BYTES, noise(PAGE_BYTES, 1))
    assert not rig.array.member_set.unreadable
    at = chunk * CHUNK
    assert await rig.get(at, CHUNK) == rig.model[at : at + CHUNK]
    await refused(rig, other * CHUNK + PAGE_BYTES)  # what the old content would have given
    assert rig.array.status()["lost_chunks"] == 1
    await rig.put(other * CHUNK, noise(CHUNK, 2))
    assert rig.array.status()["lost_chunks"] == 0
    await rig.compare()
    role = place_of(rig, other)[1]
    answer = await rig.array.replace_disk(role, rig.new_member())
    await rig.array.jobs.wait(answer["job"])
    await all_active(rig)


async def test_a_rebuild_goes_on_and_lists_the_pages_that_are_lost() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    chunk, other = await degraded(rig)
    parity = next(
        s
        for s in range(4, 12)
        if rig.array.context.position(Stripe(s), CellIndex(3))[0] not in rig.array.member_set.lost
    )
    lose_parity(rig, parity)
    role = place_of(rig, other)[1]
    answer = await rig.array.replace_disk(role, rig.new_member())
    status = await rig.array.jobs.wait(answer["job"])
    assert status["state"] == "done"
    assert state_of(rig, role) == "active"
    layout = rig.array.context.layout
    behind = next(
        layout.logical(Stripe(parity), CellIndex(cell))
        for cell in range(3)
        if layout.place(Stripe(parity), CellIndex(cell))[0] == role
    )
    lost = rig.array.context.bad_chunks
    assert lost.first(10) == sorted({chunk, other, behind})
    for number in lost.first(10):
        assert lost.pages_of(number).bit_count() == 1
        page = lost.pages_of(number).bit_length() - 1
        for inner in range(CHUNK // PAGE_BYTES):
            at = number * CHUNK + inner * PAGE_BYTES
            if inner == page:
                await refused(rig, at)
                await rig.put(at + 512, noise(1024, 1))  # the rest of the page is lost still
                await refused(rig, at)
                await rig.put(at, noise(PAGE_BYTES, number))
            assert await rig.get(at, PAGE_BYTES) == rig.model[at : at + PAGE_BYTES]
    assert not lost
    await all_active(rig)


async def test_without_redundancy_a_write_heals_it() -> None:
    for slow in (False, True):
        async with spying("raid0", 2, chunk_bytes=CHUNK, slow=slow) as rig:
            await fill(rig)
            await rig.in_place()
            lose_page(rig, 5)
            await refused(rig, 5 * CHUNK + PAGE_BYTES)
            at = 5 * CHUNK + 2 * PAGE_BYTES
            assert await rig.get(at, PAGE_BYTES) == rig.model[at : at + PAGE_BYTES]
            await rig.put(5 * CHUNK + PAGE_BYTES, noise(PAGE_BYTES, 1))
            await rig.in_place()
            await rig.compare()
            assert not rig.array.member_set.unreadable


async def test_a_place_that_takes_no_write_either_stays_an_error() -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK)
    member, _, position = place_of(rig, 6)
    bad = position + PAGE_BYTES
    fault = member.error(("read", "write"), offset_bytes=bad, length_bytes=512)
    await rig.array.fail_disk(place_of(rig, 7)[1])
    await refused(rig, 6 * CHUNK + PAGE_BYTES)
    with pytest.raises(RaidxError):
        await rig.put(6 * CHUNK + PAGE_BYTES, noise(PAGE_BYTES, 1))
    await rig.put(9 * CHUNK, noise(CHUNK, 2))  # elsewhere all goes on, the log too
    await rig.in_place()
    fault.lift()
    await rig.put(6 * CHUNK + PAGE_BYTES, noise(PAGE_BYTES, 1))
    await rig.in_place()
    at = 6 * CHUNK
    assert await rig.get(at, CHUNK) == rig.model[at : at + CHUNK]


@PACE
async def test_parity_at_the_checkpoint_that_nothing_gives_is_that_of_what_is_left(
    slow: bool,
) -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, slow=slow)
    await rig.put(6 * CHUNK + PAGE_BYTES + 3 * SECTOR_BYTES, noise(512, 1))
    assert rig.array.context.journal.unsettled
    lose_page(rig, 6)
    await rig.array.fail_disk(place_of(rig, 7)[1])
    await rig.in_place()  # of chunk 6 or 7, the old content is needed for the parity
    await mended(rig)  # by what was written over it
    await refused(rig, 7 * CHUNK + PAGE_BYTES)
    for chunk in (6, 7, 8):
        at = chunk * CHUNK
        assert await rig.get(at, CHUNK // 4) == rig.model[at : at + CHUNK // 4]
    at = 6 * CHUNK + PAGE_BYTES + 3 * SECTOR_BYTES
    assert await rig.get(at, 512) == rig.model[at : at + 512]
    await rig.put(7 * CHUNK + PAGE_BYTES, noise(PAGE_BYTES, 2))
    await rig.in_place()
    assert await rig.get(7 * CHUNK, CHUNK) == rig.model[7 * CHUNK : 8 * CHUNK]


async def test_a_replacement_lists_what_is_lost_in_one_stripe_while_others_are_unreadable() -> None:
    rig = await placed("raid0", 2, chunk_bytes=CHUNK)
    role = lose_page(rig, 4)
    assert lose_page(rig, 40) == role
    for chunk in (4, 40):  # somebody has read both
        await refused(rig, chunk * CHUNK + PAGE_BYTES)
    rig.members.append(rig.new_member())
    await rig.array.replace_disk(role, rig.members[-1])
    (job,) = rig.array.jobs.running()
    assert isinstance(job, Replace)
    job.window = 1
    assert (await rig.array.jobs.wait(job.job_id))["state"] == "done"
    assert sorted(rig.array.context.bad_chunks.first(10)) == [4, 40]


@pytest.mark.parametrize("how", ["lossy", "whole", "read-only"])
async def test_a_page_that_nothing_gives_back_does_not_keep_the_log_from_being_redone(
    how: str,
) -> None:
    read_only = how == "read-only"

    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await fill(rig)
        await rig.in_place()
        await trio.sleep(60.25)  # between two looks of the checkpoint
        context = rig.array.context
        chunk, other = 6, 7  # data of one stripe
        assert context.layout.locate(chunk)[0] == context.layout.locate(other)[0]
        gone = place_of(rig, other)[1]
        await rig.put(other * CHUNK + PAGE_BYTES, noise(PAGE_BYTES, 1))  # without its parity
        await rig.array.flush()
        _member, role, position = place_of(rig, chunk)
        model, images = bytes(rig.model), rig.images()
    disks = [FaultMember(member) for member in members_from(images)]
    disks[role].lose_sectors(position + PAGE_BYTES)
    absent = disks.pop(gone)
    if not read_only:
        with pytest.RaisesGroup(UnrecoverableError, allow_unwrapped=True) as refusal:
            async with open_array(disks):
                pass
        assert "--start-degraded" in str(refusal.value)
    if how == "whole":  # the start that was refused has excluded nobody
        async with open_array([*disks, absent]) as array:
            assert not array.member_set.lost
            assert bytes(await array.read(0, len(model))) == model
            assert not array.context.bad_chunks
        return
    async with open_array(disks, read_only=read_only, start_degraded=not read_only) as array:
        assert list(array.context.bad_chunks.first(10)) == [chunk]
        # Read-only, the place cannot be written, and what its content would give is an error.
        errors = {chunk, other} if read_only else {chunk}
        for number in range(array.size_bytes // CHUNK):
            if number in errors:
                with pytest.raises(UnrecoverableError):
                    await array.read(number * CHUNK, CHUNK)
            else:
                found = bytes(await array.read(number * CHUNK, CHUNK))
                assert found == model[number * CHUNK : (number + 1) * CHUNK], number
        if read_only:
            return
        await array.write(chunk * CHUNK, noise(CHUNK, 2))
        answer = await array.replace_disk(gone, rig.new_member())
        await array.jobs.wait(answer["job"])
        assert {r.state for r in array.member_set.config.members} == {"active"}
        assert bytes(await array.read(chunk * CHUNK, CHUNK)) == noise(CHUNK, 2)
        await parity_holds(array)


@pytest.mark.parametrize("layout", ["raid5", "rdp", "raidx-parity"])
@pytest.mark.parametrize("job", ["rebuild", "scrub"])
async def test_a_page_that_a_user_finds_after_a_job_planned_costs_no_member(
    layout: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spying(layout, 5, chunk_bytes=CHUNK) as rig, trio.open_nursery() as nursery:
        await fill(rig)
        await rig.in_place()
        await trio.sleep(60)
        unreadable = rig.array.member_set.unreadable
        role = lose_page(rig, 6)
        finds: list[int] = []

        async def find() -> None:
            with suppress(UnrecoverableError):
                await rig.array.read(6 * CHUNK + PAGE_BYTES, PAGE_BYTES)

        async def read_all(*args: Any) -> None:
            if not finds:
                finds.append(6)
                nursery.start_soon(find)
                await eventually(lambda: unreadable, 60, 0.01)
            await strips.read_all(*args)

        monkeypatch.setattr(rebuild if job == "rebuild" else scrub, "read_all", read_all)
        if job == "rebuild":
            other = next(r for r in range(5) if r != role)
            if layout == "raidx-parity":
                await rig.array.set("restore.after", "off")
            await rig.array.fail_disk(other)
            answer = await rig.array.replace_disk(other, rig.new_member())
            number = answer["job"]
        else:
            number = await rig.array.start_scrub(repair=True)
        status = await rig.array.jobs.wait(number)
        assert status["state"] == "done"
        assert finds
        assert state_of(rig, role) == "active"


async def test_a_reader_that_never_plans_around_a_page_does_not_ask_for_ever() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    chunk, _other = await degraded(rig)
    member_set = rig.array.member_set
    _member, role, position = place_of(rig, chunk)
    buffer = memoryview(bytearray(PAGE_BYTES))
    request = Role(role), position + PAGE_BYTES, [buffer], PAGE_BYTES
    for _ in range(1 + ASKS_MAX):  # the first one finds it
        with pytest.raises(MemberLostError):
            await member_set.read([request])
    with pytest.raises(MemberError):  # with redundancy left, the member would be out
        await member_set.read([request])


async def test_who_looks_and_who_measures_costs_no_member_that_cannot_read_a_place() -> None:
    rig = await placed("raidx-parity", 5, chunk_bytes=CHUNK)
    await trio.sleep(60)
    context, tuner = rig.array.context, rig.array.tuner
    stripe = context.layout.locate(0)[0]
    chunk, other = (context.layout.logical(stripe, CellIndex(cell)) for cell in (0, 1))
    for page in (1, 2, 3):
        role = lose_page(rig, chunk, page)
    await rig.array.set("restore.after", "off")
    await rig.array.fail_disk(place_of(rig, other)[1])
    await refused(rig, chunk * CHUNK, CHUNK)
    for begin in (0, PAGE_BYTES):
        told = await Peek(context).peek(stripe, begin)
        assert told["cells"][0]["newest"] == ("nowhere" if begin else "home")
        assert told["chains"][0]["home"].startswith("not checked")
    assert tuner is not None
    for _ in range(30):
        await trio.sleep(100)
        await tuner.measure(patiently=True)
    assert state_of(rig, role) == "active"


@pytest.mark.parametrize("mode", ["none", "partial", "full"])
async def test_a_page_that_stays_unreadable_takes_no_chunk_with_it(mode: str) -> None:
    rig = await spied("rdp", 6, chunk_bytes=CHUNK)
    await rig.array.set("journal", mode)
    await fill(rig)
    await rig.in_place()
    context, chunk = rig.array.context, 5
    stripe, cell = context.layout.locate(chunk)
    role, position = context.position(stripe, cell)
    lose_page(rig, chunk)
    for other in [one for one in context.layout.roles(stripe) if one != role][:2]:
        await rig.array.fail_disk(other)
    at = position + PAGE_BYTES
    fault = rig.members[role].error(("write",), offset_bytes=at, length_bytes=PAGE_BYTES)
    with pytest.raises(RaidxError):
        await rig.put(chunk * CHUNK + PAGE_BYTES, noise(PAGE_BYTES, 1))
    fault.lift()
    assert rig.array.status()["lost_chunks"] == 5  # 8 with those of both lost members
