"""The map of the members' chunks: how full and how hot each part of each member is.

The places of a member are divided into equal parts, in rising order. For each part the map says
how many of its places hold content that can be read, how many hold content that is lost, and how
often they are used. So a rebuild, a growth and a tuning are seen: the parts of a member fill.

The answer is small whatever the size of the array, and so is the work: of a large array, a sample
of the stripes is looked at, one of each step of stripes, at places that a seed chooses. The work is
repeated only after `REST` times as long as it took: watching takes at most 1 % of the daemon's
time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.access_stats import FADING_S as HOUR_S
from raidx_fuse.engine.access_stats import (
    TICKS_A_SECOND,
    Heat,
    PlaceHeat,
)
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.numbers import (
    CellIndex,
    MemberChunk,
    Role,
    Stripe,
    cell_range,
    role_range,
)
from raidx_fuse.layouts.placements.layout import Layout

PARTS_MAX = 256  # of a member
PARTS_ALL_MAX = 8192  # of all members
REST = 100
SAMPLED_CELLS = 1 << 14
LOOKED_UP_CELLS = 1 << 11  # of layouts whose chunks are looked up one by one: 1 us each
HOT_CELLS_MAX = 1 << 16

WATCHED_S = 10.0
FADING_S = 2.0
RATE_MIN = 0.005  # accesses a second that are shown
PICKED_MAX = 256  # regions of a look whose places are looked up: some 3 us each

Numbers = NDArray[np.int64]
Shares = NDArray[np.float64]


def heat_of(context: ArrayContext) -> Heat:
    """Return how often each place of the image was used lately, for any layout."""
    access = context.traffic.heat
    if access is not None:
        return access.look()
    none = np.zeros(1)
    return Heat(context.layout.chunks, none, none, none, [0.0] * context.layout.width, 1.0)


class RecentUses:
    """Which places of an array of fixed layout were used in the last seconds.

    `PlaceHeat` counts how often each region of the image was used in the last hour. Two looks at
    its counts give what was used between them; that fades with the time constant `FADING_S`. A look
    after more than `WATCHED_S` begins anew.
    """

    def __init__(self, context: ArrayContext) -> None:
        self._context = context
        self._chance = random.Random(0)
        self._looked_s = -WATCHED_S
        self._bits = 0
        self._counts = self._rates = np.zeros((2, 0))  # reads, writes of each region

    def look(self, heat: PlaceHeat) -> tuple[Numbers, Numbers, Shares]:
        """Return roles, member chunks and accesses per second of the places used lately."""
        now_s = self._context.member_set.clock()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        before, of_bits = self._counts, self._bits
        self._bits, self._counts = heat.counts()
        are_alike = (before.shape, of_bits) == (self._counts.shape, self._bits)
        if not are_alike or passed_s > WATCHED_S:  # the image has grown, or nobody looked
            self._rates = np.zeros(self._counts.shape)
        else:
            new = self._counts - before * np.exp(-passed_s / HOUR_S)
            self._rates *= np.exp(-passed_s / FADING_S)
            self._rates += np.where(new > 0.5, new, 0.0) / FADING_S  # whole accesses, no rounding
        used = np.argwhere(self._rates > RATE_MIN)
        picked = used[:: max(1, -(-len(used) // PICKED_MAX))]
        found: list[tuple[int, int]] = []
        rates: list[float] = []
        for is_write, region in picked.tolist():
            chunk = (region << self._bits) + self._chance.randrange(1 << self._bits)
            places = self._places(chunk, bool(is_write))
            found += places
            rates += [float(self._rates[is_write, region]) * len(used) / len(picked)] * len(places)
        roles, chunks = np.array(found, np.int64).reshape(-1, 2).T
        return roles, chunks, np.array(rates)

    def _places(self, chunk: int, is_write: bool) -> list[tuple[Role, MemberChunk]]:
        """Return role and member chunk of each place that a use of *chunk* uses.

        A write uses the parities of its chunk, too. Any copy may have answered a read.
        """
        layout, code = self._context.layout, self._context.code
        if chunk >= layout.chunks:
            return []  # the image has become smaller, or its last region is not full
        stripe, cell = layout.locate(chunk)
        cells = [cell]
        if is_write or code.is_copies:
            for parity, support in enumerate(code.support):
                if support >> cell & 1:
                    cells.append(CellIndex(code.data_count + parity))
        return [layout.place(stripe, one) for one in cells]


class ChunkMap:
    """The map of one array for people to look at."""

    def __init__(self, context: ArrayContext) -> None:
        self._context = context
        self._recent = RecentUses(context)
        self._kept: dict[str, Any] = {}
        self._kept_for = 0  # parts
        self._again_s = 0.0

    async def chunk_map(self, parts: int = 64) -> dict[str, Any]:
        """Return the map with up to *parts* parts of each member, fewer of many members.

        Raises UsageError for a number of parts that is out of range.
        """
        if not 1 <= parts <= PARTS_MAX:
            raise UsageError(f"{parts} parts of a member are out of range: take 1 to {PARTS_MAX}")
        clock = self._context.member_set.clock
        begin_s = clock()
        if parts != self._kept_for or begin_s >= self._again_s:
            self._kept, self._kept_for = _survey(self._context, self._recent, parts), parts
            end_s = clock()
            self._again_s = end_s + REST * (end_s - begin_s)
        return self._kept


def _survey(context: ArrayContext, recent: RecentUses, parts: int) -> dict[str, Any]:
    layout, width = context.layout, context.layout.width
    chunks = np.array([layout.chunks_of(role) for role in role_range(0, width)], np.int64)
    each = np.minimum(max(1, min(parts, PARTS_ALL_MAX // width)), chunks)  # parts of each role
    last = int(each.max())

    def parts_of(roles: Numbers, places: Numbers, weights: Shares | None = None) -> Shares:
        """Return how many of the places lie in each part of each role, (width, last)."""
        inside = (roles >= 0) & (roles < width)
        inside[inside] &= places[inside] < chunks[roles[inside]]
        roles, places = roles[inside], places[inside]
        index = roles * last + places * each[roles] // chunks[roles]
        weights = None if weights is None else weights[inside]
        found = np.bincount(index, weights, minlength=width * last)
        return found.astype(np.float64).reshape(width, last)

    count = SAMPLED_CELLS if layout.contiguous else LOOKED_UP_CELLS
    step = -(-layout.stripes * len(context.code.cells) // count)
    written, lost = np.zeros((width, last)), np.zeros((width, last))
    for roles, places, is_lost in _cells(context, _sample(layout.stripes, step)):
        written += parts_of(roles[~is_lost], places[~is_lost])
        lost += parts_of(roles[is_lost], places[is_lost])
    uses = parts_of(*_uses(context, recent))
    members = []
    for role, number in enumerate(each.tolist()):
        # How many places each part has: part i begins at place i * chunks / parts, rounded up.
        edges = -(-np.arange(number + 1) * chunks[role] // max(number, 1))
        room = np.maximum(np.diff(edges), 1) / step
        members.append(
            {
                "role": role,
                "chunks": int(chunks[role]),
                "written_percent": _percent(written[role, :number] / room),
                "lost_percent": _percent(lost[role, :number] / room),
                "accesses_per_s": np.round(uses[role, :number], 2).tolist(),
            }
        )
    return {"members": members, "sampled_ratio": round(1 / step, 6)}


def _percent(shares: Shares) -> list[int]:
    """Return shares of 1 as whole percent; 0 and 100 mean none and all."""
    whole = np.clip(np.round(shares * 100), 0, 100)
    whole[(whole == 0) & (shares > 0)] = 1
    whole[(whole == 100) & (shares < 1)] = 99
    found: list[int] = whole.astype(int).tolist()
    return found


def _sample(stripes: int, step: int) -> Numbers:
    """Return one stripe of every *step* stripes: all of them if *step* is 1."""
    first = np.arange(0, stripes, step, dtype=np.int64)
    if step == 1:
        return first
    chance = random.Random(0)  # an even step would meet the same phase of the rotation each time
    return np.minimum(first + [chance.randrange(step) for _ in range(len(first))], stripes - 1)


def _cells(
    context: ArrayContext, stripes: Numbers
) -> Iterator[tuple[Numbers, Numbers, NDArray[np.bool_]]]:
    """Yield roles, member chunks and "is lost" of the written cells of *stripes*.

    A parity is written if one of the cells is that it protects.
    """
    layout, code, member_set = context.layout, context.code, context.member_set
    data = [
        context.written.is_written_many(_logical(layout, stripes, cell))
        for cell in cell_range(0, code.data_count)
    ]
    parities = [
        np.any([data[cell] for cell in range(len(data)) if support >> cell & 1], axis=0)
        for support in code.support
    ]
    for cell, is_written in enumerate((*data, *parities)):
        held = stripes[is_written]
        roles, places = layout.places(held, CellIndex(cell))
        is_lost = np.zeros(len(held), np.bool_)
        for role in member_set.lost:
            beyond = held >= member_set.watermarks.get(role, Stripe(0))
            is_lost |= (roles == role) & beyond
        yield roles, places, is_lost


def _logical(layout: Layout, stripes: Numbers, cell: CellIndex) -> Numbers:
    if layout.contiguous:
        return stripes * layout.code.data_count + cell
    return np.array([layout.logical(stripe, cell) for stripe in stripes.tolist()], np.int64)


def _uses(context: ArrayContext, recent: RecentUses) -> tuple[Numbers, Numbers, Shares]:
    """Return roles, member chunks and accesses per second of the places in use."""
    access = context.traffic.by_chunk
    if access is not None:
        layout = access.layout
        access.digest()
        known = np.flatnonzero(layout.interval[: layout.cells])
        each = -(-len(known) // HOT_CELLS_MAX) or 1
        known = known[::each]
        rates = each * TICKS_A_SECOND / access.intervals(known)
        return layout.disk[known].astype(np.int64), layout.offset[known].astype(np.int64), rates
    assert context.traffic.by_region is not None
    return recent.look(context.traffic.by_region)
