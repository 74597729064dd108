"""Which whole cells of a stripe the log has: may the last part of the stripe go past the log?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from raidx_fuse.journal.stripe_parity import Part
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.store.member_set import MemberSet

KNOWN_MIN = 64  # stripes kept in `WholeCells.cells` beyond those that the ring holds


class WholeCells:
    """Which cells the log has of stripes that are written in whole cells, without their parity.

    *cells*: stripe -> mask, of stripes with no other records in the log. So recovery writes to
    these cells of the stripe only, and to its parity.
    """

    def __init__(self, member_set: MemberSet) -> None:
        self.cells: dict[Stripe, int] = {}
        self._member_set = member_set

    def note_parts(self, stripe: Stripe, parts: Sequence[Part], held: Collection[Stripe]) -> None:
        """Note that the log gets data *parts* of *stripe*, before the ring holds the record.

        No parts: a record of another kind.
        """
        chunk_bytes = self._member_set.layout.chunk_bytes
        if not self.cells and (not parts or parts[0][2] - parts[0][1] != chunk_bytes):
            return  # the usual case
        if parts and all(high - low == chunk_bytes for _, low, high in parts):
            self.note(stripe, sum([1 << cell for cell, _, _ in parts]), held)
        else:
            self.note_others((stripe,))

    def note(self, stripe: Stripe, mask: int, held: Collection[Stripe]) -> None:
        """Note that the log gets the cells in *mask* of *stripe*; it has records of *held*."""
        cells = self.cells
        if len(cells) > 2 * len(held) + KNOWN_MIN:  # the log holds most of them no longer
            cells = self.cells = {s: cells[s] for s in held if s in cells}
        if stripe not in held:
            cells[stripe] = mask
        elif stripe in cells:
            cells[stripe] |= mask

    def note_others(self, stripes: Iterable[Stripe]) -> None:
        """Note that the log gets other records of *stripes*."""
        if self.cells:
            for stripe in stripes:
                self.cells.pop(stripe, None)

    def is_all_of(self, stripe: Stripe, mask: int) -> bool:
        """Return whether recovery may write only the cells in *mask* of *stripe*, and parity."""
        return not self.cells.get(stripe, -1) & ~mask
