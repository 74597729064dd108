"""The rotated placement: the columns move by one role from stripe to stripe (left-symmetric)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe
from raidx_fuse.layouts.placements.pattern import Pattern, PatternLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rotation_pattern(width: int, rotation: str) -> Pattern:
    """Return the pattern of *rotation*, "fixed" or "left". Raises LayoutError for another one."""
    if rotation not in ("fixed", "left"):
        raise LayoutError(f"unknown rotation {rotation!r}: it is 'fixed' or 'left'")
    phases = width if rotation == "left" else 1
    return [[(column - phase) % width for column in range(width)] for phase in range(phases)]


class RotatedLayout(PatternLayout):
    """Stripes as wide as the array, their columns on fixed roles or rotated from stripe to stripe.

    *rotation* "fixed": role = column. "left": role = (column - stripe) mod width, which for single
    parity in the last column is left-symmetric RAID-5. The member chunk of a cell is
    stripe * rows + row. Stripes s and s + width have the same roles; s mod width is the *phase* of
    the stripe. Raises LayoutError for an unknown rotation and for less than one stripe.
    """

    def __init__(
        self, name: str, code: Code, chunk_bytes: int, stripes: int, rotation: str = "fixed"
    ) -> None:
        pattern = rotation_pattern(code.columns, rotation)
        super().__init__(name, code, chunk_bytes, stripes * code.rows, code.columns, pattern)
        self.rotation = rotation
        self._rows = code.rows
        self._row_of = code.row_of

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        return (
            self._role_of[stripe % self.period][cell],
            stripe * self._rows + self._row_of[cell],  # type: ignore[return-value]
        )

    def places(
        self, stripes: NDArray[np.int64], cell: CellIndex
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        column = self.code.column_of[cell]
        roles = np.full_like(stripes, column)
        if self.period > 1:
            roles = (column - stripes) % self.width
        return roles, stripes * self._rows + self._row_of[cell]
