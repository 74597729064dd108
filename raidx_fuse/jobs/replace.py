"""Replacing a member that still answers: it stays in use until its successor is whole.

The successor joins as a spare. From then on the role is served by a `Twin`: reads come from the
member, writes, holes and flushes go to both. So what this job has copied once stays right; it
copies every written cell of the role under the locks of its stripe. What the member cannot read
comes from the others. The superblocks are not mirrored: each of the two has its own. An error of
the successor ends nothing but the replacement; one of the member is the role's, as ever.

At the end, with an empty log, one update of the superblocks gives the role to the successor. Until
that is durable the member has everything, and from then on the successor has it; a crash on either
side loses nothing, and on the first one repeats the copy.

`jobs` has "replace:ROLE" -> {"member_uuid", "next_stripe", "starts"}. The position is saved by a
clean end only, with the number of that start. It counts for the next start and no other: one
that lies between may have written to the member alone.

From the first copy on the record of the successor says that it does not read as zero: if it remains
a spare, nothing that is discarded afterwards is emptied there.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.errors import (
    ArrayFailedError,
    BusyError,
    MemberError,
    RaidxError,
)
from raidx_fuse.format.configuration.config import NO_ROLE, ArrayConfig, MemberRecord
from raidx_fuse.format.regions import COUNTER_MAX
from raidx_fuse.jobs.attach import join, leave, release
from raidx_fuse.jobs.job import Job, stripes_of_window
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.base import Member, ReadBuffer, WrapperMember
from raidx_fuse.store.queue import MemberQueue

if TYPE_CHECKING:
    from raidx_fuse.documents import JobDetail

log = logging.getLogger(__name__)

ZEROS = bytes(1 << 20)


class Twin(WrapperMember):
    """*inner* with its *successor*; what is outside of *shared* belongs to each of them alone.

    That is what begins at other offsets in bytes: superblocks, in front and at their ends.

    *patience_s* returns how many seconds the successor may take for an operation. *error* says why
    the successor is out of use; None while it is in use. No operation is synchronous but reads:
    both members, or none, must have a write when it is known to be done.
    """

    def __init__(
        self, inner: Member, successor: Member, shared: range, patience_s: Callable[[], float]
    ) -> None:
        super().__init__(inner)
        self.successor = successor
        self.error: MemberError | None = None
        self.has_passed_on = False  # the successor has the role, and its own superblock
        # Each of the two is a member of its own: nothing is copied any more, for a write that comes
        # late from *inner* is older than what follows. Copies that are on their way still arrive.
        self.has_ended = False
        self._copies = 0  # writes and holes that are on their way to the successor
        self._shared = shared
        self._patience_s = patience_s

    def pass_on(self) -> None:
        """Let the successor have the superblocks that are written from now on."""
        self.has_passed_on = True

    @property
    def _mirrors(self) -> bool:
        return self.error is None and not self.has_ended

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return False

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        if offset_bytes not in self._shared:
            owner = self.successor if self.has_passed_on else self.inner
            await owner.writev(offset_bytes, buffers)
            return
        await self.inner.writev(offset_bytes, buffers)
        if self.has_passed_on and self.is_overdue(offset_bytes, sum(map(len, buffers))):
            return  # it was given up, and the successor may have something newer
        await self.copy(offset_bytes, buffers)

    async def readv(self, offset_bytes: int, buffers: Sequence[bytearray | memoryview]) -> None:
        own = offset_bytes not in self._shared and self.has_passed_on
        await (self.successor if own else self.inner).readv(offset_bytes, buffers)

    async def copy(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        """Write to the successor alone; never raises."""
        if not self._mirrors:
            return
        self._copies += 1
        try:
            with trio.move_on_after(self._patience_s()) as waiting:
                await self.successor.writev(offset_bytes, buffers)
        except MemberError as error:
            self._give_up(error)
        else:
            if waiting.cancelled_caught:
                self._give_up(self._late("write", offset_bytes))
        finally:
            self._copies -= 1

    async def flush(self) -> None:
        await self.inner.flush()
        if not self._mirrors:
            return
        try:
            with trio.move_on_after(self._patience_s()) as waiting:
                await self.successor.flush()
        except MemberError as error:
            self._give_up(error)
        else:
            if waiting.cancelled_caught:
                self._give_up(self._late("flush", 0))

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        if not await self.inner.punch(offset_bytes, length_bytes):
            return False
        done = False
        if self._mirrors:
            self._copies += 1
            try:
                with trio.move_on_after(self._patience_s()) as waiting:
                    done = await self.successor.punch(offset_bytes, length_bytes)
                if waiting.cancelled_caught:
                    self._give_up(self._late("punch", offset_bytes))
            except MemberError as error:
                self._give_up(error)
            finally:
                self._copies -= 1
        for at in range(0, 0 if done else length_bytes, len(ZEROS)):
            size = min(len(ZEROS), length_bytes - at)
            await self.copy(offset_bytes + at, [ZEROS[:size]])
        return True

    def note_overdue(self, offset_bytes: int, size_bytes: int) -> None:
        """Mark a write as abandoned, of the two members as well: they may outlive this.

        To the successor it is on its way only if a copy is.
        """
        super().note_overdue(offset_bytes, size_bytes)
        self.inner.note_overdue(offset_bytes, size_bytes)
        if self._copies:
            self.successor.note_overdue(offset_bytes, size_bytes)

    def end_overdue(self, offset_bytes: int, size_bytes: int) -> None:
        super().end_overdue(offset_bytes, size_bytes)
        self.inner.end_overdue(offset_bytes, size_bytes)
        if (offset_bytes, offset_bytes + size_bytes) in self.successor.overdue:
            self.successor.end_overdue(offset_bytes, size_bytes)

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        self.inner.reserve(offset_bytes, length_bytes)
        if self._mirrors:
            try:
                self.successor.reserve(offset_bytes, length_bytes)
            except MemberError as error:
                self._give_up(error)

    def note_watched(self) -> None:
        super().note_watched()
        self.successor.note_watched()

    def is_settled(self) -> bool:
        return super().is_settled() and self.successor.is_settled()

    def _late(self, operation: str, offset_bytes: int) -> MemberError:
        why = f"no answer within {self._patience_s():g} s"
        return MemberError(self.successor.path, operation, offset_bytes, errno.ETIMEDOUT, why)

    def _give_up(self, error: MemberError) -> None:
        log.error("%s; it does not replace %s", error.message, self.inner.path)
        self.error = error


KEY = "replace:"
PATIENCE = 1 / 3  # of the timeout of the array: the role must not fail with its successor


class Replace(Job):
    """Copies *role* of *operation*'s twin, from stripe *start* on."""

    kind = "replace"

    def __init__(
        self, context: ArrayContext, job_id: int, operation: Replacement, start: int
    ) -> None:
        super().__init__(context, job_id)
        self.operation = operation
        self.next_stripe = start
        self.window = stripes_of_window(context)

    def detail(self) -> JobDetail:
        """Return the role, and the path of its next member."""
        twin = self.operation.twin
        path = None if twin is None else twin.successor.path
        return {"roles": [self.operation.role], "successor": path}

    async def prepare(self) -> None:
        """Count the written stripes. Nothing has reached the member alone since it has a twin."""
        context = self.context
        strip_bytes = context.layout.cells_on((self.operation.role,)) * context.chunk_bytes
        live = context.written.count_live(context.layout, 0, context.layout.stripes)
        self.total_bytes = round(live * strip_bytes)
        done = context.written.count_live(context.layout, 0, self.next_stripe)
        self.done_bytes = round(done * strip_bytes)

    def next_window(self) -> list[Stripe] | None:
        """Return the next written stripes."""
        self.operation.require()
        found = self.context.written.written_stripes(
            self.context.layout, self.next_stripe, self.window
        )
        return found or None

    def may_give_up(self) -> bool:
        return True  # else a member that has such pages could never be replaced

    async def work(self, stripes: list[Stripe]) -> int:
        """Copy the cells of the role in *stripes*; return the progress in bytes."""
        context = self.context
        twin = self.operation.require()
        copies = await self._read(stripes)
        for at, views in copies:
            await twin.copy(at, views)
        queue = context.member_set.queues[self.operation.role]
        if queue is not None:  # the copies pass it by, and a flush leaves out what it did not write
            queue.flush_failed()
        self.operation.require()
        self.next_stripe = stripes[-1] + 1
        return sum(len(view) for _, views in copies for view in views)

    async def _read(self, stripes: Sequence[Stripe]) -> list[tuple[int, list[memoryview]]]:
        """Return (offset on the member, buffers) of the written cells of the role, joined."""
        context, role = self.context, self.operation.role
        reader = CellReader(context)
        cells: list[tuple[int, memoryview]] = []
        for stripe in stripes:
            mine = context.layout.lost_cells(stripe, frozenset({role}))
            for cell in cells_of(mine & ~context.unwritten_cells(stripe)):
                view = memoryview(bytearray(context.chunk_bytes))
                cells.append((context.position(stripe, cell)[1], view))
                reader.add(stripe, {cell: view})
        await reader.run()
        joined: list[tuple[int, list[memoryview]]] = []
        for at, view in sorted(cells, key=lambda copy: copy[0]):
            if joined and joined[-1][0] + sum(map(len, joined[-1][1])) == at:
                joined[-1][1].append(view)
            else:
                joined.append((at, [view]))
        return joined

    async def finish(self, completed: bool) -> None:
        """Give the role to the new member; after a cancel, it remains a spare."""
        if completed:
            self.total_bytes = self.done_bytes  # not all cells of a written stripe are written
            await self.insist(self.operation.hand_over, (BusyError,))
        elif self.was_cancelled:
            await self.operation.drop()

    async def undo(self) -> None:
        """Leave nothing of a failed replacement that a later change of members could meet."""
        await self.operation.drop()


class Replacement:
    """The replacement of one member of *array* at a time; *twin* is None while there is none.

    *on_failed* is called with a new member that failed and does not belong to the array any more.
    """

    def __init__(self, array: ArrayServices, rebundle: RebundleOperation | None) -> None:
        self.array = array
        self._rebundle = rebundle
        self.on_failed: list[Callable[[Member], None]] = []
        self.role = Role(-1)
        self.twin: Twin | None = None
        self.member_uuid = ""  # of the successor
        self._reads_zero = False  # the successor, but for what it has got as one
        self._job: Replace | None = None

    def require(self) -> Twin:
        """Return the twin. Raises ArrayFailedError if either of the two is out of use."""
        twin = self.twin
        if twin is None:
            raise ArrayFailedError(
                f"the member that was to be replaced failed: role {self.role} is rebuilt instead"
            )
        if self._is_broken(twin):
            unwritable = f"{twin.successor.path}: its superblock could not be written"
            why = unwritable if twin.error is None else twin.error.message
            raise ArrayFailedError(f"the new member failed: {why}", action="use another one")
        return twin

    def _is_broken(self, twin: Twin) -> bool:
        """Return whether the successor failed: in its data, or in its superblock."""
        return twin.error is not None or self.member_uuid not in self.array.member_set.spares

    async def begin(self, record: MemberRecord, member: Member) -> int:
        """Replace the member of *record* by *member*; return the job. Raises RaidxError."""
        member_set = self.array.member_set
        records = await join(member_set, [member], self.array.context.layout.chunks)
        uuid = records[0].member_uuid
        try:
            await member_set.update(lambda config: _noted(config, record.role, uuid, 0))
            return await self._start(record.role, uuid, 0, reads_zero=member.reads_zero)
        except RaidxError:
            await self.drop()
            member_set.change(lambda config: _noted(config, record.role, "", 0))
            await leave(member_set, records)  # the caller closes it
            raise

    async def resume(self, behind: Collection[str]) -> None:
        """Continue a replacement that the last run has begun.

        *behind*: the UUIDs of spares that lack the superblock of its end: old copies, which lack
        what was copied since.
        """
        member_set = self.array.member_set
        starts = member_set.config.starts - 1
        for key, value in member_set.config.jobs.items():
            if not key.startswith(KEY):
                continue
            role, uuid = Role(int(key.removeprefix(KEY))), value["member_uuid"]
            ours = role in member_set.config.roles_in("active")
            if not ours or uuid not in member_set.spares:
                await member_set.update(partial(_noted, role=role, uuid="", next_stripe=0))
                continue
            counts = value.get("starts") == starts and uuid not in behind
            try:
                await self._start(role, uuid, value["next_stripe"] if counts else 0)
            except RaidxError as error:  # the array starts without it
                log.error("the replacement of role %d is not resumed: %s", role, error)
                await self.drop()
                await member_set.update(partial(_noted, role=role, uuid="", next_stripe=0))
            return

    async def _start(self, role: Role, uuid: str, start: int, *, reads_zero: bool = False) -> int:
        member_set, context = self.array.member_set, self.array.context
        queue, successor = member_set.queues[role], member_set.spares.get(uuid)

        def require_both() -> tuple[MemberQueue, Member]:
            if queue is None or member_set.queues[role] is not queue:
                raise ArrayFailedError("the member that was to be replaced failed meanwhile")
            if successor is None or uuid not in member_set.spares:
                raise ArrayFailedError("the new member failed meanwhile", action="use another one")
            return queue, successor

        queue, successor = require_both()
        if not start:
            await context.journal.chunk_table.erase(role, successor)
            require_both()
        self._reads_zero = reads_zero
        if not reads_zero:
            member_set.change(lambda config: _distrusted(config, role))
            context.zeros.note()
        shared = _shared(member_set.config, role, uuid)

        async def mirror() -> None:
            # No placement is under way, so that none reaches the member alone from here on.
            queue, successor = require_both()
            twin = Twin(queue.member, successor, shared, lambda: member_set.io_timeout_s * PATIENCE)
            self.twin, self.role, self.member_uuid, self._job = twin, role, uuid, None
            queue.serve_by(twin)
            member_set.unreadable.spare(role)

        async with context.closed(drained=False):  # no write is under way to the member alone
            await context.journal.drain(mirror)

        def make(context: ArrayContext, number: int) -> Replace:
            self._job = Replace(context, number, self, start)
            return self._job

        return self.array.jobs.start(make).job_id

    def note_failed(self, role: Role) -> None:
        """End the replacement because the member in *role* is failed; its successor is a spare.

        Once the successor has been passed on the role, it is the one that failed.
        """
        queue = self.array.member_set.queues[role]
        if self.twin is not None and role == self.role and queue is not None:
            queue.serve_by(self.twin.inner)
            self._forget(self.twin)

    def keep(self, config: ArrayConfig) -> ArrayConfig:
        """Return *config* with the position of the copy: the array ends, all is durable."""
        if self.twin is None or self.twin.error is not None or self._job is None:
            return config
        return _noted(config, self.role, self.member_uuid, self._job.next_stripe)

    async def drop(self) -> None:
        """End the replacement: the new member stays as a spare, or is let go if it failed."""
        member_set, twin = self.array.member_set, self.twin
        if twin is None or twin.has_passed_on:  # superblocks may say that it has the role
            return
        queue = member_set.queues[self.role]
        assert queue is not None
        queue.serve_by(twin.inner)
        self._forget(twin)
        await member_set.update(lambda config: config)

    def _forget(self, twin: Twin) -> None:
        """Forget the replacement in memory, and its new member if that has failed."""
        member_set, role, uuid = self.array.member_set, self.role, self.member_uuid
        broken = self._is_broken(twin) and not twin.has_passed_on
        self.twin, self.member_uuid, self._job = None, "", None
        twin.has_ended = True
        member_set.unreadable.spare(-1)
        member_set.change(lambda config: _noted(config, role, "", 0))
        if not broken:
            return
        member_set.spares.pop(uuid, None)
        member_set.change(lambda config: config.without_members(uuid))
        log.error("%s is no member of the array any more", twin.successor.path)
        for hook in self.on_failed:
            hook(twin.successor)

    async def hand_over(self) -> None:
        """Give the role to the successor, which has everything.

        Raises BusyError if the gate of the layout cannot be closed now, RaidxError.
        """
        context = self.array.context
        async with context.closed():
            await context.journal.drain(self._hand_over)

    async def _hand_over(self) -> None:
        """Do so while the log is empty and nothing is committed."""
        twin, role, uuid = self.require(), self.role, self.member_uuid
        member_set, journal = self.array.member_set, self.array.context.journal
        queue = member_set.queues[role]
        assert queue is not None
        for pages in member_set.page_stores:
            await pages.save_all()

        def assign(config: ArrayConfig) -> ArrayConfig:
            old, new = config.record(role), config.find(uuid)
            assert new is not None
            # where the share of the table was, there is data now
            reads_zero = old.reads_zero and self._reads_zero and not gained
            rest = tuple(r for r in config.members if r.member_uuid != uuid)
            seated = replace(new, role=role, state="active", reads_zero=reads_zero)
            config = replace(config, members=rest).with_record(seated)
            return _noted(config, role, "", 0)

        # This round of superblocks flushes every member: copies and pages are durable before the
        # new member gets the role, and it has a superblock, as a spare.
        await member_set.update(lambda config: config)
        await member_set.published()  # no superblock of the member is under way
        gained = 0
        if self._rebundle is not None:
            gained = self._rebundle.gains(role, twin.successor.size_bytes)
            await self._rebundle.prepare_share(role, twin.successor)
        self.require()
        twin.pass_on()
        member_set.spares.pop(uuid, None)
        if self._rebundle is not None:
            self._rebundle.welcome(role, twin.successor)
        await member_set.update(assign)
        if member_set.queues[role] is not queue:  # it failed on the way
            await release([twin.inner], self.array.on_release)
            raise ArrayFailedError(
                f"{twin.successor.path} failed as it got role {role}, which is lost now",
                action="replace it by another one",
            )
        queue.serve_by(twin.successor)
        member_set.forget_pages(role)
        member_set.unreadable.spare(-1)
        self.twin, self.member_uuid = None, ""
        member_set.refresh()
        try:
            await journal.move()
        except RaidxError as error:  # the log tries again by itself
            log.error("the log is not on the new member yet: %s", error)
        await release([twin.inner], self.array.on_release)


def _shared(config: ArrayConfig, role: Role, uuid: str) -> range:
    """Return the bytes that the member in *role* and its successor *uuid* both are to have."""
    new = config.find(uuid)
    assert new is not None
    ends = [end for one in (config.record(role), new) if (end := config.end_of(one)) is not None]
    return range(config.regions.superblock.end, min(ends, default=COUNTER_MAX))


def _noted(config: ArrayConfig, role: Role, uuid: str, next_stripe: int) -> ArrayConfig:
    """Return *config* with the replacement of *role* by *uuid*, without one if that is empty.

    The spare of either, which has copies, is not relied on to read as zero.
    """
    jobs = dict(config.jobs)
    ended = jobs.pop(f"{KEY}{role}", {}).get("member_uuid")
    members = tuple(
        replace(record, reads_zero=False)
        if record.role == NO_ROLE and record.member_uuid in (uuid, ended)
        else record
        for record in config.members
    )
    if uuid:
        jobs[f"{KEY}{role}"] = {
            "member_uuid": uuid,
            "next_stripe": next_stripe,
            "starts": config.starts,
        }
    return replace(config, jobs=jobs, members=members)


def _distrusted(config: ArrayConfig, role: Role) -> ArrayConfig:
    return config.with_record(replace(config.record(role), reads_zero=False))


def successors(config: ArrayConfig) -> frozenset[str]:
    """Return the UUIDs of the spares that are about to replace members."""
    return frozenset(
        value["member_uuid"] for key, value in config.jobs.items() if key.startswith(KEY)
    )
