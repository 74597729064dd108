"""BPU, the balanced parity update algorithm: chooses one of two plans from plain numbers.

Source: Chen, Xu, Li, Xu, "Balanced Parity Update Algorithm with Queueing Length Awareness for RAID
Arrays"; the sections named below are the paper's. Nothing here does I/O, waits or keeps state.

Section IV.A: the length of member i's queue is the time that its waiting operations take, in
seconds: L_i = N_R * A_R + N_W * A_W, for members that serve one after the other. For one that
serves d operations at a time it is a d-th of that (ours; `QueueMonitor`). Section IV.C: the mean
of all L_i gives the array's *state*, and a plan is judged by two numbers: its count of pre-reads in
chunks, and the longest queue that it reads from.

    state     chosen
    heavy     fewer pre-reads                                            (IV.D, rule 1)
    normal    the shorter queue, if the two queues differ by T_skew or   (IV.D, rule 2)
              more and that costs at most T_pre more pre-reads;
              else fewer pre-reads
    light     the shorter queue, whatever it costs                       (IV.D, rule 3)

Only the members that are *read first* count for a plan's queue, as in the paper's Fig. 1: both
plans write new data and new parity to the same members. The paper leaves three points open. Here
equally long queues leave the choice to the count of pre-reads. Equal counts give read-modify-write,
as in `traditional`. And while the paper chooses for each parity chunk, here one choice is made for
all parity cells of a stripe that a write changes, because they share most of their pre-reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from raidx_fuse.layouts.numbers import CellIndex, Role
from raidx_fuse.layouts.planning.stripe_plan import BandPlan

if TYPE_CHECKING:
    from raidx_fuse.answers import QueueDecision, WeighedPlan
    from raidx_fuse.documents import BpuThresholds

LIGHT, NORMAL, HEAVY = STATES = ("light", "normal", "heavy")
RMW, RCW = "rmw", "rcw"

# Derived thresholds, in terms of the array's service times (section VI.C, with the paper's own
# figures: T_light 0.1 ms on SSDs that take about that long for a chunk, T_heavy up to 4 or 5 ms).
LIGHT_SERVICES = 1.0  # mean queue, in operations, from which the load is normal
HEAVY_SERVICES = 40.0  # mean queue, in operations, from which the load is heavy
SKEW_MARGIN = 1.25  # "a little larger than the average skewness"
UNMEASURED_SERVICE_S = 1e-4  # the paper's figure, until the array's own is measured


class Thresholds(NamedTuple):
    """T_light, T_heavy and T_skew in seconds of queue, T_pre in chunks."""

    t_light_s: float
    t_heavy_s: float
    t_pre: int
    t_skew_s: float


class Candidate(NamedTuple):
    """The cost of a plan: *pre_reads* in chunks, *longest_s* the longest queue it reads from."""

    pre_reads: int
    longest_s: float


class Decision(NamedTuple):
    """The choice, "rmw" or "rcw", the *rule* that made it, and all numbers it was made from."""

    chosen: str
    state: str
    rule: str
    mean_s: float
    rmw: Candidate
    rcw: Candidate
    limits: Thresholds

    @property
    def skew_s(self) -> float:
        """The paper's delta_l: by how many seconds the longest queues of the plans differ."""
        return abs(self.rmw.longest_s - self.rcw.longest_s)

    @property
    def delta_pre(self) -> int:
        """The paper's delta_pre: by how many chunks the pre-reads of the plans differ."""
        return abs(self.rmw.pre_reads - self.rcw.pre_reads)

    @property
    def extra_pre_reads(self) -> int:
        """Pre-reads of the choice beyond the fewest possible: 0 or delta_pre (section IV.F)."""
        mine = self.rmw if self.chosen == RMW else self.rcw
        return mine.pre_reads - min(self.rmw.pre_reads, self.rcw.pre_reads)


def state_of(mean_s: float, limits: Thresholds) -> str:
    """Return the workload's state (equation 5); heavy wins if T_light is above T_heavy."""
    if mean_s >= limits.t_heavy_s:
        return HEAVY
    return NORMAL if mean_s >= limits.t_light_s else LIGHT


def candidate(
    plan: BandPlan,
    role_of: Callable[[CellIndex], Role],
    lengths_s: Sequence[float],
    cached: int = 0,
) -> Candidate:
    """Return the cost of *plan*; *lengths_s* is by role, *role_of* maps a cell to its role.

    The cells in the mask *cached* are in memory and not read (raidx paper, section V.C).
    """
    count = 0
    longest_s = 0.0
    for cell in plan.reads:
        if not cached >> cell & 1:
            count += 1
            length_s = lengths_s[role_of(cell)]
            if length_s > longest_s:
                longest_s = length_s
    return Candidate(count, longest_s)


def decide(rmw: Candidate, rcw: Candidate, mean_s: float, limits: Thresholds) -> Decision:
    """Choose between read-modify-write and reconstruct-write; *mean_s* is the mean queue."""
    fewer = RMW if rmw.pre_reads <= rcw.pre_reads else RCW
    if rmw.longest_s == rcw.longest_s:
        shorter = fewer
    else:
        shorter = RMW if rmw.longest_s < rcw.longest_s else RCW
    state = state_of(mean_s, limits)
    if state == HEAVY:
        chosen, rule = fewer, "heavy"
    elif state == LIGHT:
        chosen, rule = shorter, "light"
    elif abs(rmw.longest_s - rcw.longest_s) < limits.t_skew_s:
        chosen, rule = fewer, "even"
    elif shorter != fewer and abs(rmw.pre_reads - rcw.pre_reads) > limits.t_pre:
        chosen, rule = fewer, "costly"
    else:
        chosen, rule = shorter, "skewed"
    return Decision(chosen, state, rule, mean_s, rmw, rcw, limits)


def derive(
    read_services_s: Sequence[float],
    write_services_s: Sequence[float],
    width: int,
    mean_skew_s: float,
) -> Thresholds:
    """Return thresholds for an array as the paper's summary (VI.C) advises.

    The service times are in seconds by member, 0 where nothing was measured yet. *width* is the
    number of members, *mean_skew_s* the mean of delta_l so far.
    """
    known = [service for service in (*read_services_s, *write_services_s) if service > 0]
    service_s = sum(known) / len(known) if known else UNMEASURED_SERVICE_S
    return Thresholds(
        t_light_s=LIGHT_SERVICES * service_s,
        t_heavy_s=HEAVY_SERVICES * service_s,
        t_pre=width // 2,
        t_skew_s=SKEW_MARGIN * mean_skew_s,
    )


_RULES = {
    "heavy": "heavy load: fewer pre-reads",
    "light": "light load: the shorter queue",
    "even": "the queues differ by less than T_skew: fewer pre-reads",
    "costly": "the shorter queue costs more than T_pre further pre-reads: fewer pre-reads",
    "skewed": "the queues differ by T_skew or more at a bearable price: the shorter queue",
}


def words(decision: Decision) -> str:
    """Return a decision as a line of text, times in milliseconds."""
    limits = decision.limits
    return (
        f"policy bpu: {_RULES[decision.rule]}, so {decision.chosen}; "
        f"load {decision.state}: mean queue {decision.mean_s * 1e3:.3f} ms "
        f"(T_light {limits.t_light_s * 1e3:.3f}, T_heavy {limits.t_heavy_s * 1e3:.3f}); "
        f"read-modify-write would read {decision.rmw.pre_reads} chunks, longest queue "
        f"{decision.rmw.longest_s * 1e3:.3f} ms; reconstruct-write {decision.rcw.pre_reads}, "
        f"{decision.rcw.longest_s * 1e3:.3f} ms; they differ by {decision.skew_s * 1e3:.3f} ms "
        f"(T_skew {limits.t_skew_s * 1e3:.3f}) and {decision.delta_pre} pre-reads "
        f"(T_pre {limits.t_pre})"
    )


def numbers(decision: Decision) -> QueueDecision:
    """Return a decision as JSON values, times in seconds."""
    return {
        "chosen": decision.chosen,
        "state": decision.state,
        "rule": decision.rule,
        "mean_queue_s": decision.mean_s,
        "rmw": cast("WeighedPlan", decision.rmw._asdict()),
        "rcw": cast("WeighedPlan", decision.rcw._asdict()),
        "delta_l_s": decision.skew_s,
        "delta_pre": decision.delta_pre,
        "extra_pre_reads": decision.extra_pre_reads,
        "thresholds": cast("BpuThresholds", decision.limits._asdict()),
    }
