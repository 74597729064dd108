"""Parity update policies: which of the two plans of a partial write is carried out.

A policy sees the finished plans and the queues; it never does I/O. `traditional` chooses the plan
with fewer pre-reads, and read-modify-write if both have as many (md takes reconstruct-write then).
`bpu` also weighs the queue lengths (rules: bpu.py).

A policy of another package is a function that says "rmw" or "rcw", and nothing else. It gets the
roles that each plan would read from, and how many operations wait for each role. It never sees a
plan, so that whatever it returns, the parity that is written is right. A function that raises, or
says something else, is not asked again: `traditional` decides from then on, and the log names the
package.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from raidx_fuse import plugins
from raidx_fuse.engine import bpu
from raidx_fuse.engine.bpu import LIGHT, RCW, RMW, STATES, Decision, Thresholds, state_of
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe, by_role
from raidx_fuse.layouts.planning.stripe_plan import BandPlan, cells_of
from raidx_fuse.store.latency import Latency
from raidx_fuse.store.queue import MemberQueue

if TYPE_CHECKING:
    from raidx_fuse.documents import BpuCounts
    from raidx_fuse.journal.stripe_parity import Plans


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
    """

    decisions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    rmw: int = 0
    rcw: int = 0
    queued: int = 0
    touched_longest: int = 0
    against_pre_reads: int = 0
    pre_reads_least: int = 0
    extra_pre_reads: int = 0

    def add(self, decision: Decision, longest_s: float) -> None:
        """Count *decision*; the longest queue took *longest_s* seconds then."""
        self.decisions[decision.state] += 1
        chosen = decision.rmw if decision.chosen == RMW else decision.rcw
        self.rmw += chosen is decision.rmw
        self.rcw += chosen is decision.rcw
        self.pre_reads_least += min(decision.rmw.pre_reads, decision.rcw.pre_reads)
        if extra := decision.extra_pre_reads:
            self.against_pre_reads += 1
            self.extra_pre_reads += extra
        if decision.mean_s:
            self.queued += 1
            self.touched_longest += chosen.longest_s == longest_s


class QueueMonitor:
    """The queue monitor of BPU: watches queues from `attend` until `leave`.

    The paper's Queue Monitor (section V.C) "captures real-time information of I/O queues" and is
    "consistent with the I/O queue all the time". Here the member queues report each change to it,
    so nothing is computed while nothing waits, and the time spent in each state is exact.

    * *lengths_s*: the queue length of each role in seconds, 0 for a role without a member.
    * *mean_s*: their mean over the present members.
    * *state*: the state of the load.
    * *limits*: the thresholds from which the state follows.
    * *by_hand*: the service times in seconds set by hand, by kind ("read", "write"), for all
      members; None stands for the measured one of each.
    """

    def __init__(self, clock: Callable[[], float], limits: Thresholds) -> None:
        self.lengths_s: list[float] = []
        self.mean_s = 0.0
        self.state = LIGHT
        self.limits = limits
        self.by_hand: dict[str, float | None] = {"read": None, "write": None}
        self.active = False
        self._clock = clock
        self._queues: list[MemberQueue | None] = []
        self._present = 1
        self._since_s = 0.0
        self._seconds: dict[str, float] = dict.fromkeys(STATES, 0.0)

    def attend(self, queues: Sequence[MemberQueue | None]) -> None:
        """Watch *queues* (by role) from now on, instead of those watched before."""
        self.leave()
        self.active = True
        self._queues = list(queues)
        self._present = sum(queue is not None for queue in queues) or 1
        self.lengths_s = [0.0] * len(queues)
        self._since_s = self._clock()
        for role, queue in by_role(queues):
            if queue is not None:
                self.lengths_s[role] = self._length_s(queue)
                queue.watch(partial(self._changed, role, queue))
        self.refresh()

    def leave(self) -> None:
        if self.active:
            self.refresh()
        self.active = False
        for queue in self._queues:
            if queue is not None:
                queue.watch(None)
        self._queues = []
        self.lengths_s = [0.0] * len(self.lengths_s)
        self.mean_s = 0.0

    def service_s(self, kind: str, queue: MemberQueue) -> float:
        """Return A_R or A_W of the member with *queue*, in seconds."""
        by_hand = self.by_hand[kind]
        if by_hand is not None:
            return by_hand
        return queue.read_service_s if kind == "read" else queue.write_service_s

    def refresh(self) -> None:
        """Compute every length again, after a change of the service times or the limits."""
        for role, queue in by_role(self._queues):
            if queue is not None:
                self.lengths_s[role] = self._length_s(queue)
        self._note(self._clock())

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent in each state so far, while watching."""
        if self.active:
            self._note(self._clock())
        return dict(self._seconds)

    def _length_s(self, queue: MemberQueue) -> float:
        """Return L = N_R * A_R + N_W * A_W (equation 3), divided by what is served at a time.

        The paper's disks serve one request after the other. A member that serves d of them at once
        has the same work done in a d-th of the time, and next to one that does not, L would call
        it busy where nothing waits.
        """
        reads_s = queue.reads_waiting * self.service_s("read", queue)
        writes_s = queue.writes_waiting * self.service_s("write", queue)
        return (reads_s + writes_s) / max(1, queue.member.depth)

    def _changed(self, role: Role, queue: MemberQueue, now_s: float) -> None:
        self.lengths_s[role] = self._length_s(queue)
        self._note(now_s)

    def _note(self, now_s: float) -> None:
        """Count the time until now for the state so far, then update mean and state."""
        self._seconds[self.state] += now_s - self._since_s
        self._since_s = now_s
        self.mean_s = sum(self.lengths_s) / self._present
        self.state = state_of(self.mean_s, self.limits)


class BpuPolicy:
    """BPU over the queues of an array, which it watches from `start` until `stop`.

    The thresholds in force (*limits* of the *monitor*) are those set by hand (*by_hand*, keyed by
    the field names of `Thresholds`), the others derived from the array and updated with it. *skew*
    is the distribution of delta_l among the decisions that found an operation waiting.
    """

    def __init__(self, role_of: RoleOf, queues: Queues, clock: Callable[[], float]) -> None:
        self.counters = BpuCounters()
        self.skew = Latency()
        self.by_hand: dict[str, float | int] = {}
        self._role_of = role_of
        self._queues = queues
        self._mean_skew_s = 0.0
        self._asked = 0
        self.monitor = QueueMonitor(clock, bpu.derive((), (), len(queues()), 0.0))

    # -- settings ------------------------------------------------------------------------------

    def start(self) -> None:
        self.monitor.attend(self._queues())
        self.refresh()

    def stop(self) -> None:
        self.monitor.leave()

    def note_members(self) -> None:
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
        self.monitor.by_hand[kind] = by_hand
        self.monitor.refresh()
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
        limits = derived._replace(**self.by_hand)  # type: ignore[arg-type]
        if limits != monitor.limits:
            monitor.limits = limits
            monitor.refresh()
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
            self.monitor.limits,
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
        self.counters.add(decision, max(self.monitor.lengths_s))
        if decision.mean_s:
            self.skew.add(decision.skew_s)
            self._mean_skew_s += SKEW_WEIGHT * (decision.skew_s - self._mean_skew_s)
        return rmw if decision.chosen == RMW else rcw

    def report(self) -> BpuCounts:
        """Return the data for `stats`: counts since the start, and the present state."""
        found = {
            "state": self.monitor.state,
            "mean_queue_s": self.monitor.mean_s,
            "mean_skew_s": self._mean_skew_s,
            "thresholds": self.refresh()._asdict(),
            "seconds": self.monitor.seconds(),
            **asdict(self.counters),
        }
        return cast("BpuCounts", found)


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


log = logging.getLogger(__name__)

Chooser = Callable[[Sequence[int], Sequence[int], Sequence[int]], str]
"""(roles read by read-modify-write, by reconstruct-write, operations waiting by role) -> choice."""


def is_name(value: object) -> bool:
    """Return whether *value*, of a superblock, can be the name of a package's policy."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,79}", value) is not None


def problem_of(name: str) -> str | None:
    """Return in words why policy *name* cannot be used here, or None."""
    try:
        check_policy(name)
    except UsageError as error:
        cause = error.__cause__
        return f"cannot be used: {cause}" if cause else "is of no package that is installed here"
    return None


def why_not_asked(name: str, policy: Policy) -> str | None:
    """Return why the policy *name* that an array keeps is not asked by *policy*; or None.

    One line with the next step.
    """
    if isinstance(policy, OwnPolicy):
        why = policy.broken and f"fails: {policy.broken}"
    elif name not in POLICY_NAMES:
        why = problem_of(name) or "was not there when the array was mounted"
    else:
        why = None
    if not why:
        return None
    return (
        f"parity policy {name} {why}; traditional decides. Put its package right and mount "
        "again, or choose another one: raidx set ARRAY parity.policy=NAME"
    )


class OwnPolicy:
    """The policy of *plugin* over the queues of an array; *broken* says why it is not asked."""

    def __init__(self, plugin: plugins.Plugin, role_of: RoleOf, queues: Queues) -> None:
        self.broken: str | None = None
        self._plugin = plugin
        self._choose: Callable[..., Any] = plugin.target
        self._role_of = role_of
        self._queues = queues

    def choose_now(self, _rmw: BandPlan | None, _rcw: BandPlan | None) -> None:
        """Return None: the choice depends on the stripe."""
        return

    def __call__(
        self, rmw: BandPlan | None, rcw: BandPlan | None, stripe: Stripe, cached: int = 0, /
    ) -> BandPlan:
        """Return the plan to be carried out in *stripe*."""
        if rmw is None or rcw is None or self.broken is not None:
            return traditional(rmw, rcw, stripe, cached)
        if not rmw.pre_reads_beside(cached) or not rcw.pre_reads_beside(cached):
            return traditional(rmw, rcw, stripe, cached)
        waiting = tuple(q.queue_length() if q is not None else 0 for q in self._queues())
        try:
            chosen = self._choose(
                self._roles(rmw, stripe, cached), self._roles(rcw, stripe, cached), waiting
            )
            if chosen not in (RMW, RCW):
                raise ValueError(f"it said {chosen!r:.40}, not {RMW!r} or {RCW!r}")
        except (Exception, SystemExit) as error:
            self.broken = plugins.one_line(error)
            log.error(
                "parity policy %r of package %s fails: %s; traditional decides from now on",
                self._plugin.name,
                self._plugin.origin,
                self.broken,
            )
            return traditional(rmw, rcw, stripe, cached)
        return rmw if chosen == RMW else rcw

    def _roles(self, plan: BandPlan, stripe: Stripe, cached: int) -> tuple[int, ...]:
        return tuple(self._role_of(stripe, cell) for cell in cells_of(plan.read_mask & ~cached))


class Policies:
    """The parity policy in use of an array, and BPU, which has settings while it is not.

    The journal asks it by which plan the parity of logged data follows.
    """

    __slots__ = ("_count_plan", "_queues", "_role_of", "bpu", "current")

    def __init__(
        self,
        role_of: RoleOf,
        queues: Queues,
        clock: Callable[[], float],
        count_plan: Callable[[str, int, int], None],
    ) -> None:
        self._role_of = role_of
        self._queues = queues
        self._count_plan = count_plan
        self.bpu = BpuPolicy(role_of, queues, clock)
        self.current: Policy = traditional

    def use(self, name: str) -> None:
        """Let the policy *name* choose the plans of partial writes. Raises PluginError."""
        if name == "bpu":
            self.current = self.bpu
            self.bpu.start()
        else:
            self.current = POLICIES.get(name) or OwnPolicy(
                plugins.load(plugins.POLICY_GROUP, name), self._role_of, self._queues
            )
            self.bpu.stop()

    def fixed(self, plans: Plans) -> BandPlan | None:
        """Return the choice for all stripes; None if the policy weighs the queues of each."""
        if isinstance(self.current, BpuPolicy):
            return self.current.choose_now(*plans)
        return self.current(*plans, Stripe(0))

    def choose(self, plans: Plans, stripe: Stripe) -> BandPlan:
        return self.current(*plans, stripe)

    def count(self, plan: BandPlan, bands: int) -> None:
        self._count_plan(plan.kind, len(plan.reads), bands)
