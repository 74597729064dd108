"""`misfits.max`: which members are named, and which are failed, because pages of them misfit."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.daemon.events.event import Event
from raidx_fuse.daemon.events.sources import LOOK_S, Watch
from raidx_fuse.errors import RaidxError
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import ram_array

CHUNK = 16 << 10
PAGE = 4096
SIZE = 64 * CHUNK
CONTENT = random.Random(1).randbytes(SIZE)


async def spoil(array: Array, members: list[RamMember], role: int) -> None:
    """Let pages of *role* rot; read all, so that they are healed; wait until it is looked at."""
    places = (array.context.layout.locate(at // CHUNK) for at in range(0, SIZE, CHUNK))
    chunks = [at for of, at in (array.context.position(*place) for place in places) if of == role]
    assert len(chunks) >= 8
    for place in chunks:
        members[role].memory[place + 7] ^= 1
    for at in range(0, SIZE, CHUNK):
        with suppress(RaidxError):
            assert await array.read(at, CHUNK) == CONTENT[at : at + CHUNK]
    await trio.sleep(61)


@pytest.mark.parametrize("way", ["once", "again", "limit", "beside", "degraded"])
async def test_a_member_fails_that_does_not_keep_what_it_was_given(way: str) -> None:
    members = await ram_array("raid5", 4, 4 << 20, chunk_bytes=CHUNK, sums=True)
    told: list[Event] = []
    async with open_array(members) as array:
        watch = Watch(told.append, "/mnt", lambda: 0)
        await array.write(0, CONTENT)
        await array.context.journal.drain()
        await trio.sleep(61)
        watch.begin(array)
        array.nursery.start_soon(watch.run)
        await spoil(array, members, 0)
        assert not array.member_set.lost, "it was healed"
        sums = array.member_set.sums
        assert sums is not None
        assert sums.misfits == sums.healed >= 8
        (warning,) = (text for text in array.status()["warnings"] if "checksums" in text)
        assert f"{sums.misfits} of " in warning
        await trio.sleep(LOOK_S)
        assert [event.event for event in told].count("ManyMisfits") == 1
        (healed,) = (event.message for event in told if event.event == "RotHealed")
        assert "did not fit their checksums and were healed in place" in healed
        assert not any(event.event == "ReadErrorMended" for event in told)
        if way == "limit":
            await array.set("misfits.max", "90%")
        elif way == "beside":  # a page of another member waits to be healed: all are needed
            pair = [array.context.position(*array.context.layout.locate(n)) for n in (60, 61, 62)]
            for role, at in [place for place in pair if place[0] != 0][:2]:
                members[role].memory[at + PAGE + 7] ^= 1
            with pytest.raises(RaidxError):
                await array.read(60 * CHUNK, 3 * CHUNK)
        elif way == "degraded":
            await array.fail_disk(Role(1))
        if way != "once":
            await spoil(array, members, 0)
            assert way == "again" or sums.found_on(Role(0))[1] >= 8
        lost = {"again": {0}, "degraded": {1}}.get(way, set())
        assert array.member_set.lost == lost
        await trio.sleep(3700)
        assert not [text for text in array.status()["warnings"] if "checksums" in text]
        assert array.member_set.lost == lost, "what was long ago does not count"


async def test_a_few_misfits_among_many_pages_are_no_reason() -> None:
    members = await ram_array("raid5", 4, 4 << 20, chunk_bytes=CHUNK, sums=True)
    async with open_array(members) as array:
        await array.write(0, CONTENT)
        await array.context.journal.drain()
        for _ in range(30):
            assert await array.read(0, SIZE) == CONTENT
        for _ in range(2):
            await spoil(array, members, 0)
        assert array.member_set.sums is not None
        assert array.member_set.sums.found_on(Role(0))[1] >= 8
        assert not array.member_set.lost
        assert not array.misfit_limit.exceeded
