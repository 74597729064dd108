"""Pieces of requests of which only the data is logged: which they are, and their commit.

A piece of whole chunks that begins where the log ends in its stripe; see
journal/deferred_parity.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raidx_fuse.core import Core
from raidx_fuse.journal.deferred_parity import Filling
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.member_set import Request
from raidx_fuse.write_work import Piece, Work


class Filler:
    """Looks for such pieces of requests to *core*."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def takes(self, piece: Piece) -> bool:
        """Say whether only the data of *piece* need be logged (journal/deferred_parity.py); note
        what is there.
        """
        core, stripe = self.core, piece.stripe
        layout = core.layout
        streams = core.journal.streams
        piece.logged = 0
        if not core.code.parity_count or not layout.contiguous or not layout.aligned:
            return False
        if core.store.lost or core.bad_chunks:
            return False
        if core.journal.forced:  # a restripe: the layout is about to change
            return False
        if piece.whole_cells(core.chunk_bytes) != piece.touched:
            return False
        before = streams.cells(stripe)
        if before != (1 << piece.first) - 1:
            return False
        if not core.written.whole(layout, stripe, stripe + 1):
            return False
        if not streams.reserve(stripe):
            return False
        piece.logged = before
        return True

    async def commit(
        self, logged: Sequence[Piece], records: Sequence[Work], still_valid: Callable[[], bool]
    ) -> bool:
        """Commit the pieces of which only the data is logged."""
        core = self.core
        filled: list[Filling] = []
        size = 0
        for piece, record in zip(logged, records, strict=True):
            if not piece.fills:
                continue
            more = piece.touched.bit_count() * core.chunk_bytes
            if filled and size + more > core.journal.capacity // 4:
                if not await core.journal.commit_filled(filled, still_valid):
                    return False
                filled, size = [], 0
            data_places = {core.position(piece.stripe, cell) for cell in cells_of(piece.touched)}
            parts: tuple[list[Request], list[Request]] = [], []
            for request in record.writes:
                parts[request[:2] not in data_places].append(request)
            filled.append(Filling(piece.stripe, piece.logged, piece.touched, *parts))
            size += more
        return not filled or await core.journal.commit_filled(filled, still_valid)
