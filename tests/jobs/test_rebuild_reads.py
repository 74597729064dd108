"""What a rebuild reads: the chunks of the fewest-read recovery, each once, and nothing else."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.layouts.codes.code import bits
from tests.support.arrays import Rig, job_ended
from tests.support.load import opened
from tests.support.spy import READ, WRITE, SpyRig, spied

CHUNK = 4096
STRIPES = 3


async def rebuild(rig: SpyRig, *roles: int) -> Rebuild:
    """Lose *roles* and rebuild them onto spares, at once; return the job. The log has only that."""
    array = rig.array
    for _ in roles:
        await array.add_spare(rig.new_member())
    await array.context.journal.drain()
    rig.log.clear()
    for role in roles:
        assert array.member_set.fail(role, "test")
    while not array.jobs.running():
        await array.member_set.published()
        async with array.membership.attaching:
            pass
    (job,) = array.jobs.running()
    assert isinstance(job, Rebuild)
    await job_ended(job)
    return job


# chunks a stripe: the issue's and the papers' figures, for a data column
@pytest.mark.parametrize(
    ("name", "width", "rows", "chunks"),
    [
        ("rdp", 8, 6, 27),
        ("rdp", 12, 10, 75),
        ("xcode", 7, 7, 26),
        ("pcode", 6, 3, 9),
        ("pcode", 10, 5, 30),
        ("pcode", 12, 6, 45),
        ("upc", 6, 3, 9),
        ("upc", 10, 5, 30),
        ("upc", 12, 6, 45),
        ("evenodd", 9, 6, 33),
    ],
)
async def test_rebuilding_one_member_reads_the_fewest_chunks(
    name: str, width: int, rows: int, chunks: int
) -> None:
    rig = await spied(name, width, chunk_bytes=CHUNK, rows=rows, stripes=STRIPES)
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    role = width // 3
    stripes = rig.array.context.layout.stripes
    await rebuild(rig, role)
    assert rig.log.bytes_of(READ, rig.data) == chunks * stripes * CHUNK
    assert rig.log.bytes_of(WRITE, rig.data) == rows * stripes * CHUNK
    # Exactly the cells of the plan, and rows that are neighbours in one operation.
    code = rig.array.context.code
    planned: Counter[str] = Counter()
    runs = 0
    needed = 0
    for _, mask in code.recover(role):
        needed |= mask
    for column in range(width):
        mine = sorted(code.row_of[c] for c in bits(needed & code.column_masks[column]))
        planned[f"ram{column}"] = len(mine) * stripes * CHUNK
        runs += sum(1 for i, row in enumerate(mine) if i == 0 or row != mine[i - 1] + 1)
    read: Counter[str] = Counter()
    for touch in rig.log.of(READ, rig.data):
        read[touch.member] += touch.size_bytes
    assert read == +planned
    assert len(rig.log.of(READ, rig.data)) <= runs * stripes
    await rig.compare()


@pytest.mark.parametrize(("name", "width", "rows"), [("evenodd", 9, 6), ("rdp", 8, 6)])
async def test_parity_columns_need_no_more_than_their_chains(
    name: str, width: int, rows: int
) -> None:
    """EVENODD p = 7: 33 chunks for data, 41 and 42 for parity; RDP: 27, diagonals 36."""
    rig = await spied(name, width, chunk_bytes=CHUNK, rows=rows, stripes=1)
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    stripes = rig.array.context.layout.stripes
    found = []
    for role in range(width):
        await rebuild(rig, role)
        found.append(rig.log.bytes_of(READ, rig.data) // CHUNK // stripes)
    data = {"rdp": 27, "evenodd": 33}[name]
    assert found[: width - 2] == [data] * (width - 2)
    assert found[width - 2 :] == {"rdp": [27, 36], "evenodd": [41, 42]}[name]
    await rig.compare()


async def test_two_members_at_once_read_every_survivor_once() -> None:
    rig = await spied("upc", 10, chunk_bytes=CHUNK, rows=5, stripes=STRIPES)
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    stripes = rig.array.context.layout.stripes
    job = await rebuild(rig, 2, 7)
    assert job.roles == (2, 7)
    assert rig.log.bytes_of(READ, rig.data) == 8 * 5 * stripes * CHUNK
    assert rig.log.bytes_of(WRITE, rig.data) == 2 * 5 * stripes * CHUNK
    await rig.compare()


async def test_ram_members_count_what_was_used_of_what_they_lend() -> None:
    """Without spies RAM members lend their memory; the counters say what was needed of it."""
    rig = await opened(Rig("rdp", 8, chunk_bytes=CHUNK, rows=6, stripes=STRIPES))
    array = rig.array
    await array.write(0, random.Random(1).randbytes(array.size_bytes))
    await array.context.journal.drain()
    await array.fail_disk(0)
    before = [queue.read_bytes for queue in array.member_set.queues if queue]
    job_id = (await array.replace_disk(0, rig.new_member()))["job"]
    await array.jobs.wait(job_id)
    after = [queue.read_bytes for queue in array.member_set.queues if queue]
    read = sum(a - b for a, b in zip(after[1:], before, strict=True))
    assert read == 27 * array.context.layout.stripes * CHUNK
