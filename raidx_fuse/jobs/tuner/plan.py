"""The tuner's plan: which chunks should move (the raidx paper, sections IV and V.A).

The cost of a member is the expected time of a request there: its measured service time for the
array's mix of reads and writes, times one more than the queue length that requests find on arrival.
If all queues are nearly empty, cost is speed alone and the fastest member is best. If that member
has a queue, a slower member without one may be better: it is under-used. Members are grouped by
cost, L to a group. Every planned move carries its part of the queue along, so a plan ends where
costs meet.

    most frequently used chunks, hottest first; when a plan had found nothing to do, only those
    whose interval has changed since
        on a member that costs at least twice as much as another one:
            a free chunk there?          move
            else, in a sample of the least used chunks there, one used half as often or less?
                                         exchange the two

A move must pay for itself within a day. Two chunks of a bundle never share a member. The gain is in
seconds of service per second.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.access_stats import CHANGED_MAX, INTERVAL_MAX, TICKS_A_SECOND, AccessStats
from raidx_fuse.layouts.numbers import MemberChunk, Role, stripe_and_cell
from raidx_fuse.layouts.placements.bundled import NOWHERE, BundleLayout
from raidx_fuse.layouts.planning.allocate import BLOCK_CELLS
from raidx_fuse.store.chunk_table import Move

COST_RATIO = 2.0
COST_STEP_S = 20e-6  # RAM members differ by microseconds and noise, which no move is worth
PAID_BACK_S = 86400.0  # a move, made in idle time, must save its own cost within a day
VICTIM_SAMPLE = 64
VICTIM_RATIO = 2.0
MISSES_MAX = 32  # failed searches for a less used chunk; later candidates are used less themselves
HOTTEST_MAX = 4096  # cells considered in one plan


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """Measurements of the member in *role*: service times, arrival-instant queue, channels."""

    role: Role
    read_s: float
    write_s: float
    queue: float
    depth: int

    def cost_s(self, write_share: float) -> float:
        """Return the expected time of a request in seconds; *write_share* of them are writes."""
        service_s = (1 - write_share) * self.read_s + write_share * self.write_s
        return service_s * (1 + self.queue / self.depth)


@dataclass(frozen=True, slots=True)
class Step:
    """One move, or an exchange of two chunks; *gain* in seconds of service per second.

    *queues* are the expected arrival-instant queues of source and target afterwards.
    """

    moves: tuple[Move, ...]
    source: Role
    target: Role
    gain: float
    queues: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True)
class Plan:
    """*steps*, best first; *mean_s*, *after_s*: mean service time of a request before and after."""

    steps: list[Step] = field(default_factory=list)
    mean_s: float = 0.0
    after_s: float = 0.0
    groups: list[list[Role]] = field(default_factory=list)
    costs_s: dict[Role, float] = field(default_factory=dict)

    @property
    def chunks(self) -> int:
        """The number of chunks that move."""
        return sum(len(step.moves) for step in self.steps)


class Planner:
    """Plans moves of the cells of *layout* from the access statistics *access*."""

    def __init__(self, layout: BundleLayout, access: AccessStats, seed: int = 0) -> None:
        self.layout = layout
        self.access = access
        self.pinned: set[int] = set()  # cells that must not move again for now
        self._random = random.Random(seed)
        # (source, target) pairs that paid when the last plan found nothing to do.
        self._surveyed: frozenset[tuple[int, int]] | None = None

    def survey(self) -> None:
        """Consider all chunks in the next plan, not only those whose use has changed."""
        self._surveyed = None

    def plan(self, loads: Sequence[MemberLoad], write_share: float, limit: int) -> Plan:
        """Return a plan of up to *limit* steps that pay now."""
        layout, access = self.layout, self.access
        access.digest()
        costs = {load.role: load.cost_s(write_share) for load in loads}
        depths = {load.role: load.depth for load in loads}
        services = {load.role: costs[load.role] / (1 + load.queue / load.depth) for load in loads}
        queues = {load.role: load.queue for load in loads}
        order = sorted(costs, key=lambda role: costs[role])
        if not order:
            return Plan()
        plan = Plan(groups=_grouped(order, layout.length), costs_s=dict(costs))
        pays = frozenset(
            (source, target)
            for source in order
            for target in order
            if _is_better(costs[target], costs[source])
        )
        active = _used_twice(layout)
        if not pays or not len(active):
            return plan
        rates = TICKS_A_SECOND / access.intervals(active)
        homes = layout.disk[active]
        total = float(rates.sum())
        carried = {role: float(rates[homes == role].sum()) for role in costs}
        plan.mean_s = sum(carried[role] * costs[role] for role in costs) / total
        planned = _Planned(layout, self.pinned)
        misses = dict.fromkeys(costs, 0)
        gained = 0.0
        considered = np.arange(len(active))
        if pays == self._surveyed and len(access.changed) < CHANGED_MAX:  # only these may pay
            changed = np.fromiter(access.changed, np.int64, len(access.changed))
            considered = considered[np.isin(active, changed)]
        for at in considered[_hottest(rates[considered])].tolist():
            if len(plan.steps) >= limit:
                break
            cell, rate, source = int(active[at]), float(rates[at]), Role(int(homes[at]))
            if planned.is_touched(cell) or source not in costs:
                continue
            for target in sorted(costs, key=lambda role: costs[role]):
                better_s = costs[source] - costs[target]
                if not _is_better(costs[target], costs[source]):
                    break
                if misses[target] >= MISSES_MAX or target in planned.roles(cell // layout.length):
                    continue
                found = self._step(cell, rate, target, planned)
                if found is None:
                    misses[target] += 1
                    continue
                moves, net_rate = found
                work_s = len(moves) * (costs[source] + costs[target])
                if net_rate * better_s * PAID_BACK_S < work_s:
                    continue
                planned.take(moves)
                gained += net_rate * better_s
                # The queue moves with its requests, as far as the target can serve them.
                part = net_rate / carried[source] if carried[source] else 0.0
                shift = queues[source] * min(1.0, part)
                queues[source] -= shift
                queues[target] += shift * services[target] / services[source]
                carried[source] -= net_rate
                carried[target] += net_rate
                for role in (source, target):
                    costs[role] = services[role] * (1 + queues[role] / depths[role])
                then = queues[source], queues[target]
                plan.steps.append(Step(moves, source, target, net_rate * better_s, then))
                break
        plan.after_s = max(0.0, plan.mean_s - gained / total)
        if not plan.steps:
            self._surveyed = pays
            access.changed.clear()
        return plan

    def _step(
        self, cell: int, rate: float, target: Role, planned: _Planned
    ) -> tuple[tuple[Move, ...], float] | None:
        """Return (moves that bring *cell* to *target*, request rate that changes sides) or None."""
        layout = self.layout
        chunk = planned.free_chunk(target)
        if chunk is not None:
            return ((cell, target, chunk),), rate
        index = layout.cells_of(target)
        source = planned.place(cell)
        places = [self._random.randrange(len(index)) for _ in range(VICTIM_SAMPLE)]
        victims = np.unique(index[places])
        victims = victims[victims != NOWHERE]
        victims = np.array(
            [
                v
                for v in victims.tolist()
                if not planned.is_touched(v) and source[0] not in planned.roles(v // layout.length)
            ],
            np.int64,
        )
        if not len(victims):
            return None
        rates = TICKS_A_SECOND / self.access.intervals(victims)
        least = int(rates.argmin())
        victim, its_rate = int(victims[least]), float(rates[least])
        if its_rate * VICTIM_RATIO > rate:
            return None
        place = planned.place(victim)
        return ((cell, *place), (victim, *source)), rate - its_rate


class _Planned:
    """The chunk table as it will be after the steps planned so far."""

    def __init__(self, layout: BundleLayout, pinned: set[int]) -> None:
        self.layout = layout
        self._pinned = pinned
        self._places: dict[int, tuple[Role, MemberChunk]] = {}
        self._free: dict[Role, list[MemberChunk]] = {}

    def is_touched(self, cell: int) -> bool:
        """Return whether *cell* is part of a planned move or is pinned."""
        return cell in self._places or cell in self._pinned

    def place(self, cell: int) -> tuple[Role, MemberChunk]:
        """Return (role, chunk) of *cell*."""
        known = self._places.get(cell)
        return known or self.layout.place(*stripe_and_cell(cell, self.layout.length))

    def roles(self, bundle: int) -> set[Role]:
        """Return the roles that *bundle* lies on."""
        first = bundle * self.layout.length
        return {self.place(first + column)[0] for column in range(self.layout.length)}

    def free_chunk(self, role: Role) -> MemberChunk | None:
        """Return a chunk of *role* that is free and not yet a target, None if there is none."""
        if role not in self._free:
            self._free[role] = self.layout.free_chunks(role)[::-1].tolist()
        return self._free[role][-1] if self._free[role] else None

    def take(self, moves: Sequence[Move]) -> None:
        """Record *moves* as planned."""
        for cell, role, chunk in moves:
            self._places[cell] = (role, chunk)
            free = self._free.get(role)
            if free and free[-1] == chunk:
                free.pop()


def _used_twice(layout: BundleLayout) -> NDArray[np.int64]:
    """Return the cells used at least twice, collected block by block to save memory."""
    parts = []
    for start in range(0, len(layout.interval), BLOCK_CELLS):
        block = layout.interval[start : start + BLOCK_CELLS]
        parts.append(np.flatnonzero((block > 0) & (block < INTERVAL_MAX)) + start)
    return np.concatenate(parts)


def _is_better(cost_s: float, than_s: float) -> bool:
    """Return whether *cost_s* is so much less than *than_s* that a move pays."""
    return than_s - cost_s >= COST_STEP_S and than_s >= COST_RATIO * cost_s


def _grouped(order: list[Role], length: int) -> list[list[Role]]:
    """Return the members from the cheapest on, *length* to a group; the last may be shorter."""
    return [order[at : at + length] for at in range(0, len(order), length)]


def _hottest(rates: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indexes of the highest *rates*, highest first."""
    count = min(HOTTEST_MAX, len(rates))
    top = np.argpartition(-rates, count - 1)[:count] if count else np.arange(0)
    return top[np.argsort(-rates[top], kind="stable")]
