"""The list of lost chunks in the superblocks, and what a power cut leaves of it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.powercut import Event, Image, PowerCutMember

PAGE = 4096
CHUNK = 4 * PAGE
LOST = 5 * CHUNK + PAGE  # the second page of chunk 5
OLD = random.Random(1).randbytes(16 * CHUNK)
NEW = random.Random(2).randbytes(PAGE)


@asynccontextmanager
async def with_a_lost_page(journal: str) -> AsyncIterator[tuple[Array, list[PowerCutMember]]]:
    """Run an array of which a page is lost, durably; its place holds what it held."""
    members = [PowerCutMember(bytearray(1 << 20), name=f"d{n}") for n in range(4)]
    await create_array(members, "raid5", name="disk", now_s=0, chunk_bytes=CHUNK)
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.write(0, OLD)
        await array.context.journal.drain()
        stripe, cell = array.context.layout.locate(5)
        array.context.lose_pages(stripe, 1 << cell, PAGE, 2 * PAGE)
        await array.lost_list.save()
        await array.flush()
        yield array, members


async def after_a_cut(images: Sequence[Image]) -> bytes | None:
    """Return the page as an array reads it of which a cut left *images*; None: it is lost.

    The pages beside it are never.
    """
    left = [RamMember(len(image), name=f"d{n}") for n, image in enumerate(images)]
    for member, image in zip(left, images, strict=True):
        member.memory[:] = bytes(image)
    async with open_array(left) as array:
        for at in range(5 * CHUNK, 6 * CHUNK, PAGE):
            if at != LOST:
                assert await array.read(at, PAGE) == OLD[at : at + PAGE]
        try:
            return bytes(await array.read(LOST, PAGE))
        except RaidxError:
            return None


@pytest.mark.parametrize("journal", ["none", "partial", "full"])
async def test_a_lost_page_that_was_written_again_and_flushed_is_lost_no_more(
    journal: str,
) -> None:
    async with with_a_lost_page(journal) as (array, members):
        assert await after_a_cut([member.crash() for member in members]) is None
        await array.write(LOST, NEW)
        await array.flush()
        assert await after_a_cut([member.crash() for member in members]) == NEW


@pytest.mark.parametrize("journal", ["none", "partial", "full"])
async def test_what_a_lost_page_held_is_not_read_if_a_cut_keeps_superblocks_alone(
    journal: str,
) -> None:
    async with with_a_lost_page(journal) as (array, members):
        end = array.member_set.config.regions.superblock.end
        cuts: list[list[Image]] = []

        def cut(event: Event) -> None:
            if event.operation == "flush":
                states = [member.state for member in members]
                kept = [
                    [w.kept * (w.offset_bytes < end) for w in state.open_writes] for state in states
                ]
                cuts.append([s.crash(one) for s, one in zip(states, kept, strict=True)])

        await array.write(LOST, NEW)
        for member in members:
            member.tell(cut)
        await array.lost_list.save()
        for member in members:
            member.before_event = None
        found = [await after_a_cut(images) for images in cuts]
        assert NEW in found
        assert set(found) <= {None, NEW}
