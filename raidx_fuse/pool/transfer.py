"""A volume on its way between two arrays: which of them holds each byte, in memory and durably.

    byte   0 ......... saved ........ position ....... window ........ size      going on
           [ target   | on both      | source        | source, closed | source ]
           0 ......... window ....... position ........ saved ........ size      going back
           [ target   | target, closed | on both      | source               ]

The *watermark* is the durable `saved`, in the mark of the target's volume table. Laws:

 1. A move begins in the table of the target, then in that of the source. It ends, when the target
    has everything, with one update of the target's table: the volume is its own from then on, and
    `arrived` keeps the UUID of the move until the source has given its places up. If it was
    cancelled, it ends with one update of the source's table, when the watermark is 0.
 2. `save` flushes the array that the window was copied to before the watermark passes it.
 3. Bytes between *saved* and *position* are the same on both arrays: they are read from where they
    were, and a write there waits for `save`.
 4. A write into the *window* waits until it is copied, and the copy waits for writes in flight.
 5. Places are given up, to be wiped, when the record that takes them away is durable and no read
    of them is in flight.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from raidx_fuse.engine.in_flight import InFlight
from raidx_fuse.errors import BusyError, RaidxError
from raidx_fuse.format.configuration.volumes import (
    SOURCE,
    TARGET,
    Arrived,
    Extent,
    MoveMark,
    VolumeRecord,
    VolumeTable,
)
from raidx_fuse.pool.volume import Volume, read_of, write_of
from raidx_fuse.pool.volume_table import ArrayVolumes
from raidx_fuse.pool.wipe import to_be_wiped

NOWHERE = (0, 0)
COUNT_BYTES = 1 << 30


class Transfer:
    """The move *uuid* of a volume from *source* to *target*, as their tables name it.

    *saved* and *position* are offsets in the volume, see the module; *back*: the move was
    cancelled. *awaited*: a write waits for the window. *requests* counts those of users.
    *arrived*: the target's table says that the volume is its own. *resumed*: the move began in an
    earlier mount.
    """

    def __init__(
        self,
        source: ArrayVolumes,
        target: ArrayVolumes,
        here: VolumeRecord,
        there: VolumeRecord,
        *,
        resumed: bool = False,
    ) -> None:
        assert there.move is not None
        assert there.size_bytes is not None
        self.source = source
        self.target = target
        self.uuid = there.move.uuid
        self.volume_uuid = there.uuid
        self.size = there.size_bytes
        self.places = here.extents
        self.new_places = there.extents
        self.saved = self.position = there.move.watermark
        self.back = there.move.back
        self.resumed = resumed
        self.arrived = False
        self.requests = 0
        self.awaited = False
        self._read_here = read_of(source.array.read, here.extents)
        self._write_here = write_of(source.array.write, here.extents)
        self._read_there = read_of(target.array.read, there.extents)
        self._write_there = write_of(target.array.write, there.extents)
        self._window = NOWHERE
        self._moved = trio.Event()
        self._reads, self._writes = InFlight(), InFlight()
        self._saving = trio.Lock()
        self.volume = Volume(
            there.name,
            self.size,
            read=self.read,
            write=self.write,
            flush=self.flush,
            read_only=target.array.read_only,
            uuid=there.uuid,
        )

    def take_over(self, volume: Volume) -> None:
        """Serve *volume*, which users have open already, instead of one of its own."""
        self.volume = volume
        volume.bind(self.read, self.write, self.flush)

    # -- requests of users -----------------------------------------------------------------------

    def _parts(self, offset: int, end: int) -> Iterator[tuple[bool, int, int]]:
        """Yield (whether on the target, offset, end) of the parts of a range."""
        if offset < self.saved:
            yield True, offset, min(end, self.saved)
        if end > self.saved:
            yield False, max(offset, self.saved), end

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return *size* bytes at *offset*, as `Volume.read`."""
        self.requests += 1
        flight = self._reads.begin()
        try:
            parts = list(self._parts(offset, offset + size))
            if len(parts) == 1:
                return await (self._read_there if parts[0][0] else self._read_here)(offset, size)
            found = []
            for there, at, end in parts:
                read = self._read_there if there else self._read_here
                found.append(bytes(await read(at, end - at)))
            return b"".join(found)
        finally:
            flight.end()

    async def write(self, offset: int, data: bytes) -> None:
        """Write *data* at *offset*, as `Volume.write`."""
        self.requests += 1
        end = offset + len(data)
        while True:
            low, high = self._window
            if max(offset, low) < min(end, high):
                self.awaited = True
                await self._moved.wait()
                continue
            low, high = sorted((self.saved, self.position))
            if max(offset, low) < min(end, high):
                await self.save()
                continue
            break
        flight = self._writes.begin()
        try:
            view = memoryview(data)
            for there, at, stop in list(self._parts(offset, end)):
                part = data if stop - at == len(data) else bytes(view[at - offset : stop - offset])
                await (self._write_there if there else self._write_here)(at, part)
        finally:
            flight.end()

    async def flush(self) -> None:
        """Return when everything written before is durable, on both arrays."""
        await self.source.array.flush()
        await self.target.array.flush()

    # -- copying ---------------------------------------------------------------------------------

    @property
    def rest(self) -> tuple[int, int]:
        """(first, end) of the bytes that still have to move."""
        return (0, self.position) if self.back else (self.position, self.size)

    def written(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the parts of bytes *low* .. *high* - 1 that are to be copied.

        They were written where they are now. After a remount, also those that were written where
        they go: a copy may be there of what the crash has taken back here.
        """
        here = runs_of(self.source, self.places, low, high)
        there = runs_of(self.target, self.new_places, low, high)
        if self.resumed:
            return merged([*here, *there])
        return list(there if self.back else here)

    async def written_bytes(self) -> int:
        """Return how much of the volume still has to be copied."""
        low, high = self.rest
        count = 0
        for at in range(low, high, COUNT_BYTES):
            count += sum(e - s for s, e in self.written(at, min(at + COUNT_BYTES, high)))
            await trio.lowlevel.checkpoint()
        return count

    async def fetch(self, low: int, high: int) -> bytes:
        """Read bytes of the window from where they are."""
        return bytes(await (self._read_there if self.back else self._read_here)(low, high - low))

    def store(self, low: int, content: bytes) -> Awaitable[None]:
        """Write bytes of the window to where they go."""
        return (self._write_here if self.back else self._write_there)(low, content)

    @asynccontextmanager
    async def window(self, low: int, high: int) -> AsyncIterator[None]:
        """Let no write into bytes *low* .. *high* - 1 inside the block, and none be in flight."""
        self._window = low, high
        self.awaited = False
        try:
            await self._writes.drained()
            yield
        finally:
            self._open(NOWHERE)

    def _open(self, window: tuple[int, int]) -> None:
        self._window = window
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    def advance(self, position: int) -> None:
        """Note that the window is copied up to *position*; going back, down to it."""
        low, high = self._window
        self.position = position
        self._open((low, position) if self.back else (position, high))

    async def save(self) -> None:
        """Make the watermark durable, after the copies before it (law 2). Raises RaidxError."""
        async with self._saving:
            position = self.position
            if position == self.saved or self.arrived:
                return
            await (self.source if self.back else self.target).array.flush()
            await self._mark(position, self.back)
            self.saved = position

    async def _mark(self, watermark: int, back: bool) -> None:
        def marked(table: VolumeTable) -> VolumeTable:
            record = table.find(self.volume_uuid)
            if record is None or record.move is None:
                return table  # handed over, though the superblocks could not be written then
            mark = replace(record.move, watermark=watermark, back=back)
            return with_record(table, replace(record, move=mark))

        await self.target.change(marked)

    async def turn(self) -> None:
        """Let the volume go back to its source from now on. No window may be open.

        Does nothing if it has been handed over. Raises RaidxError.
        """
        async with self._saving:
            if self._is_handed_over(self.target.table()):
                return
            await self._mark(self.saved, back=True)
            self.back = True
            self.position = self.saved

    # -- begin and end ---------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Everything is copied: make the volume one of the target alone (law 1).

        May be called again after an error. Raises RaidxError.
        """
        async with self._saving:
            if not self.arrived:
                await self.target.array.flush()
                await self.target.change(self._arrived)
                self.saved = self.size
                self.arrived = True
                self.source.let_go(self.volume)
                self.target.adopt(self.volume)
                self.target.bind(self.volume)
        await self._reads.drained()
        await self.source.array.context.reads_in_flight.drained()
        await give_up(self.source, self.volume_uuid)
        await forget_arrival(self.target, self.uuid)

    def _is_handed_over(self, table: VolumeTable) -> bool:
        return any(one.move == self.uuid for one in table.arrived)

    def _arrived(self, table: VolumeTable) -> VolumeTable:
        record = table.find(self.volume_uuid)
        if record is None or self._is_handed_over(table):
            return table  # done before an error
        arrived = Arrived(self.uuid, self.source.array.uuid)
        table = with_record(table, replace(record, move=None))
        return replace(table, arrived=(*table.arrived, arrived))

    async def give_back(self) -> None:
        """Everything is on the source again: end the move there, then on the target (law 1).

        May be called again after an error. Raises RaidxError.
        """
        await self.save()
        await self.source.change(self._unmarked)
        self.source.bind(self.volume)
        await self._reads.drained()
        await self.target.array.context.reads_in_flight.drained()
        await give_up(self.target, self.volume_uuid)

    def _unmarked(self, table: VolumeTable) -> VolumeTable:
        record = table.find(self.volume_uuid)
        if record is None or record.move is None or record.move.uuid != self.uuid:
            return table  # done before an error, and more has happened since
        return with_record(table, replace(record, move=None))


async def begin_transfer(
    source: ArrayVolumes, target: ArrayVolumes, volume: Volume, move_uuid: str
) -> Transfer:
    """Enter a move of *volume* into both tables; return it. Raises RaidxError, changing nothing.

    The caller has checked that the volume may move. Requests that are in flight still go to the
    source: nothing may be copied before `ArrayContext.writes_drained`.
    """
    places = target.places_for(volume.size_bytes)
    mark = MoveMark(move_uuid, TARGET, source.array.uuid, source.array.name)
    there = VolumeRecord(volume.uuid, volume.name, volume.size_bytes, places, mark)
    mark = MoveMark(move_uuid, SOURCE, target.array.uuid, target.array.name)
    # One of the whole image, too, has its size and its place from now on.
    here = VolumeRecord(volume.uuid, volume.name, volume.size_bytes, source.extents(volume), mark)
    before = source.table().find(volume.uuid)

    def marked(table: VolumeTable) -> VolumeTable:
        if before is None or table.find(volume.uuid) != before:
            raise BusyError(f"volume {volume.name} has changed meanwhile", action="try again")
        return with_record(table, here)

    with trio.CancelScope(shield=True):
        try:
            await target.change(
                lambda table: replace(table, volumes=(*table.volumes, there)), asked=True
            )
            await source.change(marked, asked=True)
        except RaidxError:
            if before is not None and source.table().find(volume.uuid) == here:
                # it may yet become durable
                await source.change(lambda table: with_record(table, before))
            await give_up(target, volume.uuid)
            raise
    transfer = Transfer(source, target, here, there)
    transfer.take_over(volume)
    return transfer


def runs_of(
    volumes: ArrayVolumes, places: Sequence[Extent], low: int, high: int
) -> Iterator[tuple[int, int]]:
    """Yield the written parts of bytes *low* .. *high* - 1 of a volume that lies in *places*."""
    start = 0
    for extent in places:
        at, last, shift = max(low, start), min(high, start + extent.length), extent.offset - start
        if at < last:
            for length, is_written in volumes.array.allocation(at + shift, last - at):
                if is_written:
                    yield at, at + length
                at += length
        start += extent.length


def merged(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of *runs*, ascending.

    >>> merged([(0, 4), (8, 12), (2, 6), (12, 16)])
    [(0, 6), (8, 16)]
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def with_record(table: VolumeTable, record: VolumeRecord) -> VolumeTable:
    """Return *table* with *record* instead of the one with its UUID."""
    return replace(
        table,
        volumes=tuple(record if one.uuid == record.uuid else one for one in table.volumes),
    )


async def give_up(volumes: ArrayVolumes, volume_uuid: str) -> None:
    """Take the volume out of the table, its places to be wiped. Does nothing if it is out."""

    def without(table: VolumeTable) -> VolumeTable:
        record = table.find(volume_uuid)
        assert record is not None
        return replace(
            table,
            volumes=tuple(one for one in table.volumes if one.uuid != volume_uuid),
            wiping=(*table.wiping, *to_be_wiped(volumes.array, record.extents)),
        )

    if volumes.table().find(volume_uuid) is not None:
        await volumes.change(without)
        volumes.wiper.ask()


async def forget_arrival(volumes: ArrayVolumes, move_uuid: str) -> None:
    """Take a move out of those that have ended here: the source does not name it any more."""
    if any(one.move == move_uuid for one in volumes.table().arrived):
        await volumes.change(
            lambda table: replace(
                table, arrived=tuple(one for one in table.arrived if one.move != move_uuid)
            )
        )
