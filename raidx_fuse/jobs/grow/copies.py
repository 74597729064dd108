"""More and fewer copies of a raid1 array.

More: the wider shape at once, then a rebuild of the new members.

    join as spares -> the log is empty -> gate closed: the wider layout, the new roles at watermark
    0 -> maps of the new members -> superblocks -> gate open -> rebuild

Copies move nothing: every chunk keeps its places, and a new role is a member that awaits its
rebuild. A crash before the superblocks leaves the narrower array and spares, a crash after them an
array that continues with the rebuild. No record of the log names a new role before the superblocks
do: writes leave out the stripes that a rebuild has not reached, and it begins afterwards.

Fewer: gate closed, an empty log -> the member leaves, the roles behind it move up by one
    -> superblocks -> gate open -> the member's superblock is erased

As every role has the same content at the same places, moving up moves no byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raidx_fuse.errors import (
    ArrayFailedError,
    BusyError,
    JobRunningError,
    NotWithLayoutError,
    Reason,
    UsageError,
)
from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord
from raidx_fuse.format.log_record import record_bytes
from raidx_fuse.jobs.attach import assign_role
from raidx_fuse.jobs.costs import copy_cost, redundancy_kept
from raidx_fuse.jobs.rebuild import PlannedMember, checkpoint_key
from raidx_fuse.jobs.reshape import Change, reshape
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.numbers import Role, Stripe, role_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.registry import LAYOUTS, LayoutError, make_layout
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import CopyPlan, Grown, Removal


@dataclass(frozen=True)
class PlannedCopies:
    """*added* more copies, which *layout* has."""

    operation: CopiesOperation
    added: int
    layout: Layout

    async def cost(self, _sizes: Sequence[int] = ()) -> CopyPlan:
        array, added = self.operation.array, self.added
        context, width = array.context, array.member_set.config.width
        chunks = context.written.count_live(context.layout, 0, context.layout.stripes)
        written = chunks * context.chunk_bytes
        return {
            "dry_run": True,
            "does": f"makes {width + added} copies of {width}",
            **copy_cost(array, "rebuild", written, written * added, added),
            **redundancy_kept(array, more=added),
            "size_before": array.size_bytes,
            "size_after": array.size_bytes,
        }

    async def begin(self, members: Sequence[Member]) -> Grown:
        return await self.operation.add(self, members)


class CopiesOperation:
    """Adds copies to one running array of whole copies (raid1), or removes some."""

    def __init__(self, array: ArrayServices) -> None:
        self.array = array
        self.member_set = array.member_set
        self.context = array.context

    def plan(self, added: int) -> PlannedCopies:
        """Return how *added* members join. Raises RaidxError (UsageError, BusyError)."""
        config = self.member_set.config
        self.array.require_writable()
        self.array.jobs.require_finished("takes no further copy")
        width = config.width + added
        chunks = config.regions.data.length // config.chunk_bytes
        try:
            LAYOUTS[config.layout].check_width(width)
            layout = make_layout(config.layout, width, chunks, config.chunk_bytes, **config.params)
        except LayoutError as error:
            raise UsageError(str(error), reason=Reason.IMPOSSIBLE_LAYOUT) from None
        record = record_bytes(2 * width, width * layout.chunk_bytes)
        if 2 * record > self.context.journal.capacity:
            raise UsageError(
                f"the log of this array is too small for {width} copies",
                action="add fewer, or make a new array",
                reason=Reason.METADATA_FULL,
            )
        return PlannedCopies(self, added, layout)

    async def add(self, plan: PlannedCopies, members: Sequence[Member]) -> Grown:
        """Make a copy of each of *members*; return a summary with the id of the rebuild's job."""
        membership = self.array.membership
        for member in members:
            membership.check_joining(member)
        layout, job = await reshape(
            self.array,
            Change(
                plan=lambda: self.plan(plan.added).layout,
                swap=self._widen,
                came_from=lambda layout: [
                    *range(layout.width - plan.added),
                    *(None for _ in members),
                ],
                members=members,
                chunks=lambda layout: layout.chunks,
                start=lambda layout: self.array.start_rebuild(
                    tuple(role_range(layout.width - plan.added, layout.width))
                ),
            ),
        )
        return {
            "job": job,
            "members_before": layout.width - plan.added,
            "members_after": layout.width,
            "size_before": self.array.size_bytes,
            "size_after": self.array.size_bytes,
        }

    def _widen(self, layout: Layout, records: Sequence[MemberRecord]) -> None:
        """Change to the wider shape in memory, without an await."""
        member_set = self.member_set
        roles = [Role(role) for role in range(member_set.config.width, layout.width)]

        def widened(config: ArrayConfig) -> ArrayConfig:
            config = assign_role(member_set, config, records)
            jobs = dict(config.jobs)
            for role in roles:
                config = config.with_record(replace(config.record(role), state="rebuilding"))
                jobs[checkpoint_key(role)] = {"next_stripe": 0}
            return replace(config, width=layout.width, jobs=jobs)

        member_set.change(widened)
        for role in roles:
            member_set.watermarks[role] = Stripe(0)
        self.context.take_layout(layout)
        member_set.refresh()

    def plan_removal(self, record: MemberRecord) -> PlannedMember[Removal]:
        """Return how the copy of *record* leaves. Raises as `_narrower`."""
        self._narrower(record)
        does = f"removes {self.array.membership.path_of(record)}"
        return PlannedMember(self.array, does, lambda _: self.remove(record), excludes=True)

    def _narrower(self, record: MemberRecord) -> Layout:
        """Return the layout without the role of *record*.

        Raises UsageError, BusyError or ArrayFailedError if it cannot leave, or not now.
        """
        config, member_set = self.member_set.config, self.member_set
        self.array.require_writable()
        for job in self.array.jobs.running():
            raise JobRunningError(
                f"a {job.kind} is running (job {job.job_id})",
                action=f"wait for it: `raidx job ARRAY wait {job.job_id}`",
            )
        if self.context.dirty_bitmap.pending_regions():
            raise BusyError(
                "a resync is due",
                action="unmount and mount again to retry it",
                reason=Reason.REMOUNT,
            )
        if config.width == LAYOUTS[config.layout].width_min:
            raise NotWithLayoutError(
                f"{config.width} copies are the fewest that {config.layout} can have",
                action="replace the member with `raidx replace-disk`",
            )
        if len(member_set.lost | {record.role}) > config.width - 1:
            raise ArrayFailedError(
                f"role {record.role} holds the only complete copy",
                action="rebuild or replace the lost members first",
            )
        chunks = config.regions.data.length // config.chunk_bytes
        return make_layout(
            config.layout, config.width - 1, chunks, config.chunk_bytes, **config.params
        )

    async def remove(self, record: MemberRecord) -> Removal:
        """Let the member of *record* leave the array; the others keep all content."""

        def plan() -> tuple[Layout, MemberRecord]:
            newest = self._newest(record)
            return self._narrower(newest), newest

        (_, record), _ = await reshape(
            self.array,
            Change(
                plan=plan,
                swap=lambda planned, _: self._narrow(*planned),
                came_from=lambda planned: [
                    role for role in range(planned[0].width + 1) if role != planned[1].role
                ],
                beside=(),
                renumbers=True,
            ),
        )
        return {"path": record.path_hint, "member_uuid": record.member_uuid}

    def _newest(self, record: MemberRecord) -> MemberRecord:
        """Return the present record of the member of *record*: its role may be another one by now.

        Raises UsageError if the member has no role any more.
        """
        for newest in self.member_set.config.members:
            if newest.member_uuid == record.member_uuid and newest.role >= 0:
                return newest
        raise UsageError(f"{record.path_hint} has left role {record.role} meanwhile")

    def _narrow(self, layout: Layout, record: MemberRecord) -> list[Member]:
        """Change to the narrower shape in memory, without an await; return the member."""
        member_set, role = self.member_set, record.role
        queue = member_set.take_out(role)

        def narrowed(config: ArrayConfig) -> ArrayConfig:
            members = tuple(
                replace(r, role=Role(r.role - 1)) if r.role > role else r
                for r in config.members
                if r.role != role
            )
            return replace(config, width=layout.width, members=members)

        member_set.change(narrowed)
        self.context.take_layout(layout)
        member_set.refresh()
        if queue is None:
            return []
        queue.close()
        return [queue.member]
