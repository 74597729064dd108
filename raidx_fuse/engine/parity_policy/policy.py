"""Parity update policies: which of the two plans of a partial write is carried out.

A policy sees the finished plans and the queues; it never does I/O. `traditional` does what md does:
it chooses the plan with fewer pre-reads, and read-modify-write if both have as many. `bpu` also
weighs the queue lengths (rules: bpu.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from raidx_fuse import plugins
from raidx_fuse.engine.parity_policy import bpu
from raidx_fuse.engine.parity_policy.bpu import STATES, Decision, Thresholds
from raidx_fuse.engine.parity_policy.queue_monitor import QueueMonitor
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import BandPlan
from raidx_fuse.store.latency import Latency
from raidx_fuse.store.queue import MemberQueue


class Policy(Protocol):
    """Chooses between the plans of a stripe; cells in the mask *cached* need no pre-read."""

    def __call__(
        self, rmw: BandPlan | None, rcw: BandPlan | None, stripe: Stripe, cached: int = 0, /
    ) -> BandPlan:
        """Return the plan to carry out."""
        ...


RoleOf = Callable[[Stripe, CellIndex], Role]  # (stripe, cell) -> role

Queues = Callable[[], Sequence[MemberQueue | None]]  # by role, as they are now

SKEW_WEIGHT = 1 / 64  # weight of the newest skew in the moving average from which T_skew is derived
DERIVED_EACH = 16  # thresholds are derived anew once in 16 decisions: they change slowly


def _only(rmw: BandPlan | None, rcw: BandPlan | None) -> BandPlan:
    plan = rmw or rcw
    assert plan is not None, "write_plans gives at least one plan"
    return plan


def traditional(
    rmw: BandPlan | None, rcw: BandPlan | None, _stripe: int = 0, cached: int = 0
) -> BandPlan:
    """Choose the plan with fewer pre-reads, not counting cells in the mask *cached*."""
    if rmw is None or rcw is None:
        return _only(rmw, rcw)
    if cached:
        return rmw if rmw.pre_reads_beside(cached) <= rcw.pre_reads_beside(cached) else rcw
    return rmw if len(rmw.reads) <= len(rcw.reads) else rcw


def always_rmw(
    rmw: BandPlan | None, rcw: BandPlan | None, _stripe: int = 0, _cached: int = 0
) -> BandPlan:
    """Choose read-modify-write, except for full stripes."""
    if rcw is not None and not rcw.reads:
        return rcw
    return _only(rmw, rcw)


def always_rcw(
    rmw: BandPlan | None, rcw: BandPlan | None, _stripe: int = 0, _cached: int = 0
) -> BandPlan:
    """Choose reconstruct-write wherever lost members allow it."""
    return _only(rcw, rmw)


@dataclass(slots=True)
class BpuCounters:
    """Counts of BPU's decisions between two plans that are both possible and both pre-read.

    * *decisions*: by state.
    * *queued*: decisions that found an operation waiting.
    * *touched_longest*: those of the queued whose choice reads from the member with the longest
      queue (the paper's Fig. 2).
    * *against_pre_reads*: decisions for the plan with more pre-reads.
    * *pre_reads_least*: the pre-reads of `traditional`.
    * *extra_pre_reads*: the pre-reads beyond those (Fig. 5).
    * *skew*: the distribution of delta_l among the queued.
    """

    decisions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    rmw: int = 0
    rcw: int = 0
    queued: int = 0
    touched_longest: int = 0
    against_pre_reads: int = 0
    pre_reads_least: int = 0
    extra_pre_reads: int = 0
    skew: Latency = field(default_factory=Latency)

    def add(self, decision: Decision, longest_s: float) -> None:
        """Count *decision*; the longest queue took *longest_s* seconds then."""
        self.decisions[decision.state] += 1
        if decision.chosen == bpu.RMW:
            self.rmw += 1
        else:
            self.rcw += 1
        self.pre_reads_least += min(decision.rmw.pre_reads, decision.rcw.pre_reads)
        if extra := decision.extra_pre_reads:
            self.against_pre_reads += 1
            self.extra_pre_reads += extra
        if decision.mean_s:
            self.queued += 1
            chosen = decision.rmw if decision.chosen == bpu.RMW else decision.rcw
            self.touched_longest += chosen.longest_s == longest_s
            self.skew.add(decision.skew_s)


class BpuPolicy:
    """BPU over the queues of an array, which it watches from `start` until `stop`.

    *limits* are the thresholds in force: those set by hand (*by_hand*, keyed by the field names of
    `Thresholds`), the others derived from the array and updated with it.
    """

    def __init__(self, role_of: RoleOf, queues: Queues, clock: Callable[[], float]) -> None:
        self.counters = BpuCounters()
        self.by_hand: dict[str, float | int] = {}
        self._role_of = role_of
        self._queues = queues
        self._mean_skew_s = 0.0
        self._asked = 0
        self.limits = bpu.derive((), (), len(queues()), 0.0)
        self.monitor = QueueMonitor(clock, self.limits)

    # -- settings ------------------------------------------------------------------------------

    def start(self) -> None:
        """Watch the queues from now on."""
        self.monitor.attend(self._queues())
        self.refresh()

    def stop(self) -> None:
        """Stop watching the queues."""
        self.monitor.leave()

    def note_members(self) -> None:
        """Watch the queues of the present members, if queues are watched at all."""
        if self.monitor.active:
            self.start()

    def set_threshold(self, name: str, value: float | int | None) -> None:
        """Set a threshold (a field name of `Thresholds`) by hand; None: derive it again."""
        self.by_hand.pop(name, None)
        if value is not None:
            self.by_hand[name] = value
        self.refresh()

    def set_service(self, kind: str, by_hand: float | None) -> None:
        """Set A_R (*kind* "read") or A_W ("write") of all members, in seconds; None: measured."""
        self.monitor.set_service(kind, by_hand)
        self.refresh()

    def refresh(self) -> Thresholds:
        """Derive the thresholds again and return those in force."""
        monitor, queues = self.monitor, self._queues()
        reads_s, writes_s = (
            [
                monitor.service_s(kind, queue) / max(1, queue.member.depth)  # as in lengths_s
                for queue in queues
                if queue is not None
            ]
            for kind in ("read", "write")
        )
        derived = bpu.derive(reads_s, writes_s, len(queues), self._mean_skew_s)
        limits = self.limits = derived._replace(**self.by_hand)  # type: ignore[arg-type]
        if limits != self.monitor.limits:
            self.monitor.set_limits(limits)
        return limits

    # -- choosing ------------------------------------------------------------------------------

    def choose_now(self, rmw: BandPlan | None, rcw: BandPlan | None) -> BandPlan | None:
        """Return the choice of `traditional` if no operation waits; else None."""
        return None if self.monitor.mean_s else traditional(rmw, rcw)

    def weigh(
        self, rmw: BandPlan | None, rcw: BandPlan | None, stripe: Stripe, cached: int = 0
    ) -> Decision | None:
        """Return the present decision for *stripe*, not counted; None if there is no choice."""
        if rmw is None or rcw is None:
            return None
        if not rmw.pre_reads_beside(cached) or not rcw.pre_reads_beside(cached):
            return None
        role_of, lengths_s = self._role_of, self.monitor.lengths_s

        def role(cell: CellIndex) -> Role:
            return role_of(stripe, cell)

        return bpu.decide(
            bpu.candidate(rmw, role, lengths_s, cached),
            bpu.candidate(rcw, role, lengths_s, cached),
            self.monitor.mean_s,
            self.limits,
        )

    def __call__(
        self, rmw: BandPlan | None, rcw: BandPlan | None, stripe: Stripe, cached: int = 0, /
    ) -> BandPlan:
        """Return the plan to be carried out in *stripe*, and count the decision."""
        if not self._asked % DERIVED_EACH:
            self.refresh()
        self._asked += 1
        decision = self.weigh(rmw, rcw, stripe, cached)
        if decision is None or rmw is None or rcw is None:
            return traditional(rmw, rcw, stripe, cached)
        self._count(decision)
        return rmw if decision.chosen == bpu.RMW else rcw

    def report(self) -> dict[str, Any]:
        """Return the data for `stats`: counts since the start, and the present state."""
        counters = self.counters
        return {
            "state": self.monitor.state,
            "mean_queue_s": self.monitor.mean_s,
            "mean_skew_s": self._mean_skew_s,
            "thresholds": self.refresh()._asdict(),
            "seconds": self.monitor.seconds(),
            "decisions": dict(counters.decisions),
            "rmw": counters.rmw,
            "rcw": counters.rcw,
            "queued": counters.queued,
            "touched_longest": counters.touched_longest,
            "against_pre_reads": counters.against_pre_reads,
            "pre_reads_least": counters.pre_reads_least,
            "extra_pre_reads": counters.extra_pre_reads,
        }

    def _count(self, decision: Decision) -> None:
        self.counters.add(decision, max(self.monitor.lengths_s))
        if decision.mean_s:
            self._mean_skew_s += SKEW_WEIGHT * (decision.skew_s - self._mean_skew_s)


# These look only at the plans, so their choice for a pair of plans never changes.
POLICIES: dict[str, Policy] = {"traditional": traditional, "rmw": always_rmw, "rcw": always_rcw}
POLICY_NAMES = (*POLICIES, "bpu")


def check_policy(name: str) -> str:
    """Return *name* if it is the name of a policy, built in or of a package that can be used.

    Raises UsageError that lists the names, or names the package.
    """
    if name in POLICY_NAMES:
        return name
    own = plugins.names(plugins.POLICY_GROUP)
    if name not in own:
        known = ", ".join((*POLICY_NAMES, *own))
        raise UsageError(f"unknown parity policy {name!r}", action=f"choose one of {known}")
    try:
        plugins.load(plugins.POLICY_GROUP, name)
    except plugins.PluginError as error:
        raise UsageError(f"parity policy {error}") from error
    return name
