"""RAIDX paper, section V.E, in virtual time: unlike members, before and after tuning.

    python bench/figures/paper_raidx.py                 about two minutes on two processors
    python bench/figures/paper_raidx.py --quick         less than a minute, smaller loads

The real engine runs on modelled members; `raidx_runs.py` defines the runs. Sizes are a thousandth
of the paper's: a 250 MB SSD, a 300 MB disk. The paper does not say how many places its
diskSpotcheck had. A set of chunks larger than its 250 GB SSD would have taken days, so the hot set
must have fitted on the SSD. It does here, too, where the paper's figures are regenerated; other
content fills nearly all of the rest of the array. Rows that the paper does not have show a hot set
that does not fit.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial

from paper_common import PaperTable, Runs, main
from raidx_runs import (
    CHUNK,
    DISK,
    DISKS,
    IPC,
    MB,
    MIB,
    SEVEN,
    SEVEN_OLD,
    SSD,
    ZEROMQ,
    Load,
    Result,
    Run,
    measure,
)

TITLE = "RAIDX: RAID without striping"

SPAN = 448 * MIB  # of the 550 MB of an SSD and a disk, of the 590 MB of eight times the smallest
TOOL = "the author's tool"
COPY_SEEDS = range(1, 7)
TOOL_PLACES = 100  # of each pass; the paper does not say how many
SMALL_SSD = ("ssd", 40 * MB)
Rows = list[tuple[str | float, ...]]
AllRuns = Runs[Run, Result]


def mirrors(runs: AllRuns, count: int) -> PaperTable:
    """Return figures 6 and 7: a mirror of two, RAIDX-copy against RAID-1, not tuned."""
    settings = (
        ("Fig. 6, two like SSDs", (SSD, SSD), "1.0"),
        ("Fig. 7, an SSD and a disk", (SSD, DISK), "1.0 or a little more"),
    )
    names = ("financial1", "websearch1")
    wanted = [
        Run(layout, kinds, (Load(name, 64 * MIB, count),), False, **how)
        for _, kinds, _ in settings
        for name in names
        for layout, how in (
            ("raid1", {"shortest": True, "journal": "none"}),
            ("raidx-copy", {"journal": "none"}),
            ("raid1", {}),
            ("raidx-copy", {}),
        )
    ]
    seconds = iter([result.seconds[0] for result in runs.of(wanted)])
    rows: Rows = []
    for title, _, paper in settings:
        for name in names:
            ratios = (next(seconds) / next(seconds) for _ in range(2))
            rows.append((f"{title}: {name}", paper, *ratios))
    return PaperTable(
        "Figs. 6 and 7",
        "mirrors of two members: speed of raidx-copy as a multiple of raid1's",
        ("load", "paper", "as in the paper", "ours"),
        rows,
        "No tuning, as in the paper: what the look-up table does to requests. What it costs in "
        "processor time, virtual time does not show: bench/speed/raidx_mount.py does. As in the "
        "paper: without a journal, beside a raid1 that reads the copy whose member has the fewest "
        "waiting operations, as the paper says of MD-RAID. Ours: with the journal, beside our "
        "raid1, which reads the copy that answers first, as raidx-copy does. So the choice of the "
        "copy is in the middle column (all of websearch1 are reads), and what the journal makes of "
        "writes in the last one. By queue, the disk gets reads whenever it has fewer, and the load "
        "waits for their end: 2.3 with 1500 requests of websearch1 is 1.5 with 6000.",
    )


def choice(runs: AllRuns, count: int) -> PaperTable:
    """Return how well raidx-copy chooses the copy to read, over seeds."""
    names = ("websearch1", "hm_0", "proj_4", "financial1", "tpcc", "uniform")
    seconds = iter(
        result.seconds[0]
        for result in runs.of(
            [
                Run(layout, (SSD, DISK), (Load(name, 64 * MIB, count, seed),), False, seed=seed)
                for name in names
                for seed in COPY_SEEDS
                for layout in ("raid1", "raidx-copy")
            ]
        )
    )
    rows: Rows = []
    for name in names:
        ratios = [next(seconds) / next(seconds) for _ in COPY_SEEDS]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5
        rows.append((name, statistics.mean(ratios), error, min(ratios), max(ratios)))
    return PaperTable(
        "Beyond: the choice of a copy",
        "an SSD and a disk: speed of raidx-copy as a multiple of raid1's",
        ("load", f"mean of {len(COPY_SEEDS)} seeds", "standard error", "lowest", "highest"),
        rows,
        "Both choose by the same rule, so 1 is what can be expected. Seeds differ by the requests "
        "and by the angle at which they find the platters. All runs begin at the same phase of the "
        "background tasks: a checkpoint more or less at the beginning is a third of a short load.",
    )


def two_members(runs: AllRuns, count: int) -> PaperTable:
    """Return figure 8: an SSD and a disk, RAIDX-zero against RAID-0, run by run."""
    kinds, small = (DISK, SSD), (DISK, SMALL_SSD)
    little = 64 * MIB  # all that raid0 can hold of a disk and a small SSD
    again = "random places, 16 at a time, the same again"
    tool = Load("diskSpotcheck", SPAN, TOOL_PLACES)
    hot = Load("hotspot", SPAN, count)
    settings = (
        (TOOL, "over 2.5", kinds, tool, False),
        (again, "over 2.5", kinds, Load("spotcheck", SPAN, count // 4), False),
        ("nine of ten reads to 45 MB of 470", "over 2.5", kinds, hot, True),
        ("on 47 MB of chunks, the SSD has 36", "", small, Load("spotcheck", little, 2600), False),
        (
            *("nine of ten to 50 MB, the SSD has 36", "", small),
            *(Load("hotspot", little, count, 1, 7, 0.75), True),
        ),
    )
    ways = (
        Run("raid0", (), ()),
        Run("raidx-zero", (), (), network=IPC, own_links=True),
        Run("raidx-zero", (), (), network=ZEROMQ),
        Run("raidx-zero", (), ()),
    )
    rows: Rows = []
    orders = []
    for _title, _paper, members, load, fresh in settings:
        ends = 6 if load is tool else 4
        loads = tuple(load._replace(seed=s if fresh else 1) for s in range(1, ends))
        orders += [way._replace(kinds=members, loads=loads) for way in ways]
    found = iter(runs.of(orders))
    for title, paper, *_rest in settings:
        raid, *raidx = (next(found).seconds for _ in ways)
        for i, theirs in enumerate(raid):
            said = (paper if i else "1") if paper else ""
            rows.append((f"{title}: run {i + 1}", said, *(theirs / own[i] for own in raidx)))
    return PaperTable(
        "Fig. 8",
        "an SSD and a disk: speed of raidx-zero as a multiple of raid0's, tuned between the runs",
        ("load", "paper", "as in the paper", "one link for both", "ours"),
        rows,
        "As in the paper: MD-RAID on local disks; RAIDX with a ZeroMQ connection of 65 MB/s to "
        "each device (its Table I is of one device, its Fig. 4 has a connection for each); in the "
        f"first rows the load of the author's own tool with {TOOL_PLACES} places. That writes "
        "through the page cache and reads one at a time, so the gain ends where the connections "
        "do. The other column has both devices behind one link of 60 MB/s. For the tool the tuner "
        "needs two idle times, as the paper's ('after about the 2nd iteration'), for random places "
        "one, behind one link, too. "
        "Ours is without a link: from the run on in which the SSD has what is hot, nothing waits "
        "for the disk, and the multiple is that of an SSD to a disk. Where the SSD is too small "
        "for what is hot, the rest stays on the disk and decides.",
    )


def seven_members(runs: AllRuns, count: int) -> PaperTable:
    """Return figure 9: four SSDs, three disks and a RAM disk."""
    tool = (Load("diskSpotcheck", SPAN, TOOL_PLACES),) * 3
    few = (Load("diskSpotcheck", SPAN, TOOL_PLACES // 4),) * 3
    spotcheck = (Load("spotcheck", SPAN, count // 2, 3),) * 3
    orders = [
        Run("raidx-zero", SEVEN, tool, network=IPC, own_links=True),
        Run("raidx-zero", SEVEN_OLD, tool, network=IPC, own_links=True),
        Run("raidx-zero", SEVEN, few, network=IPC, own_links=True),
        Run("raidx-zero", SEVEN, tool, network=ZEROMQ),
        Run("raidx-zero", SEVEN, tool),
        Run("raidx-zero", SEVEN, spotcheck),
        Run("raid0", SEVEN[:7], spotcheck),
    ]
    *found, raidx, raid = (result.seconds for result in runs.of(orders))
    linked = found[3]
    bound = linked[0] / (2 * 3 * TOOL_PLACES * CHUNK / 60e6)
    rows: Rows = [
        (
            *(f"run {i + 1}", "7.7" if i else "1"),
            *(seconds[0] / seconds[i] for seconds in (*found, raidx)),
            raid[i] / raidx[i],
        )
        for i in range(3)
    ]
    return PaperTable(
        "Fig. 9",
        "four SSDs, disks of 1000, 300 and 74 MB and a RAM disk: speed as a multiple of run 1",
        (
            *("run", "paper", "as in the paper", "with disks of 5400 rpm", "with 25 places"),
            *("one link for all", "without a link", "ours", "ours, of raid0 without RAM"),
        ),
        rows,
        "As in the paper: the author's tool, a ZeroMQ connection of 65 MB/s to each device, as all "
        "are in one server. What is missing to the paper's number is in the first run, which waits "
        "for the disks: with disks of 5400 rpm and 12 ms of seek it is nearly there, and with a "
        "quarter of the places, which the paper does not tell, it is nearer. One link of 60 MB/s "
        "for all of them is not what the paper had: it leaves no arrangement of chunks more than "
        f"{bound:.1f} times the first run. Ours: random places, 16 at a time, no link; run 1 waits "
        "for the disks, later ones find no disk at all. The RAM disk of 600 MB is 4 MB here, "
        "because less does not hold a member's metadata.",
    )


def file_system(runs: AllRuns, count: int) -> PaperTable:
    """Return section V.E.3: a file system is made, 1 GB is copied to it and read back."""
    amount = max(16, count // 60) * MIB
    loads = tuple(Load(kind, SPAN, amount, clients=4) for kind in ("files", "read files") * 2)
    settings = (("seven disks and RAM", SEVEN), ("disks only", DISKS))
    order = Run("raidx-zero", (), loads)
    linked = order._replace(network=ZEROMQ), order._replace(network=IPC, own_links=True)
    found = [
        runs.of(
            [
                each._replace(kinds=kinds, tuned=tuned)
                for _, kinds in settings
                for tuned in (False, True)
            ]
        )
        for each in (*linked, order)
    ]
    rows: Rows = []
    said = {
        "seven disks and RAM": ("35 to 21 s: 1.67", "20 s after"),
        "disks only": ("", "87 to 61 s: 1.43"),
    }
    for place, (title, _) in enumerate(settings):
        for number, what in enumerate(("make and copy", "read back")):
            ratios = (
                of_net[2 * place].seconds[number + 2] / of_net[2 * place + 1].seconds[number + 2]
                for of_net in found
            )
            rows.append((f"{title}: {what}", said[title][number], *ratios))
    return PaperTable(
        "Section V.E.3",
        "a file system is made and files are copied to it, then read: time untuned by time tuned",
        ("operation", "paper", "as in the paper", "a connection each", "ours"),
        rows,
        "As in the paper: all behind one link of 60 MB/s. A mounted file system asks through one "
        "connection (ZMQ-ToNBD), and the paper's 1 GB in 21 s is less than that carries. With a "
        "connection of 65 MB/s to each device the gain is larger. What ext4 sends, in outline: "
        "bitmaps and inode tables of all groups, then "
        f"{amount // MIB} files of 1 MiB in extents with a journal commit and the bitmaps of the "
        "group for each, four requests at a time. The paper copied 1 GB to its arrays, and read 3 "
        "GB from disks, all through ZeroMQ and a page cache. Both are done twice; the figures are "
        "of the second time, beside an array that is never tuned. On disks only, each file costs a "
        "positioning on every disk that holds a part of it, and waits for the slowest. The tuner "
        "puts files together on the quickest disk, in order; it has room for 70 of the 470 MB.",
    )


def striped(runs: AllRuns, count: int) -> PaperTable:
    """Return how raidx, tuned, compares with striping over the same disks."""
    four = (SSD, SSD, DISK, DISK)
    alike = tuple((kind, 250 * MB) for kind, _ in four)
    span = 256 * MIB
    names = {
        "random": Load("spotcheck", span, count // 2),
        "financial1": Load("financial1", span, count),
        "websearch1": Load("websearch1", span, count),
    }
    settings = (
        ("raid0", Run("raid0", four, ()), "raidx-zero", Run("raidx-zero", four, ())),
        ("raid10", Run("raidx-copy", alike, (), False), "raidx-copy", Run("raidx-copy", four, ())),
    )
    orders = [
        order._replace(loads=(load, load))
        for load in names.values()
        for _, theirs, _, ours in settings
        for order in (theirs, ours)
    ]
    found = iter(runs.of(orders))
    rows: Rows = []
    for name in names:
        for theirs, _, ours, _ in settings:
            base, own = next(found), next(found)
            ratios = [a / b for a, b in zip(base.seconds, own.seconds, strict=True)]
            rows.append((f"{name}: {ours} to {theirs}", *ratios))
    return PaperTable(
        "Beyond: striping",
        "two SSDs and two disks: speed of raidx as a multiple of striping over the same disks",
        ("load", "before tuning", "after tuning"),
        rows,
        "raid10 stands for mirrored pairs in turn over members cut to the smallest, never tuned.",
    )


def moving(runs: AllRuns, count: int) -> PaperTable:
    """Return what the paper leaves open: a hot set that moves."""
    kinds = (DISK, SMALL_SSD)
    span = 256 * MIB
    loads = tuple(Load("hotspot", span, count, s, 7 + s // 3, 0.05) for s in range(9))
    off, on = runs.of([Run("raidx-zero", kinds, loads, tuned) for tuned in (False, True)])
    rows: Rows = [
        (f"hot set {i // 3 + 1}, run {i % 3 + 1}", theirs / ours)
        for i, (theirs, ours) in enumerate(zip(off.seconds, on.seconds, strict=True))
    ]
    return PaperTable(
        "Beyond: a hot set that moves",
        "a disk and an SSD of 40 MB, 13 MB are hot: speed as a multiple of the same array untuned",
        ("load", "ours"),
        rows,
        "The first run on a new hot set finds it where it was; the old one must leave first.",
    )


def overhead(runs: AllRuns, count: int) -> PaperTable:
    """Return what tuning costs, which the paper leaves open."""
    flat = tuple(Load("hotspot", 128 * MIB, count, s, 1, 1.0) for s in range(1, 4))
    # The tuner begins a second after the last request, so each burst arrives while it works.
    bursts = (Load("hotspot", SPAN, count // 2, 1, 7, clients=1, burst=20, lull_s=1.5),)
    orders = [
        Run("raidx-zero", kinds, loads, tuned)
        for kinds, loads in (((SSD, SSD), flat), ((DISK, SSD), bursts))
        for tuned in (False, True)
    ]
    flat_off, flat_on, burst_off, burst_on = runs.of(orders)
    moved_mb = burst_on.chunks_moved * CHUNK / MB
    rows: Rows = [
        (
            "like members, flat load: time with the tuner by time without",
            sum(flat_on.seconds) / sum(flat_off.seconds),
        ),
        ("  chunks moved", flat_on.chunks_moved),
        (
            "disk and SSD, bursts after 1.5 s: time with by without",
            burst_on.seconds[0] / burst_off.seconds[0],
        ),
        ("  first request of a burst, without the tuner", f"{burst_off.after_lull_ms:.1f} ms"),
        ("  first request of a burst, with it", f"{burst_on.after_lull_ms:.1f} ms"),
        ("  moved", f"{moved_mb:.0f} MB"),
        ("  time that the tuner worked", f"{burst_on.tuner_s:.1f} s"),
    ]
    return PaperTable(
        "Beyond: what tuning costs",
        "the price of the tuner where it cannot help, and while it works",
        ("what", "ours"),
        rows,
        "A request that comes while a chunk moves waits for that one move at most, on a disk some "
        "20 ms. What remembering uses costs in processor time, bench/speed/raidx_mount.py "
        "measures.",
    )


def tables(quick: bool) -> list[PaperTable]:
    """Return all tables; *quick*: fewer requests."""
    count = 1500 if quick else 6000
    runs: AllRuns = Runs(measure)
    makers = (mirrors, choice, two_members, seven_members, file_system, striped, moving, overhead)
    return runs.tables(*(partial(maker, runs, count) for maker in makers))


if __name__ == "__main__":
    sys.exit(main(tables, __doc__))
