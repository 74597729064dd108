"""Views of the two layouts of a restripe: with indexes for chunks, or on other roles.

A view has what a layout has, and *data_count*: how many chunks of the image a stripe has at most.
It is less than the data cells of the code in a grown array of which only the first generations are
in use. *least_count* is that of the last stripes: less still if the last of these generations is in
use in the first stripes only. `stripe_at` and `first_of` say which chunks a stripe has.
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
)
from raidx_fuse.layouts.placements.elastic_mapping import Numbers
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.rotated import RotatedLayout

UNUSED = -1  # the index of a cell that no chunk in use has


class LayoutView(Layout):
    """*layout*, for a subclass to change some of it."""

    contiguous = False

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.name, self.code, self.width = layout.name, layout.code, layout.width
        self.chunk_bytes, self.stripes = layout.chunk_bytes, layout.stripes
        self.chunks, self.size_bytes = layout.chunks, layout.size_bytes
        self.member_chunks, self.aligned = layout.member_chunks, layout.aligned
        self.initial_data_count = layout.initial_data_count
        self.initial_stripes = layout.initial_stripes
        self.data_count = self.least_count = layout.code.data_count

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        return self.layout.locate(chunk)

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        return self.layout.logical(stripe, cell)

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        return self.layout.place(stripe, cell)

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        return self.layout.inverse(role, member_chunk) if role < self.width else None

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        return self.layout.roles(stripe)

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        return self.layout.lost_cells(stripe, lost_roles)

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        return self.layout.tolerates(lost_roles)


class IndexView(LayoutView):
    """*layout* with indexes instead of chunks: each stripe holds the next ones.

    With *columns*, only so many data columns of each stripe are in use; the others are unwritten.
    With *kept*, that holds for the stripes before *kept*, and the others have *fewer* columns.
    """

    def __init__(
        self,
        layout: Layout,
        columns: int | None = None,
        kept: int | None = None,
        fewer: int | None = None,
    ) -> None:
        super().__init__(layout)
        code = layout.code
        every = code.data_count // code.rows
        used = every if columns is None else columns
        self._kept = self.stripes if kept is None else kept
        self._most = _Cells(code.rows, every, used)
        self._least = _Cells(code.rows, every, used if fewer is None else fewer)
        self.data_count, self.least_count = len(self._most.cells), len(self._least.cells)
        self._even = self._kept * self.data_count
        self.chunks = self.first_of(self.stripes)

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

    def _used(self, stripe: int) -> _Cells:
        return self._most if stripe < self._kept else self._least

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        stripe = self.stripe_at(chunk)
        return Stripe(stripe), self._used(stripe).cells[chunk - self.first_of(stripe)]

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        """Return the index of the data cell *cell* of *stripe*, `UNUSED` if it is not in use."""
        number = self._used(stripe).numbers.get(cell)
        return Chunk(UNUSED if number is None else self.first_of(stripe) + number)

    def logical_rows(self, start: int, end: int) -> Numbers:
        """Return the indexes of the stripes start..end-1 as an array (stripes, data cells)."""
        rows = np.full((end - start, self.code.data_count), UNUSED, dtype=np.int64)
        at = min(max(self._kept, start), end)
        for first, last, used in ((start, at, self._most), (at, end, self._least)):
            count = len(used.cells)
            firsts = self.first_of(first) + np.arange(last - first, dtype=np.int64)[:, None] * count
            rows[first - start : last - start, list(used.cells)] = firsts + np.arange(count)
        return rows


class _Cells:
    """The data cells of the first *used* of *every* data columns, in the order of their chunks."""

    def __init__(self, rows: int, every: int, used: int) -> None:
        self.cells = tuple(
            CellIndex(row * every + column) for row in range(rows) for column in range(used)
        )
        self.numbers = {cell: number for number, cell in enumerate(self.cells)}


class RoleView(LayoutView):
    """*view* on the members that have *roles*, ascending, instead of 0, 1, and so on."""

    def __init__(self, view: RotatedLayout | IndexView, roles: Sequence[int]) -> None:
        super().__init__(view)
        self.data_count, self.least_count = view.data_count, view.least_count
        self.stripe_at, self.first_of = view.stripe_at, view.first_of
        self._role = tuple(map(Role, roles))
        self._own = {role: Role(own) for own, role in enumerate(self._role)}

    def _owned(self, roles: frozenset[Role]) -> frozenset[Role]:
        return frozenset(self._own[role] for role in roles if role in self._own)

    def logical_rows(self, start: int, end: int) -> Numbers:
        return self.layout.logical_rows(start, end)

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
        return self.layout.tolerates(self._owned(lost_roles))


View = RotatedLayout | IndexView | RoleView


def final_layout(view: View) -> Layout:
    """Return the layout that *view* shows, itself if it is no `LayoutView`."""
    layout: Layout = view
    while isinstance(layout, LayoutView):
        layout = layout.layout
    return layout
