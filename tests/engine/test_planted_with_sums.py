"""Faults that lost bytes before, planted again: with checksums no wrong byte is read.

Each was mended by its kind, and has tests of its own. Here the cure is taken away: without
checksums some bytes are wrong then, else the test shows nothing; with them all bytes are right, or
the read is an error.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.store.cells import Cells, Cover
from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from tests.support.arrays import jobs_ended, ram_array
from tests.support.spy import Log, SpyMember, Touch, members_from, noise

MIB = 1 << 20
CHUNK = 4096
LOST, PARITY_LOST = 2, 100  # the role that is absent, and a stripe from which on to look for one


async def errors_of(array: Array, model: bytes, sums: str) -> int:
    """Read all; return how many chunks are refused. Some are wrong without *sums*, none with."""
    wrong = errors = 0
    for at in range(0, len(model), CHUNK):
        try:
            wrong += bytes(await array.read(at, CHUNK)) != model[at : at + CHUNK]
        except RaidxError:
            errors += 1
    assert bool(wrong) == (sums == "off"), f"{wrong} chunks are wrong, {errors} refused"
    return errors


@pytest.mark.parametrize("sums", ["on", "off"])
@pytest.mark.parametrize("journal", ["partial", "none"])
async def test_a_member_that_returns_without_a_stripe_that_was_not_noted(
    monkeypatch: pytest.MonkeyPatch, journal: str, sums: str
) -> None:
    """A region is marked again while it is cleaned, as if its bit stood for nothing older."""
    monkeypatch.setattr(DirtyBitmap, "_set_bits", lambda _bitmap: set())
    rams = await ram_array("raid5", 3, 16 * MIB, chunk_bytes=CHUNK, sums=sums == "on")
    members = [FaultMember(ram) for ram in rams]
    size, first, second = 2 * MIB, Stripe(3), Stripe(150)
    stripe = 2 * CHUNK
    model = bytearray(noise(size))
    async with open_array(members) as array:

        async def put(at: Stripe, seed: int) -> None:
            model[at * stripe : (at + 1) * stripe] = noise(stripe, seed)
            await array.write(at * stripe, noise(stripe, seed))

        await array.set("journal", journal)
        await array.write(0, model)
        await array.context.journal.drain()
        await trio.sleep(30)
        await array.flush()
        dirty = array.context.dirty_bitmap
        assert first // dirty.per_region == second // dirty.per_region
        assert array.context.position(first, CellIndex(2))[0] != 1
        before = bytes(rams[1].memory)
        await put(first, 1)
        await array.flush()
        for other in members:
            other.slow(1.0, ("flush",), count=1)
        await put(first, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: dirty.clean_quiet(all_regions=True))
            await trio.sleep(0.5)
            nursery.start_soon(put, second, 3)
            await trio.sleep(0.1)
            members[1].vanish()
        await array.flush()
        data = array.member_set.config.regions.data.offset
        rams[1].memory[data:] = before[data:]  # of its cache, nothing was stored
        members[1].come_back()
        begun = await array.replace_disk(1, members[1])
        assert begun["catches_up"] is True
        await jobs_ended(array)
        assert await errors_of(array, bytes(model), sums) == 0


@pytest.mark.parametrize("sums", ["on", "off"])
@pytest.mark.parametrize("journal", ["partial", "none"])
async def test_a_place_that_was_overwritten_before_its_stripe_was_noted(
    monkeypatch: pytest.MonkeyPatch, journal: str, sums: str
) -> None:
    """A page is given up while the parity is absent; killed then; it returns, and one is lost."""
    log = Log()
    rams = await ram_array("raid5", 3, 16 * MIB, chunk_bytes=CHUNK, sums=sums == "on")
    members = [FaultMember(SpyMember(ram, log)) for ram in rams]
    model = noise(2 * MIB)
    async with open_array(members) as array:
        await array.set("journal", journal)
        await array.write(0, model)
    images: list[list[bytes]] = []
    left = [member for role, member in enumerate(members) if role != LOST]
    async with open_array(left, start_degraded=True) as array:
        context, parity = array.context, CellIndex(2)
        numbers = map(Stripe, range(PARITY_LOST, 2 * PARITY_LOST))
        stripe = next(s for s in numbers if context.position(s, parity)[0] == LOST)
        kept, given_up = (context.position(stripe, CellIndex(cell)) for cell in (0, 1))
        at = context.layout.logical(stripe, CellIndex(1)) * CHUNK
        members[given_up[0]].lose_sectors(given_up[1], 8)
        with suppress(RaidxError):
            await array.read(at, CHUNK)  # the page is known to be unreadable
        with monkeypatch.context() as planted:
            planted.setattr(Cells, "write", _unnoted(Cells.write))
            planted.setattr(Cells, "marked", _unmarked)

            def kill(touch: Touch) -> None:
                # Before the next write: the page was overwritten.
                if images and not images[-1]:
                    images[-1] = [bytes(ram.memory) for ram in rams]
                elif not images and touch.offset_bytes == given_up[1]:
                    images.append([])

            log.hook = kill
            await array.write(at, noise(CHUNK, 1))
            await context.journal.drain()
            log.hook = None
    async with open_array(members_from(images[0]), start_degraded=True) as array:
        await jobs_ended(array)
        await array.fail_disk(kept[0])
        # The page itself may be what the write has begun; its sum is still that of before.
        begun = model[:at] + noise(CHUNK, 1) + model[at + CHUNK :]
        assert await errors_of(array, begun, sums) == (2 if sums == "on" else 0)


def _unnoted(write: Any) -> Any:
    async def unnoted(
        cells: Cells, requests: Any, cover: Cover, stripes: Sequence[Stripe] = (), **options: Any
    ) -> None:
        cover = Cover.VACANT if cover is Cover.SAME else cover
        await write(cells, requests, cover, stripes, **options)

    return unnoted


@asynccontextmanager
async def _unmarked(_cells: Cells, _stripes: object, **_: object) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("sums", ["on", "off"])
@pytest.mark.parametrize(
    ("layout", "width"), [("raid5", 4), ("raid1", 2), ("rdp", 6), ("raid0", 2)]
)
async def test_a_member_file_that_is_truncated_and_extended_again_by_a_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layout: str, width: int, sums: str
) -> None:
    """Nobody looks at sizes: the end of the file is a hole, which reads as zeros."""
    paths = [str(tmp_path / f"m{number}") for number in range(width)]
    for path in paths:
        create_file(path, 4 * MIB)
    made = [LocalMember(path, reads_zero=True) for path in paths]
    await create_array(
        made, layout, chunk_bytes=CHUNK, name="a", now_s=0, sums=sums == "on", log_bytes=256 << 10
    )
    for member in made:
        member.close()
    async with AsyncExitStack() as stack:
        members = [LocalMember(path) for path in paths]
        for member in members:
            stack.callback(member.close)
        array = await stack.enter_async_context(open_array(members))
        model = noise(array.size_bytes)
        await array.write(0, model)
        await array.context.journal.drain()
        await array.flush()
        monkeypatch.setattr(LocalMember, "_require_whole", lambda *_: None)
        os.truncate(paths[0], 4 * MIB * 7 // 8)
        last = array.size_bytes - CHUNK * width
        await array.write(last, model[last:])  # extends the file
        await array.context.journal.drain()
        assert os.stat(paths[0]).st_size > 4 * MIB * 7 // 8
        errors = await errors_of(array, model, sums)
        assert bool(errors) == (layout == "raid0" and sums == "on")
