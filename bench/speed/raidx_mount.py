"""Does a look-up table cost anything? Mounted raidx arrays as a share of raid0, and a large table.

    python bench/speed/raidx_mount.py

1. Random 4 KiB requests to raidx-zero and raidx-copy, and to raid0: members in memory, two arrays
   mounted at the same time and measured in turns, without journals.
2. The access statistics of the tuner, in processor time: reads of an array that counts how often
   chunks are used and of the same array without counting; the difference as a share of the time
   that the mounted array takes for a read.
3. A raidx array of 16 Mi chunks: creation, mounting, and the peak memory of its daemon, with access
   statistics and tuning.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import trio
from candidates import MEMBERS, MIB, RAIDX, Candidate
from lines import Line, print_lines
from mount_ratio import Row
from two_loss_mount import compare

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember

SHARE_BAR = 0.9
READS = (
    Row("4 KiB random read, 1 deep", "randread", "4k", 1, {}),
    Row("4 KiB random read, 16 deep", "randread", "4k", 16, {}),
)
WRITES = (
    Row("4 KiB random write, 1 deep", "randwrite", "4k", 1, {}),
    Row("4 KiB random write, 16 deep", "randwrite", "4k", 16, {}),
)
TRACKING_BAR_PERCENT = 5.0
TRACKED_READS = 20_000

LARGE_TIB = 1
LARGE_CHUNKS = LARGE_TIB << 40 >> 16
METADATA_MIB = 2048  # beside the data of each member: table shares, maps, log
MOUNT_BAR_S = 10.0
MEMORY_BAR_MIB = 400
USED_PLACES = 3000


def _step(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("suspended: this is not the hot path")


async def tracking_us(rounds: int) -> list[float]:
    """Return what noting a read costs, in microseconds of processor time, round by round."""
    members = [RamMember(48 * MIB, name=f"ram{number}") for number in range(MEMBERS)]
    await create_array(members, "raidx-zero", name="bench", now_s=0)
    async with open_array(members) as array:
        for at in range(0, 64 * MIB, MIB):
            await array.write(at, bytes(MIB))
        await array.flush()
        rng = random.Random(1)
        places = [rng.randrange(64 * MIB >> 12) << 12 for _ in range(TRACKED_READS)]
        access = array.context.traffic.heat
        found = []
        for _ in range(rounds):
            spent = []
            for noting in (None, access, None, access):
                array.context.traffic.heat = noting
                spent.append(_spent_us(array, places))
            found.append((spent[1] + spent[3] - spent[0] - spent[2]) / 2)
        array.context.traffic.heat = access
        return found


def _spent_us(array: Array, places: list[int]) -> float:
    read = array.read
    began_s = process_time()
    for place in places:
        _step(read(place, 4096))
    return (process_time() - began_s) / len(places) * 1e6


def large_table(directory: Path) -> list[Line]:
    """Return the lines of a raidx array of 16 Mi chunks over sparse files."""
    members = [str(directory / f"large-{number}.img") for number in range(MEMBERS)]
    members[0] += ",model=ssd"  # slower than the others, so that the tuner has what to move
    member_mib = (LARGE_TIB << 20) // MEMBERS + METADATA_MIB
    create = ["create", "--layout", "raidx-zero", "--size", f"{member_mib}MiB"]
    start_s = perf_counter()
    subprocess.run([*RAIDX, *create, *members], check=True, stdout=subprocess.DEVNULL)
    created_s = perf_counter() - start_s
    mountpoint = directory / "mnt"
    mountpoint.mkdir()
    start_s = perf_counter()
    command = [*RAIDX, "mount", "--foreground", *members, str(mountpoint)]
    candidate = Candidate("large", command, mountpoint)
    try:
        candidate.wait_until_mounted()
        mounted_s = perf_counter() - start_s
        idle_mib = candidate.resident_mib()
        size = candidate.image.stat().st_size
        assert size >= LARGE_TIB << 40, size
        rng = random.Random(1)
        image = os.open(candidate.image, os.O_RDWR)
        for _ in range(USED_PLACES):
            place = rng.randrange(size >> 12) << 12
            os.pwrite(image, bytes(4096), place)
            os.pread(image, 4096, place)
        os.close(image)
        tune = [*RAIDX, "tune", str(mountpoint)]
        subprocess.run([*tune, "--dry-run"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*tune, "--now", "--wait"], check=True, stdout=subprocess.DEVNULL)
        peak_mib = candidate.resident_mib("VmHWM")
    finally:
        candidate.stop()
    row = f"{LARGE_CHUNKS >> 20} Mi chunks"
    return [
        _line(f"{row}, mount", f"{mounted_s:.1f} s", mounted_s, MOUNT_BAR_S, " s"),
        _line(f"{row}, memory", f"{peak_mib:.0f} MiB", peak_mib, MEMORY_BAR_MIB, " MiB"),
        _line("  before the first request", f"{idle_mib:.0f} MiB", idle_mib),
        _line("  create, whole command", f"{created_s:.1f} s", created_s),
    ]


def _line(row: str, figure: str, value: float, bar: float | None = None, unit: str = "") -> Line:
    return Line(row, "raidx-zero", figure, value, value, value, bar, unit, at_most=True)


def run(directory: str = "/dev/shm", rounds: int = 5, seconds: float = 1.0) -> list[Line]:
    """Measure and return all lines."""
    measured = partial(compare, size=128 * MIB, rounds=rounds, seconds=seconds)
    lines = measured("raidx-zero", "raid0", (*READS, *WRITES), SHARE_BAR)
    whole_us = next(line.cpu_us for line in lines if line.subject == "raidx-zero")
    assert whole_us is not None
    lines += measured("raidx-copy", "raid0", READS, SHARE_BAR)
    costs = sorted(cost_us / whole_us * 100 for cost_us in trio.run(tracking_us, max(5, rounds)))
    middle = statistics.median(costs)
    lines.append(
        Line(
            row="noting a use of a chunk",
            subject="raidx-zero",
            figure=f"{middle * whole_us / 100:.2f} us",
            value=middle,
            low=costs[0],
            high=costs[-1],
            bar=TRACKING_BAR_PERCENT,
            unit=" % of a read",
            at_most=True,
        )
    )
    with tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=directory) as home:
        return lines + large_table(Path(home))


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each run")
    parser.add_argument("--directory", default="/dev/shm", help="folder for the sparse files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = run(options.directory, options.rounds, options.seconds)
    return print_lines(lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
