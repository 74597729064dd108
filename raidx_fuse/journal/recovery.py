"""Recovery: when an array starts, redo the records of the write-ahead log.

Recovery is idempotent and may be interrupted by a crash at any point:

1. Every record is made durable on as many members as a running array would write it to. A power
   cut may have left it on a single member, which may be the next one to be lost.
2. The home places are written and flushed.
3. Only then the epoch changes, which makes the records invalid.

A read-only start keeps the content of the records in the overlay and writes nothing.

The parity of stripes whose data was logged without it (unsettled.py) is computed here, and logged
before the first home place is written.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from raidx_fuse.errors import AssemblyError, MemberError, OtherVersionError, RaidxError, Reason
from raidx_fuse.format.log_record import (
    HEAD,
    HOLDERS_MAX,
    RECORD_HEADER_BYTES,
    Record,
    RecordBody,
    before_79fb2b4,
    decode_holders,
    decode_record,
    encode_record,
    header_fits,
    holder_of,
)
from raidx_fuse.format.regions import COUNTER_MAX, SECTOR_BYTES
from raidx_fuse.journal.journal import Journal
from raidx_fuse.journal.ring import Tail
from raidx_fuse.journal.stripe_parity import Bands, Reads, StripeParity
from raidx_fuse.layouts.numbers import (
    CellIndex,
    Chunk,
    MemberChunk,
    Offset,
    Role,
    Stripe,
    by_role,
    cell_range,
    chunk_range,
)
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.stripe_plan import Part
from raidx_fuse.members.base import Member, ReadBuffer
from raidx_fuse.members.threads import read_promptly
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberIO, MemberLostError
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.page_store import PageStore
from raidx_fuse.store.sums import Covers
from raidx_fuse.store.written_map import WrittenMap

READ_AHEAD_BYTES = 256 << 10  # two waits for a thread for each record cost 0.5 ms
CHUNKS_MAX = 1 << 20  # that records name, of which the stripes are looked up

Data = tuple[int, Role, int, bytes]  # of a record: its sequence number, role, offset, bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result: *records* were redone, with *data_bytes* of content; the log was in *epoch*."""

    epoch: int
    records: int
    data_bytes: int


def stripes_changed(
    records: Iterable[Record], layout: Layout, data_offset: int
) -> frozenset[Stripe] | None:
    """Return the stripes that *records* change; None if that cannot be told.

    It cannot be told of a chunk of a raidx member that is absent: only its share of the look-up
    table says whose chunk it is; nor during a restripe; nor if the records name more than
    `CHUNKS_MAX` chunks as written or unwritten, because looking them up would delay the start.
    """
    if layout.restriping:
        return None
    found: set[Stripe] = set()
    size, chunks = layout.chunk_bytes, 0
    for record in records:
        for role, offset, data in record.data:
            first = (offset - data_offset) // size
            for chunk in range(first, (offset - data_offset + len(data) - 1) // size + 1):
                place = layout.inverse(role, MemberChunk(chunk))
                if place is not None:
                    found.add(place[0])
                elif layout.has_table:
                    return None
        for number, count in (*record.written, *record.unwritten):
            end = min(number + count, layout.chunks)
            chunks += end - number
            if chunks > CHUNKS_MAX:
                return None
            found.update(layout.locate(Chunk(c))[0] for c in chunk_range(number, end))
        found.update(stripe for stripe, _, _ in record.unsettled)
        found.update(stripe for stripe, _ in record.settled)
        found.update(Stripe(cell // layout.code.columns) for cell, _, _ in record.table)
    return frozenset(found)


class _Ring:
    """Reads the records of one epoch, each from any log member that holds it intact.

    *holders* are the member identities that may hold the log; None stands for all members.
    """

    def __init__(
        self, journal: Journal, member_set: MemberSet, epoch: int, holders: Collection[bytes] | None
    ) -> None:
        self._members = {
            role: queue.member
            for role, queue in by_role(member_set.queues)
            if queue is not None
            and (
                holders is None or holder_of(member_set.config.record(role).member_uuid) in holders
            )
        }
        self._lost, self._tolerance = member_set.lost, member_set.layout.code.tolerance
        self._unread: dict[Role, MemberError] = {}
        self._layout = layout = member_set.layout
        # The map, not the image, is the limit: a record may name chunks of bundles that are not
        # counted in the superblocks. `replay` then clears their bits again.
        self._chunks = len(journal.written.bits) * 8
        self._begin = member_set.data_offset
        member_chunks = member_set.config.regions.data.length // layout.chunk_bytes
        self._ends = {
            role: self._begin
            + layout.chunk_bytes * (layout.chunks_of(role) if layout.has_table else member_chunks)
            for role in member_set.config.roles()
        }
        self._offset = journal.ring.offset
        self._capacity = journal.capacity
        self._array = journal.ring.array
        self._epoch = epoch
        self._ahead: dict[Role, tuple[int, bytes]] = {}  # from which byte of the ring; content
        self._found = False  # a record: there may be more, which are worth reading ahead
        self._exact: set[Role] = set()  # where reading ahead has failed

    def offset(self, position: int) -> int:
        return self._offset + position % self._capacity

    async def record(self, sequence: int, position: int) -> tuple[Record, bytes] | None:
        """Return the record and its bytes, or None if no log member holds it intact.

        Raises AssemblyError for a record that this array cannot have written, OtherVersionError for
        one that is not known here: the records behind it, which may be acknowledged, must not be
        dropped because of it.
        """
        wrong: RaidxError | None = None
        for role, member in self._members.items():
            try:
                record = await self._read(role, member, sequence, position)
            except MemberError as error:
                log.warning("journal: %s", error.message)
                self._unread[role] = error
                continue
            except OtherVersionError as error:
                message = f"{member.path}: {error.message}"
                wrong = OtherVersionError(message, action=error.action)
                log.error("%s", wrong.message)
                continue
            if record is None:
                continue
            problem = self._problem(record[0])
            if problem is None:
                self._unread.clear()
                self._found = True
                return record
            wrong = AssemblyError(
                f"{member.path}: record {sequence} of the journal is impossible: {problem}",
                action="start without this member, if the others suffice",
            )
            log.error("%s", wrong.message)
        if wrong is not None:
            raise wrong
        return None

    def _problem(self, record: Record) -> str | None:
        """Return a text that says what is impossible about *record*, or None if it is valid."""
        layout = self._layout
        for role, offset, data in record.data:
            end = offset + len(data)
            if role not in self._ends or not self._begin <= offset < end <= self._ends[role]:
                return f"{len(data)} bytes at {offset} of role {role}"
        for role, offset, size in record.unverified:
            end = offset + size
            inside = role in self._ends and self._begin <= offset < end <= self._ends[role]
            if not inside or size > self._capacity:  # it came through the log
                return f"no checksums for {size} bytes at {offset} of role {role}"
        for first, count in (*record.written, *record.unwritten):
            if not 0 < count <= self._chunks - first:
                return f"{count} chunks from {first} of {self._chunks}"
        for stripe in (*(s for s, _, _ in record.unsettled), *(s for s, _ in record.settled)):
            if stripe >= layout.stripes or not layout.code.parity_count:
                return f"the parity of stripe {stripe}"
        for cell, role, chunk in record.table:
            if not layout.has_table:
                return "a move of a chunk where there is no look-up table"
            cells = layout.stripes * layout.code.columns
            if cell >= cells or role not in self._ends or chunk >= layout.chunks_of(role):
                return f"chunk {chunk} of role {role} for cell {cell}"
        if record.mark is not None and record.mark > layout.watermark_max:
            return f"a watermark of {record.mark}"
        return None

    def doubt(self) -> MemberError | None:
        """Return why nobody can tell whether the log ends here, None if it does.

        A record that was acknowledged is on one member more than may be lost. So it is on a member
        that was read, unless more members than may be lost are lost or could not be read.
        """
        if len(self._lost | self._unread.keys()) <= self._tolerance:
            return None
        return next(iter(self._unread.values()), None)

    async def _read(
        self, role: Role, member: Member, sequence: int, position: int
    ) -> tuple[Record, bytes] | None:
        lap = position % self._capacity
        room = self._capacity - lap
        if room < RECORD_HEADER_BYTES:
            return None
        header = await self._bytes(role, member, lap, RECORD_HEADER_BYTES)
        size = header_fits(header, self._epoch, sequence, position, self._array, room)
        if size is None:
            return None
        content = await self._bytes(role, member, lap, size)
        record = decode_record(content)
        return None if record is None else (record, content)

    async def _bytes(self, role: Role, member: Member, lap: int, size: int) -> bytes:
        """Return *size* bytes of the ring of *member* from byte *lap* on. Raises MemberError."""
        begin, content = self._ahead.get(role, (0, b""))
        if begin <= lap and lap + size <= begin + len(content):
            return content[lap - begin : lap - begin + size]
        if self._found and size < READ_AHEAD_BYTES and role not in self._exact:
            length = min(READ_AHEAD_BYTES, self._capacity - lap)
            try:
                content = await _read_exactly(member, self._offset + lap, length)
            except MemberError:  # perhaps of what lies behind the record
                self._exact.add(role)
            else:
                self._ahead[role] = lap, content
                return content[:size]
        return await _read_exactly(member, self._offset + lap, size)


async def _read_exactly(member: Member, offset: int, size: int) -> bytes:
    content = bytearray(size)
    await read_promptly(member, offset, [content])
    return bytes(content)


class ParityReplay:
    """Redoes the data of records into *overlay*, and the parity that follows from the data.

    Data of unsettled stripes (unsettled.py) waits until a record has its parity, or until the end
    of the log: until then the overlay, with the home places under it, is the base of the stripe.
    """

    def __init__(self, member_set: MemberSet, overlay: Overlay, written: WrittenMap) -> None:
        self.member_set = member_set
        self.overlay = overlay
        self.written = written
        self._size = member_set.layout.chunk_bytes
        self._parity = StripeParity(member_set, written)
        self._waiting: dict[Stripe, list[Data]] = {}  # of unsettled stripes, in order
        # Stripe -> the last record whose data its parity, computed here, covers.
        self._settled: dict[Stripe, int] = {}
        # Stripe -> (role, offset, size) of its parities, which are in the overlay.
        self._parities: dict[Stripe, list[tuple[Role, int, int]]] = {}

    def redo(self, record: Record) -> None:
        """Put the data of *record* into the overlay, but for data that waits for its parity."""
        for stripe, last in record.settled:
            self._release(stripe, last)
        later: set[int] = set()
        for stripe, first, count in record.unsettled:
            waiting = self._waiting.setdefault(stripe, [])
            for index in range(first, first + count):
                waiting.append((record.sequence, *record.data[index]))
                later.add(index)
        for index, (role, offset, data) in enumerate(record.data):
            if index not in later:
                self.overlay.put(role, offset, data)
        for role, offset, size in record.unverified:
            self.overlay.doubt((role, at) for at in range(offset, offset + size, PAGE_BYTES))

    def _release(self, stripe: Stripe, last: int) -> None:
        """Put the waiting data of *stripe* up to record *last* into the overlay."""
        waiting = self._waiting.pop(stripe, [])
        for sequence, role, offset, data in waiting:
            if sequence <= last:
                self.overlay.put(role, offset, data)
        later = [entry for entry in waiting if entry[0] > last]
        if later:
            self._waiting[stripe] = later

    async def settle(self) -> None:
        """Settle the stripes that the log leaves unsettled; their home places are untouched.

        Raises MemberError, or UnrecoverableError if more is lost than the code tolerates.
        """
        for stripe in sorted(self._waiting):
            await self._settle(stripe)

    async def _settle(self, stripe: Stripe) -> None:
        """Compute the parity of the data of *stripe* that waits, and put both into the overlay."""
        waiting = self._waiting.pop(stripe)
        newest = Overlay()  # keyed by cell: who lost a member need not know its chunks
        parts: dict[Part, None] = {}
        for _, role, offset, data in waiting:
            cell, low, high = self._part(stripe, role, offset, len(data))
            newest.put(Role(cell), low, data)
            parts[cell, low, high] = None

        def content(cell: CellIndex, bands: Bands, _places: object) -> Sequence[ReadBuffer]:
            roles = np.full_like(bands.lows, cell)
            return newest.contents(newest.current, roles, bands.lows, bands.size_bytes)

        blocks = await self._parity.compute(
            [(stripe, list(parts))], content, self._read, covers=self._covers()
        )
        for _, role, offset, data in waiting:
            self.overlay.put(role, offset, data)
        places = self._parities.setdefault(stripe, [])
        for block in blocks:
            for role, offset, part in zip(
                *(numbers.tolist() for numbers in block.places),
                block.content.reshape(-1, block.size_bytes),
                strict=True,
            ):
                self.overlay.put(role, offset, part.tobytes())
                places.append((role, offset, block.size_bytes))
            if block.is_doubted:
                self.overlay.doubt(block.pages())
        self._settled[stripe] = waiting[-1][0]

    def _covers(self) -> Covers | None:
        """Return what lies over the home places, of whose content the checksums are looked at."""
        return self.overlay.covers

    async def _read(self, reads: Reads) -> None:
        await self.member_set.read(
            [(role, *read) for role, of_role in reads.items() for read in of_role]
        )

    def _part(self, stripe: Stripe, role: Role, offset: int, length: int) -> Part:
        """Return which range of a data cell of *stripe* a place is. Raises AssemblyError.

        The chunk of a bundle on a member that is lost may be unknown: then the role tells the cell.
        """
        layout = self.member_set.layout
        low = (offset - self.member_set.data_offset) % self._size
        places = {cell: self._place(stripe, cell) for cell in cell_range(0, layout.code.data_count)}
        found = [cell for cell, place in places.items() if place == (role, offset - low)]
        if not found and role in self.member_set.lost:
            found = [cell for cell, place in places.items() if place[0] == role]
        if len(found) == 1 and low + length <= self._size:
            return found[0], low, low + length
        raise AssemblyError(
            f"the journal has data of stripe {stripe} at {offset} of role {role}, "
            "where no data cell of that stripe is"
        )

    def settled(self, size_bytes: int) -> Iterator[tuple[list[MemberIO], list[tuple[Stripe, int]]]]:
        """Yield the parities that were computed, at most *size_bytes* (or one stripe) at once.

        With them come the stripes and the last record that they cover (`RecordBody.add_settled`).
        """
        parities: list[MemberIO] = []
        stripes: list[tuple[Stripe, int]] = []
        total = 0
        for stripe, last in self._settled.items():
            more = sum(size for _, _, size in self._parities[stripe])
            if stripes and total + more > size_bytes:
                yield parities, stripes
                parities, stripes, total = [], [], 0
            for role, offset, size in self._parities[stripe]:
                buffer = bytearray(size)
                self.overlay.patch(role, offset, [buffer])
                parities.append((role, offset, [buffer], size))
            stripes.append((stripe, last))
            total += more
        if stripes:
            yield parities, stripes

    def _place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, Offset]:
        role, chunk = self.member_set.layout.place(stripe, cell)
        return role, Offset(self.member_set.data_offset + chunk * self._size)


@dataclass(frozen=True, slots=True)
class Log:
    """The content of the log, read but not redone: its *records* in order from the *tail* on.

    *copies* has the byte offset on the members and the bytes of each record. *end* is the position
    behind the last one. *holders* are the identities that may hold the log (None: all members).
    """

    epoch: int
    tail: Tail
    end: Tail
    holders: set[bytes] | None
    records: list[Record]
    copies: list[tuple[int, bytes]]


async def read_log(
    journal: Journal, member_set: MemberSet, head: PageStore, start_degraded: bool
) -> Log:
    """Read the log and recover the chunk table with the moves in it; write nothing.

    Raises AssemblyError for a head page or record that no array can have written; without
    *start_degraded*, also if it cannot be told whether the log holds more records.
    """
    epoch, sequence, position, mark, held_epoch, count = HEAD.unpack_from(head.payload)
    _check_head(journal, member_set, (epoch, sequence, position, mark), count)
    if epoch and held_epoch != epoch:
        raise before_79fb2b4("the head of the journal")
    holders = decode_holders(head.payload, count)
    tail = sequence, position, mark
    records: list[Record] = []
    copies: list[tuple[int, bytes]] = []
    ring = _Ring(journal, member_set, epoch, holders)
    while epoch:
        found = await ring.record(sequence, position)
        if found is None and position % journal.capacity:
            next_lap = position + journal.capacity - position % journal.capacity
            found = await ring.record(sequence, next_lap)
            if found is not None:
                position = next_lap
        if found is None:
            break
        record, content = found
        records.append(record)
        copies.append((ring.offset(position), content))
        journal.chunk_table.redo(record.table)
        mark = mark if record.mark is None else record.mark
        sequence += 1
        position += record.size_bytes
    journal.chunk_table.recover()
    doubt = None if member_set.config.clean or start_degraded else ring.doubt()
    if doubt is not None:
        raise AssemblyError(
            f"the log cannot be read ({doubt.message}): writes that were flushed may be lost",
            action="attach all members and try again, or accept the loss with --start-degraded",
            reason=Reason.WRITE_HOLE,
        )
    return Log(epoch, tail, (sequence, position, mark), holders, records, copies)


class _Trial(ParityReplay):
    """Settles for no purpose but to learn whether that is possible; nobody is failed for it."""

    def _covers(self) -> None:
        return None

    async def _read(self, reads: Reads) -> None:
        found = await self.member_set.note_unreadable(
            [(role, *read) for role, of_role in reads.items() for read in of_role]
        )
        if found:
            raise MemberLostError  # plan around these pages


async def require_redoable(journal: Journal, member_set: MemberSet, log_found: Log) -> None:
    """Check that `replay` will need no content that only absent members have; write nothing.

    It is asked before the superblocks exclude them: they could not help any more then. Raises
    UnrecoverableError.
    """
    trial = _Trial(member_set, Overlay(), journal.written)
    for record in log_found.records:
        trial.redo(record)
    await trial.settle()


async def replay(journal: Journal, member_set: MemberSet, log_found: Log) -> Replayed:
    """Redo every record, then begin a new epoch; a read-only start only fills the overlay.

    Raises what the members raise, and UnrecoverableError if the log lacks parity that cannot be
    computed.
    """
    epoch, (sequence, position, mark) = log_found.epoch, log_found.end
    copies = log_found.copies
    records, data_bytes = len(copies), 0
    parity_replay = ParityReplay(member_set, journal.overlay, journal.written)
    for record in log_found.records:
        data_bytes += sum(len(data) for _role, _offset, data in record.data)
        parity_replay.redo(record)
        for first, count in record.written:
            journal.written.set_bits(chunk_range(first, first + count))
        for first, count in record.unwritten:
            journal.written.clear_bits(chunk_range(first, first + count))
    journal.written.forget_beyond()
    await parity_replay.settle()
    journal.take_mark(mark)
    if member_set.read_only:
        return Replayed(epoch, records, data_bytes)
    ring = journal.ring
    ring.go_on(epoch, log_found.tail, sequence, position)
    ends = [position]
    for parities, stripes in parity_replay.settled(journal.unsettled.batch_bytes):
        body = RecordBody()
        body.add_data(parities)
        body.add_unverified(
            (role, at)
            for role, offset, _, size in parities
            for at in range(offset, offset + size, PAGE_BYTES)
            if journal.overlay.is_doubted(role, at)
        )
        body.add_settled(*zip(*stripes, strict=True))
        number, at, offset = ring.take(body.size_bytes)
        copies.append((offset, encode_record(epoch, number, at, ring.array, body)))
        ends.append(ring.position)
    if ring.next_sequence > sequence:
        log.warning("the parity of stripes whose data was logged without it is computed and logged")
    if records:
        log.warning("replaying %d journal records, %d bytes", records, data_bytes)
        journal.choose_roles()
        holders = log_found.holders
        everybody = (holder_of(record.member_uuid) for record in member_set.config.members)
        await ring.believe_also(everybody if holders is None else holders)
        await member_set.write(_wiped(journal, ends, log_found.tail[1]))
        # Both before the records: the head page names their new holders, and none is followed by
        # an older one that the power cut has left behind a record that it took.
        await member_set.flush()
        await member_set.write(
            [
                (role, at, [content], len(content))
                for at, content in copies
                for role in journal.log_members.at(at)
            ]
        )
        await member_set.flush()
    await _place(journal, member_set)
    await journal.begin(epoch + 1)
    return Replayed(epoch, records, data_bytes)


def _check_head(
    journal: Journal, member_set: MemberSet, values: tuple[int, int, int, int], count: int
) -> None:
    """Raise AssemblyError if no array can have written a head page with these values.

    *values*: epoch, sequence, position and watermark. *count*: of log members.
    """
    epoch, sequence, position, mark = values
    if not epoch:
        return  # no journal yet
    problem = None
    # A record has a sector at least, and with what it skips at the end of a lap two laps at most.
    least, most = (sequence - 1) * SECTOR_BYTES, (2 * sequence - 1) * journal.capacity
    if max(epoch, sequence, position) > COUNTER_MAX or not sequence or position % SECTOR_BYTES:
        problem = f"epoch {epoch}, record {sequence} at {position}"
    elif not least <= position <= (most if sequence > 1 else 0):
        problem = f"record {sequence} at {position} of a ring of {journal.capacity} bytes"
    elif count > HOLDERS_MAX:
        problem = f"{count} log members"
    layout = member_set.layout
    if layout.restriping and mark > layout.watermark_max:
        problem = f"a watermark of {mark}"
    if problem is not None:
        raise AssemblyError(f"the head of the journal is impossible: {problem}")


def _wiped(journal: Journal, ends: Sequence[int], tail: int) -> list[MemberIO]:
    """Return writes, for every member, of zeros where a record could follow one of the log.

    *ends* are the positions behind the records that are added, and behind the last one that was
    found: a member whose log could not be read now, but perhaps next time, may have another one
    there. *tail* is the position of the first record of the log: nothing lies a lap behind it.
    """
    capacity = journal.capacity
    places = {
        journal.ring.offset + position % capacity
        for end in ends
        for position in (end, end + -end % capacity)
        if position + SECTOR_BYTES <= tail + capacity
    }
    zeros = bytes(SECTOR_BYTES)
    return [
        (role, place, [zeros], SECTOR_BYTES)
        for place in sorted(places)
        for role, queue in by_role(journal.member_set.queues)
        if queue is not None
    ]


async def _place(journal: Journal, member_set: MemberSet) -> None:
    """Write the overlay, the written map and the chunk table to their home places, and flush."""
    journal.overlay.freeze()
    table = journal.chunk_table
    table.note_redone(journal.overlay.frozen_pages())
    await journal.place_frozen(
        journal.written.take_unsaved(), table.take_unsaved(), table.take_left()
    )
    await member_set.flush()
    journal.overlay.drop_frozen()
