"""A volume on its way between two arrays: which of them holds each byte, in memory and durably.

    byte   0 ......... saved ........ position ....... window ........ size      forward
           [ target   | on both      | source        | source, closed | source ]
           0 ......... window ....... position ........ saved ........ size      back
           [ target   | target, closed | on both      | source               ]

The *watermark* is the durable `saved`, in the move record of the target's volume table. Laws:

 1. A move begins in the table of the target, then in that of the source; a begin that fails is
    undone in the other order. It ends, when the target has everything, with one update of the
    target's table: the volume is its own from then on, and `arrived` keeps the UUID of the move
    until the source has given its places up. If it was cancelled, it ends with one update of the
    source's table, when the watermark is 0.
 2. `save` flushes the array that the window was copied to before the watermark passes it.
 3. Bytes between *saved* and *position* are the same on both arrays: they are read from where they
    were, and a write there waits for `save`.
 4. A write into the *window* waits until it is copied, and the copy waits for writes in flight:
    for all requests inside the gate of the volume (engine/gate.py). A write waits before it enters.
 5. The volume gets other places, at the begin and the end of a move and when it passes pieces on,
    while its gate is closed. Places are given up, to be wiped, when the record that removes them is
    durable; no request to them is left then.

A move *in pieces*, of volumes that change places where no array has room for a whole one, has
places on the target for the bytes below *limit* alone, and on the source for those from *first* on:
first <= saved <= limit. `pass_on` gives up what lies below *saved* on the source (law 5), and takes
what is free on the target; going back, the other way round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import trio

from raidx_fuse.engine.gate import Gate
from raidx_fuse.errors import BusyError, RaidxError
from raidx_fuse.format.configuration.volumes import (
    SOURCE,
    TARGET,
    Arrived,
    Extent,
    MoveRecord,
    VolumeRecord,
    VolumeTable,
)
from raidx_fuse.laws import Law
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.pool.allocate import cut, cut_front, pieced
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.volume import Volume, read_of, shifted, write_of
from raidx_fuse.pool.wipe import to_be_wiped

NOWHERE = (0, 0)
COUNT_BYTES = 1 << 30


def runs_of(
    volumes: ArrayVolumes, places: Sequence[Extent], low: int, high: int, start: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield the written parts of bytes *low* .. *high* - 1 of a volume.

    Its bytes from *start* on lie in *places*.
    """
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


class Transfer:
    """The move *uuid* of a volume from *source* to *target*, as their tables name it.

    *saved* and *position* are offsets in the volume, see the module; *back*: the move was
    cancelled. *awaited*: a write waits for the window. *requests* counts those of users.
    *arrived*: the target's table says that the volume is its own. *is_over*: one array serves the
    volume again. *resumed*: the move began in an earlier mount.
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
        self.in_pieces = here.move is not None and here.move.first is not None
        self.saved = self.position = there.move.watermark
        self.back = there.move.back
        self.resumed = resumed
        self.arrived = self.is_over = False
        self.requests = 0
        self.awaited = False
        self._lie(here, there)
        self._window = NOWHERE
        self._moved = trio.Event()
        self._saving = trio.Lock()
        self.volume = Volume(
            there.name,
            self.size,
            read=self.read,
            write=self.write,
            flush=self.flush,
            read_only=target.array.read_only,
            uuid=there.uuid,
            gate=Gate(f"volume {there.name}", target.array.member_set.laws),
        )

    def _lie(self, here: VolumeRecord, there: VolumeRecord) -> None:
        """Note where the bytes lie: from *first* on *here*, below *limit* *there*."""
        self.places, self.new_places = here.extents, there.extents
        self.first = (here.move and here.move.first) or 0
        self.limit = sum(extent.length for extent in there.extents)
        source, target = self.source.array, self.target.array
        # without the gate of the volume: users' requests are inside, and the copy waits for them
        self._read_here = shifted(read_of(source.read_for, here.extents), self.first)
        self._write_here = shifted(write_of(source.write_for, here.extents), self.first)
        self._read_there = read_of(target.read_for, there.extents)
        self._write_there = write_of(target.write_for, there.extents)

    def take_over(self, volume: Volume) -> None:
        """Serve *volume*, which users have open, instead of one of its own; its gate is closed."""
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
        inside = self.volume.gate.enter_now()
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
            inside.leave()

    async def write(self, offset: int, data: ReadBuffer) -> None:
        """Write *data* at *offset*, as `Volume.write`."""
        self.requests += 1
        end, gate = offset + len(data), self.volume.gate
        while True:
            if gate.is_closed or self.is_over:  # it has other places after that
                await self.volume.write_later(offset, data)
                return
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
        inside = gate.enter_now()
        try:
            view = memoryview(data)
            for there, at, stop in list(self._parts(offset, end)):
                part = data if stop - at == len(data) else bytes(view[at - offset : stop - offset])
                await (self._write_there if there else self._write_here)(at, part)
        finally:
            inside.leave()

    async def flush(self) -> None:
        """Return when everything written before is durable, on both arrays."""
        await self.source.array.flush()
        await self.target.array.flush()

    # -- copying ---------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether all of it is on the target, durably."""
        return self.saved == self.size and not self.back

    @property
    def rest(self) -> tuple[int, int]:
        """(first, end) of the bytes that still have to move."""
        return (0, self.position) if self.back else (self.position, self.size)

    @property
    def reach(self) -> tuple[int, int]:
        """(first, end) of the bytes of `rest` that have places where they go."""
        if self.back:
            return min(self.first, self.position), self.position
        return self.position, max(self.position, min(self.limit, self.size))

    def written(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the parts of bytes *low* .. *high* - 1 that are to be copied.

        They were written where they are now. After a remount, also those that were written where
        they go: a copy may be there of what the crash has taken back here.
        """
        here = runs_of(self.source, self.places, low, high, self.first)
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
        """Write bytes of the window to where they go. Raises LawError for others."""
        first, end = self._window
        if not first <= low <= low + len(content) <= end:
            where = f"bytes {low} .. {low + len(content)} with the window {first} .. {end}"
            raise self.target.array.member_set.laws.broken(Law.WINDOW, where)
        return (self._write_here if self.back else self._write_there)(low, content)

    @asynccontextmanager
    async def window(self, low: int, high: int) -> AsyncIterator[None]:
        """Let no write into bytes *low* .. *high* - 1 inside the block, and none be in flight."""
        self._window = low, high
        self.awaited = False
        try:
            await self.volume.gate.passed()
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
            if not self.first <= position <= self.limit:
                where = f"byte {position}, with places for {self.first} .. {self.limit}"
                raise self.target.array.member_set.laws.broken(Law.WATERMARK, where)
            await (self.source if self.back else self.target).array.flush()
            await self._save_watermark(position, self.back)
            self.saved = position

    async def _save_watermark(self, watermark: int, back: bool) -> None:
        def moved(table: VolumeTable) -> VolumeTable:
            record = table.find(self.volume_uuid)
            if record is None or record.move is None:
                return table  # handed over, though the superblocks could not be written then
            move = replace(record.move, watermark=watermark, back=back)
            return with_record(table, replace(record, move=move))

        await self.target.change(moved)

    async def turn(self) -> None:
        """Let the volume go back to its source from now on. No window may be open.

        Does nothing if it has been handed over. Raises RaidxError.
        """
        async with self._saving:
            if self._is_handed_over(self.target.table()):
                return
            await self._save_watermark(self.saved, back=True)
            self.back = True
            self.position = self.saved

    # -- moves in pieces -------------------------------------------------------------------------

    async def pass_on(self) -> bool:
        """Give up the places that the volume has left, and take free ones for what is to come.

        Return whether there were any. No window may be open. Raises RaidxError.
        """
        await self.save()
        async with self._closed(), self._saving:
            self._sync()
            before = self.first, self.limit
            await self._leave()
            if self.rest[0] < self.rest[1]:
                side = self.source if self.back else self.target
                await side.change(lambda table: self._with_room(side, table))
                self._sync()
            return (self.first, self.limit) != before

    async def _leave(self) -> None:
        """Give up, on the array that the volume leaves, what lies on the other one durably."""
        if self.limit == self.saved if self.back else self.first == self.saved:
            return
        left = self.target if self.back else self.source
        await left.change(lambda table: self._without_rest(left, table))
        self._sync()
        left.wiper.ask()

    def _without_rest(self, left: ArrayVolumes, table: VolumeTable) -> VolumeTable:
        record = table.find(self.volume_uuid)
        assert record is not None
        assert record.move is not None
        if self.back:
            kept, off = cut(record.extents, self.saved)
            move = record.move
        else:
            kept, off = cut_front(record.extents, self.saved - self.first)
            move = replace(record.move, first=self.saved)
        table = with_record(table, replace(record, extents=kept, move=move))
        return replace(table, wiping=(*table.wiping, *to_be_wiped(left.array, off)))

    def _with_room(self, side: ArrayVolumes, table: VolumeTable) -> VolumeTable:
        record = table.find(self.volume_uuid)
        assert record is not None
        assert record.move is not None
        missing = self.first if self.back else self.size - self.limit
        extents, room = record.extents, side.free_in(table)
        extents, taken = pieced(extents, room, missing, in_front=self.back)
        move = replace(record.move, first=missing - taken) if self.back else record.move
        return with_record(table, replace(record, extents=extents, move=move))

    def _sync(self) -> None:
        """Take the places from the tables; a change of before an error may be there, too."""
        here = self.source.table().find(self.volume_uuid)
        there = self.target.table().find(self.volume_uuid)
        assert here is not None
        assert there is not None
        self._lie(here, there)

    def _closed(self) -> AbstractAsyncContextManager[None]:
        """Return a block in which the volume may get other places; see `Gate.closed`."""
        timeouts = (side.array.member_set.io_timeout_s for side in (self.source, self.target))
        return self.volume.gate.closed(max(timeouts))

    # -- begin and end ---------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Everything is copied: make the volume one of the target alone (law 1).

        May be called again after an error. Raises RaidxError; BusyError if requests of the volume
        do not end in time.
        """
        async with self._saving:
            if not self.arrived:
                await self.target.array.flush()
                await self.target.change(self._arrived)
                self.saved = self.size
                self.arrived = True
        if not self.is_over:
            async with self._closed():
                self.source.volumes.remove(self.volume)
                self.target.volumes.append(self.volume)
                self.target.bind(self.volume)
                self.is_over = True
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

        May be called again after an error. Raises as `hand_over`.
        """
        await self.save()
        if not self.is_over:
            async with self._closed():
                await self.source.change(self._without_move)
                self.source.bind(self.volume)
                self.is_over = True
        await give_up(self.target, self.volume_uuid)

    def _without_move(self, table: VolumeTable) -> VolumeTable:
        record = table.find(self.volume_uuid)
        if record is None or record.move is None or record.move.uuid != self.uuid:
            return table  # done before an error, and more has happened since
        return with_record(table, replace(record, move=None))


async def begin_transfer(
    source: ArrayVolumes,
    target: ArrayVolumes,
    volume: Volume,
    move_uuid: str,
    *,
    in_pieces: bool = False,
) -> Transfer:
    """Enter a move of *volume* into both tables; return it. Raises RaidxError, changing nothing.

    *in_pieces*: without places on the target yet (transfer.py).
    The caller has checked that the volume may move. Requests go to the source until both tables
    have the move; the volume changes hands while its gate is closed. Raises BusyError if requests
    of the volume do not end in time.
    """
    before = source.table().find(volume.uuid)
    size_bytes = volume.size_bytes if before is None else before.size_bytes or volume.size_bytes
    places = () if in_pieces else target.places_for(size_bytes)
    move = MoveRecord(move_uuid, TARGET, source.array.uuid, source.array.name)
    there = VolumeRecord(volume.uuid, volume.name, size_bytes, places, move)
    first = 0 if in_pieces else None
    move = MoveRecord(move_uuid, SOURCE, target.array.uuid, target.array.name, first=first)
    # One of the whole image, too, has its size and its place from now on.
    here = VolumeRecord(volume.uuid, volume.name, size_bytes, source.extents(volume), move)

    def entered(table: VolumeTable) -> VolumeTable:
        if before is None or table.find(volume.uuid) != before:
            raise BusyError(f"volume {volume.name} has changed meanwhile", action="try again")
        return with_record(table, here)

    async def undo() -> None:
        """Take the move out of the source's table, durably, then out of the target's (law 1).

        If that cannot be, the next mount does it.
        """
        if before is not None and source.table().find(volume.uuid) == here:
            # it may yet become durable
            await source.change(lambda table: with_record(table, before))
        else:  # some superblocks may name the move
            await source.array.member_set.published()
        await give_up(target, volume.uuid)

    with trio.CancelScope(shield=True):
        try:
            await target.change(
                lambda table: replace(table, volumes=(*table.volumes, there)), asked=True
            )
            await source.change(entered, asked=True)
        except RaidxError:
            await undo()  # its error, if it has one, says why as well
            raise
    transfer = Transfer(source, target, here, there)
    limit_s = max(side.array.member_set.io_timeout_s for side in (source, target))
    try:
        async with volume.gate.closed(limit_s):
            transfer.take_over(volume)
    except BaseException:
        with trio.CancelScope(shield=True):
            await undo()
        raise
    return transfer
