"""A layout: a code with a placement, which says on which member each cell of each stripe lies.

    logical chunk --locate--> (stripe, cell) --place--> (role, member chunk)
    logical chunk <-logical-- (stripe, cell) <-inverse- (role, member chunk)

These four functions are on the path of every request. So each consists of table look-ups and at
most one divmod, and none checks its arguments: a chunk or stripe beyond the end is a bug of the
caller. A *role* is the index of a member in the array.

Left rotation of four columns, parity last (the textbook's left-symmetric RAID-5, md's default):

    stripe   role 0  1  2  3
      0           0  1  2  P
      1           4  5  P  3        column c of stripe s is on role (c - s) mod width
      2           8  P  6  7
      3           P  9 10 11
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raidx_fuse.layouts.codes.code import Code, Unrecoverable
from raidx_fuse.layouts.numbers import (
    CellIndex,
    Chunk,
    MemberChunk,
    Role,
    Stripe,
    cell_range,
    stripe_and_cell,
    stripe_range,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Extent:
    """Chunks *start* .. *end*-1 of the image, *data_count* in each stripe, one behind the other.

    * *data_count*: 0 if they are in no such order.
    * *code*: that of stripes in which nothing else is written; None if there is none.
    * *cells*: the cells of the layout's code that are those of *code*, in its order.
    """

    start: int
    end: int
    data_count: int
    code: Code | None
    cells: tuple[CellIndex, ...]


class Layout(ABC):
    """A code, a chunk size and a placement of every cell of every stripe.

    * *name*; *code*; *chunk_bytes*; *width*: the number of members; *stripes*: their number.
    * *chunks*: the number of logical data chunks; *size_bytes*: the size of the image.
    * *member_chunks*: how many chunks of each member are used.
    * *contiguous*: stripe s holds the logical chunks s*D .. s*D+D-1 in the order of its cells.
    * *aligned*: stripe s lies at the member chunks s*rows .. s*rows+rows-1 of every role.
    * *has_table*: a look-up table places each cell; members may have unlike numbers of chunks.
    * *has_grown*: by the elastic mapping, so that chunks of all generations are in each stripe.
    * *growing*, *restriping*: such a change is under way; *changing*: one of the two is.
    * *moves*: increases when chunks move. A caller that looked up a place and then waited compares
      `mark` before and after, and looks the place up again if it differs.
    * *watermark_max*: the largest watermark of a restripe under way, -1 if there is none.
    * *ordered_chunks*: so many keep the order of an earlier growth, which no change can alter.
    * *initial_data_count*, *initial_stripes*: the data cells of a stripe and the number of
      stripes when the array was created. Sizes that a growth must not change depend on them.
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
    has_table: bool = False
    has_grown: bool = False
    growing: bool = False
    restriping: bool = False
    moves: int = 0
    watermark_max: int = -1
    ordered_chunks: int = 0
    initial_data_count: int
    initial_stripes: int
    data_count: int  # of a contiguous layout

    @property
    def changing(self) -> bool:
        return self.growing or self.restriping

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        """Return (stripe, cell) of the logical data chunk *chunk*. For contiguous layouts."""
        return stripe_and_cell(chunk, self.data_count)

    def mark(self, first: int, last: int) -> int:
        """Return a number that changes when one of the chunks *first* .. *last* moves."""
        return self.moves

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        """Return the logical chunk of the data cell *cell* (an index below D) of *stripe*."""
        return Chunk(stripe * self.data_count + cell)

    def logical_rows(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the logical chunks of the stripes start..end-1 as an array (stripes, D)."""
        count = self.data_count
        return np.arange(start * count, end * count, dtype=np.int64).reshape(end - start, count)

    @abstractmethod
    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        """Return (role, member chunk) of the cell with index *cell* of *stripe*."""

    def places(
        self, stripes: NDArray[np.int64], cell: CellIndex
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the roles and the member chunks of the cell *cell* of each of *stripes*."""
        found = [self.place(stripe, cell) for stripe in stripes.tolist()]
        roles, chunks = np.array(found, np.int64).reshape(-1, 2).T
        return roles, chunks

    @abstractmethod
    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        """Return (stripe, cell) that lies at *member_chunk* of *role*, None if nothing does."""

    @abstractmethod
    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        """Return the role of each column of *stripe*."""

    @abstractmethod
    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        """Return the set of cells of *stripe* that lie on *lost_roles*."""

    def phases(self) -> int:
        """Return after how many stripes their roles repeat, at least about."""
        return self.width

    def tile(self) -> tuple[int, int]:
        """Return (stripes, chunks): the fewest stripes that take equally much of each member."""
        return 1, self.code.rows

    # -- the rows of the members, where stripes lie one behind the other -------------------------

    def rows_before(self, stripe: int) -> int:
        """Return how many first chunks of each member hold nothing of *stripe* and later ones."""
        return stripe * self.code.rows

    def rows_until(self, stripe: int) -> int:
        """Return how many first chunks of each member hold all of the stripes before *stripe*."""
        return stripe * self.code.rows

    def stripes_within(self, rows: int) -> int:
        """Return how many first stripes lie in the first *rows* chunks of each member."""
        return rows // self.code.rows

    def stripes_behind(self, rows: int) -> int:
        """Return the stripe from which on all lie behind the first *rows* chunks of each member."""
        return -(-rows // self.code.rows)

    def chunks_of(self, role: Role) -> int:
        """Return how many chunks of *role* the layout can use."""
        return self.member_chunks

    def used_chunks(self) -> list[int]:
        """Return how many chunks of each role hold cells."""
        return [self.member_chunks] * self.width

    def extents(self) -> list[Extent]:
        """Return the extents that together are the image; none if no chunks fill stripes."""
        if not self.contiguous or not self.aligned:
            return []
        count, cells = self.code.data_count, cell_range(0, len(self.code.cells))
        return [Extent(0, self.stripes * count, count, self.code, tuple(cells))]

    def fitting(self, chunks: int) -> int:
        """Return how many first chunks of the image a restripe can bring to *chunks* places."""
        return chunks

    def joined_last(self) -> Sequence[Role]:
        """Return the roles of the members that joined in the last growth, if it can be undone."""
        return ()

    def stored_params(self) -> dict[str, object]:
        """Return what the layout adds to the parameters from which it can be built again."""
        return {}

    def is_generation(self, cells: int) -> bool:
        """Return whether the set *cells* holds the data cells of one of several generations."""
        return False

    def cells_on(self, roles: Iterable[Role]) -> float:
        """Return how many cells of a stripe lie on *roles*; the mean, if stripes differ."""
        return float(len(list(roles)) * self.code.rows)

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        """Return whether the data of every stripe can be read or solved without *lost_roles*.

        Checks the first `phases` stripes: with a placement that repeats, all others repeat them.
        """
        code = self.code
        stripes = stripe_range(0, min(self.phases(), max(1, self.stripes)))
        for cells in {self.lost_cells(stripe, lost_roles) for stripe in stripes}:
            try:
                if cells & code.data_mask:
                    code.solve(cells, cells & code.data_mask)
            except Unrecoverable:
                return False
        return True
