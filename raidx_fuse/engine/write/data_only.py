"""Logging data without its parity, which follows at the checkpoint (journal/unsettled.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raidx_fuse.engine.chunk_cache import address_of
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.split import Piece
from raidx_fuse.journal.stripe_parity import Part
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.planning.stripe_plan import Band, cells_of, write_plans
from raidx_fuse.store.member_io import MemberIO

RECORD_SHARE = 8  # a record takes at most 1/RECORD_SHARE of the ring, unless one stripe has more


def is_cached(context: ArrayContext, stripe: Stripe, bands: Sequence[Band]) -> bool:
    """Return whether the chunk cache has anything that a plan of *bands* reads.

    Then the parity is computed with the write: the pre-read is there, and a cached parity follows.
    """
    cache, layout, code = context.cache, context.layout, context.code
    if cache is None or code.is_copies or not code.parity_count:
        return False  # no pre-reads
    for low, high, touched in bands:
        rmw, rcw = write_plans(code, touched, 0, 0)
        cells = (rmw.read_mask if rmw else 0) | (rcw.read_mask if rcw else 0)
        for cell in cells_of(cells):
            if cache.touches(address_of(layout, stripe, cell) + low, high - low):
                return True
    return False


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
    or the ring is too small for it. Raises what the members raise.
    """
    done = 0
    while done < len(pieces):
        end = done
        changes: list[tuple[Stripe, list[Part], list[MemberIO]]] = []
        left_bytes = context.journal.capacity // RECORD_SHARE
        for piece in pieces[done:]:
            writes = data_writes(context, piece, view)
            left_bytes -= sum(request[3] for request in writes)
            if changes and left_bytes < 0:
                break
            changes.append((piece.stripe, piece.parts(context.chunk_bytes), writes))
            end += 1
        if not await context.journal.commit_data(changes):
            return list(pieces[done:])
        if context.cache is not None:
            for piece in pieces[done:end]:
                _cache(context, piece, view)
        done = end
    if pieces and context.member_set.unpublished:
        await context.member_set.published()
    return []


def _cache(context: ArrayContext, piece: Piece, view: memoryview) -> None:
    """Put the data of *piece* into the chunk cache."""
    assert context.cache is not None
    for cell, low, high in piece.parts(context.chunk_bytes):
        at = piece.at(cell, context.chunk_bytes) + low
        address = address_of(context.layout, piece.stripe, cell) + low
        context.cache.wrote(address, view[at : at + high - low])
