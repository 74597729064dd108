"""What adding and removing members of a raidx array would do, told before: for ``--dry-run``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raidx_fuse.estimate import copy_estimate
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.layouts.planning.rebundle import Moves

if TYPE_CHECKING:
    from raidx_fuse.array import Array


def _document(
    array: Array, does: str, kind: str, moves: Moves, members: int, sources: int, more: int
) -> dict[str, Any]:
    """Return a dry run; each written chunk that moves is made of *sources* others."""
    assert array.reshape is not None
    size = moves.written << array.core.shift
    store = array.store
    return {
        "dry_run": True,
        "does": does,
        **copy_estimate(array, kind, sources * size, size, members),
        "chunks_to_move": moves.written,
        "places_to_change": len(moves) - moves.written,
        "redundancy_left": max(0, array.core.code.tolerance - len(store.lost)),
        "redundancy_reduced": False,
        "redundancy_reduced_seconds": 0.0,
        "size_before": array.size_bytes,
        "size_after": array.reshape.room.size_with(more),
    }


async def of_adding(array: Array, sizes: Sequence[int]) -> dict[str, Any]:
    """Return what members of *sizes* bytes would bring, and the written chunks to be moved for it.

    Raises UsageError.
    """
    assert array.reshape is not None
    room = array.reshape.room
    counts, roles = room.counts_with(sizes)
    moves, more = await room.plan_aside(counts)
    before = len(array.store.config.roles())
    does = (
        f"grows from {before} to {before + len(roles)} members: {more} bundles more; "
        f"{moves.written} written chunks move"
    )
    return _document(array, does, "grow", moves, len(roles), 1, more)


async def of_removing(array: Array, record: MemberRecord) -> dict[str, Any]:
    """Return what it takes to let the member of *record* go. Raises RaidxError if it cannot be."""
    reshape, layout = array.reshape, array.core.layout
    assert reshape is not None
    moves = await reshape.plan_removal(record)
    others = max(1, len(array.store.config.roles()) - 1)
    lost = record.role in array.store.lost
    sources = max(1, layout.code.data_count) if lost else 1
    does = (
        f"{'restores' if lost else 'moves'} {moves.written} written chunks of role {record.role} "
        f"{'onto' if lost else 'to'} other members, then lets go of it"
    )
    return _document(array, does, "restore" if lost else "evacuate", moves, others, sources, 0)
