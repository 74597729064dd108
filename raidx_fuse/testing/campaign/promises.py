"""What each journal mode promises after a cut, and where it promises less.

Without a lost member every mode promises: flushed bytes intact, every other sector old or new,
parity consistent once the mount's own work is done. With up to *tolerance* members lost:

full     the same, always.
partial  the same, but for the sectors on the lost members in stripes that a write covered whole
         and no flush had covered yet. Writes of whole chunks that fill a stripe one behind the
         other, from its front, count as one when the last has begun; of such a stripe only the
         sectors that no flush had covered.
none     the same (as md), but for the sectors on the lost members in stripes that were being
         written: any write that no flush had covered.
"""

from __future__ import annotations

from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.testing.campaign.history import Expectation
from raidx_fuse.testing.campaign.parts import Parts


def exempt_sectors(
    journal: str,
    layout: Layout,
    parts: Parts,
    expected: Expectation,
    lost_of_stripe: dict[int, frozenset[int]],
) -> frozenset[int]:
    """Return the sectors of *parts* that may read as anything, or not at all.

    *lost_of_stripe* has the roles that cannot be read in each stripe in flight.
    """
    if journal == "full":
        return frozenset()
    stripes = expected.full_in_flight if journal == "partial" else expected.in_flight
    per_chunk = layout.chunk_bytes // SECTOR_BYTES
    exempt: set[int] = set()
    for stripe in stripes:
        lost = lost_of_stripe[stripe]
        if not lost:
            continue
        for cell in range(layout.code.data_count):
            if layout.place(stripe, cell)[0] in lost:
                first = layout.logical(stripe, cell) * per_chunk
                exempt.update(parts.sectors_of(first, per_chunk))
    if journal == "partial" and layout.contiguous:
        for sector in expected.loose:
            stripe, cell = layout.locate(parts.in_image(sector) // per_chunk)
            if layout.place(stripe, cell)[0] in lost_of_stripe[stripe]:
                exempt.add(sector)
    return frozenset(exempt)


def lost_matters(journal: str) -> bool:
    """Say whether a degraded array that was cut is only started on the user's word."""
    return journal == "none"
