"""UPC paper, section 4.3, in virtual time: Uniform P-code against P-code and X-code.

    python bench/figures/paper_upc.py                   some minutes
    python bench/figures/paper_upc.py --quick           less than a minute, wider spread
    python bench/figures/paper_upc.py --trace Financial1.spc.xz

The real engine runs on modelled disks (10k SAS, 300 GB, one queue each, first come first served).
It has no journal, and all regions are marked dirty beforehand: a small write costs three reads and
three writes, as in the paper. Loads are open loop, their times scaled to the rate in question.

- *As in the paper*: the trace itself (the slice of Financial1 in the folder RAIDX_TRACES, or a
  trace file), its ASUs over each other, because the paper's "max-offset is 1.35 GB", and addresses
  times 8: the paper says "an appropriate factor" ('Why, 5' has others). Without a slice, a
  generated load with the same log, fixed places and groups of requests that share a time stamp.
- *Ours*: loads generated from the published statistics, addresses multiplied to fill the array. The
  paper does not state its factor, and one trace is one sample. Therefore every row is the mean over
  several loads, each with its own factor; both codes get the same loads.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from typing import Any

from generated_loads import FOLDER, SLICES
from paper_common import Chart, PaperTable, Runs, gain, main
from upc_runs import (
    BURSTS,
    FINANCIAL1,
    IOPS,
    KIB,
    LOG,
    UNIT,
    Outcome,
    Run,
    Scope,
    as_paper,
    compare,
    mean_ms,
)

from raidx_fuse.layouts.planning.load import parse_writes, write_load
from raidx_fuse.layouts.registry import make_code, make_layout

TITLE = "UPC: an efficient data layout scheme for better I/O balancing in RAID-6"

PAPER_BETTER = {7: 25.1, 11: 28.9, 13: 29.9}  # percent, section 4.3.1

COLUMNS = ("ours: P-code ms", "UPC ms", "UPC better by", "single runs")


def fig_5(scope: Scope) -> PaperTable:
    """RAID sizes: the paper's headline, hence twice the runs."""
    rows = [
        (
            *(p, p - 1, f"+{paper} %", as_paper(scope, p), as_paper(scope, p, load=LOG)),
            as_paper(scope, p, locks=False),
            *compare(scope, p, runs=2 * scope.runs).cells(),
        )
        for p, paper in PAPER_BETTER.items()
    ]
    return PaperTable(
        "Fig. 5",
        "average user response time, UPC against P-code by size of the array",
        (
            *("p", "disks", "paper", "as in the paper", "the same, a generated load"),
            *("the same without stripe locks", *COLUMNS),
        ),
        rows,
        "What decides is where concurrent writes fall, neither disks nor locks. As in the paper, "
        "the log's steps of 28 KiB and requests with one time stamp hit neighbouring cells "
        "together, which UPC spreads better; how well depends on p and on the factor, as rows of "
        "p - 1 chunks meet steps of fixed length ('Why, 2' and 'Why, 4'). The generated load, "
        "overlaid and multiplied like the trace, shares time stamps as the slice does (pairs, "
        "batches of writes, the log with what follows it), yet this does not give it the slice's "
        "figures: each is a draw, as the slice's own are. 'Why, 4' compares the means. Ours draws "
        "addresses evenly, where nothing can be gained ('Why, 1'). One single run lies "
        "anywhere in the range to the right, and the paper's is one run.",
    )


def fig_6(scope: Scope) -> PaperTable:
    """Workload intensities."""
    outcomes = {iops: compare(scope, 7, iops=iops) for iops in (116, 124, 133, 140, 155)}
    rows = [
        (i, "+25.1 %" if i == 140 else "better", as_paper(scope, 7, iops=i), *made.cells())
        for i, made in outcomes.items()
    ]
    curves = {
        "P-code": [statistics.fmean(outcome.theirs) for outcome in outcomes.values()],
        "UPC": [statistics.fmean(outcome.ours) for outcome in outcomes.values()],
    }
    return PaperTable(
        "Fig. 6",
        "by intensity (p = 7)",
        ("IOPS", "paper", "as in the paper", *COLUMNS),
        rows,
        "As in the paper both grow alike with the load, as queues do.",
        (Chart("IOPS", "ms", list(outcomes), curves),),
    )


def fig_7(scope: Scope) -> PaperTable:
    """Stripe unit sizes."""
    rows = [
        (
            *(unit, "+25.1 %" if unit == 64 else "better", as_paper(scope, 7, unit=unit * KIB)),
            *compare(scope, 7, unit=unit * KIB).cells(),
        )
        for unit in (32, 64, 128, 256)
    ]
    return PaperTable(
        "Fig. 7",
        "by stripe unit (p = 7)",
        ("KiB", "paper", "as in the paper", *COLUMNS),
        rows,
        "The paper finds larger units quicker and says that they 'improve access sequentiality'. "
        "Requests of 3.5 KB fit into every unit, so the unit changes which requests are "
        "neighbours, and nothing else.",
    )


def fig_8(scope: Scope) -> PaperTable:
    """UPC and X-code."""
    rows = [
        (
            *(unit, 133, "similar"),
            as_paper(scope, 7, iops=133, unit=unit * KIB, other="xcode"),
            *compare(scope, 7, iops=133, unit=unit * KIB, other="xcode").cells(),
        )
        for unit in (32, 64, 128, 256)
    ]
    alike = compare(scope, 7, iops=133, other="xcode", other_iops=133 * 7 / 6)
    rows.append((64, 155, "", "", *alike.cells()))
    return PaperTable(
        "Fig. 8",
        "UPC against X-code (p = 7, UPC at IOPS 133)",
        ("KiB", "X-code's IOPS", "paper", "as in the paper", "ours: X-code ms", *COLUMNS[1:]),
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
        "**For addresses that are scattered evenly over cells UPC's expected gain is zero, "
        "whatever the scheduler.** Proof. In P-code the data cell {x, y} lies in column x + y "
        "and its parities in columns x and y, all mod p: a read of it works on the first disk, "
        "a write on all three. UPC moves cells within their columns and leaves their chains, so"
        " a one-to-one map of the cells of one code onto those of the other keeps these disks "
        "(`tests/lab/test_upc_figures.py` compares them for p to 31). If each request draws its"
        " stripe and cell evenly and independently, then the sequences of (arrival, direction, "
        "stripe, disks) have the same joint distribution under both codes. Response times are a"
        " function of this sequence and of the scheduler: queues, stripe locks and the seeks "
        "between stripes are in it (rows of a stripe are too near each other to matter for "
        "seeks). So their distribution is the same, and so is the mean. What UPC wins for "
        "neighbours it loses for writes that are farther apart, as the last column says: it "
        "helps loads that hit neighbours at once, and no other.",
    )


def factors(scope: Scope) -> PaperTable:
    """Return the gains of one load with many factors: how much of a gain is chance."""
    runs = scope.runs * 2
    ends = [0.9 + 0.1 * number / runs for number in range(runs)]
    ours = [Run("upc", 7, 1, scope.requests, FINANCIAL1, reach=end) for end in ends]
    found = scope.measured.of([*(run._replace(code="pcode") for run in ours), *ours])
    gains = Outcome(found[:runs], found[runs:]).better
    quartiles = statistics.quantiles(gains, n=4)
    return PaperTable(
        "Why, 2",
        "one generated load, p = 7, addresses multiplied by neighbouring factors",
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


SHIFTS = 12  # of addresses, evenly over the data chunks of a stripe


def cells_by_chance(scope: Scope) -> PaperTable:
    """Return the gains as in the paper when the same places fall into other cells of a stripe."""
    rows = []
    for p, iops in ((7, 70), (7, 140), (11, 140), (11, 233), (13, 140), (13, 280)):
        chunks = (p - 1) * (p - 3) // 2
        run = Run("upc", p, 1, scope.paper_requests, scope.paper_load, iops=iops)
        ours = [run._replace(shift=number * chunks // SHIFTS) for number in range(SHIFTS)]
        found = scope.measured.of([*(one._replace(code="pcode") for one in ours), *ours])
        made = Outcome(found[:SHIFTS], found[SHIFTS:])
        *_, mean, reach = made.cells()
        other = ""
        if iops == IOPS:  # each shift with a load of its own
            ours = [one._replace(load=LOG, seed=seed) for seed, one in enumerate(ours, 1)]
            found = scope.measured.of([*(one._replace(code="pcode") for one in ours), *ours])
            other = gain(found[:SHIFTS], found[SHIFTS:])
        rows.append((p, iops, iops / (p - 1), f"{made.better[0]:+.1f} %", mean, reach, other))
    return PaperTable(
        "Why, 4",
        f"the load as in the paper, all its addresses {SHIFTS} times shifted by some chunks",
        (
            *("p", "IOPS", "a disk", "not shifted", f"mean of {SHIFTS} shifts", "range"),
            f"mean of {SHIFTS} generated loads",
        ),
        rows,
        "A shift changes neither times nor distances nor which requests are neighbours, only "
        "which cells of a stripe the places fall into. That changes the gain of one load by more "
        "than the gain itself, and its sign, because some chunks are written far more often than "
        "others. So each single figure of Fig. 5's column 'as in the paper' is one draw: the loss "
        "at p = 13 is no property of p = 13, whose mean is not lower than the others', nor is the "
        "gain at p = 11. The second cause is smaller: 140 IOPS are half as much a disk for 12 "
        "disks as for 6, and where queues are short there is less to gain. With as much a disk as "
        "at p = 7 each mean is higher, though within the errors. The last column gives each shift "
        "a generated load of its own, so that log, fixed places and the distances in pairs fall "
        "anywhere: the nearer a load comes to addresses scattered evenly, the nearer its mean is "
        "to zero ('Why, 1').",
    )


PAPER_FACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def paper_factors(scope: Scope) -> PaperTable:
    """Return the gains as in the paper by the factor of addresses, which it does not tell."""
    rows = []
    for p in (7, 11):
        each = {n: as_paper(scope, p, load=LOG, factor=n) for n in PAPER_FACTORS}
        runs = [
            Run("upc", p, seed, scope.paper_requests, LOG, factor=factor)
            for factor in PAPER_FACTORS
            for seed in range(1, scope.paper_runs + 1)
        ]
        found = scope.measured.of([*(run._replace(code="pcode") for run in runs), *runs])
        made = Outcome(found[: len(runs)], found[len(runs) :])
        *_, mean, reach = made.cells()
        rows.append((p, *each.values(), mean, reach))
    return PaperTable(
        "Why, 5",
        "a generated load as in the paper, its addresses times other factors: UPC better by",
        ("p", *(f"factor {factor}" for factor in PAPER_FACTORS), "all of them", "single runs"),
        rows,
        "The paper multiplies addresses 'with an appropriate factor' and does not say which. We "
        "took 8 for all other tables. A gain of one factor is no property of the code: compare the "
        "mean of all.",
    )


def tables(quick: bool, trace: str | None = None) -> list[PaperTable]:
    """Return the tables of section 4.3, and those that explain the differences."""
    measured = Runs(mean_ms)
    runs, requests, paper_runs, paper_requests = (2, 800, 2, 1500) if quick else (6, 1500, 3, 4000)
    found = FOLDER / SLICES[FINANCIAL1][0]
    load = trace or (str(found) if found.exists() else LOG)
    scope = Scope(runs, requests, load, paper_runs, paper_requests, measured)
    figures = (fig_5, fig_6, fig_7, fig_8)
    makers = (*figures, overlaps, factors, rows_at_once, cells_by_chance, paper_factors)
    return measured.tables(*(partial(maker, scope) for maker in makers))


if __name__ == "__main__":
    sys.exit(main(tables, __doc__, trace=True))
