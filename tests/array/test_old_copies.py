"""A copy of a member that was taken while the array ran, and put back after a kill of that run.

Its superblock is as good as the others'. But a page goes to one slot only when what the other one
has is durable everywhere: so whoever has less than that missed something.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import AssemblyError, Reason
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.members.ram import RamMember
from tests.support.gated import Gate, gated
from tests.support.reasons import because
from tests.support.spy import Log, SpyMember, Touch, members_from, noise, restarted, spying

CHUNK = 4096


@pytest.mark.parametrize("journal", ["none", "partial", "full"])
async def test_an_old_copy_of_a_member_does_not_join(journal: str) -> None:
    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await rig.array.set("journal", journal)
        await rig.put(0, noise(len(rig.model), 1))
        await rig.in_place()
        await trio.sleep(30)
        copy = bytes(rig.rams[1].memory)
        for seed in range(3):
            await rig.put(seed * 3 * CHUNK, noise(5 * CHUNK, seed))
            await rig.array.flush()
            await trio.sleep(30)
        images, old = rig.images(), bytes(rig.model)
    mixed = [image if role != 1 else copy for role, image in enumerate(images)]
    with pytest.raises(AssemblyError, check=because(Reason.OUTDATED)):
        async with restarted(mixed):
            pass
    left = [image for role, image in enumerate(images) if role != 1]
    async with restarted(left, start_degraded=True) as array:
        assert bytes(await array.read(0, len(old))) == old


async def test_a_member_that_failed_is_no_old_copy_before_superblocks_exclude_it() -> None:
    """Maps are flushed without it, and saved again, while the superblocks still count on it."""
    async with gated("raid5", 3, "none") as (array, members):
        pages, regions = array.context.dirty_bitmap.pages, array.member_set.config.regions
        excluded = trio.Event()

        async def held(member: Gate, offset: int, buffers: Sequence[ReadBuffer]) -> None:
            if offset < regions.superblock.end:
                await excluded.wait()
            await member.inner.writev(offset, buffers)

        for member in members:
            member.writev = functools.partial(held, member)  # type: ignore[method-assign]
        assert array.member_set.fail(2, "told")
        await pages.save([0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.flush)
            await trio.sleep(0.01)
            await pages.save([0])
            rams = [member.inner for member in members]
            cut = [bytes(ram.memory) for ram in rams if isinstance(ram, RamMember)]
            excluded.set()
    async with restarted(cut) as array:
        assert not array.member_set.lost


class LastFlushed(SpyMember):
    """Knows what it would hold if a cut dropped all that no flush has covered."""

    def __init__(self, ram: RamMember, log: Log) -> None:
        super().__init__(ram, log)
        self.memory = ram.memory
        self.durable = bytes(self.memory)

    async def flush(self) -> None:
        await super().flush()
        self.durable = bytes(self.memory)


def behind(images: Sequence[bytes], last: LastFlushed) -> list[bytes]:
    """Return *images*, but of role 1 only what was flushed."""
    return [images[0], last.durable, *images[2:]]


async def cuts(images: Sequence[bytes]) -> list[list[bytes]]:
    """Start the array of *images*; return what a cut before each write of that leaves, without the
    writes that role 1 had not flushed.
    """
    members = members_from(images)
    log = Log()
    last = LastFlushed(members[1], log)
    pictures: list[list[bytes]] = []

    def before(_touch: Touch) -> None:
        pictures.append(behind([bytes(member.memory) for member in members], last))

    log.hook = before
    others = [SpyMember(member, log) for member in (members[0], *members[2:])]
    async with open_array([last, *others], start_degraded=True):
        log.hook = None
    return pictures


@pytest.mark.parametrize("journal", ["none", "partial"])
async def test_a_member_that_a_cut_left_behind_joins_also_after_a_cut_of_the_start(
    journal: str,
) -> None:
    """It lacks the last page that was saved; the start evens that out, and is cut in its turn."""
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        await rig.array.set("journal", journal)
        await rig.put(0, noise(2 * CHUNK, 1))
        await rig.in_place()
        await trio.sleep(30)
        last = LastFlushed(rig.rams[1], rig.log)
        rig.members[1].inner = last
        pictures: list[list[bytes]] = []
        rig.log.hook = lambda _touch: pictures.append(behind(rig.images(), last))
        for seed in range(3):
            await rig.put((5 + seed) * CHUNK, noise(CHUNK, seed))
            await rig.array.context.journal.place()
        await rig.array.flush()
        rig.log.hook = None
    assert any(picture[0] != picture[1] for picture in pictures)
    for images in pictures[:: len(pictures) // 12]:
        for again in await cuts(images):
            async with restarted(again) as array:
                assert not array.member_set.lost
