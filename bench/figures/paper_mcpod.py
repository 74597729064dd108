"""McPod paper, section 5, in virtual time: growing RAID-4 by the fewest moves, on 7200 rpm disks.

    python bench/figures/paper_mcpod.py                 some minutes
    python bench/figures/paper_mcpod.py --quick         less than a minute, smaller disks

Arrays of 4 modelled disks grow by 1, by 2, and by 1 and 1; chunks are 64 KiB, and everything is
written beforehand. Our parity mode `live` (jobs/grow/) neither reads nor writes parity, so it does
less work than the paper's methods. "Move everything" is our own engine's restripe
(jobs/restripe/job.py) on the same disks, once with large windows, and and with the flushes
and the operations that md was measured to have (restripe_runs.py). Behind the tables of the
paper, growth_tables.py has the growth of the other codes, and the speed of grown arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from growth_runs import CHUNK_BYTES, DISK, MIB, SEED, Watched, disk, grown, quiet
from growth_tables import every_code, grown_beside_made
from mcpod_after import after_growth, cached, load_of
from paper_common import Cell, Chart, PaperTable, log_bytes, main
from restripe_runs import LARGE_WINDOWS, MD, MD_FLUSHES, Habits, restriped, under_load

from raidx_fuse.engine.growth_position import LIVE, PIGGYBACK, SURROGATE
from raidx_fuse.jobs.grow import job as grow_module
from raidx_fuse.lab.experiments.modelled import Event
from raidx_fuse.lab.experiments.simulate import Experiment, simulate

TITLE = "McPod: growing RAID-4 by moving the fewest blocks"

SECTION_S = 20.0
GROWTHS = ((4, 1), (4, 2))
# Bytes read and written for each byte of old data: the paper's way (its parity piggybacks: a read
# and a write of parity in each stripe that moves something), and md's as measured on real arrays.
PAPER_BYTES = {(4, 1): 1.0, (4, 2): 1.36}
MD_BYTES = {(4, 1): 3.0, (4, 2): 3.33}
PAPER_MD_KIB_S, PAPER_MCPOD_KIB_S = 2000, {"financial1": 8000, "tpcc": 10_000}


@contextmanager
def changed(**constants: int) -> Any:
    """Run the block with other constants of the job: a technique switched off."""
    before = {name: getattr(grow_module, name) for name in constants}
    for name, value in constants.items():
        setattr(grow_module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(grow_module, name, value)


def bytes_and_time(member_bytes: int) -> PaperTable:
    """Return bytes for each byte of old data, and redistribution time without other load."""
    rows: list[list[Cell]] = []
    for width, added in GROWTHS:
        full = partial(
            Experiment,
            layout="raid4",
            members=(DISK,) * width,
            member_bytes=member_bytes,
            log_bytes=log_bytes(member_bytes),
            load=quiet,
            seed=SEED,
        )
        ours = grown(width, added, member_bytes)
        moved = [restriped(full, added, disk, habits) for habits in (LARGE_WINDOWS, MD_FLUSHES)]
        rows.append(
            [
                f"{width}+{added}",
                PAPER_BYTES[width, added],
                MD_BYTES[width, added],
                grown(width, added, member_bytes, parity=PIGGYBACK, journal="none").bytes_each,
                ours.bytes_each,
                moved[0].bytes / moved[0].old_bytes,
                *(one.seconds / ours.seconds for one in moved),
            ]
        )
    return PaperTable(
        "Section 3",
        "bytes moved for each byte of old data, and time against moving everything, no other load",
        (
            *("disks", "paper", "md's bytes (measured)", "as in the paper", "ours"),
            "our restripe's",
            *("times as fast as a restripe with large windows", "as one with md's flushes"),
        ),
        rows,
        "As in the paper: parity follows by piggyback, without a journal. Ours: parity is not "
        "touched, hence less. Both count every byte, metadata included. The paper's 67.78 to 79.64 "
        "% less time (3 to 5 times) are under load (Figs. 11 to 13).",
    )


def techniques(member_bytes: int) -> PaperTable:
    """Return the gain of each technique: they are switched off one at a time."""
    whole = grown(4, 1, member_bytes)
    one_by_one = {"BATCHES_IDLE": 1, "BATCH_BYTES_MAX": CHUNK_BYTES}
    cases: list[tuple[str, Callable[[], Watched]]] = [
        ("all of them", lambda: whole),
        ("each block by itself: no coalescing", lambda: _with(one_by_one, member_bytes)),
        ("one batch a window: no reading ahead", lambda: _with({"BATCHES_IDLE": 1}, member_bytes)),
        (
            "a checkpoint each window of 3 MiB: no delayed metadata",
            lambda: _with({"BATCHES_IDLE": 1}, member_bytes, each_window=True),
        ),
    ]
    rows: list[list[Cell]] = []
    for name, case in cases:
        seen = case()
        rows.append([name, seen.seconds, seen.seconds / whole.seconds, seen.checkpoints])
    return PaperTable(
        "Sections 3.2, 3.5",
        "growing 4+1 with nobody else asking, techniques switched off in turn",
        ("techniques", "seconds", "times as long", "checkpoints"),
        rows,
    )


def _with(constants: dict[str, int], member_bytes: int, each_window: bool = False) -> Watched:
    with changed(**constants):
        return grown(4, 1, member_bytes, each_window)


def on_four(trace: str, requests: int, member_bytes: int, section_s: float) -> partial[Experiment]:
    """Return the experiment of *trace* on four disks, but for its events."""
    return partial(
        Experiment,
        layout="raid4",
        members=(DISK,) * 4,
        member_bytes=member_bytes,
        log_bytes=log_bytes(member_bytes),
        load=load_of(trace, requests),
        section_s=section_s,
        seed=SEED,
    )


@cache
def during(trace: str, requests: int, member_bytes: int, how: Habits | str) -> dict[str, Any]:
    """Return the result of *trace* on four disks while a fifth joins: a restripe, or McPod.

    At the paper's rates (section 5.2): KiB a second of every disk that the redistribution passes,
    all of which a restripe moves, McPod a quarter; a surrogate takes a third in parity besides. No
    job goes faster where nobody asks: the paper's did once (`throttles`).
    """
    load = on_four(trace, requests, member_bytes, SECTION_S)
    if isinstance(how, str):
        passed = 3 * PAPER_MCPOD_KIB_S[trace] << 10
        result = under_load(load, how, passed * (7 if how == SURROGATE else 3) // 12)
    else:
        result = under_load(load, how, 3 * PAPER_MD_KIB_S << 10)
    (event,) = result["events"]
    assert event["job_state"] == "done", event
    return result


PAPER_LESS = {"financial1": (67.78, 14.24), "tpcc": (79.64, 27.16)}  # time, response, percent
PAPER_DISK_KIB = 100 << 20  # "disk partitions with a capacity of 100 GB"
PAPER_TIMES = (  # load, what, KiB a second, the paper's seconds (tpcc: from its hours)
    ("financial1", "McPod", PAPER_MCPOD_KIB_S["financial1"], 13_153.0),
    ("financial1", "MD-Reshape", PAPER_MD_KIB_S, 40_827.0),
    ("tpcc", "McPod", PAPER_MCPOD_KIB_S["tpcc"], 2.92 * 3600),
    ("tpcc", "MD-Reshape", PAPER_MD_KIB_S, 14.43 * 3600),
)


def throttles() -> PaperTable:
    """Return what the paper's redistribution times are by their throttles alone."""
    rows = [
        (
            load,
            what,
            rate,
            paper,
            PAPER_DISK_KIB / rate,
            f"{PAPER_DISK_KIB / rate / paper - 1:+.1%}",
        )
        for load, what, rate, paper in PAPER_TIMES
    ]
    return PaperTable(
        "Section 5.2",
        "redistribution of 100 GB a disk: the time of its throttle (sync_speed_min) alone",
        ("load", "what", "throttle, KiB/s", "measured in the paper, s", "100 GB by it, s", "by"),
        rows,
        "Three of the four are their throttles, within 1 %: what they say is that both kept up "
        "with them under load. md under Financial1 was quicker than its own, as `sync_speed_max` "
        "lets it where nobody asks.",
    )


def less(ours: float, theirs: float) -> str:
    """Return by how many percent *ours* is less."""
    return f"{100 * (1 - ours / theirs):+.1f} %"


def responses(requests: int, member_bytes: int) -> PaperTable:
    """Return redistribution time and user response time under the paper's loads."""
    rows: list[list[Cell]] = []
    for trace in ("financial1", "tpcc"):
        ours, theirs, small, best = (
            during(trace, requests, member_bytes, how)
            for how in (LIVE, MD_FLUSHES, MD, LARGE_WINDOWS)
        )

        def taken(result: dict[str, Any]) -> float:
            return float(result["events"][0]["job_ended_s"])

        def mean(result: dict[str, Any]) -> float:
            return float(result["response_ms"]["mean"])

        def meanwhile(result: dict[str, Any]) -> float:
            return float(result["events"][0]["during"]["response_ms"]["mean"])

        measures: tuple[tuple[str, Cell, Callable[[dict[str, Any]], float]], ...] = (
            ("redistribution, s", f"{PAPER_LESS[trace][0]:+} %", taken),
            ("mean response of the whole load, ms", "", mean),
            ("mean response while it grows, ms", f"{PAPER_LESS[trace][1]:+} %", meanwhile),
        )
        for title, paper, of in measures:
            rows.append(
                [
                    *(trace, title, paper, less(of(ours), of(theirs))),
                    *(less(of(ours), of(small)), less(of(ours), of(best))),
                    *(of(one) for one in (ours, theirs, small, best)),
                ]
            )
    return PaperTable(
        "Figs. 11 to 13",
        f"4+1 of {member_bytes // MIB} MiB under load, at the paper's rates of redistribution: "
        "McPod less than moving everything by",
        (
            *("load", "measure", "paper", "as in the paper", "against md's operations", "ours"),
            *("McPod", "md's flushes", "md's operations", "large windows"),
        ),
        rows,
        "All jobs are held at the paper's rates. As in the paper: against a restripe with md's "
        "flushes, which keeps up with md's rate (with md's operations, one at a time, it does "
        "not: half of it); ours: against the best that we "
        "can do, large windows. McPod with parity `live` in all of them. The paper averages while "
        "the redistribution lasts. The whole load is one "
        "and the same, and goes on after the redistribution: McPod's is over sooner. The means "
        "while it grows are of other requests for each: McPod's are the first seconds of the "
        "load, with the burst that Financial1 begins with, a restripe's are all of it. 'Why, 1' "
        "has the same requests for all. All of it with the journal `partial`: a restripe logs "
        "every write whatever the mode.",
    )


SLOW_BYTES = 400_000  # moved in a second: a growth that costs the disks hardly any time


def same_requests(requests: int, member_bytes: int) -> PaperTable:
    """Return the response of the requests during McPod's growth, if other things happen instead."""
    rows: list[list[Cell]] = []
    for trace in ("financial1", "tpcc"):
        lasts_s = during(trace, requests, member_bytes, LIVE)["events"][0]["job_ended_s"]
        load = on_four(trace, requests, member_bytes, lasts_s)
        slow = {"journal": "partial", "speed_max": str(SLOW_BYTES)}
        grow = [Event(at_s=0.0, do="add", count=1, value=LIVE)]
        rate = 3 * PAPER_MCPOD_KIB_S[trace] << 10
        found = [
            simulate(load(settings={"journal": "none"})),
            simulate(load(settings={"journal": "partial"})),
            simulate(load(settings=slow, events=grow)),
            under_load(load, LIVE, rate * 3 // 12),
            under_load(load, MD, 3 * PAPER_MD_KIB_S << 10),
        ]
        means = [result["sections"][0]["response_ms"]["mean"] for result in found]
        count = found[0]["sections"][0]["requests"]
        rows.append([trace, lasts_s, count, *means])
    return PaperTable(
        "Why, 1",
        "mean response, ms, of the requests that come while McPod's growth lasts",
        (
            *("load", "it lasts, s", "requests", "nobody grows, no journal", "nobody grows"),
            *("a growth of 0.4 MB/s", "McPod, ours", "restripe, md's operations"),
        ),
        rows,
        "A growth begins with the superblocks and maps of its members and an emptied log. "
        "The burst that Financial1 begins with waits for that, though a growth 'of 0.4 MB/s' moves "
        "next to nothing; tpcc has no burst, and there that growth costs nothing. From then on the "
        "journal takes a write's data alone, as while nobody grows, and parity follows at the "
        "checkpoint; a restripe logs data and parity, and without a journal each write reads old "
        "data and old parity first. A limit of the job by disk time instead of bytes could win "
        "the difference of the columns 'of 0.4 MB/s' and 'McPod' at most, at the price of a longer "
        "growth, and we left it. For the same requests McPod costs less than md's operations.",
    )


def ways(member_bytes: int) -> PaperTable:
    """Return the cost of the three parity modes without other load: ours and the paper's two."""
    rows: list[list[Cell]] = []
    for width, added in GROWTHS:
        live = grown(width, added, member_bytes)
        cases = [("live", "partial", live)]
        for parity, journal in (
            (PIGGYBACK, "none"),
            (PIGGYBACK, "partial"),
            (SURROGATE, "partial"),
        ):
            seen = grown(width, added, member_bytes, parity=parity, journal=journal)
            cases.append((parity, journal, seen))
        for parity, journal, seen in cases:
            paper: Cell = "" if parity == LIVE else PAPER_BYTES[width, added]
            each: tuple[Cell, Cell] = ("", seen.bytes_each)
            if journal == "none":
                each = (seen.bytes_each, "")
            slower = seen.seconds / live.seconds
            rows.append([f"{width}+{added}", parity, journal, paper, *each, seen.seconds, slower])
    return PaperTable(
        "Sections 3.3, 3.4",
        "the ways of parity: bytes for each byte of old data, and time, no other load",
        (
            *("disks", "parity", "journal", "paper", "as in the paper", "ours"),
            *("seconds", "times live"),
        ),
        rows,
        "All bytes count, the journal's too. Piggyback changes parity in its place, which without "
        "a journal leaves a crash with a lost disk the write hole (as in the paper); with it, "
        "parity is also written to the journal of two members. A surrogate needs no journal, but "
        "before it can be the parity disk it must also get the parity of the columns that move "
        "nothing, 2 of 12 chunks more for 4+1, which the paper's count leaves out. **Not here:** "
        "the paper's piggyback *into* the surrogate. Our surrogate copies parity by the rule of "
        "`live`: a vacated cell counts as zero until it is written, so parity stays what it is, "
        "and there is nothing to piggyback. The paper's has to compute it anew because "
        "its vacated cells keep their old bytes; it would read and write what the row of piggyback "
        "does, less the reads of old parity.",
    )


def over_time(requests: int, member_bytes: int) -> PaperTable:
    """Return latencies while a disk joins: how they are distributed, and over time (charts)."""
    rows: list[list[Cell]] = []
    charts = []
    cases: dict[str, Habits | str] = {way: way for way in (LIVE, PIGGYBACK, SURROGATE)}
    cases["restripe, md's operations"] = MD
    for trace in ("financial1", "tpcc"):
        series = {}
        for name, how in cases.items():
            result = during(trace, requests, member_bytes, how)
            response = result["response_ms"]
            rows.append(
                [
                    *(trace, name, result["events"][0]["job_ended_s"]),
                    result["events"][0]["during"]["response_ms"]["mean"],
                    *(response[key] for key in ("mean", "p50", "p90", "p95", "p99", "p999")),
                ]
            )
            series[name] = [section["response_ms"]["mean"] for section in result["sections"]]
        starts = [section["from_s"] for section in result["sections"]]
        charts.append(Chart(f"{trace}: seconds", "local average latency, ms", starts, series))
    return PaperTable(
        "Figs. 11 to 13, the ways of parity",
        "redistribution and latencies under load: the paper's ways beside live and a restripe",
        (
            *("load", "how", "redistribution, s", "mean while it grows, ms"),
            *("mean of the whole load, ms", "p50", "p90", "p95", "p99", "p99.9"),
        ),
        rows,
        "While it grows, the paper's ways of parity cost users more than `live`. Over the whole "
        "load they look better than that: their growth is a part of it only. "
        f"Charts: the mean of every {SECTION_S:g} s, over time.",
        charts,
    )


def tables(quick: bool) -> list[PaperTable]:
    """Return all tables."""
    member_bytes = (96 if quick else 512) * MIB
    requests = 1500 if quick else 10_000
    return [
        bytes_and_time(member_bytes),
        techniques(member_bytes),
        ways(member_bytes),
        throttles(),
        responses(requests, member_bytes),
        same_requests(requests, member_bytes),
        over_time(requests, member_bytes),
        after_growth(requests, member_bytes),
        cached(requests, member_bytes),
        every_code(member_bytes),
        grown_beside_made(member_bytes),
    ]


if __name__ == "__main__":
    sys.exit(main(tables, __doc__))
