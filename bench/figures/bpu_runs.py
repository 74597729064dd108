"""The experiments of the BPU paper: a trace at some speed on a RAID-5 of 7+1 SSDs, with thresholds.

`paper_bpu.py` makes tables and figures of them, and gives the reasons for chunk size and speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from statistics import geometric_mean, mean
from typing import Any, NamedTuple

from paper_common import Runs, gain, marked

from raidx_fuse.array.array import Array
from raidx_fuse.engine import bpu
from raidx_fuse.engine.bpu import Candidate, Decision, Thresholds
from raidx_fuse.engine.parity_policies import QueueMonitor
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import Load, faster, fit
from raidx_fuse.lab.loads.workloads import generate, variant
from raidx_fuse.store.latency import bucket_top_s
from raidx_fuse.store.queue import MemberQueue

WIDTH = 8
SSD = "ssd,read_mb_s=445,write_mb_s=135"  # table I: Intel DC S3500
ONE_AT_A_TIME = SSD + ",channels=1"  # as L = N * A has it, and as in the paper
STALLING = ONE_AT_A_TIME + ",stall_ms=20,stall_each_mb=16"  # garbage collection
UNLIKE = f"{SSD};{ONE_AT_A_TIME}"  # in turn
UNLIKE_BY_HAND = (99.2e-6, 90.3e-6)  # A_R, A_W of 4 KiB on a member that serves one at a time
WEEK_IN_HALF_AN_HOUR = 336.0  # section VI.A
# Times that pace: about 57.5 % of the updates then find a mean queue of 0.5 ms or more. prxy_0
# cannot: at higher speeds its hottest stripe is always locked.
PACE = {"hm_1": 180.0, "proj_4": 13.0, "hm_0": 18.0, "proj_0": 3.5, "prxy_0": 2.0, "src2_2": 10.0}
# As in the paper: disks that serve one at a time, at 15 to 40 % load.
PAPER_PACE = {"hm_1": 20.0, "proj_4": 2.0, "hm_0": 3.0, "proj_0": 1.2, "prxy_0": 0.35}
PAPER_PACE |= {"src2_2": 1.5}
READ_HEAVY = ("hm_1", "proj_4")
DEPTH = 32  # of the synthetic load, which has no times of its own


class Limits(NamedTuple):
    """The four thresholds as `raidx set` takes them; "auto" derives them from the array."""

    t_light: str = "100us"
    t_heavy: str = "4ms"
    t_pre: str = "3"
    t_skew: str = "50us"


TRADITIONAL = Limits(t_heavy="0")
DERIVED = Limits("auto", "auto", "auto", "auto")


class Run(NamedTuple):
    """One experiment: a trace by name, or "writes=0.5" for the synthetic one.

    *model*: of the members; several between semicolons are taken in turn. *whole_l*: L = N * A of
    the paper, whatever a member serves at a time. *by_hand*: A_R and A_W in seconds, instead
    of the measured ones; of a member that serves d at a time a d-th: what one adds to its queue.
    *changes*: other numbers of the load. *md_tie*: where both plans read as many, the traditional
    choice is reconstruct-write, as md's.
    """

    trace: str
    limits: Limits
    seed: int = 1
    requests: int = 0
    pace: float = 0.0
    chunk_kib: int = 4
    model: str = SSD
    layout: str = "raid5"
    whole_l: bool = False
    by_hand: tuple[float, float] | None = None
    changes: tuple[tuple[str, float], ...] = ()
    md_tie: bool = False


class Scope(NamedTuple):
    """How much is measured: *requests* a run, *seeds* runs a point, each *nth* value of a sweep."""

    requests: int
    seeds: int
    nth: int


# -- one run ---------------------------------------------------------------------------------------


def load_of(run: Run, size_bytes: int) -> Load:
    """Return the load of *run* on an image of *size_bytes*."""
    if run.trace.startswith("writes="):
        share = float(run.trace.removeprefix("writes="))
        work = variant("uniform", read_share=1 - share, span_bytes=size_bytes)
        return generate(work, seed=run.seed, requests=run.requests)
    pace = WEEK_IN_HALF_AN_HOUR * run.pace
    work = variant(run.trace, **dict(run.changes))
    return fit(faster(generate(work, seed=run.seed, requests=run.requests), pace), size_bytes)


def skews(array: Array) -> dict[str, float]:
    """Return the shares of updates at which the plans' queues differ by more than so much."""
    skew = array.context.policies.bpu.skew
    return {
        f"over_{limit_us}us": sum(
            count
            for bucket, count in enumerate(skew.histogram)
            if bucket_top_s(bucket) > limit_us * 1e-6
        )
        / (skew.count or 1)
        for limit_us in (250, 500)
    }


@contextmanager
def papers_length(whole: bool) -> Iterator[None]:
    """If *whole*, let queues in the block be as long as L = N * A says."""
    ours = QueueMonitor._length_s

    def length_s(self: QueueMonitor, queue: MemberQueue) -> float:
        return ours(self, queue) * max(1, queue.member.depth)

    if whole:
        QueueMonitor._length_s = length_s  # type: ignore[method-assign]
    try:
        yield
    finally:
        QueueMonitor._length_s = ours  # type: ignore[method-assign]


@contextmanager
def times_by_hand(by_hand: tuple[float, float] | None) -> Iterator[None]:
    """Let A_R and A_W in the block be those of `Run.by_hand`, if there are any."""
    ours = QueueMonitor.service_s

    def service_s(self: QueueMonitor, kind: str, queue: MemberQueue) -> float:
        assert by_hand is not None
        return by_hand[kind == "write"] / max(1, queue.member.depth)

    if by_hand:
        QueueMonitor.service_s = service_s  # type: ignore[method-assign]
    try:
        yield
    finally:
        QueueMonitor.service_s = ours  # type: ignore[method-assign]


@contextmanager
def ties_as_md(as_md: bool) -> Iterator[None]:
    """If *as_md*, reconstruct in the block where both plans read as many and no queue decides."""
    ours = bpu.decide

    def decide(rmw: Candidate, rcw: Candidate, mean_s: float, limits: Thresholds) -> Decision:
        decision = ours(rmw, rcw, mean_s, limits)
        if decision.rule == "heavy" and rmw.pre_reads == rcw.pre_reads:
            return decision._replace(chosen=bpu.RCW)
        return decision

    if as_md:
        bpu.decide = decide
    try:
        yield
    finally:
        bpu.decide = ours


def measure(run: Run) -> dict[str, Any]:
    """Simulate *run*; return what the tables need."""
    limits = {f"bpu.{key}": value for key, value in run.limits._asdict().items()}
    experiment = Experiment(
        layout=run.layout,
        members=tuple(islice(cycle(run.model.split(";")), WIDTH)),
        chunk_bytes=run.chunk_kib << 10,
        load=lambda size_bytes: load_of(run, size_bytes),
        depth=DEPTH if run.trace.startswith("writes=") else None,
        settings={"journal": "none", **limits, "parity.policy": "bpu"},
        prepare=marked,
        report=skews,
    )
    with papers_length(run.whole_l), times_by_hand(run.by_hand), ties_as_md(run.md_tie):
        result = simulate(experiment)
    assert not result["failed"], result["errors"]
    counts = result["array"]["bpu"]
    updates = sum(counts["decisions"].values()) or 1
    return {
        "mean_ms": result["response_ms"]["mean"],
        "busy": mean(member["utilisation"] for member in result["members"]),
        "states": {state: count / updates for state, count in counts["decisions"].items()},
        "touched": counts["touched_longest_ratio"],
        "extra": counts["extra_pre_reads_ratio"],
        "against": counts["against_ratio"],
        "skew": result["extra"],
    }


# -- all runs --------------------------------------------------------------------------------------


class Laboratory:
    """The runs of the tables, each with as many seeds as *scope* says."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.runs = Runs(measure)

    def seeded(self, run: Run) -> list[dict[str, Any]]:
        """Return what *run* gave with each seed, its requests and its pace filled in."""
        pace = run.pace or PACE.get(run.trace, 1.0)
        return self.runs.of(
            run._replace(seed=seed, requests=self.scope.requests, pace=pace)
            for seed in range(1, self.scope.seeds + 1)
        )

    def mean(self, run: Run, *path: str) -> float:
        """Return the mean over the seeds of one number of *run*."""
        values: list[Any] = self.seeded(run)
        for key in path:
            values = [value[key] for value in values]
        return float(mean(values))

    def ratio(self, run: Run) -> float:
        """Return the response time of *run* in terms of the traditional choice.

        The geometric mean over pairs of runs with the same seed: no single busy load dominates.
        """
        pairs = zip(self.seeded(run), self.seeded(run._replace(limits=TRADITIONAL)), strict=True)
        return float(
            geometric_mean([ours["mean_ms"] / theirs["mean_ms"] for ours, theirs in pairs])
        )

    def gain(self, run: Run) -> str:
        """Return by how much *run* is better than the traditional choice, with its error."""
        sides = self.seeded(run._replace(limits=TRADITIONAL)), self.seeded(run)
        return gain(*([one["mean_ms"] for one in side] for side in sides))
