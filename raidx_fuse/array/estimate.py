"""Estimates of what a change costs, before it is made: the numbers of `--dry-run`.

The command line prints them by `dry_run_text` (cli/status_text.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from raidx_fuse.array.services import RunningArray
from raidx_fuse.array.status import redundancy_left
from raidx_fuse.engine.growth_position import LIVE, PARITY_WORDS, PIGGYBACK
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.jobs.grow.copy import live_moves
from raidx_fuse.layouts.numbers import Role, stripe_range
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.restriping import RestripeLayout
from raidx_fuse.layouts.planning.rebundle import Moves

if TYPE_CHECKING:
    from raidx_fuse.documents import (
        BundlePlan,
        CopyPlan,
        Costs,
        GrowthPlan,
        JobCosts,
        LoggedCosts,
        LoggedPlan,
        MemberPlan,
        Redundancy,
        ReshapePlan,
    )

# Bytes a second of a member that was not measured yet: a present-day disk, read sequentially.
ASSUMED_RATE_BYTES = 200 << 20
SCAN_STRIPES = 1 << 14


async def rebuild_estimate(
    array: RunningArray, role: Role, *, returns: bool = False, copied: bool = False
) -> JobCosts:
    """Return what a rebuild of *role* moves and how long it takes, as JSON values.

    *returns*: its member was absent, and is caught up by what changed meanwhile; *copied*: its
    member is in use, and is read alone. Only written stripes are visited, each recovered with the
    fewest reads. *seconds* holds on an idle array,
    *seconds_busy* at `speed_min`. *rate* (bytes a second) is what the last such job on this array
    reached, or an assumption; *rate_source* says which.
    """
    context = array.context
    layout = context.layout
    stripes, visited = 0, [(0, layout.stripes)]
    if returns:
        visited = list(context.changes.ranges(0, layout.stripes))
    for low, high in visited:
        for start in range(low, high, SCAN_STRIPES):
            stripes += context.written.count_live(layout, start, min(start + SCAN_STRIPES, high))
            await trio.lowlevel.checkpoint()
    # Not every bundle has a chunk on the role.
    written = round(stripes * layout.cells_on([role]) * context.chunk_bytes)
    if copied:
        return copy_estimate(array, "rebuild", written, written, 1)
    # In a rotating layout the role holds every column in turn: use the mean.
    phases = min(layout.stripes, layout.width)
    holding = [layout.roles(stripe) for stripe in stripe_range(0, phases)]
    columns = [roles.index(role) for roles in holding if role in roles]
    cells = sum(_reads(array, column) for column in columns) / phases
    return copy_estimate(array, "rebuild", round(stripes * cells * context.chunk_bytes), written, 1)


def _reads(array: RunningArray, column: int) -> int:
    """Return how many cells must be read to recover the cells of *column*."""
    union = 0
    for _, sources in array.context.code.recover(column):
        union |= sources
    return union.bit_count()


async def of_member_change(
    array: RunningArray,
    does: str,
    rebuilds: int | None,
    chunks: int = 0,
    excludes: bool = False,
    returns: bool = False,
    copied: bool = False,
) -> MemberPlan:
    """Return the cost of a change of members; *rebuilds* is the role it rebuilds, None for none.

    *returns*: that of its own member, which was absent; *copied*: from its own. *chunks* is the
    number of chunks that the change may lose; *excludes*: it takes a member out.
    """
    costs: Costs = {"bytes_read": 0, "bytes_written": 0, "bytes_moved": 0, "seconds": 0.0}
    if rebuilds is not None:
        rebuild = await rebuild_estimate(array, Role(rebuilds), returns=returns, copied=copied)
        whole: JobCosts = {**costs, **rebuild}
        costs = whole
    until_replaced = excludes and rebuilds is None
    now, lost, code = redundancy_left(array), array.member_set.lost, array.context.code
    worst = end = max(now - excludes, 0)
    if rebuilds is not None:
        worst = now if rebuilds in lost else max(now - 1, 0)
        end = max(code.tolerance - len(lost - {rebuilds}), worst)
    return {
        "dry_run": True,
        "does": does,
        **costs,
        "chunks_at_stake": chunks,
        "redundancy_left": now,
        "redundancy_reduced": rebuilds is not None or excludes,
        "redundancy_reduced_seconds": None if until_replaced else costs["seconds"],
        "redundancy": redundancy_during(now, worst, end),
    }


def redundancy_during(now: int, worst: int | None = None, end: int | None = None) -> Redundancy:
    """Return how many losses are survived *now*, at the *worst* moment of a change, at its *end*.

    Values that are left out stay as they are now.
    """
    return {
        "now": now,
        "worst": now if worst is None else worst,
        "end": now if end is None else end,
    }


async def growth_estimate(array: RunningArray, layout: ElasticLayout, parity: str) -> LoggedCosts:
    """Return what growing *array* to *layout* moves and how long it takes, as JSON values.

    Only written cells that move to another disk are read and written, parity among them; with
    *parity* piggyback, the parity of their stripes too. *bytes_logged* is the part that goes
    through the log. Other keys: `rebuild_estimate`.
    """
    context = array.context
    blocks = parities = logged = 0
    for start in range(0, layout.stripes, SCAN_STRIPES):
        end = min(start + SCAN_STRIPES, layout.stripes)
        stripes, _ = live_moves(context, layout, start, end)
        blocks += len(stripes)
        if parity == PIGGYBACK:
            parities += len(set(stripes))
        await trio.lowlevel.checkpoint()  # a large array takes seconds: let requests run
    moved = (blocks + parities) * context.chunk_bytes
    if parity == PIGGYBACK and context.journal.mode != "none":
        logged = parities * context.chunk_bytes * (context.code.tolerance + 1)
    added = layout.history[-1] - layout.history[-2]
    # Only the new disks write.
    return {**copy_estimate(array, "grow", moved, moved, added), "bytes_logged": logged}


async def of_growing(array: RunningArray, layout: ElasticLayout, parity: str) -> GrowthPlan:
    """Return the cost of growing *array* to *layout*; *parity* is how parity follows."""
    does = f"grows from {layout.history[-2]} to {layout.history[-1]} members{PARITY_WORDS[parity]}"
    return {
        **await _of_changing(array, layout, parity, does),
        "parity": parity,
        "size_before": array.size_bytes,
        "size_after": array.grow_operation.size_after(layout),
    }


async def of_copying(array: RunningArray, added: int) -> CopyPlan:
    """Return the cost of *added* more copies of everything that was written."""
    context, width = array.context, array.member_set.config.width
    chunks = context.written.count_live(context.layout, 0, context.layout.stripes)
    written = chunks * context.chunk_bytes
    return {
        "dry_run": True,
        "does": f"makes {width + added} copies of {width}",
        **copy_estimate(array, "rebuild", written, written * added, added),
        "redundancy_left": redundancy_left(array),
        "redundancy_reduced": False,
        "redundancy_reduced_seconds": 0.0,
        "redundancy": redundancy_during(redundancy_left(array), end=redundancy_left(array) + added),
        "size_before": array.size_bytes,
        "size_after": array.size_bytes,
    }


async def of_leaving(array: RunningArray, record: MemberRecord) -> ReshapePlan:
    """Return the cost of taking out the member of *record*, which has stripes of fixed places.

    Raises RaidxError if it cannot leave.
    """
    planned, width = array.removal.plan(record), array.member_set.config.width
    if isinstance(planned, tuple):
        does = f"moves all chunks from {width} to {width - 1} members, without role {record.role}"
        return await of_restriping(array, planned[1], does)
    before, after = planned.history[-1], planned.history[-2]
    does = f"shrinks from {before} to {after} members, the last ones leave"
    return {
        **await _of_changing(array, planned, LIVE, does),
        "size_before": array.size_bytes,
        "size_after": min(array.size_bytes, planned.size_bytes),
    }


async def _of_changing(
    array: RunningArray, layout: ElasticLayout, parity: str, does: str
) -> LoggedPlan:
    return {
        "dry_run": True,
        "does": does,
        **await growth_estimate(array, layout, parity),
        "redundancy_left": redundancy_left(array),
        "redundancy_reduced": False,
        "redundancy_reduced_seconds": 0.0,
        "redundancy": redundancy_during(redundancy_left(array)),
    }


def copy_estimate(
    array: RunningArray, kind: str, read_bytes: int, written_bytes: int, members: int
) -> JobCosts:
    """Return the cost of a job of *kind* that writes to *members* members in parallel."""
    rate, source = copy_rate(array, kind, ASSUMED_RATE_BYTES * members)
    speed_min = array.jobs.speed_min_bytes
    return {
        "bytes_read": read_bytes,
        "bytes_written": written_bytes,
        "bytes_moved": read_bytes + written_bytes,
        "rate": rate,
        "rate_source": source,
        "seconds": round(written_bytes / rate, 3),
        "seconds_busy": round(written_bytes / min(rate, speed_min or rate), 3),
    }


async def restripe_estimate(array: RunningArray, layout: RestripeLayout) -> LoggedCosts:
    """Return what restriping *array* moves, from the start of *layout* on, as JSON values.

    Written chunks are read once and written once, with the parity of their new stripes. If both
    layouts use the same number of rows per chunk, everything goes through the log first
    (*bytes_logged*). Other keys: `rebuild_estimate`.
    """
    context = array.context
    old, new = layout.below, layout.above
    if layout.rises:
        old, new = new, old
    chunks = context.written.count_written()
    await trio.lowlevel.checkpoint()
    moved = chunks * context.chunk_bytes
    written = round(moved * len(new.code.cells) / new.code.data_count)
    same = old.code.rows * new.code.data_count == new.code.rows * old.code.data_count
    logged = written * (layout.code.tolerance + 1) if same else 0
    # Read from all old members, written to all new ones, one after the other.
    cost = 1 / (ASSUMED_RATE_BYTES * old.code.data_count / old.code.rows)
    cost += (written + logged) / max(1, moved) / (ASSUMED_RATE_BYTES * new.width)
    rate, source = copy_rate(array, "restripe", round(1 / cost))
    speed_min = array.jobs.speed_min_bytes
    return {
        "bytes_read": moved,
        "bytes_written": written,
        "bytes_moved": moved + written,
        "bytes_logged": logged,
        "rate": rate,
        "rate_source": source,
        "seconds": round(moved / rate, 3),
        "seconds_busy": round(moved / min(rate, speed_min or rate), 3),
    }


async def of_restriping(array: RunningArray, layout: RestripeLayout, does: str) -> ReshapePlan:
    """Return the cost of the restripe of *array* that *layout* is the beginning of.

    *redundancy* says how many losses the array survives now, meanwhile (at worst), and at the end.
    Only a member that leaves may be lost when a restripe begins.
    """
    left = redundancy_left(array)
    after = (layout.below if layout.rises else layout.above).code.tolerance
    during = min(left, after)
    costs = await restripe_estimate(array, layout)
    return {
        "dry_run": True,
        "does": does,
        **costs,
        "redundancy_left": during,
        "redundancy_reduced": during < left,
        "redundancy_reduced_seconds": None if after < left else costs["seconds"] * (during < left),
        "redundancy": redundancy_during(left, during, after),
        "size_before": array.size_bytes,
        "size_after": array.restripe_operation.size_after(layout),
    }


def copy_rate(array: RunningArray, kind: str, assumed: int) -> tuple[float, str]:
    """Return (bytes a second that a job of *kind* writes, the source of this number)."""
    limit = array.jobs.speed_max_bytes or None
    earlier = [job for job in array.jobs.list() if job["kind"] == kind]
    reached = [job["rate"] for job in earlier if job["rate"]]
    rate, source = (reached[-1], "measured") if reached else (assumed, "assumed")
    return (limit, "speed_max") if limit and limit < rate else (rate, source)


# Adding and removing members of a raidx array, estimated for ``--dry-run``.


def _document(
    array: RunningArray, does: str, kind: str, moves: Moves, members: int, sources: int, more: int
) -> BundlePlan:
    """Return a dry run; each written chunk that moves is computed from *sources* chunks."""
    assert array.rebundle is not None
    size = moves.written * array.context.chunk_bytes
    return {
        "dry_run": True,
        "does": does,
        **copy_estimate(array, kind, sources * size, size, members),
        "chunks_to_move": moves.written,
        "places_to_change": len(moves) - moves.written,
        "redundancy_left": redundancy_left(array),
        "redundancy_reduced": False,
        "redundancy_reduced_seconds": 0.0,
        "redundancy": redundancy_during(redundancy_left(array)),
        "size_before": array.size_bytes,
        "size_after": array.rebundle.capacity.size_with(more),
    }


async def of_adding(array: RunningArray, sizes: Sequence[int]) -> BundlePlan:
    """Return what members of *sizes* bytes add, and the written chunks that move for it.

    Raises UsageError.
    """
    assert array.rebundle is not None
    capacity = array.rebundle.capacity
    counts, roles = capacity.counts_with(sizes)
    moves, more = await capacity.plan_aside(counts)
    before = len(array.member_set.config.roles())
    does = (
        f"grows from {before} to {before + len(roles)} members: {more} bundles more; "
        f"{moves.written} written chunks move"
    )
    return _document(array, does, "grow", moves, len(roles), 1, more)


async def of_removing(array: RunningArray, record: MemberRecord) -> BundlePlan:
    """Return the cost of removing the member of *record*. Raises RaidxError if it is impossible."""
    rebundle, layout = array.rebundle, array.context.layout
    assert rebundle is not None
    rebundle.require_free()
    moves = await rebundle.capacity.plan_removal(record.role)
    others = max(1, len(array.member_set.config.roles()) - 1)
    lost = record.role in array.member_set.lost
    sources = max(1, layout.code.data_count) if lost else 1
    does = (
        f"{'restores' if lost else 'moves'} {moves.written} written chunks of role {record.role} "
        f"{'onto' if lost else 'to'} other members, then lets go of it"
    )
    return _document(array, does, "restore" if lost else "evacuate", moves, others, sources, 0)
