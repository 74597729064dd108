"""The tuner is never slower: loads x sets of disks, tuned beside untuned, in virtual time.

    python bench/figures/tuner_matrix.py                 two to five minutes on two processors
    python bench/figures/tuner_matrix.py --only files,mixed

Every load runs several times on raidx-zero with idle time between, once with the tuner and once
without. A cell is the time of all runs untuned over the time tuned, and of the last run. The first
run is the same on both sides: the tuner has seen nothing yet. The status is 1 if a cell is below
`BAR`.

The platters of a disk stand elsewhere at each run, which alone changes the last run of a short load
by 6 % (standard deviation, without a move). So a cell near the bar has the sums of `SEEDS` runs.

A second table is the hot spot: an SSD of 10,000 and a disk of 124 IOPS, both full, nine of ten
reads go to a tenth. The bound of 2,250 to 2,700 is the disk's, for the reads that are left to it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from typing import NamedTuple

import trio
from paper_common import PaperTable, Runs, log_bytes, print_tables
from raidx_runs import (
    CHUNK,
    CLIENTS,
    DISK,
    DISKS,
    MB,
    MIB,
    PAGE,
    SEVEN,
    SSD,
    Kind,
    Load,
    Result,
    Run,
    measure,
)
from rich.console import Console

from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.lab.experiments.modelled import BlankMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.members.simulated.virtual_time import run

BAR = 0.98
SPAN = 64 * MIB
REQUESTS = 1500
NEAR = 1.05
SEEDS = 5

SETS: dict[str, tuple[Kind, ...]] = {
    "2 SSDs": (SSD, SSD),
    "2 disks": (DISK, DISK),
    "disk, SSD": (DISK, SSD),
    "disk, small SSD": (DISK, ("ssd", 40 * MB)),
    "3 unlike disks": DISKS,
    "2 SSDs, 2 disks": (SSD, SSD, DISK, DISK),
    "7 and RAM": SEVEN,
}
"""By name: the members, 2 to 8, like and unlike."""


def loads(kind: str, requests: int = REQUESTS, span: int = SPAN) -> tuple[Load, ...]:
    """Return the runs of load *kind*, one after the other."""
    if kind in ("random", "hot set"):
        share = 1.0 if kind == "random" else 0.1
        return tuple(Load("hotspot", span, requests, seed, 7, share) for seed in (1, 2, 3))
    if kind == "moving hot set":
        return tuple(Load("hotspot", span, requests, n, 7 + n // 2, 0.05) for n in range(6))
    if kind == "files":
        names = ("files", "read files") * 3  # long enough: a seek more before a run counts 2 % else
        return tuple(Load(each, 4 * span, span, clients=4) for each in names)
    return (Load(kind, span, requests),) * 3


KINDS = (
    *("random", "hot set", "moving hot set", "spotcheck", "sequential", "mixed", "files"),
    *("financial1", "websearch1", "hm_0", "proj_4", "tpcc"),
)


class Cell(NamedTuple):
    """One cell: *total* and *last*, times untuned over tuned; *reading* the same of read files.

    *moved*: chunks. If there are none, the last run differs by the angle of the platters only.
    """

    kind: str
    members: str
    total: float
    last: float
    reading: float | None
    moved: int

    @property
    def is_slower(self) -> bool:
        """Whether tuned is slower than the bar allows."""
        return self.total < BAR or (self.moved > 0 and self.last < BAR)


def cells(
    runs: Runs[Run, Result], wanted: Sequence[tuple[str, str]], requests: int = REQUESTS
) -> list[Cell]:
    """Return the cells of *wanted* (load, set of members)."""
    made = _cells(runs, wanted, requests, 1)
    near = [w for w, cell in made.items() if cell.moved and min(cell.total, cell.last) < NEAR]
    made |= _cells(runs, near, requests, SEEDS)
    return [made[where] for where in wanted]


def _cells(
    runs: Runs[Run, Result], wanted: Sequence[tuple[str, str]], requests: int, seeds: int
) -> dict[tuple[str, str], Cell]:
    """Return the cells of *wanted*, each from *seeds* runs untuned and tuned."""
    orders = [
        Run("raidx-zero", SETS[members], loads(kind, requests), tuned, seed=seed)
        for kind, members in wanted
        for seed in range(seeds)
        for tuned in (False, True)
    ]
    results = runs.of(orders)
    parts = (results[at : at + 2 * seeds] for at in range(0, len(results), 2 * seeds))
    return {where: _cell(*where, part) for where, part in zip(wanted, parts, strict=True)}


def _cell(kind: str, members: str, results: Sequence[Result]) -> Cell:
    off = [sum(times) for times in zip(*(each.seconds for each in results[::2]), strict=True)]
    on = [sum(times) for times in zip(*(each.seconds for each in results[1::2]), strict=True)]
    reading = sum(off[3::2]) / sum(on[3::2]) if kind == "files" else None
    moved = max(each.chunks_moved for each in results[1::2])
    return Cell(kind, members, sum(off) / sum(on), off[-1] / on[-1], reading, moved)


def table(made: Sequence[Cell]) -> PaperTable:
    """Return *made* as a table of loads by sets of members."""
    names = [name for name in SETS if any(cell.members == name for cell in made)]
    rows = []
    for kind in dict.fromkeys(cell.kind for cell in made):
        by_name = {cell.members: cell for cell in made if cell.kind == kind}
        rows.append((kind, *(f"{by_name[n].total:.2f} ({by_name[n].last:.2f})" for n in names)))
        if kind == "files":
            read = [f"{by_name[name].reading:.2f}" for name in names]
            rows.append(("files, read back", *read))
    return PaperTable(
        "Never slower",
        "raidx-zero, speed tuned as a multiple of untuned: all runs (the last run)",
        ("load", *names),
        rows,
    )


async def _hot_spot(requests: int, size: int) -> tuple[float, float]:
    blanks = [BlankMember(size, name=name) for name in ("ssd", "disk")]
    ssd = {"channels": "1", "read_access_ms": "0.1", "read_mb_s": "0"}
    disk = {"seek_ms": "0", "settle_ms": "0", "rpm": "0", "read_access_ms": "8.06"}
    members = [
        model_member(blanks[0], "ssd", seed=0, **ssd),
        model_member(blanks[1], "hdd", seed=1, **disk),
    ]
    config = await create_array(
        members,
        "raidx-zero",
        chunk_bytes=CHUNK,
        log_bytes=log_bytes(size),
        name="hot",
        now_s=0,
        both_ends=False,  # the places of the published figures
    )
    for blank in blanks:
        blank.forgotten = config.regions.data
    async with open_array(members) as array:
        tuner = array.tuner
        assert tuner is not None
        tuner.enabled = False
        for at in range(0, array.size_bytes, MIB):
            await array.write(at, bytes(min(MIB, array.size_bytes - at)))
        await array.flush()
        await trio.sleep(10)
        chunks = array.size_bytes // CHUNK
        hot = random.Random(7).sample(range(chunks), chunks // 10)

        async def rate(seed: int) -> float:
            rng = random.Random(seed)
            left = iter(range(requests))
            began_s = trio.current_time()

            async def client() -> None:
                for _ in left:
                    chunk = rng.choice(hot) if rng.random() < 0.9 else rng.randrange(chunks)
                    await array.read(chunk * CHUNK + rng.randrange(CHUNK // PAGE) * PAGE, PAGE)

            async with trio.open_nursery() as nursery:
                for _ in range(CLIENTS):
                    nursery.start_soon(client)
            return requests / (trio.current_time() - began_s)

        before = await rate(1)
        await array.jobs.wait(array.start_tuning())
        return before, await rate(2)


def hot_spot(requests: int = 20000, size: int = 256 * MIB) -> tuple[float, float]:
    """Return the reads a second of the hot spot before and after one `tune --now`."""
    return run(_hot_spot, requests, size)


def main() -> int:
    """Print the matrix and the hot spot; return 1 if a cell is below the bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help=f"loads: {', '.join(KINDS)}", default=",".join(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = options.only.split(",")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        parser.error(f"no load {unknown[0]!r}: choose from {', '.join(KINDS)}")
    runs: Runs[Run, Result] = Runs(measure)
    made: list[Cell] = []

    def matrix() -> PaperTable:
        made.extend(cells(runs, [(kind, name) for kind in kinds for name in SETS]))
        return table(made)

    tables = runs.tables(matrix)
    before, after = hot_spot()
    tables.append(
        PaperTable(
            "Hot spot",
            "an SSD of 10,000 and a disk of 124 IOPS: reads a second",
            ("before", "after one tune --now", "bound"),
            [(before, after, "2250 to 2700")],
        )
    )
    print_tables(tables, options.json, Console())
    bad = [cell for cell in made if cell.is_slower]
    for cell in bad:
        print(f"below {BAR}: {cell}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
