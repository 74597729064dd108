"""The roles of the columns of stripes that grew, kept in bytes: hot look-ups of grown arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raidx_fuse.layouts.placements.elastic_mapping import Numbers

BLOCK_SHIFT = 10
BLOCK_MASK = (1 << BLOCK_SHIFT) - 1
TABLE_BYTES_MAX = 16 << 20


class RoleTable:
    """The roles of the columns of each stripe, computed when asked for, in blocks of stripes.

    *make* returns the roles of stripes, (stripes, *columns*); they repeat after *period* stripes.
    So after few growths the whole table is small. A large one has only the first *phases* stripes
    of each *run*, as the others repeat them; if that is large, too, a part is kept.
    """

    __slots__ = ("_blocks_max", "blocks", "columns", "is_large", "make", "period", "phases", "run")

    def __init__(
        self,
        make: Callable[[Numbers], Numbers],
        columns: int,
        period: int,
        run: int = 1,
        phases: int = 1,
    ) -> None:
        self.make = make
        self.columns = columns
        self.period = period
        self.run = run
        self.phases = phases
        self.is_large = phases < run and period * columns > TABLE_BYTES_MAX
        self.blocks: dict[int, bytes] = {}
        self._blocks_max = max(1, TABLE_BYTES_MAX // (columns << BLOCK_SHIFT))

    def entry(self, stripe: int) -> int:
        """Return the number of the entry of *stripe* in a large table."""
        number = stripe % self.period
        return number // self.run * self.phases + number % self.run % self.phases

    def load(self, number: int) -> bytes:
        """Return the block of stripes *number*, one byte for each column of each stripe."""
        block = self.blocks.get(number)
        if block is None:
            if len(self.blocks) >= self._blocks_max:
                del self.blocks[next(iter(self.blocks))]
            first = number << BLOCK_SHIFT
            stripes = np.arange(first, first + (1 << BLOCK_SHIFT), dtype=np.int64)
            if self.is_large:
                stripes = stripes // self.phases * self.run + stripes % self.phases
            roles = self.make(stripes)
            block = self.blocks[number] = roles.astype(np.uint8).tobytes()
        return block

    def of(self, stripe: int) -> bytes:
        """Return the roles of the columns of *stripe*, one byte each."""
        stripe = self.entry(stripe) if self.is_large else stripe % self.period
        at = (stripe & BLOCK_MASK) * self.columns
        return self.load(stripe >> BLOCK_SHIFT)[at : at + self.columns]
