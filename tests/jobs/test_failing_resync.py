"""A member fails during the resync after a crash: nothing is lost that the others can give back."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import ArrayFailedError, JobRunningError, RaidxError, Reason
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe, cell_range
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import jobs_ended
from tests.support.reasons import because
from tests.support.resyncing import LAYOUTS, TWO_PARITIES, filled, sectors
from tests.support.spy import (
    FLUSH,
    WRITE,
    SpyRig,
    Touch,
    members_from,
    noise,
    restarted,
    spied,
)

CHUNK = 4096
TORN = Stripe(30)


@pytest.mark.parametrize("replace", [False, True], ids=["fail", "replace"])
@pytest.mark.parametrize("name", LAYOUTS)
async def test_flushed_data_survives_a_member_that_fails_during_the_resync(
    name: str, replace: bool
) -> None:
    """Filled, flushed, ten blocks written again with the same bytes, killed; all members mount."""
    async with filled(name) as rig:
        for number in range(10):
            at = number * (len(rig.model) // 10 // 4096) * 4096
            await rig.put(at, bytes(rig.model[at : at + 4096]))
        old, picture = bytes(rig.model), rig.images()
        tolerance = rig.array.context.code.tolerance
    async with restarted(picture) as array:
        status = array.status()
        assert (status["state"], status["redundancy_left"]) == ("resyncing", tolerance)
        if replace:
            member = RamMember(len(picture[1]), name="new")
            await array.set("speed_max", "0")
            await array.jobs.wait((await array.replace_disk(1, member))["job"])
        else:
            await array.fail_disk(1)
            assert array.status()["redundancy_left"] == tolerance - 1
        assert array.status()["lost_chunks"] == 0
        assert await sectors(array, old) == (0, 0)
        await array.set("speed_max", "0")
        await jobs_ended(array)
        assert await sectors(array, old) == (0, 0)


@pytest.mark.parametrize("name", TWO_PARITIES)
async def test_flushed_data_survives_two_members_that_fail_during_the_resync(name: str) -> None:
    async with filled(name) as rig:
        old, picture = bytes(rig.model), rig.images()
    for pair in itertools.combinations(range(len(picture)), 2):
        async with restarted(picture) as array:
            for role in pair:
                await array.fail_disk(role)
                await trio.sleep(2)
            assert array.status()["lost_chunks"] == 0
            assert await sectors(array, old) == (0, 0)


# -- without a journal -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["raid5", "raid4", "raidx-parity"])
async def test_without_a_journal_what_one_parity_cannot_tell_is_asked_for_first(name: str) -> None:
    """Any stripe in flight may be torn: EIO, never a guess, and only with the user's word."""
    async with filled(name, "none", stripes=400) as rig:
        old, picture = bytes(rig.model), rig.images()
    async with restarted(picture) as array:
        assert array.status()["redundancy_left"] == 0
        await trio.sleep(8)
        with pytest.raises(ArrayFailedError, check=because(Reason.LOSES_DATA)):
            await array.fail_disk(0)
        assert not array.member_set.lost
        data = noise(CHUNK, 7)  # what is written after the crash is whole: it is not lost
        chunk = next(c for c in range(len(old) // CHUNK - 1, 0, -1) if _role(array, c) == 0)
        await array.write(chunk * CHUNK, data)
        await array.read((chunk - 9) * CHUNK, 9 * CHUNK)  # nor what was read, whole stripes
        await array.fail_disk(0, lose_data=True)
        expected = old[: chunk * CHUNK] + data + old[(chunk + 1) * CHUNK :]
        wrong, refused = await sectors(array, expected)
        assert wrong == 0
        assert 0 < refused == array.status()["lost_chunks"]
        assert bytes(await array.read(chunk * CHUNK, CHUNK)) == data
        await array.read((chunk - 9) * CHUNK, 9 * CHUNK)


def _role(array: Array, chunk: int) -> int:
    return array.context.layout.place(*array.context.layout.locate(chunk))[0]


@pytest.mark.parametrize("name", ["raid1", "raidx-copy"])
async def test_without_a_journal_the_other_copy_is_good(name: str) -> None:
    async with filled(name, "none") as rig:
        old, picture = bytes(rig.model), rig.images()
    async with restarted(picture) as array:
        assert array.status()["redundancy_left"] == 1
        await array.fail_disk(0)
        assert await sectors(array, old) == (0, 0)


async def torn(rig: SpyRig, role: Role) -> tuple[list[bytes], Chunk, list[Chunk]]:
    """Tear a stripe of a filled rig outside *role*, which has data in it, as a crash may leave it.

    Returns what the members hold then, the chunk that has changed, and those on *role*.
    """
    context = rig.array.context
    images = [bytearray(image) for image in rig.images()]
    places = {cell: context.position(TORN, cell) for cell in cell_range(0, context.code.data_count)}
    cell = next(cell for cell, (other, _) in places.items() if other != role)
    other, place = places[cell]
    images[other][place : place + CHUNK] = noise(CHUNK, 9)
    lost = [context.layout.logical(TORN, c) for c, (other, _) in places.items() if other == role]
    assert lost
    return [bytes(image) for image in images], context.layout.logical(TORN, cell), lost


@pytest.mark.parametrize("name", TWO_PARITIES)
async def test_without_a_journal_the_second_parity_tells_a_torn_stripe(name: str) -> None:
    """One stripe is torn, and only that one is given up; with a third loss nobody could tell."""
    async with filled(name, "none") as rig:
        old = bytes(rig.model)
        images, flipped, gone = await torn(rig, Role(1))
        role = rig.array.context.layout.place(*rig.array.context.layout.locate(flipped))[0]
    async with restarted(images) as array:
        await array.fail_disk(1, lose_data=True)
        assert array.status()["lost_chunks"] == 0, "nobody has looked yet"
        await array.set("speed_max", "0")
        await jobs_ended(array)
        assert sorted(array.context.bad_chunks) == sorted(gone)
        wrong, refused = await sectors(array, old)
        assert (wrong, refused) == (1, len(gone))
        assert bytes(await array.read(flipped * CHUNK, CHUNK)) == noise(CHUNK, 9)
    async with restarted(images) as array:
        for failing in (1, role):
            await array.fail_disk(failing, lose_data=True)
        wrong, refused = await sectors(array, old)
        assert wrong == 0
        assert refused == array.status()["lost_chunks"] > len(gone)


@pytest.mark.parametrize("name", TWO_PARITIES)
async def test_a_rebuild_that_overtakes_the_resync_gives_torn_stripes_up(name: str) -> None:
    """What one parity gives for the lost cell is no content that it ever had: EIO, not a guess."""
    async with filled(name, "none") as rig:
        old = bytes(rig.model)
        images, _, gone = await torn(rig, Role(1))
    async with restarted(images) as array:
        (resync,) = array.jobs.running()
        resync.pause()
        await array.set("speed_max", "0")
        await array.fail_disk(1, lose_data=True)
        answer = await array.replace_disk(1, RamMember(len(images[1]), name="new"))
        await array.jobs.wait(answer["job"])
        assert sorted(array.context.bad_chunks) == sorted(gone)
        resync.resume()
        await resync.finished.wait()
        assert await sectors(array, old) == (1, len(gone))


@pytest.mark.parametrize("first", ["read", "scrub"])
@pytest.mark.parametrize("name", TWO_PARITIES)
async def test_a_page_of_a_torn_stripe_that_cannot_be_read_is_given_up(
    name: str, first: str
) -> None:
    """Whoever finds it: what one parity gives for it is no content that it ever had."""
    async with filled(name, "none") as rig:
        layout, old = rig.array.context.layout, bytes(rig.model)
        lost = layout.place(TORN, CellIndex(0))[0]
        images, _, (chunk, *_) = await torn(rig, lost)
        place = rig.array.context.position(*layout.locate(chunk))[1]
    members = [FaultMember(member) for member in members_from(images)]
    members[lost].lose_sectors(place)
    async with open_array(members) as array:
        (resync,) = array.jobs.running()
        resync.pause()
        await array.set("speed_max", "0")
        if first == "read":
            with pytest.raises(RaidxError):
                await array.read(chunk * CHUNK, CHUNK)
        else:
            await array.jobs.wait(await array.start_scrub(repair=True))
        await trio.sleep(60)
        resync.resume()
        await resync.finished.wait()
        assert not array.member_set.unreadable, "it is mended all the same"
        assert await sectors(array, old) == (1, 1)
        assert sorted(array.context.bad_chunks) == [chunk]


async def test_the_resync_forgets_its_regions_only_when_what_was_lost_is_saved() -> None:
    """A second crash right after it must not bring back what nobody could tell."""
    async with filled("raid5", "none") as rig:
        old, picture = bytes(rig.model), rig.images()
    members = members_from(picture)
    async with open_array(members) as array:
        await array.fail_disk(0, lose_data=True)
        await array.set("speed_max", "0")
        (resync,) = array.jobs.running()
        await resync.finished.wait()
        images = [bytes(member.memory) for member in members[1:]]
    async with restarted(images) as array:
        wrong, refused = await sectors(array, old)
        assert wrong == 0
        assert refused > 0


async def test_the_journal_comes_back_only_after_the_resync() -> None:
    """The superblocks would say that no stripe can be torn by a small write."""
    async with filled("raid5", "none") as rig:
        picture = rig.images()
    async with restarted(picture) as array:
        with pytest.raises(JobRunningError):
            await array.set("journal", "partial")
        assert array.get("journal") == "none"
        await array.set("speed_max", "0")
        (resync,) = array.jobs.running()
        await resync.finished.wait()
        assert await array.set("journal", "partial") == "partial"


@pytest.mark.parametrize("mode", ["partial", "full"])
async def test_superblocks_say_that_there_is_no_journal_as_long_as_a_write_relies_on_it(
    mode: str,
) -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK)
    context = rig.array.context
    await rig.put(0, noise(len(rig.model), 1))
    await rig.array.set("journal", mode)
    said: list[str] = []

    def look(touch: Touch) -> None:
        if touch.kind == WRITE and touch.offset_bytes < 128 << 10:  # a superblock
            said.append(context.journal.mode)

    rig.log.hook = look
    await rig.array.set("journal", "none")
    assert said
    assert set(said) == {mode}, "a write could have passed the log before they said so"
    await rig.put(100, b"torn")
    await rig.put(CHUNK + 100, b"torn")
    rig.log.hook = None
    rig.log.touches.clear()
    await rig.array.set("journal", mode)
    superblock = next(
        at
        for at, touch in enumerate(rig.log.touches)
        if touch.kind == WRITE and touch.offset_bytes < 128 << 10
    )
    flushed = {t.member for t in rig.log.touches[:superblock] if t.kind == FLUSH}
    assert flushed == {"ram0", "ram1", "ram2"}


@pytest.mark.parametrize("mode", ["partial", "full"])
async def test_superblocks_say_that_there_is_a_journal_when_who_began_without_has_ended(
    mode: str,
) -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK, slow=True)
    await rig.array.set("journal", "none")
    await rig.put(0, noise(len(rig.model), 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.put, 100, b"torn")
        await trio.testing.wait_all_tasks_blocked()
        assert rig.array.context.locks.held
        await rig.array.set("journal", mode)
        assert not rig.array.context.locks.held
