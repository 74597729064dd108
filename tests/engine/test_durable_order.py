"""What a flush covers, and what the log may forget, while writes are under way.

Both were found by the crash campaign; here each is forced, without luck.
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from raidx_fuse.array import Array, open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import PAGE_HEADER_BYTES
from raidx_fuse.members.base import ReadBuffer, WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.wrapper import WrapperMember
from raidx_fuse.overlay import Overlay
from raidx_fuse.testing.virtual import run

CHUNK = 4096


class Gate(WrapperMember):
    """A member of which every write to the data region waits for *open*; counts its flushes.

    A flush waits for *flush_open* before it begins, a read for *read_open* when it has read.
    """

    def __init__(self, name: str) -> None:
        super().__init__(RamMember(4 << 20, name=name))
        self.depth = 8
        self.open: trio.Event | None = None
        self.flush_open: trio.Event | None = None
        self.read_open: trio.Event | None = None
        self.written: list[tuple[int, bytes]] = []  # offset and content, as they came
        self.data_offset = 1 << 40
        self.flushes = 0

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        return False

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return False

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        if self.open is not None and offset_bytes >= self.data_offset:
            await self.open.wait()
        await trio.lowlevel.checkpoint()
        self.written.append((offset_bytes, b"".join(buffers)))
        await super().writev(offset_bytes, buffers)

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await super().readv(offset_bytes, buffers)
        if self.read_open is not None:
            await self.read_open.wait()

    async def flush(self) -> None:
        if self.flush_open is not None:
            await self.flush_open.wait()
        self.flushes += 1
        await super().flush()


@asynccontextmanager
async def gated(layout: str, width: int, journal: str) -> AsyncIterator[tuple[Array, list[Gate]]]:
    """Run an array of gates, all of it written and in its place."""
    members = [Gate(f"gate{number}") for number in range(width)]
    await create_array(members, layout, chunk_bytes=CHUNK, name="gates", now_s=0)
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.write(0, bytes(64 * CHUNK))
        await array.core.journal.drain()
        await array.flush()
        for member in members:
            member.data_offset = array.store.data_offset
        yield array, members


def test_a_flush_during_a_write_does_not_stand_for_it() -> None:
    async def main() -> None:
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

    run(main)


@pytest.mark.parametrize("seed", range(20))
def test_the_log_forgets_only_what_readers_see(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record between its landing and its effect is in no overlay: the tail stays before it."""

    async def main() -> None:
        async with gated("raid5", 3, "partial") as (array, _members):
            journal = array.core.journal
            first = journal.ring.next_sequence
            seen = frozen = 0
            take_effect, save_head, freeze = (
                journal.take_effect,
                journal.ring.save_head,
                Overlay.freeze,
            )

            def count(*arguments: object) -> None:
                nonlocal seen
                seen += 1
                take_effect(*arguments)  # type: ignore[arg-type]

            def note(overlay: Overlay) -> None:
                nonlocal frozen
                frozen = seen
                freeze(overlay)

            async def check(tail: tuple[int, int, int]) -> None:
                assert tail[0] - first <= frozen
                await save_head(tail)

            monkeypatch.setattr(journal, "take_effect", count)
            monkeypatch.setattr(journal.ring, "save_head", check)
            monkeypatch.setattr(Overlay, "freeze", note)
            async with trio.open_nursery() as nursery:
                for number in range(12):
                    nursery.start_soon(array.write, 2 * number * CHUNK, b"y" * 512)
                for _ in range(12):
                    nursery.start_soon(journal.place)
            assert seen == 12
            monkeypatch.undo()

    run(main, seed=seed)


def test_a_placement_saves_no_bit_whose_record_is_not_durable() -> None:
    """Else a cut may keep the bit and drop the record: a chunk would live that nobody wrote."""

    async def main() -> None:
        async with gated("raid0", 2, "full") as (array, members):
            await array.write(70 * CHUNK, b"a" * CHUNK)
            flushed = trio.Event()
            for member in members:
                member.flush_open = flushed
                member.written.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(array.core.journal.place)
                await trio.sleep(0.01)  # it waits for the flush of the records so far
                await array.write(71 * CHUNK, b"b" * CHUNK)
                flushed.set()
            region = array.store.config.regions.written
            pages = [
                content[PAGE_HEADER_BYTES:]
                for member in members
                for offset, content in member.written
                if region.offset <= offset < region.end
            ]
            assert pages
            assert {page[70 >> 3] >> (70 & 7) for page in pages} == {1}, "70 is alive, 71 is not"

    run(main)


def test_a_read_that_a_placement_overtook_reads_again() -> None:
    """What it found in the place was older, and when it comes to the overlay that is empty."""

    async def main() -> None:
        async with gated("raid5", 3, "partial") as (array, members):
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
                await array.core.journal.place()
                read.set()
            assert answers == [b"n" * 512 + bytes(512)]

    run(main)


def test_a_drained_log_holds_nothing() -> None:
    async def main() -> None:
        async with gated("raid5", 3, "partial") as (array, _members):
            await array.write(0, b"d" * 512)
            assert array.core.journal.holds(0)
            await array.core.journal.drain()
            assert not array.core.journal.holds(0), "a cut now would still replay the record"

    run(main)


@pytest.mark.parametrize("first", [100, 4096])
def test_a_record_that_ends_inside_a_sector_waits_for_what_lies_beside_it(first: int) -> None:
    """A cut that drops the stripe and keeps the record must not leave half a sector of each."""

    async def main() -> None:
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

    run(main)


@pytest.mark.parametrize("seed", range(10))
def test_pages_reach_every_member_in_the_order_of_their_generations(seed: int) -> None:
    """Chunks that come to life side by side save one page of the written map again and again."""

    async def main() -> None:
        async with gated("raid0", 2, "none") as (array, members):
            generator = random.Random(seed)
            region = array.store.config.regions.written
            newest = [0] * len(members)

            async def late(number: int, offset: int, buffers: Sequence[ReadBuffer]) -> None:
                await trio.sleep(generator.random())
                if region.offset <= offset < region.end:
                    generation = int.from_bytes(b"".join(buffers)[8:16], "little")
                    assert generation > newest[number]
                    newest[number] = generation
                await WrapperMember.writev(members[number], offset, buffers)

            for number, member in enumerate(members):
                monkey = functools.partial(late, number)
                member.writev = monkey  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                for chunk in range(64, 76):
                    nursery.start_soon(array.write, chunk * CHUNK, b"w" * CHUNK)
            assert min(newest) > 1

    run(main, seed=seed)
