"""What the fast ways of writing leave when a member does not write at once: it is finished here.

Nothing else ran since they began, and the stripes are locked before anything does. A request that
is cancelled leaves no stripe half written: waits for members cannot be cancelled (store/queue.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from raidx_fuse.begun import Begun
from raidx_fuse.core import Core
from raidx_fuse.errors import RaidxError
from raidx_fuse.journal.group_commit import Gathering
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.member_set import Request, join

log = logging.getLogger(__name__)


class Finisher:
    """Finishes writes to *core*. Its methods raise what the members raise.

    Nothing is acknowledged before the superblocks say who is out (`Store.settled`).
    """

    def __init__(self, core: Core) -> None:
        self.core = core

    async def write_left(
        self,
        stripe: int,
        left: list[Request],
        sequence: int | None,
        offset: int,
        view: memoryview,
    ) -> None:
        """Write what `AtOnce` has left of *view*, at *offset*; *sequence* if it is a record."""
        core = self.core
        await core.locks.take(stripe)
        if sequence is None:
            await self._place([stripe], left)
            if core.cache is not None:
                core.cache.wrote(offset, view)
        else:
            try:
                await core.journal.finish(sequence, left)
                if core.cache is not None:
                    core.cache.wrote(offset, view)
            except RaidxError:
                core.forget_stripe(stripe)
                raise
            finally:
                core.locks.release(stripe)
        if core.store.unsettled:
            await core.store.settled()

    async def write_begun(self, begun: Begun) -> None:
        """Write what is left of whole stripes."""
        core = self.core
        await self._place(begun.stripes, begun.left)
        core.arenas.put(begun.arena)
        if core.store.unsettled:
            await core.store.settled()

    async def wait_for(self, late: Gathering | None) -> None:
        """Wait until the log has all of a gathering that is *late*, if there is one."""
        if late is None:
            return
        core = self.core
        try:
            await core.journal.finish_gathered(late)
        except RaidxError:
            for stripe in late.stripes:
                core.forget_stripe(stripe)
            raise
        if core.store.unsettled:
            await core.store.settled()

    async def _place(self, stripes: list[int], left: list[Request]) -> None:
        """Write what bypasses the log to *stripes*, which are locked, and release them."""
        core = self.core
        marked = core.dirty.enter_now(stripes)
        try:
            await core.store.write(join(left))
        except RaidxError:
            self.note_torn(stripes)
            raise
        finally:
            core.unlogged.count += 1
            for stripe in stripes:  # who read meanwhile may have kept what was there before
                core.forget_stripe(stripe)
            if marked:
                core.dirty.leave(stripes)
            core.locks.release_all(stripes)

    def note_torn(self, stripes: Iterable[int]) -> None:
        """Remember which lost chunks a half-done write took down with it."""
        core = self.core
        for stripe in stripes:
            lost = core.layout.lost_cells(stripe, core.store.lost_at(stripe))
            lost &= core.code.data_mask & ~core.dead(stripe)
            for cell in cells_of(lost):
                chunk = core.layout.logical(stripe, cell)
                if chunk not in core.bad_chunks:
                    log.error(
                        "the content of %s is lost: a member failed during a degraded write",
                        core.where(stripe, (cell,)),
                    )
                core.bad_chunks.add(chunk)
