"""The tuner's plan: which chunks should move (the raidx paper, sections IV and V.A).

A plan is judged by a throughput model. Every member m has a demand D_m: the accesses a second of
its chunks times what each costs it (speeds.py). N requests are under way at a time, as the queues
show that requests find on arrival. The expected time of a request is

    (sum of latencies + (N - 1) * sum(D_m^2) / sum(D_m)) / accesses

the first step of mean value analysis: it meets the N - 1 other requests where demands are. With one
request at a time speed alone counts, and the fastest member is best. With many, demands should be
equal: three members in parallel beat the fastest one alone, and a slow member that is idle helps.

Chunks that were used only once are as many as the accesses that will go to others like them (the
estimate of Good and Turing). They do not move, but the members serve them: without their demands a
disk full of cold chunks seems idle, and keeps hot ones.

    most frequently used chunks, hottest first; equally hot ones in the order of the image
        chunks that are read in order beside each other: as one run, into places in order
        the member that shortens the expected time most:
            free chunks there?          move
            else, in a sample of its chunks, those used half as often or less?   exchange
    nothing found: what is read in order goes to one disk where that is sooner (gather.py)

An exchange is judged with what the other chunk costs where it goes. A chunk in a run costs a disk
the transfer, and its share of the positionings that its file needs there.

A move must shorten the time by at least `MARGIN` of the part that its chunks have in it, and pay
for itself within a day. The other parts of a stream stay where they are when a run moves, so that
each of its chunks costs a seek there and one back. Therefore disks keep a sequential stream that
they serve well, and an SSD may take it. Two chunks of a bundle never share a member.

The paper groups the disks by speed and queue, L to a group, and moves a chunk to a faster group.
Here a group is the members of like speed, as many as there are: what was measured of them is taken
together, because they differ by their requests only. The queues enter by the demands. So a chunk
moves to a faster group, or within its group to even out the demands.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.access_stats import INTERVAL_MAX, RUN_HALF, TICKS_A_SECOND, AccessStats
from raidx_fuse.jobs.tuner.gather import Used, gather, positionings
from raidx_fuse.jobs.tuner.places import PlannedPlaces
from raidx_fuse.jobs.tuner.speeds import (
    PAID_BACK_S,
    SEEK_S,
    Costs,
    Demands,
    MemberLoad,
    Share,
    Use,
    costs_of,
    mean_costs,
    use_of,
)
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.planning.allocate import BLOCK_CELLS
from raidx_fuse.store.chunk_table import Move

MARGIN = 0.5  # of the time that the moved chunks take; uses are counted, and counts fluctuate
RESPONSE_STEP_S = 20e-6  # RAM members differ by microseconds and noise, which no move is worth
MARGIN_MAX = 1e3  # moves were undone again and again: nothing moves any more
ALIKE = 1.15  # times as long for a random access; equal members differ by a tenth, under load
FAR = 1.5  # times the usual positioning: a moved chunk lies far from what is used with it
FASTER = 0.6  # a disk takes chunks only of slower ones: what equal ones gain, longer seeks cost
MISSES_MAX = 32  # failed attempts from one member; later candidates are used less themselves
HOTTEST_MAX = 4096  # cells considered in one plan
RUN_MAX = 32  # chunks that move as one run


@dataclass(frozen=True, slots=True)
class Step:
    """One move, or an exchange of two chunks."""

    moves: tuple[Move, ...]
    source: Role
    target: Role


@dataclass(slots=True)
class Plan:
    """*steps*, best first; *mean_s*, *after_s*: expected time of a request before and after.

    *groups* of members of like speed, the fastest first; *costs_s* of a random access by role.
    """

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
    """Plans moves of the cells of *layout* from the access statistics *access*.

    *margin* is `MARGIN`, and more after moves that turned out to be wrong; cells in *pinned* do not
    move for now.
    """

    def __init__(self, layout: BundleLayout, access: AccessStats, seed: int = 0) -> None:
        self.layout = layout
        self.access = access
        self.margin = MARGIN
        self.pinned: set[int] = set()
        self._random = random.Random(seed)
        self._own_s: dict[Role, float] = {}  # of a random access, not of the group

    def plan(self, loads: Sequence[MemberLoad], write_share: float, limit: int) -> Plan:
        """Return a plan of up to *limit* steps that pay now; a run is planned as a whole."""
        layout, access = self.layout, self.access
        access.digest()
        use = use_of(loads, write_share, layout.chunk_bytes)
        costs, groups = grouped(loads, use)
        self._own_s = {Role(load.role): costs_of(load, use).latency_s for load in loads}
        plan = Plan(groups=groups, costs_s={role: cost.latency_s for role, cost in costs.items()})
        active = _used_twice(layout)
        homes = layout.disk[active]
        known = np.isin(homes, list(costs))
        active, homes = active[known], homes[known]
        if len(costs) < 2 or not len(active):
            return plan
        rates = TICKS_A_SECOND / access.intervals(active)
        in_run = self.in_runs(active)
        used = Used(active, rates, access.runs[active] >= RUN_HALF)
        finding = positionings(used, homes, layout.offset[active].astype(np.int64))
        busy_s, latency_s = dict.fromkeys(costs, 0.0), 0.0
        for role, cost in costs.items():
            singles = float(rates[(homes == role) & ~in_run].sum())
            ordered = (homes == role) & in_run
            runs_s = float((rates * (cost.run_s + finding * cost.seek_s))[ordered].sum())
            busy_s[role] = singles * cost.busy_s + runs_s
            latency_s += singles * cost.latency_s + runs_s
        total = float(rates.sum())
        once = access.used_once()
        unseen = total * len(once) / max(1, access.uses - len(once))
        once_ordered = access.runs[once] >= RUN_HALF
        each = unseen / max(1, len(once))
        for role, cost in costs.items():
            here = layout.disk[once] == role
            runs = each * float(np.count_nonzero(here & once_ordered))
            singles = each * float(np.count_nonzero(here & ~once_ordered))
            busy_s[role] += singles * cost.busy_s + runs * cost.run_s
            latency_s += singles * cost.latency_s + runs * cost.run_s
        total += unseen
        demands = Demands(busy_s, latency_s, sum(load.queue for load in loads))
        plan.mean_s = plan.after_s = demands.time_s() / total
        if demands.latency_s <= 0:  # the members take no time that could be measured
            return plan
        places = PlannedPlaces(layout, access, self.pinned, self._random, each)
        reading = grouped(loads, use.with_writes(0.0))[0]
        misses: dict[tuple[Role, bool], int] = {}
        hottest = _hottest(rates, active)
        for position, at in enumerate(hottest.tolist()):
            if len(plan.steps) >= limit:
                break
            cell, source, runs_here = int(active[at]), Role(int(homes[at])), bool(in_run[at])
            key = source, runs_here
            if misses.get(key, 0) >= MISSES_MAX or places.is_touched(cell):
                continue
            unit = [at]
            if runs_here:
                rest = hottest[position + 1 : position + RUN_MAX * layout.width * 2]
                unit += self._run(at, rest, active, homes, in_run, places)
            cells, rate = active[unit].tolist(), float(rates[unit].sum())
            less = _share(costs[source], rate, runs=runs_here, moved=False)
            targets = self._targets(source, costs)
            if runs_here:
                found_rate = float((rates * finding)[unit].sum())
                found_s = found_rate * costs[source].seek_s
                less = less[0] + found_s, less[1] + found_s
                # A chunk written once may be read often: reading it must not take longer.
                read_s = rate * reading[source].run_s + found_rate * reading[source].seek_s
                targets = [
                    role
                    for role in targets
                    if _share(reading[role], rate, runs=True, moved=True)[1] <= read_s
                ]
            found = self._best(
                cells, rate, source, less, costs, targets, demands, places, runs=runs_here
            )
            if found is None:
                misses[key] = misses.get(key, 0) + 1
                continue
            target, moves, demands = found
            places.take([move for pair in moves for move in pair])
            plan.steps += [Step(pair, source, target) for pair in moves]
            misses.clear()
        plan.after_s = demands.time_s() / total
        if layout.length == 1 and not plan.steps:  # else a bundle must keep its members apart
            sides = (reading, grouped(loads, use.with_writes(1.0))[0])
            passes = gather(used, costs, demands, places, limit, self.margin, sides)
            for moves, target, saved_s in passes:
                plan.steps += [Step(m, Role(int(layout.disk[m[0][0]])), target) for m in moves]
                plan.after_s -= saved_s / total
        return plan

    def _targets(self, source: Role, costs: dict[Role, Costs]) -> list[Role]:
        """Return the members that may take chunks of *source*."""
        limit_s = FASTER * self._own_s[source]
        return [
            role
            for role, cost in costs.items()
            if role != source and (cost.seek_s <= SEEK_S or self._own_s[role] <= limit_s)
        ]

    def _best(
        self,
        cells: list[int],
        rate: float,
        source: Role,
        less: Share,
        costs: dict[Role, Costs],
        targets: Sequence[Role],
        demands: Demands,
        places: PlannedPlaces,
        *,
        runs: bool,
    ) -> tuple[Role, list[tuple[Move, ...]], Demands] | None:
        """Return the best of *targets* for *cells*, moves and the demands then; None if none pays.

        *rate*: their accesses a second; *less*: what the source will not have to do any more.
        """
        found = []
        for target in targets:
            more = _share(costs[target], rate, runs=runs, moved=True)
            found.append((target, demands.moved(source, target, less, more)))
        for target, then in sorted(found, key=lambda each: each[1].time_s()):
            work_s = len(cells) * (costs[source].latency_s + costs[target].latency_s)
            if not self._pays(demands, then, less[0], rate, work_s):
                break
            moves = places.moves(cells, target, rate / len(cells))
            if moves is None:
                continue
            victims = [pair[1][0] for pair in moves if len(pair) > 1]
            if victims:  # they are used, too
                for in_order in (False, True):
                    back = sum(
                        places.rate_of(cell)
                        for cell in victims
                        if (self.access.runs[cell] >= RUN_HALF) is in_order
                    )
                    away = _share(costs[target], back, runs=in_order, moved=False)
                    here = _share(costs[source], back, runs=in_order, moved=True)
                    then = then.moved(target, source, away, here)
                if not self._pays(demands, then, less[0], rate, 2 * work_s):
                    continue
            return target, moves, then
        return None

    def _pays(self, now: Demands, then: Demands, part_s: float, rate: float, work_s: float) -> bool:
        """Return whether a step of *work_s* from *now* to *then* pays.

        *part_s*: the part that its chunks, used *rate* times a second, have in the latencies now.
        """
        now_s = now.time_s()
        gain_s = now_s - then.time_s()
        return (
            # Without a division: earlier steps may have left no latency that could be measured.
            gain_s * now.latency_s > self.margin * now_s * part_s
            and gain_s >= RESPONSE_STEP_S * rate
            and gain_s * PAID_BACK_S >= work_s
        )

    def in_runs(self, active: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of *active* are read in order, and follow or precede such a neighbour there.

        The neighbour on the member must be used, too: the end of a request for two chunks is read
        in order, but the disk that has it alone must find it.
        """
        layout = self.layout
        ordered = self.access.runs[active] >= RUN_HALF
        found = np.zeros(len(active), bool)
        near = 2 * layout.width * layout.length
        for role in np.unique(layout.disk[active[ordered]]).tolist():
            mine = np.flatnonzero(layout.disk[active] == role)
            mine = mine[np.argsort(layout.offset[active[mine]])]
            gap = np.diff(active[mine])
            beside = (np.diff(layout.offset[active[mine]].astype(np.int64)) == 1) & (gap > 0)
            joins = beside & (gap <= near) & ordered[mine[1:]]
            found[mine[1:]] |= joins
            found[mine[:-1]] |= joins & ordered[mine[:-1]]
        return found

    def _run(
        self,
        at: int,
        rest: NDArray[np.int64],
        active: NDArray[np.int64],
        homes: NDArray[np.uint8],
        in_run: NDArray[np.bool_],
        places: PlannedPlaces,
    ) -> list[int]:
        """Return those of the candidates *rest* that continue the run of candidate *at*."""
        unit: list[int] = []
        next_place = int(self.layout.offset[active[at]]) + 1
        for other in rest.tolist():
            if len(unit) + 1 == RUN_MAX:
                break
            cell = int(active[other])
            if homes[other] != homes[at] or int(self.layout.offset[cell]) != next_place:
                continue
            if not in_run[other] or places.is_touched(cell):
                break
            unit.append(other)
            next_place += 1
        return unit


def _share(cost: Costs, rate: float, *, runs: bool, moved: bool) -> Share:
    """Return what *rate* accesses a second take, of chunks in *runs* that stay or have *moved*."""
    if not runs:
        far_s = (FAR - 1) * cost.seek_s if moved else 0.0
        return rate * (cost.latency_s + far_s), rate * (cost.busy_s + far_s)
    # The chunks beside a moved one in the image are elsewhere: seeks there and back.
    taken_s = rate * (cost.run_s + (2 * cost.seek_s if moved else 0.0))
    return taken_s, taken_s


def _used_twice(layout: BundleLayout) -> NDArray[np.int64]:
    """Return the cells used at least twice, collected block by block to save memory."""
    parts = []
    for start in range(0, len(layout.interval), BLOCK_CELLS):
        block = layout.interval[start : start + BLOCK_CELLS]
        parts.append(np.flatnonzero((block > 0) & (block < INTERVAL_MAX)) + start)
    return np.concatenate(parts)


def grouped(loads: Sequence[MemberLoad], use: Use) -> tuple[dict[Role, Costs], list[list[Role]]]:
    """Return the costs by role, the same for a whole group, and the groups, the fastest first.

    A group is members that do as many operations at once, and take at most `ALIKE` times as long
    for one as the fastest of them.
    """
    single = {Role(load.role): costs_of(load, use) for load in loads}
    depths = {Role(load.role): load.depth for load in loads}
    groups: list[list[Role]] = []
    for role in sorted(single, key=lambda role: single[role].latency_s):
        limit_s = single[role].latency_s / ALIKE
        for group in groups:
            if depths[group[0]] == depths[role] and single[group[0]].latency_s >= limit_s:
                group.append(role)
                break
        else:
            groups.append([role])
    return {
        role: mean_costs([single[r] for r in group]) for group in groups for role in group
    }, groups


def _hottest(rates: NDArray[np.float64], cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indexes of the highest *rates*: by powers of two, the highest first, then cell."""
    count = min(HOTTEST_MAX, len(rates))
    top = np.argpartition(-rates, count - 1)[:count] if count else np.arange(0)
    heat = np.floor(np.log2(rates[top]))
    return top[np.lexsort((cells[top], -heat))]
