"""The commands of a running mount, received on the control socket: names, arguments, answers.

Each command is a method. Its parameters, with their types and defaults, are the arguments that a
request may carry; other arguments are a `UsageError` before anything happens. The methods check and
translate, and the array does the work. Long jobs are only started here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import trio

from raidx_fuse.array import advice, statistics
from raidx_fuse.array import estimate as reshape_cost
from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.advise import AdviseCommands
from raidx_fuse.daemon.commands.arguments import WORD_CHARS_MAX, check_arguments, check_newcomers
from raidx_fuse.daemon.commands.compare import Comparison
from raidx_fuse.daemon.commands.events import EventCommands
from raidx_fuse.daemon.commands.jobs import JobCommands
from raidx_fuse.daemon.commands.reshape import Newcomers, ReshapeCommand
from raidx_fuse.daemon.commands.returns import cost_of_replacing, own_superblock
from raidx_fuse.daemon.commands.trace import Trace
from raidx_fuse.daemon.member_files import Own
from raidx_fuse.engine.explain import explain_place
from raidx_fuse.engine.growth_position import parity_way
from raidx_fuse.engine.heat.chunk_map import ChunkMap
from raidx_fuse.engine.peek import Peek
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.format.configuration.volumes import volume_at
from raidx_fuse.format.table_page import bytes_needed
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.pool.volume import Volume

INTERVAL_S_MAX = 86400.0

Result = dict[str, Any]


class Report(Protocol):
    """What the mount reports about itself; see `raidx_fuse.daemon.mount.MountReport`."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: mountpoint, log, protections, ..."""
        ...


class Commands:
    """The commands of one mount: one array, its *volumes*, and *newcomers*, which opens members.

    `handle` is a `control_server.Handler`. Call `mounted` with the mount's report once it is ready.
    """

    def __init__(
        self,
        array: Array,
        volumes: Sequence[Volume],
        newcomers: Newcomers,
        events: EventCommands | None = None,
    ) -> None:
        self._array = array
        self._events = events
        self._volumes = volumes
        self._newcomers = newcomers
        self._report: Report | None = None
        self._beside_others = False
        self._jobs = JobCommands(array)
        self._handlers: dict[str, Callable[..., Awaitable[Result]]] = {
            "status": self.status,
            "stats": self.stats,
            "fail-disk": self.fail_disk,
            "replace-disk": self.replace_disk,
            "add-disk": self.add_disk,
            "remove-disk": self.remove_disk,
            **self._jobs.handlers(),
            **AdviseCommands(array, self._place_of_array).handlers(),
            "get": self.get,
            "set": self.set,
            "explain": self.explain,
            "peek": Peek(array.context).peek,
            "chunk-map": ChunkMap(array.context).chunk_map,
            "compare": Comparison(array).compare,
            "reshape": ReshapeCommand(array, newcomers).reshape,
            "trace": Trace(array, volumes).trace,
            **({} if events is None else {"events-test": events.test}),
        }

    def mounted(self, report: Report) -> None:
        """Set the mount's report, which `status` shows."""
        self._report = report

    def stand_beside_others(self) -> None:
        """Name the array, too, where `status` says what to type: its mount has several."""
        self._beside_others = True

    async def handle(self, name: str, arguments: dict[str, Any]) -> Result:
        """Run command *name*. Raises UsageError for a bad request, or as the command does."""
        handler = self._handlers.get(name)
        if handler is None:
            raise UsageError(f"this daemon has no command {name[:WORD_CHARS_MAX]!r}")
        check_arguments(name, handler, arguments)
        return await handler(**arguments)

    # -- reports -------------------------------------------------------------------------------

    async def status(self) -> Result:
        """Return the status of the array and of its mount."""
        return self.report()

    def report(self) -> Result:
        """Return the answer of `status`."""
        document = self._array.status()
        if self._report is not None:
            document |= self._report.as_dict()
        where = document.get("mountpoint")
        document["volumes"] = [
            {
                "name": volume.name,
                "size": volume.size_bytes,
                "path": f"{where.rstrip('/')}/{volume.name}" if where else None,
            }
            for volume in self._volumes
        ]
        place = self._place_of_array()
        return {**document, "action": advice.action({**document, "mountpoint": place})}

    def _place_of_array(self) -> str | None:
        """Return what commands take as ARRAY: the mount point, of several arrays with the name."""
        where = None if self._report is None else self._report.as_dict().get("mountpoint")
        return f"{where}:{self._array.name}" if where and self._beside_others else where

    async def stats(self, interval_s: float | None = None) -> Result:
        """Return the counters since the mount, or those of the next *interval_s* seconds."""
        if interval_s is None:
            return self._array.stats()
        if not 0 < interval_s <= INTERVAL_S_MAX:
            raise UsageError(f"an interval of {interval_s} s is out of range")
        before = statistics.snapshot(self._array)
        with self._jobs.waits():
            await trio.sleep(interval_s)
        return statistics.difference(before, statistics.snapshot(self._array))

    async def explain(
        self,
        offset: int = 0,
        length: int = 4096,
        write: bool = False,
        stripe: int | None = None,
        member: str | None = None,
    ) -> Result:
        """Return the plan of a request without executing it, or the state of *stripe*.

        With *member*, return what lies at byte *offset* of that member, and in which volume.
        """
        if member is not None:
            return self._place(member, offset)
        return self._array.explain(offset, length, write, stripe)

    def _place(self, member: str, offset: int) -> Result:
        record = self._array.membership.find(member)
        if record.role < 0:
            raise UsageError(f"{record.path_hint} is a spare: nothing lies on it yet")
        place = explain_place(self._array.context, Role(record.role), offset)
        volume, inside = volume_at(
            self._array.name, self._array.member_set.config.volumes, place["image_offset"]
        )
        return {**place, "volume": volume, "volume_offset": inside}

    # -- members -------------------------------------------------------------------------------

    async def fail_disk(
        self, member: str, lose_data: bool = False, dry_run: bool = False
    ) -> Result:
        """Fail a member as if it had an error; *lose_data* permits it even if chunks are lost."""
        if not dry_run:
            return await self._array.fail_disk(member, lose_data=lose_data)
        record = self._array.membership.find(member)
        chunks = self._require_spare_loss(record.role, lose_data)
        spares = len(self._array.member_set.spares)
        does = f"excludes role {record.role}" + (", rebuilds it onto a spare" if spares else "")
        return await reshape_cost.of_member_change(
            self._array, does, record.role if spares else None, chunks, excludes=True
        )

    async def replace_disk(
        self,
        old: str,
        new: str,
        overwrite_signature: bool = False,
        create: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Replace *old* by *new*, or by itself if it was away and is back: copy or rebuild it."""
        record = self._array.membership.find(old)
        if dry_run:
            return await cost_of_replacing(
                self._array,
                self._newcomers,
                record,
                new,
                overwrite_signature=overwrite_signature,
                may_create=create,
            )
        create_bytes = record.size_bytes if create else None
        own = own_superblock(self._array, record)
        member = await self._open(new, overwrite_signature, create_bytes, own)
        try:
            return await self._array.replace_disk(old, member)
        except RaidxError:
            await self._release(member)
            raise

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
        check_newcomers(newcomers, self._array.member_set.config.members)
        smallest = min(record.size_bytes for record in self._records())
        rebundle = self._array.rebundle
        if role is None and rebundle is not None:
            if (parity, surrogate) != (None, None):
                raise UsageError(
                    "the growth of a raidx array moves no parity: omit --parity and --surrogate"
                )
            rebundle.require_growable()
        elif role is None and self._array.copies.applies:
            if (parity, surrogate) != (None, None):
                raise UsageError("raid1 has no parity: omit --parity and --surrogate")
            self._array.copies.wider(len(members))
        elif role is None:
            layout = self._array.grow_operation.wider(len(members), way)
        if dry_run:
            sizes = [
                await self._newcomers.check(
                    path, overwrite_signature=overwrite_signature, may_create=create
                )
                for path in newcomers
            ]
            if role is None and rebundle is not None:
                return await reshape_cost.of_adding(
                    self._array, [size or smallest for size in sizes]
                )
            if role is None and self._array.copies.applies:
                return await reshape_cost.of_copying(self._array, len(members))
            if role is None:
                return await reshape_cost.of_growing(self._array, layout, way)
            vacant = [r.role for r in self._records() if r.state in ("failed", "missing")]
            does = f"adds {len(members)} as spare" + (", rebuilds onto it" if vacant else "")
            return await reshape_cost.of_member_change(
                self._array, does, vacant[0] if vacant else None
            )
        size_bytes = None
        if create:  # as small as the others; but a spare must fit every role
            unlike = role is None and rebundle is not None
            config = self._array.member_set.config
            needed = [0 if unlike else bytes_needed(config, each) for each in config.roles()]
            size_bytes = max(smallest, *needed)
        if role is None:
            return await self._grow(members, way, surrogate, overwrite_signature, size_bytes)
        added = []
        async with self._array.membership.attaching:  # two roles are rebuilt in one pass
            for path in members:
                member = await self._open(path, overwrite_signature, size_bytes)
                try:
                    added.append(await self._array.add_spare(member))
                except RaidxError:
                    await self._release(member)
                    raise
        return {"added": added}

    async def _grow(
        self,
        paths: list[str],
        way: str,
        surrogate: str | None,
        overwrite_signature: bool,
        create_bytes: int | None,
    ) -> Result:
        opened: list[Member] = []
        try:
            for path in [*paths, *([] if surrogate is None else [surrogate])]:
                opened.append(await self._open(path, overwrite_signature, create_bytes))
            if surrogate is not None:
                return await self._array.grow(opened[:-1], surrogate=opened[-1])
            return await self._array.grow(opened, way)
        except RaidxError:
            for member in opened:
                await self._release(member)
            raise

    async def remove_disk(self, member: str, dry_run: bool = False) -> Result:
        """Remove a spare, or a member whose content the others can hold."""
        if not dry_run:
            return await self._array.remove_disk(member)
        record = self._array.membership.find(member)
        if record.role >= 0 and self._array.rebundle is not None:
            return await reshape_cost.of_removing(self._array, record)
        if record.role >= 0 and self._array.copies.applies:
            self._array.copies.require_removable(record)
        elif record.role >= 0:
            return await reshape_cost.of_leaving(self._array, record)
        does = f"removes {self._array.membership.path_of(record)}"
        return await reshape_cost.of_member_change(
            self._array, does, None, excludes=record.role >= 0
        )

    async def _open(
        self, path: str, overwrite_signature: bool, create_bytes: int | None, own: Own | None = None
    ) -> Member:
        self._array.require_writable()
        return await self._newcomers.open(
            path,
            overwrite_signature=overwrite_signature,
            create_bytes=create_bytes,
            own=own,
        )

    async def _release(self, member: Member) -> None:
        """Close *member* unless it joined the array before its command failed."""
        if member not in self._array.member_set.present().values():
            await self._newcomers.release(member)

    def _records(self) -> list[Any]:
        return [record for record in self._array.member_set.config.members if record.role >= 0]

    def _require_spare_loss(self, role: int, lose_data: bool) -> int:
        """Return how many chunks losing *role* may lose. Raises as the command would."""
        if role < 0:
            raise UsageError("that member is a spare", action="use `raidx remove-disk` for it")
        return self._array.membership.require_spare(Role(role), lose_data=lose_data)

    # -- settings ------------------------------------------------------------------------------

    async def get(self, key: str | None = None) -> Result:
        """Return one setting, or all."""
        events = {} if self._events is None else await self._events.settings()
        if key is None:
            return {"settings": self._array.settings() | events}
        return {"settings": {key: events[key] if key in events else self._array.get(key)}}

    async def set(self, key: str, value: str) -> Result:
        """Change a setting, immediately and for later mounts."""
        if self._events is not None and key.startswith("events."):
            return {"settings": {key: await self._events.set(key, value)}}
        return {"settings": {key: await self._array.set(key, value)}}
