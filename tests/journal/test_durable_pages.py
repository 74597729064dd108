"""Head pages and map pages: what a flush makes durable, and what may be overwritten then."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.journal.ring import HEAD_BYTES
from raidx_fuse.members.base import ReadBuffer
from tests.support.gated import Gate, gated

CHUNK = 4096


async def test_an_epoch_begins_when_its_head_page_is_durable() -> None:
    """Its records overwrite those of the epoch before, which count as long as that page does."""
    members = [Gate(f"gate{number}") for number in range(3)]
    config = await create_array(members, "raid5", chunk_bytes=CHUNK, name="g", now_s=0)
    log = config.regions.log
    for member in members:
        member.written.clear()
    async with open_array(members):
        for member in members:
            kinds = [
                "head" if log.offset <= offset < log.offset + HEAD_BYTES else "flush"
                for offset, content in member.written
                if not content or log.offset <= offset < log.offset + HEAD_BYTES
            ]
            assert kinds[-2:] == ["head", "flush"]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_the_tail_is_durable_when_a_flush_covers_its_page(early: bool, late: bool) -> None:
    """Not if the page is written again meanwhile, from *early* before or until *late* after it."""
    async with gated("raid5", 3, "partial") as (array, members):
        ring = array.context.journal.ring
        await array.write(0, b"t" * 512)
        meanwhile = before = ring.durable_tail
        await ring.move_tail((ring.next_sequence, ring.position, 0))  # saved, not durable
        await array.write(4 * CHUNK, b"u" * 512)
        tail = ring.next_sequence, ring.position, 0
        written, flushed = trio.Event(), trio.Event()
        for member in members:
            member.flush_open = flushed
            member.open, member.data_offset = written, 0
        async with trio.open_nursery() as nursery:
            if early:
                nursery.start_soon(ring.move_tail, tail)
                await trio.sleep(0.01)
            nursery.start_soon(array.flush)
            await trio.sleep(0.01)
            if not early:
                nursery.start_soon(ring.move_tail, tail)
                await trio.sleep(0.01)
            if late:
                flushed.set()
                await trio.sleep(0.01)
                meanwhile = ring.durable_tail
            written.set()
            await trio.sleep(0.01)
            flushed.set()
        assert meanwhile == before, "its page is being overwritten"
        assert ring.durable_tail == before, "its page may be torn, and an older one counts then"
        await array.flush()
        assert ring.durable_tail == tail


async def test_a_page_that_is_being_written_when_a_flush_begins_is_not_durable_by_it() -> None:
    """The next save goes to the same slot and leaves the durable one; after a flush they change."""
    async with gated("raid0", 2, "none") as (array, members):
        pages = array.context.written.pages
        written = trio.Event()
        for member in members:
            member.open, member.data_offset = written, 0
            member.written.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pages.save, [0])
            await trio.sleep(0.01)
            await array.flush()
            written.set()
        await pages.save([0])
        await array.flush()
        await pages.save([0])
        for member in members:
            one, other, third = [offset for offset, content in member.written if content]
            assert one == other != third


async def test_a_page_that_is_saved_while_a_flush_runs_is_not_durable_by_it() -> None:
    async with gated("raid0", 2, "none") as (array, members):
        pages = array.context.written.pages
        await pages.save([0])
        flushed = trio.Event()
        for member in members:
            member.flush_open = flushed
            member.written.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.flush)
            await trio.sleep(0.01)
            await pages.save([0])
            flushed.set()
        await pages.save([0])
        for member in members:
            one, other = [offset for offset, content in member.written if content]
            assert one == other, "the copy in the other slot is the durable one"


async def test_space_and_stripes_are_free_when_the_tail_behind_them_is_durable() -> None:
    async with gated("raid5", 3, "partial") as (array, _members):
        journal = array.context.journal
        ring = journal.ring
        await array.write(0, b"0" * 512)
        for stripe in itertools.cycle(range(4, 30)):
            used = ring.position - ring.durable_tail[1]
            if used >= ring.capacity // 8:  # not so much that it is placed by itself
                break
            await array.write(2 * stripe * CHUNK, b"s" * CHUNK)
        kept = ring.capacity - used
        assert not ring.has_room(512, kept)
        await journal.place()
        assert not ring.has_room(512, kept), "a replay still needs what lies there"
        most = 2 * CHUNK - 1024  # of its stripe: one record with the parity, none follows
        await array.write(2 * CHUNK + 512, b"1" * most)
        await array.flush()
        assert ring.has_room(512, kept)
        assert not journal.holds(0)
        assert journal.holds(1), "its record is the first that would be replayed"


@pytest.mark.parametrize("seed", range(10))
async def test_pages_reach_every_member_in_the_order_of_their_generations(seed: int) -> None:
    """Chunks that are first written side by side save one page of the written map repeatedly."""
    async with gated("raid0", 2, "none") as (array, members):
        generator = random.Random(seed)
        region = array.member_set.config.regions.written
        newest = [0] * len(members)

        async def late(number: int, offset: int, buffers: Sequence[ReadBuffer]) -> None:
            await trio.sleep(generator.random())
            if region.offset <= offset < region.end:
                generation = int.from_bytes(b"".join(buffers)[8:16], "little")
                assert generation > newest[number]
                newest[number] = generation
            await members[number].inner.writev(offset, buffers)

        for number, member in enumerate(members):
            monkey = functools.partial(late, number)
            member.writev = monkey  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            for chunk in range(64, 76):
                nursery.start_soon(array.write, chunk * CHUNK, b"w" * CHUNK)
        assert min(newest) > 1
