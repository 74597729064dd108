"""The last part of a request that begins a stripe: its data goes to the log, its parity follows.

tests/crash/test_streams.py cuts the power around it; here are its other ways to go wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from raidx_fuse.journal.journal import Journal
from tests.support.load import scrubbed
from tests.support.spy import SpyRig, restarted, spied, spying

CHUNK = 4096
STRIPE = 2  # that is begun
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width", "rows"),
    [("raid5", 5, 1), ("raid4", 6, 1), ("rdp", 4, 2), ("evenodd", 5, 2), ("upc", 4, 2)],
)
POLICIES = pytest.mark.parametrize("policy", ["rmw", "rcw"])


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Count whether `Journal.commit_data` logs the data."""
    counts: Counter[bool] = Counter()
    commit_data = Journal.commit_data

    async def counting(journal: Journal, changes: Any) -> bool:
        done = await commit_data(journal, changes)
        counts[done] += 1
        return done

    monkeypatch.setattr(Journal, "commit_data", counting)
    return counts


async def _full(rig: SpyRig, policy: str) -> int:
    """Fill *rig*, its log empty; return the bytes of a stripe."""
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    await rig.array.set("parity.policy", policy)
    await rig.array.context.journal.drain()
    return rig.array.context.code.data_count * CHUNK


async def _check(rig: SpyRig) -> None:
    """Read, scrub, replay on a copy, place: always the same bytes, always the right parity."""
    await scrubbed(rig)
    async with restarted(rig.images()) as array:
        assert bytes(await array.read(0, len(rig.model))) == bytes(rig.model)
    await rig.array.context.journal.drain()
    await scrubbed(rig)


@POLICIES
@LAYOUTS
async def test_only_data_is_logged(
    layout: str, width: int, rows: int, policy: str, tried: Counter[bool]
) -> None:
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows)
    size = await _full(rig, policy)
    for cells in range(1, rig.array.context.code.data_count):
        tried.clear()
        logged = rig.array.context.journal.ring.position
        # From the stripe before on: one whole stripe, then the beginning.
        data = random.Random(cells).randbytes(size + cells * CHUNK)
        await rig.put((STRIPE - 1) * size, data)
        assert tried == {True: 1}
        logged = rig.array.context.journal.ring.position - logged
        assert cells * CHUNK < logged < (cells + 1) * CHUNK, "a parity was logged too"
        whole_cells = rig.array.context.journal.unsettled.whole_cells
        assert whole_cells.cells[STRIPE] == (1 << cells) - 1
        await _check(rig)


@LAYOUTS
async def test_a_log_member_that_writes_late(
    layout: str, width: int, rows: int, tried: Counter[bool]
) -> None:
    """Whichever it is: the record lies on another by then, so its place is not given away."""
    for role in range(3 if rows > 1 else 2):
        async with spying(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows) as rig:
            size = await _full(rig, "rmw")
            array = rig.array
            tried.clear()
            rig.members[role].error(
                ["write"], offset_bytes=array.context.journal.ring.offset, count=1
            )
            await rig.put(STRIPE * size, random.Random(2).randbytes(2 * CHUNK))
            assert tried == {True: 1}
            assert not array.context.journal.is_late
            assert not array.member_set.lost, "it was written when tried once more"
            await _check(rig)


async def test_a_log_member_that_fails_is_out_before_the_write_is_acknowledged(
    tried: Counter[bool],
) -> None:
    for turn in range(2):
        async with spying("raid5", 5, chunk_bytes=CHUNK, stripes=12) as rig:
            size = await _full(rig, "rmw")
            array = rig.array
            tried.clear()
            ring = array.context.journal.ring
            role = array.context.journal.log_members.at(ring.next_place(CHUNK)[1])[turn]
            rig.members[role].error(["write"], offset_bytes=ring.offset)
            await rig.put(STRIPE * size, random.Random(2).randbytes(2 * CHUNK))
            assert tried == {True: 1}
            assert role in array.member_set.lost
            assert not array.member_set.unpublished, "the superblocks do not say so yet"
            await rig.compare()


@LAYOUTS
async def test_a_member_that_cannot_be_read(
    layout: str, width: int, rows: int, tried: Counter[bool]
) -> None:
    for role in range(width):
        async with spying(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows) as rig:
            size = await _full(rig, "rcw")
            begin = rig.array.member_set.data_offset
            rig.members[role].error(["read"], offset_bytes=begin)
            tried.clear()
            await rig.put(STRIPE * size, random.Random(2).randbytes(2 * CHUNK))
            assert sum(tried.values()) == 1
            await rig.compare()


async def test_parts_of_any_shape(tried: Counter[bool]) -> None:
    rig = await spied("raid5", 5, chunk_bytes=CHUNK, stripes=12)
    size = await _full(rig, "rmw")
    tried.clear()
    for mode in ("partial", "full"):
        await rig.array.set("journal", mode)
        for offset, length in (
            (STRIPE * size, 2 * CHUNK),
            (STRIPE * size + 512, 2 * CHUNK),  # not from the front
            (STRIPE * size, 2 * CHUNK + 512),  # not whole chunks
            (STRIPE * size + CHUNK, 2 * CHUNK),
        ):
            await rig.put(offset, random.Random(offset).randbytes(length))
    assert tried == {True: 8}
    await _check(rig)


@LAYOUTS
async def test_a_full_log_has_room_for_the_parities_that_it_lacks(
    layout: str, width: int, rows: int
) -> None:
    """Also for those of the stripe that is begun last."""
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=64, rows=rows)
    size = await _full(rig, "rmw")
    journal = rig.array.context.journal
    number, data_bytes = 0, 2 * CHUNK + 512
    placed = journal.placements
    while journal.ring.has_room(0, journal.kept_bytes(512) + data_bytes + 4096):
        at = 30 * size + number * 512 % (30 * size)
        await rig.put(at, random.Random(number).randbytes(512))
        number += 1
    assert journal.placements == placed
    assert journal.ring.has_room(0, journal.kept_bytes() + data_bytes), "the data would fit"
    await rig.put(STRIPE * size, random.Random(1).randbytes(2 * CHUNK))
    await journal.place()
    await _check(rig)
