"""Taking members out again: the last growth of an array is undone, if its new chunks are free.

A growth adds the last chunks of the image, and only them. While nothing in use reaches them, the
array of before holds everything: what they still have, zeros of deleted volumes or the old copies
of a growth with piggyback, is discarded first. The columns then move back as after a cancelled
growth: the array gets the shape "growing, every stripe has migrated", which gives every chunk the
place that it has, and the job runs backwards from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raidx_fuse.engine.growth_position import JOB_KEY, LIVE, PARITY
from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord
from raidx_fuse.format.shapes import MIGRATED
from raidx_fuse.jobs.grow.operation import GrowOperation, migration_cost
from raidx_fuse.jobs.reshape import Change, reshape
from raidx_fuse.jobs.restripe.space import require_space
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import Removal, ReshapePlan


@dataclass(frozen=True)
class PlannedShrink:
    """The last growth, with which the member of *record* joined, is undone.

    *layout* is that of its end, every stripe having migrated.
    """

    removal: GrowthRemoval
    record: MemberRecord
    layout: ElasticLayout

    async def cost(self, _sizes: Sequence[int] = ()) -> ReshapePlan:
        array, layout = self.removal.operation.array, self.layout
        before, after = layout.history[-1], layout.history[-2]
        does = f"shrinks from {before} to {after} members, the last ones leave"
        return {
            **await migration_cost(array, layout, LIVE, does),
            "size_before": array.size_bytes,
            "size_after": min(array.size_bytes, layout.size_bytes),
        }

    async def begin(self, _members: Sequence[Member]) -> Removal:
        return await self.removal.begin(self)


class GrowthRemoval:
    """Undoes the last growth of the array of *operation*."""

    def __init__(self, operation: GrowOperation) -> None:
        self.operation = operation
        self.context = operation.context
        self.member_set = operation.member_set

    def applies(self, record: MemberRecord) -> bool:
        """Return whether the member of *record* joined in the last growth of the array."""
        return record.role in self.context.layout.joined_last()

    def plan(self, record: MemberRecord) -> PlannedShrink:
        """Return how the members of the last growth leave, that of *record* too.

        Raises RaidxError (UsageError, BusyError) if they cannot leave, or not now.
        """
        config = self.member_set.config
        self.operation.array.require_writable()
        self.operation.array.jobs.require_finished("does not shrink")
        assert self.applies(record)
        params = config.params | {MIGRATED: self.context.layout.stripes, PARITY: LIVE}
        narrower = self.operation.growing_layout(params, config.width)
        holder = f"{config.layout} on {narrower.members_before} members"
        size_bytes = self.operation.array.size_bytes
        require_space(config, size_bytes, narrower.size_bytes, holder)
        return PlannedShrink(self, record, narrower)

    async def begin(self, plan: PlannedShrink) -> Removal:
        """Start to move everything off the members of the last growth; return a summary."""
        array = self.operation.array
        layout, job = await reshape(
            array,
            Change(
                plan=lambda: self.plan(plan.record).layout,
                swap=lambda layout, _: self._widen(layout),
                tail=lambda layout: layout.size_bytes,
                start=lambda _: self.operation.start(back=True),
            ),
        )
        return {
            "job": job,
            "members_before": layout.history[-1],
            "members_after": layout.history[-2],
            "size_before": layout.chunks * layout.chunk_bytes,
            "size_after": array.size_bytes,
        }

    def _widen(self, layout: ElasticLayout) -> None:
        """Change to the shape at the end of the growth, in memory, without an await."""

        def widened(config: ArrayConfig) -> ArrayConfig:
            return replace(
                config,
                params={**config.params, MIGRATED: layout.stripes, PARITY: LIVE},
                jobs={**config.jobs, JOB_KEY: {"back": True, "remove": True}},
            )

        self.member_set.change(widened)
        self.context.take_layout(layout)
        self.member_set.refresh()
