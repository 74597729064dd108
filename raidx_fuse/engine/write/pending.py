"""Pending writes: some members wrote their part synchronously, the others complete it later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import RaidxError
from raidx_fuse.journal.group_commit import CommitBatch, held
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.store.buffers import Arena
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import MemberIO, join

# What a write that did not suspend has done: its stripe, and the writes past the log that are left,
# or the commit batch that has to be written; empty if all is done.
Done = tuple[Stripe, Sequence[MemberIO] | CommitBatch]


@dataclass(slots=True)
class PendingWrite:
    """The member writes *left* to do in *stripes*, which are locked; buffers may lie in *arena*."""

    stripes: list[Stripe]
    left: list[MemberIO]
    arena: Arena


def keep_locked(
    context: ArrayContext, stripes: Iterable[Stripe], left: list[MemberIO], arena: Arena
) -> PendingWrite | None:
    """Lock *stripes* and return them with the writes *left* to do; None if none are left.

    No lock of *stripes* is held. If nothing is left, *arena* is returned to its pool.
    """
    if left:
        return PendingWrite(context.locks.take_free(stripes), left, arena)
    context.arenas.put(arena)
    return None


# Completion of what the fast paths left because a member could not write synchronously.
#
# No other task has run since the fast path began, and the stripes are locked before one can. A
# request that is cancelled leaves no stripe half written: waits for members cannot be cancelled
# (store/queue.py). Nothing is acknowledged before the superblocks exclude every failed member
# (`MemberSet.published`). What the members raise is raised.


async def complete(context: ArrayContext, done: Done, offset: int, view: memoryview) -> None:
    """Complete a write of *view* at *offset* inside one stripe, of which *done* is done."""
    stripe, left = done
    if isinstance(left, CommitBatch):
        # Cache it first: a later request may complete before this one does.
        if context.cache is not None:
            context.cache.wrote(offset, view)
        if not left.written:
            await held(left)
        if left.over is not None:
            try:
                await context.journal.finish_gathered(left)
            except RaidxError:
                for stripe in left.stripes:
                    context.forget_stripe(stripe)
                raise
    else:
        if left:
            await context.locks.acquire(stripe)
            await _place(context, [stripe], left)
        if context.cache is not None:
            context.cache.wrote(offset, view)
    if context.member_set.unpublished:
        await context.member_set.published()


async def complete_locked(context: ArrayContext, begun: PendingWrite) -> None:
    """Complete a write of full stripes, whose locks are held, and release the locks."""
    await _place(context, begun.stripes, begun.left)
    context.arenas.put(begun.arena)
    if context.member_set.unpublished:
        await context.member_set.published()


async def _place(context: ArrayContext, stripes: list[Stripe], left: Sequence[MemberIO]) -> None:
    """Write the requests *left* past the log to the locked *stripes*; release the locks."""
    try:
        async with context.cells.marked(stripes, begun=True):
            await context.cells.write(join(left), Cover.MARKED, stripes, background=False)
    finally:
        context.traffic.past_log += 1
        for stripe in stripes:  # a read meanwhile may have cached the old content
            context.forget_stripe(stripe)
        context.locks.release_all(stripes)
