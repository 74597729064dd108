"""Which parts of a request go through the journal, and which are marked dirty meanwhile."""

from __future__ import annotations

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.split import Piece
from raidx_fuse.layouts.placements.elastic import ElasticLayout


class WriteRoute:
    """The rules of *context*; the locks of the stripes are held."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context

    def must_log(self, piece: Piece) -> bool:
        """Say whether *piece* goes through the journal, which makes it all or nothing.

        A full stripe need not: its parity is finished by a resync, and what it overwrites was to go
        anyway. Nor a write that changes no parity and brings nothing to life.
        """
        context = self.context
        journal = context.journal
        if journal.holds(piece.stripe):
            return True  # an older record may still be replayed over what lies in its place
        if journal.mode != "partial":
            return journal.mode == "full"
        if context.code.parity_count and not self._is_full(piece):
            return True
        if context.member_set.lost and context.member_set.lost_at(piece.stripe):
            return True  # no resync can finish the parity of a stripe that lacks a member
        if context.all_read_zero:
            return False
        return bool(context.unwritten_cells(piece.stripe) & piece.touched)

    def must_mark(self, piece: Piece) -> bool:
        """Say whether a crash during the direct write of *piece* leaves something to finish."""
        context = self.context
        if context.code.parity_count or context.journal.mode == "none":
            return True
        return bool(context.unwritten_cells(piece.stripe) & piece.touched)

    def _is_full(self, piece: Piece) -> bool:
        """Say whether all that lives in the stripe is overwritten: the whole of it, or one birth
        of an array that has grown, beside which nothing lives (see `GrownFullStripeWrite`).
        """
        context, layout = self.context, self.context.layout
        whole, every = piece.whole_cells(context.chunk_bytes), context.code.data_mask
        if whole == every or not isinstance(layout, ElasticLayout) or context.growth is not None:
            return whole == every
        beside = every & ~whole
        return beside & ~context.unwritten_cells(piece.stripe) == 0 and layout.is_birth(
            piece.stripe, whole
        )
