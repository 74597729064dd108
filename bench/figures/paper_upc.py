"""UPC paper, section 4.3, in virtual time: Uniform P-code against P-code and X-code.

    python bench/figures/paper_upc.py                   some minutes
    python bench/figures/paper_upc.py --quick           less than a minute, wider spread
    python bench/figures/paper_upc.py --trace Financial1.spc.xz

The real engine runs on modelled disks (10k SAS, 300 GB, one queue each, first come first served).
It has no journal, and all regions are marked dirty beforehand: a small write costs three reads and
three writes, as in the paper. The load is Financial1, generated from its published statistics (or a
trace file), open loop. As in section 4.2, its times are scaled to the rate in question, and its
addresses are multiplied to fill the array. The paper does not state the factor, and one trace is
one sample. Therefore every row is the mean over several loads, each with its own factor; both codes
get the same loads.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from paper_common import Cell, Chart, PaperTable, Runs, gain, main, marked

from raidx_fuse.array.array import Array
from raidx_fuse.engine.stripe_locks import StripeLocks
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import Block, Load, block_of
from raidx_fuse.lab.loads.shape import faster, first, scale
from raidx_fuse.lab.loads.traces import Trace
from raidx_fuse.lab.loads.workloads import generate, variant, workload_named
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.planning.load import parse_writes, write_load
from raidx_fuse.layouts.registry import make_code, make_layout

TITLE = "UPC: an efficient data layout scheme for better I/O balancing in RAID-6"

KIB = 1 << 10
DISK_BYTES = 300 * 10**9 >> 20 << 20  # Seagate ST9300605SS
SPAN_BYTES = 1_350_000_000 // 512 * 512  # "the max-offset is 1.35 GB"
IOPS, UNIT = 140.0, 64 * KIB
PAPER_BETTER = {7: 25.1, 11: 28.9, 13: 29.9}  # percent, section 4.3.1
WIDTH = {"pcode": -1, "upc": -1, "xcode": 0}  # members less p

TIMES_8 = -8.0  # a reach: runs of 8 KiB requests touch chunk after chunk, as in Fig. 3
FINANCIAL1, BURSTS = "financial1", "bursts"


class Run(NamedTuple):
    """One run: *load* number *seed* on *code* of the prime *p*.

    *load* is FINANCIAL1, BURSTS, or the path of a trace. *reach*: the share of the image over which
    its addresses are spread, or TIMES_8. *locks* false lets writes to a stripe overtake each other.
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


@dataclass(frozen=True)
class Scope:
    """How much is measured: *runs* pairs of *requests* each under *load*; *measured* holds them."""

    runs: int
    requests: int
    load: str
    measured: Runs[Run, float]


class Unlocked(StripeLocks):
    """Stripe locks that lock nothing: harmless only because the members hold no data."""

    __slots__ = ()

    async def acquire(self, stripe: Stripe) -> None:
        """Return without a lock."""

    async def acquire_all(self, stripes: Any) -> list[Stripe]:
        """Return without a lock."""
        return list(stripes)

    def release(self, stripe: int) -> None:
        """Nothing is held."""


async def marked_unlocked(array: Array) -> None:
    """As `marked`, and let writes to one stripe overtake each other."""
    await marked(array)
    array.context.locks = Unlocked()


def mean_ms(run: Run) -> float:
    """Return the mean response time of *run*."""
    result = simulate(
        Experiment(
            layout=run.code,
            members=("sas10k",) * (run.p + WIDTH[run.code]),
            member_bytes=DISK_BYTES,
            chunk_bytes=run.unit,
            load=partial(bursts if run.load == BURSTS else spread, run),
            settings={"journal": "none", "parity.policy": "rmw"},
            prepare=marked if run.locks else marked_unlocked,
            seed=run.seed,
        )
    )
    assert not result["failed"], result["errors"]
    return float(result["response_ms"]["mean"])


@cache
def generated(seed: int, requests: int) -> tuple[Block, ...]:
    """Return requests like Financial1's, in the paper's span."""
    work = variant("financial1", span_bytes=SPAN_BYTES, slots=SPAN_BYTES // 512)
    return tuple(generate(work, seed=seed, requests=requests))


def spread(run: Run, size_bytes: int) -> Load:
    """Return the load of *run* for an image of *size_bytes*, its addresses multiplied."""
    if run.load == FINANCIAL1:
        span_bytes, rate_s = SPAN_BYTES, workload_named(FINANCIAL1).rate_s
        load: Load = generated(run.seed, run.requests)
    else:
        trace, rate_s = trace_at(run.load, run.requests)
        load, span_bytes = first(trace, run.requests), trace.span_bytes
    end = 8 * span_bytes if run.reach == TIMES_8 else int(run.reach * size_bytes)
    return faster(scale(load, end, span_bytes), run.iops / rate_s)


@cache
def trace_at(path: str, requests: int) -> tuple[Trace, float]:
    """Return the trace at *path* and the mean rate of its first *requests*, a second."""
    trace, count, end_s = Trace(path), 0, 0.0
    for block in first(trace, requests):
        count, end_s = count + len(block), float(block.at_s[-1])
    return trace, count / end_s


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
        run = Run("upc", p, seed, scope.requests, scope.load, reach=end)
        ours.append(run._replace(**how))
    theirs = [run._replace(code=other, iops=other_iops or run.iops) for run in ours]
    found = scope.measured.of([*theirs, *ours])
    return Outcome(found[: len(ours)], found[len(ours) :])


COLUMNS = ("P-code ms", "UPC ms", "UPC better by", "single runs")


def fig_5(scope: Scope) -> PaperTable:
    """RAID sizes: the paper's headline, hence twice the runs."""
    rows = [
        (p, p - 1, f"{paper} %", *compare(scope, p, runs=2 * scope.runs).cells())
        for p, paper in PAPER_BETTER.items()
    ]
    return PaperTable(
        "Fig. 5",
        "average user response time, UPC against P-code by size of the array",
        ("p", "disks", "paper", *COLUMNS),
        rows,
        "One run, that is one load with one factor of addresses, lies anywhere in the range to the "
        "right, and the paper's is one run. Over many, UPC gains nothing here and even loses a "
        "little: it is better for writes to one row, and multiplied addresses leave none of these "
        "in the queues together. See 'Why, 1' to 'Why, 4'.",
    )


def fig_6(scope: Scope) -> PaperTable:
    """Workload intensities."""
    outcomes = {iops: compare(scope, 7, iops=iops) for iops in (116, 124, 133, 140, 155)}
    rows = [(i, "25.1 %" if i == 140 else "better", *made.cells()) for i, made in outcomes.items()]
    curves = {
        "P-code": [statistics.fmean(outcome.theirs) for outcome in outcomes.values()],
        "UPC": [statistics.fmean(outcome.ours) for outcome in outcomes.values()],
    }
    return PaperTable(
        "Fig. 6",
        "by intensity (p = 7)",
        ("IOPS", "paper", *COLUMNS),
        rows,
        "As in the paper both grow alike with the load, as queues do.",
        (Chart("IOPS", "ms", list(outcomes), curves),),
    )


def fig_7(scope: Scope) -> PaperTable:
    """Stripe unit sizes."""
    rows = [
        (unit, "25.1 %" if unit == 64 else "better", *compare(scope, 7, unit=unit * KIB).cells())
        for unit in (32, 64, 128, 256)
    ]
    return PaperTable(
        "Fig. 7",
        "by stripe unit (p = 7)",
        ("KiB", "paper", *COLUMNS),
        rows,
        "The paper finds larger units quicker and says that they 'improve access sequentiality'. "
        "Requests of 3.5 KB fit into every unit, and multiplied addresses leave no sequence.",
    )


def fig_8(scope: Scope) -> PaperTable:
    """UPC and X-code."""
    rows = [
        (unit, 133, "similar", *compare(scope, 7, iops=133, unit=unit * KIB, other="xcode").cells())
        for unit in (32, 64, 128, 256)
    ]
    alike = compare(scope, 7, iops=133, other="xcode", other_iops=133 * 7 / 6)
    rows.append((64, 155, "", *alike.cells()))
    return PaperTable(
        "Fig. 8",
        "UPC against X-code (p = 7, UPC at IOPS 133)",
        ("KiB", "X-code's IOPS", "paper", "X-code ms", *COLUMNS[1:]),
        rows,
        "X-code has p disks and UPC p - 1: the same load on seven disks instead of six, which "
        "tells near saturation (the paper's controller has a cache of 512 MB, ours none). With the "
        "same load a disk, last row, the two do the same, as both spread every chain evenly.",
    )


def overlaps(_scope: Scope) -> PaperTable:
    """Return the overlaps of recoveries, counted: what moving cells within columns can change."""
    rows: list[tuple[Any, ...]] = []
    for p in PAPER_BETTER:
        for name in ("pcode", "upc"):
            code = make_code(name, p - 1)
            count = code.data_count
            disks = [{code.column_of[c] for c in (d, *code.affects[d])} for d in range(count)]
            shared = [
                statistics.fmean(len(disks[i] & disks[(i + far) % count]) for i in range(count))
                for far in range(1, count // 2 + 1)
            ]
            near, far = shared[: (p - 1) // 2], shared[(p - 1) // 2 :]
            every = statistics.fmean([*shared, *shared[: count - 1 - len(shared)]])
            rows.append((p, name, shared[0], statistics.fmean(near), statistics.fmean(far), every))
    return PaperTable(
        "Why, 1",
        "disks that two writes share (of three each), by the chunks between them",
        ("p", "code", "1 apart", "up to half a row", "farther", "any"),
        rows,
        "UPC moves cells within their columns, so each write costs the same three disks as before "
        "and any two writes share as many on average. What it wins for neighbours it loses for "
        "writes that are farther apart: it helps loads that hit neighbours at once, and no other.",
    )


def factors(scope: Scope) -> PaperTable:
    """Return the gains of one load with many factors: how much of a gain is chance."""
    runs = scope.runs * 2
    ends = [0.9 + 0.1 * number / runs for number in range(runs)]
    ours = [Run("upc", 7, 1, scope.requests, scope.load, reach=end) for end in ends]
    found = scope.measured.of([*(run._replace(code="pcode") for run in ours), *ours])
    gains = Outcome(found[:runs], found[runs:]).better
    quartiles = statistics.quantiles(gains, n=4)
    return PaperTable(
        "Why, 2",
        "one load, p = 7, addresses multiplied by neighbouring factors",
        ("factors", "UPC better by, median", "worst", "quartiles", "best"),
        [
            (
                runs,
                f"{statistics.median(gains):+.1f} %",
                f"{min(gains):+.1f} %",
                f"{quartiles[0]:+.1f} to {quartiles[2]:+.1f} %",
                f"{max(gains):+.1f} %",
            )
        ],
        "Nothing changes but the factor, by less than a tenth. It decides which cells the few hot "
        "addresses and the runs fall into, hence which disks queue. At 70 to 80 % utilisation the "
        "mean follows the longest queue, and a gain or a loss of 20 % in one run tells little.",
    )


def runs_and_locks(scope: Scope) -> PaperTable:
    """Return whether the paper's load has the pattern that UPC is made for, as a table."""
    rows = []
    for title, reach in (("fill the array", 0.0), ("times 8", TIMES_8)):
        for words, locks in (("yes", True), ("no", False)):
            rows.append((title, words, *compare(scope, 7, reach=reach, locks=locks).cells()))
    return PaperTable(
        "Why, 4",
        "Financial1 (p = 7) by addresses and stripe locks",
        ("addresses", "stripe locks", *COLUMNS),
        rows,
        "Times 8, a run of Financial1's requests writes neighbouring chunks, as in Fig. 3. "
        "Runs are short and not all at once, so even then, and without locks, little is gained.",
    )


def rows_at_once(scope: Scope) -> PaperTable:
    """Return the table of the pattern that UPC is made for: writes of whole rows."""
    rows = []
    for p in PAPER_BETTER:
        width = p - 1
        busiest = []
        for name in ("pcode", "upc"):
            layout = make_layout(name, width, 2 * (p - 1), UNIT)
            loads = [
                max(write_load(layout, parse_writes(f"row:{row}", layout)).total)
                for row in range(1, (p - 1) // 2)
            ]
            busiest.append(statistics.fmean(loads))
        gains = [
            compare(scope, p, load=BURSTS, reach=1.0, locks=locks).cells()[2]
            for locks in (False, True)
        ]
        rows.append((p, f"{busiest[0]:.1f} : {busiest[1]:.1f}", *gains))
    return PaperTable(
        "Why, 3",
        "bursts of single writes to a whole row of one stripe, IOPS 140",
        ("p", "operations of the busiest disk", "without stripe locks", "with stripe locks"),
        rows,
        "This is the paper's example, 'vast concurrent I/Os accessing an information row', and "
        "here UPC is quicker indeed. An engine that keeps parity right must take turns on a "
        "stripe, though: two updates of one parity cell cannot both start from the old one. With "
        "turns a disk never sees two writes of one burst at once. How much of the gain is left is "
        "within wide errors.",
    )


def tables(quick: bool, trace: str | None = None) -> list[PaperTable]:
    """Return the tables of section 4.3, and those that explain the differences."""
    measured = Runs(mean_ms)
    runs, requests = (2, 800) if quick else (15, 2000)
    scope = Scope(runs, requests, trace or FINANCIAL1, measured)
    makers = (fig_5, fig_6, fig_7, fig_8, overlaps, factors, rows_at_once, runs_and_locks)
    return measured.tables(*(partial(maker, scope) for maker in makers))


if __name__ == "__main__":
    sys.exit(main(tables, __doc__, trace=True))
