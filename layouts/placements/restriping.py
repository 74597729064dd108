"""The union of two layouts of one image, used during a restripe (a reshape, in md's terms).

The chunks of the image move from one layout to the other in order. Logical chunks below the
*watermark* have the place that one layout gives them, the others that of the other layout:

    logical chunk   0 . . . . . . . watermark . . . . . . . end
                    [ below         |         above         ]
    denser          the watermark rises: chunks move from *above*, the old layout, to *below*
    less dense      it falls: chunks move from *below*, the old layout, to *above*

*below* is the denser layout: it needs no more rows of the members for a chunk than *above*. So the
new places of moved chunks never overlap the old places of chunks that have not moved, except in the
first few stripes (layouts/planning/restripe_schedule.py).

The two codes are joined side by side into one code. A stripe of either layout is a stripe of the
union in which the cells of the other one are unwritten. So reads, writes, degraded reads, rebuild
and scrub need no special case for the restripe. A data cell that is not the current place of its
chunk belongs to the logical chunk `nowhere`, which is never written: it counts as zero in its
chains (raidx_fuse/ARCHITECTURE.md, written map).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from raidx_fuse.layouts.codes.code import Cell, Code, LayoutError
from raidx_fuse.layouts.numbers import CellIndex, Chunk, MemberChunk, Role, Stripe, cell_range
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.numbering import Numbering, OrderedLayout
from raidx_fuse.layouts.placements.pattern import PatternLayout
from raidx_fuse.layouts.placements.views import LayoutView, View

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOWHERE = Role(-1), MemberChunk(0)  # the place of a cell of the other layout


class PartlyUsedError(LayoutError):
    """No restripe in one direction: the first stripes hold more chunks than the last ones."""


@lru_cache(maxsize=64)
def side_by_side(below: Code, above: Code) -> Code:
    """Return the code of a stripe with the columns of *below*, followed by those of *above*."""

    def beside(cell: Cell) -> Cell:
        return cell[0], cell[1] + below.columns

    return Code(
        f"{below.name} below {above.name}",
        max(below.rows, above.rows),
        below.columns + above.columns,
        below.chains + tuple(tuple(map(beside, chain)) for chain in above.chains),
        below.data + tuple(map(beside, above.data)),
        min(below.tolerance, above.tolerance),
    )


class RestripeLayout(Layout):
    """The union of *below* and *above* for an image of *image_chunks* chunks.

    *watermark* is described above; at first no chunk has moved. *rises* says that the watermark
    rises, that is, that *below* is the *new* layout and *above* the *old* one; else it is the other
    way round.

    An array that has grown is restriped in the order in which chunks lie in its stripes. Then
    *numbering* gives that order (numbering.py); watermark and *image_chunks* count indexes, and
    *size_bytes* is the size of the image.

    A view on fewer members than there are says which ones, and that of the old layout may have
    columns that are not in use (views.py).

    Stripes 0 .. below.stripes - 1 are those of *below*, the others those of *above*. *size_bytes*
    stays the size of the old image until the restripe ends.
    """

    contiguous = False
    aligned = False
    restriping = True

    def __init__(
        self,
        below: View,
        above: View,
        image_chunks: int,
        rises: bool,
        numbering: Numbering | None = None,
        size_bytes: int | None = None,
    ) -> None:
        self.numbering = numbering
        self.rises = rises
        self.below = below
        self.above = above
        self.old, self.new = (above, below) if rises else (below, above)
        self.image_chunks = self.watermark_max = image_chunks
        self.watermark = self.start = 0 if rises else image_chunks
        self.name = f"{below.name}/{above.name}"
        self.code = side_by_side(below.code, above.code)
        self.width = max(below.width, above.width)
        self.chunk_bytes = below.chunk_bytes
        self.stripes = self.initial_stripes = below.stripes + above.stripes
        self.nowhere = Chunk(max(below.chunks, above.chunks))
        self.chunks = self.nowhere + 1
        self.size_bytes = image_chunks * self.chunk_bytes if size_bytes is None else size_bytes
        self.member_chunks = max(below.member_chunks, above.member_chunks)
        self.initial_data_count = below.initial_data_count
        self._split = below.stripes
        self._below_data = below.code.data_count
        self._data = self.code.data_count
        self._below_cells = self._data + below.code.parity_count
        cells = cell_range(0, len(self.code.cells))
        data, parities = cells[: self._data], cells[self._data :]
        split = below.code.parity_count
        # The cells of each view in the union, by their index in the view, and back.
        self._in_union = (
            (*data[: self._below_data], *parities[:split]),
            (*data[self._below_data :], *parities[split:]),
        )
        self._in_below, self._in_above = (
            dict(zip(known, cells, strict=False)) for known in self._in_union
        )
        self._roles_below = (NOWHERE[0],) * below.code.columns
        self._roles_above = (NOWHERE[0],) * above.code.columns

    def move_watermark(self, chunk: Chunk) -> None:
        """Let *chunk* be the watermark; the chunks that it passes are copied."""
        self.watermark = chunk

    def stripe_of(self, view: View, stripe: Stripe) -> Stripe:
        """Return the stripe of the union that is *stripe* of *view* (*below* or *above*)."""
        return stripe if view is self.below else Stripe(self._split + stripe)

    def cell_of(self, view: View, cell: CellIndex) -> CellIndex:
        """Return the cell index in the union of *cell* of *view* (*below* or *above*)."""
        return self._in_union[view is self.above][cell]

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        return self.locate_index(chunk if self.numbering is None else self.numbering.index(chunk))

    def locate_index(self, chunk: int) -> tuple[Stripe, CellIndex]:
        """Return (stripe, cell) of the chunk with the index *chunk*."""
        if chunk < self.watermark or chunk >= self.above.chunks:
            return self.below.locate(chunk)
        stripe, cell = self.above.locate(chunk)
        return Stripe(self._split + stripe), CellIndex(self._below_data + cell)

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        """Return the logical chunk of the data cell *cell* of *stripe*, `nowhere` if none."""
        index = self.index(stripe, cell)
        return index if self.numbering is None else Chunk(self.numbering.chunk(index))

    def chunks_at(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the logical chunks with *indexes*."""
        return indexes if self.numbering is None else self.numbering.chunks(indexes)

    def index(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        """Return the index of the chunk of the data cell *cell* of *stripe*, `nowhere` if none."""
        if stripe < self._split:
            if cell >= self._below_data:
                return self.nowhere
            chunk = self.below.logical(stripe, cell)
            return chunk if 0 <= chunk < self.watermark else self.nowhere
        if cell < self._below_data:
            return self.nowhere
        own = Stripe(stripe - self._split), CellIndex(cell - self._below_data)
        chunk = self.above.logical(*own)
        return chunk if chunk >= self.watermark else self.nowhere

    def logical_rows(self, start: int, end: int) -> NDArray[np.int64]:
        rows = np.full((end - start, self._data), self.nowhere, dtype=np.int64)
        low = max(0, min(end, self._split) - start)
        if low:
            chunks = self.below.logical_rows(start, start + low)
            moved = (chunks >= 0) & (chunks < self.watermark)
            rows[:low, : self._below_data] = np.where(moved, chunks, self.nowhere)
        if low < end - start:
            first = start + low - self._split
            chunks = self.above.logical_rows(first, end - self._split)
            rows[low:, self._below_data :] = np.where(
                chunks >= self.watermark, chunks, self.nowhere
            )
        return self.chunks_at(rows)

    def mark(self, first: int, last: int) -> int:
        if self.numbering is not None:
            return self.watermark
        return min(max(self.watermark, first), last + 1)

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        """Return (role, member chunk) of a cell; (-1, 0) for a cell of the other layout."""
        if stripe < self._split:
            own = self._in_below.get(cell)
            return NOWHERE if own is None else self.below.place(stripe, own)
        own = self._in_above.get(cell)
        return NOWHERE if own is None else self.above.place(Stripe(stripe - self._split), own)

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        """Return (stripe, cell) of the data chunk that lies there now, None if there is none."""
        for view in (self.below, self.above):
            found = view.inverse(role, member_chunk)
            if found is None or found[1] >= view.code.data_count:
                continue
            stripe, cell = self.stripe_of(view, found[0]), self.cell_of(view, found[1])
            if self.logical(stripe, cell) != self.nowhere:
                return stripe, cell
        return None

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        """Return the role of each column of *stripe*, -1 for those of the other layout."""
        if stripe < self._split:
            return self.below.roles(stripe) + self._roles_above
        return self._roles_below + self.above.roles(Stripe(stripe - self._split))

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        view, shift, first_parity = self.below, 0, self._data
        if stripe >= self._split:
            view, shift, first_parity = self.above, self._below_data, self._below_cells
            stripe = Stripe(stripe - self._split)
        cells = view.lost_cells(stripe, lost_roles)
        count = view.code.data_count
        return (cells & view.code.data_mask) << shift | (cells >> count) << first_parity

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        return self.below.tolerates(lost_roles) and self.above.tolerates(lost_roles)


def restripe_of(layout: Layout) -> RestripeLayout | None:
    """Return *layout* if it is that of a restripe under way."""
    return layout if isinstance(layout, RestripeLayout) else None


def restripe(
    old: Layout, new: Layout, image_chunks: int, roles: Sequence[int] | None = None
) -> RestripeLayout:
    """Return the layout at the start of a restripe of *image_chunks* chunks from *old* to *new*.

    *roles*: the members of *old* on which *new* is to be; None: the first ones. If *new* cannot
    hold that many chunks, the image has fewer from now on: the caller makes sure that none of the
    others is in use. Raises LayoutError, one line, if the chunks have no order that can be kept.

    Of an array that has grown all chunks of the generations in use move; *new* says how many
    generations that are, and in how many stripes the last of them is in use.
    """
    order = new.numbering if isinstance(new, OrderedLayout) else None
    numbering, before = _kept_order(old, order)
    size_bytes = None
    image_chunks = min(image_chunks, new.chunks)
    if isinstance(old, ElasticLayout):
        image_chunks = min(image_chunks, before.chunks)
    if numbering is not None:
        size_bytes = image_chunks * old.chunk_bytes
        image_chunks = max(numbering.total, image_chunks)
    described = [None if each is None else each.as_dict() for each in (numbering, order)]
    if isinstance(new, ElasticLayout) or described[0] != described[1]:
        raise LayoutError(f"{new.name} on {new.width} members has another order of chunks")
    after: View = _by_pattern(new)
    if order is not None or roles is not None:
        after = LayoutView(new, roles=roles)
    # rows a chunk: those of a tile / its data cells, compared without a division
    (stripes, rows), (new_stripes, new_rows) = old.tile(), new.tile()
    room, new_room = rows * new_stripes * new.code.data_count, new_rows * stripes
    if new_room * before.data_count <= room:
        return RestripeLayout(after, before, image_chunks, True, numbering, size_bytes)
    if new_room * before.least_count < room:
        raise PartlyUsedError(
            f"the last growth of {old.name} is in use in part: the first stripes would need more "
            f"space on {new.width} members, and the others less"
        )
    return RestripeLayout(before, after, image_chunks, False, numbering, size_bytes)


def _kept_order(old: Layout, order: Numbering | None) -> tuple[Numbering | None, View]:
    """Return (the order of the chunks, a view) of *old*, with what *order* has in use.

    No order: the first generation alone. Raises LayoutError.
    """
    if isinstance(old, OrderedLayout):
        return old.numbering, LayoutView(old)
    if not isinstance(old, ElasticLayout):
        return None, _by_pattern(old)
    if order is None:  # one generation alone is in the order of the image
        return None, LayoutView(old, old.generations[0].columns)
    count = min(len(order.generations), len(old.generations))
    kept = min(order.kept, old.stripes)
    last = old.generations[count - 1]
    columns = last.first_column + last.columns
    view = LayoutView(old, columns, kept, last.first_column if kept < old.stripes else columns)
    return old.numbering(count, kept), view


def _by_pattern(layout: Layout) -> PatternLayout:
    if isinstance(layout, PatternLayout):
        return layout
    raise LayoutError(
        f"{layout.name} on {layout.width} members cannot be restriped: its chunks do not lie in an "
        "order that can be kept"
    )


def numbering_for(layout: Layout, image_chunks: int) -> Numbering | None:
    """Return the order of the chunks in the stripes of *layout*; None: that of the image.

    Of an array that has grown only the generations count that *image_chunks* chunks reach, and of
    the last one only the first stripes that hold its share of them.
    """
    if isinstance(layout, ElasticLayout):
        used = [each for each in layout.generations if each.start < image_chunks]
        if len(used) < 2:
            return None
        kept = used[-1].stripes_of(image_chunks - used[-1].start)
        return layout.numbering(len(used), min(kept, layout.stripes))
    return layout.numbering if isinstance(layout, OrderedLayout) else None
