"""Views of the two layouts of a restripe: with indexes for chunks, and on other roles.

A view has what a layout has, and *data_count*: how many chunks of the image a stripe has at most.
It is less than the data cells of the code in a grown array of which only the first generations are
in use. *least_count* is that of the last stripes: less still if the last of these generations is in
use in the first stripes only. `stripe_at` and `first_of` say which chunks a stripe has.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.numbers import (
    CellIndex,
    Chunk,
    MemberChunk,
    Role,
    Stripe,
    cell_range,
    stripe_and_cell,
)
from raidx_fuse.layouts.placements.elastic_mapping import Numbers
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.pattern import PatternLayout

UNUSED = -1  # the index of a cell that no chunk in use has


class LayoutView(Layout):
    """*layout* with indexes instead of chunks: each stripe holds the next ones.

    With *columns*, only so many data columns of each stripe are in use; the others are unwritten.
    With *kept*, that holds for the stripes before *kept*, and the others have *fewer* columns. With
    *roles*, the layout is on the members that have these, ascending, instead of 0, 1, and so on.
    """

    contiguous = False

    def __init__(
        self,
        layout: Layout,
        columns: int | None = None,
        kept: int | None = None,
        fewer: int | None = None,
        roles: Iterable[int] | None = None,
    ) -> None:
        self.layout = layout
        self.name, self.code, self.width = layout.name, layout.code, layout.width
        self.chunk_bytes, self.stripes = layout.chunk_bytes, layout.stripes
        self.size_bytes, self.member_chunks = layout.size_bytes, layout.member_chunks
        self.aligned = layout.aligned
        self.initial_data_count = layout.initial_data_count
        self.initial_stripes = layout.initial_stripes
        self._kept = self.stripes if kept is None else kept
        self._most = _Cells(self.code, columns)
        self._least = _Cells(self.code, columns if fewer is None else fewer)
        self.data_count, self.least_count = len(self._most.cells), len(self._least.cells)
        self._even = self._kept * self.data_count
        self.chunks = self.first_of(self.stripes)
        self._role = tuple(map(Role, range(self.width) if roles is None else roles))
        self._own = {role: Role(own) for own, role in enumerate(self._role)}
        self._renumbered = roles is not None

    def stripe_at(self, chunk: int) -> int:
        """Return the stripe that holds the index *chunk*, also behind the last one."""
        if chunk < self._even:
            return chunk // self.data_count
        return self._kept + (chunk - self._even) // self.least_count

    def first_of(self, stripe: int) -> int:
        """Return the first index of *stripe*, also behind the last one."""
        if stripe <= self._kept:
            return stripe * self.data_count
        return self._even + (stripe - self._kept) * self.least_count

    def tile(self) -> tuple[int, int]:
        return self.layout.tile()

    def rows_before(self, stripe: int) -> int:
        return self.layout.rows_before(stripe)

    def rows_until(self, stripe: int) -> int:
        return self.layout.rows_until(stripe)

    def stripes_within(self, rows: int) -> int:
        return self.layout.stripes_within(rows)

    def stripes_behind(self, rows: int) -> int:
        return self.layout.stripes_behind(rows)

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        if chunk < self._even:
            stripe, number = stripe_and_cell(chunk, self.data_count)
            return stripe, self._most.cells[number]
        stripe, number = stripe_and_cell(chunk - self._even, self.least_count)
        return Stripe(self._kept + stripe), self._least.cells[number]

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        """Return the index of the data cell *cell* of *stripe*, `UNUSED` if it is not in use."""
        number = (self._most if stripe < self._kept else self._least).numbers.get(cell)
        return Chunk(UNUSED if number is None else self.first_of(stripe) + number)

    def logical_rows(self, start: int, end: int) -> Numbers:
        rows = np.full((end - start, self.code.data_count), UNUSED, dtype=np.int64)
        at = min(max(self._kept, start), end)
        for first, last, used in ((start, at, self._most), (at, end, self._least)):
            count = len(used.cells)
            firsts = self.first_of(first) + np.arange(last - first, dtype=np.int64)[:, None] * count
            rows[first - start : last - start, list(used.cells)] = firsts + np.arange(count)
        return rows

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        own, chunk = self.layout.place(stripe, cell)
        return self._role[own], chunk

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        own = self._own.get(role)
        return None if own is None else self.layout.inverse(own, member_chunk)

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        return tuple(self._role[own] for own in self.layout.roles(stripe))

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        return self.layout.lost_cells(stripe, self._owned(lost_roles))

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        # Members that the layout lacks count as lost, too, unless its members are renumbered: in a
        # restripe, the members that are lost may be all that have a record of the log.
        return self.layout.tolerates(self._owned(lost_roles) if self._renumbered else lost_roles)

    def _owned(self, roles: frozenset[Role]) -> frozenset[Role]:
        return frozenset(self._own[role] for role in roles if role in self._own)


class _Cells:
    """The data cells of the first *columns* data columns, in the order of their chunks."""

    def __init__(self, code: Code, columns: int | None) -> None:
        self.cells = tuple(cell_range(0, code.data_count))
        if columns is not None:
            every = code.data_count // code.rows
            self.cells = tuple(cell for cell in self.cells if cell % every < columns)
        self.numbers = {cell: number for number, cell in enumerate(self.cells)}


View = PatternLayout | LayoutView


def final_layout(view: View) -> Layout:
    """Return the layout that *view* shows, itself if it is no `LayoutView`."""
    return view.layout if isinstance(view, LayoutView) else view
