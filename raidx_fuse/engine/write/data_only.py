"""Logging data without its parity, which follows at the checkpoint (journal/unsettled.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.split import Piece
from raidx_fuse.journal.stripe_parity import Part
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.store.member_io import MemberIO

RECORD_SHARE = 8  # a record takes at most 1/RECORD_SHARE of the ring, unless one stripe has more


def data_writes(context: ArrayContext, piece: Piece, view: Any) -> list[MemberIO]:
    """Return the writes of the data of *piece*, whose request has the content *view*."""
    writes: list[MemberIO] = []
    for cell, low, high in piece.parts(context.chunk_bytes):
        role, position = context.position(piece.stripe, cell)
        at = piece.at(cell, context.chunk_bytes) + low
        writes.append((role, position + low, [view[at : at + high - low]], high - low))
    return writes


async def log_data(context: ArrayContext, pieces: Sequence[Piece], view: memoryview) -> list[Piece]:
    """Log the data of *pieces*, whose stripes are locked.

    Returns the pieces that must be logged with their parity, because the layout is about to change
    or the ring is too small. Raises what the members raise.
    """
    journal = context.journal
    changes: list[tuple[Stripe, list[Part], list[MemberIO]]] = []
    done = total = 0
    for number, piece in enumerate(pieces):
        writes = data_writes(context, piece, view)
        size = sum(request[3] for request in writes)
        if changes and total + size > journal.capacity // RECORD_SHARE:
            if not await journal.commit_data(changes):
                return list(pieces[done:])
            changes, total, done = [], 0, number
        changes.append((piece.stripe, piece.parts(context.chunk_bytes), writes))
        total += size
    if changes and not await journal.commit_data(changes):
        return list(pieces[done:])
    if context.member_set.unpublished:
        await context.member_set.published()
    return []
