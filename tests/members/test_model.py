"""Service times: closed-form cases of the arithmetic, and the member that sleeps accordingly."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.errors import MemberError, UsageError
from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import ModelMember, WriteCache, model_member
from raidx_fuse.members.simulated.service import PRESETS, ServiceModel, ServiceQueue, make_model
from raidx_fuse.members.simulated.virtual_time import run

SIZE_BYTES = 1 << 30
PLAIN = ServiceModel("plain", read_access_ms=1, write_access_ms=2, read_mb_s=100, write_mb_s=50)


def test_access_and_transfer_by_direction() -> None:
    queue = ServiceQueue(PLAIN, SIZE_BYTES)
    assert queue.submit(10.0, False, 0, 100_000) == pytest.approx(10.002)
    assert queue.submit(20.0, True, 0, 100_000) == pytest.approx(20.004)


def test_one_channel_is_a_fifo_queue() -> None:
    queue = ServiceQueue(PLAIN, SIZE_BYTES)
    ends = [queue.submit(0.0, False, 0, 0) for _ in range(5)]
    assert ends == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005])


def test_channels_position_in_parallel_and_share_the_path() -> None:
    model = ServiceModel("x", read_access_ms=10, read_mb_s=1, channels=3)
    queue = ServiceQueue(model, SIZE_BYTES)
    ends = [queue.submit(0.0, False, 0, 1000) for _ in range(4)]
    # three positionings end at 10 ms, transfers take 1 ms each, the fourth waits for channel 0
    assert ends == pytest.approx([0.011, 0.012, 0.013, 0.022])


def test_the_mean_seek_is_the_data_sheet_s() -> None:
    model = ServiceModel("x", seek_ms=8.0, settle_ms=0.5)
    queue = ServiceQueue(model, SIZE_BYTES)
    generator = random.Random(1)
    count, now_s = 20_000, 0.0
    for _ in range(count):
        now_s = queue.submit(now_s, False, generator.randrange(SIZE_BYTES), 0)
    assert now_s / count == pytest.approx(0.008, rel=0.02)


def test_rotation_is_half_a_turn_in_the_mean() -> None:
    for rotation, tolerance in (("mean", 1e-9), ("random", 0.03)):
        queue = ServiceQueue(ServiceModel("x", rpm=6000, rotation=rotation), SIZE_BYTES, seed=3)
        now_s = 0.0
        for number in range(4000):
            now_s = queue.submit(now_s, False, number % 2 * 1_000_000, 0)
        assert now_s / 4000 == pytest.approx(0.005, rel=tolerance, abs=2e-6)


def test_going_on_costs_the_transfer_only_and_a_gap_is_passed_over() -> None:
    model = ServiceModel("x", seek_ms=5, settle_ms=1, rpm=6000, read_mb_s=100, rotation="mean")
    queue = ServiceQueue(model, SIZE_BYTES)
    assert queue.submit(0.0, False, 0, 100_000) == pytest.approx(0.001)
    assert queue.submit(1.0, False, 100_000, 100_000) == pytest.approx(1.001)
    assert queue.submit(2.0, False, 250_000, 0) == pytest.approx(2.0005), (
        "50 kB further at 100 MB/s"
    )
    backwards_s = queue.submit(3.0, False, 200_000, 0) - 3
    assert 0.006 < backwards_s < 0.007, "a short seek and half a turn of 10 ms"


def test_writes_settle_longer() -> None:
    model = ServiceModel("x", settle_ms=1, seek_ms=1, write_settle_ms=0.5)
    for is_write, expected_s in ((False, 0.001), (True, 0.0015)):
        end_s = ServiceQueue(model, SIZE_BYTES).submit(0.0, is_write, 4096, 0)
        assert end_s == pytest.approx(expected_s)


def test_a_flush_waits_for_all_and_costs_only_after_writes() -> None:
    model = ServiceModel("x", write_access_ms=10, read_access_ms=1, channels=2, flush_ms=3)
    queue = ServiceQueue(model, SIZE_BYTES)
    assert queue.flush(0.0) == 0
    queue.submit(0.0, True, 0, 0)
    assert queue.flush(0.001) == pytest.approx(0.013)
    assert queue.submit(0.002, False, 0, 0) == pytest.approx(0.014), "nothing overtakes a flush"
    assert queue.flush(0.002) == pytest.approx(0.014)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("hdd", 70, 90), ("sas10k", 130, 160), ("ssd", 70_000, 90_000), ("nvme", 3e5, 6e5)],
)
def test_presets_are_in_the_range_of_their_kind(name: str, low: float, high: float) -> None:
    queue = ServiceQueue(PRESETS[name], 1 << 40, seed=1)
    generator = random.Random(2)
    end_s = 0.0
    for _ in range(3000):
        end_s = max(end_s, queue.submit(0.0, False, generator.randrange(1 << 28) * 4096, 4096))
    assert low < 3000 / end_s < high, "random 4 KiB reads a second, deep queue"


def test_numbers_by_hand() -> None:
    model = make_model("hdd", seek_ms="4", rpm="15000", rotation="mean", channels="2")
    assert (model.seek_ms, model.rpm, model.rotation, model.channels) == (4, 15000, "mean", 2)
    assert model.read_mb_s == PRESETS["hdd"].read_mb_s
    assert PRESETS["hdd"].seek_ms == 8.5


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("floppy", {}, "no disk model 'floppy'; choose from hdd, sas10k, ssd, nvme, ram"),
        ("hdd", {"seek": "4"}, "no model number 'seek'; choose from seek_ms"),
        ("hdd", {"name": "x"}, "no model number 'name'"),
        ("hdd", {"seek_ms": "fast"}, "seek_ms=fast: not a number"),
        ("hdd", {"seek_ms": "-1"}, "out of range"),
        ("hdd", {"seek_ms": "nan"}, "out of range"),
        ("hdd", {"channels": "0"}, "out of range"),
        ("hdd", {"channels": "1.5"}, "not a number"),
        ("hdd", {"rotation": "left"}, "rotation is"),
    ],
)
def test_bad_numbers_are_one_line(name: str, numbers: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_model(name, **numbers)
    assert message in str(caught.value)


async def test_a_member_takes_the_modelled_time_and_not_less() -> None:
    member = ModelMember(RamMember(1 << 20), PLAIN)
    await member.writev(0, [b"x" * 50_000])
    assert trio.current_time() == pytest.approx(0.003)
    buffer = bytearray(50_000)
    await member.readv(0, [buffer])
    assert trio.current_time() == pytest.approx(0.0045)
    assert buffer == b"x" * 50_000
    assert not member.try_readv(0, [buffer])
    assert not member.try_writev(0, [buffer])
    with pytest.raises(MemberError):
        await member.readv(1 << 20, [buffer])
    assert trio.current_time() == pytest.approx(0.0045)


async def test_data_move_when_their_time_has_come() -> None:
    member = ModelMember(RamMember(4096), PLAIN)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 0, [b"x"])
        await trio.sleep(0.0019)
        assert member.inner.view(0, 1) == b"\0"  # type: ignore[comparison-overlap]
        await trio.sleep(0.0002)
        assert member.inner.view(0, 1) == b"x"  # type: ignore[comparison-overlap]


def test_the_ram_preset_answers_at_once() -> None:
    member = model_member(1 << 20, "ram")
    assert member.try_writev(0, [b"x"])
    assert member.view(0, 1) is not None
    assert not model_member(1 << 20, "ram", flush_ms="1").try_readv(0, [bytearray(1)])


def test_the_same_seed_gives_the_same_times() -> None:
    async def workload(seed: int) -> float:
        member = model_member(1 << 24, "hdd", seed=seed)
        generator = random.Random(0)

        async def worker() -> None:
            for _ in range(50):
                await member.readv(generator.randrange(1 << 23), [bytearray(4096)])
            await member.flush()

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(worker)
        return trio.current_time()

    assert run(workload, 1) == run(workload, 1)
    assert run(workload, 1) != run(workload, 2)


def test_a_model_in_real_time_over_a_file(tmp_path: object) -> None:
    path = f"{tmp_path}/disk.img"
    create_file(path, 1 << 20)

    async def main() -> float:
        member = model_member(LocalMember(path), "ram", write_access_ms="20")
        begin_s = trio.current_time()
        await member.writev(0, [b"x"])
        member.close()
        return trio.current_time() - begin_s

    assert trio.run(main) >= 0.02


# -- queues, caches and garbage collection ---------------------------------------------------------


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
