"""Files on disks with heads: what is read in order is put together where one disk is sooner.

A *pass* is one use of a chunk and of those behind it that are used in order, a file for example.
Where it lies on several disks, they serve it side by side, but each must find its part first:

    time of a pass = max over disks (pieces on it * positioning + chunks on it * transfer)

A slow disk that holds a third of each file makes all of them wait for its heads. If the quickest
disk serves all of the pass sooner than that, it gets it, in order, in places beside each other;
what it has already moves along. Two equal disks keep what they share: one alone takes longer. So do
long streams, which find their places seldom.

Concurrent passes wait for one another, which the demands of plan.py measure: they must not get
worse. So when the quickest disk is busy, the others keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.jobs.tuner.places import PlannedPlaces
from raidx_fuse.jobs.tuner.speeds import PAID_BACK_S, SEEK_S, Costs, Demands
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.store.chunk_table import Move

PASS_MIN = 4  # chunks: fewer may be one request, or a chance
PASS_MAX = 256  # chunks: longer streams find their places so seldom that nothing is gained


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a pass on one member: *pieces* that it must find, of *chunks* in all."""

    pieces: int
    chunks: int

    def time_s(self, cost: Costs) -> float:
        """Return what the part takes a member of *cost*."""
        return self.pieces * cost.seek_s + self.chunks * cost.run_s


class Pass(NamedTuple):
    """The chunks from *first* to before *end* of the used cells, and their *parts* by role."""

    first: int
    end: int
    parts: dict[Role, Part]

    def time_s(self, costs: dict[Role, Costs]) -> float:
        """Return how long one pass takes: its members work side by side."""
        return max(part.time_s(costs[role]) for role, part in self.parts.items())


class Used(NamedTuple):
    """The used *cells*, ascending, with accesses a second, and whether those are *in_order*."""

    cells: NDArray[np.int64]
    rates: NDArray[np.float64]
    in_order: NDArray[np.bool_]


def passes(used: Used, homes: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Iterator[Pass]:
    """Yield the passes among the *used* cells; each begins with one that is not in order.

    *homes*, *offsets*: where each cell lies.
    """
    cells = used.cells
    goes_on = np.zeros(len(cells), bool)
    goes_on[1:] = used.in_order[1:] & (np.diff(cells) == 1)
    begins = np.flatnonzero(~goes_on)
    for first, end in zip(begins.tolist(), [*begins[1:].tolist(), len(cells)], strict=True):
        if not PASS_MIN <= end - first <= PASS_MAX:
            continue
        parts = {}
        for role in np.unique(homes[first:end]).tolist():
            at = np.sort(offsets[first:end][homes[first:end] == role])
            parts[Role(role)] = Part(1 + int(np.count_nonzero(np.diff(at) > 1)), len(at))
        yield Pass(first, end, parts)


def positionings(
    used: Used, homes: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return how often heads must find each of the *used* cells in a pass: its share of a piece.

    The first chunk of a pass is an access by itself, which counts the one for its piece.
    """
    shares = np.zeros(len(used.cells))
    for first, end, parts in passes(used, homes, offsets):
        for role, part in parts.items():
            pieces = part.pieces - int(role == homes[first])
            shares[first:end][homes[first:end] == role] = pieces / part.chunks
    return shares


def best_alone(chunks: int, costs: dict[Role, Costs]) -> tuple[Role, float]:
    """Return the member of *costs* that serves a pass of *chunks* soonest alone, and its seconds.

    >>> slow, fast = Costs(0.01, 0.01, 0.001, 0.009), Costs(0.005, 0.005, 0.0005, 0.0045)
    >>> best_alone(16, {Role(0): slow, Role(1): fast})
    (1, 0.0125)
    """
    times = {role: Part(1, chunks).time_s(cost) for role, cost in costs.items()}
    role = min(times, key=lambda each: times[each])
    return role, times[role]


def gather(
    used: Used,
    costs: dict[Role, Costs],
    demands: Demands,
    places: PlannedPlaces,
    limit: int,
    margin: float,
    sides: Sequence[dict[Role, Costs]] = (),
) -> Iterator[tuple[list[tuple[Move, ...]], Role, float]]:
    """Yield the moves of passes that pay, at least *limit* of them if so many do.

    Each with its target and the seconds a second that it saves. *demands*: those of the members
    now. A pass moves if it takes less time by at least half of *margin*, by *costs* and by those of
    all *sides*: reads and writes, for what is written once may be read often.
    """
    heads = {role: cost for role, cost in costs.items() if cost.seek_s > SEEK_S}
    if len(heads) < 2:
        return
    layout = places.layout
    homes, offsets = layout.disk[used.cells], layout.offset[used.cells].astype(np.int64)
    found = [
        (float(used.rates[each.first : each.end].mean()), each)
        for each in passes(used, homes, offsets)
        if each.parts.keys() <= heads.keys()
    ]
    now = demands
    for rate, each in sorted(found, key=lambda pair: -pair[0]):
        cells = used.cells[each.first : each.end].tolist()
        now_s = each.time_s(heads)
        target, then_s = best_alone(len(cells), heads)
        busy_s = dict(now.busy_s)
        for role, part in each.parts.items():
            busy_s[role] = max(0.0, busy_s[role] - rate * part.time_s(heads[role]))
        busy_s[target] += rate * then_s
        then = Demands(busy_s, now.latency_s - rate * (now_s - then_s), now.others)
        work_s = 2 * sum(part.chunks * heads[r].latency_s for r, part in each.parts.items())
        if (
            any(
                Part(1, len(cells)).time_s(side[target]) > (1 - margin / 2) * each.time_s(side)
                for side in (costs, *sides)
            )
            or then.time_s() > now.time_s()
            or rate * (now_s - then_s) * PAID_BACK_S < work_s
            or any(map(places.is_touched, cells))
        ):
            continue
        moves = places.moves(cells, target, rate, together=True)
        if moves is None:
            continue
        places.take([move for pair in moves for move in pair])
        yield moves, target, now.time_s() - then.time_s()
        now = then
        limit -= len(moves)
        if limit <= 0:
            return
