"""A layout that grows by the elastic mapping: any horizontal code, any number of growths.

A chunk keeps its stripe, its row and its column for ever; a growth only gives a column of some
stripes another member (elastic_mapping.py), and adds data columns to the code. The new columns are
unwritten and count as zero, so no parity changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.codes.horizontal import single_parity, striping
from raidx_fuse.layouts.numbers import (
    CellIndex,
    Chunk,
    MemberChunk,
    Role,
    Stripe,
    cell_range,
    role_range,
    stripe_and_cell,
)
from raidx_fuse.layouts.placements.elastic_mapping import (
    ElasticMapping,
    Generation,
    Numbers,
    Rule,
)
from raidx_fuse.layouts.placements.layout import Extent, Layout
from raidx_fuse.layouts.placements.numbering import Numbering

BLOCK_SHIFT = 10
BLOCK_MASK = (1 << BLOCK_SHIFT) - 1
TABLE_BYTES_MAX = 16 << 20


class RoleTable:
    """The roles of the columns of each stripe, computed when asked for, in blocks of stripes.

    They are kept in bytes, as look-ups of grown arrays are hot.
    *make* returns the roles of stripes, (stripes, *columns*); they repeat after *period* stripes.
    So after few growths the whole table is small. A large one has only the first *phases* stripes
    of each *run*, as the others repeat them; if that is large, too, a part is kept.
    """

    __slots__ = ("_blocks_max", "blocks", "columns", "is_large", "make", "period", "phases", "run")

    def __init__(
        self,
        make: Callable[[Numbers], Numbers],
        columns: int,
        period: int,
        run: int = 1,
        phases: int = 1,
    ) -> None:
        self.make = make
        self.columns = columns
        self.period = period
        self.run = run
        self.phases = phases
        self.is_large = phases < run and period * columns > TABLE_BYTES_MAX
        self.blocks: dict[int, Sequence[Role]] = {}
        self._blocks_max = max(1, TABLE_BYTES_MAX // (columns << BLOCK_SHIFT))

    def entry(self, stripe: int) -> int:
        """Return the number of the entry of *stripe* in a large table."""
        number = stripe % self.period
        return number // self.run * self.phases + number % self.run % self.phases

    def load(self, number: int) -> Sequence[Role]:
        """Return the block of stripes *number*, one byte for each column of each stripe."""
        block = self.blocks.get(number)
        if block is None:
            if len(self.blocks) >= self._blocks_max:
                del self.blocks[next(iter(self.blocks))]
            first = number << BLOCK_SHIFT
            stripes = np.arange(first, first + (1 << BLOCK_SHIFT), dtype=np.int64)
            if self.is_large:
                stripes = stripes // self.phases * self.run + stripes % self.phases
            found = self.make(stripes).astype(np.uint8).tobytes()
            block = self.blocks[number] = cast("Sequence[Role]", found)
        return block

    def of(self, stripe: int) -> Sequence[Role]:
        """Return the roles of the columns of *stripe*, one byte each."""
        stripe = self.entry(stripe) if self.is_large else stripe % self.period
        at = (stripe & BLOCK_MASK) * self.columns
        return self.load(stripe >> BLOCK_SHIFT)[at : at + self.columns]


class ElasticLayout(Layout):
    """A horizontal code on members of which some were added later.

    *history* holds the numbers of members (data and parity), the first before any growth; *rules*
    the rule of each growth (elastic_mapping.py). *make_code* returns the code for a number of
    members; its data columns come first, its cells are numbered row by row. *rotated* says that the
    columns of the first members were rotated (rotated.py). With *parity_stays* the parity keeps its
    role, the last one of the first members, and only data columns take part; members that were
    added later have the roles after it.

    *migrated* is the first stripe that has not migrated in the growth under way. None means that no
    growth is under way; the attribute then is the number of stripes.

    A move exchanges a column with the new column that takes its place. So in a stripe that has not
    migrated, the new members hold the new columns of the growth, all of them unwritten:

        stripe            0   1  | 2   3   4        3 to 5 data disks, *migrated* = 2
        disk 0           16+ 17+ | 6   9   12
        disk 1            1  18+ | 7   10  13
        disk 2            2   5  | 8   11  14
        disk 3            0   3  | 19+ 22+ 23+
        disk 4           15+  4  | 20+ 21+ 24+

    The image keeps its old size until the growth ends (`finish_growth`).

    With *surrogate*, one more member with the last role holds the parity of the stripes that have
    migrated (the mcpod paper, section 3.4, Fig. 5). During the growth one of the two parity members
    has no cell in each stripe.
    """

    contiguous = False
    aligned = True

    def __init__(
        self,
        name: str,
        history: Sequence[int],
        chunk_bytes: int,
        member_chunks: int,
        migrated: int | None = None,
        *,
        make_code: Callable[[int], Code],
        rules: Sequence[Rule] = (),
        rotated: bool = False,
        parity_stays: bool = False,
        surrogate: bool = False,
    ) -> None:
        self.code = code = make_code(history[-1])
        rows = code.rows
        self.first_code = make_code(history[0])
        parities = code.columns - code.data_count // rows
        standing = parities if parity_stays else 0
        self.stripes = member_chunks // rows
        if self.stripes < 1:
            raise LayoutError(f"{name} on {history[-1]} members needs {rows} chunks of each")
        if migrated is not None and (len(history) < 2 or not 0 <= migrated <= self.stripes):
            raise LayoutError(f"{migrated} stripes cannot have migrated in the growth {history}")
        if surrogate and (migrated is None or not standing):
            raise LayoutError("a surrogate takes parity over while it grows, and only then")
        self.mapping = ElasticMapping([m - standing for m in history], rules, rotated)
        self.name = name
        self.history = tuple(history)
        self.width = history[-1] + surrogate
        self.chunk_bytes = chunk_bytes
        self.member_chunks = self.stripes * rows
        self.initial_data_count = self.first_code.data_count
        self.initial_stripes = self.stripes
        self.generations = self._make_generations(rows, parities - standing)
        self._ends = [generation.end for generation in self.generations]
        self._first_end = self.generations[0].end
        self.chunks = self.generations[-1].end
        self.surrogate = history[-1] if surrogate else None
        self._data_columns = code.data_count // rows
        self._rows = rows
        self._column_of = code.column_of
        self._row_of = code.row_of
        self._generation_of = tuple(g for g in self.generations for _ in range(g.columns))
        # Of the mapping's columns, by age, the parities are the last of the first ones.
        first, all_ = self.mapping.history[0], self.mapping.columns
        moving = list(range(first - (parities - standing), first))
        data = [column for column in range(all_) if column not in moving]
        self._by_column = np.array(data + moving)
        self._standing = [history[0] - standing + number for number in range(standing)]
        # The role of each member of the mapping.
        roles = [role for role in range(history[-1]) if role not in self._standing]
        self._role = np.array(roles)
        self.has_grown = len(history) > 1
        self.growing = migrated is not None
        self.migrated = self.stripes if migrated is None else migrated
        before = self.generations[: -1 if self.growing else None]
        self.size_bytes = before[-1].end * chunk_bytes
        self.members_before = history[-2 if self.has_grown else -1]
        self._first_cells = self.cells_of(self.generations[0])[: self.initial_data_count]
        self._generation_cells = {
            sum(1 << cell for cell in self.cells_of(g) if cell < code.data_count)
            for g in self.generations
        }
        self._make_tables()

    def _make_generations(self, rows: int, parities: int) -> tuple[Generation, ...]:
        columns = self.mapping.history[0] - parities
        found = [Generation(0, columns, 0, rows, self.stripes)]
        for growth in self.mapping.growths:
            last, added = found[-1], growth.after - growth.before
            column = last.first_column + last.columns
            found.append(Generation(last.end, added, column, rows, self.stripes, growth))
        return tuple(found)

    def _make_tables(self) -> None:
        mapping = self.mapping
        phases = mapping.history[0] if mapping.rotated else 1
        size = self.code.columns, mapping.period, mapping.run, phases
        self._after = RoleTable(self._roles_after, *size)
        self._before = self._after
        if self.growing:
            self._before = RoleTable(self._roles_before, *size)

    def _roles_after(self, stripes: Numbers) -> Numbers:
        """Return the role of each column of *stripes*, all of them migrated."""
        roles = self._role[self.mapping.members_of(stripes)[:, self._by_column]]
        standing = self._standing if self.surrogate is None else [self.surrogate]
        return self._with_standing(roles, standing if self._standing else [])

    def _roles_before(self, stripes: Numbers) -> Numbers:
        """Return the role of each column of *stripes*, none of them migrated."""
        mapping = self.mapping
        v = mapping.history[-2]
        after = mapping.members_of(stripes)
        old = ElasticMapping(mapping.history[:-1], mapping.rules[:-1], mapping.rotated)
        found = old.members_of(stripes)
        # The new column that will take the place of one that moves lies where that one will be.
        goes = np.zeros_like(found)
        np.put_along_axis(goes, found, after[:, :v], axis=1)
        new = after[:, v:]
        partner = np.take_along_axis(goes, np.minimum(new, v - 1), axis=1)
        before = np.concatenate((found, np.where(new < v, partner, new)), axis=1)
        return self._with_standing(self._role[before[:, self._by_column]], self._standing)

    def _with_standing(self, roles: Numbers, standing: list[int]) -> Numbers:
        if not standing:
            return roles
        return np.concatenate((roles, np.broadcast_to(standing, (len(roles), 1))), axis=1)

    def numbering(self, generations: int | None = None, kept: int | None = None) -> Numbering:
        """Return the order in the stripes of the chunks of the first *generations* (None: all).

        Of the last of them, those in the first *kept* stripes (None: in all). Raises LayoutError.
        """
        described = [
            (g.columns, g.members, 0 if g.in_order else g.granule)
            for g in self.generations[:generations]
        ]
        return Numbering(self.stripes, self._rows, described, kept)

    def migrate_to(self, stripe: Stripe) -> None:
        """Let *stripe* be the first that has not migrated; its neighbours' blocks are copied."""
        self.migrated = stripe

    def finish_growth(self) -> None:
        """End the growth after every stripe has migrated: the image now includes the new chunks.

        A surrogate takes the role of the old parity member.
        """
        assert self.migrated == self.stripes, "some stripes have not migrated"
        self.growing = False
        self.width = self.history[-1]
        self.surrogate = None
        self._make_tables()
        self.size_bytes = self.chunks * self.chunk_bytes

    # -- look-ups ------------------------------------------------------------------------------

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        if chunk < self._first_end:
            stripe, number = stripe_and_cell(chunk, self.initial_data_count)
            return stripe, self._first_cells[number]
        grown, row, column = self.generations[bisect_right(self._ends, chunk)].locate(chunk)
        return grown, row * self._data_columns + column  # type: ignore[return-value]

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        row, column = divmod(cell, self._data_columns)
        generation = self._generation_of[column]
        number = generation.logical(int(stripe), row, column - generation.first_column)
        return Chunk(number)

    def logical_rows(self, start: int, end: int) -> Numbers:
        stripes = np.arange(start, end, dtype=np.int64)[:, None, None]
        rows = np.arange(self._rows, dtype=np.int64)[None, :, None]
        parts = [
            generation.logical(stripes, rows, np.arange(generation.columns)[None, None, :])
            for generation in self.generations
        ]
        return np.concatenate(parts, axis=2).reshape(end - start, self.code.data_count)

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        table = self._after if stripe < self.migrated else self._before
        at = table.entry(stripe) if table.is_large else stripe % table.period
        try:
            block = table.blocks[at >> BLOCK_SHIFT]
        except KeyError:
            block = table.load(at >> BLOCK_SHIFT)
        column: int = cell
        chunk: int = stripe
        if self._rows > 1:
            column, chunk = self._column_of[cell], stripe * self._rows + self._row_of[cell]
        return block[(at & BLOCK_MASK) * table.columns + column], chunk  # type: ignore[return-value]

    def place_in(self, stripe: Stripe, cell: CellIndex, *, after: bool) -> tuple[Role, MemberChunk]:
        """Return the place of a cell if its stripe has (*after*) or has not migrated."""
        table = self._after if after else self._before
        role = table.of(stripe)[self._column_of[cell]]
        return role, MemberChunk(stripe * self._rows + self._row_of[cell])

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        if not 0 <= member_chunk < self.member_chunks:
            return None
        number, row = divmod(member_chunk, self._rows)
        stripe = Stripe(number)
        roles = self.roles(stripe)
        if role not in roles:
            return None
        cell = self.code.index.get((row, roles.index(role)))
        return None if cell is None else (stripe, CellIndex(cell))

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        return tuple((self._after if stripe < self.migrated else self._before).of(stripe))

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        roles = (self._after if stripe < self.migrated else self._before).of(stripe)
        mask = 0
        for role in lost_roles:
            if role in roles:
                mask |= self.code.column_masks[roles.index(role)]
        return mask

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        return len(lost_roles) <= self.code.tolerance

    def extents(self) -> list[Extent]:
        return [
            Extent(
                g.start,
                g.end,
                g.each if g.in_order else 0,
                self.code_of(g) if g.in_order and not (g.start and self._rows > 1) else None,
                self.cells_of(g),
            )
            for g in self.generations
        ]

    def fitting(self, chunks: int) -> int:
        last = next(g for g in self.generations if g.end > chunks)
        # One generation alone is in the order of the image, of others whole runs can stay.
        return last.most_chunks(chunks) if last.start else chunks

    def joined_last(self) -> Sequence[Role]:
        return role_range(self.members_before, self.width) if not self.growing else ()

    def code_of(self, generation: Generation) -> Code:
        """Return the code of stripes in which only *generation* is written.

        Only the first generation of a code with several rows has one.
        """
        if generation is self.generations[0]:
            return self.first_code
        assert self._rows == 1, "the diagonals of later columns are those of a wider code"
        count = generation.columns
        return single_parity(count + 1) if self.code.parity_count else striping(count)

    def cells_of(self, generation: Generation) -> tuple[CellIndex, ...]:
        """Return the cells of *generation* and the parity cells, in the order of `code_of`."""
        columns = range(generation.first_column, generation.first_column + generation.columns)
        rows = range(self._rows)
        data = tuple(row * self._data_columns + column for row in rows for column in columns)
        parities = cell_range(self.code.data_count, len(self.code.cells))
        return (*map(CellIndex, data), *parities)

    def is_generation(self, cells: int) -> bool:
        return cells in self._generation_cells

    # -- the growth under way ------------------------------------------------------------------

    def targets(self, *, back: bool) -> set[Role]:
        """Return the roles that columns move to in the growth under way, or back to."""
        new = role_range(self.members_before, self.width)
        if not back:
            return set(new)
        standing = () if self.surrogate is not None else self._standing
        return set(role_range(0, self.members_before)).difference(standing)

    def moving(self, start: int, end: int) -> tuple[Numbers, Numbers]:
        """Return the columns that the last growth moves in the stripes start..end-1.

        Two arrays of equal length, by rising stripe: stripes, columns. Columns that the growth adds
        are not counted.
        """
        numbers = np.arange(start, end, dtype=np.int64)
        moves = self._roles_before(numbers) != self._roles_after(numbers)
        last = self.generations[-1]
        moves[:, last.first_column : last.first_column + last.columns] = False
        stripes, columns = np.nonzero(moves)
        return stripes + start, columns

    def moved_cells(self, stripe: Stripe) -> int:
        """Return the set of cells of *stripe* that the growth under way moves, parity included."""
        if not self.growing:
            return 0
        last = self.generations[-1]
        new = range(last.first_column, last.first_column + last.columns)
        pairs = enumerate(zip(self._before.of(stripe), self._after.of(stripe), strict=True))
        masks = self.code.column_masks
        return sum(masks[c] for c, (old, new_) in pairs if old != new_ and c not in new)

    def partner(self, stripe: Stripe, column: int) -> CellIndex:
        """Return the new column that takes the place of *column*, which moves, in *stripe*."""
        return CellIndex(self._after.of(stripe).index(self._before.of(stripe)[column]))


def growth_of(layout: Layout) -> ElasticLayout | None:
    """Return *layout* if it is one whose growth is under way."""
    return layout if isinstance(layout, ElasticLayout) and layout.growing else None
