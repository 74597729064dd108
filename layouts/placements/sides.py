"""Views of layouts for the two sides of a restripe: indexes for chunks, and other roles.

A side has what a layout has, and *data_count*: how many chunks of the image a stripe has. It is
less than the data cells of the code in a grown array of which only the first generations are in
use. `cell_at` says in which cell the n-th of them lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
from raidx_fuse.layouts.placements.rotated import RotatedLayout

UNUSED = -1  # the index of a cell that no chunk in use has


class View(Layout):
    """*layout*, for a subclass to change some of it."""

    contiguous = False

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.name, self.code, self.width = layout.name, layout.code, layout.width
        self.chunk_bytes, self.stripes = layout.chunk_bytes, layout.stripes
        self.chunks, self.size_bytes = layout.chunks, layout.size_bytes
        self.member_chunks, self.aligned = layout.member_chunks, layout.aligned
        self.founding_data_count = layout.founding_data_count
        self.founding_stripes = layout.founding_stripes
        self.data_count = layout.code.data_count

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        """Return (stripe, cell) of *chunk*."""
        return self.layout.locate(chunk)

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        """Return the chunk of the data cell *cell* of *stripe*."""
        return self.layout.logical(stripe, cell)

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        """Return (role, member chunk) of the cell with index *cell* of *stripe*."""
        return self.layout.place(stripe, cell)

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        """Return (stripe, cell) that lies at *member_chunk* of *role*, None if nothing does."""
        return self.layout.inverse(role, member_chunk) if role < self.width else None

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        """Return the role of each column of *stripe*."""
        return self.layout.roles(stripe)

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        """Return the set of cells of *stripe* that lie on *lost_roles*."""
        return self.layout.lost_cells(stripe, lost_roles)

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        """Return whether every stripe can be read without *lost_roles*."""
        return self.layout.tolerates(lost_roles)


class IndexView(View):
    """*layout* with indexes instead of chunks: stripe s holds the data_count ones from s * it on.

    With *columns*, only so many data columns of each stripe are in use; the others are unwritten.
    """

    def __init__(self, layout: Layout, columns: int | None = None) -> None:
        super().__init__(layout)
        code = layout.code
        every = code.data_count // code.rows
        used = every if columns is None else columns
        self.data_count = used * code.rows
        self.chunks = self.stripes * self.data_count
        self._cells = tuple(
            CellIndex(row * every + column) for row in range(code.rows) for column in range(used)
        )
        numbers = {cell: number for number, cell in enumerate(self._cells)}
        self._numbers = tuple(numbers.get(cell) for cell in cell_range(0, code.data_count))

    def cell_at(self, number: int) -> CellIndex:
        """Return the cell of the chunk with that *number* in its stripe."""
        return self._cells[number]

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        """Return (stripe, cell) of the index *chunk*."""
        stripe, number = stripe_and_cell(chunk, self.data_count)
        return stripe, self._cells[number]

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        """Return the index of the data cell *cell* of *stripe*, `UNUSED` if it is not in use."""
        number = self._numbers[cell]
        return Chunk(UNUSED if number is None else stripe * self.data_count + number)

    def logical_rows(self, start: int, end: int) -> Numbers:
        """Return the indexes of the stripes start..end-1 as an array (stripes, data cells)."""
        first = np.arange(start, end, dtype=np.int64)[:, None] * self.data_count
        rows = np.full((end - start, self.code.data_count), UNUSED, dtype=np.int64)
        rows[:, list(self._cells)] = first + np.arange(self.data_count)
        return rows


class RoleView(View):
    """*side* on the members that have *roles*, ascending, instead of 0, 1, and so on."""

    def __init__(self, side: RotatedLayout | IndexView, roles: Sequence[int]) -> None:
        super().__init__(side)
        self.data_count, self.cell_at = side.data_count, side.cell_at
        self._role = tuple(map(Role, roles))
        self._own = {role: Role(own) for own, role in enumerate(self._role)}

    def _owned(self, roles: frozenset[Role]) -> frozenset[Role]:
        return frozenset(self._own[role] for role in roles if role in self._own)

    def logical_rows(self, start: int, end: int) -> Numbers:
        """Return the chunks of the stripes start..end-1 as an array (stripes, data cells)."""
        return self.layout.logical_rows(start, end)

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        """Return (role, member chunk) of the cell with index *cell* of *stripe*."""
        own, chunk = self.layout.place(stripe, cell)
        return self._role[own], chunk

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        """Return (stripe, cell) that lies at *member_chunk* of *role*, None if nothing does."""
        own = self._own.get(role)
        return None if own is None else self.layout.inverse(own, member_chunk)

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        """Return the role of each column of *stripe*."""
        return tuple(self._role[own] for own in self.layout.roles(stripe))

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        """Return the set of cells of *stripe* that lie on *lost_roles*."""
        return self.layout.lost_cells(stripe, self._owned(lost_roles))

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        """Return whether every stripe can be read without *lost_roles*."""
        return self.layout.tolerates(self._owned(lost_roles))


Side = RotatedLayout | IndexView | RoleView


def final_layout(side: Side) -> Layout:
    """Return the layout that *side* is a view of."""
    layout: Layout = side
    while isinstance(layout, View):
        layout = layout.layout
    return layout
