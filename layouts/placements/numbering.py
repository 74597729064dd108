"""The order of chunks in a grown array, and layouts whose stripes hold chunks in that order.

A restripe moves chunks in the order in which they lie in the stripes, so that the rows in front of
it become free. In a grown array that is not the order of the image: each stripe holds chunks of all
generations. `Numbering` gives each chunk its *index*, the number of its data cell over all stripes
of the grown array. An array that is restriped after it has grown keeps this order for ever: its
stripe s holds the chunks with the indexes s * D .. s * D + D - 1 (`OrderedLayout`).

Of the last generation only the first stripes may be in use. Then the stripes behind them have fewer
chunks, and the indexes leave no gap:

    stripe       0      1      2    3    4       raid5 from 4 to 5 members; of the new column, the
    indexes      0..3   4..7   8..  11.. 14..    first two stripes are *kept*
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Stripe, stripe_and_cell
from raidx_fuse.layouts.placements.elastic_mapping import Generation, Growth, Numbers
from raidx_fuse.layouts.placements.pattern import Pattern, PatternLayout

MOST = 1 << 40  # stripes
COLUMNS_MAX = 255


class Numbering:
    """Chunk to index and back, in an array that had *stripes* stripes of *rows* rows.

    *generations* has for each generation (columns, members, granule); granule 0 says that its
    chunks are numbered stripe by stripe. The last generation counts in the first *kept* stripes
    only (None: in all). Chunks behind the *total* of what counts have their own number as index.
    Raises LayoutError if the last generation has no first chunks that fill just these stripes.
    """

    def __init__(
        self,
        stripes: int,
        rows: int,
        generations: Sequence[tuple[int, int, int]],
        kept: int | None = None,
    ) -> None:
        self.stripes = stripes
        self.rows = rows
        self._described = tuple(generations)
        found: list[Generation] = []
        start = column = 0
        for columns, members, granule in generations:
            growth = Growth(members - columns, members, granule, 0, 1) if granule else None
            found.append(Generation(start, columns, column, rows, stripes, growth))
            start, column = found[-1].end, column + columns
        self.generations = tuple(found)
        self.columns = column
        self.kept = stripes if kept is None else kept
        last = found[-1]
        if not 0 < self.kept <= stripes or last.stripes_of(self.kept * last.each) != self.kept:
            raise LayoutError(f"the last growth cannot be in use in the first {kept} stripes only")
        self.total = last.start + self.kept * last.each
        self._each = rows * column
        self._fewer = last.first_column if self.kept < stripes else column  # behind those kept
        self._even = self.kept * self._each  # the first index behind them

    def as_dict(self) -> dict[str, Any]:
        """Return the numbering as JSON values; `numbering_from` is the inverse."""
        described = [list(generation) for generation in self._described]
        if self.kept < self.stripes:
            described[-1].append(self.kept)
        return {"stripes": self.stripes, "rows": self.rows, "generations": described}

    def index(self, chunk: int) -> int:
        """Return the index of the logical *chunk*."""
        if chunk >= self.total:
            return chunk
        generation = next(g for g in self.generations if chunk < g.end)
        stripe, row, column = generation.locate(chunk)
        if stripe < self.kept:
            return (stripe * self.rows + row) * self.columns + column
        return self._even + ((stripe - self.kept) * self.rows + row) * self._fewer + column

    def chunk(self, index: int) -> int:
        """Return the logical chunk with *index*."""
        if index >= self.total:
            return index
        if index < self._even:
            stripe, cell = divmod(index, self._each)
            row, column = divmod(cell, self.columns)
        else:
            stripe, cell = divmod(index - self._even, self.rows * self._fewer)
            stripe += self.kept
            row, column = divmod(cell, self._fewer)
        generation = next(g for g in self.generations if column < g.first_column + g.columns)
        return generation.logical(stripe, row, column - generation.first_column)

    def chunks(self, indexes: Numbers) -> Numbers:
        """Return the logical chunks with *indexes*, as `chunk`, for any shape."""
        indexes = np.asarray(indexes, dtype=np.int64)
        stripes, cells = np.divmod(indexes, self._each)
        rows, columns = np.divmod(cells, self.columns)
        if self.kept < self.stripes:
            behind = indexes >= self._even
            more, cells = np.divmod(indexes - self._even, self.rows * self._fewer)
            stripes = np.where(behind, self.kept + more, stripes)
            rows = np.where(behind, cells // self._fewer, rows)
            columns = np.where(behind, cells % self._fewer, columns)
        found = indexes.copy()
        for generation in self.generations:
            own = columns - generation.first_column
            mine = (own >= 0) & (own < generation.columns) & (indexes < self.total)
            chunks = generation.logical(np.minimum(stripes, self.stripes - 1), rows, own)
            found = np.where(mine, chunks, found)
        return found


def numbering_from(values: Any) -> Numbering:
    """Return the numbering from JSON *values*. Raises LayoutError if they are not valid."""
    match values:
        case {"stripes": int(stripes), "rows": int(rows), "generations": [_, *_] as generations}:
            described, kept = list(generations), stripes
            match generations:
                case [_, *_, [columns, members, granule, int(part)]]:
                    described[-1], kept = [columns, members, granule], part
            possible = 0 < stripes <= MOST and 0 < rows <= COLUMNS_MAX
            if possible and all(map(_is_generation, described)):
                return Numbering(stripes, rows, [tuple(each) for each in described], kept)
    raise LayoutError(f"order must say stripes, rows and generations, not {values!r}")


def _is_generation(values: Any) -> bool:
    if not isinstance(values, list | tuple) or list(map(type, values)) != [int, int, int]:
        return False
    columns, members, granule = (int(value) for value in values)
    if not granule:
        return 0 < columns <= COLUMNS_MAX
    return 0 < columns < members <= COLUMNS_MAX and 0 < granule <= MOST


class OrderedLayout(PatternLayout):
    """A layout by a pattern whose stripes hold the chunks in the order of *numbering*."""

    contiguous = False

    def __init__(
        self,
        numbering: Numbering,
        name: str,
        code: Code,
        chunk_bytes: int,
        member_chunks: int,
        width: int,
        pattern: Pattern,
    ) -> None:
        super().__init__(name, code, chunk_bytes, member_chunks, width, pattern)
        if self.chunks < numbering.total:
            raise LayoutError(
                f"{name} on {self.width} members has room for {self.chunks} chunks of the image's "
                f"{numbering.total}"
            )
        self.numbering = numbering
        self.ordered_chunks = numbering.total

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        return stripe_and_cell(self.numbering.index(chunk), self.code.data_count)

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        return Chunk(self.numbering.chunk(stripe * self.code.data_count + cell))

    def logical_rows(self, start: int, end: int) -> Numbers:
        count = self.code.data_count
        indexes = np.arange(start * count, end * count, dtype=np.int64)
        return self.numbering.chunks(indexes).reshape(end - start, count)
