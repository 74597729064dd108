"""Pages of the maps: of two saves at once, the later one stays, on every member."""

from __future__ import annotations

import errno

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import MemberError
from raidx_fuse.format.pages import load_pages
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.ram import RamMember
from tests.support.spy import FLUSH, WRITE, SpyRig, locked, spied


async def saved_bits(rig: SpyRig) -> list[int]:
    """Return the first byte of the written map as each member has it."""
    pages = rig.array.context.written.pages
    uuid = pages.member_set.config.array_uuid
    return [
        int((await load_pages(ram, pages.region, uuid, pages.pages)).payload[0][0])
        for ram in rig.rams
    ]


async def test_a_later_save_of_a_page_is_not_overtaken_by_an_earlier_one() -> None:
    rig = await spied("raid5", 3, chunk_bytes=4096, slow=True)
    written = rig.array.context.written
    for member in rig.members:
        member.slow(1.0, ("write",), count=1)  # the first of them; the second is faster
    async with trio.open_nursery() as nursery:
        nursery.start_soon(written.mark, [0])
        await trio.sleep(0.1)
        nursery.start_soon(written.mark, [1])
    member_set = written.pages.member_set
    for ram in rig.rams:
        region, uuid = written.pages.region, member_set.config.array_uuid
        found = await load_pages(ram, region, uuid, written.pages.pages)
        assert int(found.payload[0][0]) & 3 == 3, f"{ram.path} forgot the later save"


async def test_a_flush_during_a_save_does_not_stand_for_it() -> None:
    """Else the next save takes the other slot, and a cut leaves a member without either copy."""
    rig = await spied("raid5", 3, chunk_bytes=4096, slow=True)
    written = rig.array.context.written
    region = written.pages.region
    rig.members[0].slow(1.0, ("write",), count=1)
    rig.log.touches.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(written.mark, [0])
        await trio.sleep(0.1)
        await rig.array.flush()
    await written.mark([1])
    places = [t.offset_bytes for t in rig.log.touches if t.kind == WRITE]
    assert len(places) == 2 * 3
    assert set(places) <= {region.slot_offset(0, slot) for slot in (0, 1)}
    assert len(set(places)) == 1


async def test_a_checkpoint_keeps_what_was_written_past_the_log_meanwhile() -> None:
    """Found by the crash campaign: the page went back, and flushed chunks read as zeros."""
    rig = await spied("raid0", 2, chunk_bytes=4096)
    context = rig.array.context
    journal, member_set = context.journal, context.member_set
    with locked(context, 0):
        assert await journal.commit([0], [], [0])
    flush = member_set.flush

    async def write_meanwhile() -> None:
        patched.undo()
        await flush()
        with locked(context, 1):
            assert await journal.commit([1], [], [2])
        await context.written.mark([1])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(member_set, "flush", write_meanwhile)
        await journal.place()
    assert set(await saved_bits(rig)) == {0b011}, "chunk 2 has a record only"
    await journal.place()
    assert set(await saved_bits(rig)) == {0b111}


async def test_a_bit_that_only_a_record_sets_is_saved_with_nothing_but_its_checkpoint() -> None:
    """A crash that drops the record would make the chunk written, with its former content."""
    rig = await spied("raid0", 2, chunk_bytes=4096)
    context = rig.array.context
    await context.written.mark([3])
    with locked(context, 0):
        assert await context.journal.commit([0], [], [0], unwritten=[3])
    await context.written.mark([1])
    assert set(await saved_bits(rig)) == {0b1010}
    await context.journal.place()
    assert set(await saved_bits(rig)) == {0b0011}


async def test_what_a_new_member_gets_has_no_bit_that_only_a_record_sets() -> None:
    """A cut that keeps the page and drops the record would show what lay in the chunk before."""
    rig = await spied("raid0", 2, chunk_bytes=4096)
    context = rig.array.context
    await context.written.mark([3])
    with locked(context, 0):
        assert await context.journal.commit([0], [], [0])
    for pages in context.member_set.page_stores:
        await pages.save_all()
    assert set(await saved_bits(rig)) == {0b1000}
    await context.journal.place()
    for pages in context.member_set.page_stores:
        await pages.save_all()
    assert set(await saved_bits(rig)) == {0b1001}


async def test_what_a_new_member_gets_of_the_chunk_table_has_only_durable_moves() -> None:
    """A cut that keeps the page and drops the record would place a chunk where it never was."""
    rig = await spied("raidx-copy", 4, chunk_bytes=4096)
    context = rig.array.context
    layout = context.layout
    assert isinstance(layout, BundleLayout)
    table = context.journal.chunk_table
    await rig.put(0, bytes(range(256)) * 64)
    await context.journal.place()
    mover = ChunkMover(context, layout)
    exchanges = (mover.exchange(0, cell) for cell in range(layout.cells))
    assert await mover.move(next(m for m in exchanges if mover.problem(m) is None))
    rig.log.clear()
    await table.save_all()
    log_members = {rig.members[role].path for role in context.journal.log_members.roles}
    kinds = [(touch.kind, touch.member) for touch in rig.log.touches]
    first_page = next(n for n, (kind, _member) in enumerate(kinds) if kind == WRITE)
    flushed = {member for kind, member in kinds[:first_page] if kind == FLUSH}
    assert log_members <= flushed, "a page was written before the record was durable"


async def test_a_new_member_that_any_round_of_superblocks_names_has_its_share() -> None:
    """Found by the crash campaign: a growth saved its position first, and the start was refused."""
    content = bytes(range(256)) * 64

    rig = await spied("raidx-copy", 4, chunk_bytes=4096)
    context = rig.array.context
    layout, table = context.layout, context.journal.chunk_table
    assert isinstance(layout, BundleLayout)
    await rig.put(0, content)
    mover = ChunkMover(context, layout)
    others = [c for c in range(layout.cells) if layout.disk[c] != layout.disk[0]]
    exchanges = (mover.exchange(0, cell) for cell in others)
    assert await mover.move(next(m for m in exchanges if mover.problem(m) is None))
    await context.journal.drain()
    role = Role(int(layout.disk[0]))
    await rig.array.fail_disk(role)
    new = RamMember(rig.rams[role].size_bytes, name="new")
    disks: list[RamMember] = []

    async def cut() -> None:
        await context.member_set.update(lambda config: config)
        for ram in [*(ram for n, ram in enumerate(rig.rams) if n != role), new]:
            disks.append(RamMember(ram.size_bytes, name=ram.path))
            disks[-1].memory[:] = ram.memory
        patched.undo()
        await table.save_all()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table, "save_all", cut)
        await rig.array.replace_disk(role, new)
    async with open_array(disks) as again:
        assert bytes(await again.read(0, len(content))) == content


async def test_a_checkpoint_that_fails_leaves_its_bits_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await spied("raid0", 2, chunk_bytes=4096)
    context = rig.array.context
    journal, member_set = context.journal, context.member_set
    with locked(context, 0):
        assert await journal.commit([0], [], [0])

    async def fail() -> None:
        raise MemberError("ram0", "flush", 0, errno.EIO)

    with monkeypatch.context() as patched:
        patched.setattr(member_set, "flush", fail)
        with pytest.raises(MemberError):
            await journal.place()
    await context.written.mark([1])
    assert set(await saved_bits(rig)) == {0b10}
    await journal.place()
    assert set(await saved_bits(rig)) == {0b11}
