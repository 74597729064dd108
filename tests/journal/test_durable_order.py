"""What a flush covers, and what the log may forget, while writes are under way.

The crash campaign found both kinds of faults; here each order is forced.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.format.regions import PAGE_HEADER_BYTES
from raidx_fuse.lab.crash.player import through_door
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.store.overlay import Overlay
from tests.support.gated import gated
from tests.support.spy import FLUSH, Touch, locked, placed, restarted, spied, spying

CHUNK = 4096


async def test_a_flush_during_a_write_does_not_stand_for_it() -> None:
    async with gated("raid0", 2, "none") as (array, members):
        member = members[0]
        member.open = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.write, 0, b"x" * CHUNK)
            await trio.sleep(0.01)
            await array.flush()  # the write is on its way to the member
            member.open.set()
        before = member.flushes
        await array.flush()
        assert member.flushes == before + 1, "the write was acknowledged and then forgotten"


@pytest.mark.parametrize("seed", range(20))
async def test_the_log_forgets_only_what_readers_see(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record between its landing and its effect is in no overlay: the tail stays before it."""
    async with gated("raid1", 3, "full") as (array, _members):
        journal = array.context.journal
        first = journal.ring.next_sequence
        seen = frozen = 0
        put, save_head, freeze = Overlay.put, journal.ring.save_head, Overlay.freeze

        def count(overlay: Overlay, role: Role, *content: Any) -> None:
            nonlocal seen
            seen += role == 0  # of a record for each copy
            put(overlay, role, *content)

        def note(overlay: Overlay) -> None:
            nonlocal frozen
            frozen = seen
            freeze(overlay)

        async def check(tail: tuple[int, int, int]) -> None:
            assert tail[0] - first <= frozen
            await save_head(tail)

        monkeypatch.setattr(Overlay, "put", count)
        monkeypatch.setattr(journal.ring, "save_head", check)
        monkeypatch.setattr(Overlay, "freeze", note)
        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(array.write, 2 * number * CHUNK, b"y" * 512)
            for _ in range(12):
                nursery.start_soon(journal.place)
        assert seen == 12
        monkeypatch.undo()


async def test_a_placement_saves_no_bit_whose_record_is_not_durable() -> None:
    """Else a cut may keep the bit and drop the record: a chunk would live that nobody wrote."""
    async with gated("raid0", 2, "full") as (array, members):
        await array.write(70 * CHUNK, b"a" * CHUNK)
        flushed = trio.Event()
        for member in members:
            member.flush_open = flushed
            member.written.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.context.journal.place)
            await trio.sleep(0.01)  # it waits for the flush of the records so far
            await array.write(71 * CHUNK, b"b" * CHUNK)
            flushed.set()
        region = array.member_set.config.regions.written
        pages = [
            content[PAGE_HEADER_BYTES:]
            for member in members
            for offset, content in member.written
            if region.offset <= offset < region.end
        ]
        assert pages
        assert {page[70 >> 3] >> (70 & 7) for page in pages} == {1}, "70 is written, 71 is not"


async def test_a_read_that_a_placement_overtook_reads_again() -> None:
    """What it found in the place was older, and when it comes to the overlay that is empty."""
    async with gated("raid1", 3, "full") as (array, members):
        await array.write(0, b"n" * 512)
        read = trio.Event()
        for member in members:
            member.read_open = read
        answers: list[bytes] = []

        async def look() -> None:
            answers.append(bytes(await array.read(0, 1024)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await trio.sleep(0.01)  # the member has answered, the store does not know yet
            await array.context.journal.place()
            read.set()
        assert answers == [b"n" * 512 + bytes(512)]


@pytest.mark.parametrize("layout", ["raid1", "raid5"])
async def test_a_drained_log_stays_empty_until_the_caller_is_done(layout: str) -> None:
    rig = await spied(layout, 3, chunk_bytes=CHUNK)
    await rig.put(0, b"a" * len(rig.model))
    await rig.in_place()
    journal = rig.array.context.journal

    async def change_roles() -> None:
        nursery.start_soon(rig.put, CHUNK + 512, b"b" * 512)
        await trio.sleep(1)
        assert not journal.ring.open
        assert not journal.overlay.held_bytes

    async with trio.open_nursery() as nursery:
        await journal.drain(change_roles)
    await rig.compare()


async def test_a_drained_log_holds_nothing() -> None:
    async with gated("raid5", 3, "partial") as (array, _members):
        journal = array.context.journal
        await array.write(0, b"d" * 512)
        await journal.place()
        assert journal.holds(0), "no flush has covered the head page"
        await journal.drain()
        assert not journal.holds(0), "a cut now would still replay the record"


async def test_a_log_is_formed_again_when_it_holds_nothing() -> None:
    """Its records are on the members of before, which the next head page does not name."""
    async with gated("raid5", 3, "partial") as (array, _members):
        journal = array.context.journal
        await array.write(0, b"f" * 512)
        assert journal.holds(0)
        await journal.reform()
        assert not journal.holds(0), "a replay would look for the record"


async def test_nothing_is_acknowledged_before_the_records_before_it_are_written() -> None:
    """A replay ends at the first record that is missing (journal/journal.py, law 1)."""
    async with gated("raid5", 3, "partial") as (array, members):
        held = trio.Event()
        for member in members:
            member.open, member.data_offset = held, 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.write, 0, b"1" * 512)
            await trio.sleep(0.01)
            for member in members:
                member.open = None
            second = trio.Event()

            async def write_and_tell() -> None:
                await array.write(4 * CHUNK, b"2" * 512)
                second.set()

            nursery.start_soon(write_and_tell)
            await trio.sleep(1)
            assert not second.is_set()
            held.set()


@pytest.mark.parametrize("together", [False, True])
async def test_whole_stripes_do_not_bypass_a_small_record(together: bool) -> None:
    """The process is killed, and a replay would lay the older record over them (law 3)."""
    rig = await spied("raid5", 4, chunk_bytes=4 * CHUNK)
    await rig.put(0, bytes(len(rig.model)))
    await rig.in_place()
    small, whole = b"s" * CHUNK, b"w" * 12 * CHUNK
    await rig.put(0, whole)  # its region is marked, and stays so
    if together:
        handlers = [rig.array.write(0, small)]
        await through_door(handlers, rig.array.context.journal.deferral)
    else:
        await rig.array.write(0, small)
    await rig.put(0, whole)
    await rig.survives()


@pytest.mark.parametrize("first", [100, 4096])
async def test_a_record_that_ends_inside_a_sector_waits_for_what_lies_beside_it(first: int) -> None:
    """A cut that drops the stripe and keeps the record must not leave half a sector of each."""
    async with gated("raid5", 3, "partial") as (array, members):
        await array.write(0, bytes(range(256)) * (2 * CHUNK // 256))  # past the log, in caches
        before = [member.flushes for member in members]
        await array.write(first, b"z" * 512)
        aligned = first % 512 == 0
        assert [member.flushes > was for member, was in zip(members, before, strict=True)] == [
            not aligned
        ] * 3
        again = [member.flushes for member in members]
        await array.write(first + 1, b"z" * 512)
        await array.write(first + 3, b"z" * 512)
        flushed = [now.flushes - was for now, was in zip(members, again, strict=True)]
        assert max(flushed) <= 1, "once it is durable, records go on at their own pace"


async def test_such_a_record_waits_for_what_was_written_while_a_flush_ran() -> None:
    """That flush does not stand for it."""
    async with gated("raid5", 3, "partial") as (array, members):
        await array.write(0, bytes(2 * CHUNK))
        for member in members:
            member.flush_open = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.flush)
            await trio.sleep(0.01)
            await array.write(2 * CHUNK, bytes(range(256)) * (2 * CHUNK // 256))
            for member in members:
                assert member.flush_open is not None
                member.flush_open.set()
        before = [member.flushes for member in members]
        await array.write(2 * CHUNK + 100, b"z" * 512)
        assert all(now.flushes > was for now, was in zip(members, before, strict=True))


async def test_what_was_planned_for_another_member_is_not_logged() -> None:
    """A role changed hands while the write waited for room in the log: it plans anew."""
    async with gated("raid5", 3, "partial") as (array, _members):
        journal, member_set = array.context.journal, array.member_set
        before = journal.ring.next_sequence
        async with trio.open_nursery() as nursery:

            async def change_hands() -> None:
                nursery.start_soon(array.write, 0, b"n" * 512)
                await trio.sleep(1)
                member_set.role_epoch += 1

            await journal.drain(change_hands)
        assert journal.ring.next_sequence == before + 1, "the first plan has a record, too"
        assert bytes(await array.read(0, 512)) == b"n" * 512


async def test_a_chunk_that_a_record_makes_unwritten_again_is_so_after_a_replay() -> None:
    """A growth that goes back does that: no stripe has such a chunk any more."""
    async with spying("raid0", 2, chunk_bytes=CHUNK) as rig:
        await rig.put(0, bytes([7]) * 4 * CHUNK)
        await rig.in_place()
        context = rig.array.context
        with locked(context, 1):
            assert await context.journal.commit([1], [], [], unwritten=[2])
        await rig.array.flush()
        images = rig.images()
    async with restarted(images) as array:
        expected = bytes([7]) * 2 * CHUNK + bytes(CHUNK) + bytes([7]) * CHUNK
        assert bytes(await array.read(0, 4 * CHUNK)) == expected


async def test_what_is_committed_while_a_placement_fails_lies_over_what_was_to_be_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await placed("raid5", 3, chunk_bytes=CHUNK)
    journal = rig.array.context.journal
    await rig.put(0, bytes([2]) * CHUNK)
    await rig.put(2 * CHUNK + 100, bytes([2]) * 700)

    async def fail() -> None:
        await rig.put(512, bytes([3]) * 512)  # over a page, over pieces, and beside them
        await rig.put(2 * CHUNK + 600, bytes([3]) * 700)
        await rig.put(4 * CHUNK, bytes([3]) * CHUNK)
        raise MemberError("ram0", "write", 0, errno.EIO)

    monkeypatch.setattr(journal.cells, "write_frozen", fail)
    with pytest.raises(MemberError):
        await journal.place()
    monkeypatch.undo()
    await rig.compare()
    await rig.in_place()
    await rig.compare()
    await rig.array.fail_disk(0)
    await rig.compare()


async def test_a_first_write_is_durable_before_a_record_of_it_though_the_mode_changed() -> None:
    """A restripe that begins has the log take what `journal=none` has put to its place before."""
    rig = await spied("raid1", 2, chunk_bytes=CHUNK, reads_zero=False)
    await rig.array.set("journal", "none")
    journal, order = rig.array.context.journal, []
    log = rig.array.member_set.config.regions.log

    def note(touch: Touch) -> None:
        if touch.offset_bytes >= rig.data.offset:
            journal.force(True)
        if touch.offset_bytes >= log.offset:
            flushes = len(rig.log.of(FLUSH, member=touch.member))
            order.append((touch.offset_bytes >= rig.data.offset, touch.member, flushes))

    rig.log.hook = note
    await rig.put(0, b"x" * 512)
    rig.log.hook = None
    placed = {member: flushes for is_data, member, flushes in order if is_data}
    recorded = {member: flushes for is_data, member, flushes in order if not is_data}
    assert len(recorded) == 2
    assert all(recorded[member] > placed[member] for member in recorded)


async def test_who_waits_for_a_record_to_be_placed_lets_time_pass_until_it_is_written() -> None:
    """A checkpoint that the record in front stops has nothing to do: tasks would turn for ever."""
    async with gated("raid5", 3, "full") as (array, members):
        journal, written = array.context.journal, trio.Event()
        for member in members:
            member.data_offset = array.member_set.config.regions.log.offset
            member.open = written
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.discard, 40 * CHUNK, 4 * CHUNK)
            await trio.sleep(0.1)
            before, behind = journal.placements, journal.ring.next_sequence
            nursery.start_soon(journal.place_before, behind)
            await trio.sleep(1.0)
            assert journal.placements - before <= 2
            written.set()
        assert journal.ring.placed_tail[0] >= behind
