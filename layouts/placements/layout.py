"""A layout: a code under a placement. Which member holds which cell of which stripe.

    logical chunk --locate--> (stripe, cell) --place--> (role, member chunk)
    logical chunk <-logical-- (stripe, cell) <-inverse- (role, member chunk)

The four are on the path of every request, so each is table look-ups and at most one divmod, and
none checks its arguments: a chunk or stripe beyond the end is the caller's bug. A *role* is the
index of a member in the array.

Left rotation of four columns, parity last (the textbook's left-symmetric RAID-5, md's default):

    stripe   role 0  1  2  3
      0           0  1  2  P
      1           4  5  P  3        column c of stripe s is on role (c - s) mod width
      2           8  P  6  7
      3           P  9 10 11
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.codes.code import Code, Unrecoverable


class Layout(ABC):
    """A code, the size of a chunk and a placement of every cell of every stripe.

    *name*; *code*; *width* in members; *chunk_bytes*; *stripes*; *chunks*, the logical data chunks;
    *size_bytes*, their bytes; *member_chunks*, the chunks used of each member; *contiguous*, true
    when stripe s holds the logical chunks s*D .. s*D+D-1 in the order of its cells; *aligned*, true
    when stripe s lies at the member chunks s*rows .. s*rows+rows-1 of every role;
    *founding_data_count*, the data cells of a stripe when the array was made, and
    *founding_stripes*, how many there were: what must not change when it grows follows from them.
    """

    name: str
    code: Code
    width: int
    chunk_bytes: int
    stripes: int
    chunks: int
    size_bytes: int
    member_chunks: int
    contiguous: bool
    aligned: bool
    moves: int = 0  # changes of places so far: who looked one up and waited, looks again
    founding_data_count: int
    founding_stripes: int

    @abstractmethod
    def locate(self, chunk: int) -> tuple[int, int]:
        """Return (stripe, cell) of the logical data chunk *chunk*."""

    def mark(self, first: int, last: int) -> int:
        """Return a number that changes when one of the chunks *first* .. *last* moves."""
        return self.moves

    @abstractmethod
    def logical(self, stripe: int, cell: int) -> int:
        """Return the logical chunk of the data cell *cell* (an index below D) of *stripe*."""

    def logical_rows(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the logical chunks of the stripes start..end-1 as an array (stripes, D)."""
        cells = range(self.code.data_count)
        rows = [[self.logical(stripe, cell) for cell in cells] for stripe in range(start, end)]
        return np.array(rows, dtype=np.int64).reshape(end - start, self.code.data_count)

    @abstractmethod
    def place(self, stripe: int, cell: int) -> tuple[int, int]:
        """Return (role, member chunk) of the cell with index *cell* of *stripe*."""

    @abstractmethod
    def inverse(self, role: int, member_chunk: int) -> tuple[int, int] | None:
        """Return (stripe, cell) that lies at *member_chunk* of *role*, None if nothing does."""

    @abstractmethod
    def roles(self, stripe: int) -> tuple[int, ...]:
        """Return the role of each column of *stripe*."""

    @abstractmethod
    def lost_cells(self, stripe: int, lost_roles: frozenset[int]) -> int:
        """Return the set of cells of *stripe* that lie on *lost_roles*."""

    def cells_on(self, roles: Iterable[int]) -> float:
        """Return how many cells of a stripe lie on *roles*, where stripes differ: in the mean."""
        return float(len(list(roles)) * self.code.rows)

    def tolerates(self, lost_roles: frozenset[int]) -> bool:
        """Say whether every stripe can be read without *lost_roles*: as far as stripes differ."""
        code = self.code
        for stripe in range(min(self.width, max(1, self.stripes))):
            cells = self.lost_cells(stripe, lost_roles)
            try:
                if cells & code.data_mask:
                    code.solve(cells, cells & code.data_mask)
            except Unrecoverable:
                return False
        return True
