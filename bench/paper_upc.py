"""UPC paper, section 4.3, in virtual time: Uniform P-code against P-code and X-code.

    python bench/paper_upc.py                   ten minutes and more
    python bench/paper_upc.py --quick           less than one, wider spread
    python bench/paper_upc.py --trace Financial1.spc.xz

The real engine on modelled disks (10k SAS, 300 GB, one queue each, first come first served), no
journal and all regions marked beforehand: a small write then costs what it costs in the paper,
three reads and three writes. The load is Financial1 from its published statistics (or a trace
file), open loop, its times scaled to the IOPS asked for and its addresses multiplied to fill the
array, as in section 4.2. The paper does not say by which factor, and one trace is one sample: every
row here is the mean over several loads, each with its own factor; both codes get the same ones.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from paper_common import Chart, PaperTable, main, marked

from raidx_fuse.array import Array
from raidx_fuse.lab.request import Block, Load, block_of
from raidx_fuse.lab.shape import faster, first, scale
from raidx_fuse.lab.simulate import Experiment, simulate
from raidx_fuse.lab.traces import Trace
from raidx_fuse.lab.workloads import generate, variant, workload_named
from raidx_fuse.layouts.load import parse_writes, write_load
from raidx_fuse.layouts.registry import make_code, make_layout
from raidx_fuse.locks import StripeLocks

TITLE = "UPC: an efficient data layout scheme for better I/O balancing in RAID-6"

KIB = 1 << 10
DISK_BYTES = 300 * 10**9 >> 20 << 20  # Seagate ST9300605SS
SPAN_BYTES = 1_350_000_000 // 512 * 512  # "the max-offset is 1.35 GB"
IOPS, UNIT = 140.0, 64 * KIB
PAPER_BETTER = {7: 25.1, 11: 28.9, 13: 29.9}  # percent, section 4.3.1
WIDTH = {"pcode": -1, "upc": -1, "xcode": 0}  # members less p

Prepare = Callable[[Array], Any]
Reach = Callable[[int, int], float]  # of the load's own span and the image's size, in bytes


@dataclass(frozen=True)
class Scope:
    """How much is measured: *runs* loads of *requests* each; *trace* instead of generated ones."""

    runs: int
    requests: int
    trace: Trace | None = None


class Unlocked(StripeLocks):
    """No locks: harmless only because the members hold no data."""

    __slots__ = ()

    async def acquire(self, stripe: int) -> None:
        """Let everybody through."""

    async def acquire_all(self, stripes: Any) -> list[int]:
        """Let everybody through."""
        return list(stripes)

    def release(self, stripe: int) -> None:
        """Nothing is held."""


async def marked_unlocked(array: Array) -> None:
    """As `marked`, and let writes to one stripe overtake each other."""
    await marked(array)
    array.core.locks = Unlocked()


def mean_ms(
    name: str, p: int, load: Callable[[int], Load], seed: int, unit: int, prepare: Prepare = marked
) -> float:
    """Return the mean response time of *load* on code *name* of the prime *p*."""
    result = simulate(
        Experiment(
            layout=name,
            members=("sas10k",) * (p + WIDTH[name]),
            member_bytes=DISK_BYTES,
            chunk_bytes=unit,
            load=load,
            settings={"journal": "none", "parity.policy": "rmw"},
            prepare=prepare,
            seed=seed,
        )
    )
    assert not result["failed"], result["errors"]
    return float(result["response_ms"]["mean"])


@cache
def generated(seed: int, requests: int) -> tuple[Block, ...]:
    """Return requests like Financial1's, in the paper's span."""
    work = variant("financial1", span_bytes=SPAN_BYTES, slots=SPAN_BYTES // 512)
    return tuple(generate(work, seed=seed, requests=requests))


def financial1(scope: Scope, seed: int, iops: float, reach: Reach, size_bytes: int) -> Load:
    """Return a load for an image of *size_bytes*, its addresses multiplied to end at *reach*."""
    if scope.trace is not None:
        span, rate = scope.trace.span_bytes, _rate(scope.trace, scope.requests)
        load: Load = first(scope.trace, scope.requests)
    else:
        span, rate = SPAN_BYTES, workload_named("financial1").rate_s
        load = generated(seed, scope.requests)
    return faster(scale(load, int(reach(span, size_bytes)), span), iops / rate)


def filling(share: float) -> Reach:
    """Spread the addresses over *share* of the image."""
    return lambda _span_bytes, size_bytes: share * size_bytes


def times_8(span_bytes: int, _size_bytes: int) -> float:
    """Multiply addresses by 8: runs of 8 KiB requests touch chunk after chunk, as in Fig. 3."""
    return 8 * span_bytes


def _rate(trace: Trace, requests: int) -> float:
    """Return the mean rate of the first *requests* of *trace*, a second."""
    count, end_s = 0, 0.0
    for block in first(trace, requests):
        count, end_s = count + len(block), float(block.at_s[-1])
    return count / end_s


@dataclass(frozen=True)
class Outcome:
    """Mean response times in ms of several pairs of runs: *ours* is UPC."""

    theirs: Sequence[float]
    ours: Sequence[float]

    @property
    def better(self) -> list[float]:
        """By how many percent UPC is quicker in each pair."""
        return [100 * (1 - b / a) for a, b in zip(self.theirs, self.ours, strict=True)]

    def cells(self) -> tuple[str, str, str, str]:
        """Return the mean times, the mean gain with its standard error, the range of gains.

        The mean gain is that of the ratios' geometric mean: the arithmetic one would favour either
        code that it is asked for, so wide is the spread.
        """
        logs = [math.log(b / a) for a, b in zip(self.theirs, self.ours, strict=True)]
        error = statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
        gains = self.better
        return (
            f"{statistics.fmean(self.theirs):.1f}",
            f"{statistics.fmean(self.ours):.1f}",
            f"{100 * (1 - math.exp(statistics.fmean(logs))):+.1f} % (s.e. {100 * error:.1f})",
            f"{min(gains):+.0f} to {max(gains):+.0f} %",
        )


@cache
def compare(
    scope: Scope,
    p: int,
    *,
    iops: float = IOPS,
    unit: int = UNIT,
    other: str = "pcode",
    other_iops: float | None = None,
    reach: Reach | None = None,
    prepare: Prepare = marked,
) -> Outcome:
    """Run UPC and *other* on the same loads: seeds 1, 2, ..., each with its factor of addresses.

    Without *reach* the addresses fill 70 to 100 % of the array.
    """
    times: dict[str, list[float]] = {other: [], "upc": []}
    for seed in range(1, scope.runs + 1):
        spread = reach or filling(random.Random(seed).uniform(0.7, 1.0))
        for name, found in times.items():
            rate = other_iops or iops if name == other else iops
            load = partial(financial1, scope, seed, rate, spread)
            found.append(mean_ms(name, p, load, seed, unit, prepare))
    return Outcome(times[other], times["upc"])


COLUMNS = ("P-code ms", "UPC ms", "UPC better by", "single runs")


def fig_5(scope: Scope) -> PaperTable:
    """RAID sizes: the paper's headline, hence twice the runs."""
    scope = replace(scope, runs=2 * scope.runs)
    rows = [
        (p, p - 1, f"{paper} %", *compare(scope, p).cells()) for p, paper in PAPER_BETTER.items()
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
    """What moving cells within their columns can change, by counting."""
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
    """One load, many factors: how much of a gain is chance."""
    runs = scope.runs * 2
    gains: list[float] = []
    for run in range(runs):
        load = partial(financial1, scope, 1, IOPS, filling(0.9 + 0.1 * run / runs))
        times = [mean_ms(name, 7, load, 1, UNIT) for name in ("pcode", "upc")]
        gains.append(Outcome(times[:1], times[1:]).better[0])
    spread = statistics.quantiles(gains, n=4)
    return PaperTable(
        "Why, 2",
        "one load, p = 7, addresses multiplied by neighbouring factors",
        ("factors", "UPC better by, median", "worst", "quartiles", "best"),
        [
            (
                runs,
                f"{statistics.median(gains):+.1f} %",
                f"{min(gains):+.1f} %",
                f"{spread[0]:+.1f} to {spread[2]:+.1f} %",
                f"{max(gains):+.1f} %",
            )
        ],
        "Nothing changes but the factor, by less than a tenth. It decides which cells the few hot "
        "addresses and the runs fall into, hence which disks queue. At 70 to 80 % utilisation the "
        "mean follows the longest queue, and a gain or a loss of 20 % in one run tells little.",
    )


def runs_and_locks(scope: Scope) -> PaperTable:
    """Does the paper's own load have the pattern that UPC is made for?"""
    rows = []
    for title, reach in (("fill the array", None), ("times 8", times_8)):
        for locks, prepare in (("yes", marked), ("no", marked_unlocked)):
            rows.append((title, locks, *compare(scope, 7, reach=reach, prepare=prepare).cells()))
    return PaperTable(
        "Why, 4",
        "Financial1 (p = 7) by addresses and stripe locks",
        ("addresses", "stripe locks", *COLUMNS),
        rows,
        "Times 8, a run of Financial1's requests writes neighbouring chunks, as in Fig. 3. "
        "Runs are short and not all at once, so even then, and without locks, little is gained.",
    )


def bursts(p: int, count: int, seed: int, size_bytes: int) -> Iterator[Block]:
    """Yield *count* bursts at random times: 4 KiB to every data chunk of one row of one stripe.

    Both codes number their data row by row, so the addresses are the same for both.
    """
    rng = random.Random(seed)
    rows, width = (p - 3) // 2, p - 1
    requests, at_s = [], 0.0
    for _ in range(count):
        at_s += rng.expovariate(IOPS / width)
        chunk = (rng.randrange(size_bytes // UNIT // (rows * width)) * rows) * width
        chunk += rng.randrange(rows) * width
        requests += [(at_s, True, (chunk + i) * UNIT, 4 * KIB) for i in range(width)]
    yield block_of(requests)


def rows_at_once(scope: Scope) -> PaperTable:
    """What UPC is made for."""
    rows = []
    for p in PAPER_BETTER:
        width = p - 1
        count = scope.requests // width
        busiest = []
        for name in ("pcode", "upc"):
            layout = make_layout(name, width, 2 * (p - 1), UNIT)
            loads = [
                max(write_load(layout, parse_writes(f"row:{row}", layout)).total)
                for row in range(1, (p - 1) // 2)
            ]
            busiest.append(statistics.fmean(loads))
        found = []
        for prepare in (marked_unlocked, marked):
            times: dict[str, list[float]] = {"pcode": [], "upc": []}
            for seed in range(1, scope.runs + 1):
                load = partial(bursts, p, count, seed)
                for name, values in times.items():
                    values.append(mean_ms(name, p, load, seed, UNIT, prepare))
            found.append(Outcome(times["pcode"], times["upc"]).cells())
        rows.append((p, f"{busiest[0]:.1f} : {busiest[1]:.1f}", found[0][2], found[1][2]))
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
    """Regenerate section 4.3, then ask why."""
    scope = Scope(2, 800) if quick else Scope(15, 2000)
    if trace is not None:
        scope = Scope(scope.runs, scope.requests, Trace(trace))
    makers = (fig_5, fig_6, fig_7, fig_8, overlaps, factors, rows_at_once, runs_and_locks)
    return [maker(scope) for maker in makers]


if __name__ == "__main__":
    sys.exit(main(tables, __doc__, trace=True))
