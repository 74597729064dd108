"""Taking a member out of a striped array: the last growth is undone, or the others hold everything.

    it joined in the last growth, whose chunks are free    the growth is undone, and all leave
    else                                                   restripe onto the other members

Both move chunks while the array is used, and stop and resume as every change of a layout.

While a growth is in use in part, its chunks lie in the first stripes only: those are fuller than
stripes of one member less can be, and the others emptier. A restripe moves in one direction, so
that takes two: first onto the same members (`raidx reshape` to the same layout), which makes all
stripes alike, then onto the others.
"""

from __future__ import annotations

from contextlib import suppress

from raidx_fuse.errors import NotWithLayoutError, UsageError
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.jobs.grow.removal import GrowthRemoval, PlannedShrink
from raidx_fuse.jobs.restripe.operation import PlannedRestripe, RestripeOperation
from raidx_fuse.jobs.restripe.space import require_space
from raidx_fuse.layouts.registry import LAYOUTS


class MemberRemoval:
    """Takes members out of one running array with stripes of fixed places."""

    def __init__(self, growth: GrowthRemoval, restripe: RestripeOperation) -> None:
        self.growth = growth
        self.restripe = restripe

    def plan(self, record: MemberRecord) -> PlannedShrink | PlannedRestripe:
        """Return how the member of *record* can leave.

        Raises UsageError, BusyError or RaidxError if it cannot, or not now; the action of the error
        is what to do first.
        """
        if self.growth.applies(record):
            with suppress(UsageError):  # its chunks are in use: the others may have room for all
                return self.growth.plan(record)
        self._require_width()
        self._require_room()
        return self.restripe.plan_without(record.role)

    def _require_room(self) -> None:
        """Raise UsageError if the chunks in use have no room, in their order, on one member less.

        A grown array has chunks of all generations in each stripe.
        """
        restripe = self.restripe
        layout, config = restripe.context.layout, restripe.member_set.config
        width, chunk_bytes = config.width - 1, layout.chunk_bytes
        chunks = layout.chunks - layout.stripes * layout.code.rows  # all that the others can hold
        holder = f"{config.layout} on {width} members"
        if layout.has_grown:
            room = layout.fitting(chunks) * chunk_bytes
            require_space(config, restripe.array.size_bytes, room, holder)
        elif layout.ordered_chunks > chunks:
            raise NotWithLayoutError(
                f"this array was restriped after it had grown: its {layout.ordered_chunks} chunks "
                f"keep the order of that growth, and {holder} hold {chunks}",
                action="replace the member with `raidx replace-disk`, or copy the image to a new "
                "array",
            )

    def _require_width(self) -> None:
        """Raise UsageError if the layout does not exist for one member less."""
        config = self.restripe.member_set.config
        info, width = LAYOUTS[config.layout], config.width - 1
        if info.allows(width):
            return
        least = f"{config.layout} does not exist for {width} members ({info.widths})"
        able = [name for name in ("rdp", "raid5", "raid0") if LAYOUTS[name].allows(width)]
        able = [name for name in able if LAYOUTS[name].allows(config.width)]
        if not able:
            raise NotWithLayoutError(least, action="replace the member with `raidx replace-disk`")
        kept = LAYOUTS[able[0]].tolerance(width) < info.tolerance(config.width)
        lose = " --lose-redundancy" if kept else ""
        raise NotWithLayoutError(
            least,
            action=f"change the layout first: raidx reshape ARRAY --layout {able[0]}{lose}",
        )
