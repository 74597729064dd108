"""Replay: redo what the journal holds, at the start of an array.

Idempotent and safe to crash in: every record is first made durable on as many members as a running
array would have it on (a cut may have left it on one, which may be the next to be lost); then the
places are written, and the epoch that makes the records invalid is changed after all of them are
durable in their places. A read-only start lays the records
over its reads in memory and writes nothing.

Where a record says that a stripe's parity follows from its data (streams.py), it is computed here,
in the order of the records; and logged, too, if the stripe's places are needed to compute it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from raidx_fuse.errors import MemberError
from raidx_fuse.following import Following
from raidx_fuse.format.journal import (
    HEAD,
    RECORD_HEADER_BYTES,
    Record,
    decode_record,
    encode_record,
    entry_fields,
    header_fits,
    record_bytes,
)
from raidx_fuse.journal import Journal
from raidx_fuse.members.base import Member
from raidx_fuse.pagestore import PageStore
from raidx_fuse.store import Request, Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was redone: *records* with *data_bytes* of content; the journal was in *epoch*."""

    epoch: int
    records: int
    data_bytes: int


class _Ring:
    """Reads records of one epoch from whichever member has them whole."""

    def __init__(self, journal: Journal, store: Store, epoch: int) -> None:
        self._members = [queue.member for queue in store.queues if queue is not None]
        self._offset = journal.ring.offset
        self._capacity = journal.capacity
        self._array = journal.ring.array
        self._epoch = epoch

    def offset(self, position: int) -> int:
        """Return the byte offset on the members of ring *position*."""
        return self._offset + position % self._capacity

    async def record(self, sequence: int, position: int) -> tuple[Record, bytes] | None:
        """Return the record and its bytes, or None if no member holds it whole."""
        for member in self._members:
            try:
                record = await self._read(member, sequence, position)
            except MemberError as error:
                log.warning("journal: %s", error.message)
                continue
            if record is not None:
                return record
        return None

    async def _read(
        self, member: Member, sequence: int, position: int
    ) -> tuple[Record, bytes] | None:
        lap = position % self._capacity
        room = self._capacity - lap
        if room < RECORD_HEADER_BYTES:
            return None
        header = bytearray(RECORD_HEADER_BYTES)
        await member.readv(self._offset + lap, [header])
        size = header_fits(bytes(header), self._epoch, sequence, position, self._array, room)
        if size is None:
            return None
        content = bytearray(size)
        await member.readv(self._offset + lap, [content])
        record = decode_record(bytes(content))
        return None if record is None else (record, bytes(content))


async def replay(journal: Journal, store: Store, head: PageStore) -> Replayed:
    """Redo every record from the tail on; then begin a new epoch, unless the start is read-only.

    Raises what the members raise.
    """
    epoch, sequence, position, mark = HEAD.unpack_from(head.payload)
    records = data_bytes = 0
    tail = position
    following = Following(store, journal.written)
    copies: list[tuple[int, bytes]] = []  # ring offset and content of every record
    if epoch:
        ring = _Ring(journal, store, epoch)
        while True:
            found = await ring.record(sequence, position)
            if found is None and position % journal.capacity:
                next_lap = position + journal.capacity - position % journal.capacity
                found = await ring.record(sequence, next_lap)
                if found is not None:
                    position = next_lap
            if found is None:
                break
            record, content = found
            copies.append((ring.offset(position), content))
            data_bytes += sum(len(data) for _role, _offset, data in record.data)
            await following.redo(record)
            for first, count in record.written:
                journal.written.set_bits(range(first, first + count))
            for first, count in record.unwritten:
                journal.written.clear_bits(range(first, first + count))
            journal.shares.redo(record.table)
            mark = mark if record.mark is None else record.mark
            records += 1
            sequence += 1
            position += record.size_bytes
    journal.shares.settle()
    journal.take_mark(mark)
    if store.read_only:
        return Replayed(epoch, records, data_bytes)
    await following.forget_placed()
    while parities := following.parities():
        if position + 2 * _parity_bytes(parities) - tail <= journal.capacity:
            break
        following.forget_oldest()  # of a closing that no flush covered: the records go first
    if parities:
        copies.append(_parity_record(journal, epoch, sequence, position, parities))
        log.warning("the parity of stripes that were being filled is computed and logged")
    if records:
        log.warning("replaying %d journal records, %d bytes", records, data_bytes)
        journal.choose_roles()
        await store.write(
            [
                (role, at, [content], len(content))
                for role in journal.roles
                for at, content in copies
            ]
        )
        await store.flush()
    await _place(journal, store)
    await journal.begin(epoch + 1)
    return Replayed(epoch, records, data_bytes)


def _parity_bytes(parities: Sequence[Request]) -> int:
    return record_bytes(len(parities), sum(request[3] for request in parities))


def _parity_record(
    journal: Journal, epoch: int, sequence: int, position: int, parities: Sequence[Request]
) -> tuple[int, bytes]:
    """Return ring offset and content of a record behind the last: *parities* that the log lacks."""
    fields, parts, total = entry_fields(parities)
    size = record_bytes(len(parities), total)
    capacity = journal.capacity
    lap = position % capacity
    if lap + size > capacity:
        position += capacity - lap
        lap = 0
    # There is room: `Streams.reserve_bytes` were kept free, and `replay` has looked.
    content = encode_record(epoch, sequence, position, journal.ring.array, fields, parts, total)
    return journal.ring.offset + lap, content


async def _place(journal: Journal, store: Store) -> None:
    """Write everything to its place and make it durable."""
    store.overlay.freeze()
    roles = [role for role, queue in enumerate(store.queues) if queue is not None]
    placed = store.overlay.frozen_writes(roles)
    await store.write([(role, *write) for role, writes in placed for write in writes])
    await journal.written.pages.save_as(journal.written.take_unsaved())
    await journal.shares.save_as(journal.shares.take_unsaved())
    await store.flush()
    store.overlay.drop_frozen()
