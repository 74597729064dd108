"""The commands about one array of a mount; dispatch.py has their names.

Each command is a method. Its parameters, with their types and defaults, are the arguments that a
request may carry. The methods check and translate, and the array does the work. Long jobs are only
started here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from raidx_fuse.array import advice, statistics
from raidx_fuse.array.array import Array
from raidx_fuse.array.damage import damage
from raidx_fuse.array.membership import is_past, why_not_caught_up
from raidx_fuse.array.save_metadata import save
from raidx_fuse.daemon.commands.advise import Advice
from raidx_fuse.daemon.commands.arguments import Result, check_newcomers
from raidx_fuse.daemon.commands.compare import Comparison
from raidx_fuse.daemon.commands.events import EventCommands
from raidx_fuse.daemon.commands.trace import Trace
from raidx_fuse.daemon.drives import Drives
from raidx_fuse.daemon.events.event import unix_s
from raidx_fuse.daemon.member_files import Own
from raidx_fuse.engine.explain import explain_place
from raidx_fuse.engine.growth_position import parity_way
from raidx_fuse.errors import BusyError, RaidxError, Reason, UsageError
from raidx_fuse.format.configuration.config import FAILED, MISSING, MemberRecord
from raidx_fuse.format.configuration.volumes import volume_at
from raidx_fuse.format.saved_metadata import to_document
from raidx_fuse.format.table_page import bytes_needed
from raidx_fuse.jobs.costs import PlannedChange
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.pool.monitor import VolumeCounters
from raidx_fuse.pool.volume import Volume

if TYPE_CHECKING:
    from raidx_fuse.answers import Explanation, StripeState, VolumePlace
    from raidx_fuse.documents import (
        ArrayReport,
        Cleared,
        ClearedMember,
        ClearedSums,
        CommandStats,
        DaemonReport,
        Damage,
        Failing,
        Grown,
        MemberPlan,
        SavedMetadata,
    )
    from raidx_fuse.documents import Job as JobStatus
    from raidx_fuse.documents import VolumeCounters as VolumeStats

INTERVAL_S_MAX = 86400.0
RATE_BYTES_MAX = 1 << 50
CANCEL_WAIT_S = 2.0
WAITING_MAX = 32  # commands that only wait: they must not occupy all connections


class Newcomers(Protocol):
    """Opens new members for a command, as `member_files.Disks` does."""

    async def open(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        create_bytes: int | None,
        own: Own | None = None,
    ) -> Member:
        """Return the member at *path*; create a missing file of *create_bytes* (None: refuse)."""
        ...

    async def check(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        may_create: bool,
        own: Own | None = None,
        look: Callable[[Member], Awaitable[None]] | None = None,
    ) -> int | None:
        """Raise what `open` would raise, without changing anything; return the member's bytes."""
        ...

    async def release(self, member: Member) -> None:
        """Close a member that did not join the array."""


class ArrayCommands:
    """The commands of one *array* with its *volumes*; *newcomers* opens new members.

    *drives*: those below its members.
    *mount_report*, set once the mount is ready, returns what it says of itself; `status` shows it.
    *beside_others*: the mount has several arrays, so that `status` names this one where it says
    what to type.
    """

    def __init__(
        self,
        array: Array,
        volumes: Sequence[Volume],
        newcomers: Newcomers,
        events: EventCommands | None = None,
        drives: Drives | None = None,
    ) -> None:
        self.array = array
        self.events = events
        self.drives = Drives() if drives is None else drives
        self.volumes = volumes
        self.newcomers = newcomers
        self.mount_report: Callable[[], DaemonReport] | None = None
        self.beside_others = False
        self.advice = Advice(array, self._place_of_array)
        self.comparison = Comparison(array)
        self.tracing = Trace(array, volumes)
        self._waiting = 0

    # -- reports -------------------------------------------------------------------------------

    def report(self) -> ArrayReport:
        document = self.array.status()
        if self.mount_report is not None:
            document = {**document, **self.mount_report()}
        document["volumes"] = [
            {"name": volume.name, "size": volume.size_bytes, "path": self.path_of(volume)}
            for volume in self.volumes
        ]
        if drives := self.drives.shown():
            document["drives"] = drives
            document["warnings"] += self.drives.problems()
        place = self._place_of_array()
        return {**document, "action": advice.action({**document, "mountpoint": place})}

    def path_of(self, volume: Volume) -> str | None:
        """Return the path of the file of *volume*, None without a mount point."""
        where = self._mountpoint()
        return f"{where.rstrip('/')}/{volume.name}" if where else None

    def _mountpoint(self) -> str | None:
        return None if self.mount_report is None else self.mount_report().get("mountpoint")

    def _place_of_array(self) -> str | None:
        """Return what commands take as ARRAY: the mount point, of several arrays with the name."""
        where = self._mountpoint()
        return f"{where}:{self.array.name}" if where and self.beside_others else where

    async def stats(self, interval_s: float | None = None) -> CommandStats:
        """Return the counters since the mount, or those of the next *interval_s* seconds."""
        if interval_s is None:
            return {**self.array.stats(), "volumes": self._counted({})}
        if not 0 < interval_s <= INTERVAL_S_MAX:
            raise UsageError(f"an interval of {interval_s} s is out of range")
        earlier, before = dict(self._counters()), statistics.snapshot(self.array)
        with self._waits():
            await trio.sleep(interval_s)
        counters = statistics.difference(before, statistics.snapshot(self.array))
        return {**counters, "volumes": self._counted(earlier)}

    def _counters(self) -> Iterator[tuple[Volume, VolumeCounters]]:
        """Yield what each volume was asked for since it was opened."""
        for volume in self.volumes:
            requests = volume.reads, volume.writes
            yield volume, VolumeCounters(*requests, volume.read_bytes, volume.write_bytes)

    def _counted(self, before: dict[Volume, VolumeCounters]) -> list[VolumeStats]:
        """Return the counters of each volume, less those *before*."""
        none = VolumeCounters()
        return [
            {
                "name": volume.name,
                "reads": after.reads - before.get(volume, none).reads,
                "writes": after.writes - before.get(volume, none).writes,
                "read_bytes": after.read_bytes - before.get(volume, none).read_bytes,
                "write_bytes": after.write_bytes - before.get(volume, none).write_bytes,
            }
            for volume, after in self._counters()
        ]

    async def explain(
        self,
        offset: int = 0,
        length: int = 4096,
        write: bool = False,
        stripe: int | None = None,
        member: str | None = None,
    ) -> Explanation | StripeState | VolumePlace:
        """Return the plan of a request without executing it, or the state of *stripe*.

        With *member*, return what lies at byte *offset* of that member, and in which volume.
        """
        if member is not None:
            return self._place(member, offset)
        if stripe is not None:
            return self.array.explain_stripe(stripe)
        return self.array.explain(offset, length, write)

    def _place(self, member: str, offset: int) -> VolumePlace:
        record = self.array.membership.find(member)
        if record.role < 0:
            raise UsageError(f"{record.path_hint} is a spare: nothing lies on it yet")
        place = explain_place(self.array.context, Role(record.role), offset)
        volume, inside = volume_at(
            self.array.name, self.array.member_set.config.volumes, place["image_offset"]
        )
        return {**place, "volume": volume, "volume_offset": inside}

    async def damage(self) -> Damage:
        """Return the ranges of the image that answer EIO."""
        return await damage(self.array)

    async def save_metadata(self) -> SavedMetadata:
        """Return what a file of metadata has. Raises RaidxError if no superblock can be read."""
        return to_document(await save(self.array, self.array.member_set.present(), unix_s()))

    # -- members -------------------------------------------------------------------------------

    async def fail_disk(
        self, member: str, lose_data: bool = False, dry_run: bool = False
    ) -> Failing | MemberPlan:
        """Fail a member as if it had an error; *lose_data* permits it even if chunks are lost."""
        plan = self.array.membership.plan_failing(member, lose_data=lose_data)
        return await (plan.cost() if dry_run else plan.begin([]))

    async def clear(self, member: str | None = None) -> Cleared:
        """Forget the errors and repairs counted of *member*, by default of all members."""
        config, health = self.array.member_set.config, self.array.health
        records = config.members if member is None else [self.array.membership.find(member)]
        present = health.present()
        cleared: list[ClearedMember] = []
        for record in records:
            errors, repairs = present.counts_of(record.member_uuid)
            path = self.array.membership.path_of(record)
            cleared.append(
                {"role": record.role, "path": path, "errors": errors, "repairs": repairs}
            )
        await health.clear(records)
        sums = self.array.member_set.sums
        if member is not None or sums is None:
            return {"members": cleared}
        misfits, healed, wrong_sums, unverified = sums.forget_counts()
        counts: ClearedSums = {
            "misfits": misfits,
            "healed": healed,
            "wrong_sums": wrong_sums,
            "unverified": unverified,
        }
        return {"members": cleared, "sums": counts}

    async def replace_disk(
        self,
        old: str,
        new: str,
        overwrite_signature: bool = False,
        create: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Replace *old* by *new*, or by itself if it was away and is back: copy or rebuild it."""
        plan = self.array.membership.plan_replacing(old, new)
        record = self.array.membership.find(old)
        if dry_run:
            return await cost_of_replacing(
                *(self.array, self.newcomers, record, new),
                overwrite_signature=overwrite_signature,
                may_create=create,
            )
        create_bytes = record.size_bytes if create else None
        own = own_superblock(self.array, record)
        async with self._opened([new], overwrite_signature, create_bytes, own) as opened:
            return await plan.begin(opened)

    async def add_disk(
        self,
        members: list[str],
        role: str | None = None,
        parity: str | None = None,
        surrogate: str | None = None,
        overwrite_signature: bool = False,
        create: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Grow onto *members*, or add them as hot spares (*role* "spare").

        *parity* is the parity mode, "live" or "piggyback"; a *surrogate* takes the parity over.
        """
        if role not in (None, "spare"):
            raise UsageError(f"a member cannot be added as {role!r}, only as 'spare'")
        way = parity_way(role, parity, surrogate)
        newcomers = [*members, *([] if surrogate is None else [surrogate])]
        check_newcomers(newcomers, self.array.member_set.config.members)
        smallest = min(record.size_bytes for record in self._records())
        if role == "spare":
            plan: PlannedChange[Grown] = self.array.membership.plan_spares(len(members))
        else:
            plan = self.array.member_changes.plan_adding(len(members), way)
        unlike = role is None and self.array.member_changes.any_size
        if dry_run:
            sizes = await self._sizes_of(newcomers, overwrite_signature, create, unlike=unlike)
            return await plan.cost([size or smallest for size in sizes])
        size_bytes = None
        if create:  # as small as the others; but a spare must fit every role
            config = self.array.member_set.config
            needed = [0 if unlike else bytes_needed(config, each) for each in config.roles()]
            size_bytes = max(smallest, config.member_bytes_for(max(needed)))
        async with self._opened(newcomers, overwrite_signature, size_bytes) as opened:
            return await plan.begin(opened)

    async def remove_disk(self, member: str, dry_run: bool = False) -> Result:
        """Remove a spare, or a member whose content the others can hold."""
        plan = await self.array.membership.plan_removing(member)
        return await (plan.cost() if dry_run else plan.begin([]))

    async def reshape(
        self,
        members: list[str],
        layout: str | None = None,
        rotate: bool | None = None,
        overwrite_signature: bool = False,
        create: bool = False,
        lose_redundancy: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Move all chunks to *layout* (None: unchanged) over *members* more.

        A layout that tolerates fewer losses is taken only with *lose_redundancy*. Raises UsageError
        if the change is impossible, BusyError if it is not possible now.
        """
        array = self.array
        check_newcomers(members, array.member_set.config.members)
        params = {} if rotate is None else {"rotate": rotate}
        plan = array.restripe_operation.plan(len(members), layout, params)
        if dry_run:
            await self._sizes_of(members, overwrite_signature, create)
            return await plan.cost()
        before, after = array.context.code.tolerance, plan.layout.new.code.tolerance
        if after < before and not lose_redundancy:
            raise UsageError(
                f"{plan.shape.layout} on {plan.shape.width} members tolerates fewer lost members: "
                f"{after}, not {before}",
                action="accept this with --lose-redundancy",
                reason=Reason.LOSES_REDUNDANCY,
            )
        size_bytes = min(record.size_bytes for record in self._records()) if create else None
        async with self._opened(members, overwrite_signature, size_bytes) as opened:
            return await plan.begin(opened)

    async def _sizes_of(
        self,
        paths: Sequence[str],
        overwrite_signature: bool,
        may_create: bool,
        *,
        unlike: bool = False,
    ) -> list[int | None]:
        """Return the bytes of the new members *paths*, None for one that is created.

        Raises what refuses them when they join, as large as the others if not *unlike*.
        """
        membership = self.array.membership

        async def look(member: Member) -> None:
            (membership.check_usable if unlike else membership.check_joining)(member)

        return [
            await self.newcomers.check(
                path, overwrite_signature=overwrite_signature, may_create=may_create, look=look
            )
            for path in paths
        ]

    @asynccontextmanager
    async def _opened(
        self,
        paths: Sequence[str],
        overwrite_signature: bool,
        create_bytes: int | None,
        own: Own | None = None,
    ) -> AsyncIterator[list[Member]]:
        """Yield the new members *paths*; after an error close those that have not joined."""
        opened: list[Member] = []
        try:
            for path in paths:
                self.array.require_writable()
                member = await self.newcomers.open(
                    path,
                    overwrite_signature=overwrite_signature,
                    create_bytes=create_bytes,
                    own=own,
                )
                opened.append(member)
            yield opened
        except RaidxError:
            for member in opened:
                if member not in self.array.member_set.present().values():
                    await self.newcomers.release(member)
            raise

    def _records(self) -> list[MemberRecord]:
        return [record for record in self.array.member_set.config.members if record.role >= 0]

    # -- jobs ----------------------------------------------------------------------------------

    async def scrub(self, repair: bool = False) -> Result:
        """Start a scrub that reports mismatches, or with *repair* corrects them."""
        return {"job": await self.array.start_scrub(repair, heals=repair)}

    async def tune(self, now: bool = False, dry_run: bool = False) -> Result:
        """Return the tuner's state; *now* starts it as a job, *dry_run* returns its moves."""
        tuner = self.array.require_tuner()
        if dry_run:
            return await tuner.dry_run()
        if now:
            return {"job": self.array.start_tuning()}
        return tuner.status()

    async def job_list(self) -> Result:
        return {"jobs": self.array.jobs.list()}

    async def job_pause(self, job: int) -> JobStatus:
        self.array.jobs.pause(job)
        return self._job(job)

    async def job_resume(self, job: int) -> JobStatus:
        self.array.jobs.resume(job)
        return self._job(job)

    async def job_cancel(self, job: int) -> JobStatus:
        """Cancel a job; return when it has ended, or when it is clear that this takes a while.

        A growth has to move everything back first.
        """
        self.array.jobs.cancel(job)
        with trio.move_on_after(CANCEL_WAIT_S):
            await self.array.jobs.wait(job)
        return self._job(job)

    async def job_wait(self, job: int) -> JobStatus:
        with self._waits():
            return await self.array.jobs.wait(job)

    @contextmanager
    def _waits(self) -> Iterator[None]:
        """Count a command that only waits. Raises BusyError if too many do."""
        if self._waiting >= WAITING_MAX:
            raise BusyError(
                f"{WAITING_MAX} commands wait already", action="poll `raidx job ARRAY list` instead"
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def job_limit(
        self, job: int, minimum: int | None = None, maximum: int | None = None
    ) -> JobStatus:
        """Set a job's speed limits in bytes per second; 0 means no limit."""
        for value in (minimum, maximum):
            if value is not None and not 0 <= value <= RATE_BYTES_MAX:
                raise UsageError(f"a limit of {value} bytes per second is out of range")
        self.array.jobs.limit(job, minimum, maximum)
        return self._job(job)

    def _job(self, job: int) -> JobStatus:
        return next(status for status in self.array.jobs.list() if status["id"] == job)

    # -- settings ------------------------------------------------------------------------------

    async def get(self, key: str | None = None) -> dict[str, object]:
        events = {} if self.events is None else await self.events.settings()
        if key is None:
            return self.array.settings() | events
        return {key: events[key] if key in events else self.array.get(key)}

    async def set(self, key: str, value: str) -> object:
        if self.events is not None and key.startswith("events."):
            return await self.events.set(key, value)
        return await self.array.set(key, value)


def own_superblock(array: Array, record: MemberRecord) -> Own | None:
    """Return which superblock the member of *record* may have if it is given again; None: none."""
    away = record.role >= 0 and record.state in (FAILED, MISSING)
    return partial(is_past, array, record) if away else None


async def cost_of_replacing(
    array: Array,
    newcomers: Newcomers,
    record: MemberRecord,
    path: str,
    *,
    overwrite_signature: bool,
    may_create: bool,
) -> MemberPlan:
    """Return what it costs to give the role of *record* to *path*.

    Raises what `Newcomers.open` would raise.
    """
    found: list[bool] = []

    own = own_superblock(array, record)

    async def look(member: Member) -> None:
        array.membership.check_joining(member, record.role)
        found.append(own is not None and await why_not_caught_up(array, record, member) is None)

    await newcomers.check(
        path, overwrite_signature=overwrite_signature, may_create=may_create, own=own, look=look
    )
    return await array.membership.plan_replacing(record.role, path, returns=any(found)).cost()
