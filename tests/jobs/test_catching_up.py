"""A member that was away is caught up by visiting what changed, and by nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine import changed_regions
from raidx_fuse.errors import ArrayFailedError
from raidx_fuse.format.configuration.absence import (
    KEY,
    absence_map_of,
)
from raidx_fuse.format.signature import find_signatures
from raidx_fuse.format.superblock import decode_superblock
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.store.cells import Cover
from tests.support.arrays import parity_holds
from tests.support.spy import (
    READ,
    WRITE,
    Log,
    SpyMember,
    SpyRig,
    Touch,
    fill,
    filled,
    lift,
    members_from,
    noise,
    spied,
    spying,
)

CHUNK = 4096
KINDS: tuple[tuple[str, int, Mapping[str, Any]], ...] = (
    ("raid1", 3, {}),
    ("raid5", 4, {}),
    ("rdp", 6, {"rows": 4}),
    ("raidx-copy", 4, {"params": {"length": 2}}),
    ("raidx-parity", 5, {"params": {"length": 4}}),
)
JOURNALS = ("partial", "full", "none")


async def leave(rig: SpyRig, role: int) -> FaultMember:
    """Let everything settle, then fail *role*; return its member."""
    await trio.sleep(30)  # the log is at its home places, no region is dirty
    await rig.array.flush()
    await rig.in_place()
    member = rig.members[role]
    await rig.array.fail_disk(role)
    return member


async def come_back(rig: SpyRig, role: int, member: FaultMember) -> dict[str, Any]:
    """Give *role* its member again; return the result of the job."""
    rig.log.clear()
    begun = await rig.array.replace_disk(role, member)
    job = await rig.array.jobs.wait(begun["job"])
    assert job["state"] == "done", job
    return {**begun, **job}


async def check_whole(rig: SpyRig, role: int) -> None:
    """Check the parity, then the content without any other member."""
    await parity_holds(rig.array)
    await rig.array.fail_disk((role + 1) % rig.width)
    await rig.compare()


@pytest.mark.parametrize("journal", JOURNALS)
@pytest.mark.parametrize(("layout", "width", "options"), KINDS, ids=[kind[0] for kind in KINDS])
async def test_only_what_changed_is_visited(
    layout: str, width: int, options: Mapping[str, Any], journal: str
) -> None:
    rig = await filled(layout, width, chunk_bytes=CHUNK, stripes=256, **options, journal=journal)
    member = await leave(rig, 1)
    size = len(rig.model)
    changed = size // 10 // CHUNK * CHUNK
    await rig.put(size // 2 // CHUNK * CHUNK, noise(changed, 1))
    await rig.put(700, noise(900, 2))
    if journal == "partial":
        await rig.array.flush()
    result = await come_back(rig, 1, member)
    assert result["catches_up"] is True
    regions = rig.array.context.layout.stripes / 64
    made = rig.array.context.layout
    on_member = size / made.code.data_count / made.stripes
    written = rig.log.bytes_of(WRITE, rig.data, member.path)
    share = (changed / size) * (1 if not options.get("params") else 1.0)
    # the range, the small write, and a region at each end of both
    bound = (share + 4 / 64) * rig.array.context.layout.stripes * on_member
    bound *= rig.array.context.code.rows * CHUNK / on_member
    assert 0 < written <= bound, (written, bound, regions)
    assert result["done"] == result["total"]
    assert KEY not in rig.array.member_set.config.jobs
    assert rig.array.status()["state"] == "clean"
    await check_whole(rig, 1)


@pytest.mark.parametrize(("layout", "width", "options"), KINDS, ids=[kind[0] for kind in KINDS])
async def test_content_that_looks_like_a_format_stays_on_a_member_that_returns(
    layout: str, width: int, options: Mapping[str, Any]
) -> None:
    """The image may be partitioned: its backup table lies in the last sector of a member."""
    like_formats = b"".join(
        magic.ljust(512, b"\1")
        for magic in (
            *(b"\xfc\x4e\x2b\xa9", b"EFI PART", b"\0\0\0\0\0\xba\xb1\x0c", b"\xde\x11\xde\x11"),
            *(b"EFI PART", b"EFI PART", b"Intel Raid ISM Cfg Sig. ", b"EFI PART"),
        )
    )
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=64, **options)
    await rig.put(0, like_formats * (len(rig.model) // len(like_formats)))
    await rig.array.flush()
    member = await leave(rig, 1)
    tail = await find_signatures(member)
    if rig.array.context.code.rows == 1 and "raidx" not in layout:
        assert any(signature.offset > rig.data.offset for signature in tail), tail
    before = rig.images()[1][rig.data.offset :]
    result = await come_back(rig, 1, member)
    assert result["catches_up"]
    assert rig.images()[1][rig.data.offset :] == before
    await check_whole(rig, 1)


@pytest.mark.parametrize("region", ["data", "log", "written", "bitmap"])
@pytest.mark.parametrize("returns", [True, False], ids=["member", "stranger"])
async def test_a_disk_with_unreadable_sectors_may_take_a_role(
    region: str, returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written anew anyway need not be readable before."""

    async def no_hole(_ram: RamMember, _offset_bytes: int, _length_bytes: int) -> bool:
        return False  # what is there has to be read, then

    monkeypatch.setattr(RamMember, "punch", no_hole)
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=64)
    member = await leave(rig, 1)
    if not returns:
        member = rig.new_member()
    where = getattr(rig.array.member_set.config.regions, region)
    member.lose_sectors(where.offset, 8)
    member.lose_sectors(where.end // 4096 * 4096 - 4096, 8)
    result = await come_back(rig, 1, member)
    assert result["catches_up"] is returns
    await check_whole(rig, 1)


async def test_a_hundredth_in_one_range_costs_at_most_1_1_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 MiB of 102 MiB with regions of one stripe, as 100 MiB of 10 GiB with regions of 1 MiB.

    Counted are the bytes written to the member that returns, over its share of what changed, and
    those read for it, over what changed.
    """
    monkeypatch.setattr(changed_regions, "REGION_BYTES", (1 << 20) // 100)
    rig = await spied("raid5", 5, chunk_bytes=CHUNK, stripes=6400)
    await rig.put(4 << 20, noise(8 << 20))
    member = await leave(rig, 2)
    changed = 1 << 20
    await rig.put((6 << 20) + 5000, noise(changed, 1))
    await come_back(rig, 2, member)
    written = rig.log.bytes_of(WRITE, rig.data, member.path)
    others = [other.path for other in rig.members if other is not member]
    read = sum(rig.log.bytes_of(READ, rig.data, path) for path in others)
    assert 1.0 <= written / (changed / 4) <= 1.1
    assert 1.0 <= read / changed <= 1.1
    await check_whole(rig, 2)


async def test_a_region_is_one_mib_of_the_image() -> None:
    rig = await spied("raid5", 5, chunk_bytes=64 << 10, stripes=300)
    changes = rig.array.context.changes
    await leave(rig, 2)
    assert list(changes.ranges(0, 256)) == []
    changes.note([Stripe(9)])
    assert list(changes.ranges(0, 256)) == [(8, 12)]  # of 256 KiB each
    assert list(changes.ranges(9, 256)) == [(9, 12)]
    changes.note([Stripe(12), Stripe(255)])
    assert list(changes.ranges(0, 256)) == [(8, 16), (252, 256)]


async def test_a_member_absent_at_a_start_is_caught_up_when_it_is_there_again() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=600)
    await rig.close()
    absent = rig.members.pop(1)
    await rig.open()
    await rig.put(100 * CHUNK, noise(5 * CHUNK, 1))
    await rig.reopen()  # the map outlives starts
    await rig.put(900 * CHUNK + 77, noise(100, 2))
    await rig.close()
    rig.members.append(absent)
    rig.log.clear()
    await rig.open()
    (job,) = rig.array.jobs.running()
    assert isinstance(job, Rebuild)
    assert job.detail()["catches_up"] is True
    await job.finished.wait()
    assert rig.log.bytes_of(WRITE, rig.data, absent.path) < 40 * CHUNK
    assert not rig.array.status()["warnings"]
    await check_whole(rig, 1)


async def test_a_member_that_failed_stays_out_until_the_user_asks() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=600)
    member = await leave(rig, 1)
    await rig.reopen()
    assert rig.array.status()["state"] == "degraded"
    assert (await come_back(rig, 1, member))["catches_up"] is True
    await check_whole(rig, 1)


async def test_two_members_that_left_at_different_times() -> None:
    rig = await filled("rdp", 6, chunk_bytes=CHUNK, stripes=600, rows=4)
    first = await leave(rig, 1)
    await rig.put(100 * CHUNK, noise(9 * CHUNK, 1))
    second = await leave(rig, 4)
    await rig.put(2000 * CHUNK, noise(9 * CHUNK, 2))
    assert (await come_back(rig, 1, first))["catches_up"] is True
    await rig.put(500 * CHUNK, noise(9 * CHUNK, 3))
    assert (await come_back(rig, 4, second))["catches_up"] is True
    assert rig.log.bytes_of(WRITE, rig.data, second.path) < 600 * CHUNK
    assert KEY not in rig.array.member_set.config.jobs
    await check_whole(rig, 1)


async def test_a_map_that_began_later_is_not_that_of_a_member_before() -> None:
    """The map is dropped while role 1 is caught up; then role 2 leaves, and a map of it begins."""
    rig = await filled("rdp", 6, rows=4, chunk_bytes=CHUNK, stripes=600)
    member = await leave(rig, 1)
    await rig.put(0, noise(len(rig.model), 1))
    await rig.array.flush()
    begun = await rig.array.replace_disk(1, member)
    job = rig.array.jobs.running()[0]
    job.pause()
    await rig.array.member_set.update(lambda c: c.without_job(KEY))  # no space for it, say
    await rig.array.fail_disk(2)
    job.resume()
    assert (await rig.array.jobs.wait(begun["job"]))["state"] == "done"
    await rig.compare()


@pytest.mark.parametrize("journal", JOURNALS)
async def test_writes_that_the_member_had_not_flushed_are_visited(journal: str) -> None:
    """What a disk holds in its volatile cache is gone when it is pulled."""
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=600, journal=journal)
    await trio.sleep(30)
    await rig.array.flush()
    await rig.in_place()
    before = bytes(rig.rams[1].memory)
    stripe = 3 * CHUNK
    region = rig.array.context.dirty_bitmap.per_region
    await rig.put(region * stripe, noise(4 * stripe, 1))
    await rig.put(5 * region * stripe, noise(700, 2))
    last = 2 * region - 1  # of the region that is marked already
    await rig.put(last * stripe, noise(stripe, 3))
    flushed = rig.array.member_set.config.regions.bitmap.end  # before the writes began
    pulled = rig.rams[1].memory
    pulled[flushed:] = before[flushed:]
    await rig.array.fail_disk(1)
    assert (await come_back(rig, 1, rig.members[1]))["catches_up"] is True
    await check_whole(rig, 1)


@pytest.mark.parametrize("journal", ["partial", "none"])
async def test_writes_of_a_region_that_is_marked_again_while_it_is_cleaned_are_visited(
    journal: str,
) -> None:
    """Its flush is under way: what the bit stood for is not durable yet, and may get lost."""
    rig = await filled("raid5", 3, chunk_bytes=CHUNK, stripes=600, journal=journal)
    await trio.sleep(30)
    await rig.array.flush()
    await rig.in_place()
    context, member = rig.array.context, rig.members[1]
    stripe, first, second = 2 * CHUNK, Stripe(4), Stripe(30)
    dirty = context.dirty_bitmap
    assert first // dirty.per_region == second // dirty.per_region
    before = bytes(rig.rams[1].memory)
    await rig.put(first * stripe, noise(stripe, 1))
    await rig.array.flush()
    for other in rig.members:
        other.slow(1.0, ("flush",), count=1)
    await rig.put(first * stripe, noise(stripe, 2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: dirty.clean_quiet(all_regions=True))
        await trio.sleep(0.5)
        nursery.start_soon(rig.put, second * stripe, noise(stripe, 3))
        await trio.sleep(0.1)
        member.vanish()
    await rig.array.flush()
    data = rig.data.offset
    rig.rams[1].memory[data:] = before[data:]  # of its cache, nothing was stored
    member.come_back()
    assert (await come_back(rig, 1, member))["catches_up"] is True
    await check_whole(rig, 1)


async def test_what_a_start_redoes_when_a_member_leaves_is_visited() -> None:
    """It has not flushed that yet: the member's volatile cache loses it."""
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=600) as rig:
        await fill(rig)
        await trio.sleep(30)
        await rig.in_place()
        for stripe in range(50, 53):  # one of three data chunks, and the parity, of each
            await rig.put(3 * stripe * CHUNK, noise(512, stripe))
        data, expected = rig.data.offset, bytes(rig.model)
        rams = members_from(rig.images())
    log = Log()
    members = [FaultMember(SpyMember(ram, log)) for ram in rams]
    ram, member = rams[1], members[1]
    before = bytes(ram.memory[data:])

    def leave_at_its_place(touch: Touch) -> None:
        if touch.member == member.path and touch.offset_bytes >= data:
            member.vanish()

    log.hook = leave_at_its_place
    async with open_array(members) as array:
        assert array.member_set.queues[1] is None
        log.hook = None
        member.come_back()
        ram.memory[data:] = before
        begun = await array.replace_disk(1, member)
        assert begun["catches_up"] is True
        assert (await array.jobs.wait(begun["job"]))["state"] == "done"
        await array.fail_disk(2)
        assert bytes(await array.read(0, len(expected))) == expected


async def test_a_note_that_no_superblock_took_is_saved_before_the_next_write() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=600, journal="none")
    await leave(rig, 1)
    stripe, other = 3 * CHUNK, Stripe(60)  # of one region of the dirty bitmap
    await rig.put(40 * stripe, noise(CHUNK, 1))
    rest = [member for role, member in enumerate(rig.members) if role != 1]
    faults = [m.error(("write",), length_bytes=128 << 10) for m in rest]
    with pytest.raises(ArrayFailedError):
        await rig.put(other * stripe, noise(CHUNK, 2))
    changes = rig.array.context.changes
    assert not changes.is_noted(other)
    assert changes.is_noted(Stripe(40)), "a write to it that has begun may end"
    lift(faults)
    marked = []

    def look(touch: Touch) -> None:
        if touch.offset_bytes >= rig.data.offset:
            marked.append(other in stripes_marked(bytes(rig.rams[0].memory)))

    rig.log.hook = look
    await rig.put(other * stripe, noise(CHUNK, 2))
    assert marked
    assert all(marked)
    rig.log.hook = None


async def test_what_a_job_writes_is_visited_if_a_member_leaves_while_its_region_is_marked() -> None:
    rig = await filled("raid5", 3, chunk_bytes=CHUNK, stripes=600, journal="none")
    await trio.sleep(30)
    context, stripe = rig.array.context, Stripe(30)
    for member in rig.members:
        member.slow(1.0, ("flush",), count=1)
    role, offset = context.position(stripe, CellIndex(0))
    await context.locks.acquire(stripe)
    async with trio.open_nursery() as nursery:
        request = (role, offset, [noise(CHUNK)], CHUNK)
        epoch = rig.array.member_set.role_epoch
        nursery.start_soon(context.write_cells, stripe, [request], epoch, Cover.SAME)
        await trio.sleep(0.5)
        assert not context.dirty_bitmap.is_marked(stripe)
        await rig.array.fail_disk((role + 1) % 3)
    context.locks.release(stripe)
    assert any(first <= stripe < end for first, end in context.changes.ranges(0, 600))


async def test_what_a_checkpoint_is_placing_when_a_member_leaves_is_visited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint began when all members were there, so that it marked nothing."""
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=600)
    await trio.sleep(30)  # no region is dirty
    await rig.in_place()
    journal = rig.array.context.journal
    write_frozen = journal.cells.write_frozen

    async def without_a_member() -> None:
        monkeypatch.undo()
        await rig.array.fail_disk(1)
        await write_frozen()

    for stripe in range(50, 53):  # two data chunks of each, and its parity
        await rig.put(stripe * 3 * CHUNK, noise(512, stripe))
        await rig.put(stripe * 3 * CHUNK + CHUNK, noise(512, stripe + 1))
    monkeypatch.setattr(journal.cells, "write_frozen", without_a_member)
    await journal.place()
    assert (await come_back(rig, 1, rig.members[1]))["catches_up"] is True
    await check_whole(rig, 1)


async def test_what_is_written_to_the_member_is_marked_durably_before() -> None:
    """Else a cut could drop the log's record of it, and the next start would pass the stripe."""
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=640, journal="full")
    member = await leave(rig, 1)
    await rig.put(0, noise(CHUNK, 1))
    await rig.put(1500 * CHUNK, noise(CHUNK, 2))
    await rig.array.set("speed_max", "4KiB")
    begun = await rig.array.replace_disk(1, member)
    await rig.put(600 * CHUNK, noise(CHUNK, 3))  # in no region that is marked
    stripe = rig.array.context.layout.locate(600)[0]
    marked = []

    def look(touch: Touch) -> None:
        start = stripe * CHUNK + rig.data.offset
        end = touch.offset_bytes + touch.size_bytes
        if touch.member == member.path and touch.offset_bytes <= start < end:
            marked.append(stripe in stripes_marked(bytes(rig.rams[0].memory)))

    rig.log.hook = look
    await rig.array.set("speed_max", "0")
    await rig.array.jobs.wait(begun["job"])
    assert marked[0] is True


def stripes_marked(image: bytes) -> set[int]:
    """Return the stripes that the newest superblock of a member with *image* marks."""
    slots = [decode_superblock(image[at : at + (64 << 10)], at >> 16) for at in (0, 64 << 10)]
    absences = absence_map_of(max(slots, key=lambda slot: slot.sequence).config)
    assert absences is not None
    return {
        stripe
        for region in absences.regions
        for stripe in range(region * absences.stripes, (region + 1) * absences.stripes)
    }


async def test_data_logged_once_the_member_is_back_whose_parity_was_logged_without_it_is_visited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The data was planned before the member left, and its parity before its stripe was visited."""
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=600)
    await trio.sleep(30)
    await rig.in_place()
    context = rig.array.context
    stripe = Stripe(300)
    role, _ = context.position(stripe, CellIndex(context.code.data_count))
    journal = context.journal
    commit_data = journal.commit_data
    jobs: list[int] = []

    async def late(changes: Any) -> bool:
        monkeypatch.setattr(journal, "commit_data", commit_data)
        member = rig.members[role]
        await rig.array.fail_disk(role)
        answer = await rig.array.replace_disk(role, member)
        assert answer["catches_up"]
        jobs.append(answer["job"])
        logged = await commit_data(changes)
        assert logged
        await journal.settle([stripe])
        return logged

    monkeypatch.setattr(journal, "commit_data", late)
    monkeypatch.setattr(journal, "commit_now", lambda *_args: None)
    offset = context.layout.logical(stripe, CellIndex(0)) * CHUNK
    await rig.put(offset + 512, noise(1024, 7))
    assert jobs
    job = await rig.array.jobs.wait(jobs[0])
    assert job["state"] == "done"
    await check_whole(rig, role)


@pytest.mark.parametrize(("layout", "width", "options"), KINDS, ids=[kind[0] for kind in KINDS])
async def test_a_window_of_locked_stripes_that_did_not_change_is_passed(
    layout: str, width: int, options: Mapping[str, Any]
) -> None:
    rig = await filled(layout, width, chunk_bytes=CHUNK, stripes=600, **options)
    member = await leave(rig, 1)
    locks = rig.array.context.locks
    await locks.acquire(Stripe(7))
    rig.log.clear()
    begun = await rig.array.replace_disk(1, member)
    await trio.sleep(1)
    locks.release(Stripe(7))
    job = await rig.array.jobs.wait(begun["job"])
    assert job["state"] == "done", job
    if not isinstance(rig.array.context.layout, BundleLayout):  # its table lies there
        assert rig.log.of(WRITE, rig.data, member.path) == []
    await check_whole(rig, 1)
