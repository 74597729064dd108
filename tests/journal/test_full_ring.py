"""A full ring: a commit waits for space without keeping the processor, and others go on."""

from __future__ import annotations

import trio

from tests.support.arrays import Rig
from tests.support.gated import gated
from tests.support.spy import noise

CHUNK = 4096
FLUSHES_MAX = 100


async def test_a_commit_waits_for_the_record_in_flight_that_keeps_the_tail() -> None:
    """No member takes a record for a second, and all flush at once: the ring fills up."""
    async with gated("raid0", 2, "full") as (array, members):
        ring, size = array.context.journal.ring, 8 * CHUNK
        many = ring.capacity // size + 2
        contents = [noise(size, number) for number in range(many)]
        flushes = array.member_set.flush
        calls = 0

        async def counted() -> None:
            nonlocal calls
            calls += 1
            assert calls < FLUSHES_MAX, "the commit that waits keeps the processor"
            await flushes()

        array.member_set.flush = counted  # type: ignore[method-assign]
        for member in members:
            member.open, member.data_offset = trio.Event(), ring.offset
        async with trio.open_nursery() as nursery:
            for number, content in enumerate(contents):
                nursery.start_soon(array.write, number * size, content)
            await trio.sleep(1)  # virtual: it passes only while everybody waits
            for member in members:
                assert member.open is not None
                member.open.set()
        for number, content in enumerate(contents):
            assert bytes(await array.read(number * size, size)) == content


async def test_writers_that_wait_for_one_checkpoint_do_not_run_one_each() -> None:
    """Many writers find the ring full at once; the checkpoint of the first has room for all."""
    rig = Rig("raid5", 4, stripes=400, slow=True)
    array = await rig.create()
    journal, size = array.context.journal, CHUNK
    await array.set("journal", "full")
    writers = 3 * journal.ring.capacity // size
    async with trio.open_nursery() as nursery:
        for number in range(writers):
            nursery.start_soon(array.write, number % 300 * 3 * CHUNK, noise(size, number))
    made = journal.placements
    await rig.close()
    assert writers > 150
    assert made <= 20, made  # 133 while each writer that waited ran one of its own, now 12
