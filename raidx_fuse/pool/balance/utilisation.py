"""How much of an array a volume uses: Eq. 5 of the paper, with the layout's cost of writes.

A request of s bytes touches delta = ceil(s / S) chunks of S bytes on as many disks, and each disk
is busy for t_seek + t_rot + S * t_xfr. With r requests a second the volume uses of d disks

    u = r * delta * (t_seek + t_rot + S * t_xfr) / d                                     Eq. 5

Ours, because the paper's requests are reads of whole chunks:

* A request shorter than a chunk transfers its own bytes only; one longer than a row of data visits
  each disk once, for a longer transfer.
* A write makes as many operations as the cheaper of read-modify-write and reconstruct-write in the
  layout's code, on average over its possible places in a stripe (`write_operations`). The log is
  not counted: it is written in sequence.
* Reads and writes have rates and mean sizes of their own.

Example: 100 reads a second of 16 KiB from four disks (5.2 ms seek, 3 ms rotation, 60 MB/s) keep
each busy for a fifth of the time; as writes to RAID 5, two reads and two writes each, four fifths.

    >>> from raidx_fuse.layouts.registry import make_code
    >>> disk = DiskTimes(0.0052, 0.003, 1 / 60e6)
    >>> raid5 = ArrayShape(4, 16384, make_code("raid5", 4), disk)
    >>> round(utilisation(raid5, VolumeLoad(reads_s=100, read_bytes=16384)), 3)
    0.212
    >>> round(utilisation(raid5, VolumeLoad(writes_s=100, write_bytes=16384)), 3)
    0.847
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.pool.balance.system import Floats

IDLE_REQUEST_BYTES = 4096  # an array's bandwidth in a pool without load: reads of this size
TRANSFER_BYTES_S = 150e6  # of a hard disk
OPERATIONS_MIN = 100  # fewer, as those of a mount, say nothing
KEPT = 0.95  # of the weight of an interval when the next one comes
WEIGHT_MAX = 1000.0  # operations: one busy interval must not outweigh all others
SPREAD_MIN = 0.2  # standard deviation of mean sizes over their mean that parts the two


class DiskTimes(NamedTuple):
    """Service times of one disk: mean seek, mean rotational latency, transfer time per byte."""

    seek_s: float
    rotation_s: float
    transfer_s_per_byte: float


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """What Eq. 5 needs of an array: *disks* d, *chunk_bytes* S, *code*, *times* of a disk.

    *code*: of a raidx layout that of its bundles. *times* of unlike disks are their means.
    """

    disks: int
    chunk_bytes: int
    code: Code
    times: DiskTimes


class VolumeLoad(NamedTuple):
    """What a volume was asked for: requests a second and their mean sizes in bytes."""

    reads_s: float = 0.0
    writes_s: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0


@lru_cache(maxsize=256)
def write_operations(code: Code) -> tuple[float, ...]:
    """Return the disk operations of a write of 0, 1, ..., D-1 chunks; a stripe has D of data.

    The mean over the places at which such a write may begin. It is read-modify-write or
    reconstruct-write, whichever makes fewer operations in each stripe.
    """
    data = code.data_count
    found = [0.0]
    for count in range(1, data):
        total = 0
        for start in range(data):
            inside = range(start, min(start + count, data))
            total += _stripe_operations(code, set(inside))
            total += _stripe_operations(code, set(range(count - len(inside))))
        found.append(total / data)
    return tuple(found)


def _stripe_operations(code: Code, cells: set[int]) -> int:
    parities = {parity for cell in cells for parity in code.affects[cell]}
    read = 0
    for parity in parities:
        read |= code.support[parity - code.data_count]
    others = sum(1 for cell in range(code.data_count) if read >> cell & 1 and cell not in cells)
    writes = len(cells) + len(parities)
    pre_reads = min(writes, others) if parities else 0
    return writes + pre_reads


def request_s(shape: ArrayShape, size_bytes: Floats, *, write: bool) -> Floats:
    """Return for how many seconds requests of *size_bytes* keep disks busy, all disks together."""
    code, chunk = shape.code, shape.chunk_bytes
    chunks = np.maximum(np.ceil(size_bytes / chunk), 1).astype(np.int64)
    rows = np.maximum(chunks / code.data_count, 1.0)  # of whole stripes
    if write:
        table = np.array([*write_operations(code), float(len(code.cells))])
        operations = table[np.minimum(chunks, code.data_count)]
    else:
        operations = np.minimum(chunks, code.data_count).astype(np.float64)
    # Neighbouring chunks of several rows or stripes on one disk are one longer operation.
    visits = np.minimum(operations, shape.disks)
    if write:
        visits = np.where(chunks >= code.data_count, visits, operations)
    transferred = operations * rows * np.minimum(size_bytes, chunk)
    times = shape.times
    return np.asarray(
        visits * (times.seek_s + times.rotation_s) + transferred * times.transfer_s_per_byte
    )


def utilisations(shape: ArrayShape, loads: Sequence[VolumeLoad]) -> Floats:
    """Return the utilisation of the array that each of *loads* causes, 1.0 is all of it: (m,)."""
    table = np.array(loads, dtype=np.float64).reshape(len(loads), len(VolumeLoad._fields))
    reads = table[:, 0] * request_s(shape, table[:, 2], write=False)
    writes = table[:, 1] * request_s(shape, table[:, 3], write=True)
    return np.asarray((reads + writes) / shape.disks)


def utilisation(shape: ArrayShape, load: VolumeLoad) -> float:
    """Return the utilisation of the array that *load* causes; 1.0 is all of it."""
    return float(utilisations(shape, [load])[0])


def bandwidths(shapes: Sequence[ArrayShape], loads: Sequence[VolumeLoad]) -> tuple[Floats, Floats]:
    """Return B_j of each array, shape (n,), and b_ij of each volume on each array, shape (m, n).

    The unit is one request a second of the pool's mix: B_j is the rate at which that mix would use
    all of array j. It compares arrays of unlike disks and layouts: what spareBSR orders.
    """
    used = np.stack([utilisations(shape, loads) for shape in shapes], axis=1)
    rate = sum(load.reads_s + load.writes_s for load in loads)
    total = used.sum(axis=0)
    if not rate or not total.all():
        idle = np.array([float(IDLE_REQUEST_BYTES)])
        capacity = np.array(
            [shape.disks / request_s(shape, idle, write=False)[0] for shape in shapes]
        )
    else:
        capacity = rate / total
    return capacity, used * capacity


class ServiceTimes:
    """Running sums over intervals: weight, and weighted means' sums of sizes and service times.

    For each interval the queues give the time for which the members were busy, the number of their
    operations and the bytes of these. Busy time over operations is the mean service time, also
    where several operations are outstanding (iostat's svctm). Intervals with operations of unlike
    mean sizes part it into

        service time = positioning + bytes * transfer time per byte

    by weighted least squares in which older intervals count less. While all sizes are alike,
    the two cannot be separated, and nothing depends on it; the transfer is then assumed to run at
    `TRANSFER_BYTES_S`, but to take no more than half of the service time.

    Pure. Members of unlike speeds of one array are taken together: Eq. 5 wants their mean.
    """

    def __init__(self, sums: Sequence[float] = (0.0,) * 6) -> None:
        """Continue *sums*. Raises ValueError or TypeError if they are not six numbers from 0."""
        self._sums = [float(value) for value in sums]
        if len(self._sums) != 6 or not all(0 <= value < math.inf for value in self._sums):
            raise ValueError("service times are not six numbers")

    def sums(self) -> list[float]:
        """Return the sums that a further instance continues."""
        return [float(f"{value:.12g}") for value in self._sums]

    def note(self, operations: int, size_bytes: float, busy_s: float) -> None:
        """Note an interval: so many *operations* of *size_bytes* in all, busy for *busy_s*."""
        if operations <= 0 or size_bytes <= 0 or busy_s < 0:
            return
        mean, service_s = size_bytes / operations, busy_s / operations
        weight = min(float(operations), WEIGHT_MAX)
        new = (1.0, mean, service_s, mean * mean, mean * service_s)
        self._sums[0] += operations
        for number, value in enumerate(new, 1):
            self._sums[number] = KEPT * self._sums[number] + weight * value

    def disk_times(self) -> DiskTimes | None:
        """Return the times; None: too few operations were seen."""
        seen, weight, sizes, services, squares, products = self._sums
        if seen < OPERATIONS_MIN or not weight:
            return None
        mean, service_s = sizes / weight, services / weight
        variance = squares / weight - mean * mean
        if variance > (SPREAD_MIN * mean) ** 2:
            slope = (products / weight - mean * service_s) / variance
            slope = min(max(slope, 0.0), service_s / mean)
        else:
            slope = min(1 / TRANSFER_BYTES_S, service_s / mean / 2)
        # The time beyond the transfer counts as seek: seek and rotation are not separated.
        return DiskTimes(max(service_s - mean * slope, 0.0), 0.0, slope)
