"""What does the log cost? The same writes with and without it, alternating, in one process.

    python bench/speed/log_ratio.py             RAM members, the engine alone: no FUSE, no kernel
    python bench/speed/log_ratio.py --rounds 9

The engine alone shows the largest ratio: through a mount, every request also pays for the kernel
and the FUSE front end, with and without a log (`mount_ratio.py`, `raid5+log` against `raid5`, has
the bars). Flush rounds are counted at the members.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import trio
from lines import Line, print_lines

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember

KIB, MIB = 1 << 10, 1 << 20
IMAGE_BYTES = 48 * MIB
MEMBER_BYTES = 256 << 20  # whose ring the filling goes round: its memory is there when we measure
MEMBERS = 4
WIDE_MEMBERS = 5  # whose stripes divide 1 MiB: no request ends inside one
BATCH_BYTES = 4 * MIB  # of one mode's turn
FSYNCS = 200
DOOR_BATCH = 8  # requests that the FUSE session loop answers before other tasks run


class CountedMember(RamMember):
    """Memory that counts its flushes."""

    flushes = 0

    async def flush(self) -> None:
        self.flushes += 1
        await super().flush()


async def start(
    stack: AsyncExitStack, journal: str, width: int = MEMBERS
) -> tuple[Array, list[CountedMember]]:
    """Return an array of which what is measured was written in full, and its members."""
    members = [CountedMember(MEMBER_BYTES, name=f"ram{number}") for number in range(width)]
    await create_array(members, "raid5", name="bench", now_s=0, chunk_bytes=64 * KIB)
    array = await stack.enter_async_context(open_array(members))
    await array.set("journal", journal)
    noise = random.Random(1).randbytes(MIB)
    for at in range(0, IMAGE_BYTES, MIB):
        await array.write(at, noise)
    await array.flush()
    return array, members


async def cpu_us(array: Array, offsets: Sequence[int], data: bytes) -> float:
    """Write *data* at each of *offsets*; return the processor time of one write."""
    start_s = time.process_time()
    for number, offset in enumerate(offsets):
        await array.write(offset, data)
        if not number % DOOR_BATCH:
            await trio.lowlevel.checkpoint()
    return (time.process_time() - start_s) / len(offsets) * 1e6


async def flush_rounds(array: Array, members: Sequence[CountedMember]) -> float:
    """Return the flushes of the busiest member for each fsync, one after each 4 KiB write."""
    rng = random.Random(5)
    before = [member.flushes for member in members]
    for _ in range(FSYNCS):
        await array.write(rng.randrange(IMAGE_BYTES // 4096) * 4096, rng.randbytes(4096))
        await array.flush()
    after = [member.flushes for member in members]
    return max(b - a for a, b in zip(before, after, strict=True)) / FSYNCS


async def measure(rounds: int) -> list[Line]:
    """Return the lines."""
    lines = []
    rng = random.Random(2)
    async with AsyncExitStack() as stack:
        narrow, members = await start(stack, "partial")
        pair = [(await start(stack, "none"))[0], narrow]
        wide = [(await start(stack, mode, WIDE_MEMBERS))[0] for mode in ("none", "partial")]
        for title, size, (plain, logged) in (
            ("4 KiB random write, engine", 4 * KIB, pair),
            ("1 MiB write, engine", MIB, pair),
            (f"1 MiB write, engine, {WIDE_MEMBERS} members", MIB, wide),
        ):
            count, places = BATCH_BYTES // size, IMAGE_BYTES // size
            ratios, times = [], []
            for number in range(rounds):
                if size == MIB:  # in sequence
                    offsets = [(number * count + i) % places * size for i in range(count)]
                else:
                    offsets = [rng.randrange(places) * size for _ in range(count)]
                data = rng.randbytes(size)
                without = await cpu_us(plain, offsets, data)
                times.append(await cpu_us(logged, offsets, data))
                ratios.append(without / times[-1])
            lines.append(
                Line(
                    *(title, "raid5+log", f"{statistics.median(times):,.1f} us CPU"),
                    *(statistics.median(ratios), min(ratios), max(ratios)),
                    unit="x of the speed without a log",
                    cpu_us=statistics.median(times),
                )
            )
        flushes = await flush_rounds(narrow, members)
        text = f"{FSYNCS} fsyncs"
        row = "fsync after a 4 KiB write"
        lines.append(Line(row, "raid5+log", text, flushes, flushes, flushes, 2, " flushes", True))
    return lines


def run(rounds: int) -> list[Line]:
    """Measure *rounds* turns of each mode."""
    return trio.run(measure, rounds)


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return print_lines(run(options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
