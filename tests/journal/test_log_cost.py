"""The cost of the log, counted: flush rounds, copies of records, checkpoint writes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio

from raidx_fuse.format.log_record import (
    DATA,
    RecordBody,
    decode_record,
    encode_record,
)
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.store.overlay import Overlay
from tests.support.spy import FLUSH, WRITE, SpyRig, noise, placed, spied

CHUNK = 16384
PAGE = 4096
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width"), [("raid5", 4), ("raid4", 3), ("raid1", 2), ("rdp", 4), ("upc", 4)]
)
LOGGING_MODES = pytest.mark.parametrize("mode", ["partial", "full"])


def flushes(rig: SpyRig) -> Counter[str]:
    """Return how often each member was flushed."""
    return Counter(touch.member for touch in rig.log.touches if touch.kind == FLUSH)


@LAYOUTS
@LOGGING_MODES
@pytest.mark.parametrize("slow", [False, True], ids=["at-once", "queued"])
async def test_fsync_after_a_small_write_is_one_flush_of_the_log_members(
    layout: str, width: int, mode: str, slow: bool
) -> None:
    rig = await placed(layout, width, chunk_bytes=CHUNK, rows=4, slow=slow, journal=mode)
    array = rig.array
    regions = array.member_set.config.regions
    await rig.put(5 * PAGE, noise(PAGE, 1))
    written = [touch for touch in rig.log.touches if touch.kind == WRITE]
    logged = [t for t in written if regions.log.offset <= t.offset_bytes < regions.log.end]
    assert len(logged) == array.context.code.tolerance + 1, "a record on each log member"
    assert written == logged, "nothing else before the flush"
    await array.flush()
    assert set(flushes(rig).values()) == {1}
    assert len(flushes(rig)) == array.context.code.tolerance + 1


@LAYOUTS
@LOGGING_MODES
async def test_fsync_after_each_small_write_is_at_most_two_flush_rounds_all_told(
    layout: str, width: int, mode: str
) -> None:
    """With everything that goes on behind: places, maps, heads, the end of the ring."""
    rig = await placed(layout, width, chunk_bytes=CHUNK, rows=4, slow=True, journal=mode)
    rng = random.Random(7)
    pages = len(rig.model) // PAGE
    count = 400
    placements = rig.array.context.journal.placements
    for number in range(count):
        await rig.put(rng.randrange(pages) * PAGE, noise(PAGE, number))
        await rig.array.flush()
        await trio.sleep(0.01)
    assert rig.array.context.journal.placements > placements, "places were written meanwhile"
    assert max(flushes(rig).values()) <= 2 * count
    await rig.compare()


@pytest.mark.parametrize("at_once", [False, True], ids=["waits", "is shown at once"])
async def test_what_is_not_logged_yet_is_not_placed(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small write whose record waits in the queues, while a placement begins.

    If readers see it already, the placement waits for its record.
    """
    rig = await placed("raid1", 2, chunk_bytes=CHUNK, slow=True, journal="partial")
    journal = rig.array.context.journal
    await rig.put(0, noise(512, 1))
    rig.log.clear()
    if not at_once:
        monkeypatch.setattr(journal, "commit_now", lambda *_: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.put, 3 * CHUNK, noise(512, 2))
        await trio.lowlevel.checkpoint()
        await journal.place()
    written = [touch.offset_bytes for touch in rig.log.touches if touch.kind == WRITE]
    assert rig.data.offset in written
    assert (rig.data.offset + 3 * CHUNK in written) == at_once
    in_log = [index for index, at in enumerate(written) if at < rig.data.offset]
    in_place = [index for index, at in enumerate(written) if at >= rig.data.offset]
    assert not at_once or max(in_log[:2]) < min(in_place)
    await rig.compare()


def logged_bytes(rig: SpyRig) -> int:
    """Return how much went to the log of all members."""
    log = rig.array.member_set.config.regions.log
    return sum(
        touch.size_bytes
        for touch in rig.log.touches
        if touch.kind == WRITE and log.offset <= touch.offset_bytes < log.end
    )


async def test_a_checkpoint_writes_to_all_members_at_once() -> None:
    """Each did its share after the one before had ended: one of five disks was busy."""
    rig = await spied("raid0", 4, stripes=40, chunk_bytes=PAGE, slow=True)
    await rig.array.set("journal", "full")
    for chunk in range(0, 4 * 40):
        await rig.put(chunk * PAGE, noise(512, chunk))
    rig.log.clear()
    await rig.in_place()
    places = rig.log.of(WRITE, rig.array.member_set.config.regions.data)
    order = [touch.member for touch in places]
    assert len(set(order)) == 4 <= min(Counter(order).values())
    assert max(map(order.index, order)) < len(order) // 2, "the last one to begin"


def test_places_come_in_rounds_with_a_portion_of_each_role() -> None:
    overlay = Overlay()
    pages = {Role(role): random.Random(role).sample(range(5000), 700) for role in (0, 2, 63)}
    for role, of_role in pages.items():
        for page in of_role:
            overlay.put(role, page * PAGE, bytes(PAGE))
    overlay.freeze()
    rounds = list(overlay.frozen_writes([*pages, Role(5)]))
    assert all(rounds[0][role] for role in pages)
    assert Role(5) not in rounds[0]
    for role, of_role in pages.items():
        writes = [write for portions in rounds for write in portions.get(role, [])]
        assert [w[0] for w in writes] == sorted(w[0] for w in writes)
        found = [at + n for at, _, size in writes for n in range(0, size, PAGE)]
        assert found == [page * PAGE for page in sorted(of_role)]
    assert {role for portions in overlay.frozen_writes([Role(2)]) for role in portions} == {2}


async def test_of_requests_that_end_inside_stripes_only_the_ends_are_logged() -> None:
    """Requests of 4 chunks on stripes of 3: of 12 chunks, the log has the 1 and 2 before an end."""
    rig = await placed("raid5", 4, chunk_bytes=PAGE, stripes=1500, journal="partial")
    for number in range(3):
        await rig.put(number * 4 * PAGE, noise(4 * PAGE, number))
    copies = 2
    assert 0 <= logged_bytes(rig) - 3 * PAGE * copies < 2 * PAGE
    assert not rig.array.context.journal.overlay, "whole stripes are in their places"
    await rig.compare()


async def test_the_log_gives_up_what_keeps_stripes_from_being_closed() -> None:
    rig = await placed("raid5", 4, chunk_bytes=PAGE, stripes=1500, journal="partial")
    await rig.put(5 * PAGE, noise(512, 5))  # in the last chunk of the second stripe
    journal, logged = rig.array.context.journal, []
    for turn in range(3):
        before = journal.ring.position
        for number in range(2):
            await rig.put(number * 4 * PAGE, noise(4 * PAGE, 2 * turn + number))
        logged.append((journal.ring.position - before) // PAGE)
        await trio.sleep(0.1)
    # First also what ends the second stripe.
    assert logged == [5, 3, 3]
    await rig.compare()


async def test_without_the_log_nothing_is_logged_from_the_first_write_on() -> None:
    """Not even into stripes of which the log had something when it was switched off."""
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, rows=4, journal="partial")
    await rig.put(0, noise(PAGE, 1))
    await rig.array.set("journal", "none")
    rig.log.clear()
    await rig.put(PAGE, noise(PAGE, 2))
    assert logged_bytes(rig) == 0
    await rig.compare()


def test_packed_entries_are_the_record_that_fields_are() -> None:
    for count in (3, 700):  # 700 are packed one by one
        numbers = list(range(count))
        fields = [field for n in numbers for field in (DATA, n % 5, 2, n << 33)]
        packed = RecordBody()
        roles, offsets = [n % 5 for n in numbers], [n << 33 for n in numbers]
        packed.add_blocks(roles, 2, offsets, b"ab" * count)
        listed = RecordBody(fields, b"", [b"ab" * count], 2 * count)
        both = RecordBody(fields[:4], packed.packed[16:], packed.buffers, 2 * count)
        records = [encode_record(3, 4, 512, bytes(16), body) for body in (listed, packed, both)]
        assert records[0] == records[1] == records[2]
        found = decode_record(records[0])
        assert found is not None
        assert found.data[-1] == ((count - 1) % 5, count - 1 << 33, b"ab")
        assert listed.entries == packed.entries == both.entries == count
