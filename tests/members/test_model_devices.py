"""Devices that choose their next operation, cache writes, or stall: closed-form cases."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.errors import UsageError
from raidx_fuse.members.simulated.model import ModelMember, WriteCache, model_member
from raidx_fuse.members.simulated.service import ServiceModel, ServiceQueue, make_model
from raidx_fuse.members.simulated.virtual_time import run

SIZE_BYTES = 1 << 30
PAGE = 4096
# Positioning takes 1 ms at the least, 21 ms over the whole disk; rotation and transfer nothing.
SEEKS = {"seek_ms": 1 + 20 * 8 / 15, "settle_ms": 1.0, "rotation": "mean"}


def served(order: str, offsets: list[int], **numbers: float) -> list[int]:
    """Return *offsets* in the order in which a disk that works at 0 serves them."""
    done: list[int] = []

    async def main() -> None:
        model = ServiceModel("x", order=order, **SEEKS, **numbers)
        member = ModelMember(model_member(SIZE_BYTES, "ram"), model)

        async def read(offset: int) -> None:
            await member.readv(offset, [bytearray(PAGE)])
            done.append(offset // PAGE)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, 100 * PAGE)  # the disk is at work when the others come
            await trio.sleep(0.0001)
            for offset in offsets:
                nursery.start_soon(read, offset * PAGE)
                await trio.lowlevel.checkpoint()

    run(main)
    return done[1:]


def test_fifo_ncq_and_cscan_serve_in_their_own_order() -> None:
    waiting = [200_000, 50, 5000, 150]
    assert served("fifo", waiting) == waiting
    assert served("ncq", waiting) == [150, 50, 5000, 200_000]  # always the nearest
    assert served("cscan", waiting) == [150, 5000, 200_000, 50]  # upwards, then the lowest


def test_choosing_makes_a_disk_quicker_under_load_and_no_slower_alone() -> None:
    async def workload(order: str, tasks: int) -> float:
        member = model_member(1 << 30, "hdd", seed=2, order=order)
        places = random.Random(4)

        async def worker() -> None:
            for _ in range(60):
                await member.readv(places.randrange(1 << 17) * PAGE, [bytearray(PAGE)])

        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(worker)
        return trio.current_time()

    fifo, ncq, cscan = (run(workload, order, 16) for order in ("fifo", "ncq", "cscan"))
    assert ncq < cscan < fifo
    assert 1.8 < fifo / ncq < 4
    assert run(workload, "ncq", 1) == run(workload, "fifo", 1)


def test_a_cancelled_operation_leaves_its_turn_to_the_next() -> None:
    async def main() -> float:
        member = model_member(1 << 20, "hdd", order="ncq", rotation="mean")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.readv, 0, [bytearray(PAGE)])
            for wait_s in (1e-9, 2e-9):  # one waits, one is chosen meanwhile
                with trio.move_on_after(wait_s):
                    await member.readv(PAGE, [bytearray(PAGE)])
            await member.readv(2 * PAGE, [bytearray(PAGE)])
        with trio.move_on_after(1e-9):  # the one that is served is cancelled
            await member.readv(3 * PAGE, [bytearray(PAGE)])
        with trio.fail_after(1):
            await member.readv(PAGE, [bytearray(PAGE)])
        return trio.current_time()

    assert run(main) < 0.2


def test_a_write_cache_answers_at_once_until_it_is_full() -> None:
    model = ServiceModel("x", write_access_ms=1, write_mb_s=1, cache_mb=0.01, order="cscan")
    cache = WriteCache(ServiceQueue(model, SIZE_BYTES))
    first = cache.submit(0.0, True, 0, 5000)
    assert first == pytest.approx(0.006)  # access and transfer into the cache
    assert cache.submit(0.0, True, 90_000, 5000) == pytest.approx(0.006)
    # The medium writes the first one in 6 ms; only then the third has room.
    assert cache.submit(0.0, True, 50_000, 5000) == pytest.approx(0.012)
    # A flush ends when all are on the medium: three of 6 ms.
    assert cache.flush(0.0) == pytest.approx(0.018)
    assert cache.flush(1.0) == pytest.approx(1.0)


def test_a_cache_writes_once_what_was_written_twice_and_reads_its_own() -> None:
    model = ServiceModel("x", read_access_ms=9, write_access_ms=1, cache_mb=1)
    queue = ServiceQueue(model, SIZE_BYTES)
    cache = WriteCache(queue)
    for _ in range(50):
        cache.submit(0.0, True, 0, PAGE)
    assert cache.submit(0.0, False, 0, PAGE) == pytest.approx(0.001)
    assert cache.flush(0.0) == pytest.approx(0.001)
    assert cache.submit(1.0, False, 0, PAGE) == pytest.approx(1.009)


def test_a_drive_with_a_cache_writes_back_while_it_is_idle() -> None:
    model = ServiceModel("x", write_access_ms=1, cache_mb=1)
    cache = WriteCache(ServiceQueue(model, SIZE_BYTES))
    for number in range(100):
        cache.submit(0.0, True, number * PAGE, PAGE)
    assert cache.submit(0.0501, False, 200 * PAGE, PAGE) == pytest.approx(0.051)
    assert cache.flush(10.0) == pytest.approx(10.0)


def test_garbage_collection_stalls_all_channels_after_so_many_bytes() -> None:
    model = make_model("ssd", stall_ms="50", stall_each_mb="1")
    queue = ServiceQueue(model, SIZE_BYTES, seed=1)
    ends = [queue.submit(10.0 * n, True, 0, 100_000) - 10.0 * n for n in range(100)]
    assert max(ends) < 0.001  # a stall is over before the next one comes ten seconds later
    again = ServiceQueue(model, SIZE_BYTES, seed=1)
    waits = [again.submit(1e-3 * n, True, 0, 100_000) - 1e-3 * n for n in range(100)]
    assert sum(wait > 0.04 for wait in waits) >= 8  # ten megabytes: a stall for each of them


def test_members_of_an_array_do_not_stall_together() -> None:
    model = make_model("ssd", stall_ms="50", stall_each_mb="1")
    firsts = set()
    for seed in range(5):
        queue = ServiceQueue(model, SIZE_BYTES, seed=seed)
        ends = [queue.submit(0.0, True, 0, 10_000) for _ in range(120)]
        firsts.add(next(n for n in range(119) if ends[n + 1] - ends[n] > 0.04))
    assert len(firsts) >= 4


def test_numbers_that_make_no_device_are_refused() -> None:
    for numbers, what in (
        ({"order": "elevator"}, "order is 'fifo' or 'ncq' or 'cscan'"),
        ({"stall_ms": "5"}, "together"),
        ({"cache_mb": "8", "order": "ncq"}, "write cache"),
        ({"queue_depth": "0"}, "out of range"),
    ):
        with pytest.raises(UsageError, match=what):
            make_model("hdd", **numbers)
