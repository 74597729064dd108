"""The volumes of one array: the table in its superblocks, and the `Volume` objects of the mount.

    create    superblocks, then shown; no other I/O, because free places read as zero
    delete    hidden, superblocks (its ranges are *wiping*); then, in the background: zeros written,
              flushed, superblocks (the ranges are free)
    resize    larger: superblocks, then the new size is shown; smaller: as delete, for the rest
    rename    superblocks, then shown

Laws:
 1. Each change is one update of the superblocks, which is all or nothing (format/configuration/
    volumes.py). Changes take turns.
 2. No range is in two volumes, nor free and in a volume.
 3. Every free byte reads as zero: a range that was written is free only after zeros are durable on
    all of it. A crash in between leaves it *wiping*, and the next start for writing continues.
 4. A volume's extents change only while its gate is closed (engine/gate.py): no request is under
    way to a range that it gives up, by whatever way it came. `_save` holds that. An open volume is
    not deleted or made smaller either, because its user still counts on it.
 5. The gate of a volume is closed before the table is locked: a write to a volume that moves waits
    for the table (transfer.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.engine.gate import Gate
from raidx_fuse.errors import (
    ArrayFailedError,
    BusyError,
    InUseError,
    JobRunningError,
    LosesDataError,
    Reason,
    UsageError,
)
from raidx_fuse.format.configuration.volumes import (
    ALIGN_BYTES,
    VOLUMES_MAX,
    Extent,
    VolumeRecord,
    VolumeTable,
)
from raidx_fuse.format.create import new_uuid
from raidx_fuse.format.regions import COUNTER_MAX
from raidx_fuse.laws import Law
from raidx_fuse.pool.allocate import (
    allocate,
    cut,
    extended,
    free_ranges,
    most_more,
    unit_bytes,
)
from raidx_fuse.pool.volume import (
    FrontEnd,
    Volume,
    allocation_of,
    check_name,
    discard_of,
    read_of,
    write_of,
)
from raidx_fuse.pool.wipe import Wiper, to_be_wiped, written_bytes

CLOSING_S, CLOSING_LOOKS = 1.0, 100  # the kernel reports the last close a moment after it


class ArrayVolumes:
    """The volumes of *array*: *volumes* in the order of their creation, shown on *front_ends*.

    A front end that is added shows the present volumes already; it is told of changes.
    """

    def __init__(self, array: Array, uuid_source: Callable[[], str] = new_uuid) -> None:
        self.array = array
        self._laws = array.member_set.laws
        self.front_ends: list[FrontEnd] = []
        self._uuid_source = uuid_source
        self._places: dict[str, Sequence[Extent]] = {}  # of the volumes, as the next one has them
        self._places_of: VolumeTable | None = VolumeTable()
        self._changes = trio.Lock()
        self.wiper = Wiper(array, self.table, self.change)
        self.wiped = self.wiper.wiped
        table = self.table()
        # one that is on its way is shown by the pool, which knows the other array (pool.py)
        self.volumes = [self._volume(one) for one in table.volumes if one.move is None]

    # -- questions -------------------------------------------------------------------------------

    def table(self) -> VolumeTable:
        """Return the table; that of an array without one has the whole image as its volume."""
        table = self.array.member_set.config.volumes
        if table is not None:
            return table
        return VolumeTable((VolumeRecord(self.array.uuid, self.array.name, None),))

    def free_bytes(self) -> int:
        """Return how many bytes a new volume could use at once."""
        return sum(extent.length for extent in self._free(self.table()))

    def most_bytes(self, volume: Volume, gained: int = 0) -> int:
        """Return how large *volume* can become, if the image becomes *gained* bytes larger."""
        table = self.table()
        if table.is_whole:
            return volume.size_bytes + gained
        extents = self.extents(volume)
        free = [] if table.exchanges else free_ranges(table.taken(), self.array.room_bytes + gained)
        held = sum(extent.length for extent in extents)
        return held + most_more(extents, free, self._unit())

    def wiping_bytes(self) -> int:
        """Return how many bytes become free when they are wiped."""
        return sum(extent.length for extent in self.table().wiping)

    def written_bytes(self, volume: Volume) -> int:
        """Return how much of *volume* was ever written, in whole chunks."""
        return written_bytes(self.array, self.extents(volume))

    def extents(self, volume: Volume) -> tuple[Extent, ...]:
        record = self.table().find(volume.uuid)
        return (Extent(0, volume.size_bytes),) if record is None else _places(record, volume)

    def _free(self, table: VolumeTable) -> list[Extent]:
        return [] if table.exchanges else self.free_in(table)

    def free_in(self, table: VolumeTable) -> list[Extent]:
        return [] if table.is_whole else free_ranges(table.taken(), self.array.room_bytes)

    def _unit(self) -> int:
        layout = self.array.context.layout
        return unit_bytes(layout.code.data_count * layout.chunk_bytes)

    # -- changes ---------------------------------------------------------------------------------

    async def create(self, name: str, size_bytes: int) -> Volume:
        """Create a volume of zeros. Raises UsageError, NoSpaceError, or as the superblocks do."""
        self.array.require_writable()
        _check_size(size_bytes)
        async with self._changes:
            table = self.table()
            self.check_new_name(name)
            if len(table.volumes) == VOLUMES_MAX:
                raise UsageError(f"an array has at most {VOLUMES_MAX} volumes", reason=Reason.LIMIT)
            extents = self.places_for(size_bytes)
            record = VolumeRecord(self._uuid_source(), name, size_bytes, extents)
            await self._save(replace(table, volumes=(*table.volumes, record)))
            volume = self._volume(record)
            self.volumes.append(volume)
            self._show(volume)
        return volume

    async def rename(self, volume: Volume, name: str) -> None:
        """Give *volume* another name. Raises UsageError."""
        self.array.require_writable()
        async with self._changes:
            self._require_present(volume)
            if name == volume.name:
                return
            self.check_new_name(name)
            await self._save(self._replaced(volume, name=name))
            self._hide(volume)
            volume.rename(name)
            self._show(volume)

    async def resize(self, volume: Volume, size_bytes: int, *, lose_data: bool = False) -> None:
        """Give *volume* another size. Raises UsageError, BusyError, NoSpaceError.

        *lose_data* permits a size that cuts off chunks that were written.
        """
        self.array.require_writable()
        _check_size(size_bytes)
        if size_bytes < volume.size_bytes:
            await self._wait_until_unused(volume)
        async with AsyncExitStack() as table_locked:
            async with volume.gate.closed(self.array.member_set.io_timeout_s):
                await table_locked.enter_async_context(self._changes)
                self._require_present(volume)
                if size_bytes > volume.size_bytes:
                    await self._enlarge(volume, size_bytes)
                elif size_bytes < volume.size_bytes:
                    with self._hidden(volume):
                        await self._shrink(volume, size_bytes, lose_data)
            # Notifying the kernel may take a moment; requests continue meanwhile.
            await volume.resize(max(size_bytes, volume.size_bytes))

    async def delete(self, volume: Volume, *, lose_data: bool = False) -> None:
        """Delete *volume*. Raises UsageError, BusyError.

        *lose_data* permits it even if something was written. The places become free when they are
        wiped, in the background.
        """
        self.array.require_writable()
        await self._wait_until_unused(volume)
        async with volume.gate.closed(self.array.member_set.io_timeout_s), self._changes:
            self._require_present(volume)
            self.require_loss(volume, 0, lose_data=lose_data)
            with self._hidden(volume):
                table, extents = self.table(), self.extents(volume)
                rest = tuple(r for r in table.volumes if r.uuid != volume.uuid)
                wiping = (*table.wiping, *to_be_wiped(self.array, extents))
                await self._save(replace(table, volumes=rest, wiping=wiping))
                self.volumes.remove(volume)
                volume.end()
        self.wiper.ask()

    def require_loss(self, volume: Volume, size_bytes: int, *, lose_data: bool) -> int:
        """Return how many written bytes a size of *size_bytes* (0: none) cuts off.

        Raises UsageError if there are any, unless *lose_data*.
        """
        _, off = cut(self.extents(volume), size_bytes)
        written = written_bytes(self.array, off)
        if written and not lose_data:
            verb = "shrink" if size_bytes else "delete"
            raise LosesDataError(
                f"to {verb} volume {volume.name} loses {written} bytes that were written",
                action="--lose-data accepts it",
            )
        return written

    def check_new_name(self, name: str) -> None:
        """Raise UsageError unless a new volume can have *name*."""
        check_name(name)
        if any(record.name == name for record in self.table().volumes):
            raise UsageError(
                f"there is a volume {name} already",
                action="choose another name",
                reason=Reason.EXISTS,
            )

    async def _enlarge(self, volume: Volume, size_bytes: int) -> None:
        table = self.table()
        if table.is_whole and size_bytes <= self.array.context.layout.size_bytes:
            await self.array.larger_members.limit_image(size_bytes)
            return
        self._require_table(table, enlarging=True)
        record = table.find(volume.uuid)
        assert record is not None
        held = sum(extent.length for extent in record.extents)
        extents = record.extents
        if size_bytes > held:
            extents = extended(extents, size_bytes - held, self._free(table), self._unit())
        await self._save(self._replaced(volume, size_bytes=size_bytes, extents=extents))
        self.bind(volume)

    async def _shrink(self, volume: Volume, size_bytes: int, lose_data: bool) -> None:
        kept, off = cut(self.extents(volume), size_bytes)
        self.require_loss(volume, size_bytes, lose_data=lose_data)
        table = self._replaced(volume, size_bytes=size_bytes, extents=kept)
        await self._save(replace(table, wiping=(*table.wiping, *to_be_wiped(self.array, off))))
        await volume.resize(size_bytes)
        self.bind(volume)
        self.wiper.ask()

    def _replaced(self, volume: Volume, **changes: Any) -> VolumeTable:
        table = self.table()
        records = (replace(r, **changes) if r.uuid == volume.uuid else r for r in table.volumes)
        return replace(table, volumes=tuple(records))

    async def change(
        self, change: Callable[[VolumeTable], VolumeTable], *, asked: bool = False
    ) -> None:
        """Change the table by *change*, when it is its turn. Raises as the superblocks do.

        *asked*: by a user, so that it leaves room for changes that cannot be refused.
        """
        async with self._changes:
            await self._save(change(self.table()), asked=asked)

    async def _save(self, table: VolumeTable, *, asked: bool = True) -> None:
        """Write *table* into the superblocks: the commit point of every change.

        Raises BusyError if places that it has added are about to leave with a member, LawError if
        a request is under way to a volume whose extents change, or ranges meet. If a member does
        not take it, the table is as before: volumes are shown as the table has them.
        """
        for volume in self.volumes:
            record = table.find(volume.uuid)
            if record is None or _places(record, volume) != self.extents(volume):
                volume.gate.require_empty("a change of extents")
        for one, other in pairwise(table.taken()):
            if one.end > other.offset:
                raise self._laws.broken(Law.RANGES, f"{one} and {other}")
        if table.end() > max(self.array.room_bytes, self.table().end()):
            raise BusyError(f"array {self.array.name} is losing a member", action="try again")
        member_set = self.array.member_set
        before = member_set.config.volumes
        try:
            await member_set.update(lambda config: replace(config, volumes=table), asked=asked)
        except ArrayFailedError:  # some superblocks may have it: nothing is acknowledged before
            member_set.change(lambda config: replace(config, volumes=before))
            member_set.publish_soon()  # all have what the volumes are shown as
            raise

    def places_for(self, size_bytes: int, more: Sequence[Extent] = ()) -> tuple[Extent, ...]:
        """Return extents for *size_bytes*; *more* count as free. UsageError, NoSpaceError."""
        table = self.table()
        self._require_table(table)
        taken = [extent for extent in table.taken() if extent not in more]
        return allocate(free_ranges(taken, self.array.room_bytes), size_bytes, self._unit())

    def _require_table(self, table: VolumeTable, *, enlarging: bool = False) -> None:
        if table.exchanges:
            raise JobRunningError(
                f"what is free on array {self.array.name} is for volumes that change places",
                action="wait for the job, or cancel it",
            )
        if table.is_whole:
            (whole,) = table.volumes
            action = f"shrink it: raidx volume resize MOUNT {whole.name} SIZE"
            if enlarging:
                self.array.larger_members.require_no_limit()
                action = "add a disk: raidx add-disk; or enlarge all disks: raidx resize ARRAY max"
            raise UsageError(
                f"volume {whole.name} is the whole array {self.array.name}: nothing is free",
                action=action,
                reason=Reason.ARRAY_FULL,
            )

    def _require_present(self, volume: Volume) -> None:
        """Raise UsageError, or BusyError if *volume* is on its way to another array."""
        if volume not in self.volumes:
            raise UsageError(
                f"volume {volume.name} was deleted, or has left array {self.array.name}",
                action="see raidx volume list",
                reason=Reason.NO_SUCH_VOLUME,
            )
        record = self.table().find(volume.uuid)
        if record is not None and record.move is not None:
            raise JobRunningError(
                f"volume {volume.name} is on its way to array {record.move.name}",
                action="wait until it is there, or cancel the job: raidx job ARRAY cancel",
            )

    # -- front ends ------------------------------------------------------------------------------

    def _volume(self, record: VolumeRecord) -> Volume:
        array = self.array
        gate = Gate(f"volume {record.name}", self._laws)
        whole = record.size_bytes is None
        extents = (Extent(0, array.size_bytes),) if whole else record.extents
        return Volume(
            record.name,
            array.size_bytes if record.size_bytes is None else record.size_bytes,
            read=read_of(array.read_for, extents, gate),
            write=write_of(array.write_for, extents, gate),
            flush=array.flush,
            read_only=array.read_only,
            uuid=record.uuid,
            discard=discard_of(array.discard, extents, partial(self._require_place, record.uuid)),
            allocation=allocation_of(array.allocation, extents),
            gate=gate,
        )

    def bind(self, volume: Volume) -> None:
        """Let *volume* read and write this array alone, where the table has it."""
        array, extents = self.array, self.extents(volume)
        volume.bind(
            read_of(array.read_for, extents, volume.gate),
            write_of(array.write_for, extents, volume.gate),
            array.flush,
            discard_of(array.discard, extents, partial(self._require_place, volume.uuid)),
            allocation_of(array.allocation, extents),
        )

    def _require_place(self, uuid: str, offset: int, length: int) -> None:
        """Raise LawError unless the table has these bytes of the image for the volume *uuid*."""
        table = self.array.member_set.config.volumes
        if table is not self._places_of:
            whole = (Extent(0, COUNTER_MAX),)
            self._places_of, records = table, self.table().volumes
            self._places = {r.uuid: whole if r.size_bytes is None else r.extents for r in records}
        for start, size in self._places.get(uuid, ()):
            if start <= offset and offset + length <= start + size:
                return
        raise self._laws.broken(Law.DISCARD, f"bytes {offset} .. {offset + length}")

    async def note_size(self) -> None:
        """Take the new size of the array: that of its volume if that is the whole image."""
        if self.table().is_whole:
            (volume,) = self.volumes
            await volume.resize(self.array.size_bytes)

    def _show(self, volume: Volume) -> None:
        for front_end in self.front_ends:
            front_end.show(volume)

    def _hide(self, volume: Volume) -> None:
        for front_end in self.front_ends:
            front_end.hide(volume)

    async def _wait_until_unused(self, volume: Volume) -> None:
        """Wait a moment for the last close of *volume*. Raises BusyError if it is open."""
        for _ in range(CLOSING_LOOKS):
            if not volume.opened:
                return
            await trio.sleep(CLOSING_S / CLOSING_LOOKS)
        self._require_unused(volume)

    def _require_unused(self, volume: Volume) -> None:
        if volume.opened:
            raise InUseError(f"volume {volume.name} is in use", action="close it and try again")

    @contextmanager
    def _hidden(self, volume: Volume) -> Iterator[None]:
        """Hide *volume* inside the block; show it again unless it was deleted there.

        Raises BusyError if it is open.
        """
        self._require_unused(volume)
        self._hide(volume)  # no await since the check: the volume is not open
        try:
            yield
        finally:
            if volume in self.volumes:
                self._show(volume)


def _places(record: VolumeRecord, volume: Volume) -> tuple[Extent, ...]:
    """Return where the volume of *record* lies; one of the whole image has no extents."""
    return (Extent(0, volume.size_bytes),) if record.size_bytes is None else record.extents


@asynccontextmanager
async def open_volumes(array: Array) -> AsyncIterator[ArrayVolumes]:
    """Yield the volumes of *array*; wipe in the background until the block ends."""
    volumes = ArrayVolumes(array)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(volumes.wiper.run)
        yield volumes
        nursery.cancel_scope.cancel()


def _check_size(size_bytes: int) -> None:
    if size_bytes <= 0 or size_bytes % ALIGN_BYTES:
        raise UsageError(
            f"a volume cannot have {size_bytes} bytes", action=f"use a multiple of {ALIGN_BYTES}"
        )
