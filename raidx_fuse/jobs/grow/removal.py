"""Taking members out again: the last growth of an array is undone, if its new chunks are free.

A growth adds the last chunks of the image, and only them. While none of them was ever written and
the image does not reach them, the array of before holds everything. The columns then move back as
after a cancelled growth: the array gets the shape "growing, every stripe has migrated", which gives
every chunk the place that it has, and the job runs backwards from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raidx_fuse.engine.growth_position import JOB_KEY, LIVE, MIGRATED, PARITY
from raidx_fuse.errors import UsageError
from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord
from raidx_fuse.jobs.grow.operation import GrowOperation
from raidx_fuse.layouts.placements.elastic import ElasticLayout


class GrowthRemoval:
    """Undoes the last growth of the array of *operation*."""

    def __init__(self, operation: GrowOperation) -> None:
        self.operation = operation
        self.context = operation.context
        self.member_set = operation.member_set

    def narrower(self, record: MemberRecord) -> ElasticLayout:
        """Return the layout from which the members of the last growth, *record* too, move away.

        Raises UsageError or BusyError if they cannot leave, or not now.
        """
        layout, config = self.context.layout, self.member_set.config
        if not isinstance(layout, ElasticLayout) or len(layout.history) < 2:
            raise UsageError(
                f"role {record.role} holds data ({record.state}); {config.layout} on its first "
                "members cannot shrink",
                action="replace it with `raidx replace-disk`",
            )
        self.operation.array.jobs.require_finished("does not shrink")
        first, last = layout.history[-2], layout.history[-1] - 1
        if record.role < first:
            words = f"roles {first} to {last}" if last > first else f"role {last}"
            raise UsageError(
                f"role {record.role} is older than the last growth: only {words} can leave",
                action="replace it with `raidx replace-disk`",
            )
        free = layout.generations[-1]
        before = free.start * layout.chunk_bytes
        if self.operation.array.size_bytes > before:
            raise UsageError(
                f"the image has {self.operation.array.size_bytes} bytes, and {first} members hold "
                f"{before}",
                action="only an image that is smaller (create --image-size) can lose members",
            )
        if not self.context.written.none_written(free.start, free.end):
            raise UsageError(
                f"chunks behind byte {before} of the image are in use by old copies",
                action="a growth with --parity piggyback cannot be undone",
            )
        params = config.params | {MIGRATED: layout.stripes, PARITY: LIVE}
        narrower = self.operation.layout_with(params, config.width)
        assert isinstance(narrower, ElasticLayout)
        return narrower

    async def begin(self, record: MemberRecord) -> dict[str, Any]:
        """Start to move everything off the members of the last growth; return a summary."""
        layout = self.narrower(record)
        async with self.operation.array.membership.attaching:
            await self.context.journal.drain()
            async with self.context.locks.alone():
                layout = self.narrower(record)  # checked again, under the locks
                self._widen(layout)
            await self.member_set.update(lambda config: config)
            job = self.operation.start(back=True)
        return {
            "job": job,
            "members_before": layout.history[-1],
            "members_after": layout.history[-2],
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
