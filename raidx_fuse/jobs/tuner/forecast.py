"""What a raidx layout would gain for a load, by the model with which the tuner plans (plan.py).

The image is laid out once more in memory, on members of the same sizes, in chunks as large as the
regions whose heat is known. The planner itself then tunes that table, round by round, as it would
in idle time. The expected time of an access is computed for the present layout, for the raidx
layout as it is made, and for the tuned one, with the speeds that were measured.

A chunk that is one of several copies is read from any of them: the reads of each set of members are
shared among them in the way that takes least time, as `Reader` does when it asks the copy that
should answer first. *in turn* is what equal shares would take.

The table is tuned for one half of the accesses, and judged by the other half. Regions larger than a
chunk hide what is hot in them, so the gain is then rather larger than stated. The cost of moving
the content is not included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import trio
from numpy.typing import NDArray

from raidx_fuse.engine.access_stats import INTERVAL_MAX, TICKS_A_SECOND, AccessStats, Heat
from raidx_fuse.jobs.tuner.plan import Planner
from raidx_fuse.jobs.tuner.speeds import Costs, Demands, MemberLoad, costs_of, use_of
from raidx_fuse.layouts.numbers import CellIndex, Role
from raidx_fuse.layouts.placements.bundled import KINDS, TURNS, BundleLayout, bundle_code
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.allocate import maximum

SAMPLES = 8  # places of a region that are looked up
ROUNDS_MAX = 256
STEPS_A_ROUND = 64  # some 25 ms
SHARES = 64  # the reads of copies are shared out in so many parts
SEEN_TWICE = 1.5  # accesses, some of which have faded; one may have been the only one
FITS = 0.98  # of the image; a table and spare chunks take some of the members

Rates = NDArray[np.float64]


@dataclass(slots=True)
class Traffic:
    """Accesses a second, (at random, in order): *reads* by the roles that have a copy, *writes*."""

    reads: dict[tuple[int, ...], Rates] = field(default_factory=dict)
    writes: dict[int, Rates] = field(default_factory=dict)

    def read(self, roles: tuple[int, ...], rates: Rates) -> None:
        """Add reads that any of *roles* can answer."""
        self.reads[roles] = self.reads.get(roles, np.zeros(2)) + rates

    def write(self, roles: Iterable[int], rates: Rates) -> None:
        """Add writes that each of *roles* takes part in."""
        for role in roles:
            self.writes[role] = self.writes.get(role, np.zeros(2)) + rates


@dataclass(frozen=True, slots=True)
class Forecast:
    """What *layout* with bundles of *length* would make of the load.

    *made_ms*, *tuned_ms*: the expected time of an access as it is made, and when it is tuned.
    """

    layout: str
    length: int
    image_bytes: int
    made_ms: float
    tuned_ms: float
    chunks_moved: int


class Model:
    """The throughput model: *loads* are the measured members, *heat* what users ask for."""

    def __init__(self, loads: Sequence[MemberLoad], heat: Heat, chunk_bytes: int) -> None:
        self.loads = loads
        self.heat = heat
        self.chunk_bytes = chunk_bytes
        use = use_of(loads, heat.write_share, chunk_bytes)
        self._reading: dict[int, Costs] = {}
        self._writing: dict[int, Costs] = {}
        for load in loads:
            self._reading[load.role] = costs_of(load, use.with_writes(0.0))
            self._writing[load.role] = costs_of(load, use.with_writes(1.0))
        self.others = sum(load.queue for load in loads)
        self.total = float(heat.total.sum())

    def rates_of(self, region: int) -> tuple[Rates, Rates]:
        """Return the reads and the writes of *region*, each (at random, in order)."""
        heat = self.heat
        total = heat.reads[region] + heat.writes[region]
        ordered = min(1.0, heat.in_order[region] / total) if total else 0.0
        parts = np.array([1 - ordered, ordered])
        return heat.reads[region] * parts, heat.writes[region] * parts

    def access_ms(self, traffic: Traffic, *, in_turn: bool = False) -> float:
        """Return the expected time of an access; *in_turn*: copies are read in equal shares."""
        demands = Demands(dict.fromkeys(map(Role, self._reading), 0.0), 0.0, self.others)
        for role, rates in traffic.writes.items():
            demands = _with(demands, role, rates, self._writing[role])
        for roles, rates in traffic.reads.items():
            if len(roles) == 1:
                demands = _with(demands, roles[0], rates, self._reading[roles[0]])
        shared = [(rates, roles) for roles, rates in traffic.reads.items() if len(roles) > 1]
        for rates, roles in sorted(shared, key=lambda each: -float(each[0].sum())):
            for number in range(len(roles) if in_turn else SHARES):
                part = rates / (len(roles) if in_turn else SHARES)
                if in_turn:
                    demands = _with(demands, roles[number], part, self._reading[roles[number]])
                    continue
                options = [_with(demands, role, part, self._reading[role]) for role in roles]
                demands = min(options, key=Demands.time_s)
        return 1e3 * demands.time_s() / self.total


def _with(demands: Demands, role: int, rates: Rates, cost: Costs) -> Demands:
    """Return *demands* with *rates* (at random, in order) of accesses more for *role*."""
    single, run = float(rates[0]), float(rates[1])
    busy_s = dict(demands.busy_s)
    busy_s[Role(role)] += single * cost.busy_s + run * cost.run_s
    latency_s = demands.latency_s + single * cost.latency_s + run * cost.run_s
    return Demands(busy_s, latency_s, demands.others)


def traffic_of(layout: Layout, model: Model, region_chunks: int) -> Traffic:
    """Return the traffic of the members of *layout*; a region of the heat is *region_chunks*."""
    heat, code, traffic = model.heat, layout.code, Traffic()
    for region in np.flatnonzero(heat.total).tolist():
        first = region * region_chunks
        last = min(first + region_chunks, layout.chunks)
        chunks = range(first, last, max(1, (last - first) // SAMPLES))
        reads, writes = model.rates_of(region)
        for chunk in chunks:
            stripe, cell = layout.locate(chunk)
            cells = (cell, *map(CellIndex, code.affects[cell]))
            roles = tuple(layout.place(stripe, each)[0] for each in cells)
            has_it = tuple(sorted(roles)) if code.is_copies else roles[:1]
            traffic.read(has_it, reads / len(chunks))
            traffic.write(roles, writes / len(chunks))
    return traffic


def candidates(tolerance: int, width: int) -> list[tuple[str, int]]:
    """Return the raidx layouts, and lengths of bundles, that tolerate *tolerance* losses."""
    found = []
    for name, (_build, shortest) in KINDS.items():
        lengths = {shortest, width - 1, width} if name == "raidx-parity" else {shortest}
        if name == "raidx-copy":
            lengths |= {tolerance + 1}
        for length in sorted(lengths):
            if shortest <= length <= width and bundle_code(name, length).tolerance >= tolerance:
                found.append((name, length))
    return found


async def forecast(
    name: str,
    length: int,
    model: Model,
    planned: Heat,
    chunks: Mapping[int, int],
    image_bytes: int,
) -> Forecast | None:
    """Return what layout *name* with bundles of *length* would make of the load of *model*.

    It is tuned for the heat *planned*. *chunks* are those of each member. Returns None if the image
    does not fit. Suspends between rounds.
    """
    heat, code = planned, bundle_code(name, length)
    counts = [chunks[role] for role in sorted(chunks)]
    bundles = maximum([max(0, count - 1) for count in counts], length)
    room_bytes = bundles * code.data_count * model.chunk_bytes
    if room_bytes < FITS * image_bytes:
        return None
    coarse = [-(-count // heat.region_chunks) + 1 for count in counts]
    needed = -(-len(heat.total) // code.data_count)
    while maximum([count - 1 for count in coarse], length) < needed:
        coarse = [count + 1 for count in coarse]
    turns = TURNS if length == 1 else None
    layout = BundleLayout(name, code, model.chunk_bytes, coarse, needed, None, turns)
    access = _access(layout, heat)
    made_ms = model.access_ms(traffic_of(layout, model, 1))
    planner, moved = Planner(layout, access), 0
    for _ in range(ROUNDS_MAX):
        plan = planner.plan(model.loads, heat.write_share, STEPS_A_ROUND)
        if not plan.steps:
            break
        for step in plan.steps:
            layout.move(step.moves)
            planner.pinned.update(cell for cell, _role, _chunk in step.moves)
        moved += plan.chunks
        await trio.lowlevel.checkpoint()
    tuned_ms = model.access_ms(traffic_of(layout, model, 1))
    return Forecast(name, length, room_bytes, made_ms, min(made_ms, tuned_ms), moved)


def _access(layout: BundleLayout, heat: Heat) -> AccessStats:
    """Return statistics of *layout* that say what `AccessStats` would, had it served the load."""
    code, length = layout.code, layout.length
    rates = np.zeros((layout.stripes, length))
    runs = np.zeros((layout.stripes, length))
    padding = layout.stripes * code.data_count - len(heat.total)
    data, writes, ordered = (
        np.pad(each, (0, padding)).reshape(layout.stripes, code.data_count)
        for each in (heat.total, heat.writes, heat.in_order)
    )
    shares = np.minimum(1.0, ordered / np.where(data > 0, data, 1.0))
    if code.is_copies:
        rates[:], runs[:] = data, shares
    else:
        rates[:, : code.data_count], runs[:, : code.data_count] = data, shares
        rates[:, code.data_count :] = writes.sum(axis=1, keepdims=True)
    flat = rates.reshape(-1)
    # The table knows intervals from 1/64 s on: of a busier load, the ratios count.
    flat = flat * min(1.0, TICKS_A_SECOND / max(float(flat.max()), 1e-9))
    ticks = TICKS_A_SECOND / np.where(flat > 0, flat, 1e-9)
    known = np.ceil(np.clip(ticks, 1, INTERVAL_MAX)).astype(np.uint16)
    known[rates.reshape(-1) * heat.seconds < SEEN_TWICE] = INTERVAL_MAX
    layout.interval[:] = np.where(flat > 0, known, 0)
    layout.last[:] = 1
    access = AccessStats(layout, [], lambda: 0.0)
    access.runs[:] = (255 * runs.reshape(-1)).astype(np.uint8)
    return access
