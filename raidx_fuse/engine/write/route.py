"""The route of each piece: through the log or past it, and with a dirty mark or without."""

from __future__ import annotations

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.split import Piece
from raidx_fuse.layouts.placements.elastic import ElasticLayout


class WriteRoute:
    """Decides the route of pieces; the locks of their stripes are held."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context

    def must_log(self, piece: Piece) -> bool:
        """Return True if *piece* must go through the log (write-ahead log), which makes it atomic.

        Two kinds of write need not:

        * a full stripe: a resync can finish its parity, and its old content was to be overwritten
          anyway;
        * a write that changes no parity and writes no chunk for the first time.
        """
        context = self.context
        journal = context.journal
        if journal.holds(piece.stripe):
            return True  # recovery may still redo an older record over this write
        if journal.mode != "partial":
            return journal.mode == "full"
        if context.code.parity_count and not self._is_full(piece):
            return True
        if context.member_set.lost and context.member_set.lost_at(piece.stripe):
            return True  # no resync can finish the parity of a degraded stripe
        if context.all_read_zero:
            return False
        return bool(context.unwritten_cells(piece.stripe) & piece.touched)

    def must_mark(self, piece: Piece) -> bool:
        """Return True if the region must be marked dirty (write intent) before *piece* is written.

        That is so if a crash during the write leaves something that a resync must finish.
        """
        context = self.context
        if context.code.parity_count or context.journal.mode == "none":
            return True
        return bool(context.unwritten_cells(piece.stripe) & piece.touched)

    def _is_full(self, piece: Piece) -> bool:
        """Return True if *piece* overwrites every written chunk of its stripe.

        That is the full stripe, or in an array that has grown one generation of blocks without
        written blocks of other generations (see `GrownFullStripeWrite`).
        """
        context, layout = self.context, self.context.layout
        whole, every = piece.whole_cells(context.chunk_bytes), context.code.data_mask
        if whole == every or not isinstance(layout, ElasticLayout) or context.growth is not None:
            return whole == every
        beside = every & ~whole
        return beside & ~context.unwritten_cells(piece.stripe) == 0 and layout.is_generation(
            piece.stripe, whole
        )
