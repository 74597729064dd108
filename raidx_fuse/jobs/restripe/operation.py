"""Restriping an array to another layout: the change of shape at the beginning and at the end.

    begin:     new members join -> no region is marked dirty, all writes are logged from here on
               -> the watermark at its start, durable -> gate closed: two layouts -> superblocks
    job:       windows (job.py); how far it is lies in the log
    end:       the log is empty -> gate closed: the new layout -> superblocks -> the image is larger
    cancelled: the same with the old layout, and the new members are released

A restripe onto fewer members (`without`) is the same; at its end those that are not needed any more
are released, and the roles behind them move up.

With the watermark at either end, the pair of layouts and one of them alone give every chunk the
same place. The changes of shape therefore move nothing, and after a crash around one of them the
array is intact.
"""

from __future__ import annotations

import logging
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from raidx_fuse.errors import NotWithLayoutError, Reason, UsageError
from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord
from raidx_fuse.format.configuration.saved_jobs import REBUILD
from raidx_fuse.format.configuration.volumes import image_end
from raidx_fuse.format.log_record import record_bytes
from raidx_fuse.format.regions import PAYLOAD_BITS
from raidx_fuse.format.shapes import RESTRIPE, Shape, restriping, shape_of, shapes_of
from raidx_fuse.jobs.attach import assign_role
from raidx_fuse.jobs.costs import ASSUMED_RATE_BYTES, job_time, redundancy_left
from raidx_fuse.jobs.rebuild import checkpoint_key
from raidx_fuse.jobs.reshape import Change, reshape
from raidx_fuse.jobs.restripe.job import JOB_KEY, Restripe, record_chunks
from raidx_fuse.jobs.restripe.space import require_space
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.elastic_params import ELASTIC_PARAMS
from raidx_fuse.layouts.numbers import Role, Stripe, role_range
from raidx_fuse.layouts.placements.restriping import (
    PartlyUsedError,
    RestripeLayout,
    numbering_for,
)
from raidx_fuse.layouts.placements.views import final_layout
from raidx_fuse.layouts.planning.restripe_schedule import RestripeSchedule
from raidx_fuse.layouts.plugged import MADE_BY, origin_params
from raidx_fuse.layouts.registry import LAYOUTS, LayoutError, find_layout
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import LoggedCosts, ReshapePlan, Reshaping

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedRestripe:
    """A restripe to *shape*, with *layout* at its begin; *does* says so; *again* plans it anew."""

    operation: RestripeOperation
    shape: Shape
    layout: RestripeLayout
    does: str
    again: Callable[[], PlannedRestripe]

    async def cost(self, _sizes: Sequence[int] = ()) -> ReshapePlan:
        """Return the cost; only a member that leaves may be lost when a restripe begins."""
        array, layout = self.operation.array, self.layout
        left, after = redundancy_left(array), layout.new.code.tolerance
        during = min(left, after)
        costs = self._costs()
        reduced_s = None if after < left else costs["seconds"] * (during < left)
        return {
            "dry_run": True,
            "does": self.does,
            **costs,
            "redundancy_left": during,
            "redundancy_reduced": during < left,
            "redundancy_reduced_seconds": reduced_s,
            "redundancy": {"now": left, "worst": during, "end": after},
            "size_before": array.size_bytes,
            "size_after": self.operation.size_after(layout),
        }

    def _costs(self) -> LoggedCosts:
        """Return what moves, and how long it takes.

        Written chunks are read once and written once, with the parity of their new stripes. If both
        layouts use the same number of rows per chunk, everything goes through the log first
        (*bytes_logged*).
        """
        array, layout = self.operation.array, self.layout
        old, new = layout.old, layout.new
        moved = array.context.written.count_written() * array.context.chunk_bytes
        written = round(moved * len(new.code.cells) / new.code.data_count)
        (old_stripes, old_rows), (new_stripes, new_rows) = old.tile(), new.tile()
        room = old.code.data_count * old_stripes * new_rows
        same = room == new.code.data_count * new_stripes * old_rows
        logged = written * (layout.code.tolerance + 1) if same else 0
        # Read from all old members, written to all new ones, one after the other.
        cost = old_rows / (ASSUMED_RATE_BYTES * old.code.data_count * old_stripes)
        cost += (written + logged) / max(1, moved) / (ASSUMED_RATE_BYTES * new.width)
        return {
            "bytes_read": moved,
            "bytes_written": written,
            "bytes_moved": moved + written,
            "bytes_logged": logged,
            **job_time(array, Restripe.kind, moved, round(1 / cost)),
        }

    async def begin(self, members: Sequence[Member]) -> Reshaping:
        return await self.operation.begin(self, members)


class RestripeOperation:
    """Begins and concludes the restripes of one running array."""

    def __init__(self, array: ArrayServices) -> None:
        self.array = array
        self.member_set = array.member_set
        self.context = array.context

    # -- checks --------------------------------------------------------------------------------

    def plan(self, added: int, name: str | None, params: Mapping[str, Any]) -> PlannedRestripe:
        """Return the restripe onto *added* more members to the layout *name* (None: unchanged).

        Raises RaidxError (UsageError, BusyError) if a restripe is impossible, or not possible now.
        """
        config = self.member_set.config
        old = shapes_of(config)[0]
        name = old.layout if name is None else name
        shape = self._shape(config.width + added, name, params, self._image_end())
        has_grown = self.context.layout.has_grown
        if shape == old or not (added or name != old.layout or params or has_grown):
            raise UsageError(
                f"the array is {name} on {config.width} members already",
                action="name another layout with --layout, or members to add",
                reason=Reason.ALREADY,
            )
        does = (
            f"moves all chunks from {config.layout} on {config.width} members to "
            f"{shape.layout} on {shape.width}"
        )
        again = partial(self.plan, added, name, params)
        return PlannedRestripe(self, shape, self._layout_to(shape), does, again)

    def plan_without(self, role: Role) -> PlannedRestripe:
        """Return the restripe onto the members but that in *role*. Raises as `plan`."""
        config = self.member_set.config
        shape = self._shape(config.width - 1, config.layout, {}, self._image_end())
        shape = replace(shape, roles=tuple(r for r in range(config.width) if r != role))
        does = f"moves all chunks from {config.width} to {shape.width} members, without role {role}"
        again = partial(self.plan_without, role)
        return PlannedRestripe(self, shape, self._layout_to(shape), does, again)

    def _shape(self, width: int, name: str, params: Mapping[str, Any], image_bytes: int) -> Shape:
        """Return the shape of *width* members for an image of which *image_bytes* are in use."""
        old = shapes_of(self.member_set.config)[0]
        kept = old.params if name == old.layout and not params else params
        kept = {key: value for key, value in kept.items() if key not in ELASTIC_PARAMS}
        chunks = -(-image_bytes // self.context.chunk_bytes)
        numbering = numbering_for(self.context.layout, chunks)
        kept.pop("order", None)
        if numbering is not None:
            kept["order"] = numbering.as_dict()
        try:
            info = find_layout(name)
            if info.build is None or LAYOUTS[old.layout].bundled:
                raise NotWithLayoutError(
                    f"{old.layout} cannot be restriped to {name}: chunks move in the order of the "
                    "image, and raidx layouts place each chunk by a table",
                    action="copy the image to a new array",
                )
            info.check_width(width)
            kept.pop(MADE_BY, None)
            kept |= origin_params(LAYOUTS, name, width)
        except LayoutError as error:
            raise UsageError(str(error), reason=Reason.IMPOSSIBLE_LAYOUT) from None
        return Shape(name, width, kept)

    def _image_end(self) -> int:
        """Return how many bytes of the image are in use by volumes."""
        return image_end(self.member_set.config.volumes, self.array.size_bytes)

    def _layout_to(self, shape: Shape) -> RestripeLayout:
        """Return the layout at the begin of a restripe to *shape*. Raises as `plan`."""
        self.array.require_writable()
        config = self.member_set.config
        gone = shape_of(config).members() - shape.members()
        self.array.jobs.require_finished("is not restriped", next(iter(gone), None))
        self.context.dirty_bitmap.require_whole()
        try:
            layout = restriping(config, shape_of(config), shape)
            holder = f"{shape.layout} on {shape.width} members"
            require_space(config, self.array.size_bytes, layout.size_bytes, holder)
            self._check_room(layout)
        except PartlyUsedError as error:
            action = f"make them alike first: raidx reshape ARRAY --layout {config.layout}"
            raise UsageError(str(error), action=action, reason=Reason.IMPOSSIBLE_LAYOUT) from None
        except LayoutError as error:
            raise UsageError(str(error), reason=Reason.IMPOSSIBLE_LAYOUT) from None
        return layout

    def _check_room(self, layout: RestripeLayout) -> None:
        """Raise UsageError or LayoutError unless written map and log are large enough for both."""
        chunk_bytes, capacity = layout.chunk_bytes, self.context.journal.capacity
        bits = self.member_set.config.regions.pages("written").pages * PAYLOAD_BITS
        if layout.chunks > bits:
            raise UsageError(
                f"the written map of these members is too small for {layout.chunks} chunks",
                action="add fewer members, or make a new array",
                reason=Reason.METADATA_FULL,
            )
        for view in (layout.below, layout.above):
            cells = len(view.code.cells)
            if 2 * record_bytes(2 * cells, cells * chunk_bytes) > capacity:
                raise UsageError(
                    f"the log of these members, {capacity} bytes, is too small for stripes of "
                    f"{view.name} on {view.width} members: {cells} chunks of {chunk_bytes} bytes",
                    action="make a new array, of larger members or smaller chunks",
                    reason=Reason.METADATA_FULL,
                )
        for upward in (True, False):  # both directions: it may be cancelled
            RestripeSchedule(layout, upward, record_chunks(capacity, chunk_bytes)).check()

    # -- begin ---------------------------------------------------------------------------------

    async def begin(self, plan: PlannedRestripe, members: Sequence[Member]) -> Reshaping:
        """Add *members*, in the order of their new roles, and start the job; return its summary.

        Of a smaller image, the chunks that no volume uses are given back first.
        """
        for member in members:
            self.array.membership.check_joining(member)
        shape: Shape | None = None

        def again() -> tuple[RestripeLayout, Shape]:
            nonlocal shape  # it stays what it was when no other change could begin any more
            shape = shape or plan.again().shape
            return self._layout_to(shape), shape

        (layout, to), job = await reshape(
            self.array,
            Change(
                plan=again,
                swap=lambda planned, records: self._widen(*planned, records),
                came_from=lambda planned: [
                    *range(planned[0].width - len(members)),
                    *(None for _ in members),
                ],
                members=members,
                chunks=lambda planned: planned[0].chunks,
                tail=lambda planned: planned[0].size_bytes,
                prepare=lambda planned: self._mark_start(planned[0]),
                undo=lambda: self.context.journal.force(False),
                start=lambda _: self._start(back=False),
                clean=True,
            ),
        )
        old = shapes_of(self.member_set.config)[0]
        return {
            "job": job,
            "layout_before": old.layout,
            "layout_after": to.layout,
            "members_before": old.width,
            "members_after": to.width,
            "size_before": self.array.size_bytes,
            "size_after": self.size_after(layout),
        }

    async def _mark_start(self, layout: RestripeLayout) -> None:
        """Log all writes from here on, and make durable where the watermark is."""
        context = self.context
        context.journal.force(True)
        async with context.closed(drained=False):
            pass  # all writes past the log have ended, and none begins any more
        await context.journal.drain()
        await context.journal.save_mark(layout.start)

    def size_after(self, layout: RestripeLayout) -> int:
        """Return the size of the image in bytes after the restripe of *layout*."""
        limit = self.member_set.config.size_bytes
        whole = layout.new.size_bytes
        return whole if limit is None else min(limit, whole)

    def _widen(self, layout: RestripeLayout, shape: Shape, records: Sequence[MemberRecord]) -> None:
        """Change to the pair of layouts in memory, without an await."""

        def widened(config: ArrayConfig) -> ArrayConfig:
            shapes = {"from": shape_of(config).as_dict(), "to": shape.as_dict()}
            changed = assign_role(self.member_set, config, records)
            return replace(
                changed,
                width=layout.width,
                members=_used(changed),
                params={RESTRIPE: shapes},
                jobs={**config.jobs, JOB_KEY: {"back": False}},
            )

        self.member_set.change(widened)
        self.context.written.extend(layout.chunks)
        self.context.take_layout(layout)
        self.member_set.refresh()

    def _start(self, back: bool) -> int:
        return self.array.jobs.start(
            lambda context, job_id: Restripe(context, job_id, back, self._conclude)
        ).job_id

    def resume(self) -> None:
        """When the array starts: continue a restripe that was under way."""
        if self.context.layout.restriping:
            self._start(back=bool(self.member_set.config.jobs.get(JOB_KEY, {}).get("back")))

    # -- end -----------------------------------------------------------------------------------

    async def _conclude(self, back: bool) -> None:
        """Conclude: all chunks have places of one layout, which becomes the only one."""
        context = self.context
        assert context.restripe is not None
        views = context.restripe.below, context.restripe.above

        async def forget_torn(_gone: Sequence[Role]) -> None:
            context.dirty_bitmap.forget_torn()  # all content has been moved

        await reshape(
            self.array,
            Change(
                plan=lambda: self._gone(back),
                swap=lambda gone, _: self._finish(back, gone),
                came_from=lambda gone: [
                    role for role in range(self.member_set.config.width) if role not in gone
                ],
                chunks=lambda _: max(final_layout(view).chunks for view in views),
                prepare=forget_torn,
                beside=(Restripe.kind,),
                renumbers=True,
                clean=True,
            ),
        )
        context.journal.force(False)  # only now: its records named stripes of the two layouts
        size = self.array.size_bytes
        log.warning("restriped to %s: the image has %d bytes", context.layout.name, size)

    def _gone(self, back: bool) -> list[Role]:
        """Return the roles that the array does not have any more at the end, ascending."""
        config = self.member_set.config
        kept = shapes_of(config)[0 if back else 1].members()
        return [role for role in role_range(0, config.width) if role not in kept]

    def _finish(self, back: bool, gone: Sequence[Role]) -> list[Member]:
        """Change to one layout in memory, without an await; return the members that leave."""
        context, member_set = self.context, self.member_set
        layout = context.restripe
        assert layout is not None
        context.dirty_bitmap.require_idle()
        shape = shapes_of(member_set.config)[0 if back else 1]
        final = final_layout(layout.old if back else layout.new)
        left = {role: Role(role - bisect(gone, role)) for role in shape.members()}
        queues = [member_set.take_out(role) for role in reversed(gone)]
        for role in member_set.watermarks:
            member_set.watermarks[role] = Stripe(0)

        def shaped(config: ArrayConfig) -> ArrayConfig:
            # Stripes and roles are numbered anew: no rebuild position counts any more, also none
            # of a member that failed while it was rebuilt.
            dropped = (JOB_KEY, *(key for key in config.jobs if key.startswith(REBUILD)))
            jobs = {key: value for key, value in config.jobs.items() if key not in dropped}
            for role in member_set.watermarks:
                jobs[checkpoint_key(role)] = {"next_stripe": 0}
            # Members may have joined as spares meanwhile; they stay.
            members = (r for r in _used(config) if r.role < 0 or r.role in left)
            return replace(
                config,
                layout=shape.layout,
                width=shape.width,
                params=shape.params,
                members=tuple(replace(r, role=left.get(r.role, r.role)) for r in members),
                jobs=jobs,
            )

        member_set.change(shaped)
        context.written.extend(final.chunks)
        context.dirty_bitmap.reshape(final.stripes, final.initial_data_count * final.chunk_bytes)
        context.take_layout(final)
        member_set.refresh()
        released = [queue for queue in queues if queue is not None]
        for queue in released:
            queue.close()
        return [queue.member for queue in released[::-1]]


def _used(config: ArrayConfig) -> tuple[MemberRecord, ...]:
    """Return the members, none marked as reading zero: chunks that moved left old content."""
    return tuple(replace(r, reads_zero=r.reads_zero and r.role < 0) for r in config.members)
