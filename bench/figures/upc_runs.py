"""The experiments of the UPC paper: one load on UPC and on another code, in virtual time.

`paper_upc.py` makes tables and figures of them, and says what its loads are.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from paper_common import Cell, Runs, gain, marked

from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import Block, Load, block_of, faster, fold, scale, times
from raidx_fuse.lab.loads.workloads import Source, generate, variant, workload_named

KIB = 1 << 10
DISK_BYTES = 300 * 10**9 >> 20 << 20  # Seagate ST9300605SS
SPAN_BYTES = 1_350_000_000 // 512 * 512  # "the max-offset is 1.35 GB"
IOPS, UNIT = 140.0, 64 * KIB
WIDTH = {"pcode": -1, "upc": -1, "xcode": 0}  # members less p

# Of addresses: the paper multiplies them "with an appropriate factor" and does not say which.
# With 8 the log's 7 sectors become 28 KiB; what others give is in the table "Why, 5".
FACTOR = 8
FINANCIAL1, BURSTS, LOG = "financial1", "bursts", "financial1, overlaid"


class Run(NamedTuple):
    """One run: *load* number *seed* on *code* of the prime *p*.

    *load* is FINANCIAL1, BURSTS, LOG, or the path of a trace: the last two as in the paper.
    *reach*: the share of the image over which addresses are spread. *locks* false lets writes to a
    stripe overtake each other. As in the paper, addresses are multiplied by *factor*, and *shift*
    chunks are added.
    """

    code: str
    p: int
    seed: int
    requests: int
    load: str
    iops: float = IOPS
    unit: int = UNIT
    reach: float = 1.0
    locks: bool = True
    factor: int = FACTOR
    shift: int = 0


@dataclass(frozen=True)
class Scope:
    """How much is measured: *runs* pairs of *requests* each; *measured* holds them.

    *paper_load* is the load as in the paper, a path or LOG, of which the first *paper_requests* run
    *paper_runs* times: the seed is that of the disks' rotation.
    """

    runs: int
    requests: int
    paper_load: str
    paper_runs: int
    paper_requests: int
    measured: Runs[Run, float]


def mean_ms(run: Run) -> float:
    """Return the mean response time of *run*."""
    result = simulate(
        Experiment(
            layout=run.code,
            members=("sas10k",) * (run.p + WIDTH[run.code]),
            member_bytes=DISK_BYTES,
            chunk_bytes=run.unit,
            load=partial(load_of, run),
            settings={"journal": "none", "parity.policy": "rmw"},
            stripe_locks=run.locks,
            prepare=marked,
            seed=run.seed,
        )
    )
    assert not result["failed"], result["errors"]
    return float(result["response_ms"]["mean"])


def generated(seed: int, requests: int) -> tuple[Block, ...]:
    """Return requests like Financial1's, in the paper's span."""
    work = variant(FINANCIAL1, span_bytes=SPAN_BYTES, slots=SPAN_BYTES // 512)
    return tuple(generate(work, seed=seed, requests=requests))


def overlaid(seed: int, requests: int) -> Iterator[Block]:
    """Return requests like Financial1's, each ASU as long as the paper's span, all at address 0."""
    asus = workload_named(FINANCIAL1).streams
    work = variant(FINANCIAL1, span_bytes=asus * SPAN_BYTES)
    return fold(generate(work, seed=seed, requests=requests), SPAN_BYTES)


def load_of(run: Run, size_bytes: int) -> Load:
    """Return the load of *run* for an image of *size_bytes*."""
    if run.load == BURSTS:
        return bursts(run, size_bytes)
    speed = run.iops / workload_named(FINANCIAL1).rate_s
    if run.load == FINANCIAL1:
        load: Load = generated(run.seed, run.requests)
        return faster(scale(load, int(run.reach * size_bytes), SPAN_BYTES), speed)
    if run.load == LOG:
        load = overlaid(run.seed, run.requests)
        moved = shifted(times(load, run.factor), run.shift * run.unit)
        return faster(fold(moved, size_bytes), speed)
    source = Source(
        name=run.load, asus="overlaid", factor=run.factor, rate_s=run.iops, requests=run.requests
    )
    return fold(shifted(source.load(size_bytes), run.shift * run.unit), size_bytes)


def shifted(load: Load, shift_bytes: int) -> Iterator[Block]:
    """Yield *load* with so many bytes added to each address."""
    for block in load:
        yield replace(block, offset_bytes=block.offset_bytes + shift_bytes)


def bursts(run: Run, size_bytes: int) -> Iterator[Block]:
    """Yield bursts at random times: 4 KiB to every data chunk of one row of one stripe.

    Both codes number their data row by row, so the addresses are the same for both.
    """
    rng = random.Random(run.seed)
    rows, width = (run.p - 3) // 2, run.p - 1
    requests, at_s = [], 0.0
    for _ in range(run.requests // width):
        at_s += rng.expovariate(run.iops / width)
        chunk = (rng.randrange(size_bytes // run.unit // (rows * width)) * rows) * width
        chunk += rng.randrange(rows) * width
        requests += [(at_s, True, (chunk + i) * run.unit, 4 * KIB) for i in range(width)]
    yield block_of(requests)


@dataclass(frozen=True)
class Outcome:
    """Mean response times in ms of several pairs of runs: *ours* is UPC."""

    theirs: Sequence[float]
    ours: Sequence[float]

    @property
    def better(self) -> list[float]:
        """By how many percent UPC is quicker in each pair."""
        return [100 * (1 - b / a) for a, b in zip(self.theirs, self.ours, strict=True)]

    def cells(self) -> tuple[Cell, ...]:
        """Return the mean times, the mean gain with its standard error, the range of gains."""
        return (
            f"{statistics.fmean(self.theirs):.1f}",
            f"{statistics.fmean(self.ours):.1f}",
            gain(self.theirs, self.ours),
            f"{min(self.better):+.0f} to {max(self.better):+.0f} %",
        )


def compare(
    scope: Scope,
    p: int,
    *,
    other: str = "pcode",
    other_iops: float = 0.0,
    runs: int = 0,
    reach: float = 0.0,
    **how: Any,
) -> Outcome:
    """Run UPC and *other* on the same loads: seeds 1, 2, ..., each with its factor of addresses.

    Without *reach* the addresses fill 70 to 100 % of the array. *how*: further fields of `Run`.
    """
    ours = []
    for seed in range(1, (runs or scope.runs) + 1):
        end = reach or random.Random(seed).uniform(0.7, 1.0)
        run = Run("upc", p, seed, scope.requests, FINANCIAL1, reach=end)
        ours.append(run._replace(**how))
    theirs = [run._replace(code=other, iops=other_iops or run.iops) for run in ours]
    found = scope.measured.of([*theirs, *ours])
    return Outcome(found[: len(ours)], found[len(ours) :])


def as_paper(scope: Scope, p: int, *, other: str = "pcode", **how: Any) -> str:
    """Return by how much UPC is better than *other* under the load as in the paper."""
    ours = [
        Run("upc", p, seed, scope.paper_requests, scope.paper_load)._replace(**how)
        for seed in range(1, scope.paper_runs + 1)
    ]
    found = scope.measured.of([*(run._replace(code=other) for run in ours), *ours])
    return gain(found[: len(ours)], found[len(ours) :])
