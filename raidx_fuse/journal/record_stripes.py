"""Which stripes the records of a log change."""

from __future__ import annotations

from collections.abc import Iterable

from raidx_fuse.format.log_record import Record
from raidx_fuse.layouts.numbers import Chunk, MemberChunk, Stripe, chunk_range
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.restriping import RestripeLayout

CHUNKS_MAX = 1 << 20


def stripes_changed(
    records: Iterable[Record], layout: Layout, data_offset: int
) -> frozenset[Stripe] | None:
    """Return the stripes that *records* change; None if that cannot be told.

    It cannot be told of a chunk of a raidx member that is absent: only its share of the look-up
    table says whose chunk it is; nor during a restripe; nor if the records name more than
    `CHUNKS_MAX` chunks as written or unwritten, because looking them up would delay the start.
    """
    if isinstance(layout, RestripeLayout):
        return None
    found: set[Stripe] = set()
    size, chunks = layout.chunk_bytes, 0
    for record in records:
        for role, offset, data in record.data:
            first = (offset - data_offset) // size
            for chunk in range(first, (offset - data_offset + len(data) - 1) // size + 1):
                place = layout.inverse(role, MemberChunk(chunk))
                if place is not None:
                    found.add(place[0])
                elif isinstance(layout, BundleLayout):
                    return None
        for number, count in (*record.written, *record.unwritten):
            end = min(number + count, layout.chunks)
            chunks += end - number
            if chunks > CHUNKS_MAX:
                return None
            found.update(layout.locate(Chunk(c))[0] for c in chunk_range(number, end))
        found.update(stripe for stripe, _, _ in record.unsettled)
        found.update(stripe for stripe, _ in (*record.settled, *record.parity))
        if isinstance(layout, BundleLayout):
            found.update(Stripe(cell // layout.length) for cell, _, _ in record.table)
    return frozenset(found)
