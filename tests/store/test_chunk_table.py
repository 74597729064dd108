"""The chunk table on disk: lost, torn and erased shares are recovered or reported."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import AssemblyError
from raidx_fuse.format.regions import PageRegion
from raidx_fuse.format.table_page import shares_of
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import Rig
from tests.support.load import opened

CHUNKS = (44, 30, 36, 24)
KINDS = [("raidx-zero", 1), ("raidx-copy", 2), ("raidx-copy", 3), ("raidx-parity", 3)]


def layout_of(rig: Rig) -> BundleLayout:
    layout = rig.array.context.layout
    assert isinstance(layout, BundleLayout)
    return layout


async def shuffled(name: str, length: int, seed: int = 1) -> Rig:
    """Return a rig whose every member has chunks that were moved onto it."""
    rig = Rig(name, len(CHUNKS), member_chunks=CHUNKS, params={"length": length})
    array = await rig.create()
    rng = random.Random(seed)
    data = rng.randbytes(len(rig.model) // 2)
    await rig.put(0, data)
    layout = layout_of(rig)
    mover = ChunkMover(array.context, layout)
    targets: set[int] = set()
    while len(targets) < len(CHUNKS):
        moves = mover.exchange(rng.randrange(layout.cells), rng.randrange(layout.cells))
        if moves[0][1] != moves[1][1] and mover.problem(moves) is None:
            assert await mover.move(moves)
            targets |= {role for _cell, role, _chunk in moves}
    return rig


def memory_of(rig: Rig, role: int) -> memoryview:
    inner = rig.members[role].inner
    assert isinstance(inner, RamMember)
    return inner.memory


def share_of(rig: Rig, role: int) -> PageRegion:
    return shares_of(rig.array.member_set.config)[role]


def damage(rig: Rig, role: int, region: PageRegion, slots: tuple[int, ...]) -> None:
    """Change a byte in the payload of *slots* of page 0 of *region*."""
    for slot in slots:
        memory_of(rig, role)[region.slot_offset(0, slot) + 100] ^= 0xFF


@pytest.mark.parametrize(("name", "length"), KINDS)
@pytest.mark.parametrize("slot", [0, 1])
async def test_one_rotten_slot_loses_nothing_and_is_healed(
    name: str, length: int, slot: int
) -> None:
    rig = await shuffled(name, length)
    region = share_of(rig, 1)
    await rig.close()
    damage(rig, 1, region, (slot,))
    array = await rig.open()
    assert any("table: page 0" in text for s in array.member_set.page_stores for text in s.damaged)
    await rig.compare()
    array = await rig.reopen()
    assert not any(text for s in array.member_set.page_stores for text in s.damaged)
    await rig.compare()
    await rig.close()


async def test_a_rotten_slot_is_healed_though_the_page_says_what_it_said_at_first() -> None:
    """A chunk left and came back: no difference tells that the page has to be written again."""
    rig = await opened(Rig("raidx-zero", len(CHUNKS), member_chunks=CHUNKS, params={"length": 1}))
    array = rig.array
    layout = layout_of(rig)
    mover = ChunkMover(array.context, layout)
    cell, free = int(layout.cells_of(1)[3]), int(layout.free_chunks(0)[0])
    assert await mover.move([(cell, 0, free)])
    await array.context.journal.drain()
    assert await mover.move([(cell, 1, 3)])
    region = share_of(rig, 1)
    await rig.close()
    damage(rig, 1, region, (0,))
    array = await rig.open()
    assert any(text for s in array.member_set.page_stores for text in s.damaged)
    array = await rig.reopen()
    assert not any(text for s in array.member_set.page_stores for text in s.damaged)


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
async def test_two_pages_that_claim_a_chunk_are_reported(before: int, after: int) -> None:
    """An old page of the member that the chunk has left, on its way from a third one."""
    rig = Rig("raidx-zero", len(CHUNKS), member_chunks=CHUNKS, params={"length": 1})
    array = await rig.create()
    cell = int(layout_of(rig).cells_of(2)[3])
    region = share_of(rig, before)
    end = region.offset + region.length
    for role in (before, after):
        layout = layout_of(rig)
        mover = ChunkMover(array.context, layout)
        assert await mover.move([(cell, role, int(layout.free_chunks(role)[0]))])
        await rig.close()
        if role == before:
            old = bytes(memory_of(rig, before)[region.offset : end])
            array = await rig.open()
    memory_of(rig, before)[region.offset : end] = old
    with pytest.raises(AssemblyError, match="both claim chunk"):
        await rig.open()


async def test_a_page_that_a_replayed_move_overrules_is_written_again() -> None:
    """A chunk moved twice, and only the first move was placed: then two pages claim it."""
    rig = Rig("raidx-zero", len(CHUNKS), member_chunks=CHUNKS, params={"length": 1})
    array = await rig.create()
    data = random.Random(1).randbytes(len(rig.model))
    await array.write(0, data)
    layout = layout_of(rig)
    mover = ChunkMover(array.context, layout)
    cell = int(layout.cells_of(2)[3])
    assert await mover.move([(cell, 0, int(layout.free_chunks(0)[0]))])
    await array.context.journal.drain()
    assert await mover.move([(cell, 1, int(layout.free_chunks(1)[0]))])
    await array.flush()  # the record is durable, its pages are not written
    copies = []
    for role in range(len(CHUNKS)):
        copy = RamMember(len(memory_of(rig, role)), name=f"copy{role}")
        copy.memory[:] = memory_of(rig, role)
        copies.append(copy)
    await rig.close()
    for records in (1, 0):
        async with open_array(copies) as recovered:
            assert recovered.replayed is not None
            assert recovered.replayed.records == records
            table = recovered.context.layout
            assert isinstance(table, BundleLayout)
            assert table.disk[cell] == 1
            assert bytes(await recovered.read(0, len(data))) == data


@pytest.mark.parametrize(("name", "length"), KINDS)
async def test_a_lost_share_costs_its_member_or_is_reported(name: str, length: int) -> None:
    rig = await shuffled(name, length)
    region = share_of(rig, 2)
    await rig.close()
    damage(rig, 2, region, (0, 1))
    if name == "raidx-zero":
        with pytest.raises(AssemblyError, match="share of the look-up table is lost"):
            await rig.open()
        return
    array = await rig.open()
    assert any("share of the look-up table is lost" in text for text in array.warnings)
    assert array.member_set.lost == {2}
    await rig.compare()
    await rig._step_write(0.3, 0.9, 5)
    await rig._step_replace()
    await rig._step_settle()
    assert not array.member_set.lost
    await rig._step_scrub()
    await rig.compare()
    await rig.reopen()
    await rig.compare()
    await rig.close()


@pytest.mark.parametrize(("name", "length"), KINDS)
async def test_a_wiped_share_is_noticed(name: str, length: int) -> None:
    """It looks like one that was never written, but the others tell another story."""
    rig = await shuffled(name, length)
    region = share_of(rig, 0)
    await rig.close()
    end = region.offset + region.length
    memory_of(rig, 0)[region.offset : end] = bytes(region.length)
    with pytest.raises(AssemblyError, match=r"claim|no member's share"):
        await rig.open()


@pytest.mark.parametrize(("name", "length"), KINDS)
async def test_a_share_of_another_member_or_moment_is_noticed(name: str, length: int) -> None:
    """An old copy of a page, whole and of the right member, put back in both slots."""
    rig = await shuffled(name, length)
    array = await rig.reopen()
    region = share_of(rig, 0)
    end = region.offset + region.length
    old = bytes(memory_of(rig, 0)[region.offset : end])
    layout = layout_of(rig)
    mover = ChunkMover(array.context, layout)
    cell = int(layout.cells_of(0)[3])
    for other in range(layout.cells):
        moves = mover.exchange(cell, other)
        if moves[0][1] != 0 and mover.problem(moves) is None:
            assert await mover.move(moves)
            break
    await rig.close()
    memory_of(rig, 0)[region.offset : end] = old
    with pytest.raises(AssemblyError, match=r"claim|no member's share"):
        await rig.open()


@pytest.mark.parametrize("lost", [(0,), (3,), (1, 2)])
async def test_what_absent_members_held_is_rebuilt_elsewhere_on_them(lost: tuple[int, ...]) -> None:
    rig = await shuffled("raidx-copy", 3)
    await rig.close()
    rig.members = [m for role, m in enumerate(rig.members) if role not in lost]
    array = await rig.open()
    assert array.member_set.lost == set(lost)
    assert layout_of(rig).problem(range(layout_of(rig).cells)) is None
    await rig.compare()
    await rig._step_write(0.1, 1.0, 9)
    for _ in lost:
        await rig._step_replace()
        await rig._step_settle()
    await rig._step_scrub()
    array = await rig.reopen()
    assert not array.member_set.lost
    assert layout_of(rig).problem(range(layout_of(rig).cells)) is None
    await rig.compare()
    await rig.close()


async def test_a_truncated_large_member_is_left_out() -> None:
    rig = await shuffled("raidx-parity", 3)
    needed = share_of(rig, 0)
    await rig.close()
    short = RamMember(needed.offset + needed.length - 512, name="short")
    short.memory[:] = memory_of(rig, 0)[: short.size_bytes]
    async with open_array([short, *rig.members[1:]]) as array:
        assert set(array.member_set.lost) == {0}
        assert "short has" in array.warnings[0]
        assert "bytes, but the array needs" in array.warnings[0]


async def test_a_member_that_comes_back_as_a_new_one_brings_no_share_along() -> None:
    """Its old share names a chunk that another member has again; nobody would write the page."""
    rig = await opened(Rig("raidx-copy", len(CHUNKS), member_chunks=CHUNKS, params={"length": 2}))
    array = rig.array
    rig.model[:] = random.Random(1).randbytes(len(rig.model))
    await array.write(0, bytes(rig.model))
    layout = layout_of(rig)
    mover = ChunkMover(array.context, layout)
    free = int(layout.free_chunks(1)[0])
    cell = next(c for c in layout.cells_of(2).tolist() if not mover.problem([(c, 1, free)]))
    home = layout.place(*divmod(cell, 2))
    assert await mover.move([(cell, 1, free)])
    await array.context.journal.drain()
    before = rig.members.pop(1)
    old = RamMember(before.size_bytes, name="old")
    assert isinstance(before.inner, RamMember)
    old.memory[:] = before.inner.memory
    assert await mover.move([(cell, *home)])
    array = await rig.reopen()
    await array.replace_disk(1, old)
    rig.members.append(FaultMember(old))
    await rig._step_settle()
    array = await rig.reopen()
    assert layout_of(rig).place(*divmod(cell, 2)) == home
    await rig.compare()


async def test_the_second_slot_is_written_when_the_first_one_is_durable() -> None:
    """A cut may tear all that was written since the last flush: never both slots of a page."""
    rig = await shuffled("raidx-parity", 3)
    member_set = rig.array.member_set
    regions = shares_of(member_set.config)
    story: list[str] = []
    write, flush = member_set.write, member_set.flush

    async def watched_write(requests: Any, *, background: bool = False) -> None:
        for role, offset, _buffers, _size in requests:
            region = regions[role]
            if region.offset <= offset < region.offset + region.length:
                story.append(f"slot {(offset - region.offset) // 4096 % 2}")
        await write(requests, background=background)

    async def watched_flush() -> None:
        story.append("flush")
        await flush()

    member_set.write, member_set.flush = watched_write, watched_flush  # type: ignore[method-assign]
    await rig.array.context.journal.place()
    steps = [what for i, what in enumerate(story) if not i or story[i - 1] != what]
    assert steps == ["flush", "slot 0", "flush", "slot 1", "flush"]
    await rig.close()
