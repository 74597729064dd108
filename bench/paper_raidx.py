"""RAIDX paper, section V.E, in virtual time: unlike members, before and after tuning.

    python bench/paper_raidx.py                 some two minutes
    python bench/paper_raidx.py --quick         less than one, smaller loads

The real engine on modelled members, a thousandth of the paper's sizes: a 250 MB SSD, a 300 MB disk.
Each array gets content first; then a client with so many requests at a time runs a load as fast as
it can (the paper's "maximum speed"), idles, and runs it again. Times are those of the load alone.
The paper's diskSpotcheck writes random places from a fixed seed and reads them back: here too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import trio
from paper_common import PaperTable, main

from raidx_fuse.array import Array, open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.lab.request import Request, requests_of
from raidx_fuse.lab.shape import fit
from raidx_fuse.lab.workloads import generate
from raidx_fuse.members.model import model_member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.virtual_time import run

TITLE = "RAIDX: RAID without striping"

MB = 1_000_000
CHUNK = 64 << 10
IDLE_S = 600.0
CLIENTS = 16
SSD, DISK = ("ssd", 250 * MB), ("hdd", 300 * MB)
SEVEN = (
    *(SSD,) * 4,
    *(("hdd", size * MB) for size in (74, 150, 300, 1000)),
    ("ram", 4 * MB),  # 600 MB in the paper: not less fits with its metadata
)

NUMBERS = {  # a RAM disk behind a block device takes some time, too
    "ram": {
        **{"read_access_ms": "0.005", "write_access_ms": "0.005"},
        **{"read_mb_s": "3000", "write_mb_s": "3000"},
    }
}

Kind = tuple[str, int]
Rates = tuple[float, ...]


@dataclass(frozen=True)
class Load:
    """Requests (is write, offset, length) that *clients* send as fast as they are answered."""

    requests: tuple[tuple[bool, int, int], ...]
    clients: int = CLIENTS


def spotcheck(span: int, count: int, seed: int, clients: int = CLIENTS) -> Load:
    """Return *count* writes at random places in *span* bytes and their reads, as diskSpotcheck."""
    rng = random.Random(seed)
    places = [(rng.randrange(span // 4096) * 4096, 4096 * rng.randint(1, 4)) for _ in range(count)]
    places = [(min(at, span - size), size) for at, size in places]
    return Load(
        (*((True, at, size) for at, size in places), *((False, at, size) for at, size in places)),
        clients,
    )


def hotspot(
    span: int, count: int, seed: int, hot_seed: int, share: float = 0.1, clients: int = CLIENTS
) -> Load:
    """Return reads of which nine in ten go to *share* of the chunks, drawn from *hot_seed*."""
    chunks = span // CHUNK
    hot = random.Random(hot_seed).sample(range(chunks), max(1, int(chunks * share)))
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        chunk = rng.choice(hot) if rng.random() < 0.9 else rng.randrange(chunks)
        found.append((False, chunk * CHUNK + rng.randrange(CHUNK // 4096) * 4096, 4096))
    return Load(tuple(found), clients)


def trace(name: str, span: int, count: int) -> Load:
    """Return the generated load *name*, fitted to *span* bytes."""
    blocks = fit(generate(name, seed=1, requests=count), span)
    found: list[Request] = list(requests_of(blocks))
    return Load(tuple((r.is_write, r.offset_bytes, r.length_bytes) for r in found))


async def timed(array: Array, load: Load) -> float:
    """Return in how many seconds *load* is served."""
    waiting = iter(load.requests)
    started = trio.current_time()

    async def client() -> None:
        for is_write, offset, length in waiting:
            if is_write:
                await array.write(offset, bytes(length))
            else:
                await array.read(offset, length)

    async with trio.open_nursery() as nursery:
        for _ in range(load.clients):
            nursery.start_soon(client)
    return trio.current_time() - started


async def _measure(
    layout: str, kinds: Sequence[Kind], loads: Sequence[Load], content: int, tuned: bool
) -> Rates:
    members = [
        model_member(
            RamMember(size // 4096 * 4096, name=f"{kind}{number}"),
            kind,
            seed=number,
            **NUMBERS.get(kind, {}),
        )
        for number, (kind, size) in enumerate(kinds)
    ]
    await create_array(members, layout, chunk_bytes=CHUNK, name="paper", now_s=0)
    async with open_array(members) as array:
        if array.tuner is not None:
            array.tuner.enabled = tuned
            array.tuner.scrub_each_s = 0.0
        for at in range(0, content, 1 << 20):
            await array.write(at, bytes(min(1 << 20, content - at)))
        await array.flush()
        await trio.sleep(IDLE_S)
        times = []
        for load in loads:
            times.append(await timed(array, load))
            await array.flush()
            await trio.sleep(IDLE_S)
        return tuple(times)


@cache
def measure(
    layout: str, kinds: tuple[Kind, ...], loads: tuple[Load, ...], content: int, tuned: bool = True
) -> Rates:
    """Return the seconds of each of *loads*, one after the other with idle time between."""
    return run(_measure, layout, kinds, loads, content, tuned)


def mirrors(count: int) -> list[PaperTable]:
    """Return figures 6 and 7: a mirror of two, RAIDX-copy against RAID-1."""
    tables = []
    for ident, title, kinds, paper in (
        (
            "Fig. 6",
            "two like SSDs: speed of raidx-copy as a multiple of raid1's",
            (SSD, SSD),
            "1.0",
        ),
        ("Fig. 7", "an SSD and a disk: the same", (SSD, DISK), "1.0 or a little more"),
    ):
        rows: list[tuple[str, str, float]] = []
        span = 64 << 20
        for name in ("financial1", "websearch1"):
            load = (trace(name, span, count),)
            (raid,) = measure("raid1", kinds, load, span)
            (raidx,) = measure("raidx-copy", kinds, load, span, False)
            rows.append((name, paper, raid / raidx))
        remark = (
            "No tuning, as in the paper: the price of the look-up table. Our raid1 reads the copy "
            "that answers first, too; md's only looks which one is idle."
        )
        tables.append(PaperTable(ident, title, ("load", "paper", "ours"), rows, remark))
    return tables


def two_members(count: int) -> PaperTable:
    """Return figure 8: an SSD and a disk, RAIDX-zero against RAID-0, run by run."""
    span = 128 << 20
    kinds = (DISK, SSD)
    rows: list[tuple[str, str, float]] = []
    for name, loads in (
        ("diskSpotcheck, the same places again", (spotcheck(span, count // 8, 1),) * 4),
        ("90 % of reads to 10 % of chunks", tuple(hotspot(span, count, s, 7) for s in range(4))),
    ):
        raid = measure("raid0", kinds, loads, span)
        raidx = measure("raidx-zero", kinds, loads, span)
        rows += [
            (f"{name}: run {i + 1}", "over 2.5" if i else "1", raid[i] / raidx[i])
            for i in range(len(loads))
        ]
    return PaperTable(
        "Fig. 8",
        "an SSD and a disk: speed of raidx-zero as a multiple of raid0's, tuned between the runs",
        ("load", "paper", "ours"),
        rows,
        "Run 1 is slower than raid0: the greedy allocation begins with the larger member, the "
        "disk. All places of a repeated diskSpotcheck fit on the SSD, so the tuner takes the disk "
        "out of the way; the paper does not say how many places it had.",
    )


def seven_members(count: int) -> PaperTable:
    """Return figure 9: four SSDs, four disks and a RAM disk."""
    span = 256 << 20
    loads = (spotcheck(span, count // 4, 3),) * 3
    raidx = measure("raidx-zero", SEVEN, loads, span)
    raid = measure("raid0", SEVEN[:8], loads, span)
    rows = [
        (f"run {i + 1}", "1" if not i else "7.7", raidx[0] / seconds, raid[i] / seconds)
        for i, seconds in enumerate(raidx)
    ]
    return PaperTable(
        "Fig. 9",
        "four SSDs, four disks of 74 to 1000 MB and a RAM disk: speed as a multiple",
        ("run", "paper, of the first run", "ours, of the first run", "ours, of raid0 without RAM"),
        rows,
        "Run 1 finds all on the largest disk, where the greedy allocation begins; raid0 spreads "
        "it over eight. Tuned, the places lie on four SSDs and in RAM, disks are left alone.",
    )


def file_copy(count: int) -> PaperTable:
    """Return the file system test: the same places written, read back, tuned and done again."""
    span = 256 << 20
    rng = random.Random(11)
    starts = sorted(rng.sample(range(span >> 20), max(8, count // 100)))
    writes = tuple((True, (at << 20) + i * 65536, 65536) for at in starts for i in range(16))
    reads = tuple((False, at, size) for _write, at, size in writes)
    kinds = SEVEN[4:]
    load = (Load(writes, 4), Load(reads, 4)) * 2
    first_write, first_read, *_again = measure("raidx-zero", kinds, load, span, False)
    *_first, then_write, then_read = measure("raidx-zero", kinds, load, span)
    rows = [
        ("write", 35 / 21, first_write / then_write),
        ("read (disks only in the paper)", 87 / 61, first_read / then_read),
    ]
    return PaperTable(
        "Section V.E.3",
        "files in runs of 1 MiB on disks and a RAM disk: time before by time after tuning",
        ("operation", "paper", "ours"),
        rows,
        "Not a file system but its pattern: runs of 1 MiB at some places, four at a time. What "
        "was created first lies on the largest disk; tuned, it lies on all of them.",
    )


def moving_and_overhead(count: int) -> PaperTable:
    """Return what the paper leaves open: a hot set that moves, and what tuning costs."""
    span = 128 << 20
    kinds = (DISK, ("ssd", 40 * MB))
    rows: list[tuple[str, str, float]] = []
    loads = tuple(hotspot(span, count, s, 7 + s // 2, 0.05) for s in range(6))
    idle = measure("raidx-zero", kinds, loads, span, False)
    tuned = measure("raidx-zero", kinds, loads, span)
    for i, (off, on) in enumerate(zip(idle, tuned, strict=True)):
        rows.append((f"hot set {i // 2 + 1}, run {i % 2 + 1}", "", off / on))
    flat = tuple(hotspot(span, count, s, 1, 1.0) for s in range(3))
    off_s = sum(measure("raidx-zero", (SSD, SSD), flat, span, False))
    on_s = sum(measure("raidx-zero", (SSD, SSD), flat, span))
    rows.append(("like members, flat load: nothing to tune", "", off_s / on_s))
    return PaperTable(
        "Beyond",
        "a hot set that moves to other chunks: speed as a multiple of the same array untuned",
        ("load", "paper", "ours"),
        rows,
        "The first run on a new hot set finds it where it was; what tuning costs a load that "
        "cannot gain is in the last row.",
    )


def tables(quick: bool) -> list[PaperTable]:
    """Return all tables; *quick*: fewer requests."""
    count = 1500 if quick else 6000
    return [
        *mirrors(count),
        two_members(count),
        seven_members(count),
        file_copy(count),
        moving_and_overhead(count),
    ]


if __name__ == "__main__":
    sys.exit(main(tables, __doc__))
