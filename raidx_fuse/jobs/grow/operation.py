"""Growing an array onto more members: the change of shape at the beginning and at the end.

    add members:  prepare them -> gate closed: wider layout, 0 stripes migrated -> maps
                  -> superblocks -> gate open
    job `grow`:   windows (job.py), positions made durable (engine/growth_position.py)
    at the end:   gate closed: superblocks: the new shape -> the image is larger; a surrogate has
                  taken the role of the parity, and the former parity member is a spare
    cancelled:    back to 0 stripes migrated -> gate closed: narrower layout -> superblocks

With no stripe migrated, both layouts give every block the same place. The change of shape itself
therefore moves nothing, and after a crash around it the array is intact in either shape.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import trio

from raidx_fuse.engine.growth_position import (
    JOB_KEY,
    LIVE,
    PARITY,
    PARITY_WORDS,
    PIGGYBACK,
    SURROGATE,
)
from raidx_fuse.errors import NotWithLayoutError, RaidxError, Reason, UsageError
from raidx_fuse.format.configuration.config import NO_ROLE, ArrayConfig, MemberRecord
from raidx_fuse.format.log_record import record_bytes
from raidx_fuse.format.regions import PAYLOAD_BITS
from raidx_fuse.format.shapes import MIGRATED, Shape
from raidx_fuse.jobs.attach import assign_role
from raidx_fuse.jobs.costs import SCAN_STRIPES, copy_cost, redundancy_kept
from raidx_fuse.jobs.grow.copy import live_moves
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.jobs.reshape import Change, reshape
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.elastic_params import next_rules, parity_stays
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.registry import (
    LAYOUTS,
    LayoutError,
    grows_in_place,
    is_rotated,
    make_grown,
)
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import Grown, GrowthPlan, LoggedPlan

log = logging.getLogger(__name__)

HISTORY = "history"
RULES = "rules"


@dataclass(frozen=True)
class PlannedGrowth:
    """A growth to *layout*, of which no stripe has migrated; *parity* is its mode (copy.py)."""

    operation: GrowOperation
    layout: ElasticLayout
    parity: str

    async def cost(self, _sizes: Sequence[int] = ()) -> GrowthPlan:
        array, layout = self.operation.array, self.layout
        words = PARITY_WORDS[self.parity]
        does = f"grows from {layout.history[-2]} to {layout.history[-1]} members{words}"
        return {
            **await migration_cost(array, layout, self.parity, does),
            "parity": self.parity,
            "size_before": array.size_bytes,
            "size_after": self.operation.size_after(layout),
        }

    async def begin(self, members: Sequence[Member]) -> Grown:
        return await self.operation.begin(self, members)


async def migration_cost(
    array: ArrayServices, layout: ElasticLayout, parity: str, does: str
) -> LoggedPlan:
    """Return the cost of a growth to *layout*, or of undoing it, without the sizes of the image.

    Only written cells that move to another disk are read and written, parity among them; with
    *parity* piggyback, the parity of their stripes too. *bytes_logged* is the part that goes
    through the log.
    """
    context = array.context
    blocks = parities = logged = 0
    for start in range(0, layout.stripes, SCAN_STRIPES):
        end = min(start + SCAN_STRIPES, layout.stripes)
        stripes, _ = live_moves(context, layout, start, end)
        blocks += len(stripes)
        if parity == PIGGYBACK:
            parities += len(set(stripes))
        await trio.lowlevel.checkpoint()
    moved = (blocks + parities) * context.chunk_bytes
    if parity == PIGGYBACK and context.journal.mode != "none":
        logged = parities * context.chunk_bytes * (context.code.tolerance + 1)
    added = layout.history[-1] - layout.history[-2]
    return {
        "dry_run": True,
        "does": does,
        **copy_cost(array, "grow", moved, moved, added),  # only the new disks write
        "bytes_logged": logged,
        **redundancy_kept(array),
    }


class GrowOperation:
    """Begins and concludes the growths of one running array."""

    def __init__(self, array: ArrayServices) -> None:
        self.array = array
        self.member_set = array.member_set
        self.context = array.context
        self._granule: int | None = None  # stripes; None: as the size of the array suggests

    def set_granule(self, stripes: int) -> None:
        """Let the next growths have granules of *stripes*, whatever the size of the array."""
        self._granule = stripes

    # -- checks --------------------------------------------------------------------------------

    def plan(self, added: int, parity: str = LIVE) -> PlannedGrowth:
        """Return the growth by *added* members; a surrogate is not counted among them.

        Raises RaidxError (UsageError, BusyError) if the array cannot grow, or not now.
        """
        config = self.member_set.config
        self.array.require_writable()
        if not grows_in_place(config.layout):
            able = ", ".join(name for name in LAYOUTS if grows_in_place(name))
            raise RaidxError(
                f"{config.layout} cannot grow by moving the fewest chunks: only {able} can",
                action="move all chunks: --method restripe; or add spares: --as spare",
                reason=Reason.NOT_WITH_LAYOUT,
            )
        if parity != LIVE and not self.context.code.parity_count:
            raise NotWithLayoutError(
                f"{config.layout} has no parity: --parity {parity} does not apply"
            )
        if parity != LIVE and not parity_stays(config.layout):
            raise NotWithLayoutError(
                f"parity of {config.layout} moves like data: only --parity live applies"
            )
        self.array.jobs.require_finished("does not grow")
        try:
            LAYOUTS[config.layout].check_width(config.width + added)
            params = self._params(config, added, parity)
            layout = self.growing_layout(params, config.width + added + (parity == SURROGATE))
        except LayoutError as error:
            raise NotWithLayoutError(
                str(error), action="move all chunks to a wider layout: --method restripe"
            ) from None
        self._check_room(layout)
        return PlannedGrowth(self, layout, parity)

    def growing_layout(self, params: dict[str, Any], width: int) -> ElasticLayout:
        """Return the array's layout in a growth to *width*, with *params*. Raises LayoutError."""
        config = self.member_set.config
        chunks = config.regions.data.length // config.chunk_bytes
        return make_grown(config.layout, width, chunks, config.chunk_bytes, **params)

    def _params(self, config: ArrayConfig, added: int, parity: str) -> dict[str, Any]:
        """Return the parameters of the array while it grows by *added*. Raises LayoutError."""
        name, params = config.layout, dict(config.params)
        history = [*params.get(HISTORY, [config.width]), config.width + added]
        layout = self.context.layout
        size = layout.stripes, layout.code.rows
        rules = next_rules(
            *(name, tuple(history), params, is_rotated(name, params), *size),
            granule=self._granule,
            rotates=self._rotates(),
        )
        params[RULES] = [None if rule is None else list(rule) for rule in rules]
        return params | {HISTORY: history, MIGRATED: 0, PARITY: parity}

    def _rotates(self) -> bool | None:
        """Return whether a member is a rotating disk, None if that is not known of all others."""
        kinds = {queue.member.rotates for queue in self.member_set.queues if queue is not None}
        return True if True in kinds else None if None in kinds else False

    def _check_room(self, layout: ElasticLayout) -> None:
        """Raise UsageError unless the metadata regions are large enough for the wider array."""
        regions = self.member_set.config.regions
        bits = regions.pages("written").pages * PAYLOAD_BITS
        cells = len(layout.code.cells)
        record = record_bytes(2 * cells, cells * layout.chunk_bytes)
        if layout.chunks > bits or 2 * record > self.context.journal.capacity:
            raise UsageError(
                f"this array's metadata is too small for {layout.width} members",
                action="add fewer, or make a new array",
                reason=Reason.METADATA_FULL,
            )

    # -- begin ---------------------------------------------------------------------------------

    async def begin(self, plan: PlannedGrowth, members: Sequence[Member]) -> Grown:
        """Add *members*, in the order of their new roles, and start the job; return its summary.

        A surrogate is the last of them.
        """
        history, parity = plan.layout.history, plan.parity
        membership = self.array.membership
        for member in members:
            membership.check_joining(member)
        layout, job = await reshape(
            self.array,
            Change(
                plan=lambda: self.plan(history[-1] - history[-2], parity).layout,
                swap=lambda layout, records: self._widen(layout, records, parity),
                came_from=lambda _: [*range(history[-2]), *(None for _ in members)],
                members=members,
                chunks=lambda layout: layout.chunks,
                start=lambda _: self.start(back=False),
            ),
        )
        return {
            "job": job,
            "members_before": layout.history[-2],
            "members_after": layout.history[-1],
            "size_before": self.array.size_bytes,
            "size_after": self.size_after(layout),
        }

    def size_after(self, layout: ElasticLayout) -> int:
        """Return the size of the image in bytes after *layout*'s growth."""
        limit = self.member_set.config.size_bytes
        whole = layout.chunks * layout.chunk_bytes
        return whole if limit is None else min(limit, whole)

    def _widen(self, layout: ElasticLayout, records: Sequence[MemberRecord], parity: str) -> None:
        """Change to the wider shape in memory, without an await."""
        member_set, added = self.member_set, layout.history[-1] - layout.history[-2]

        # As `plan` had them: with the newcomers among the members there might be other rules.
        params = self._params(member_set.config, added, parity)

        def widened(config: ArrayConfig) -> ArrayConfig:
            return replace(
                assign_role(member_set, config, records),
                width=layout.width,
                params=params,
                jobs={**config.jobs, JOB_KEY: {"back": False}},
            )

        member_set.change(widened)
        self.context.written.extend(layout.chunks)
        self.context.take_layout(layout)
        member_set.refresh()

    def start(self, back: bool) -> int:
        """Start the job of the growth that the configuration has; return its id."""
        return self.array.jobs.start(
            lambda context, job_id: Grow(context, job_id, back, self._conclude)
        ).job_id

    def resume(self) -> None:
        """When the array starts: continue a growth that was under way."""
        if self.context.growth is not None:
            self.start(back=bool(self.member_set.config.jobs.get(JOB_KEY, {}).get("back")))

    # -- end -----------------------------------------------------------------------------------

    async def _conclude(self, back: bool) -> None:
        """Conclude: all blocks are at their new places, or *back* at their old ones."""
        assert self.context.growth is not None
        layout = self.context.growth.layout
        roles_change = back or layout.surrogate is not None
        await reshape(
            self.array,
            Change(
                plan=lambda: layout,
                swap=lambda layout, _: self._take_back(layout) if back else self._finish(layout),
                came_from=(lambda layout: _roles_left(layout, back)) if roles_change else None,
                beside=(Grow.kind,) if roles_change else None,
                renumbers=roles_change,
                drained=roles_change,
            ),
        )
        if not back:
            size = layout.size_bytes
            log.warning("grown to %d members: the image has %d bytes", layout.width, size)

    def _finish(self, layout: ElasticLayout) -> Sequence[Member]:
        """Let the vacated places extend the image, in memory, without an await.

        A surrogate takes the role of the parity; the former parity member becomes a spare.
        """
        member_set, surrogate, before = self.member_set, layout.surrogate, layout.history[-2]

        def final_config(config: ArrayConfig) -> ArrayConfig:
            # The vacated places on these members hold old content: they do not read as zero.
            members = tuple(
                replace(r, reads_zero=False) if 0 <= r.role < before else r for r in config.members
            )
            return replace(
                config,
                members=members,
                params=_without(config.params, MIGRATED, PARITY),
                jobs=_without(config.jobs, JOB_KEY),
            )

        member_set.change(final_config)
        if surrogate is not None:
            self._take_role(layout, Role(surrogate))
        layout.finish_growth()
        self.context.end_growth()
        member_set.refresh()
        return ()

    def _take_role(self, layout: ElasticLayout, surrogate: Role) -> None:
        """Assign the role of the parity to the surrogate, in memory, without an await."""
        member_set = self.member_set
        role = _parity_role(layout)
        queue = member_set.queues[role]

        def handed_over(config: ArrayConfig) -> ArrayConfig:
            successor, former = config.record(surrogate), config.record(role)
            others = tuple(r for r in config.members if r not in (successor, former))
            members = [*others, replace(successor, role=role)]
            if queue is not None:
                members.append(replace(former, role=NO_ROLE, state="spare", reads_zero=False))
            return replace(
                config,
                width=layout.history[-1],
                members=tuple(sorted(members, key=lambda r: (r.role < 0, r.role))),
            )

        if queue is not None:
            member_set.spares[member_set.config.record(role).member_uuid] = queue.member
            queue.close()
        member_set.queues[role] = member_set.queues.pop()
        member_set.change(handed_over)

    def _take_back(self, wide: ElasticLayout) -> list[Member]:
        """Change to the narrower shape in memory, without an await; return members that left."""
        member_set, width = self.member_set, wide.history[-2]
        config, params = member_set.config, without_last_growth(member_set.config.params)
        layout = Shape(config.layout, width, params).make(config)
        gone = [queue for queue in member_set.queues[width:] if queue is not None]
        del member_set.queues[width:]

        def narrowed(config: ArrayConfig) -> ArrayConfig:
            return replace(
                config,
                width=width,
                members=tuple(r for r in config.members if r.role < width),
                params=without_last_growth(config.params),
                jobs=_without(config.jobs, JOB_KEY),
            )

        member_set.change(narrowed)
        for role in [role for role in member_set.watermarks if role >= width]:
            del member_set.watermarks[role]
        self.context.written.extend(layout.chunks)
        self.context.take_layout(layout)
        member_set.refresh()
        for queue in gone:
            queue.close()
        return [queue.member for queue in gone]


def _parity_role(layout: ElasticLayout) -> Role:
    """Return the role whose member a surrogate replaces."""
    return layout.place_in(Stripe(0), CellIndex(layout.code.data_count), after=False)[0]


def _roles_left(layout: ElasticLayout, back: bool) -> list[int | None]:
    """Return, by role at the end of the growth of *layout*, its role before."""
    if back or layout.surrogate is None:
        return [*range(layout.history[-2 if back else -1])]
    parity = _parity_role(layout)
    roles = range(layout.history[-1])
    return [layout.surrogate if role == parity else role for role in roles]


def without_last_growth(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an array as they were before its last growth."""
    kept = _without(params, MIGRATED, PARITY, HISTORY, RULES)
    history, rules = params[HISTORY][:-1], params.get(RULES, [])[: len(params[HISTORY]) - 2]
    if len(history) > 1:
        kept[HISTORY] = history
        if any(rules):
            kept[RULES] = rules
    return kept


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}
