"""The commands of a mount: those of volumes and arrays here, and those of each of its arrays.

A command about one array (`stats`, `scrub`, ...) has the argument *in_array*, its name or UUID, if
the mount has several. On a command line that is MOUNT:ARRAY.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import trio

from raidx_fuse.array.estimate import redundancy_during
from raidx_fuse.array.status import redundancy_left, state
from raidx_fuse.daemon.commands.arguments import check_arguments
from raidx_fuse.daemon.commands.commands import Commands
from raidx_fuse.errors import BusyError, UsageError
from raidx_fuse.pool.companions import forget
from raidx_fuse.pool.monitor import VolumeCounters
from raidx_fuse.pool.move import Planned, cost, job_of, plan_move, plan_swap, start
from raidx_fuse.pool.pool import Pool, Unshown
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes
from raidx_fuse.pool.wipe import written_bytes

Result = dict[str, Any]
WORST = ("failed", "degraded", "rebuilding", "restoring")
"""States that the status of a mount shows first."""


class Part(NamedTuple):
    """One array of a mount: its volumes and its commands."""

    volumes: ArrayVolumes
    commands: Commands


class PoolCommands:
    """The commands of a mount of *parts*. *users* names the loop devices on a file of the mount.

    *pool* knows the moves between them (None: there is none). `handle` is a
    `control_server.Handler`.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        users: Callable[[str], list[str]],
        pool: Pool | None = None,
    ) -> None:
        self._parts = parts
        self._pool = pool or Pool([part.volumes for part in parts])
        self._users = users
        self._naming = trio.Lock()  # names are unique in the mount
        self._former: dict[str, list[str]] = {}  # names of renamed volumes, by UUID
        if len(parts) > 1:
            for part in parts:
                part.commands.beside_others = True
        self._handlers: dict[str, Callable[..., Awaitable[Result]]] = {
            "volume-create": self.create,
            "volume-list": self.list,
            "volume-resize": self.resize,
            "volume-rename": self.rename,
            "volume-delete": self.delete,
            "volume-move": self.move,
            "volume-swap": self.swap,
            "volume-trim": self.trim,
            "array-list": self.array_list,
            "array-forget": self.array_forget,
        }

    async def handle(self, name: str, arguments: dict[str, Any]) -> Result:
        """Run command *name*. Raises UsageError for a bad request, or as the command does."""
        arguments = dict(arguments)
        ref = arguments.pop("in_array", None)
        if ref is not None and not isinstance(ref, str):
            raise UsageError(f"{name[:100]}: in_array must be a name or a UUID")
        handler = self._handlers.get(name)
        if handler is not None:
            if ref is not None and name == "volume-create":
                arguments.setdefault("on", ref)
            check_arguments(name, handler, arguments)
            return await handler(**arguments)
        if ref is None and len(self._parts) > 1:
            if name == "status" and not arguments:
                return self.report()
            raise UsageError(
                f"this mount has {len(self._parts)} arrays", action=f"name one: {self._names()}"
            )
        part = self._parts[0] if ref is None else self._part(ref)
        if name != "stats":
            return await part.commands.handle(name, arguments)
        before = _counters(part) if arguments.get("interval_s") is not None else {}
        result = await part.commands.handle(name, arguments)
        return {**result, "volumes": _counted(part, before)}

    def report(self) -> Result:
        """Return the status of the mount: that of its array; of several, the worst, and all."""
        reports = [part.commands.report() for part in self._parts]
        if len(reports) == 1:
            return reports[0]
        first = min(reports, key=lambda report: _rank(report["state"]))
        volumes = [volume for report in reports for volume in report["volumes"]]
        return {**first, "volumes": volumes, "arrays": reports}

    # -- volumes ---------------------------------------------------------------------------------

    async def create(self, name: str, size: int, on: str | None = None) -> Result:
        """Create a volume of *size* bytes; *on* names its array, else the one with most space."""
        part = max(self._parts, key=lambda part: part.volumes.free_bytes())
        if on is not None:
            part = self._part(on)
        async with self._naming:
            self._check_new_name(name)
            volume = await part.volumes.create(name, size)
        return self._described(part, volume)

    async def list(self) -> Result:
        """Return the volumes, and those that cannot be shown now."""
        return {
            "volumes": [
                self._described(part, volume)
                for part in self._parts
                for volume in part.volumes.volumes
            ],
            "unshown": [
                {
                    "name": one.record.name,
                    "uuid": one.record.uuid,
                    "size": one.record.size_bytes,
                    "array": one.volumes.array.name,
                    "why": one.why,
                }
                for one in self._pool.unshown
            ],
        }

    async def rename(self, volume: str, name: str) -> Result:
        part, found = self._find(volume)
        async with self._naming:
            if name != found.name:
                self._check_new_name(name)
            former = found.name
            await part.volumes.rename(found, name)
            self._former.setdefault(found.uuid, []).append(former)
        return self._described(part, found)

    async def resize(
        self,
        volume: str,
        size: int | None = None,
        lose_data: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Give a volume another size; *lose_data* permits to cut off what was written.

        None is all that its array has, also what larger members have behind their data.
        """
        part, found = self._find(volume)
        lost, more = 0, ""
        if size is None:
            array = part.volumes.array
            larger = array.larger_members.plan() if array.larger_members.usable_bytes() else None
            if larger is not None and not dry_run:
                await array.larger_members.use()
                larger = None
            gained = 0 if larger is None else larger.size_bytes - array.size_bytes
            size = part.volumes.most_bytes(found, gained)
            if larger is not None:
                more = f"uses {larger.member_bytes} bytes more of each member, "
        if 0 < size < found.size_bytes:
            lost = part.volumes.require_loss(found, size, lose_data=lose_data)
        if dry_run:
            verb = "shrinks" if size < found.size_bytes else "enlarges"
            return _dry_run(part, f"{more}{verb} volume {found.name} to {size} bytes", lost)
        try:
            await part.volumes.resize(found, size, lose_data=lose_data)
        except BusyError as error:
            raise self._named(part, found, error) from None
        return self._described(part, found)

    async def delete(self, volume: str, lose_data: bool = False, dry_run: bool = False) -> Result:
        """Delete a volume; *lose_data* permits it even if it was written to."""
        unshown = self._pool.find_unshown(volume)
        if unshown is not None:
            return await self._forget(unshown, lose_data, dry_run)
        part, found = self._find(volume)
        lost = part.volumes.require_loss(found, 0, lose_data=lose_data)
        if dry_run:
            return _dry_run(part, f"deletes volume {found.name}", lost)
        try:
            await part.volumes.delete(found, lose_data=lose_data)
        except BusyError as error:
            raise self._named(part, found, error) from None
        return {"deleted": found.name, "free": part.volumes.free_bytes(), "loses": lost}

    async def _forget(self, unshown: Unshown, lose_data: bool, dry_run: bool) -> Result:
        """Delete what is here of a volume that cannot be shown."""
        name, volumes = unshown.record.name, unshown.volumes
        if not lose_data:
            raise UsageError(unshown.text, action="--lose-data deletes what is here of it")
        if dry_run:
            lost = written_bytes(volumes.array, unshown.record.extents)
            return _dry_run(self._part(volumes.array.uuid), f"deletes volume {name}", lost)
        await self._pool.forget(unshown)
        return {"deleted": name, "free": volumes.free_bytes(), "loses": 0}

    async def move(
        self,
        volume: str,
        to: str,
        accept_degraded: bool = False,
        lose_redundancy: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Start to move a volume to array *to*, which may lack members with *accept_degraded*.

        It may survive fewer losses than the array of the volume with *lose_redundancy*.
        """
        planned = plan_move(self._pool, volume, to, accept_degraded=accept_degraded)
        return await self._start(planned, lose_redundancy, dry_run)

    async def swap(
        self,
        first: str,
        second: str,
        accept_degraded: bool = False,
        lose_redundancy: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Start to let two volumes change places; the options are those of `move`."""
        planned = plan_swap(self._pool, first, second, accept_degraded=accept_degraded)
        return await self._start(planned, lose_redundancy, dry_run)

    async def _start(self, planned: Planned, lose_redundancy: bool, dry_run: bool) -> Result:
        if dry_run:
            return cost(planned)
        if not lose_redundancy:
            _require_as_redundant(planned)
        job = await start(self._pool, planned)
        return {"job": job, "does": planned.does, "in_array": planned.legs[0].source.array.name}

    async def trim(
        self,
        offset: int,
        length: int,
        volume: str | None = None,
        lose_data: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Discard a range of a volume (None: the only one): it reads as zeros afterwards."""
        volumes = [one.name for part in self._parts for one in part.volumes.volumes]
        if volume is None and len(volumes) != 1:
            raise UsageError(
                f"this mount has {len(volumes)} volumes", action=f"name one: {', '.join(volumes)}"
            )
        part, found = self._find(volumes[0] if volume is None else volume)
        if not 0 <= offset <= offset + length <= found.size_bytes:
            raise UsageError(f"volume {found.name} has bytes 0 to {found.size_bytes} only")
        written = _written(found, offset, length)
        lost = sum(end - begin for begin, end in written)
        if dry_run:
            return _dry_run(part, f"discards {length} bytes of volume {found.name}", lost)
        if lost and not lose_data:
            raise UsageError(
                f"to discard that of volume {found.name} loses {lost} bytes that were written",
                action="--lose-data accepts it",
            )
        await found.discard(offset, length)
        await found.flush()
        # What others have written meanwhile was not given back, and what was not written neither.
        left = _common(written, _written(found, offset, length))
        return {"volume": found.name, "discarded": length, "loses": lost, "given_back": lost - left}

    async def array_list(self) -> Result:
        """Return the arrays of the mount, with their free space, and those that are absent."""
        return {
            "arrays": [_array(part.volumes) for part in self._parts],
            "absent": [one._asdict() for one in self._pool.absent],
        }

    async def array_forget(self, name: str) -> Result:
        """Do not name any more an array that was mounted with these and is absent."""
        gone = await forget(self._pool, name)
        return {"forgotten": gone.name, "uuid": gone.uuid}

    # -- names -----------------------------------------------------------------------------------

    def _part(self, ref: str) -> Part:
        for part in self._parts:
            if ref in (part.volumes.array.name, part.volumes.array.uuid):
                return part
        raise UsageError(f"there is no array {ref[:100]} here; there is {self._names()}")

    def _names(self) -> str:
        return ", ".join(part.volumes.array.name for part in self._parts)

    def _find(self, ref: str) -> tuple[Part, Volume]:
        volumes, volume = self._pool.find(ref)
        return self._part(volumes.array.uuid), volume

    def _check_new_name(self, name: str) -> None:
        for part in self._parts:
            part.volumes.check_new_name(name)

    def _path(self, part: Part, volume: Volume) -> str | None:
        where = part.commands.report().get("mountpoint")
        return f"{where.rstrip('/')}/{volume.name}" if where else None

    def _described(self, part: Part, volume: Volume) -> Result:
        described = {
            **part.volumes.describe(volume),
            "array": part.volumes.array.name,
            "path": self._path(part, volume),
        }
        transfer = self._pool.transfers.get(volume.uuid)
        if transfer is not None and not transfer.arrived:
            job = job_of(self._pool, volume.uuid)
            described["moving"] = {
                "to": transfer.target.array.name,
                "job": job.job_id if job is not None else None,
                "watermark": transfer.saved,
                "going_back": transfer.back,
            }
        return described

    def _named(self, part: Part, volume: Volume, error: BusyError) -> BusyError:
        """Return *error*, naming the loop devices on *volume* if there are any."""
        path = self._path(part, volume)
        if path is None:
            return error
        folder = path.removesuffix(volume.name)
        # The kernel knows the image of a loop device by the name that it had then.
        names = [volume.name, *self._former.get(volume.uuid, ())]
        devices = sorted({one for name in names for one in self._users(folder + name)})
        if not devices:
            return error
        return BusyError(
            f"volume {volume.name} is in use by {', '.join(devices)}",
            action=f"detach it: losetup -d {devices[0]}",
        )


def _require_as_redundant(planned: Planned) -> None:
    """Raise UsageError if a volume would get to an array that survives fewer losses than its own.

    Plans of the pool itself obey `balance.redundancy`.
    """
    own: dict[str, int] = {}
    for leg in planned.legs:
        before = own.setdefault(leg.volume.uuid, leg.source.array.context.code.tolerance)
        after = leg.target.array.context.code.tolerance
        if after < before:
            raise UsageError(
                f"array {leg.target.array.name} survives fewer losses than that of volume "
                f"{leg.volume.name}: {after}, not {before}",
                action="accept this with --lose-redundancy",
            )


def _rank(word: str) -> int:
    return WORST.index(word) if word in WORST else len(WORST)


def _counters(part: Part) -> dict[Volume, VolumeCounters]:
    """Return what each volume of *part* was asked for since it was opened."""
    return {
        volume: VolumeCounters(volume.reads, volume.writes, volume.read_bytes, volume.write_bytes)
        for volume in part.volumes.volumes
    }


def _counted(part: Part, before: dict[Volume, VolumeCounters]) -> list[Result]:
    """Return the counters of each volume of *part*, less those *before*."""
    found = []
    for volume, after in _counters(part).items():
        earlier = before.get(volume, VolumeCounters())
        numbers = (new - old for new, old in zip(after, earlier, strict=True))
        found.append({"name": volume.name, **dict(zip(after._fields, numbers, strict=True))})
    return found


def _array(volumes: ArrayVolumes) -> Result:
    array = volumes.array
    return {
        "name": array.name,
        "uuid": array.uuid,
        "layout": array.member_set.config.layout,
        "state": state(array),
        "redundancy_left": redundancy_left(array),
        "size": array.size_bytes,
        "free": volumes.free_bytes(),
        "unused_bytes": array.larger_members.unused_bytes(),
        "wiping": volumes.wiping_bytes(),
        "volumes": [volume.name for volume in volumes.volumes],
    }


def _dry_run(part: Part, does: str, lost: int) -> Result:
    return {
        "dry_run": True,
        "does": does,
        "loses": lost,
        **{"bytes_read": 0, "bytes_written": lost, "bytes_moved": 0, "seconds": 0.0},
        "redundancy_left": redundancy_left(part.volumes.array),
        "redundancy_reduced": False,
        "redundancy_reduced_seconds": 0.0,
        "redundancy": redundancy_during(redundancy_left(part.volumes.array)),
    }


def _written(volume: Volume, offset: int, length: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the written parts of a range of *volume*, in order."""
    parts, at = [], offset
    for size, written in volume.allocation(offset, length):
        if written:
            parts.append((at, at + size))
        at += size
    return parts


def _common(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> int:
    """Return how many bytes are in both, each (begin, end) in order."""
    common = a = b = 0
    while a < len(first) and b < len(second):
        begin, end = max(first[a][0], second[b][0]), min(first[a][1], second[b][1])
        common += max(0, end - begin)
        if first[a][1] <= second[b][1]:
            a += 1
        else:
            b += 1
    return common
