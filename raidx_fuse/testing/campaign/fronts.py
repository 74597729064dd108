"""Which writes close a stripe that those before them have filled from the front
(engine/write/sequential.py).
"""

from __future__ import annotations

from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.testing.campaign.hardware import CHUNK_BYTES


class Fronts:
    """Follows writes to stripes of one size; `note` says what one closes."""

    def __init__(self) -> None:
        self._filled: dict[int, int] = {}  # stripe -> bytes from its front, in whole chunks

    def note(self, offset: int, end: int, stripe_bytes: int) -> frozenset[int]:
        """Note a write of the bytes *offset* to *end*; return the sectors of the stripes it closes.

        It brings the last chunks of them, whole, and those before it brought all others.
        """
        closed: set[int] = set()
        for stripe in range(offset // stripe_bytes, -(-end // stripe_bytes)):
            base = stripe * stripe_bytes
            low, high = max(offset - base, 0), min(end - base, stripe_bytes)
            filled = self._filled.pop(stripe, 0)
            if low % CHUNK_BYTES or high % CHUNK_BYTES or low not in (0, filled):
                continue
            if high < stripe_bytes:
                self._filled[stripe] = high
            elif low:
                closed.update(range(base // SECTOR_BYTES, (base + stripe_bytes) // SECTOR_BYTES))
        return frozenset(closed)
