"""Dirty marks: set before the writes that they protect, cleared only after them.

Each order is forced by a flush that waits; what a crash would find is what was saved so far.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from raidx_fuse.store.page_store import PageStore

STRIPES = 64
STRIPE_BYTES = 8192
PAYLOAD_BYTES = 64


class Pages(PageStore):
    """One page; *saved* is what the members hold of it."""

    def __init__(self, content: bytes = bytes(PAYLOAD_BYTES)) -> None:
        self.payload = bytearray(content)
        self.payload_bytes = PAYLOAD_BYTES
        self.saved = content

    async def save(self, pages: Sequence[int]) -> None:
        await trio.lowlevel.checkpoint()
        if pages:
            self.saved = bytes(self.payload)


class Marks:
    """A dirty map whose flushes wait for *open*; *resync*, regions in flight at the last crash."""

    def __init__(self, *resync: int) -> None:
        self.pages = Pages(sum(1 << region for region in resync).to_bytes(PAYLOAD_BYTES, "little"))
        self.open = trio.Event()
        self.open.set()
        self.flushed: list[bytes] = []  # what was saved when each flush began
        self.map = DirtyBitmap(STRIPES, STRIPE_BYTES, self.pages, self.flush)

    async def flush(self) -> None:
        self.flushed.append(self.pages.saved)
        await self.open.wait()

    def stripe(self, region: int) -> int:
        return self.map.stripes_of(region).start

    def saved(self) -> set[int]:
        bits = int.from_bytes(self.pages.saved, "little")
        return {region for region in range(PAYLOAD_BYTES * 8) if bits >> region & 1}


async def test_nobody_writes_to_a_region_before_its_mark_is_durable() -> None:
    marks = Marks()
    marks.open = trio.Event()
    stripe = marks.stripe(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(marks.map.enter, [stripe])
        await trio.sleep(1)
        assert marks.saved() == {3}
        assert not marks.map.enter_now([stripe])
        assert not marks.map.touch(stripe)
        marks.open.set()
    assert marks.map.enter_now([stripe])


async def test_a_mark_is_cleared_when_the_writes_it_stood_for_are_durable() -> None:
    marks = Marks()
    await marks.map.enter([marks.stripe(3)])
    marks.map.leave([marks.stripe(3)])
    marks.flushed.clear()
    marks.open = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: marks.map.clean_quiet(all_regions=True))
        await trio.sleep(1)
        assert marks.saved() == {3}
        assert len(marks.flushed) == 1
        marks.open.set()
    assert not marks.saved()


async def test_the_mark_of_a_write_under_way_stays() -> None:
    marks = Marks()
    await marks.map.enter([marks.stripe(3)])
    await marks.map.clean_quiet(all_regions=True)
    assert marks.saved() == {3}
    marks.map.leave([marks.stripe(3)])
    await marks.map.clean_quiet()
    assert marks.saved() == {3}, "it was written to since the last look"
    await marks.map.clean_quiet()
    assert not marks.saved()


async def test_a_mark_that_is_set_again_while_it_is_cleared_stays() -> None:
    marks = Marks()
    await marks.map.enter([marks.stripe(3)])
    marks.map.leave([marks.stripe(3)])
    marks.open = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: marks.map.clean_quiet(all_regions=True))
        await trio.sleep(1)
        nursery.start_soon(marks.map.enter, [marks.stripe(3)])
        await trio.sleep(1)
        marks.open.set()
    assert marks.map.touch(marks.stripe(3))
    assert marks.saved() == {3}


async def test_a_mark_set_again_while_it_is_cleared_twice_stays_until_its_own_flush() -> None:
    marks = Marks()
    await marks.map.enter([marks.stripe(3)])
    marks.map.leave([marks.stripe(3)])
    first = marks.open = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: marks.map.clean_quiet(all_regions=True))
        await trio.sleep(1)
        marks.open = trio.Event()
        marks.open.set()
        await marks.map.enter([marks.stripe(3)])
        marks.map.leave([marks.stripe(3)])
        second = marks.open = trio.Event()
        nursery.start_soon(lambda: marks.map.clean_quiet(all_regions=True))
        await trio.sleep(1)
        first.set()
        await trio.sleep(1)
        assert marks.saved() == {3}, "no flush covers the second write"
        second.set()
    assert not marks.saved()


async def test_a_region_that_awaits_its_resync_stays_marked_whoever_writes_there() -> None:
    marks = Marks(2, 3)
    await marks.map.enter([marks.stripe(3)])
    marks.map.leave([marks.stripe(3)])
    await marks.map.clean_quiet(all_regions=True)
    assert marks.saved() == {2, 3}


async def test_a_resync_leaves_the_marks_of_writes_under_way() -> None:
    marks = Marks(2, 3)
    await marks.map.enter([marks.stripe(3)])
    marks.map.note_resynced(marks.map.stripes_of(3).stop)
    await marks.map.forget_resynced()
    assert marks.saved() == {3}
    assert not marks.map.pending_regions()
