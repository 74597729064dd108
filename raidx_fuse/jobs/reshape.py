"""The skeleton of a change of roles or layout: every one of them, but for two, is made here.

    wait      no other job runs, where the change gives roles or codes another meaning
    plan      what is to be done, or why not now; the tail of a smaller image is given up
    prepare   newcomers join as spares, maps get room, nothing that a crash needs is missing
    quiesce   the layout's gate is closed, no stripe is locked, and what must be empty is
    plan      again: nothing comes between
    swap      roles and layout, in memory, without an await
    publish   the maps of newcomers, flushed, then the superblocks; the gate opens

An exception or a cancellation before the swap undoes all: newcomers leave, the tail may be used.
From the swap on the change is in force, whatever is raised. `Membership.attaching` is held
throughout, so that no spare takes a role. Members that have left are released at the end.

    change                     members  tail  maps  beside   renumbers  clean
    growth, begin              join           x     all
      its end                                       all
      cancelled                leave                itself   x
      with a surrogate         swap                 itself   x
      undone later, begin               x           all
    copies, more / fewer       join / leave   x     all / no  - / x
    restripe, begin            join     x     x     all                 x
      its end, either way      leave          x     itself   x          x
    larger members                            x     all                 x
    raidx array, more / fewer  join / leave   x     all      - / x

The begins refuse other jobs in their plan; those that only add may run beside what comes later. No
record of the log may be redone by recovery under other roles than it was written for: where roles
get another number, the log is empty, every member counts as its holder, and it is chosen anew.

Tables of checksums follow the roles, and the size of the data (jobs/move_sums.py).

Two siblings stay beside it, as they change the member of one role, and no place. A member takes a
vacant role under requests: no reader relies on it, and it is rebuilt (`Membership._seat`). And a
successor takes a role over within a drain of the log, between two rounds of superblocks, of which
the second one is the first that it has as the member of that role (`Replacement`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError, RaidxError
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.jobs.attach import join, leave, release
from raidx_fuse.jobs.job import Job
from raidx_fuse.jobs.move_sums import CameFrom, MovedSums, SumsRoom
from raidx_fuse.jobs.restripe.space import require_unwritten
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.members.base import Member

PlanT = TypeVar("PlanT")
NO_JOB = -1
AGAIN_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Change(Generic[PlanT]):
    """What one change of roles or layout does in the phases of `reshape`.

    * *plan* returns what is to be done, or raises RaidxError if that is impossible now; it is
      called twice, and does not suspend.
    * *swap*, with the plan and the records of the newcomers, changes the array in memory, without
      an await; it returns the members that leave the array, whose queues it has closed.
    * *came_from*: by new role, the role that the member had, None for a newcomer; without it, all
      roles stay.
    * *room*: of the tables of checksums afterwards, and the regions of each member; without it,
      they stay.
    * *members*: the newcomers. They have no superblock yet, so they join as spares first.
    * *chunks*: for how many logical chunks the written map is to have room.
    * *tail*: the size of the image in bytes while the chunks move, if it may be smaller: what is
      behind must not be used any more before it has no place.
    * *prepare*: more that has to be durable before; *undo* reverts it in memory.
    * *settle*: what follows the superblocks while the gate is still closed; it does not raise.
    * *start* starts the job that moves the content; no other one may come between.
    * *beside*: the kinds of jobs that may run at the swap (None: all); others rely on the meaning
      of roles or codes, and are waited for.
    * *renumbers*: roles get other members, so that no record may name any of them.
    * *clean*: stripes get other numbers, so that no region of the dirty bitmap may be marked.
    * *drained*: stripes get other cells, and what the log has of a stripe is counted by them.
    """

    plan: Callable[[], PlanT]
    swap: Callable[[PlanT, Sequence[MemberRecord]], Sequence[Member] | None]
    came_from: Callable[[PlanT], CameFrom] | None = None
    room: Callable[[PlanT], SumsRoom] | None = None
    members: Sequence[Member] = ()
    chunks: Callable[[PlanT], int] | None = None
    tail: Callable[[PlanT], int] | None = None
    prepare: Callable[[PlanT], Awaitable[None]] | None = None
    undo: Callable[[], None] | None = None
    settle: Callable[[], Awaitable[None]] | None = None
    start: Callable[[PlanT], int] | None = None
    beside: Collection[str] | None = None
    renumbers: bool = False
    clean: bool = False
    drained: bool = True

    def __post_init__(self) -> None:
        if self.beside is not None and (self.members or self.undo):
            raise ValueError("to wait for other jobs again would have to undo what is prepared")


async def reshape(array: ArrayServices, change: Change[PlanT]) -> tuple[PlanT, int]:
    """Make *change*; return its plan, and the number of the job that it started (NO_JOB: none).

    Raises BusyError if requests do not end in time, and what the phases raise. Then nothing has
    changed, unless the superblocks could not be written: the change is in force (law 3).
    """
    context, member_set = array.context, array.member_set
    left: Sequence[Member] | None = None  # from the swap on
    job = NO_JOB
    while left is None:
        for other in _others(array, change.beside):  # it may be paused
            await other.finished.wait()
        async with array.membership.attaching:
            planned, size_bytes = change.plan(), array.size_bytes
            came_from = None if change.came_from is None else change.came_from(planned)
            room = None if change.room is None else change.room(planned)
            moved = MovedSums(member_set, came_from, change.members, room)
            records: list[MemberRecord] = []
            try:
                if change.tail is not None:
                    await array.discarder.give_up(change.tail(planned))
                chunks = 0 if change.chunks is None else change.chunks(planned)
                if change.members:
                    records = await join(member_set, change.members, chunks)
                if change.prepare is not None:
                    await change.prepare(planned)
                await context.written.pages.make_room(chunks)
                await moved.prepare()
                if change.clean:  # most of it while requests come
                    await context.dirty_bitmap.clean_quiet(all_regions=True)
                async with context.closed(drained=change.drained):
                    while True:
                        await quiesce(context, renumbers=change.renumbers, clean=change.clean)
                        if not moved.due():
                            break
                        await moved.catch_up()
                    if _others(array, change.beside):
                        continue
                    planned = change.plan()
                    if change.tail is not None:
                        require_unwritten(context, change.tail(planned))
                    if change.came_from is not None and change.came_from(planned) != came_from:
                        raise BusyError("other members have left", action="try again")
                    if change.room is not None and change.room(planned) != room:
                        raise BusyError("the sizes of the members have changed", action="try again")
                    left = change.swap(planned, records) or ()
                    if change.renumbers:
                        context.journal.choose_roles()
                    moved.take()
                    if records:
                        await _give_maps(context)
                    await member_set.update(lambda config: config)
                    if change.settle is not None:
                        await change.settle()
            except BaseException:
                if left is not None:  # until then nothing that relies on it is acknowledged
                    if records:  # once more, as nobody else writes them
                        with trio.CancelScope(shield=True), suppress(RaidxError):
                            await _give_maps(context)
                    member_set.publish_soon()
                else:
                    moved.undo()
                    if change.undo is not None:
                        change.undo()
                    if records:
                        with trio.CancelScope(shield=True):  # members have a timeout
                            await leave(member_set, records)
                raise
            finally:
                array.discarder.keep_all()
                if left is not None:  # in force, also if a superblock lacks it
                    try:
                        for hook in array.on_size if array.size_bytes != size_bytes else ():
                            await hook()
                    finally:
                        if change.start is not None:
                            job = change.start(planned)
    if left:
        await release(left, array.on_release)
    return planned, job


def _others(array: ArrayServices, beside: Collection[str] | None) -> list[Job]:
    """Return the jobs that must not run at the swap."""
    if beside is None:
        return []
    return [job for job in array.jobs.running() if job.kind not in beside]


async def quiesce(context: ArrayContext, *, renumbers: bool, clean: bool = False) -> None:
    """With the gate closed, empty the log and the dirty bitmap; no stripe lock is held then.

    Tasks that never enter the gate, a mend say, may log and mark regions meanwhile. Raises
    BusyError if they do not end within `io.timeout_s`, or if a stripe stays torn.
    """
    journal, dirty = context.journal, context.dirty_bitmap
    limit_s = trio.current_time() + context.member_set.io_timeout_s
    while clean or renumbers:
        await context.locks.free()
        if clean:
            await dirty.clean_quiet(all_regions=True)
            await context.member_set.flush()
            dirty.require_whole()
        if renumbers:  # records on whatever member is chosen next are found by recovery
            await journal.drain(journal.believe_all)
        if not context.locks.held and (dirty.idle or not clean):
            return
        if trio.current_time() >= limit_s:
            raise BusyError("stripes are being mended", action="try again a little later")
        await trio.sleep(AGAIN_S)


async def _give_maps(context: ArrayContext) -> None:
    """Let newcomers have the maps durably, before a superblock gives them their roles.

    No chunk lies on them yet, so their shares of a chunk table stay empty. Tables of checksums they
    have already.
    """
    for pages in context.member_set.page_stores:
        if pages not in (context.journal.chunk_table, context.member_set.sums):
            await pages.save_all()
    await context.member_set.flush()
