"""Which stripes a write touches, covers whole, and which sectors it completes."""

from __future__ import annotations

from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Fronts
from raidx_fuse.lab.crash.requests.image_parts import Parts
from raidx_fuse.layouts.numbers import Stripe, stripe_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.restriping import RestripeLayout


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
