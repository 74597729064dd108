"""Random ranges for the writes of a workload."""

from __future__ import annotations

import random

from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.members.base import SECTOR_BYTES


class Places:
    """Draws ranges within *sectors* sectors, in stripes of *stripe_bytes*, from *rng*."""

    rng: random.Random
    sectors: int
    stripe_bytes: int

    def place(self, kind: str | None = None) -> tuple[int, int]:
        """Draw (offset, length) in bytes: all sizes and alignments, mostly small.

        *kind* fixes the size class; None draws one.
        """
        rng = self.rng
        total = self.sectors * SECTOR_BYTES
        stripe_bytes = self.stripe_bytes
        kinds = ("sector", "sectors", "bytes", "page", "chunks", "stripe", "stripes", "many")
        kind = kind or rng.choices(kinds, (3, 3, 2, 3, 2, 3, 1, 2))[0]
        unit, length = SECTOR_BYTES, SECTOR_BYTES
        if kind == "sectors":
            length = rng.randint(2, 11) * SECTOR_BYTES
        elif kind == "bytes":
            unit, length = 1, rng.randint(1, 6000)
        elif kind == "page":
            unit = length = 4096
        elif kind == "chunks":
            unit, length = CHUNK_BYTES, rng.randint(1, 3) * CHUNK_BYTES
        elif kind == "stripe":
            unit = length = stripe_bytes
        elif kind == "stripes":
            unit, length = stripe_bytes, rng.randint(2, 3) * stripe_bytes
        elif kind == "many":
            length = rng.randint(stripe_bytes // 512, 3 * stripe_bytes // 512) * 512
        length = min(length, total)
        return rng.randrange((total - length) // unit + 1) * unit, length

    def near(self, where: tuple[int, int]) -> tuple[int, int]:
        """Draw a range that overlaps *where* or is adjacent to it."""
        offset, length = where
        total = self.sectors * SECTOR_BYTES
        size = max(1, min(length + self.rng.randint(-4, 4) * SECTOR_BYTES, 4 * length))
        start = offset + self.rng.randint(-2, 2) * SECTOR_BYTES
        start = max(0, min(start, total - 1))
        return start, max(1, min(size, total - start))
