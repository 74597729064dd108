"""Eq. 5: what a request costs an array, checked against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from raidx_fuse.layouts.registry import make_code
from raidx_fuse.pool.balance.utilisation import (
    ArrayShape,
    DiskTimes,
    ServiceTimes,
    VolumeLoad,
    bandwidths,
    request_s,
    utilisation,
    write_operations,
)

CHUNK = 16 << 10
DISK = DiskTimes(0.004, 0.003, 1e-8)
ONE_S = 0.007 + CHUNK * 1e-8  # t_seek + t_rot + S * t_xfr


def shape(layout: str, disks: int, times: DiskTimes = DISK) -> ArrayShape:
    return ArrayShape(disks, CHUNK, make_code(layout, disks), times)


@pytest.mark.parametrize(("chunks", "delta"), [(1, 1), (2, 2), (3, 3)])
def test_reads_of_whole_chunks_are_eq_5(chunks: int, delta: int) -> None:
    load = VolumeLoad(reads_s=20, read_bytes=chunks * CHUNK)
    assert utilisation(shape("raid5", 4), load) == pytest.approx(20 * delta * ONE_S / 4)


def test_a_short_read_transfers_its_own_bytes_and_a_long_one_visits_each_disk_once() -> None:
    short, long = request_s(shape("raid5", 4), np.array([4096.0, 9.0 * CHUNK]), write=False)
    assert short == pytest.approx(0.007 + 4096 * 1e-8)
    assert long == pytest.approx(3 * 0.007 + 9 * CHUNK * 1e-8)


@pytest.mark.parametrize(
    ("layout", "disks", "one_chunk"),
    [
        ("raid0", 4, 1.0),
        ("raid1", 2, 2.0),
        ("raid5", 4, 4.0),  # read and write data and parity, or the two others
        ("raid5", 3, 3.0),  # reconstruct-write: one read, two writes
        ("pcode", 6, 6.0),
        ("rdp", 6, (7 * 6 + 9 * 8) / 16),  # 9 of 16 cells are on a diagonal of the row parity
    ],
)
def test_operations_of_a_write_of_one_chunk(layout: str, disks: int, one_chunk: float) -> None:
    code = make_code(layout, disks)
    table = (*write_operations(code), float(len(code.cells)))
    assert table[1] == pytest.approx(one_chunk)


def test_a_full_stripe_reads_nothing() -> None:
    written = request_s(shape("raid5", 4), np.array([3.0 * CHUNK]), write=True)[0]
    assert written == pytest.approx(4 * ONE_S)


def test_the_unit_of_bandwidth_compares_unlike_arrays() -> None:
    fast = DiskTimes(0.0, 0.0001, 1e-9)
    loads = [VolumeLoad(reads_s=10, read_bytes=CHUNK), VolumeLoad(writes_s=30, write_bytes=CHUNK)]
    shapes = [shape("raid5", 4), shape("raid0", 4), shape("raid5", 4, fast)]
    bandwidth, need = bandwidths(shapes, loads)
    assert need.shape == (2, 3)
    assert bandwidth[0] < bandwidth[1] < bandwidth[2]
    for j, one in enumerate(shapes):
        for i, load in enumerate(loads):
            assert need[i, j] / bandwidth[j] == pytest.approx(utilisation(one, load))
        assert need[:, j].sum() == pytest.approx(40)  # the whole mix is 40 requests a second


def test_without_load_the_bandwidth_is_that_of_small_reads() -> None:
    bandwidth, need = bandwidths([shape("raid5", 4)], [VolumeLoad()])
    assert bandwidth[0] == pytest.approx(4 / (0.007 + 4096 * 1e-8))
    assert not need.any()


def test_measured_times_explain_the_mean_service_time() -> None:
    times = ServiceTimes()
    times.note(1000, 1000 * 8192, 8.0)
    found = times.disk_times()
    assert found is not None
    assert found.seek_s + 8192 * found.transfer_s_per_byte == pytest.approx(0.008)
