"""Pages that do not fit their checksums, and that nothing gives back, are known after a restart.

A read of such a page is an error because of its checksum, not because it is listed here: the list
is for people (`raidx damage`), and makes no right page unreadable. It is kept with what the array
remembers of itself (health_history.py), so it is left out where a superblock lacks space. A start
reads the pages of the list once, and what can be read is off it. One whose checksum was lost
meanwhile, in all copies, is lost as well: only that checksum would show what is wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import trio

from raidx_fuse.array.health_history import Health
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.read_cells import hopeless_cells
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.configuration.remembered import MISFITS_MAX, joined_pages
from raidx_fuse.layouts.numbers import MemberChunk, Role
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.loop.tasks import rest
from raidx_fuse.members.unreadable import PAGE_BYTES

LOOK_EACH_S = 1.0
Read = Callable[[int, int], Awaitable[object]]


class KnownMisfits:
    """The pages of the image of one array that misfit, as far as something has read them.

    *read* reads bytes of the image. Where members that were lost misfit by what the others give
    back, the pages are known as well.
    """

    def __init__(self, context: ArrayContext, health: Health, read: Read) -> None:
        self.context = context
        self.health = health
        self._read = read
        self._reading = trio.Lock()
        # Of the last mount, and not read yet.
        self._unread = {
            page
            for first, count in health.misfits
            for page in range(first, first + min(count, MISFITS_MAX))
        }

    async def read_again(self) -> None:
        """Read the pages that an earlier mount knew, unless this one has done so."""
        end = self.context.layout.size_bytes
        async with self._reading:
            for page in sorted(self._unread):
                if (page + 1) * PAGE_BYTES <= end:
                    with suppress(RaidxError):
                        await self._read(page * PAGE_BYTES, PAGE_BYTES)
                        await self._give_up_if_unproven(page * PAGE_BYTES)
                self._unread.discard(page)

    async def _give_up_if_unproven(self, image_offset: int) -> None:
        """List a page that can be read as lost, if the checksum that it did not fit is lost."""
        context, member_set = self.context, self.context.member_set
        sums, mender = member_set.sums, member_set.unreadable.mender
        epoch = context.layout_epoch
        chunk, at = divmod(image_offset, context.chunk_bytes)
        stripe, cell = context.layout.locate(chunk)
        if sums is None or mender is None or context.unwritten_cells(stripe) >> cell & 1:
            return
        await context.locks.acquire(stripe)
        try:
            await context.journal.settle((stripe,))
            role, begin = context.position(stripe, cell)
            if role in member_set.watermarks:
                return  # a member that has returned may have it
            place = role, begin + at
            await sums.load([(*place, (), PAGE_BYTES)])
            is_lost = role in sums.tables.lost_of and sums.lacks(*place, PAGE_BYTES)
            is_newer = member_set.overlay.covers(*place, place[1] + PAGE_BYTES)
            if is_lost and not is_newer and epoch == context.layout_epoch:
                await mender.give_up(stripe, 1 << cell, at, at + PAGE_BYTES)
        finally:
            context.locks.release(stripe)

    async def run(self) -> None:
        """Keep the list as it is now (a background task, until checksums are switched off)."""
        sums = self.context.member_set.sums
        await self.read_again()
        before: set[int] = set()
        while sums is self.context.member_set.sums:
            await rest(LOOK_EACH_S)
            now = self._now()
            if now or self.health.misfits:
                self._keep(now & before)  # what is healed soon is none
                await self.health.save()
            before = now

    def note(self) -> None:
        """Take what is known now for the list: the array is being closed."""
        self._keep(self._now())

    def _keep(self, pages: Iterable[int]) -> None:
        self.health.misfits = joined_pages(pages)

    def _now(self) -> set[int]:
        """Return the pages that misfit now, and those that only they would give back."""
        context, sums = self.context, self.context.member_set.sums
        found = set(self._unread)
        if sums is None:
            return found
        begin, size = context.member_set.data_offset, context.chunk_bytes
        places = [(Role(role), page * PAGE_BYTES) for role, page in context.member_set.unreadable]
        places = [place for place in places if sums.is_suspect(*place)]
        for role, offset in (*places, *sums.refused_places())[:MISFITS_MAX]:
            chunk, at = divmod(offset - begin, size)
            cell = context.layout.inverse(role, MemberChunk(chunk))
            if cell is None:
                continue
            cells = hopeless_cells(context, cell[0], at) | 1 << cell[1]
            for one in cells_of(cells & context.code.data_mask):
                image = context.layout.logical(cell[0], one) * size + at
                if context.refused(image, PAGE_BYTES) is None:  # it stands in the other list
                    found.add(image // PAGE_BYTES)
        return found
