"""Rebuild: restore the content of roles whose members were replaced (by a hot spare or by hand).

A rebuilding role is present below its watermark and lost from there on, so that reads and writes
already use the rebuilt stripes. Unwritten stripes are skipped, but for those whose lock is held:
the first write may be under way, planned without the member. The watermark stops before such a
stripe, and the next window waits for its lock. So no record of the log lacks a rebuilt member.

The member of a role may have been absent, and hold all that did not change meanwhile. Then stripes
that did not change are skipped, too (engine/changed_regions.py). A write to such a stripe notes it
before it is planned without the member, so the watermark stops before it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Generic

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import ArrayFailedError, RaidxError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.jobs.costs import SCAN_STRIPES, Summary, copy_cost, redundancy_left
from raidx_fuse.jobs.job import Job, Position, stripes_of_window
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.jobs.strips import Place, Strips, batches, read_all
from raidx_fuse.jobs.verify_rebuilt import verify_rebuilt
from raidx_fuse.laws import Law
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe, stripe_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of, rebuild_plan
from raidx_fuse.members.base import Member
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import MemberIO, join
from raidx_fuse.store.sums import GivenSums
from raidx_fuse.store.xor import Program, compile_steps

if TYPE_CHECKING:
    from raidx_fuse.documents import Costs, JobCosts, JobDetail, MemberPlan

log = logging.getLogger(__name__)

Equations = tuple[tuple[Place, tuple[Place, ...]], ...]
"""Pairs (place, places whose XOR it is), in the order of computation."""


@lru_cache(maxsize=1024)
def compiled(equations: Equations) -> tuple[tuple[Place, ...], Program]:
    """Return the places that *equations* name, and the XOR program over them in that order."""
    places = tuple(sorted({place for target, old in equations for place in (target, *old)}))
    number = {place: i for i, place in enumerate(places)}
    steps = [
        (number[target], sum(1 << number[place] for place in old)) for target, old in equations
    ]
    return places, compile_steps(steps, len(places))


def checkpoint_key(role: Role) -> str:
    """Return the key of *role*'s rebuild position in the superblock's `jobs`."""
    return f"rebuild:{role}"


class Rebuild(Job):
    """Reconstructs the strips of *roles*, whose members are attached and in state rebuilding."""

    kind = "rebuild"

    def __init__(self, context: ArrayContext, job_id: int, roles: tuple[Role, ...]) -> None:
        super().__init__(context, job_id)
        self.roles = roles
        self.was_away = self.catches_up
        self._equations: dict[tuple[tuple[int, ...], int, int], Equations] = {}
        self.window = stripes_of_window(context)

    def detail(self) -> JobDetail:
        """Return the roles that are rebuilt, and whether their members were only absent."""
        return {"roles": list(self.roles), "catches_up": self.was_away}

    @property
    def watermark(self) -> int:
        """The first stripe that is not rebuilt yet."""
        return min(
            (self.context.member_set.watermarks.get(role, 0) for role in self.roles), default=0
        )

    async def prepare(self) -> None:
        """Count the written stripes; those below the watermark are done."""
        context = self.context
        stripe_bytes = context.layout.cells_on(self.roles) * context.chunk_bytes
        live = self._count(context.layout.stripes)
        done = self._count(self.watermark)
        self.total_bytes = round(live * stripe_bytes)
        self.done_bytes = round(done * stripe_bytes)

    def _count(self, end: int) -> int:
        """Return how many stripes before *end* are to be rebuilt."""
        context = self.context
        return sum(
            context.written.count_live(context.layout, low, high)
            for low, high in self._ranges(0, end)
        )

    def next_window(self) -> list[Stripe] | None:
        """Return the next stripes to rebuild, starting at the watermark."""
        end = self.context.layout.stripes
        found = self._to_visit(self.watermark, self.window, end)
        if len(found) == self.window:
            end = found[-1]
        return sorted({*found, *self._held(self.watermark, end)}) or None

    def _held(self, start: int, end: int) -> list[Stripe]:
        """Return the stripes of *start* .. *end* - 1 whose lock is held."""
        return [stripe for stripe in self.context.locks.held if start <= stripe < end]

    @property
    def catches_up(self) -> bool:
        """Whether all members were only absent: stripes that did not change are skipped."""
        return all(self.context.changes.catches_up(role) for role in self.roles)

    def _ranges(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        """Return the ranges of stripes in *start* .. *end* - 1 that are to be visited."""
        return self.context.changes.ranges(start, end) if self.catches_up else ((start, end),)

    def _to_visit(self, start: int, limit: int, end: int) -> list[Stripe]:
        """Return the first *limit* stripes of *start* .. *end* - 1 that are to be rebuilt."""
        context = self.context
        found: list[Stripe] = []
        for low, high in self._ranges(start, end):
            found += context.written.written_stripes(context.layout, low, limit - len(found), high)
            if len(found) >= limit:
                break
        return found

    def _changed(self, stripes: list[Stripe]) -> list[Stripe]:
        """Return those of *stripes*, whose locks are held, that are to be rebuilt.

        Some are in the window only because their locks were held. If what held them changed nothing
        that a member which is caught up lacks, that member has their content, perhaps alone.
        """
        if not self.catches_up:
            return stripes
        return [stripe for stripe in stripes if self.context.changes.has(stripe)]

    def replan(self) -> None:
        self._equations.clear()

    async def work(self, stripes: list[Stripe]) -> int:
        """Rebuild *stripes* and move the watermark past them; return the progress in bytes.

        Raises ArrayFailedError if the member being rebuilt fails, UnrecoverableError if a cell is
        lost, MemberLostError if another member fails: its cells are solved, too, if possible.
        """
        context = self.context
        member_set = context.member_set
        start = self.watermark
        if any(role not in member_set.watermarks for role in self.roles):
            raise ArrayFailedError(
                "the member being rebuilt failed", action="replace it with another one"
            )
        # Records written to the member may be lost from the log: the next start must visit
        # their stripes again.
        await context.changes.save()
        visited = self._changed(stripes)
        await member_set.unreadable.pass_over(visited, context.chunk_bytes)
        if context.dirty_bitmap.guarded:  # a torn stripe would give two contents of one cell
            await context.dirty_bitmap.finish(stripes)
        for batch in batches(context, visited, self._equations_of):
            await self._rebuild_batch(batch)
        if context.journal.torn is not None:
            return 0  # a first write in between has failed, and recovery may redo it
        end = stripes[-1] + 1
        if end - start > len(visited):  # stripes were skipped: unwritten, or not changed
            held = set(self._held(start, end)) - set(stripes)
            first_written = {*self._to_visit(start, len(stripes) + 1, end), *held} - set(visited)
            if first_written:
                end = min(first_written)
        for stripe in context.locks.held.keys() - set(stripes):
            if start <= stripe < end:
                raise member_set.laws.broken(Law.REBUILT, f"stripe {stripe} before {end}")
        for role in self.roles:
            if role in member_set.watermarks:
                member_set.watermarks[role] = Stripe(max(end, start))
        roles = frozenset(self.roles)
        done = [stripe for stripe in visited if stripe < end]
        cells = sum(context.layout.lost_cells(s, roles).bit_count() for s in done)
        return cells * context.chunk_bytes

    def _equations_of(self, stripe: Stripe) -> Equations:
        """Return the equations that give the cells on *roles*, cached by (roles, lost, unwritten).

        Raises UnrecoverableError if the code cannot give a cell back.
        """
        context = self.context
        layout, code = context.layout, context.code
        roles = layout.roles(stripe)
        lost = layout.lost_cells(stripe, context.member_set.lost_at(stripe))
        key = (roles, lost, context.unwritten_cells(stripe))
        known = self._equations.get(key)
        if known is not None:
            return known
        wanted = layout.lost_cells(stripe, frozenset(self.roles))

        def place(cell: CellIndex) -> Place:
            return roles[code.column_of[cell]], code.row_of[cell]

        try:
            outputs = rebuild_plan(code, wanted, lost, key[2])
        except Unrecoverable as error:
            raise context.lost_error(stripe, cells_of(error.cells)) from None
        equations = tuple((place(o.cell), tuple(sorted(place(c) for c in o.old))) for o in outputs)
        self._equations[key] = equations
        return equations

    async def _rebuild_batch(self, batch: list[tuple[Stripe, int, Equations]]) -> None:
        context = self.context
        wanted = []
        for first, count, equations in batch:
            if not equations:
                continue  # a bundle without a chunk on these members
            targets = {place for place, _ in equations}
            sources = {source for _, places in equations for source in places} - targets
            wanted.append((Strips(context, first, count), sorted(sources), targets, equations))
        await read_all(context, [(strips, sources) for strips, sources, *_ in wanted])
        writes: list[MemberIO] = []
        given: list[GivenSums] = []
        for strips, read, targets, equations in wanted:
            spaces = {}
            for role in sorted({place[0] for place in targets}):
                whole = sum(target == role for target, _row in targets) == strips.rows
                buffer = strips.space(role, whole)
                if buffer is not None:
                    spaces[role] = buffer
            places, program = compiled(equations)
            program.run([strips.array(place) for place in places])
            given += await verify_rebuilt(context, strips, read, sorted(targets), (places, program))
            writes += self._writes(strips, spaces, targets)
        await context.cells.write(join(writes), Cover.VACANT, given=given)
        for strips, *_ in wanted:
            strips.release()

    def _writes(
        self, strips: Strips, spaces: dict[Role, memoryview], targets: set[Place]
    ) -> list[MemberIO]:
        rows, chunk_bytes = strips.rows, self.context.chunk_bytes
        requests: list[MemberIO] = []
        for role, buffer in spaces.items():
            offset = strips.offset(role)
            live = sorted(row for target, row in targets if target == role)
            if len(live) == rows:
                requests.append((role, offset, [buffer], len(buffer)))
                continue
            for index in range(strips.count):
                for row in live:
                    at = index * strips.strip_bytes + row * chunk_bytes
                    requests.append(
                        (role, offset + at, [buffer[at : at + chunk_bytes]], chunk_bytes)
                    )
        return requests

    def positions(self) -> Sequence[Position]:
        return (self,)

    @property
    def saved(self) -> int:
        """The watermark in the superblocks."""
        jobs = self.context.member_set.config.jobs
        keys = map(checkpoint_key, self.roles)
        return min((jobs.get(key, {}).get("next_stripe", 0) for key in keys), default=0)

    async def save(self) -> None:
        """Save the watermark in the superblocks, after everything below it is durable."""
        member_set = self.context.member_set
        marks = {
            role: (member_set.watermarks[role], member_set.queues[role])
            for role in self.roles
            if role in member_set.watermarks
        }
        if self.context.growth is not None:
            # Cells were skipped as unwritten under the current growth position. It must be durable,
            # so that a crash does not bring an earlier one back.
            await self.context.growth.save()
        await self.context.cells.save_sums()
        await member_set.flush()

        def note(config: ArrayConfig) -> ArrayConfig:
            jobs = dict(config.jobs)
            for role, (stripe, queue) in marks.items():
                if member_set.queues[role] is queue:  # it has not failed meanwhile
                    saved = jobs.get(checkpoint_key(role), {})
                    jobs[checkpoint_key(role)] = {**saved, "next_stripe": stripe}
            return replace(config, jobs=jobs)

        await member_set.update(note)

    async def finish(self, completed: bool) -> None:
        """Make the roles active; after a cancel, save the position for the next mount."""
        member_set = self.context.member_set
        done = [role for role in self.roles if role in member_set.watermarks]
        if completed:
            # From here on writes include the roles everywhere. There was no await since
            # `next_window` found no stripe, so no write that lacks them is under way.
            for role in done:
                member_set.watermarks[role] = Stripe(self.context.layout.stripes)
        rebuilt = {role: member_set.queues[role] for role in done}
        if completed and member_set.sums is not None:
            # Its copies of tables are read from here on. Whether it had them all is not known: a
            # power cut may have come since it took the role.
            await member_set.sums.tables.save_all()
        await self.save()
        if not completed:
            return
        try:  # before another member may be lost: until now records had a copy less
            await self.context.journal.reform()
        except RaidxError as error:
            log.error("the log is not on the rebuilt members yet: %s", error)
        # A member that failed meanwhile is not rebuilt.
        done = [role for role in done if member_set.queues[role] is rebuilt[role]]
        self.total_bytes = self.done_bytes  # with unlike bundles the total was an estimate

        def activate(config: ArrayConfig) -> ArrayConfig:
            jobs = {k: v for k, v in config.jobs.items() if k not in map(checkpoint_key, done)}
            members = tuple(
                replace(record, state="active") if record.role in done else record
                for record in config.members
            )
            return replace(config, jobs=jobs, members=members)

        try:
            await member_set.update(activate)
        finally:  # in force, though a member may lack it (law 3 of store/member_set.py)
            for role in done:
                is_active = member_set.config.record(role).state == "active"
                if is_active and member_set.queues[role] is rebuilt[role]:
                    member_set.watermarks.pop(role, None)
            member_set.refresh()


async def rebuild_cost(
    array: ArrayServices, role: Role, *, returns: bool = False, copied: bool = False
) -> JobCosts:
    """Return what a rebuild of *role* costs (`copy_cost`).

    *returns*: its member was absent, and is caught up by what changed meanwhile; *copied*: its
    member is in use, and is read alone. Only written stripes are visited, each recovered with the
    fewest reads.
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
        return copy_cost(array, "rebuild", written, written, 1)
    # In a rotating layout the role holds every column in turn: use the mean.
    phases = min(layout.stripes, layout.phases())
    holding = [layout.roles(stripe) for stripe in stripe_range(0, phases)]
    columns = [roles.index(role) for roles in holding if role in roles]
    cells = sum(_reads(context, column) for column in columns) / phases
    return copy_cost(array, "rebuild", round(stripes * cells * context.chunk_bytes), written, 1)


def _reads(context: ArrayContext, column: int) -> int:
    """Return how many cells must be read to recover the cells of *column*."""
    union = 0
    for _, sources in context.code.recover(column):
        union |= sources
    return union.bit_count()


@dataclass(frozen=True)
class PlannedMember(Generic[Summary]):
    """A change of one member, which *does* says and *begin* begins.

    *rebuilds* is the role that it rebuilds, None for none; *returns*, *copied*: as `rebuild_cost`
    has them. *chunks* is the number of chunks that may be lost; *excludes*: it takes a member out.
    """

    array: ArrayServices
    does: str
    begin: Callable[[Sequence[Member]], Awaitable[Summary]]
    rebuilds: Role | None = None
    chunks: int = 0
    excludes: bool = False
    returns: bool = False
    copied: bool = False

    async def cost(self, _sizes: Sequence[int] = ()) -> MemberPlan:
        array, role = self.array, self.rebuilds
        costs: Costs = {"bytes_read": 0, "bytes_written": 0, "bytes_moved": 0, "seconds": 0.0}
        now, lost = redundancy_left(array), array.member_set.lost
        worst = end = max(now - self.excludes, 0)
        reduced_s: float | None = None if self.excludes else 0.0
        if role is not None:
            rebuild = await rebuild_cost(array, role, returns=self.returns, copied=self.copied)
            whole: JobCosts = {**costs, **rebuild}
            costs = whole
        if role is not None and not self.copied:
            reduced_s = costs["seconds"]
            worst = now if role in lost else max(now - 1, 0)
            end = max(array.context.code.tolerance - len(lost - {role}), worst)
        return {
            "dry_run": True,
            "does": self.does,
            **costs,
            "chunks_at_stake": self.chunks,
            "redundancy_left": now,
            "redundancy_reduced": self.excludes or (role is not None and not self.copied),
            "redundancy_reduced_seconds": reduced_s,
            "redundancy": {"now": now, "worst": worst, "end": end},
        }
