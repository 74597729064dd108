"""Full-stripe writes in the middle of a large write, and when the general path takes over."""

from __future__ import annotations

import random

import pytest

from raidx_fuse.engine.write.full_stripe import FullStripeWrite
from raidx_fuse.engine.write.pending import PendingWrite
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.store.latency import TIMED_ALL
from tests.support.arrays import Rig, parity_holds
from tests.support.load import opened, scrubbed

CHUNK = 4096
LAYOUTS = [("raid0", 4, 1), ("raid1", 2, 1), ("raid5", 4, 1), ("rdp", 6, 4), ("xcode", 5, 5)]


async def filled(layout: str, width: int, rows: int, mode: str, *, slow: bool = False) -> Rig:
    """Return an array that was written in full and flushed, its journal empty."""
    rig = Rig(layout, width, chunk_bytes=CHUNK, stripes=12, rows=rows, slow=slow)
    array = await rig.create()
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    await array.set("journal", mode)
    await array.context.journal.drain()
    return rig


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the list of what full-stripe writes have written: first byte, end."""
    taken: list[tuple[int, int]] = []
    write = FullStripeWrite.write

    def noting(
        self: FullStripeWrite, offset: int, view: memoryview, length: int
    ) -> tuple[int, int, PendingWrite | None] | None:
        done = write(self, offset, view, length)
        if done is not None:
            taken.append(done[:2])
        return done

    monkeypatch.setattr(FullStripeWrite, "write", noting)
    return taken


@pytest.mark.parametrize("mode", ["partial", "full", "none"])
@pytest.mark.parametrize(("layout", "width", "rows"), LAYOUTS)
async def test_large_writes_of_every_alignment(
    layout: str, width: int, rows: int, mode: str, taken: list[tuple[int, int]]
) -> None:
    rig = await filled(layout, width, rows, mode)
    taken.clear()
    rng = random.Random(f"{layout}{mode}")
    stripe = rig.array.context.code.data_count * CHUNK
    await rig.put(3 * stripe, rng.randbytes(2 * stripe))
    assert taken == ([] if mode == "full" else [(3 * stripe, 5 * stripe)])
    for _ in range(30):
        size = rng.randrange(1, 4 * stripe)
        await rig.put(rng.randrange(len(rig.model) - size), rng.randbytes(size))
    await rig.compare()
    assert len(taken) > 1 or mode == "full"
    await parity_holds(rig.array)
    await rig.reopen()
    await rig.compare()
    await rig.close()


@pytest.mark.parametrize("role", [0, 1, 3])
async def test_a_member_that_fails_in_the_middle_is_failed_and_the_write_is_whole(
    role: int,
) -> None:
    rig = await filled("raid5", 4, 1, "none")
    rig.members[role].vanish()
    await rig.put(1000, random.Random(2).randbytes(30 * CHUNK))
    assert rig.array.member_set.lost == frozenset({role})
    await rig.compare()
    await rig.close()


async def test_members_that_never_answer_at_once_are_written_the_general_way() -> None:
    rig = await filled("raid5", 4, 1, "none", slow=True)
    await rig.put(0, random.Random(3).randbytes(20 * CHUNK))
    await rig.compare()
    await rig.close()


async def test_inline_operations_are_counted_one_by_one_though_few_are_timed() -> None:
    rig = await filled("raid0", 4, 1, "none")
    queue = rig.array.member_set.queues[0]
    assert queue is not None
    reads, timed = queue.reads, queue.read_latency.count
    wanted = 8 * TIMED_ALL
    for _ in range(wanted):
        await rig.array.read(0, 512)
    assert queue.reads == reads + wanted
    assert abs(queue.read_latency.count - timed - wanted) < TIMED_ALL
    assert sum(queue.read_latency.histogram) == queue.read_latency.count
    await rig.close()


@pytest.mark.parametrize("mode", ["partial", "full", "none"])
@pytest.mark.parametrize(("layout", "history"), [("raid0", [3, 5]), ("raid4", [4, 5, 7])])
async def test_large_writes_to_a_grown_array(
    layout: str, history: list[int], mode: str, taken: list[tuple[int, int]]
) -> None:
    rig = await opened(
        Rig(layout, history[-1], chunk_bytes=CHUNK, stripes=12, params={"history": history})
    )
    array = rig.array
    assert isinstance(array.context.layout, ElasticLayout)
    generations = array.context.layout.generations
    stripes, count = array.context.layout.stripes, generations[0].columns
    rng = random.Random(f"{layout}{mode}")
    old = generations[1].start * CHUNK
    await rig.put(0, rng.randbytes(old))  # as after a growth: the new end was never written
    await array.set("journal", mode)
    await array.context.journal.drain()
    taken.clear()
    row = count * CHUNK
    await rig.put(3 * row - 7, rng.randbytes(2 * row + 14))
    assert taken == ([] if mode == "full" else [(3 * row, 5 * row)])
    for _ in range(25):
        size = rng.randrange(1, 4 * row)
        await rig.put(rng.randrange(old - size), rng.randbytes(size))
    await scrubbed(rig)
    # Where younger blocks live, parity depends on them too.
    start, younger = generations[-1].start, generations[-1].columns
    await rig.put(start * CHUNK, rng.randbytes(stripes // 2 * younger * CHUNK))
    await array.context.journal.drain()
    taken.clear()
    for _ in range(10):
        await rig.put(0, rng.randbytes(stripes // 2 * row))
    await rig.put((stripes // 2 + 1) * row, rng.randbytes(2 * row))
    wholly = [(0, stripes // 2 * row)] * 10 if layout == "raid0" else []
    last = [((stripes // 2 + 1) * row, (stripes // 2 + 3) * row)]
    assert taken == ([] if mode == "full" else wholly + last)
    for _ in range(25):
        size = rng.randrange(1, 4 * row)
        await rig.put(rng.randrange(len(rig.model) - size), rng.randbytes(size))
    await scrubbed(rig)
    await rig.reopen()
    await rig.compare()
