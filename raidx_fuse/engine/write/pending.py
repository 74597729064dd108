"""Pending writes: some members took their part synchronously, the others complete it later."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.journal.group_commit import CommitBatch
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.buffers import Arena
from raidx_fuse.store.member_set import MemberIO, join

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PendingWrite:
    """*left* is to be written to *stripes*, which are locked; its buffers may lie in *arena*."""

    stripes: list[int]
    left: list[MemberIO]
    arena: Arena


def write_synchronously(
    context: ArrayContext, requests: Sequence[MemberIO]
) -> list[MemberIO] | None:
    """Write *requests* without suspending; return what is left, None if nobody took anything.

    No member is lost. The caller locks the stripes before anything else runs if anything is left.
    """
    queues = context.member_set.readable
    left: list[MemberIO] = []
    begun = False
    for request in requests:
        role, position, buffers, size = request
        try:
            if queues[role].try_writev(position, buffers, size):  # type: ignore[union-attr]
                begun = True
                continue
        except MemberError:
            begun = True  # perhaps; it is tried once more with the rest, then the member fails
        if not begun:
            return None
        left.append(request)
    return left


def keep_locked(
    context: ArrayContext, stripes: Iterable[int], left: list[MemberIO], arena: Arena
) -> PendingWrite | None:
    """Return what is *left* of *stripes*, which nobody holds, locked now; None if nothing is."""
    if left:
        return PendingWrite(context.locks.take_free(stripes), left, arena)
    context.arenas.put(arena)
    return None


# What the fast ways of writing leave when a member does not write at once: it is finished here.
#
# Nothing else ran since they began, and the stripes are locked before anything does. A request that
# is cancelled leaves no stripe half written: waits for members cannot be cancelled
# (store/queue.py).


class Completion:
    """Finishes writes to *context*. Its methods raise what the members raise.

    Nothing is acknowledged before the superblocks say who is out (`MemberSet.published`).
    """

    def __init__(self, context: ArrayContext) -> None:
        self.context = context

    async def write_left(
        self,
        stripe: int,
        left: list[MemberIO],
        sequence: int | None,
        offset: int,
        view: memoryview,
    ) -> None:
        """Write what `SmallWrite` has left of *view*, at *offset*; *sequence* if it is a record."""
        context = self.context
        await context.locks.take(stripe)
        if sequence is None:
            await self._place([stripe], left)
            if context.cache is not None:
                context.cache.wrote(offset, view)
        else:
            try:
                await context.journal.finish(sequence, left)
                if context.cache is not None:
                    context.cache.wrote(offset, view)
            except RaidxError:
                context.forget_stripe(stripe)
                raise
            finally:
                context.locks.release(stripe)
        if context.member_set.unpublished:
            await context.member_set.published()

    async def complete_locked(self, begun: PendingWrite) -> None:
        """Write what is left of whole stripes."""
        context = self.context
        await self._place(begun.stripes, begun.left)
        context.arenas.put(begun.arena)
        if context.member_set.unpublished:
            await context.member_set.published()

    async def wait_for(self, late: CommitBatch | None) -> None:
        """Wait until the log has all of a gathering that is *late*, if there is one."""
        if late is None:
            return
        context = self.context
        try:
            await context.journal.finish_gathered(late)
        except RaidxError:
            for stripe in late.stripes:
                context.forget_stripe(stripe)
            raise
        if context.member_set.unpublished:
            await context.member_set.published()

    async def _place(self, stripes: list[int], left: list[MemberIO]) -> None:
        """Write what bypasses the log to *stripes*, which are locked, and release them."""
        context = self.context
        marked = context.dirty_bitmap.enter_now(stripes)
        try:
            await context.member_set.write(join(left))
        except RaidxError:
            self.note_torn(stripes)
            raise
        finally:
            context.unflushed_writes.count += 1
            for stripe in stripes:  # who read meanwhile may have kept what was there before
                context.forget_stripe(stripe)
            if marked:
                context.dirty_bitmap.leave(stripes)
            context.locks.release_all(stripes)

    def note_torn(self, stripes: Iterable[int]) -> None:
        """Remember which lost chunks a half-done write took down with it."""
        context = self.context
        for stripe in stripes:
            lost = context.layout.lost_cells(stripe, context.member_set.lost_at(stripe))
            lost &= context.code.data_mask & ~context.unwritten_cells(stripe)
            for cell in cells_of(lost):
                chunk = context.layout.logical(stripe, cell)
                if chunk not in context.bad_chunks:
                    log.error(
                        "the content of %s is lost: a member failed during a degraded write",
                        context.where(stripe, (cell,)),
                    )
                context.bad_chunks.add(chunk)
