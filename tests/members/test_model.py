"""Service times: closed-form cases of the arithmetic, and the member that sleeps accordingly."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.errors import MemberError, UsageError
from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import ModelMember, model_member
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
