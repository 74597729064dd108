"""Members of a raidx array are added, removed or lost: their chunks move to other members.

    add      spares -> roles, all chunks free -> job `grow`: the fewest moves that make room for
             more bundles -> chunk table durable -> superblocks: more bundles
    remove   job `evacuate`: every chunk off the member -> superblocks: a vacant role
    restore  job `restore`: every chunk off a lost member onto free chunks of the others, content
             solved from its bundle -> superblocks: a vacant role (self_heal.py says when)

Every step leaves a consistent array: a move is a record of the log; the place of a bundle that the
superblocks do not count yet is ignored; a role is given up only when no chunk is on it and no
record names it. A change under way is in the superblocks' `jobs` and continues at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import (
    BusyError,
    InUseError,
    JobRunningError,
    RaidxError,
    Reason,
    TooSmallError,
)
from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord
from raidx_fuse.format.configuration.sums import VACANT
from raidx_fuse.format.pages import erase_region
from raidx_fuse.format.table_page import chunks_on, share_region
from raidx_fuse.jobs.attach import assign_role
from raidx_fuse.jobs.costs import copy_cost, redundancy_kept
from raidx_fuse.jobs.move_sums import CameFrom, came_from_roles
from raidx_fuse.jobs.rebundle.capacity import Capacity
from raidx_fuse.jobs.rebundle.job import EVACUATE, GROW, RESTORE, RebundleJob
from raidx_fuse.jobs.reshape import Change, quiesce, reshape
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.placements.bundled import NOWHERE, SPARE_CHUNKS, BundleLayout
from raidx_fuse.layouts.planning.allocate import maximum
from raidx_fuse.layouts.planning.rebundle import Moves
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import BundlePlan, Grown, Removal

log = logging.getLogger(__name__)

KEY = "reshape"
BUNDLES = "bundles"  # the parameter that counts them


@dataclass(frozen=True)
class PlannedBundles:
    """Members join, and as many bundles more are made as they allow."""

    operation: RebundleOperation

    async def cost(self, sizes: Sequence[int] = ()) -> BundlePlan:
        """Return the cost of adding members of *sizes* bytes. Raises UsageError."""
        operation = self.operation
        counts, roles = operation.capacity.counts_with(sizes)
        moves, more = await operation.capacity.plan_aside(counts)
        before = len(operation.member_set.config.roles())
        does = (
            f"grows from {before} to {before + len(roles)} members: {more} bundles more; "
            f"{moves.written} written chunks move"
        )
        return operation.cost(does, GROW, moves, members=len(roles), more=more)

    async def begin(self, members: Sequence[Member]) -> Grown:
        return await self.operation.add(members)


@dataclass(frozen=True)
class PlannedEvacuation:
    """The chunks of the member of *record* move to others, or are restored there: *moves*."""

    operation: RebundleOperation
    record: MemberRecord
    moves: Moves

    async def cost(self, _sizes: Sequence[int] = ()) -> BundlePlan:
        operation, moves, role = self.operation, self.moves, self.record.role
        others = max(1, len(operation.member_set.config.roles()) - 1)
        if role in operation.member_set.lost:
            does, kind = f"restores {moves.written} written chunks of role {role} onto", RESTORE
            sources = max(1, operation.layout.code.data_count)
        else:
            does, kind = f"moves {moves.written} written chunks of role {role} to", EVACUATE
            sources = 1
        does = f"{does} other members, then lets go of it"
        return operation.cost(does, kind, moves, members=others, sources=sources)

    async def begin(self, _members: Sequence[Member]) -> Removal:
        return await self.operation.remove(self)


class RebundleOperation:
    """Adds and removes members of one running raidx array, within its *capacity*."""

    def __init__(self, array: ArrayServices, layout: BundleLayout) -> None:
        self.array = array
        self.context = array.context
        self.member_set = array.member_set
        self.layout = layout
        self.mover = ChunkMover(array.context, layout, degraded=True)
        self.capacity = Capacity(array.context, layout)
        self.declined: frozenset[int] = frozenset()  # lost roles that a user does not want restored

    # -- checks --------------------------------------------------------------------------------

    def require_free(self) -> None:
        """Raise RaidxError (UsageError, BusyError) if members cannot be added or removed now."""
        self.array.require_writable()
        for job in self.array.jobs.running():
            if job.kind != "scrub":
                raise JobRunningError(
                    f"a {job.kind} is under way", action="wait for it: `raidx job ARRAY wait`"
                )
        if KEY in self.member_set.config.jobs:
            raise BusyError(
                "a change of members is unfinished",
                action="unmount and mount again",
                reason=Reason.REMOUNT,
            )
        if self.context.dirty_bitmap.pending_regions():
            raise BusyError(
                "a resync is due",
                action="unmount and mount again to retry it",
                reason=Reason.REMOUNT,
            )

    def plan(self) -> PlannedBundles:
        """Return how members join. Raises RaidxError (UsageError, BusyError)."""
        self.require_free()
        return PlannedBundles(self)

    async def plan_removal(self, record: MemberRecord) -> PlannedEvacuation:
        """Return how the member of *record* leaves. Raises RaidxError if it cannot, or not now."""
        self.require_free()
        return PlannedEvacuation(self, record, await self.capacity.plan_removal(record.role))

    def cost(
        self, does: str, kind: str, moves: Moves, *, members: int, sources: int = 1, more: int = 0
    ) -> BundlePlan:
        """Return the cost of a job of *kind* with *moves* to *members* members in parallel.

        Each written chunk is computed from *sources* chunks; *more* bundles are made.
        """
        size = moves.written * self.context.chunk_bytes
        return {
            "dry_run": True,
            "does": does,
            **copy_cost(self.array, kind, sources * size, size, members),
            "chunks_to_move": moves.written,
            "places_to_change": len(moves) - moves.written,
            **redundancy_kept(self.array),
            "size_before": self.array.size_bytes,
            "size_after": self.capacity.size_with(more),
        }

    # -- add -----------------------------------------------------------------------------------

    async def add(self, members: Sequence[Member]) -> Grown:
        """Add *members* of any sizes and start the growth; return its summary."""
        array, member_set = self.array, self.member_set
        before = len(member_set.config.roles())
        for member in members:
            array.membership.check_usable(member)
        sizes = [member.size_bytes for member in members]
        moves, more = await self.capacity.plan_aside(self.capacity.counts_with(sizes)[0])
        chunks = (self.layout.stripes + more) * self.layout.code.data_count

        def plan() -> tuple[list[int], list[Role]]:
            self.plan()
            return self.capacity.counts_with(sizes)

        (_, roles), job = await reshape(
            array,
            Change(
                plan=plan,
                swap=lambda planned, records: self._seat(records, *planned),
                came_from=lambda planned: came_from_roles(
                    member_set.config, len(planned[0]), planned[1]
                ),
                members=members,
                chunks=lambda _: chunks,
                prepare=lambda planned: self._clear_shares(members, *planned),
                start=lambda _: self.start(GROW),
            ),
        )
        return {
            "job": job,
            "roles": [*roles],
            "members_before": before,
            "members_after": len(member_set.config.roles()),
            "chunks_to_move": moves.written,
            "size_before": array.size_bytes,
            "size_after": self.capacity.size_with(more),
        }

    async def _clear_shares(
        self, members: Sequence[Member], counts: Sequence[int], roles: Sequence[Role]
    ) -> None:
        """Clear the table pages that the new members may hold from an earlier array."""
        config = self.member_set.config
        for member, role in zip(members, roles, strict=True):
            region = share_region(self.member_set.data_offset, config.chunk_bytes, counts[role])
            await erase_region(member, region)
            await member.flush()

    def _seat(
        self, records: Sequence[MemberRecord], counts: Sequence[int], roles: Sequence[Role]
    ) -> None:
        """Assign their roles to the new members, in memory, without an await."""
        member_set = self.member_set
        member_set.change(lambda config: assign_role(member_set, config, records, roles))
        self.layout.take_counts(counts)
        member_set.change(
            lambda config: replace(
                self._described(config), jobs={**config.jobs, KEY: {"kind": GROW}}
            )
        )
        self._renew(roles)

    def _described(self, config: ArrayConfig, bundles: int | None = None) -> ArrayConfig:
        """Return *config* with the current parameters of the layout, and *bundles* if it grows.

        The count of bundles is that of *config*, not that of the layout: while a growth ends, the
        superblocks count more than the layout has opened.
        """
        layout = self.layout
        params = {
            BUNDLES: layout.stripes,  # of a new array, which has no count yet
            **config.params,
            "chunk_counts": list(layout.counts),
            "founding": layout.initial_shape.as_dict(),
        }
        if bundles is not None:
            params[BUNDLES] = bundles
        return replace(config, width=layout.width, params=params)

    def _renew(self, fresh: Sequence[int] = ()) -> None:
        """Refresh everything that is indexed by role; *fresh* roles have a new member."""
        self.context.journal.chunk_table.renew()
        if self.context.traffic.by_chunk is not None:
            self.context.traffic.by_chunk.renew(fresh)
        self.context.take_layout(self.layout)
        self.member_set.refresh()

    def gains(self, role: Role, size_bytes: int) -> int:
        """Return how many more chunks than *role* has a member of *size_bytes* has room for."""
        return max(0, chunks_on(self.member_set.config, size_bytes) - self.layout.counts[role])

    async def prepare_share(self, role: Role, member: Member) -> None:
        """Write the share of *role* where it lies once *member* has the role, if that is larger.

        The share moves behind the larger data. Durable on return. Raises MemberError.
        """
        if gained := self.gains(role, member.size_bytes):
            chunks = self.layout.counts[role] + gained
            chunk_bytes = self.context.chunk_bytes
            region = share_region(self.member_set.data_offset, chunk_bytes, chunks)
            await erase_region(member, region)
            await member.flush()
            await self.context.journal.chunk_table.give_share(role, member, region, gained)

    def welcome(self, role: Role, member: Member) -> None:
        """Make the space of a larger *member* usable that is about to take *role*."""
        gained = self.gains(role, member.size_bytes)
        if not gained:
            return
        counts = list(self.layout.counts)
        counts[role] += gained
        self.layout.take_counts(counts)
        self.member_set.change(
            lambda config: replace(
                self._described(config), jobs={KEY: {"kind": GROW}, **config.jobs}
            )
        )
        self.context.journal.chunk_table.renew()

    # -- smaller members -----------------------------------------------------------------------

    def needed_bytes(self, role: Role) -> int:
        """Return how much of a member *role* must have when it is lost: for its content.

        One chunk more stays free for moves. While members join or leave, all chunks are needed.
        """
        config, chunks = self.member_set.config, self.layout.counts[role]
        if KEY not in config.jobs:
            chunks = min(chunks, self.layout.used_chunks()[role] + SPARE_CHUNKS)
        region = share_region(self.member_set.data_offset, config.chunk_bytes, chunks)
        return region.offset + region.length

    async def make_fit(self, role: Role, member: Member) -> None:
        """Let *role*, which is lost, have as few chunks as a smaller *member* has room for.

        Where a chunk of a lost member lies is known in memory only: a start that lacks its share of
        the table chooses a place anew. So they move together without a record. Raises UsageError
        if they do not fit, BusyError if requests do not end in time.
        """
        layout, table = self.layout, self.context.journal.chunk_table
        chunks = chunks_on(self.member_set.config, member.size_bytes)
        if chunks >= layout.counts[role]:
            return
        async with self.context.closed():
            await quiesce(self.context, renumbers=True)
            config, needed = self.member_set.config, self.needed_bytes(role)
            if config.usable_bytes(member.size_bytes) < needed:
                raise TooSmallError(
                    f"{member.path} has {member.size_bytes} bytes, what role {role} holds needs "
                    f"{config.member_bytes_for(needed)}",
                    action="use a larger one",
                )
            behind = layout.cells_of(role)[chunks:]
            held = np.flatnonzero(behind != NOWHERE)
            cells, free = behind[held].tolist(), layout.free_chunks(role)[: len(held)].tolist()
            await table.forget_sums({(role, chunk) for chunk in (*(held + chunks).tolist(), *free)})
            table.apply([(cell, role, place) for cell, place in zip(cells, free, strict=True)])
            counts = list(layout.counts)
            counts[role] = chunks
            layout.take_counts(counts)
            table.found_anew(role)
            self.member_set.change(self._described)
            self._renew()

    # -- jobs ----------------------------------------------------------------------------------

    def start(self, kind: str, role: Role | None = None) -> int:
        def lacks() -> Role | None:
            lost = self.member_set.lost - {role}
            return min(lost) if lost and kind != RESTORE else None

        def plan() -> Moves:
            if kind == GROW:
                return self.capacity.plan(self.layout.counts)[0]
            if role is None:
                return self.plan_restoration()
            return self.capacity.plan(self.layout.counts, [role])[0]

        def make(context: ArrayContext, job_id: int) -> RebundleJob:
            job = RebundleJob(context, job_id, kind, self.mover, plan, lacks, self._conclude)
            if role is not None:
                job.extra["role"] = role
                self.layout.closed.add(role)
            return job

        return self.array.jobs.start(make).job_id

    def resume(self) -> None:
        """When the array starts: continue a change that was under way."""
        begun = self.member_set.config.jobs.get(KEY)
        kinds = {job.kind for job in self.array.jobs.running()}
        if begun is not None and not kinds & {GROW, EVACUATE} and not self.array.jobs.closing:
            self.start(begun["kind"], begun.get("role"))

    async def _conclude(self, job: RebundleJob, completed: bool) -> None:
        if not completed and not job.was_cancelled:
            return  # the array is being closed: the next start continues
        if job.kind == GROW:
            await self._extend()
        elif job.kind == RESTORE:
            self.declined = self.member_set.lost if job.was_cancelled else frozenset()
            for role in sorted(self.member_set.lost):
                await self._retire(role)
            if not self.member_set.lost:
                self.resume()
        elif completed and not await self._retire(Role(job.extra["role"])):
            await self._forget_job()
            raise RaidxError(
                f"role {job.extra['role']} stays: {job.stuck} of its chunks found no other place",
                reason=Reason.ARRAY_FULL,
            )
        else:
            await self._forget_job()

    async def _forget_job(self) -> None:
        self.layout.closed.clear()

        def without(config: ArrayConfig) -> ArrayConfig:
            return replace(config, jobs={k: v for k, v in config.jobs.items() if k != KEY})

        if KEY in self.member_set.config.jobs:
            await self.member_set.update(without)

    async def _extend(self) -> None:
        """Make bundles of all free chunks that are available: the image becomes larger.

        Their places are durable in the chunk table before a superblock counts the bundles.
        """
        context, layout, member_set = self.context, self.layout, self.member_set
        async with context.journal.placing:
            caps = self.capacity.caps(layout.counts, member_set.lost, SPARE_CHUNKS)
            used = layout.used_chunks()
            for role, chunk in layout.promised:
                used[role] += int(layout.cells_of(Role(role))[chunk] == NOWHERE)
            free = [max(0, cap - taken) for cap, taken in zip(caps, used, strict=True)]
            more = self.capacity.more(self.capacity.caps(layout.counts, (), SPARE_CHUNKS))
            more = min(more, maximum(free, layout.length))
            if not more:
                await self._forget_job()
                return
            cells = layout.append(layout.allocate(free, limit=more))
            bundles = layout.stripes + len(cells) // layout.length
            try:
                await context.written.pages.make_room(bundles * layout.code.data_count)
                await self._announce(cells, bundles)
            finally:
                # A count in the configuration reaches the superblocks, whatever was raised here.
                if member_set.config.params.get(BUNDLES) == bundles:
                    context.written.extend(bundles * layout.code.data_count)
                    context.journal.ring.hold_from(Stripe(layout.stripes))
                    layout.open_appended()
                    context.dirty_bitmap.extend(layout.stripes)
                else:
                    layout.drop_appended()
        context.zeros.note()
        log.warning("the image has %d bytes now", self.array.size_bytes)
        for hook in self.array.on_size:
            await hook()

    async def _announce(self, cells: range, bundles: int) -> None:
        """Make the places of new bundles durable, then count them in the superblocks."""
        await self.context.journal.chunk_table.save_places(cells)
        await self._count_bundles(bundles)

    async def _count_bundles(self, bundles: int) -> None:
        """Write superblocks that count *bundles* bundles."""
        counts = self.layout.counts

        def grown(config: ArrayConfig) -> ArrayConfig:
            # Chunks that moved off these members left old content: it does not read as zero.
            members = tuple(replace(r, reads_zero=False) for r in config.members)
            jobs = dict(config.jobs)
            if self.layout.counts == counts:  # no role became larger meanwhile
                jobs.pop(KEY, None)
            return replace(self._described(config, bundles), members=members, jobs=jobs)

        await self.member_set.update(grown)

    async def _retire(self, role: Role) -> bool:
        """Give up *role* if it is empty; return False if it is not, or is being assigned."""
        if role in self.member_set.lost and self.array.membership.attaching.locked():
            return False  # a task that attaches a member waits for this

        def plan() -> Role:
            if self.layout.used_chunks()[role] or role not in self.member_set.config.roles():
                raise InUseError(f"role {role} is in use")
            return role

        self.layout.closed.add(role)
        try:
            await reshape(
                self.array,
                Change(
                    plan=plan,
                    swap=lambda role, _: self._vacate(role),
                    came_from=self._without,
                    renumbers=True,
                ),
            )
        except InUseError:
            return False
        finally:
            self.layout.closed.discard(role)
        log.warning("role %d is vacant now: no chunk is on it", role)
        return True

    def _without(self, role: Role) -> CameFrom:
        config = self.member_set.config
        return [VACANT if old == role else old for old in came_from_roles(config)]

    def _vacate(self, role: Role) -> list[Member]:
        """Remove the member of *role*, in memory, without an await; return it."""
        member_set = self.member_set
        queue, member_set.queues[role] = member_set.queues[role], None
        self.layout.forget_initial_member(role)
        counts = list(self.layout.counts)
        counts[role] = 0
        self.layout.take_counts(counts)

        def vacated(config: ArrayConfig) -> ArrayConfig:
            members = tuple(r for r in config.members if r.role != role)
            jobs = {k: v for k, v in config.jobs.items() if k != KEY or v.get("role") != role}
            return self._described(replace(config, members=members, jobs=jobs))

        member_set.change(vacated)
        self._renew()
        if queue is None:
            return []
        queue.close()
        return [queue.member]

    # -- remove --------------------------------------------------------------------------------

    async def remove(self, plan: PlannedEvacuation) -> Removal:
        """Release a member after its chunks moved; chunks of a lost member are restored."""
        self.require_free()  # checked again: nothing started meanwhile
        record, role = plan.record, plan.record.role
        if role in self.member_set.lost:
            job = self.start(RESTORE)
        else:
            begun = {KEY: {"kind": EVACUATE, "role": role}}
            await self.member_set.update(lambda c: replace(c, jobs={**c.jobs, **begun}))
            job = self.start(EVACUATE, role)
        return {
            "role": role,
            "path": self.array.membership.path_of(record),
            "member_uuid": record.member_uuid,
            "job": job,
            "chunks_to_move": plan.moves.written,
        }

    # -- restore -------------------------------------------------------------------------------

    def plan_restoration(self) -> Moves:
        """Return the moves that restore chunks of lost members, as far as free chunks exist."""
        return self.capacity.plan(self.layout.counts, sorted(self.member_set.lost), spare=0)[0]

    async def give_way(self) -> None:
        """Cancel a restoration, because another member takes the role."""
        for job in self.array.jobs.running():
            if job.kind == RESTORE:
                job.stop()
                await job.finished.wait()
