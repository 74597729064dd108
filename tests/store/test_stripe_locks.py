"""Stripe locks: writes to one stripe come one after the other, whatever the schedule."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from raidx_fuse.store.stripe_locks import StripeLocks
from tests.support.arrays import parity_holds
from tests.support.spy import spied

CHUNK = 4096


@pytest.mark.parametrize("policy", ["rmw", "rcw", "traditional", "bpu"])
@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid4", 3), ("raid1", 3)])
@pytest.mark.parametrize("seed", range(2))
async def test_parallel_writes_to_one_stripe_end_consistent(
    layout: str, width: int, policy: str, seed: int
) -> None:
    rig = await spied(layout, width, chunk_bytes=CHUNK, slow=True)
    array = rig.array
    await array.set("parity.policy", policy)
    await rig.put(0, random.Random(seed).randbytes(len(rig.model) // 2))
    stripe_bytes = array.context.code.data_count * CHUNK
    rng = random.Random(seed)
    writes = []
    for number in range(24):
        start = rng.randrange(0, 2 * stripe_bytes - 512, 512)
        size = rng.choice((512, 1024, CHUNK, stripe_bytes))
        writes.append((start, size, bytes([number + 1]) * size))
    async with trio.open_nursery() as nursery:
        for start, _size, data in writes:
            nursery.start_soon(array.write, start, data)
            nursery.start_soon(array.read, start, 512)
    end = max(start + size for start, size, _ in writes)
    got = await rig.get(0, end)
    for at in range(0, end, 512):
        candidates = [
            data[at - start : at - start + 512]
            for start, size, data in writes
            if start <= at and at + 512 <= start + size
        ] or [bytes(rig.model[at : at + 512])]
        assert got[at : at + 512] in candidates, f"sector {at} is nobody's"
    await parity_holds(array)
    await array.fail_disk(seed % width)
    assert await rig.get(0, end) == got, "parity tells another story"


async def test_a_lock_is_handed_over_in_order_and_left_by_the_cancelled() -> None:
    locks = StripeLocks()
    order: list[int] = []

    async def wait_for(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await locks.acquire_all([3, 7])
            order.append(number)
            await trio.sleep(1)
            locks.release_all([3, 7])

    await locks.acquire(7)
    scopes = [trio.CancelScope() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(wait_for, number, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()  # it holds 3 and waits for 7: both must become free
        scopes[2].cancel()  # it waits for 3
        await trio.testing.wait_all_tasks_blocked()
        locks.release(7)
    assert order == [1, 3]
    assert not locks.held


@pytest.mark.parametrize("journal", ["none", "partial", "full"])
async def test_a_small_write_waits_for_the_lock_of_its_stripe(journal: str) -> None:
    """Who has the lock computes parity from what it has read there."""
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    await rig.array.set("journal", journal)
    await rig.put(0, b"a" * len(rig.model))
    await rig.in_place()
    context, done = rig.array.context, False
    stripe, _ = context.layout.locate(0)

    async def write() -> None:
        nonlocal done
        await rig.put(512, b"b" * 512)
        done = True

    await context.locks.acquire(stripe)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(1)
        assert not done
        assert await rig.get(512, 512) == b"a" * 512
        context.locks.release(stripe)
    await rig.compare()
