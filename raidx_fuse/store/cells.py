"""Writing cells: the one way by which bytes become the content of cells.

What makes a write safe is its *cover*; what has to happen around the write follows from that:

* LOGGED (checkpoint, replay). Recovery redoes the records, so nothing is marked. What absent
  members lack by them is noted before (`Absences.before_places`). After an error the content stays
  in the overlay and the log.
* MARKED (users and jobs, past the log). The regions of the stripes are marked before the first byte
  (`Cells.marked`), and what absent members lack is noted durably. After an error the stripes are
  torn; where all redundancy is lost, their chunks on lost members are.
* SAME (mend, scrub repair, past the log). Marked and noted like that. After an error nothing is
  torn: what readers see of the stripe is what it was.
* VACANT (growth, restripe, rebuild; zeros at unwritten places). No reader looks there before a
  position, or the written map, says so. Nothing is marked: after a crash a growth would wait for
  the resync of its own copies. Nothing is noted: while places move no member can be caught up, and
  none lacks what another one is given.

The ring of the log, pages, superblocks, holes, and what joins and erases members are no cells.
Three writers of cells pass this module by: small writes, which do its steps without suspending
(engine/write/small.py), the copies of a twin (jobs/replace.py), and rebuilds into memory that a
member lends (`MemberQueue.writable_view`).

What holds for every write to a member stands below, in `MemberSet.write` and the queues: sizes,
ranges in which an earlier write may still land, the second try, and who is failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from typing import Protocol

import trio

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.format.sum_table import Values
from raidx_fuse.layouts.numbers import Role, Stripe, by_role
from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberIO
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.stripe_locks import StripeLocks
from raidx_fuse.store.sums import GivenSums, Page


class Cover(Enum):
    """What makes it safe that cells change at their places."""

    LOGGED = "records that recovery redoes have the content"
    MARKED = "a resync makes the chains of the stripes hold"
    SAME = "the content that readers see stays"
    VACANT = "no reader looks there yet"


class Absences(Protocol):
    """Who notes what absent members lack (engine/changed_regions.py)."""

    async def before_write(self, stripes: Sequence[Stripe]) -> None:
        """Note, durably, that cells of *stripes* are about to change. Raises RaidxError."""

    async def before_places(self) -> None:
        """Note so the stripes of all records of the log. Raises RaidxError."""


class Cells:
    """Writes the cells of the array of *member_set*; *locks* are those of its stripes."""

    absences: Absences
    note_torn: Callable[[Iterable[Stripe]], None]

    def __init__(self, member_set: MemberSet, dirty_bitmap: DirtyBitmap) -> None:
        self.member_set = member_set
        self.dirty_bitmap = dirty_bitmap
        self.locks = StripeLocks(member_set.laws)

    def connect(self, absences: Absences, note_torn: Callable[[Iterable[Stripe]], None]) -> None:
        """Tell *absences* of writes, and *note_torn* which stripes one has left torn."""
        self.absences, self.note_torn = absences, note_torn

    @asynccontextmanager
    async def marked(
        self, stripes: Sequence[Stripe], *, begun: bool = False
    ) -> AsyncIterator[None]:
        """Keep the regions of *stripes*, whose locks are held, marked while the block runs.

        A member that leaves from now on lacks them. *begun*: some members have their part, so what
        needs a mark has one. Raises RaidxError, with nothing marked.
        """
        self.locks.require_held(stripes)
        dirty_bitmap = self.dirty_bitmap
        entered = dirty_bitmap.enter_now(stripes)
        if not (entered or begun):
            await dirty_bitmap.enter(stripes)
            entered = True
        try:
            yield
        finally:
            if entered:
                dirty_bitmap.leave(stripes)

    async def write(
        self,
        requests: Sequence[MemberIO],
        cover: Cover,
        stripes: Sequence[Stripe] = (),
        *,
        background: bool = True,
        given: Sequence[GivenSums] | None = None,
        unverified: Collection[Page] = (),
    ) -> None:
        """Write *requests* to cells of *stripes* under *cover*, with the sums that are *given*.

        The *unverified* pages get none. With MARKED the caller is in a block of `marked`, if a
        resync has to finish what a crash interrupts. Raises as `MemberSet.write`, and what
        `Absences` raises.
        """
        member_set, sums = self.member_set, self.member_set.sums
        write = member_set.write
        if sums is not None:
            write = partial(sums.write, given=given, unverified=unverified)
        if cover is Cover.SAME:
            async with self.marked(stripes):
                await self.absences.before_write(stripes)
                await write(requests, background=background)
            return
        is_marked = cover is Cover.MARKED
        if is_marked and member_set.lost:
            await self.absences.before_write(stripes)
        try:
            await write(requests, background=background)
        except RaidxError:
            if is_marked:
                self.note_torn(stripes)
            raise

    async def save_sums(self) -> bool:
        """Write the sums that changed; they are durable after the next flush. Raises RaidxError.

        Returns whether any had changed.
        """
        if self.member_set.sums is None:
            return False
        changed = bool(self.member_set.sums.tables.memory.unsaved)
        await self.member_set.sums.tables.save()
        return changed

    def write_now(self, requests: Sequence[MemberIO], crcs: Values | None) -> list[MemberIO] | None:
        """Write *requests*, MARKED, without suspending; return those left, None if no member wrote.

        No member is lost. If anything is left, the caller locks the stripes before it suspends.
        *crcs*: of all their pages, one request behind the other, in an array with checksums.
        """
        queues, sums = self.member_set.readable, self.member_set.sums
        left: list[MemberIO] = []
        begun = False
        if sums is not None and not sums.is_ready(requests):
            return None
        written: list[MemberIO | None] = []
        for request in requests:
            role, position, buffers, size = request
            try:
                if queues[role].try_writev(position, buffers, size):  # type: ignore[union-attr]
                    begun = True
                    written.append(request)
                    continue
            except MemberError:
                begun = True  # possibly; retried once with the rest, then the member is excluded
            if not begun:
                return None
            left.append(request)
            written.append(None)
        if sums is not None:
            assert crcs is not None
            sums.note_written(requests, written, crcs)
        return left

    async def write_frozen(self) -> None:
        """Write the frozen layer of the overlay, LOGGED, on all members at once.

        Members that are absent get sums alone. Other tasks run after what a member takes
        synchronously. Raises as `MemberSet.write`.
        """
        member_set, sums = self.member_set, self.member_set.sums
        queues = {role: queue for role, queue in by_role(member_set.queues) if queue is not None}
        if sums is not None and len(queues) < len(member_set.queues):
            absent: list[Role] = [
                role for role, _ in by_role(member_set.queues) if role not in queues
            ]
            for portions in member_set.overlay.frozen_writes(absent):
                await sums.save_many()
                for role, writes in portions.items():
                    await sums.load((role, *write) for write in writes)
                    sums.note_many(role, writes)
        for portions in member_set.overlay.frozen_writes(queues):
            left: list[MemberIO] = []
            if sums is not None:
                await sums.save_many()
                # Of all roles at once; each asks again, in case other tasks needed the memory.
                await sums.load((r, *write) for r, writes in portions.items() for write in writes)
            for role, writes in portions.items():
                if sums is not None:
                    await sums.load((role, *write) for write in writes)
                if member_set.queues[role] is queues[role]:
                    done = queues[role].try_writes(writes)
                    if sums is not None:
                        sums.note_many(role, writes[:done])
                    left += [(role, *write) for write in writes[done:]]
                elif sums is not None:
                    sums.note_many(role, writes)
                await trio.lowlevel.checkpoint()
            # A member that failed since is left out: a new one gets the content by its rebuild.
            same = [write for write in left if member_set.queues[write[0]] is queues[write[0]]]
            if len(same) < len(left) and sums is not None:
                gone = [
                    write for write in left if member_set.queues[write[0]] is not queues[write[0]]
                ]
                await sums.load(gone)
                sums.note_all(gone)
            if same:
                await self.write(same, Cover.LOGGED)
        if sums is not None and member_set.overlay.frozen_unverified:
            await sums.forget(
                (role, at, (), PAGE_BYTES) for role, at in member_set.overlay.frozen_unverified
            )
