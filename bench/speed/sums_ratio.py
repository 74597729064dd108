"""What do checksums cost? The same requests with and without them, in turn.

    python bench/speed/sums_ratio.py                    mounted arrays, and the engine alone
    python bench/speed/sums_ratio.py --only engine      RAM members: no FUSE, no kernel
    python bench/speed/sums_ratio.py --only mounted --seconds 1
    python bench/speed/sums_ratio.py --only virtual     modelled disks, an image of 64 GiB
    python bench/speed/sums_ratio.py --only memory      the most that a process held, at 1 TiB

The *mounted* rows have bars: each mounts two arrays, writes all of both, and runs fio on them in
turn, as `logged_writes.py` does; the ratio is taken within the round. The *engine* rows are the
processor time of a request in one process, which shows the largest ratio: through a mount, every
request also pays for the kernel and the FUSE front end. A row *log* is of arrays with their log, a
*burst* as in `logged_writes.py`; the others have none. The *virtual* rows are in virtual time, the
same on every machine: what the requests wait for the members, without any processor time. They run
only if asked for, for minutes. Tables of checksums are in memory (*cached*), or are read, both
copies, with nearly each request. The *memory* row is how much more two processes held at most, with
and without checksums, after 30,000 random writes to an image of 1 TiB on sparse files.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median

import trio
from lines import Line, print_lines
from log_ratio import DOOR_BATCH, IMAGE_BYTES, MEMBER_BYTES, MEMBERS
from logged_writes import PLAIN5, RAID5, UNMARKED_S, Pair, Setup, compare

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.lab.experiments.modelled import assume_written
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import Block, Load, block_of
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.ram import RamMember

KIB, MIB = 1 << 10, 1 << 20
ONLY = ("mounted", "engine", "virtual", "memory")
LOGGED, PLAIN = Setup("raid5", sums=True), Setup("raid5", journal="none", sums=True)
MOUNTED = (
    Pair("read", "4 KiB random read", LOGGED, RAID5, 0.9, "randread"),
    Pair("read", "  1 deep", LOGGED, RAID5, 0.95, "randread", depth=1),
    Pair("large", "1 MiB sequential read", LOGGED, RAID5, 0.75, "read", "1m", 1),
    Pair("large", "1 MiB sequential write", LOGGED, RAID5, 0.85, "write", "1m", 1),
    Pair("large", "  no log", PLAIN, PLAIN5, 0.85, "write", "1m", 1),
    Pair("burst", "4 KiB random write, burst", LOGGED, RAID5, 0.95, burst=True),
    Pair("sustained", "4 KiB random write", LOGGED, RAID5, 0.85, rest_s=UNMARKED_S),
)
# title, request size, whether it writes, requests in a round, whether all is at its place before
ENGINE = (
    ("4 KiB random read", "none", 4 * KIB, False, 2000, False),
    ("64 KiB random read", "none", 64 * KIB, False, 500, False),
    ("1 MiB random read", "none", MIB, False, 100, False),
    ("1 MiB random write", "none", MIB, True, 100, False),
    ("4 KiB random read, log", "partial", 4 * KIB, False, 2000, False),
    ("1 MiB random write, log", "partial", MIB, True, 100, True),
    ("4 KiB write, log, burst", "partial", 4 * KIB, True, 1000, True),
    ("4 KiB write, log", "partial", 4 * KIB, True, 16_000, False),
)

GIB = 1 << 30
VIRTUAL_GIB = 64
# title, model, whether it writes, whether the tables are cached, requests, depth, bar
VIRTUAL = (
    ("4 KiB random write, ssd", "ssd", True, True, 40_000, 16, 0.8),
    ("4 KiB cold read, cached", "hdd", False, True, 1500, 4, 0.95),
    ("4 KiB cold read, hdd", "hdd", False, False, 1500, 4, 0.55),
    ("4 KiB cold read, ssd", "ssd", False, False, 3000, 4, 0.8),
)


MEMORY_GIB = 1 << 10
MEMORY_REQUESTS = 30_000
MEMORY_BAR_MIB = 64


def _random_pages(gib: int, count: int, *, writes: bool) -> Block:
    rng = random.Random(7)
    pages = [rng.randrange(gib * GIB // (4 * KIB)) for _ in range(count)]
    return block_of([(0.0, writes, page * 4 * KIB, 4 * KIB) for page in pages])


async def peak(directory: str, *, sums: bool) -> float:
    """Return how many MiB this process held at most, after random writes to a large image."""
    rng = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=directory) as home:
        paths = [str(Path(home) / f"{number}.img") for number in range(MEMBERS)]
        for path in paths:
            create_file(path, (MEMORY_GIB // (MEMBERS - 1) + 4) * GIB)
        members = [LocalMember(path, reads_zero=True) for path in paths]
        size = MEMORY_GIB * GIB
        await create_array(members, "raid5", name="bench", now_s=0, size_bytes=size, sums=sums)
        async with open_array(members) as array:
            assume_written(array)

            for number in range(MEMORY_REQUESTS):
                await array.write(rng.randrange(size // (4 * KIB)) * 4 * KIB, bytes(4 * KIB))
                if not number % 500:
                    await array.context.journal.drain()  # both hold as little of the log
            await array.flush()
        for member in members:
            member.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MIB


def memory(directory: str) -> list[Line]:
    """Return the line of the memory of two processes, with and without checksums."""
    peaks = []
    for side in ("off", "on"):
        command = [sys.executable, __file__, "--peak", side, "--directory", directory]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(float(done.stdout))
    more = peaks[1] - peaks[0]
    words = f"{peaks[1]:.0f} MiB"
    title = "4 KiB random writes, 1 TiB"
    return [
        Line(title, "raid5+sums", words, more, more, more, MEMORY_BAR_MIB, " MiB", at_most=True)
    ]


def _load(block: Block, _size: int) -> Load:
    return [block]


def virtual() -> list[Line]:
    """Return the lines of modelled disks."""
    lines = []
    for title, model, writes, cached, count, depth, bar in VIRTUAL:
        block = _random_pages(VIRTUAL_GIB, count, writes=writes)

        async def prepare(array: Array, cached: bool = cached) -> None:
            sums = array.member_set.sums
            if sums is not None and cached:
                data = array.member_set.config.regions.data
                sums.tables.limit(data.length)
                await sums.load((Role(r), data.offset, (), data.length) for r in range(MEMBERS))

        rates = []
        for has_sums in (False, True):
            experiment = Experiment(
                layout="raid5",
                members=(model,) * MEMBERS,
                member_bytes=(VIRTUAL_GIB // (MEMBERS - 1) + 2) * GIB,
                size_bytes=VIRTUAL_GIB * GIB,
                sums=has_sums,
                load=partial(_load, block),
                depth=depth,
                prepare=prepare,
            )
            rates.append(float(simulate(experiment)["rate"]))
        ratio = rates[1] / rates[0]
        words = f"{rates[1]:,.0f}/s"
        lines.append(Line(title, "raid5+sums", words, ratio, ratio, ratio, bar=bar, unit="x"))
    return lines


async def start(stack: AsyncExitStack, journal: str, *, sums: bool) -> Array:
    """Return an array of which what is measured was written in full."""
    members = [RamMember(MEMBER_BYTES, name=f"ram{number}") for number in range(MEMBERS)]
    await create_array(members, "raid5", name="bench", now_s=0, chunk_bytes=64 * KIB, sums=sums)
    array = await stack.enter_async_context(open_array(members))
    await array.set("journal", journal)
    noise = random.Random(1).randbytes(MIB)
    for at in range(0, IMAGE_BYTES, MIB):
        await array.write(at, noise)
    await array.flush()
    return array


async def cpu_us(array: Array, offsets: Sequence[int], size: int, data: bytes) -> float:
    """Write *data* at each of *offsets*, or read; return the processor time of one request."""
    start_s = time.process_time()
    for number, offset in enumerate(offsets):
        if data:
            await array.write(offset, data)
        else:
            await array.read(offset, size)
        if not number % DOOR_BATCH:
            await trio.lowlevel.checkpoint()
    return (time.process_time() - start_s) / len(offsets) * 1e6


async def engine(rounds: int) -> list[Line]:
    """Return the lines of the engine alone."""
    lines = []
    rng = random.Random(2)
    async with AsyncExitStack() as stack:
        arrays = {
            journal: [await start(stack, journal, sums=sums) for sums in (False, True)]
            for journal in ("none", "partial")
        }
        for title, journal, size, writes, count, rests in ENGINE:
            times: tuple[list[float], list[float]] = ([], [])
            for number in range(rounds):
                offsets = [rng.randrange(IMAGE_BYTES // size) * size for _ in range(count)]
                data = rng.randbytes(size) if writes else b""
                for side in (number % 2, 1 - number % 2):
                    array = arrays[journal][side]
                    if rests:
                        await array.context.journal.drain()
                    times[side].append(await cpu_us(array, offsets, size, data))
            ratios = [without / with_ for without, with_ in zip(*times, strict=True)]
            cost = median(times[1])
            words = f"{cost:,.1f} us CPU"
            line = Line.over(ratios, title, "raid5+sums", words, unit="x", cpu_us=round(cost, 1))
            lines.append(line)
    return lines


def mounted(rounds: int, seconds: float, directory: str) -> list[Line]:
    """Return the lines of mounted arrays."""
    lines: list[Line] = []
    for number, pair in enumerate(MOUNTED):
        with tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=directory) as home:
            lines += compare(pair, rounds, seconds, Path(home), None)
        print(f"row {number + 1}: {pair.title.strip()}", file=sys.stderr)
    return lines


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=ONLY, help="only these")
    parser.add_argument("--peak", choices=("on", "off"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a sustained load")
    parser.add_argument("--directory", default="/dev/shm", help="folder for members and files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.peak:
        print(trio.run(partial(peak, options.directory, sums=options.peak == "on")))
        return 0
    lines: list[Line] = []
    if options.only == "memory":
        return print_lines(memory(options.directory), as_json=options.json)
    if options.only == "virtual":
        return print_lines(virtual(), as_json=options.json)
    if options.only != "engine":
        lines += mounted(options.rounds, options.seconds, options.directory)
    if options.only != "mounted":
        lines += trio.run(engine, options.rounds)
    return print_lines(lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
