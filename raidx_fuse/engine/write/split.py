"""Splitting a request into pieces, one for each stripe that it touches."""

from __future__ import annotations

from dataclasses import dataclass, field

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.layouts.numbers import CellIndex, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import (
    Band,
    bands,
    scattered_bands,
)
from raidx_fuse.members.unreadable import PAGE_BYTES, Needed


@dataclass(slots=True)
class Piece:
    """The part of a request in one stripe: from byte *start* of cell *first* to *end* of *last*.

    *end* is exclusive. *data_at* is where the piece begins in the request; its cells follow one
    another there.
    """

    stripe: Stripe
    first: int
    start: int
    last: int
    end: int
    data_at: int

    @property
    def touched(self) -> int:
        """The mask of the cells that the piece touches."""
        return (2 << self.last) - (1 << self.first)

    def at(self, cell: CellIndex, chunk_bytes: int) -> int:
        """Return where byte 0 of *cell* is in the request; negative for a cut first cell."""
        return self.data_at - self.start + (cell - self.first) * chunk_bytes

    def bands(self, chunk_bytes: int) -> list[Band]:
        """Return the bands of the piece (layouts/planning/stripe_plan.py)."""
        return bands(self.first, self.start, self.last, self.end, chunk_bytes)

    def parts(self, chunk_bytes: int) -> list[tuple[CellIndex, int, int]]:
        """Return (cell, first byte, end byte) of each cell that the piece touches."""
        first, last = self.first, self.last
        return [
            (cell, self.start if cell == first else 0, self.end if cell == last else chunk_bytes)
            for cell in cell_range(first, last + 1)
        ]

    def whole_cells(self, chunk_bytes: int) -> int:
        """Return the mask of the cells that the piece covers completely."""
        mask = self.touched
        if self.start:
            mask &= ~(1 << self.first)
        if self.end < chunk_bytes:
            mask &= ~(1 << self.last)
        return mask

    def needed(self, view: memoryview, chunk_bytes: int) -> Needed:
        """Return which bytes of its stripe the piece reads or writes, and their new content."""
        spans = {cell: (begin, end) for cell, begin, end in self.parts(chunk_bytes)}

        def new(cell: CellIndex, at: int) -> memoryview | None:
            begin, end = spans.get(cell, (0, 0))
            if not begin <= at < at + PAGE_BYTES <= end:
                return None
            place = self.at(cell, chunk_bytes) + at
            return view[place : place + PAGE_BYTES]

        bands = self.bands(chunk_bytes)
        return Needed(min(b[0] for b in bands), max(b[1] for b in bands), new)


@dataclass(slots=True)
class ScatteredPiece(Piece):
    """A piece whose cells are not in order in the request (layouts that are not contiguous).

    *ranges* maps a cell to (its first byte, its end byte, where its byte 0 is in the request).
    """

    ranges: dict[CellIndex, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def touched(self) -> int:
        """The mask of the cells that the piece touches."""
        return sum(1 << cell for cell in self.ranges)

    def at(self, cell: CellIndex, chunk_bytes: int) -> int:
        """Return where byte 0 of *cell* is in the request; negative for a cut first cell."""
        return self.ranges[cell][2]

    def bands(self, chunk_bytes: int) -> list[Band]:
        """Return the bands of the piece (layouts/planning/stripe_plan.py)."""
        return scattered_bands({c: (start, end) for c, (start, end, _) in self.ranges.items()})

    def parts(self, chunk_bytes: int) -> list[tuple[CellIndex, int, int]]:
        """Return (cell, first byte, end byte) of each cell that the piece touches."""
        return [(cell, start, end) for cell, (start, end, _) in self.ranges.items()]

    def whole_cells(self, chunk_bytes: int) -> int:
        """Return the mask of the cells that the piece covers completely."""
        return sum(1 << c for c, (s, e, _) in self.ranges.items() if s == 0 and e == chunk_bytes)


def split(context: ArrayContext, offset: int, at: int, length: int) -> list[Piece]:
    """Cut the bytes *at*..*length* - 1 of a request at *offset* into pieces, one per stripe."""
    layout, shift, mask = context.layout, context.shift, context.inner_mask
    if not layout.contiguous:
        return _split_scattered(context, offset, at, length)
    span = context.data_count
    pieces = []
    while at < length:
        stripe, first = layout.locate(offset + at >> shift)
        start = offset + at & mask
        size = min((span - first << shift) - start, length - at)
        last = first + (start + size - 1 >> shift)
        end = (start + size - 1 & mask) + 1
        pieces.append(Piece(stripe, first, start, last, end, at))
        at += size
    return pieces


def _split_scattered(context: ArrayContext, offset: int, at: int, length: int) -> list[Piece]:
    locate, shift, mask = context.layout.locate, context.shift, context.inner_mask
    pieces: dict[int, Piece] = {}
    while at < length:
        stripe, cell = locate(offset + at >> shift)
        start = offset + at & mask
        size = min(context.chunk_bytes - start, length - at)
        known = pieces.get(stripe)
        if known is None:
            pieces[stripe] = Piece(stripe, cell, start, cell, start + size, at)
        else:
            if not isinstance(known, ScatteredPiece):
                first = {
                    CellIndex(known.first): (known.start, known.end, known.data_at - known.start)
                }
                known = ScatteredPiece(stripe, 0, 0, 0, 0, 0, ranges=first)
                pieces[stripe] = known
            known.ranges[cell] = start, start + size, at - start
        at += size
    return list(pieces.values())
