"""A placement that is a pattern of stripes, which repeats: its columns lie on roles as it says.

Stripes may be narrower than the array. Then the columns of a lost member's stripes are spread over
all others, which share the reads of its rebuild (parity declustering, Holland and Gibson, 1992):

    single parity over 3 of 4 members, the pattern (0 1 2) (1 2 3) (2 3 0) (3 0 1)

    role              0   1   2   3
    member chunk 0   0a  0b  0P  1P        a, b: data of the stripe; P: its parity
                 1   2P  1a  1b  2b
                 2   3b  3P  2a  3a
                 3   4a  4b  4P  5P        the pattern again

Each member gives its chunks in rising order, so the place of a cell follows from the pattern, and
one look proves it: in each stripe all roles differ, and each role occurs equally often.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe
from raidx_fuse.layouts.placements.layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

Pattern: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Placement:
    """Stripes of *code*; *pattern* has, for each stripe until it repeats, the role of each column.

    What a package returns whose layout has a placement of its own (plugged.py).
    """

    code: Code
    pattern: Pattern


class PatternLayout(Layout):
    """Stripes of *code* over *width* members; *pattern* has the role of each column of each stripe.

    Chunks of the members that do not fill a whole pattern stay unused, unless each stripe is as
    wide as the array. Raises LayoutError if there is not even one.
    """

    contiguous = True

    def __init__(
        self,
        name: str,
        code: Code,
        chunk_bytes: int,
        member_chunks: int,
        width: int,
        pattern: Pattern,
    ) -> None:
        self.name = name
        self.code = code
        self.width = width
        self.chunk_bytes = chunk_bytes
        self.aligned = code.columns == width
        self.period = len(pattern)
        stripes, rows = self.tile()
        self.stripes = member_chunks // rows * stripes
        if self.stripes < 1:
            raise LayoutError(f"{name} on {width} members needs at least {rows} chunks of each")
        self.chunks = self.stripes * code.data_count
        self.initial_data_count = code.data_count
        self.initial_stripes = self.stripes
        self.size_bytes = self.chunks * chunk_bytes
        self.member_chunks = self.stripes // stripes * rows
        self.data_count = self.least_count = code.data_count  # as a view in a restripe (views.py)
        self._roles = tuple(tuple(map(Role, roles)) for roles in pattern)
        self._make_tables()

    def _make_tables(self) -> None:
        code, rows = self.code, self.code.rows
        self._span = self.period * code.columns * rows // self.width  # rows of the pattern
        ends = [0] * self.width  # of what each role has given so far
        self._lost: tuple[dict[frozenset[Role], int], ...] = tuple({} for _ in self._roles)
        role_of, chunk_of = [], []  # by phase, the stripe's number in the pattern, and by cell
        self._at: list[list[int | None]] = [[None] * self.width for _ in range(self._span)]
        highest = [0]  # the rows that the stripes before each phase take
        firsts = []  # the first row of each phase
        for phase, roles in enumerate(self._roles):
            role_of.append([roles[column] for column in code.column_of])
            chunk_of.append([ends[roles[c]] + r for r, c in code.cells])
            firsts.append(min(ends[role] for role in roles))
            for cell, (role, chunk) in enumerate(zip(role_of[-1], chunk_of[-1], strict=True)):
                self._at[chunk][role] = phase * len(code.cells) + cell
            for role in roles:
                ends[role] += rows
            highest.append(max(ends))
        self._role_of, self._chunk_of = tuple(map(tuple, role_of)), tuple(map(tuple, chunk_of))
        self._highest = highest
        # The rows that are free of the stripes from each phase on; later patterns lie behind.
        self._lowest = [*accumulate([self._span, *firsts[::-1]], min)][::-1]

    # -- look-ups ------------------------------------------------------------------------------

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        number, phase = divmod(stripe, self.period)
        return (
            self._role_of[phase][cell],
            number * self._span + self._chunk_of[phase][cell],  # type: ignore[return-value]
        )

    @cached_property
    def _by_cell(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The roles and the chunks of each cell, by phase; numpy is loaded when they are needed."""
        return np.array(self._role_of, np.int64).T, np.array(self._chunk_of, np.int64).T

    def places(
        self, stripes: NDArray[np.int64], cell: CellIndex
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        numbers, phases = np.divmod(stripes, self.period)
        roles, chunks = self._by_cell
        return roles[cell][phases], numbers * self._span + chunks[cell][phases]

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        if not 0 <= member_chunk < self.member_chunks or role >= self.width:
            return None
        number, row = divmod(member_chunk, self._span)
        at = self._at[row][role]
        if at is None:
            return None
        phase, cell = divmod(at, len(self.code.cells))
        return Stripe(number * self.period + phase), CellIndex(cell)

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        return self._roles[stripe % self.period]

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        """Return the set of cells of *stripe* that lie on *lost_roles*. Cached by phase."""
        phase = stripe % self.period
        cached = self._lost[phase].get(lost_roles)
        if cached is not None:
            return cached
        masks = zip(self._roles[phase], self.code.column_masks, strict=True)
        mask = sum(column for role, column in masks if role in lost_roles)
        if len(self._lost[phase]) >= 1024:  # bounded: lost roles change rarely, but without end
            self._lost[phase].clear()
        self._lost[phase][lost_roles] = mask
        return mask

    def phases(self) -> int:
        return self.period

    def tile(self) -> tuple[int, int]:
        stripes = 1 if self.aligned else self.period
        return stripes, stripes * self.code.columns * self.code.rows // self.width

    def cells_on(self, roles: Iterable[Role]) -> float:
        return super().cells_on(roles) * self.code.columns / self.width

    # -- the rows of the members, for a restripe -------------------------------------------------

    def stripe_at(self, chunk: int) -> int:
        """Return the stripe that holds *chunk*, by arithmetic: also behind the last one."""
        return chunk // self.data_count

    def first_of(self, stripe: int) -> int:
        """Return the first chunk of *stripe*, by arithmetic: also behind the last one."""
        return stripe * self.data_count

    def rows_before(self, stripe: int) -> int:
        number, phase = divmod(stripe, self.period)
        return number * self._span + self._lowest[phase]

    def rows_until(self, stripe: int) -> int:
        number, phase = divmod(stripe, self.period)
        return number * self._span + self._highest[phase]

    def stripes_within(self, rows: int) -> int:
        number, row = divmod(rows, self._span)
        return number * self.period + bisect_right(self._highest, row) - 1

    def stripes_behind(self, rows: int) -> int:
        number, row = divmod(rows, self._span)
        return number * self.period + bisect_left(self._lowest, row)
