"""Records of earlier versions are redone: parity that follows from the data of the record."""

from __future__ import annotations

import random

import pytest

from raidx_fuse.format.log_record import PARITY, RecordBody
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.store.member_io import MemberIO
from tests.support.spy import SpyRig, restarted, spying

CHUNK = 4096
STRIPE = Stripe(2)


async def log_as_before(rig: SpyRig, first: int, chunks: int, complete: bool) -> None:
    """Log *chunks* chunks from cell *first* of STRIPE on, as versions before did."""
    array = rig.running
    size = array.context.data_count * CHUNK
    data = random.Random(first).randbytes(chunks * CHUNK)
    writes: list[MemberIO] = [
        (
            *array.context.position(STRIPE, CellIndex(first + number)),
            [data[number * CHUNK : (number + 1) * CHUNK]],
            CHUNK,
        )
        for number in range(chunks)
    ]
    body = RecordBody()
    body.add_data(writes)
    body.fields += (PARITY, 0, int(complete), STRIPE)
    sequence, _ = await array.context.journal.append((STRIPE,), body)
    array.context.journal.inflight.end(sequence)
    at = STRIPE * size + first * CHUNK
    rig.model[at : at + len(data)] = data


async def log_with_parity(rig: SpyRig, cell: int) -> None:
    """Log a chunk of STRIPE with its parity, as after the records before."""
    array = rig.running
    size = array.context.data_count * CHUNK
    at = STRIPE * size + cell * CHUNK
    data = random.Random(99).randbytes(CHUNK)
    rig.model[at : at + CHUNK] = data
    content = rig.model[STRIPE * size : (STRIPE + 1) * size]
    parity = bytes(CHUNK)
    for number in range(array.context.data_count):
        other = content[number * CHUNK : (number + 1) * CHUNK]
        parity = bytes(a ^ b for a, b in zip(parity, other, strict=True))
    writes: list[MemberIO] = [
        (*array.context.position(STRIPE, CellIndex(number)), [new], CHUNK)
        for number, new in ((cell, data), (array.context.data_count, parity))
    ]
    body = RecordBody()
    body.add_data(writes)
    sequence, _ = await array.context.journal.append((STRIPE,), body)
    array.context.journal.inflight.end(sequence)


STORIES = {
    "begun": ((0, 2, False),),
    "begun and continued": ((0, 1, False), (1, 1, False)),
    "complete": ((0, 2, False), (2, 2, True)),
}


@pytest.mark.parametrize("lost", [None, 0, 4])
@pytest.mark.parametrize("then", [None, 0, 3], ids=["", "overwritten", "written beside"])
@pytest.mark.parametrize("story", STORIES)
def test_parity_that_follows_from_the_data_of_a_record(
    story: str, then: int | None, lost: int | None
) -> None:
    async def main() -> None:
        async with spying("raid5", 5, chunk_bytes=CHUNK, stripes=12) as rig:
            await rig.put(0, random.Random(1).randbytes(len(rig.model)))
            await rig.running.context.journal.drain()
            for first, chunks, complete in STORIES[story]:
                await log_as_before(rig, first, chunks, complete)
            if then is not None:
                await log_with_parity(rig, then)
            images = rig.images()
            model = bytes(rig.model)
            if lost is not None:
                del images[lost]
            async with restarted(images) as array:
                assert array.replayed is not None
                assert array.replayed.records == len(STORIES[story]) + (then is not None)
                assert bytes(await array.read(0, len(model))) == model

    run(main)
