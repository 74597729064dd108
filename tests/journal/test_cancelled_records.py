"""Requests that are cancelled while their record waits for an earlier one.

The record is in the ring, and recovery redoes it. So the running array must have it, too: later
records of the stripe are planned from what the array has.
"""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.array.open import open_array
from tests.support.gated import gated
from tests.support.spy import members_from

CHUNK = 4096
STRIPE = 2 * CHUNK
OTHER, TAKEN = 0, 40  # stripes: of the record that is slow, and of the one that waits for it


@pytest.mark.parametrize("first_write", [True, False])
async def test_a_later_record_of_the_stripe_knows_the_cancelled_one(first_write: bool) -> None:
    """A power cut and any lost member leave what was acknowledged and flushed."""
    at = TAKEN * STRIPE
    async with gated("raid5", 3, "partial") as (array, members):
        if not first_write:  # its parity follows
            await array.write(at, b"a" * STRIPE)
            await array.context.journal.drain()
        slow = trio.Event()
        for member in members:
            member.open, member.data_offset = slow, 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.write, OTHER, b"s" * 512)
            await trio.sleep(0.01)
            for member in members:
                member.open = None
            with trio.CancelScope() as scope:
                nursery.start_soon(_after_a_moment, scope, slow)
                await array.write(at, b"c" * 2048)
        await array.write(at + CHUNK, b"n" * CHUNK)
        stripe = array.context.layout.locate(at // CHUNK)[0]
        await array.context.locks.acquire(stripe)
        await array.context.journal.settle([stripe])
        array.context.locks.release(stripe)
        await array.flush()
        images = [bytes(member.view(0, member.size_bytes) or b"") for member in members]
    for gone in range(3):
        left = [member for role, member in enumerate(members_from(images)) if role != gone]
        async with open_array(left) as array:
            assert bytes(await array.read(at + CHUNK, CHUNK)) == b"n" * CHUNK


async def _after_a_moment(scope: trio.CancelScope, slow: trio.Event) -> None:
    await trio.sleep(0.01)
    scope.cancel()
    await trio.sleep(0.01)
    slow.set()
