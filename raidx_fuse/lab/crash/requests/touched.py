"""Which stripes a write touches and covers whole, which sectors it completes or may give up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Fronts
from raidx_fuse.lab.crash.requests.image_parts import Parts
from raidx_fuse.layouts.numbers import Chunk, Stripe, cell_range, stripe_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.restriping import RestripeLayout
from raidx_fuse.members.base import SECTOR_BYTES


def touched_stripes(
    layout: Layout, parts: Parts, fronts: Fronts, stripe_bytes: int, offset: int, end: int
) -> tuple[frozenset[Stripe], frozenset[Stripe], frozenset[int]]:
    """Return the stripes of a write, those that it covers whole, and the sectors that it completes.

    *fronts* says what is completed. *offset* and *end* are bytes of the image;
    *stripe_bytes* counts if the stripes are not contiguous.
    """
    if isinstance(layout, RestripeLayout):  # a restripe sends every write through the log
        chunks = range(offset // CHUNK_BYTES, -(-end // CHUNK_BYTES))
        stripes = frozenset(layout.locate(chunk)[0] for chunk in chunks)
        return stripes, frozenset(), frozenset()
    if layout.contiguous:
        stripe_bytes = layout.code.data_count * layout.chunk_bytes
    stripes = frozenset(stripe_range(offset // stripe_bytes, -(-end // stripe_bytes)))
    closes = frozenset[int]()
    if layout.contiguous:
        closes = frozenset(
            sector
            for at in fronts.note(offset, end, stripe_bytes)
            for sector in parts.sectors_of(at, 1)
        )
    full = (s for s in stripes if offset <= s * stripe_bytes and (s + 1) * stripe_bytes <= end)
    return stripes, frozenset(full), closes


def stripes_uncovered(
    layout: Layout, parts: Parts, allowed: Sequence[Collection[object]]
) -> frozenset[int]:
    """Return the stripes of *layout* that have sectors with more than one of *allowed* contents.

    A write that waited while a restripe ended was asked for in stripes of the other shape.
    """
    per_chunk = layout.chunk_bytes // SECTOR_BYTES
    sectors = (sector for sector, contents in enumerate(allowed) if len(contents) > 1)
    chunks = {parts.in_image(sector) // per_chunk for sector in sectors}
    return frozenset(layout.locate(Chunk(chunk))[0] for chunk in chunks)


def sectors_on_lost(context: ArrayContext, parts: Parts, stripes: Iterable[int]) -> frozenset[int]:
    """Return the sectors of *stripes* that lie on lost members.

    Past the log a refused write may leave these stripes torn: what their chains would solve is lost
    for ever, also where the chunk of a bundle comes to another member later.
    """
    layout, lost_at = context.layout, context.member_set.lost_at
    per_chunk = CHUNK_BYTES // SECTOR_BYTES
    sectors: set[int] = set()
    for stripe in map(Stripe, stripes):
        for cell in cell_range(0, layout.code.data_count):
            if layout.place(stripe, cell)[0] in lost_at(stripe):
                first = layout.logical(stripe, cell) * per_chunk
                sectors.update(parts.sectors_of(first, per_chunk))
    return frozenset(sectors)
