"""A running array: what front ends, commands and simulations call.

    async with open_array(members) as array:
        await array.write(0, b"...")

raidx_fuse/array/open.py builds the member set, the maps, the journal and the array context. `Array`
builds the reader, the writer, the jobs and the operations on them, starts them, and closes
everything in reverse order.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from raidx_fuse.array import settings, statistics, status
from raidx_fuse.array.health_history import Health
from raidx_fuse.array.known_misfits import KnownMisfits
from raidx_fuse.array.log_size import change_log_size
from raidx_fuse.array.member_changes import member_changes
from raidx_fuse.array.membership import Membership, take_back
from raidx_fuse.array.misfit_limit import MisfitLimit
from raidx_fuse.array.presence import Presence
from raidx_fuse.array.services import MemberChanges
from raidx_fuse.array.settings import change_mode
from raidx_fuse.array.switch_sums import switch_sums
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.discard import Discarder
from raidx_fuse.engine.explain import explain, explain_stripe
from raidx_fuse.engine.gate import Gate
from raidx_fuse.engine.growth_position import parity_way
from raidx_fuse.engine.read import Reader
from raidx_fuse.engine.write.mend import Mender
from raidx_fuse.engine.write.write import Writer
from raidx_fuse.errors import NotWithLayoutError, RaidxError, ReadOnlyError
from raidx_fuse.format.assemble import Assembly
from raidx_fuse.format.configuration.fitting import RESERVE_BYTES, fitted
from raidx_fuse.format.configuration.lost_chunks import KEY, decode_chunks, encode_chunks
from raidx_fuse.format.configuration.saved_jobs import without_retired
from raidx_fuse.format.configuration.sums import without_sums
from raidx_fuse.jobs.fill_sums import heal_rot
from raidx_fuse.jobs.grow.copies import CopiesOperation
from raidx_fuse.jobs.grow.larger_members import LargerMembers
from raidx_fuse.jobs.grow.operation import GrowOperation
from raidx_fuse.jobs.grow.removal import GrowthRemoval
from raidx_fuse.jobs.job import Job
from raidx_fuse.jobs.manager import Jobs
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.jobs.rebundle.self_heal import SelfHeal
from raidx_fuse.jobs.replace import Replace, Replacement
from raidx_fuse.jobs.restripe.operation import RestripeOperation
from raidx_fuse.jobs.restripe.removal import MemberRemoval
from raidx_fuse.jobs.resync import Resync, finish, note_failing
from raidx_fuse.jobs.scrub import RegularScrub, Scrub
from raidx_fuse.jobs.sum_copies import SumCopies
from raidx_fuse.jobs.tuner.tuner import TuneJob, Tuner
from raidx_fuse.journal.recovery import (
    Replayed,
    read_log,
    replay,
    require_redoable,
    stripes_changed,
)
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.registry import LAYOUTS
from raidx_fuse.loop.tasks import Tasks, rest
from raidx_fuse.members.base import Member, ReadBuffer
from raidx_fuse.settings import LOG_SIZE, OF_ARRAY, SUMS, setting_named
from raidx_fuse.store.page_store import PageStore

if TYPE_CHECKING:
    from raidx_fuse.answers import Explanation, StripeState
    from raidx_fuse.documents import (
        ArrayCounters,
        ArrayReport,
        Grown,
        Removal,
        Reshaping,
    )

log = logging.getLogger(__name__)

LOST_SAVE_EACH_S = 1.0
REBUILD_AGAIN_S = 5.0  # after the first failure; twice as long after each
DOUBLINGS_MAX = 7


class LostList:
    """Keeps the lost chunks of one array in its superblocks."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        self._saved = 0  # the list's count of `changes` when it was last saved
        self._saving = trio.Lock()

    def load(self) -> None:
        """Read the list from the superblocks. Raises FormatError."""
        jobs = self.context.member_set.config.jobs
        lost = decode_chunks(jobs.get(KEY, {}), self.context.layout.chunks)
        self.context.take_lost_chunks(lost)

    async def run(self) -> None:
        """Save the list whenever it has changed (a background task)."""
        while True:
            await rest(LOST_SAVE_EACH_S)
            try:
                await self.save()
            except RaidxError as error:  # the list stays in memory, and is saved at the next try
                log.critical("%s", error)

    async def save(self) -> None:
        """Write the list into the superblocks if it has changed.

        What was written again is durable before: what lies there else would be read after a crash.
        A list that does not fit is rounded up (format/configuration/fitting.py). What a read-only
        start adds stays in memory. Raises RaidxError.
        """
        if self.context.member_set.read_only:
            return
        bad = self.context.bad_chunks
        if bad.changes == self._saved:
            return
        async with self._saving:
            changes, encoded = bad.changes, encode_chunks(bad)
            await self.context.member_set.flush()
            await self.context.member_set.update(lambda config: config.with_job(KEY, encoded))
            self._saved = changes


class Array:
    """One running array; built by `open_array`.

    *size_bytes* is the size of the image. *read* and *write* are the reader's and the writer's own
    methods, so that a front end pays for no further call; *read_for* and *write_for* are theirs for
    a volume, whose gate (engine/gate.py) they take first. All ranges must lie inside the image.

    A program outside this package uses `name`, `uuid`, `size_bytes`, `warnings`, `started_s`;
    `read`, `write`, `discard`, `flush`; `status`, `stats`, `explain`, `explain_stripe`; `get`,
    `set`; `fail_disk`, `replace_disk`, `add_spare`, `grow`, `remove_disk`, `restripe`,
    `start_scrub`, `start_tuning`. The other attributes are for the packages of raidx.
    """

    def __init__(
        self,
        context: ArrayContext,
        assembly: Assembly,
        nursery: Tasks,
        unix_s: Callable[[], int] = lambda: 0,
    ) -> None:
        self.context = context
        self.member_set = context.member_set
        self.read_only = context.member_set.read_only
        self.not_closed: RaidxError | None = None  # why `close` could not make it clean
        self.base_events = assembly.base_events
        self.spares_behind = assembly.behind
        self.stale = assembly.stale
        self.was_clean = assembly.config.clean  # False: it had not been closed
        self.warnings: list[str] = list(assembly.warnings)
        self.absent_at_start = assembly.absent
        self.reader = Reader(context)
        self.writer = Writer(context)
        self.read, self.read_for = self.reader.read, self.reader.read_for
        self.write_for = self._refuse_write if self.read_only else self.writer.write_for
        self.write = partial(self.write_for, None)
        self.discarder = Discarder(context, self.write)
        self.jobs = Jobs(context, nursery)
        self.on_size: list[Callable[[], Awaitable[None]]] = []
        self.on_release: list[Callable[[Member], None]] = []
        self.membership = Membership(self)
        self.fail_disk, self.replace_disk = self.membership.fail, self.membership.replace
        self.add_spare = self.membership.add_spare
        self.grow_operation = GrowOperation(self)
        self.copies = CopiesOperation(self)
        self.larger_members = LargerMembers(self)
        self.sum_copies = SumCopies(self)
        self.restripe_operation = RestripeOperation(self)
        growth = GrowthRemoval(self.grow_operation)
        self.removal = MemberRemoval(growth, self.restripe_operation)
        self.regular_scrub = RegularScrub(self)
        self.tuner: Tuner | None = None
        self.rebundle: RebundleOperation | None = None
        self.self_heal: SelfHeal | None = None
        if (heat := context.traffic.by_chunk) is not None:  # of a layout with a look-up table
            self.tuner = Tuner(self, heat.layout, heat, self.regular_scrub)
            self.rebundle = RebundleOperation(self, heat.layout)
            self.self_heal = SelfHeal(self, self.rebundle)
        self._member_changes = member_changes(self)
        self.nursery = nursery
        nursery.on_bug.append(self.member_set.end_superblocks)
        self.started_s = context.member_set.clock()
        self.replayed: Replayed | None = None
        self.lost_list = LostList(context)
        self.replacement = Replacement(self, self.rebundle)
        self.mender = Mender(context, self.lost_list.save)
        self.health = Health(context.member_set, unix_s)
        self.known_misfits = KnownMisfits(context, self.health, self.read)
        self.misfit_limit = MisfitLimit(context.member_set)
        self.presence = Presence(context.member_set)
        self.mender.on_mended.append(self.health.note_mended)

    @property
    def name(self) -> str:
        return self.member_set.config.name

    @property
    def uuid(self) -> str:
        return self.member_set.config.array_uuid

    @property
    def size_bytes(self) -> int:
        """The image's size in bytes: the layout's, or a smaller one given by `create --size`."""
        limit = self.member_set.config.size_bytes
        whole = self.context.layout.size_bytes
        return whole if limit is None else min(limit, whole)

    @property
    def member_changes(self) -> MemberChanges:
        """How members join and leave, as the present layout has it."""
        return self._member_changes[LAYOUTS[self.member_set.config.layout].members_by]

    @property
    def room_bytes(self) -> int:
        """How much of the image volumes may use: all, or less while members are about to leave."""
        return min(self.size_bytes, self.discarder.kept_bytes)

    async def _refuse_write(self, _volume: Gate | None, _offset: int, _data: ReadBuffer) -> None:
        raise ReadOnlyError("the array was started read-only")

    async def discard(self, offset: int, length: int, fast_only: bool = False) -> None:
        """Let a range read as zeros and give its space back (`Discarder.discard`)."""
        self.require_writable()
        await self.discarder.discard(offset, length, fast_only)

    def allocation(self, offset: int, length: int) -> Iterator[tuple[int, bool]]:
        """Yield (length in bytes, whether it is written) of the parts of a range, in order."""
        size, end = self.context.chunk_bytes, offset + length
        at = offset
        for first, last in self.context.written.runs(offset // size, (end - 1) // size + 1):
            start, stop = max(at, first * size), min(end, last * size)
            if start > at:
                yield start - at, False
            yield stop - start, True
            at = stop
        if at < end:
            yield end - at, False

    async def flush(self) -> None:
        """Return when every acknowledged write is durable on the members. Raises RaidxError."""
        self.context.traffic.count_flush()
        if not self.read_only:
            await self.context.journal.mend_seen()
            await self.member_set.flush()
            await self.lost_list.save()  # what was lost, and is written again, must be readable

    # -- reports -------------------------------------------------------------------------------

    def status(self) -> ArrayReport:
        """Return the state of the array; status.py says who adds the rest of `status --json`."""
        return status.status(self)

    def stats(self) -> ArrayCounters:
        """Return the counters since the start as the dict of `stats --json`."""
        return statistics.stats(self)

    def explain_stripe(self, stripe: int) -> StripeState:
        """Return the state of *stripe*. Raises UsageError if there is none."""
        return explain_stripe(self.context, Stripe(stripe))

    def explain(self, offset: int, length: int, write: bool) -> Explanation:
        """Return the plan of a request. Raises RaidxError."""
        return explain(self.context, offset, length, write, self.get("parity.policy"))

    # -- settings ------------------------------------------------------------------------------

    def get(self, key: str) -> Any:
        """Return the value of a setting. Raises UsageError if there is no such setting."""
        return settings.value_of(self, setting_named(key).name)

    def settings(self) -> dict[str, Any]:
        return {key: self.get(key) for key in sorted(OF_ARRAY)}

    async def set(self, key: str, text: str) -> Any:
        """Parse *text*, apply it, keep it in the superblocks, and return the value in force.

        Raises UsageError for a wrong key or value, ReadOnlyError if it could not be kept.
        """
        name = setting_named(key).name
        value = settings.parse(name, str(text))
        self.require_writable()
        config = self.member_set.config
        # a value that does not fit the superblock is refused before it takes effect
        fitted(replace(config, settings={**config.settings, key: value}), RESERVE_BYTES)
        if key == "journal":
            await change_mode(self.context, value)
            return value
        if key == LOG_SIZE:
            await change_log_size(self, value)
            return settings.value_of(self, name)
        if key == SUMS:
            before = self.member_set.sums
            await switch_sums(self, value)
            if self.member_set.sums is not before:
                self._watch_misfits()
            return value
        await settings.put(self, name, value)
        return settings.value_of(self, name)

    def _watch_misfits(self) -> None:
        """Start what looks at pages that misfit, while there are checksums."""
        if self.member_set.sums is not None:
            self.nursery.start_soon(self.known_misfits.run)
            self.nursery.start_soon(self.misfit_limit.run)

    # -- members and jobs ----------------------------------------------------------------------

    async def grow(
        self, members: Sequence[Member], parity: str | None = None, surrogate: Member | None = None
    ) -> Grown:
        """Start to grow onto *members*; the image is larger when the job has ended.

        jobs/grow/copy.py says how *parity* follows. In a raid1 array they become further copies.
        """
        way = parity_way(None, parity, surrogate)
        joining = [*members, *([] if surrogate is None else [surrogate])]
        return await self.member_changes.plan_adding(len(members), way).begin(joining)

    async def remove_disk(self, ref: str | int) -> Removal | Reshaping:
        """Remove a spare, or start to move everything off a member."""
        return await (await self.membership.plan_removing(ref)).begin([])

    async def restripe(
        self, members: Sequence[Member], name: str | None, params: Mapping[str, Any]
    ) -> Reshaping:
        """Start to restripe onto *members* more, to the layout *name* (None: unchanged)."""
        return await self.restripe_operation.plan(len(members), name, params).begin(members)

    async def start_scrub(self, repair: bool, *, heals: bool = True) -> int:
        """Start a scrub and return its job id. Raises BusyError while another scrub runs.

        *heals*: pages that misfit their sums, even if it does not *repair*.
        """
        if repair:
            self.require_writable()
        return self.jobs.start(
            lambda context, job_id: Scrub(context, job_id, repair, heals=heals)
        ).job_id

    def start_tuning(self) -> int:
        """Start to move chunks to members that serve them sooner; return the job id.

        Raises UsageError if the layout cannot move chunks, BusyError while another tuning runs.
        """
        self.require_writable()
        tuner = self.require_tuner()
        tuner.require()
        return self.jobs.start(lambda context, job_id: TuneJob(context, job_id, tuner)).job_id

    def require_tuner(self) -> Tuner:
        """Return the tuner. Raises UsageError for a layout without a chunk table."""
        if self.tuner is None:
            raise NotWithLayoutError(
                f"{self.member_set.config.layout} has fixed places: there is nothing to tune",
                action="raidx-zero, raidx-copy and raidx-parity can be tuned",
            )
        return self.tuner

    def start_rebuild(self, roles: tuple[Role, ...], failures: int = 0) -> int:
        """Start to rebuild *roles* (members attached, marked rebuilding); return the job id.

        *failures*: how often it has failed so far.
        """
        job = self.jobs.start(lambda context, job_id: Rebuild(context, job_id, roles))
        self.nursery.start_soon(self._continue_after, job, failures)
        return job.job_id

    async def _continue_after(self, job: Job, failures: int = 0) -> None:
        """When *job* has ended, give the next vacant role to a spare that came meanwhile.

        A rebuild that failed begins again while its members have their roles: a member that cannot
        be spared may answer again, and superblocks that could not be written may be written.
        """
        await job.finished.wait()
        if isinstance(job, Rebuild) and job.state == "failed":
            if set(job.roles) & self.member_set.watermarks.keys():
                await rest(REBUILD_AGAIN_S * 2 ** min(failures, DOUBLINGS_MAX))
            while self.member_set.unpublished and not await self._is_published():
                await rest(REBUILD_AGAIN_S)
            self.membership.rebuild_seated(job.roles, failures + 1)
        self.membership.rebuild_onto_spare()
        # use a larger member's extra space
        if not self.member_set.lost:
            self.member_changes.resume()

    async def _is_published(self) -> bool:
        try:
            await self.member_set.published()
        except RaidxError:
            return False
        return True

    def require_writable(self) -> None:
        """Raise ReadOnlyError if the array was started read-only."""
        if self.read_only:
            raise ReadOnlyError("the array was started read-only", action="mount it read-write")

    # -- start and close ---------------------------------------------------------------------------

    def _resync(self, context: ArrayContext, job_id: int = 0) -> Resync:
        return Resync(context, job_id, self.lost_list.save)

    async def start(self, head: PageStore, start_degraded: bool) -> None:
        """Recover the log, mark the array as running in the superblocks, resume unfinished jobs.

        *head* is the page store with the head of the log; *start_degraded*: even if records of it
        may be lost. Raises RaidxError.
        """
        member_set, changes = self.member_set, self.context.changes
        member_set.change(without_retired)
        if member_set.sums is None:
            member_set.change(without_sums)
        self.lost_list.load()
        self.warnings += settings.apply_saved(self)
        # a bad log is refused before anything is written
        found = await read_log(self.context.journal, member_set, head, start_degraded)
        member_set.on_fail.append(self.replacement.note_failed)  # the others see the member itself
        member_set.on_fail.append(partial(note_failing, self.context))
        member_set.on_fail.append(self.health.note_failed)
        member_set.on_fail.append(changes.note_leaving)
        self.jobs.on_end.append(self._note_ended)
        member_set.on_change.append(self.context.zeros.note)
        member_set.on_change.append(self.context.policies.bpu.note_members)
        self.nursery.start_soon(member_set.watch)
        if member_set.sums is not None:  # of what was being written when the array stopped
            await member_set.sums.forget_stripes(
                self.context.layout, self.context.dirty_bitmap.stripes_to_resync()
            )
        if start_degraded or self.read_only:  # then in memory only
            member_set.unreadable.connect(self.mender)  # gives up pages that the log needs, if lost
        if self.read_only:
            self.replayed = await replay(self.context.journal, member_set, found)
            if member_set.sums is not None:  # there is no resync, but rot beside what was written
                self.context.dirty_bitmap.guard(lambda stripe: heal_rot(self.context, [stripe]))
            return
        if member_set.lost and not start_degraded:
            await require_redoable(self.context.journal, member_set, found)
        stripes = stripes_changed(found.records, self.context.layout, member_set.data_offset)
        await member_set.update(
            lambda config: changes.begin(
                config.started_with(member_set.present()), self.base_events, stripes
            )
        )
        await member_set.published()  # raises before anything is redone
        member_set.refresh()
        for pages in member_set.page_stores:
            await pages.heal()
        self.replayed = await replay(self.context.journal, member_set, found)
        await member_set.try_unreadable()  # what was given up is zeros there now
        changes.note_redone()
        member_set.unreadable.connect(self.mender)
        self.nursery.start_soon(self.context.journal.tend)
        self.nursery.start_soon(self.context.dirty_bitmap.tend)
        for run in (self.lost_list.run, self.mender.run, self.health.run):
            self.nursery.start_soon(run)
        await member_set.hosts.look()
        for run in (member_set.hosts.run, self.regular_scrub.run, self.presence.run):
            self.nursery.start_soon(run)
        self._watch_misfits()
        if self.tuner is not None:
            self.nursery.start_soon(self.tuner.run)
        if self.self_heal is not None:
            self.nursery.start_soon(self.self_heal.run)
        if self.context.dirty_bitmap.pending_regions():
            self.jobs.start(self._resync)
            # a stripe, whose lock is held, is finished before the resync job reaches it
            self.context.dirty_bitmap.guard(
                lambda stripe: finish(self._resync(self.context), [stripe])
            )
        await take_back(self, self.stale)
        await self.replacement.resume(self.spares_behind)
        self.membership.resume_rebuilds()
        self.grow_operation.resume()
        self.restripe_operation.resume()
        self.member_changes.resume()
        member_set.on_change.append(self.membership.rebuild_onto_spare)
        self.nursery.start_soon(self.sum_copies.complete)

    def _note_ended(self, job: Job) -> None:
        if not self.read_only and not self.jobs.closing:
            self.nursery.start_soon(self.sum_copies.complete)
        self.health.note_ended(job)
        self.regular_scrub.note_ended(job)
        if isinstance(job, Replace):
            self.nursery.start_soon(self._continue_after, job)
        if not self.read_only and not self.jobs.closing:
            self.nursery.start_soon(self.health.save)

    async def close(self) -> None:
        """Stop the jobs, flush, mark the array clean. Every acknowledged write is durable then."""
        if self.read_only:
            return
        await self.jobs.stop_all()
        async with self.membership.attaching:
            pass  # until no member is being attached
        try:
            await self.lost_list.save()
            self.known_misfits.note()
            await self.context.journal.drain()
            await self.member_set.flush()
            await self.context.dirty_bitmap.clean_quiet(all_regions=True)
            await self.context.cells.save_sums()
            await self.member_set.flush()
            await self.member_set.update(
                lambda config: replace(
                    self.replacement.keep(self.health.keep(self.regular_scrub.keep(config))),
                    clean=True,
                )
            )
        except RaidxError as error:
            # Flushed content is safe; the next start runs recovery and resync.
            log.error("the array could not be closed cleanly: %s", error)
            self.not_closed = error

    def abandon(self) -> None:
        """End every operation that still waits, so that the tasks of the array can end.

        The superblocks are final from here on: operations that fail now fail because of this call.
        """
        self.member_set.end_superblocks()
        for queue in self.member_set.queues:
            if queue is not None:
                if queue.member.overdue:
                    path = queue.member.path
                    log.error("%s: a write that it did not answer may still land", path)
                queue.close()
