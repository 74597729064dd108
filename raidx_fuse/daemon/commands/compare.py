"""The command `compare`: where the content lay before the last growth, restripe or tuning, and now.

The daemon keeps what it takes to say so from the moment on at which the change begins, whether
somebody looks or not, until another change begins or the array is unmounted:

    layouts that compute places   the layout from before, which is a value
    layouts with a chunk table    the first place of each cell that has moved, of `MOVED_MAX` cells

The tuner also moves chunks at idle times, without a job: such moves add up to one change, called
tuning. Both sides are told for today's content and today's load: what differs is the places alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.arguments import Result
from raidx_fuse.engine.access_stats import TICKS_A_SECOND, AccessStats
from raidx_fuse.engine.explain import explain_stripe
from raidx_fuse.errors import UsageError
from raidx_fuse.job_words import words_of
from raidx_fuse.jobs.job import Job
from raidx_fuse.layouts.numbers import (
    CellIndex,
    MemberChunk,
    Role,
    Stripe,
    cell_range,
    stripe_and_cell,
)
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.stripe_plan import cells_of, unwritten_cells
from raidx_fuse.store.chunk_table import Move

MOVED_MAX = 1 << 15  # some 6 MB
SAMPLED_CELLS = 1 << 11  # looked up one by one: some 10 ms
STRIPES_MAX = 16
TUNING, COPIES = "tuning", "copies"

Place = tuple[Role, MemberChunk]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A shape of the array with no change under way: members by (role, path), stripes, layout."""

    layout: Layout
    stripes: int
    members: tuple[tuple[Role, str], ...]


class Comparison:
    """Notes the changes of *array* that move chunks; *compare* tells of the last one."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._context = array.context
        self._number = 0
        self._kind: str | None = None
        self._job: Job | None = None
        self._was: _Shape | None = None
        self._first: dict[int, Place] = {}  # cell -> where it was when the change began
        self._is_cut = False
        self._settled = self._shape()  # None: a change is under way since before the mount
        self._context.on_layout.append(self._layout_taken)
        self._context.journal.chunk_table.on_moves.append(self._moved)
        array.jobs.on_start.append(self._started)
        array.jobs.on_end.append(self._ended)

    # -- noting ------------------------------------------------------------------------------------

    def _shape(self) -> _Shape | None:
        layout = self._context.layout
        moves = any(words_of(job.kind).moves_chunks for job in self._array.jobs.running())
        if moves or layout.changing:
            return None
        return _Shape(layout, layout.stripes, tuple(sorted(self._paths().items())))

    def _paths(self) -> dict[Role, str]:
        membership = self._array.membership
        return {
            Role(record.role): membership.path_of(record)
            for record in self._array.member_set.config.members
            if record.role >= 0
        }

    def _begin(self, kind: str, job: Job | None) -> None:
        if self._settled is None:
            self._kind = None
            return
        was, paths = self._settled, self._paths()  # members may have been replaced since
        members = tuple((role, paths.get(role, path)) for role, path in was.members)
        self._number += 1
        self._kind, self._job, self._was = kind, job, replace(was, members=members)
        self._first, self._is_cut = {}, False

    def _layout_taken(self) -> None:
        """Note other copies of raid1, which are there at once; other shapes change with a job."""
        now = self._shape()
        if now is None or self._settled is None or now.layout is self._settled.layout:
            return
        self._begin(COPIES, None)
        self._settled = now

    def _started(self, job: Job) -> None:
        if words_of(job.kind).moves_chunks:
            self._begin(job.kind, job)

    def _ended(self, job: Job) -> None:
        self._settled = self._shape()

    def _moved(self, back: Sequence[Move]) -> None:
        """Note the places *back* that cells have just left."""
        has_job = any(words_of(job.kind).moves_chunks for job in self._array.jobs.running())
        if not has_job and self._kind != TUNING:
            self._begin(TUNING, None)
        for cell, role, chunk in back:
            if cell not in self._first:
                if len(self._first) >= MOVED_MAX:
                    self._is_cut = True
                    return
                self._first[cell] = role, chunk

    # -- telling -----------------------------------------------------------------------------------

    async def compare(self, stripes: int = 8, brief: bool = False) -> Result:
        """Return the last change: its *kind* (None: none since the mount), *number* and *state*.

        Unless *brief*: *cells*, the written cells, and how many of them have *moved* (at least, if
        *is_cut*), from one of each 1 / *sampled_ratio* stripes; *members*: cells of data and
        parity and accesses of them per second, before and after; *before* and *after*: members and
        up to *stripes* stripes as of `explain`, from the first that has moved on (of layouts with
        a chunk table: those that have moved). Raises UsageError.
        """
        if not 1 <= stripes <= STRIPES_MAX:
            raise UsageError(f"compare takes 1 to {STRIPES_MAX} stripes, not {stripes}")
        was = self._was
        if self._kind is None or was is None:
            return {"kind": None, "number": self._number}
        head = {
            "kind": self._kind,
            "number": self._number,
            "state": "done" if self._job is None else self._job.state,
        }
        return head if brief else {**head, **self._whole(_Before(was, self._first), stripes)}

    def _whole(self, before: _Before, count: int) -> Result:
        context = self._context
        layout = context.layout
        step = -(-layout.stripes * len(layout.code.cells) // SAMPLED_CELLS)
        cells = moved = 0
        first: Stripe | None = None
        after = _Tally(step)
        for number in range(0, layout.stripes, step):
            stripe = Stripe(number)
            for cell in cells_of(layout.code.all_mask & ~context.unwritten_cells(stripe)):
                place = layout.place(stripe, cell)
                if place[0] < 0:
                    continue  # a cell that a restriping layout does not place
                cells += step
                after.add(stripe, cell, place[0], layout)
                if before.has_left(layout, stripe, cell, place):
                    moved += step
                    first = stripe if first is None else first
        table = context.journal.chunk_table.layout
        if table is not None:
            cells_moved = before.moved(table)
            shown = sorted({Stripe(cell // table.length) for cell in cells_moved})
            moved = len(cells_moved)
        else:
            shown = [Stripe(number) for number in range(first or 0, layout.stripes)]
        shown = (shown or [Stripe(number) for number in range(layout.stripes)])[:count]
        return {
            "cells": cells,
            "moved": moved,
            "is_cut": self._is_cut,
            "sampled_ratio": round(1 / step, 6),
            "members": self._members(before, after),
            "before": {
                "layout": before.layout.name,
                "members": [
                    {"role": role, "path": path, "state": ""} for role, path in before.shape.members
                ],
                "stripes": [
                    self._before_stripe(before, stripe)
                    for stripe in shown
                    if stripe < before.shape.stripes
                ],
            },
            "after": {"stripes": [explain_stripe(context, stripe) for stripe in shown]},
        }

    def _unwritten(self, before: _Before, stripe: Stripe) -> int:
        data = self._context.written.unwritten_data(before.layout, stripe)
        return unwritten_cells(before.layout.code, data)

    def _before_stripe(self, before: _Before, stripe: Stripe) -> Result:
        context, layout = self._context, before.layout
        unwritten = self._unwritten(before, stripe)
        cells = []
        for cell in cell_range(0, len(layout.code.cells)):
            role, chunk = before.place(stripe, cell)
            found: dict[str, object] = {
                "cell": layout.code.name_of(cell),
                "role": role,
                "path": before.paths.get(role),
                "member_offset": context.member_set.data_offset + chunk * context.chunk_bytes,
                "written": not unwritten >> cell & 1,
                "lost": False,
            }
            if cell < layout.code.data_count:
                found["image_offset"] = layout.logical(stripe, cell) * context.chunk_bytes
            cells.append(found)
        return {"stripe": stripe, "cells": cells}

    def _members(self, before: _Before, after: _Tally) -> list[Result]:
        layout, step = before.layout, -(-before.cells // SAMPLED_CELLS)
        then = _Tally(step)
        for number in range(0, before.shape.stripes, step):
            stripe = Stripe(number)
            for cell in cells_of(layout.code.all_mask & ~self._unwritten(before, stripe)):
                then.add(stripe, cell, before.place(stripe, cell)[0], layout)
        rates = self._context.traffic.by_chunk
        if rates is not None:
            rates.digest()
        sides = {"before": then.told(rates), "after": after.told(rates)}
        now = self._paths()
        roles = sorted({*now, *before.paths})
        return [
            {"role": role, "path": now.get(role, before.paths.get(role))}
            | {name: side.get(role, _NOTHING) for name, side in sides.items()}
            for role in roles
        ]


_NOTHING = {"data": 0, "parity": 0, "accesses_per_s": None}


class _Before:
    """Where content lay in *shape*, of which cells have left the places *first*."""

    def __init__(self, shape: _Shape, first: dict[int, Place]) -> None:
        self.shape = shape
        self.layout = shape.layout
        self.paths = dict(shape.members)
        self.cells = shape.stripes * len(shape.layout.code.cells)
        self._first = first

    def place(self, stripe: Stripe, cell: CellIndex) -> Place:
        found = None
        if self._first:
            found = self._first.get(stripe * len(self.layout.code.cells) + cell)
        return found or self.layout.place(stripe, cell)

    def has_left(self, layout: Layout, stripe: Stripe, cell: CellIndex, place: Place) -> bool:
        """Return whether what is at *place* now, *cell* of *stripe* of *layout*, lay elsewhere."""
        data_count = layout.code.data_count
        if cell < data_count:
            chunk = layout.logical(stripe, cell)
            if layout is not self.layout:
                if chunk >= self.layout.chunks:
                    return False  # it was nowhere
                stripe, cell = self.layout.locate(chunk)
        else:
            cell = CellIndex(cell - data_count + self.layout.code.data_count)
            if cell >= len(self.layout.code.cells):
                return False
        return stripe < self.shape.stripes and self.place(stripe, cell) != place

    def moved(self, layout: BundleLayout) -> list[int]:
        return [
            cell
            for cell, place in self._first.items()
            if cell < layout.cells and layout.place(*stripe_and_cell(cell, layout.length)) != place
        ]


class _Tally:
    """Counts cells by role; each stands for *step*."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._data: Counter[Role] = Counter()
        self._parity: Counter[Role] = Counter()
        self._cells: list[int] = []
        self._roles: list[Role] = []

    def add(self, stripe: Stripe, cell: CellIndex, role: Role, layout: Layout) -> None:
        counts = self._data if cell < layout.code.data_count else self._parity
        counts[role] += self._step
        self._cells.append(stripe * len(layout.code.cells) + cell)
        self._roles.append(role)

    def told(self, access: AccessStats | None) -> dict[Role, Result]:
        """Return, by role, numbers of cells; accesses per second of cells of a chunk table."""
        sums: defaultdict[Role, float] = defaultdict(float)
        if access is not None and self._cells:
            cells = np.array(self._cells, np.int64)
            rates = self._step * TICKS_A_SECOND / access.intervals(cells)
            for role in set(self._roles):
                sums[role] = float(rates[np.array(self._roles) == role].sum())
        return {
            role: {
                "data": self._data[role],
                "parity": self._parity[role],
                "accesses_per_s": None if access is None else round(sums[role], 2),
            }
            for role in {*self._data, *self._parity}
        }
