"""The commands of volumes, and those that list the arrays of a mount."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from raidx_fuse.array.status import state
from raidx_fuse.documents import (
    Deleted,
    Forgotten,
    LosingPlan,
    MovePlan,
    Moving,
    PoolArray,
    PoolArrays,
    Trimmed,
    VolumeDetails,
    Volumes,
)
from raidx_fuse.errors import (
    AmbiguousError,
    BusyError,
    InUseError,
    LosesDataError,
    Reason,
    UsageError,
)
from raidx_fuse.jobs.costs import redundancy_kept, redundancy_left
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.move import Planned, cost, job_of, plan_move, plan_swap, start
from raidx_fuse.pool.other_arrays import forget
from raidx_fuse.pool.pool import Pool, Unshown
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.wipe import written_bytes


class VolumeCommands:
    """The commands of the volumes of *pool*.

    *path_of* returns the path of a volume's file, None without a mount point; *users* names the
    loop devices on such a file.
    """

    def __init__(
        self,
        pool: Pool,
        path_of: Callable[[Volume], str | None],
        users: Callable[[str], list[str]],
    ) -> None:
        self._pool = pool
        self._path_of = path_of
        self._users = users
        self._naming = trio.Lock()  # names are unique in the mount
        self._former: dict[str, list[str]] = {}  # names of renamed volumes, by UUID

    # -- volumes ---------------------------------------------------------------------------------

    async def create(
        self, name: str, size: int, on: str | None = None, in_array: str | None = None
    ) -> VolumeDetails:
        """Create a volume of *size* bytes.

        *on*, else *in_array* names its array; without both it is the one with most space.
        """
        ref = in_array if on is None else on
        volumes = max(self._pool.arrays, key=lambda one: one.free_bytes())
        if ref is not None:
            volumes = self._pool.array(ref)
        async with self._naming:
            self._check_new_name(name)
            volume = await volumes.create(name, size)
        return self._described(volumes, volume)

    async def list(self) -> Volumes:
        """Return the volumes, and those that cannot be shown now."""
        return {
            "volumes": [
                self._described(volumes, volume)
                for volumes in self._pool.arrays
                for volume in volumes.volumes
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

    async def rename(self, volume: str, name: str) -> VolumeDetails:
        volumes, found = self._pool.find(volume)
        async with self._naming:
            if name != found.name:
                self._check_new_name(name)
            former = found.name
            await volumes.rename(found, name)
            self._former.setdefault(found.uuid, []).append(former)
        return self._described(volumes, found)

    async def resize(
        self,
        volume: str,
        size: int | None = None,
        lose_data: bool = False,
        dry_run: bool = False,
    ) -> VolumeDetails | LosingPlan:
        """Give a volume another size; *lose_data* permits to cut off what was written.

        None is all that its array has, also what is behind the limit that the image was made with,
        and what larger members have behind their data.
        """
        volumes, found = self._pool.find(volume)
        lost, more = 0, ""
        if size is None:
            array = volumes.array
            members = array.larger_members
            gained = lifted = members.limited_bytes()
            if gained and not dry_run:
                await members.limit_image(None)
                gained = 0
            more_fits = members.usable_bytes() or (not lifted and members.is_behind_log())
            larger = members.plan() if more_fits else None
            if larger is not None and not dry_run:
                await array.larger_members.use()
                larger = None
            gained += 0 if larger is None else larger.size_bytes - array.size_bytes
            size = volumes.most_bytes(found, gained)
            if size == found.size_bytes:
                members.require_no_limit()
            if larger is not None:
                more = f"uses {larger.member_bytes} bytes more of each member, "
        if 0 < size < found.size_bytes:
            lost = volumes.require_loss(found, size, lose_data=lose_data)
        if dry_run:
            verb = "shrinks" if size < found.size_bytes else "enlarges"
            return _dry_run(volumes, f"{more}{verb} volume {found.name} to {size} bytes", lost)
        try:
            await volumes.resize(found, size, lose_data=lose_data)
        except BusyError as error:
            raise self._named(found, error) from None
        return self._described(volumes, found)

    async def delete(
        self, volume: str, lose_data: bool = False, dry_run: bool = False
    ) -> Deleted | LosingPlan:
        """Delete a volume; *lose_data* permits it even if it was written to."""
        unshown = self._pool.find_unshown(volume)
        if unshown is not None:
            return await self._forget(unshown, lose_data, dry_run)
        volumes, found = self._pool.find(volume)
        lost = volumes.require_loss(found, 0, lose_data=lose_data)
        if dry_run:
            return _dry_run(volumes, f"deletes volume {found.name}", lost)
        try:
            await volumes.delete(found, lose_data=lose_data)
        except BusyError as error:
            raise self._named(found, error) from None
        return {"deleted": found.name, "free": volumes.free_bytes(), "loses": lost}

    async def _forget(
        self, unshown: Unshown, lose_data: bool, dry_run: bool
    ) -> Deleted | LosingPlan:
        """Delete what is here of a volume that cannot be shown."""
        name, volumes = unshown.record.name, unshown.volumes
        if not lose_data:
            raise LosesDataError(unshown.text, action="--lose-data deletes what is here of it")
        if dry_run:
            lost = written_bytes(volumes.array, unshown.record.extents)
            return _dry_run(volumes, f"deletes volume {name}", lost)
        await self._pool.forget(unshown)
        return {"deleted": name, "free": volumes.free_bytes(), "loses": 0}

    async def move(
        self,
        volume: str,
        to: str,
        accept_degraded: bool = False,
        lose_redundancy: bool = False,
        dry_run: bool = False,
    ) -> Moving | MovePlan:
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
    ) -> Moving | MovePlan:
        """Start to let two volumes change places; the options are those of `move`."""
        planned = plan_swap(self._pool, first, second, accept_degraded=accept_degraded)
        return await self._start(planned, lose_redundancy, dry_run)

    async def _start(
        self, planned: Planned, lose_redundancy: bool, dry_run: bool
    ) -> Moving | MovePlan:
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
    ) -> Trimmed | LosingPlan:
        """Discard a range of a volume (None: the only one): it reads as zeros afterwards."""
        names = [one.name for volumes in self._pool.arrays for one in volumes.volumes]
        if volume is None and len(names) != 1:
            raise AmbiguousError(
                f"this mount has {len(names)} volumes", action=f"name one: {', '.join(names)}"
            )
        volumes, found = self._pool.find(names[0] if volume is None else volume)
        if not 0 <= offset <= offset + length <= found.size_bytes:
            raise UsageError(f"volume {found.name} has bytes 0 to {found.size_bytes} only")
        written = _written(found, offset, length)
        lost = sum(end - begin for begin, end in written)
        if dry_run:
            return _dry_run(volumes, f"discards {length} bytes of volume {found.name}", lost)
        if lost and not lose_data:
            raise LosesDataError(
                f"to discard that of volume {found.name} loses {lost} bytes that were written",
                action="--lose-data accepts it",
            )
        await found.discard(offset, length)
        await found.flush()
        # What others have written meanwhile was not given back, and what was not written neither.
        left = _common(written, _written(found, offset, length))
        return {"volume": found.name, "discarded": length, "loses": lost, "given_back": lost - left}

    async def array_list(self) -> PoolArrays:
        """Return the arrays of the mount, with their free space, and those that are absent."""
        return {
            "arrays": [_array(volumes) for volumes in self._pool.arrays],
            "absent": [
                {
                    "uuid": one.uuid,
                    "name": one.name,
                    "volumes": list(one.volumes),
                    "total": one.total,
                }
                for one in self._pool.absent
            ],
        }

    async def array_forget(self, name: str) -> Forgotten:
        """Do not name any more an array that was mounted with these and is absent."""
        gone = await forget(self._pool, name)
        return {"forgotten": gone.name, "uuid": gone.uuid}

    # -- names -----------------------------------------------------------------------------------

    def _check_new_name(self, name: str) -> None:
        for volumes in self._pool.arrays:
            volumes.check_new_name(name)

    def _described(self, volumes: ArrayVolumes, volume: Volume) -> VolumeDetails:
        described: VolumeDetails = {
            "name": volume.name,
            "uuid": volume.uuid,
            "size": volume.size_bytes,
            "written": volumes.written_bytes(volume),
            "extents": [list(extent) for extent in volumes.extents(volume)],
            "open": volume.opened,
            "array": volumes.array.name,
            "path": self._path_of(volume),
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

    def _named(self, volume: Volume, error: BusyError) -> BusyError:
        """Return *error*, naming the loop devices on *volume* if there are any."""
        path = self._path_of(volume)
        if path is None:
            return error
        folder = path.removesuffix(volume.name)
        # The kernel knows the image of a loop device by the name that it had then.
        names = [volume.name, *self._former.get(volume.uuid, ())]
        devices = sorted({one for name in names for one in self._users(folder + name)})
        if not devices:
            return error
        return InUseError(
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
                reason=Reason.LOSES_REDUNDANCY,
            )


def _array(volumes: ArrayVolumes) -> PoolArray:
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


def _dry_run(volumes: ArrayVolumes, does: str, lost: int) -> LosingPlan:
    return {
        "dry_run": True,
        "does": does,
        "loses": lost,
        "bytes_read": 0,
        "bytes_written": lost,
        "bytes_moved": 0,
        "seconds": 0.0,
        **redundancy_kept(volumes.array),
    }


def _written(volume: Volume, offset: int, length: int) -> list[tuple[int, int]]:
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
