"""The rotated placement: the columns move by one role from stripe to stripe (left-symmetric)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe, role_range
from raidx_fuse.layouts.placements.layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RotatedLayout(Layout):
    """Stripes as wide as the array, their columns on fixed roles or rotated from stripe to stripe.

    *rotation* "fixed": role = column. "left": role = (column - stripe) mod width, which for single
    parity in the last column is left-symmetric RAID-5. The member chunk of a cell is
    stripe * rows + row. Stripes s and s + width have the same roles; s mod width is the *phase* of
    the stripe. Raises LayoutError for an unknown rotation and for less than one stripe.
    """

    contiguous = True
    aligned = True

    def __init__(
        self, name: str, code: Code, chunk_bytes: int, stripes: int, rotation: str = "fixed"
    ) -> None:
        if rotation not in ("fixed", "left"):
            raise LayoutError(f"unknown rotation {rotation!r}: it is 'fixed' or 'left'")
        if stripes < 1:
            raise LayoutError(
                f"{name} on {code.columns} members needs at least {code.rows} chunks of each"
            )
        self.name = name
        self.code = code
        self.width = code.columns
        self.chunk_bytes = chunk_bytes
        self.stripes = stripes
        self.rotation = rotation
        self.chunks = stripes * code.data_count
        self.initial_data_count = code.data_count
        self.initial_stripes = stripes
        self.size_bytes = self.chunks * chunk_bytes
        self.member_chunks = stripes * code.rows
        self.data_count = self.least_count = code.data_count  # as a view in a restripe (views.py)
        self._rows = code.rows
        self._row_of = code.row_of
        self._phases = code.columns if rotation == "left" else 1
        width = code.columns
        self._roles = tuple(
            tuple(Role((c - phase) % width) for c in range(width)) for phase in range(self._phases)
        )
        self._role_of = tuple(
            tuple(roles[c] for c in code.column_of) for roles in self._roles
        )  # by phase, by cell
        self._cell_at = tuple(
            tuple(
                tuple(code.index.get((row, roles.index(role))) for role in role_range(0, width))
                for row in range(code.rows)
            )
            for roles in self._roles
        )  # by phase, by row, by role
        self._lost: tuple[dict[frozenset[int], int], ...] = tuple({} for _ in self._roles)

    def stripe_at(self, chunk: int) -> int:
        """Return the stripe that holds *chunk*, by arithmetic: also behind the last one."""
        return chunk // self.data_count

    def first_of(self, stripe: int) -> int:
        """Return the first chunk of *stripe*, by arithmetic: also behind the last one."""
        return stripe * self.data_count

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        return (
            self._role_of[stripe % self._phases][cell],
            stripe * self._rows + self._row_of[cell],  # type: ignore[return-value]
        )

    def places(
        self, stripes: NDArray[np.int64], cell: CellIndex
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        column = self.code.column_of[cell]
        roles = np.full_like(stripes, column)
        if self._phases > 1:
            roles = (column - stripes) % self.width
        return roles, stripes * self._rows + self._row_of[cell]

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        stripe, row = Stripe(member_chunk // self._rows), member_chunk % self._rows
        cell = self._cell_at[stripe % self._phases][row][role]
        if cell is None or not 0 <= stripe < self.stripes:
            return None
        return stripe, CellIndex(cell)

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        return self._roles[stripe % self._phases]

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        """Return the set of cells of *stripe* that lie on *lost_roles*. Cached by phase."""
        phase = stripe % self._phases
        cached = self._lost[phase].get(lost_roles)
        if cached is not None:
            return cached
        masks = zip(self._roles[phase], self.code.column_masks, strict=True)
        mask = sum(column for role, column in masks if role in lost_roles)
        if len(self._lost[phase]) >= 1024:  # bounded: lost roles change rarely, but without end
            self._lost[phase].clear()
        self._lost[phase][lost_roles] = mask
        return mask
