"""The ring keeps space for all parities that follow, whatever else is appended (unsettled.py)."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from raidx_fuse.journal.ring import Ring
from raidx_fuse.layouts.numbers import Offset, Stripe
from tests.support.spy import SpyRig, placed

CHUNK = 16384


async def _write(rig: SpyRig, stripes: range, rng: random.Random) -> None:
    """Write pieces of all shapes to *stripes*, of which nobody else writes any."""
    size = rig.array.context.code.data_count * CHUNK
    for _ in range(40):
        at = rng.choice(stripes) * size + rng.randrange(size // 512) * 512
        length = rng.choice((512, 4096, 4096, CHUNK, 2 * CHUNK, size // 2, size - 512))
        length = min(length, stripes.stop * size - at)
        await rig.put(at, rng.randbytes(length))
        if rng.random() < 0.2:  # each alone, in a record of its own
            stripe = Stripe(at // size)
            await rig.array.context.locks.acquire(stripe)
            await rig.array.context.journal.settle((stripe,))
            rig.array.context.locks.release(stripe)


@pytest.mark.parametrize("slow", [False, True], ids=["at-once", "queued"])
@pytest.mark.parametrize(("layout", "width"), [("raid5", 5), ("rdp", 6)])
async def test_each_record_leaves_what_is_kept(
    layout: str, width: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint asked for more than was kept: "replay needs this space"."""
    rig = await placed(layout, width, chunk_bytes=CHUNK, stripes=24, rows=4, slow=slow)
    journal, rng = rig.array.context.journal, random.Random(f"{layout} {slow}")
    take, laps, most = Ring.take, set(), 0

    def checked(ring: Ring, size: int) -> tuple[int, int, Offset]:
        nonlocal most
        taken = take(ring, size)
        used = ring.position - ring.durable_tail[1]
        held = journal.unsettled.held_bytes
        assert used + held <= ring.capacity, f"{used} used, {held} kept"
        most = max(most, used + journal.kept_bytes())
        laps.add(ring.position // ring.capacity)
        return taken

    monkeypatch.setattr(Ring, "take", checked)
    async with trio.open_nursery() as nursery:
        for first in range(0, 24, 4):
            seed = random.Random(rng.random())
            nursery.start_soon(_write, rig, range(first, first + 4), seed)
    assert len(laps) > 2
    assert most > journal.capacity * 3 // 4, "the ring was full"
    await rig.in_place()
    await rig.compare()


async def test_records_in_flight_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten writes at once: each record found room, but not the parities of all of them."""
    rig = await placed("raid5", 3, chunk_bytes=CHUNK, stripes=24, slow=True)
    journal, waited = rig.array.context.journal, 0
    append = journal.append

    async def append_long(*record: Any) -> tuple[int, bytes]:
        nonlocal waited
        waited += 1
        appended = await append(*record)
        await trio.sleep(1)
        return appended

    monkeypatch.setattr(journal, "append", append_long)
    assert 10 * CHUNK < journal.capacity < 20 * CHUNK
    async with trio.open_nursery() as nursery:
        for stripe in range(10):
            at = stripe * 2 * CHUNK  # from the front: logged though the ring is filling
            nursery.start_soon(rig.put, at, random.Random(at).randbytes(CHUNK))
    assert waited > 10, "the data, and the parities"
    await rig.in_place()
    await rig.compare()
