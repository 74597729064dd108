"""The work of a write before its first byte is written: pieces, plans, XORs, places.

A request is cut into *pieces*, one for each stripe. A piece is cut into bands, each with a plan
(layouts/planning/stripe_plan.py). The plans become member reads, XORs in scratch memory, and member
writes. Nothing here suspends but a look at checksums (`find_unproven`), and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from raidx_fuse.engine.chunk_cache import address_of
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import (
    BandCells,
    BandPlan,
    Part,
    bands_of,
    cells_of,
    proven_plan,
    write_plans,
)
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.members.unreadable import PAGE_BYTES, Needed
from raidx_fuse.store.buffers import Arena, Bytes, zero_buffers
from raidx_fuse.store.io_tuples import MemberIO, MemberRead
from raidx_fuse.store.sums import Sums
from raidx_fuse.store.xor import terms_of


@dataclass(slots=True)
class Piece:
    """The part of a request in one stripe.

    *ranges* has for each cell of the mask *touched* its first byte, its end byte, and where its
    byte 0 is in the request; negative for a cut first cell. *keeps*: bytes of the cells that it
    writes whole are the old ones. *unverified*: (cell, byte in it) of pages of which some are, and
    nothing says that these are right.
    """

    stripe: Stripe
    touched: int = 0
    ranges: dict[CellIndex, tuple[int, int, int]] = field(default_factory=dict)
    keeps: bool = False
    unverified: Sequence[tuple[CellIndex, int]] = ()

    def unverified_places(self, context: ArrayContext) -> Iterator[tuple[Role, int]]:
        """Yield (role, byte offset) of the *unverified* pages and of the parities from them."""
        for cell, low in self.unverified:
            for changed in (cell, *map(CellIndex, context.code.affects[cell])):
                role, position = context.position(self.stripe, changed)
                if role >= 0:
                    yield role, position + low

    def content(self, view: memoryview, cell: CellIndex, low: int, high: int) -> memoryview:
        """Return the new bytes *low* .. *high* - 1 of *cell*; *view* is that of the request."""
        at = self.ranges[cell][2]
        return view[at + low : at + high]

    def parts(self) -> list[Part]:
        return [(cell, start, end) for cell, (start, end, _) in self.ranges.items()]

    def whole_cells(self, chunk_bytes: int) -> int:
        """Return the mask of the cells that the piece covers completely."""
        ranges = self.ranges.items()
        return sum(1 << cell for cell, (start, end, _) in ranges if end - start == chunk_bytes)

    def needed(self, view: memoryview) -> Needed:
        """Return which bytes of its stripe the piece reads or writes, and their new content."""

        def new(cell: CellIndex, at: int) -> memoryview | None:
            begin, end, _ = self.ranges.get(cell, (0, 0, 0))
            if not begin <= at < at + PAGE_BYTES <= end:
                return None
            return self.content(view, cell, at, at + PAGE_BYTES)

        _, starts, ends = zip(*self.parts(), strict=True)
        return Needed(min(starts), max(ends), new)


def split(context: ArrayContext, offset: int, at: int, length: int) -> list[Piece]:
    """Cut the bytes *at*..*length* - 1 of a request at *offset* into pieces, one per stripe."""
    layout, chunk_bytes = context.layout, context.chunk_bytes
    pieces: dict[Stripe, Piece] = {}
    while at < length:
        stripe, first = layout.locate((offset + at) // chunk_bytes)
        piece = pieces.get(stripe)
        if piece is None:
            piece = pieces[stripe] = Piece(stripe)
        start = (offset + at) % chunk_bytes
        stop = context.code.data_count if layout.contiguous else first + 1
        for cell in cell_range(first, stop):  # the next chunks, too
            end = chunk_bytes if length - at >= chunk_bytes - start else start + length - at
            piece.touched |= 1 << cell
            piece.ranges[cell] = start, end, at - start
            at += end - start
            if at == length:
                break
            start = 0
    return list(pieces.values())


Covered = dict[CellIndex, list[tuple[int, int]]]  # cell -> byte ranges


class BandRead(NamedTuple):
    """The range of a stripe for which *plan* reads cells, from byte *low* on."""

    stripe: Stripe
    low: int
    high: int
    plan: BandPlan


class Content(NamedTuple):
    """The content that *address* (engine/chunk_cache.py) will have when the work is done.

    *data* is None if it is not known. *changed*: it differs from the content before.
    """

    address: int
    length: int
    data: ReadBuffer | None
    changed: bool


@dataclass(slots=True)
class Work:
    """The work that is prepared for a request before its writes begin."""

    reads: list[MemberRead] = field(default_factory=list)
    xors: list[tuple[Bytes, list[Bytes]]] = field(default_factory=list)
    writes: list[MemberIO] = field(default_factory=list)
    fresh: list[Chunk] = field(default_factory=list)  # logical chunks written for the first time
    # (role, byte offset) of first writes
    reserve: list[tuple[Role, int]] = field(default_factory=list)
    arenas: list[Arena] = field(default_factory=list)
    plans: list[tuple[BandPlan, int]] = field(default_factory=list)  # with its pre-reads
    read_bands: list[BandRead] = field(default_factory=list)  # with checksums
    # (role, byte offset) of pages of *writes* that get no sums
    unverified: list[tuple[Role, int]] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)  # for the chunk cache
    cached: int = 0  # pre-reads that the cache saved


def prepare(
    context: ArrayContext,
    piece: Piece,
    view: memoryview,
    work: Work,
    unproven: BandCells | None = None,
) -> None:
    """Add the reads, XORs and writes of *piece* to *work*. Raises UnrecoverableError.

    What is *unproven* is read only if there is no plan that does without.
    """
    stripe, has_sums = piece.stripe, context.member_set.sums is not None
    lost_roles = context.member_set.lost
    lost = 0
    if lost_roles:
        lost = context.layout.lost_cells(stripe, context.member_set.lost_at(stripe))
    unwritten = context.unwritten_cells(stripe)
    covered: Covered = {}
    for low, high, touched in bands_of(piece.parts()):
        try:
            rmw, rcw = write_plans(context.code, touched, lost, unwritten)
        except Unrecoverable as error:
            raise context.lost_error(stripe, cells_of(error.cells)) from None
        known = 0
        if context.cache is not None:
            sources = (rmw.read_mask if rmw else 0) | (rcw.read_mask if rcw else 0)
            known = context.cached(stripe, sources, low, high)
        doubted = unproven.get((stripe, low, high), 0) if unproven else 0
        if doubted:
            plan = proven_plan(rmw, rcw, doubted)
        else:
            plan = context.policies.current(rmw, rcw, stripe, known)
        if has_sums and plan.reads:
            work.read_bands.append(BandRead(stripe, low, high, plan))
        work.plans.append((plan, plan.pre_reads_beside(known)))
        found = _prepare_band(context, piece, plan, low, high, view, work, known)
        absent = _write_absent(context, piece, touched & lost, low, high, view, work) if lost else 0
        if context.cache is not None:
            _note_contents(context, piece, touched, low, high, view, found, work)
        if unwritten:
            for cell in (*plan.writes, *cells_of(absent)):
                covered.setdefault(cell, []).append((low, high))
            for output in plan.outputs:
                covered.setdefault(output.cell, []).append((low, high))
    if unwritten:
        work.fresh.extend(fresh_chunks(context, piece))
        _first_write(context, piece, unwritten, covered, work)


def _write_absent(
    context: ArrayContext,
    piece: Piece,
    cells: int,
    low: int,
    high: int,
    view: memoryview,
    work: Work,
) -> int:
    """Add writes of the lost *cells*, which give them sums; return the cells that have any.

    Without checksums there are none. The log carries them, a member that is absent gets nothing.
    """
    kept = cells & context.kept_sums(piece.stripe) if context.member_set.sums is not None else 0
    for cell in cells_of(kept):
        role, position = context.position(piece.stripe, cell)
        content = piece.content(view, cell, low, high)
        work.writes.append((role, position + low, [content], high - low))
    return kept


async def find_unproven(
    context: ArrayContext, sums: Sums, bands: Sequence[BandRead], unproven: BandCells
) -> bool:
    """Enter what *bands* read and nothing proves; return whether another plan is due."""
    reads: list[MemberRead] = []
    owners: list[tuple[BandRead, CellIndex]] = []
    for band in bands:
        for cell in band.plan.reads:
            role, position = context.position(band.stripe, cell)
            reads.append((role, position + band.low, [], band.high - band.low))
            owners.append((band, cell))
    await sums.load(reads)
    found = False
    for (band, cell), (role, offset, _, size) in zip(owners, reads, strict=True):
        if sums.is_unproven(role, offset, size):
            before = unproven.get(band[:3], 0)
            unproven[band[:3]] = before | 1 << cell
            found |= not before >> cell & 1
    return found


def doubted_places(
    context: ArrayContext, bands: Sequence[BandRead], unproven: BandCells
) -> Iterator[tuple[Role, int]]:
    """Yield (role, byte offset) of the pages that *bands* write of what nothing proves."""
    for band in bands if unproven else ():
        doubted = unproven.get(band[:3], 0)
        for output in band.plan.outputs:
            if any(doubted >> cell & 1 for cell in output.old):
                role, position = context.position(band.stripe, output.cell)
                for at in range(band.low, band.high, PAGE_BYTES):
                    yield role, position + at


def fresh_chunks(context: ArrayContext, piece: Piece) -> list[Chunk]:
    stripe = piece.stripe
    cells = cells_of(context.unwritten_cells(stripe) & piece.touched)
    return [context.layout.logical(stripe, cell) for cell in cells]


def _prepare_band(
    context: ArrayContext,
    piece: Piece,
    plan: BandPlan,
    low: int,
    high: int,
    view: memoryview,
    work: Work,
    known: int,
) -> dict[int, memoryview]:
    """Add one band to *work*; return the buffers of the cells that are read or computed.

    The cells in the mask *known* come from the cache.
    """
    contents: dict[int, memoryview] = {}
    stripe, size = piece.stripe, high - low
    old: dict[CellIndex, Bytes] = {}
    slots: list[tuple[memoryview, Bytes]] = []
    used = len(plan.reads)
    if plan.outputs:
        arena = context.arenas.get((used + len(plan.outputs)) * size)
        work.arenas.append(arena)
        slots = arena.slots(size, used + len(plan.outputs))
        for cell, (buffer, array) in zip(plan.reads, slots, strict=False):
            contents[cell], old[cell] = buffer, array
            if known >> cell & 1 and context.cache is not None:
                context.cache.fill(address_of(context.layout, stripe, cell) + low, buffer)
                work.cached += 1
                continue
            role, position = context.position(stripe, cell)
            work.reads.append((role, position + low, [buffer], size))
    for cell in plan.writes:
        role, position = context.position(stripe, cell)
        content = piece.content(view, cell, low, high)
        work.writes.append((role, position + low, [content], size))
    new: dict[CellIndex, Bytes] = {}
    for output in plan.outputs:
        role, position = context.position(stripe, output.cell)
        if not output.old and len(output.new) == 1:  # a replica: the request's own data
            content = piece.content(view, output.new[0], low, high)
            if output.cell in contents:  # it was read, for a lost cell
                contents[output.cell] = content
            work.writes.append((role, position + low, [content], size))
            continue
        for cell in output.new:
            if cell not in new:
                new[cell] = np.frombuffer(piece.content(view, cell, low, high), np.uint8)
        buffer, out = slots[used]
        used += 1
        contents[output.cell] = buffer
        work.xors.append((out, terms_of(output, old, new)))
        work.writes.append((role, position + low, [buffer], size))
    return contents


def _note_contents(
    context: ArrayContext,
    piece: Piece,
    touched: int,
    low: int,
    high: int,
    view: memoryview,
    contents: dict[int, memoryview],
    work: Work,
) -> None:
    """Note for the cache what the cells of one band will hold: new data and pre-reads.

    Of copies only the data cell is cached. Computed parities are cached, except during a
    growth: a parity is addressed by its stripe, and a growth changes the stripes.
    """
    layout, code, stripe = context.layout, context.code, piece.stripe
    changed = touched
    if not code.is_copies:
        for parity, support in enumerate(code.support):
            if support & touched:
                changed |= 1 << (code.data_count + parity)
    for cell in cells_of(changed | sum(1 << cell for cell in contents)):
        data: memoryview | None = contents.get(cell)
        if touched >> cell & 1:
            data = piece.content(view, cell, low, high)
        elif cell >= code.data_count and context.growth is not None:
            data = None
        address = address_of(layout, stripe, cell) + low
        work.contents.append(Content(address, high - low, data, bool(changed >> cell & 1)))


def _first_write(
    context: ArrayContext,
    piece: Piece,
    unwritten: int,
    covered: Covered,
    work: Work,
) -> None:
    """Complete cells that are written for the first time: zeros around the new bytes.

    A member that reads as zero where it is unwritten needs none.
    """
    for cell, ranges in covered.items():
        if not unwritten >> cell & 1:
            continue
        role, position = context.position(piece.stripe, cell)
        work.reserve.append((role, position))
        if role in context.zeros.roles:
            continue
        at = 0
        for low, high in [*sorted(ranges), (context.chunk_bytes, context.chunk_bytes)]:
            if low > at:
                work.writes.append((role, position + at, zero_buffers(low - at), low - at))
            at = high
