"""Membership: failing, replacing, adding and removing members while the array runs (hot spares).

A returning member is rebuilt only where stripes changed in its absence, if that is safe: which
ones is known by engine/changed_regions.py. When a member has failed, array.py asks for a spare.

A member that was missing at a start is taken back automatically when it is given again. A failed
one is taken back only if the user asks for it: `raidx replace-disk ARRAY ROLE MEMBER` with the
member itself. All other members are rebuilt whole.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from raidx_fuse.array.damage import chunks_needing
from raidx_fuse.array.services import RunningArray
from raidx_fuse.errors import (
    ArrayFailedError,
    BusyError,
    FormatError,
    JobRunningError,
    MemberError,
    NotWithLayoutError,
    OtherVersionError,
    RaidxError,
    Reason,
    TooSmallError,
    UsageError,
)
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.configuration.absence import CHANGED
from raidx_fuse.format.configuration.config import MISSING, NO_ROLE, ArrayConfig, MemberRecord
from raidx_fuse.format.create import prepare_member, reserve_metadata
from raidx_fuse.format.shapes import leaving_roles
from raidx_fuse.format.superblock import Superblock
from raidx_fuse.format.table_page import bytes_needed
from raidx_fuse.jobs.attach import forget_spare, record_of, release, require_joined
from raidx_fuse.jobs.costs import PlannedChange
from raidx_fuse.jobs.rebuild import PlannedMember, Rebuild, checkpoint_key
from raidx_fuse.jobs.replace import successors
from raidx_fuse.jobs.resync import chunks_at_stake
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.loop.tasks import rest
from raidx_fuse.members.base import Member
from raidx_fuse.store.chunk_table import TableScan

if TYPE_CHECKING:
    from raidx_fuse.documents import (
        Failing,
        Grown,
        Removal,
        Replacing,
        Reshaping,
        Spare,
    )

log = logging.getLogger(__name__)

RETRY_S = 10.0


async def why_not_caught_up(
    array: RunningArray, record: MemberRecord, member: Member
) -> str | None:
    """Return why *member* cannot be caught up as the member of *record*; None if it can.

    Its superblock must be the one with which it left, and its pages no older. One with another
    event counter is an old copy, or was in use elsewhere; so is one whose configuration is not the
    past of ours.
    """
    left = array.context.changes.left(record.member_uuid)
    if left is None:
        return "what changed since it left is not known"
    try:
        superblock = await read_superblock(member)
    except (MemberError, FormatError) as error:
        return error.message
    if superblock is None:
        return "it has no superblock"
    if not is_past(array, record, superblock):
        return "it is another member, or was in use elsewhere"
    if member.size_bytes < record.size_bytes:
        return "it has become shorter"
    if not left[0] <= superblock.events <= left[1]:
        return "it is an old copy"
    try:
        if await array.context.changes.is_behind(record.member_uuid, member):
            return "it is an old copy"
        return await _table_problem(array, record, member)
    except OtherVersionError as error:
        return error.message


def is_past(array: RunningArray, record: MemberRecord, superblock: Superblock) -> bool:
    """Return whether *superblock* is one that the member of *record* has had in this array.

    It is not if the member was started without this array since it left: what was written to it
    then is nowhere else.
    """
    config, old = array.member_set.config, superblock.config
    own = superblock.array_uuid, superblock.member_uuid
    # In memory the lineage is that of the start: it may be behind a member that left since.
    past = old.extends(config) if old.starts == config.starts else config.extends(old)
    return past and own == (config.array_uuid, record.member_uuid)


async def _table_problem(array: RunningArray, record: MemberRecord, member: Member) -> str | None:
    """Return why the chunks of *member* are not where the look-up table has them, or None."""
    table = array.context.journal.chunk_table
    if table.layout is None:
        return None
    scan = TableScan(table.layout)
    await table.read_share(scan, record.role, member)
    if record.role in scan.lost or not table.agrees(record.role, scan):
        return "chunks of it have moved"
    return None


async def take_back(array: RunningArray, stale: Sequence[tuple[Member, str]]) -> None:
    """Give members of *stale* that were only absent their roles again, to be caught up."""
    config = array.member_set.config
    for member, _reason in stale:
        for record in config.members:
            if record.role < 0 or record.state != MISSING:
                continue
            if member.read_only or await why_not_caught_up(array, record, member) is not None:
                continue
            try:
                await array.membership.take_back(record.role, member)
            except RaidxError as error:
                log.error("%s could not be taken back: %s", member.path, error)
                break
            log.warning("%s was absent: it is caught up by what changed", member.path)
            break


class Membership:
    """Changes the members of one running array."""

    def __init__(self, array: RunningArray) -> None:
        self.array = array
        self.member_set = array.member_set
        self.waiting = False  # True while a spare takes a role, or must not take one
        self.attaching = trio.Lock()  # held while a member takes a role or leaves one

    # -- finding members -----------------------------------------------------------------------

    def hold_spares(self) -> None:
        """Let no spare take a role until `release_spares`."""
        self.waiting = True

    def release_spares(self) -> None:
        """Let spares take roles again, also those that have become vacant meanwhile."""
        self.waiting = False
        self.rebuild_onto_spare()

    def find(self, ref: str | int) -> MemberRecord:
        """Return the record of a member by role, path or UUID prefix. Raises UsageError."""
        text = str(ref)
        records = self.member_set.config.members
        if text.isdigit():
            for record in records:
                if record.role == int(text):
                    return record
            raise UsageError(
                f"there is no role {text} in this array",
                action="see `raidx status`",
                reason=Reason.NO_SUCH_MEMBER,
            )
        matches = [
            record
            for record in records
            if self.path_of(record) == text
            or record.path_hint == text
            or (len(text) >= 4 and record.member_uuid.startswith(text))
        ]
        if len(matches) != 1:
            what = f"{len(matches)} members of this array match" if matches else "no member matches"
            raise UsageError(f"{what} {text!r}", action="see `raidx status`")
        return matches[0]

    def path_of(self, record: MemberRecord) -> str:
        """Return the path of an attached member, or the path where it was last seen."""
        if record.role >= 0 and (queue := self.member_set.queues[record.role]) is not None:
            return queue.member.path
        if record.member_uuid in self.member_set.spares:
            return self.member_set.spares[record.member_uuid].path
        return record.path_hint

    # -- failing -------------------------------------------------------------------------------

    def plan_failing(self, ref: str | int, *, lose_data: bool = False) -> PlannedMember[Failing]:
        """Return how the member *ref* fails. Raises as `fail`."""
        record, chunks = self._require_spare(ref, lose_data)
        role, spares = record.role, self.member_set.spares
        does = f"excludes role {role}" + (", rebuilds it onto a spare" if spares else "")

        def begin(_members: Sequence[Member]) -> Awaitable[Failing]:
            return self.fail(record.member_uuid, lose_data=lose_data)

        rebuilds = role if spares else None
        return PlannedMember(self.array, does, begin, rebuilds, chunks=chunks, excludes=True)

    def _require_spare(self, ref: str | int, lose_data: bool) -> tuple[MemberRecord, int]:
        """Return (record of member *ref*, chunks that may be lost with it). Raises as `fail`."""
        self.array.require_writable()
        record = self.find(ref)
        if record.role < 0:
            raise UsageError(
                f"{self.path_of(record)} is a spare", action="use `raidx remove-disk` for it"
            )
        if record.state in ("failed", "missing"):
            raise UsageError(f"role {record.role} is {record.state} already", reason=Reason.ALREADY)
        role = record.role
        if role in self.member_set.watermarks:
            return record, 0
        if not self.member_set.layout.tolerates(self.member_set.lost | {role}):
            raise ArrayFailedError(
                f"role {role} cannot be spared: data would be lost",
                action="rebuild or replace the lost members first",
            )
        chunks = chunks_at_stake(self.array.context, role)
        if chunks and not lose_data:
            raise ArrayFailedError(
                f"without role {role} up to {chunks} chunks would be lost: they await the resync "
                "after a crash without a journal",
                action="wait for the resync: `raidx job ARRAY wait`, or accept the loss with "
                "--lose-data",
                reason=Reason.LOSES_DATA,
            )
        needing = chunks_needing(self.array.context, role)
        if needing and not lose_data:
            raise ArrayFailedError(
                f"role {role} cannot be spared: other members have pages that cannot be read or do "
                f"not fit their checksums, and only it gives them back (chunks: {needing})",
                action="mend them: `raidx scrub ARRAY --repair --wait`, or accept the loss with "
                "--lose-data",
                reason=Reason.LOSES_DATA,
            )
        return record, chunks + needing

    async def fail(self, ref: str | int, *, lose_data: bool = False) -> Failing:
        """Exclude a member; the superblocks of the others say so when this returns.

        Raises UsageError for a wrong member, ArrayFailedError if data would be lost. Chunks that
        await a resync, and pages that other members lack, may be lost only with *lose_data*.
        """
        record, _ = self._require_spare(ref, lose_data)
        if not self.member_set.fail(record.role, "taken out by the user"):
            raise ArrayFailedError("the array is being closed", reason=Reason.CLOSING)
        await self.member_set.published()
        return {"role": record.role, "state": "failed"}

    # -- adding --------------------------------------------------------------------------------

    def check_joining(self, member: Member, role: Role | None = None) -> None:
        """Raise UsageError unless *member* is usable and fits *role* (None: any one)."""
        config, needed = self.member_set.config, self.array.member_changes.bytes_to_join(role)
        if config.usable_bytes(member.size_bytes) < needed:
            raise TooSmallError(
                f"{member.path} has {member.size_bytes} bytes, this array's members need "
                f"{config.member_bytes_for(needed)}",
                action="use a larger one",
            )
        self.check_usable(member)

    def check_usable(self, member: Member) -> None:
        """Check that *member* can be written and does not belong to the array already.

        Raises UsageError, or BusyError while a write to it is overdue.
        """
        if member.read_only:
            raise UsageError(f"{member.path} is read-only", reason=Reason.READ_ONLY)
        for other in self.member_set.present().values():
            if other.path == member.path:
                raise UsageError(
                    f"{member.path} belongs to this array already", reason=Reason.ALREADY
                )
        if member.overdue:
            raise BusyError(
                f"{member.path}: a write that the member did not answer may still arrive",
                action="try again when the member answers",
                reason=Reason.NO_ANSWER,
            )

    async def _prepare(self, member: Member, record: MemberRecord, *, kept_bytes: int = 0) -> None:
        """Clear the metadata regions of a new member and reserve the space for its metadata.

        *record* is what it will have. *kept_bytes*: it has been a member, and its content up to
        here stays.
        """
        config = self.member_set.config
        await prepare_member(member, config.regions, kept_bytes=kept_bytes)
        end = config.end_of(replace(record, role=NO_ROLE))  # it may get fewer chunks than the role
        reserve_metadata(member, config.regions, self.array.context.layout.chunks, end)

    def plan_spares(self, added: int) -> PlannedMember[Grown]:
        """Return how *added* members join as hot spares. Raises RaidxError."""
        self._require_redundancy()
        config = self.member_set.config
        vacant = sorted((*config.roles_in("failed"), *config.roles_in("missing")))
        does = f"adds {added} as spare" + (", rebuilds onto it" if vacant else "")

        async def begin(members: Sequence[Member]) -> Grown:
            async with self.attaching:  # two roles are rebuilt in one pass
                return {"added": [await self.add_spare(member) for member in members]}

        return PlannedMember(self.array, does, begin, vacant[0] if vacant else None)

    def _require_redundancy(self) -> None:
        self.array.require_writable()
        if self.array.context.code.tolerance == 0:
            raise NotWithLayoutError(
                f"{self.member_set.config.layout} has no redundancy: a spare would be useless"
            )

    async def add_spare(self, member: Member) -> Spare:
        """Add *member* as a hot spare; a degraded array starts to rebuild onto it."""
        self._require_redundancy()
        self.check_joining(member)
        record = record_of(member, NO_ROLE, "spare")
        await self._prepare(member, record)
        self.member_set.spares[record.member_uuid] = member
        try:
            await self.member_set.update(
                lambda c: replace(c, members=(*c.members, record)), asked=True
            )
        except (FormatError, ArrayFailedError):  # no space for one more record, or not written
            forget_spare(self.member_set, record)
            raise
        if member not in self.member_set.present().values():
            raise RaidxError(f"{member.path} could not be written", reason=Reason.MEMBER_FAILED)
        self.rebuild_onto_spare()
        return {"member_uuid": record.member_uuid, "path": member.path}

    async def release_spare(self, member_uuid: str) -> Member | None:
        """Remove a spare; return its member, which is of no array any more; None: it is missing.

        Raises RaidxError.
        """
        member = self.member_set.spares.pop(member_uuid, None)
        await self.member_set.update(lambda config: config.without_members(member_uuid))
        if member is not None:
            await release([member], ())
        return member

    def plan_replacing(
        self, ref: str | int, path: str, *, returns: bool = False
    ) -> PlannedMember[Replacing]:
        """Return how *path* gets the role of *ref*; *returns*: it was only absent, and catches up.

        Raises RaidxError (UsageError, BusyError).
        """
        record = self._require_replaceable(ref)
        role, copied = record.role, record.state == "active"
        does = f"rebuilds role {role} onto {path}"
        if copied:
            does = f"copies role {role} to {path}; its member stays in use until then"
        elif returns:
            does = f"lets {path} catch up in role {role}"

        def begin(members: Sequence[Member]) -> Awaitable[Replacing]:
            return self.replace(record.member_uuid, *members)

        return PlannedMember(self.array, does, begin, role, returns=returns, copied=copied)

    def _require_replaceable(self, ref: str | int) -> MemberRecord:
        """Return the record of *ref*, whose role may get a member. Raises as `plan_replacing`."""
        self.array.require_writable()
        record = self.find(ref)
        if record.role < 0:
            raise UsageError(f"{self.path_of(record)} is a spare", action="remove it instead")
        for job in self.array.jobs.running():
            if job.kind in ("rebuild", "replace"):
                raise JobRunningError(
                    f"a {job.kind} is running (job {job.job_id})",
                    action=f"wait for it: `raidx job ARRAY wait {job.job_id}`, or add the new "
                    "member with --as spare: it is used afterwards",
                )
        if record.state == "active" and self.array.context.layout.changing:
            raise JobRunningError(
                "the layout is changing",
                action="wait for it: `raidx job ARRAY wait`, or take the member out "
                "first: `raidx fail-disk`",
            )
        return record

    async def replace(self, ref: str | int, member: Member) -> Replacing:
        """Give the role of *ref* to *member*: a member in use is copied, else it is rebuilt."""
        record = self._require_replaceable(ref)
        self.check_joining(member, record.role)
        self.hold_spares()  # this member takes the role, not a spare
        width = self.member_set.config.width
        try:
            async with self.attaching:
                if self.member_set.config.width != width:  # a copy left: others took its role
                    raise BusyError(
                        "members joined or left meanwhile", action="see `raidx status`, then retry"
                    )
                # a spare may have taken the role meanwhile
                record = self._require_replaceable(record.role)
                self.check_joining(member, record.role)
                if record.state == "active":
                    await self.array.member_changes.make_way()
                    job = await self.array.replacement.begin(record, member)
                    return {"role": record.role, "job": job, "catches_up": False, "does": "copied"}
                if record.state not in ("failed", "missing"):
                    self.member_set.fail(record.role, "replaced by the user")
                    await self.member_set.published()
                back = await why_not_caught_up(self.array, record, member) is None
                try:
                    if back:
                        await self.take_back(record.role, member)
                    else:
                        seated = record_of(member, record.role, "rebuilding")
                        await self._prepare(member, seated)
                        await self._seat(seated, member)
                except RaidxError as error:
                    begun = self.rebuild_seated((record.role,))
                    if begun is None:
                        raise
                    log.error("%s: it has its role, and is rebuilt: %s", member.path, error)
                else:
                    begun = self.array.start_rebuild((record.role,))
            return {"role": record.role, "job": begun, "catches_up": back, "does": "rebuilt"}
        finally:
            self.release_spares()

    async def take_back(self, role: Role, member: Member) -> None:
        """Attach *member*, which has held *role* before (`why_not_caught_up`), to be caught up.

        Its metadata is made anew, as that of any member that joins; its data stays. What was
        discarded meanwhile, or in flight when it left, may still lie in its unwritten places.
        """
        record = replace(record_of(member, role, "rebuilding"), reads_zero=False)
        kept_bytes = bytes_needed(self.member_set.config, role)
        await self._prepare(member, record, kept_bytes=kept_bytes)
        await self._seat(record, member, changed=True)

    async def _seat(self, record: MemberRecord, member: Member, *, changed: bool = False) -> None:
        """Attach *member* in the role of *record*, to be rebuilt from stripe 0; save the maps.

        *changed*: only what changed in its absence is rebuilt. Raises RaidxError if *member* is a
        spare and is removed meanwhile.
        """
        member_set = self.member_set
        role = record.role
        was_spare = record.member_uuid in member_set.spares
        await self.array.member_changes.make_way()
        await self.array.member_changes.fit(role, member)

        def assign_role(config: ArrayConfig) -> ArrayConfig:
            progress = {"next_stripe": 0, CHANGED: True} if changed else {"next_stripe": 0}
            jobs = {**config.jobs, checkpoint_key(role): progress}
            return replace(config.with_record(record), jobs=jobs)

        await self.array.context.journal.chunk_table.erase(role, member)
        await self.array.context.journal.chunk_table.give_share(role, member)
        # Recovery must never redo a record of the former member onto this one. What is placed here
        # may set sums that must be forgotten, and meanwhile others log again.
        await self.array.context.journal.drain()
        await self.array.context.journal.chunk_table.forget_role(role, changed=changed)
        await self.array.context.journal.drain()
        if was_spare:
            require_joined(member_set, [record])
        member_set.watermarks[role] = Stripe(0)
        member_set.give_role(role, member)
        member_set.spares.pop(record.member_uuid, None)
        if changed:
            # Writes planned before the member left may have been logged in its absence. Those not
            # logged yet are planned anew, because the member has taken a role.
            self.array.context.changes.note(list(self.array.context.journal.ring.stripes))
            self.array.context.changes.rename(
                member_set.config.record(role).member_uuid, record.member_uuid
            )
        member_set.change(assign_role)
        member_set.refresh()
        tables = None if member_set.sums is None else member_set.sums.tables
        for pages in member_set.page_stores:
            if pages is not tables:  # those it has when it is whole (`Rebuild.finish`)
                await pages.save_all()
        await member_set.flush()  # the maps before the superblock that makes it a member
        await member_set.update(lambda config: config)

    # -- spares --------------------------------------------------------------------------------

    def rebuild_onto_spare(self) -> None:
        """If a role is vacant and a spare fits, start a task that rebuilds onto the spare."""
        running = any(job.kind == "rebuild" for job in self.array.jobs.running())
        if self.array.jobs.closing:
            return
        if self.spare_for() is not None and not running and not self.waiting:
            self.waiting = True
            self.array.nursery.start_soon(self._take_spares)

    def _vacant(self) -> list[Role]:
        """Return the roles without a member, but for those that the array is about to give up."""
        config = self.member_set.config
        leaving = leaving_roles(config)
        return [
            record.role
            for record in config.members
            if record.role >= 0 and record.state in ("failed", "missing")
            if record.role not in leaving
        ]

    def spare_for(self) -> tuple[Role, str] | None:
        """Return a vacant role and the UUID of a spare that is large enough for it, or None."""
        usable = self.member_set.config.usable_bytes
        for role in self._vacant() if self.member_set.spares else ():
            needed, every = (
                self.array.member_changes.bytes_of_spare(role),
                bytes_needed(self.member_set.config, role),
            )
            taken = successors(self.member_set.config)
            # one that has every chunk of the role rather than one that has what it holds
            spares = sorted(
                self.member_set.spares.items(),
                key=lambda spare: usable(spare[1].size_bytes) < every,
            )
            for uuid, member in spares:
                if usable(member.size_bytes) >= needed and uuid not in taken:
                    return role, uuid
        return None

    def lacks_spare_of(self, size_bytes: int) -> bool:
        """Return whether a role is vacant that no spare fits, and one of *size_bytes* would."""
        if self.waiting or self.spare_for() is not None:
            return False
        usable = self.member_set.config.usable_bytes(size_bytes)
        needed = map(self.array.member_changes.bytes_of_spare, self._vacant())
        return any(usable >= each for each in needed)

    async def _take_spares(self) -> None:
        """Assign spares to vacant roles while there are both; rebuild these roles in one job."""
        member_set = self.member_set
        taken: set[Role] = set()
        try:
            async with self.attaching:
                try:
                    while (found := self.spare_for()) is not None:
                        if self.array.jobs.closing:
                            break
                        role, uuid = found
                        member = member_set.spares[uuid]
                        record = next(r for r in member_set.config.members if r.member_uuid == uuid)
                        log.warning("rebuilding role %d onto the spare %s", role, member.path)
                        taken.add(role)  # again if the first spare failed
                        await self._seat(replace(record, role=role, state="rebuilding"), member)
                except RaidxError as error:
                    log.error("a spare could not take its role: %s", error)
                    self.array.nursery.start_soon(self._try_again)
                for job in self.array.jobs.running():
                    if job.kind == "rebuild":  # a rebuild of a member that has failed: it ends soon
                        await job.finished.wait()
                self.rebuild_seated(taken)
        finally:
            self.waiting = False

    def rebuild_seated(self, roles: Collection[Role], failures: int = 0) -> int | None:
        """Start to rebuild those of *roles* that have a member and no rebuild under way.

        Return the job, None if there is nothing to rebuild. Not while the array is being closed.
        *failures* as for `start_rebuild`.

        A member whose superblocks could not be written then has its role all the same: it is in
        force (`MemberSet.update`), and the next mount would rebuild it.
        """
        jobs = self.array.jobs
        busy = {role for job in jobs.running() if isinstance(job, Rebuild) for role in job.roles}
        seated = tuple(sorted((set(roles) & self.member_set.watermarks.keys()) - busy))
        if not seated or jobs.closing:  # the next mount starts it
            return None
        return self.array.start_rebuild(seated, failures)

    async def _try_again(self) -> None:
        """Let a spare that could not take its role try again, unless it is not there any more."""
        await rest(RETRY_S)
        self.rebuild_onto_spare()

    def resume_rebuilds(self) -> None:
        """At the start of the array: continue unfinished rebuilds, or rebuild onto a spare."""
        roles = tuple(sorted(self.member_set.watermarks))
        if roles:
            self.array.start_rebuild(roles)
        else:
            self.rebuild_onto_spare()

    async def plan_removing(self, ref: str | int) -> PlannedChange[Removal | Reshaping]:
        """Return how a spare leaves, or a member whose chunks then move to the others.

        A copy of raid1 goes with its member. The members of the last growth leave together.
        Raises RaidxError, UsageError if the others cannot hold everything.
        """
        self.array.require_writable()
        record = self.find(ref)
        if record.role >= 0:
            return await self.array.member_changes.plan_removing(record)
        if record.member_uuid in successors(self.member_set.config):
            raise JobRunningError(
                f"{record.path_hint} is about to replace a member",
                action="cancel that job: `raidx job ARRAY cancel`",
            )

        async def begin(_members: Sequence[Member]) -> Removal:
            member = await self.release_spare(record.member_uuid)
            if member is not None:
                for hook in self.array.on_release:
                    hook(member)
            return {"path": record.path_hint, "member_uuid": record.member_uuid}

        return PlannedMember(self.array, f"removes {self.path_of(record)}", begin)
