"""Encoding of the records of the redo log (write-ahead log). Pure; FORMAT.md has the byte tables.

A record is one atomic change. It consists of any of these:

* byte ranges of data for roles;
* logical chunks that become written, or unwritten again;
* new places of cells (raidx), or the watermark of a restripe;
* data whose parity follows at the checkpoint, and stripes whose parity has followed
  (journal/unsettled.py);
* data of which nothing says that all of it is right, so that it gets no checksums.

A record is padded to whole sectors, so that a torn write never damages the record before it.

    | header 64 | entries 16 each | data of the entries, end to end | zeros to a whole sector |

A record contains its *position*, counted from the start of its epoch over all laps of the ring. So
a record that is left from an earlier lap or an earlier mount is never taken for a current one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c

from raidx_fuse.errors import OtherVersionError
from raidx_fuse.format.configuration.config import uuid_bytes
from raidx_fuse.format.regions import PAGE_BYTES, PAYLOAD_BYTES, SECTOR_BYTES
from raidx_fuse.layouts.numbers import Chunk, MemberChunk, Offset, Role, Stripe
from raidx_fuse.members.base import ReadBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD_HEADER = struct.Struct("<IIQQQIIQ16s")
"""magic, crc, epoch, sequence, position, body bytes, entries, zero, array UUID."""
RECORD_HEADER_BYTES = 64
assert RECORD_HEADER.size == RECORD_HEADER_BYTES
RECORD_MAGIC = 0x4A584452  # "RDXJ"
CRC_OFFSET = 4
_CRC = struct.Struct("<I")
ENTRY = struct.Struct("<HHIQ")
"""kind, role, length, offset."""
ENTRY_BYTES = ENTRY.size
_ENTRY_TYPE = [("kind", "<u2"), ("role", "<u2"), ("length", "<u4"), ("offset", "<u8")]
DATA, WRITTEN, TABLE, UNWRITTEN, MARK, UNSETTLED, SETTLED, UNVERIFIED = 1, 2, 3, 4, 5, 7, 8, 9
PARITY_BEFORE = 6  # of programs before 79fb2b4: refused
SEQUENCE_MASK = (1 << 32) - 1  # the bits of a sequence number that SETTLED holds
_HEADS: dict[int, struct.Struct] = {}  # number of entries -> header and entries together
_FIELDS_MAX = 1024  # of records that get a Struct of their own, which is large
_ZEROS = bytes(SECTOR_BYTES)
HEAD = struct.Struct("<QQQQQQ")
"""The head page: epoch, sequence and position of the tail, the first record that is perhaps not
checkpointed; the watermark of a restripe at that record; the epoch of the list of log members, and
their number. The list follows: the first half of the UUID of each (`holder_of`)."""
HOLDER_BYTES = 8
HOLDERS_MAX = (PAYLOAD_BYTES - HEAD.size) // HOLDER_BYTES


@dataclass(frozen=True, slots=True)
class Record:
    """A decoded record.

    * *data*: (role, byte offset on the member, bytes).
    * *written*, *unwritten*: runs (first, count) of logical chunks that become so.
    * *table*: (cell, role, member chunk), the new places of cells; *mark*: the watermark of a
      restripe.
    * *unsettled*: (stripe, index of the first data entry, count of data entries) of data without
      its parity; *settled*: (stripe, sequence) of stripes whose parity over all data up to record
      *sequence* is in this record.
    * *unverified*: (role, byte offset on the member, bytes) of data that gets no checksums.
    * *size_bytes*: the size on the ring, padding included.
    """

    sequence: int
    data: tuple[tuple[Role, Offset, bytes], ...]
    written: tuple[tuple[Chunk, int], ...]
    size_bytes: int
    table: tuple[tuple[int, Role, MemberChunk], ...] = ()
    unwritten: tuple[tuple[Chunk, int], ...] = ()
    mark: int | None = None
    unsettled: tuple[tuple[Stripe, int, int], ...] = ()
    settled: tuple[tuple[Stripe, int], ...] = ()
    unverified: tuple[tuple[Role, Offset, int], ...] = ()


def holder_of(member_uuid: str) -> bytes:
    """Return the entry of a log member in the list after HEAD."""
    return uuid_bytes(member_uuid)[:HOLDER_BYTES]


def decode_holders(payload: Any, count: int) -> set[bytes] | None:
    """Return the members (as `holder_of`) that may have records, None for all members.

    None if it has none of them, as the head of an array that was never started.
    """
    end = HEAD.size + count * HOLDER_BYTES
    if not count or end > len(payload):
        return None
    return {bytes(payload[at : at + HOLDER_BYTES]) for at in range(HEAD.size, end, HOLDER_BYTES)}


def pack_entries(kind: int, roles: Any, lengths: Any, offsets: Any) -> bytes:
    """Return packed entries of one *kind*; the others are arrays of numbers, or one number."""
    entries: NDArray[Any] = np.empty(len(offsets), _ENTRY_TYPE)
    entries["kind"], entries["role"] = kind, roles
    entries["length"], entries["offset"] = lengths, offsets
    return entries.tobytes()


@dataclass(slots=True)
class RecordBody:
    """What a record will hold; every record is put together here.

    *fields*: kind, role, length and offset of each entry, end to end. *packed*: entries that follow
    them, as they lie in the record. *buffers*: the bytes of the data entries, *data_bytes* in all.
    """

    fields: list[int] = field(default_factory=list)
    packed: bytes = b""
    buffers: list[ReadBuffer] = field(default_factory=list)
    data_bytes: int = 0

    @property
    def entries(self) -> int:
        return len(self.fields) // 4 + len(self.packed) // ENTRY_BYTES

    @property
    def size_bytes(self) -> int:
        """The size of the record on the ring, padding included."""
        return record_bytes(self.entries, self.data_bytes)

    def add_data(
        self,
        writes: Sequence[tuple[Role, int, Sequence[ReadBuffer], int]],
        unsettled: Stripe | None = None,
    ) -> None:
        """Add writes to members: role, byte offset, buffers, size in bytes.

        They are data of the stripe *unsettled*, whose parity follows, if it is not None.
        """
        fields, buffers = self.fields, self.buffers
        if unsettled is not None:
            fields += (UNSETTLED, 0, len(writes), unsettled)
        for role, offset, parts, size in writes:
            fields += (DATA, role, size, offset)
            buffers += parts
            self.data_bytes += size

    def add_blocks(self, roles: Any, size_bytes: int, offsets: Any, content: Any) -> None:
        """Add *content*, the data of many blocks of *size_bytes*; *roles*, *offsets*: arrays."""
        self.packed += pack_entries(DATA, roles, size_bytes, offsets)
        self.buffers.append(content)
        self.data_bytes += len(content)

    def add_maps(
        self,
        fresh: Iterable[int],
        unwritten: Iterable[int],
        moves: Iterable[tuple[int, int, int]],
        mark: int | None = None,
    ) -> None:
        """Add *fresh* chunks, which become written, and *unwritten* ones; *moves*, *mark*.

        *moves* are new places of cells: (cell, role, chunk); *mark* is a watermark of a restripe.
        """
        for kind, chunks in ((WRITTEN, fresh), (UNWRITTEN, unwritten)):
            for first, count in runs_of(chunks):
                self.fields += (kind, 0, count, first)
        for cell, role, chunk in moves:
            self.fields += (TABLE, role, chunk, cell)
        if mark is not None:
            self.fields += (MARK, 0, 0, mark)

    def add_unverified(self, places: Iterable[tuple[Role, int]]) -> None:
        """Say that the pages at *places* (role, byte offset) of the data get no checksums."""
        role, begin, end = Role(0), 0, 0
        for of_role, offset in sorted(set(places)):
            if (of_role, offset) != (role, end):
                self._add_unverified(role, begin, end)
                role, begin = of_role, offset
            end = offset + PAGE_BYTES
        self._add_unverified(role, begin, end)

    def _add_unverified(self, role: Role, begin: int, end: int) -> None:
        if begin < end:
            self.fields += (UNVERIFIED, role, end - begin, begin)

    def add_unverified_blocks(self, roles: Any, size_bytes: int, offsets: Any) -> None:
        """Do so for blocks as `add_blocks` takes them."""
        self.packed += pack_entries(UNVERIFIED, roles, size_bytes, offsets)

    def add_settled(self, stripes: Sequence[int], sequences: Sequence[int]) -> None:
        """Say that the record has the parity of *stripes*.

        *sequences*: the sequence number of the last record whose data it covers, for each of them.
        """
        if not stripes:
            return
        last = [sequence & SEQUENCE_MASK for sequence in sequences]
        self.packed += pack_entries(SETTLED, 0, last, stripes)


def record_bytes(entries: int, data_bytes: int) -> int:
    """Return the size of a record on the ring, padding included."""
    size = RECORD_HEADER_BYTES + entries * ENTRY_BYTES + data_bytes
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


def encode_record(
    epoch: int, sequence: int, position: int, array_uuid: bytes, body: RecordBody
) -> bytes:
    """Return the record with *body*, padding included."""
    fields, count = body.fields, body.entries
    size = count * ENTRY_BYTES + body.data_bytes
    values = RECORD_MAGIC, 0, epoch, sequence, position, size, count, 0, array_uuid
    if body.packed or len(fields) > _FIELDS_MAX:
        head = bytearray(RECORD_HEADER.pack(*values))
        for at in range(0, len(fields), 4):
            head += ENTRY.pack(*fields[at : at + 4])
        head += body.packed
    else:
        heads = _HEADS.get(count)
        if heads is None:
            heads = _HEADS[count] = struct.Struct(RECORD_HEADER.format + ENTRY.format[1:] * count)
        head = bytearray(heads.size)
        heads.pack_into(head, 0, *values, *fields)
    crc = crc32c(head)
    for buffer in body.buffers:
        crc = crc32c(buffer, crc)
    _CRC.pack_into(head, CRC_OFFSET, crc)
    padding = -(RECORD_HEADER_BYTES + size) % SECTOR_BYTES
    return b"".join((head, *body.buffers, _ZEROS[:padding]))


def runs_of(chunks: Iterable[int]) -> list[tuple[int, int]]:
    """Return (first, count) of the runs of consecutive numbers in *chunks*, ascending."""
    runs: list[tuple[int, int]] = []
    for chunk in sorted(chunks):
        if runs and runs[-1][0] + runs[-1][1] == chunk:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((chunk, 1))
    return runs


def header_fits(
    header: bytes, epoch: int, sequence: int, position: int, array_uuid: bytes, room: int
) -> int | None:
    """Return the size in bytes of the record with *header*, padding included.

    None if the header is not that of the given record, or if the record is larger than *room*.
    """
    magic, _crc, its_epoch, its_sequence, its_position, body, _entries, _zero, its_array = (
        RECORD_HEADER.unpack(header)
    )
    found = (magic, its_epoch, its_sequence, its_position, its_array)
    if found != (RECORD_MAGIC, epoch, sequence, position, array_uuid):
        return None
    size = -(-(RECORD_HEADER_BYTES + body) // SECTOR_BYTES) * SECTOR_BYTES
    return size if size <= room else None


def before_79fb2b4(what: str) -> OtherVersionError:
    """Return the error for *what* in the log of a program before commit 79fb2b4."""
    return OtherVersionError(
        f"{what} is of a raidx before commit 79fb2b4",
        action="mount and unmount the array with raidx of that commit first",
    )


def _contradicting(sequence: int) -> OtherVersionError:
    return OtherVersionError(f"the sizes in record {sequence} of the journal contradict each other")


def decode_record(content: bytes) -> Record | None:
    """Return the record in *content* (its whole size), or None if its checksum is wrong.

    Raises OtherVersionError for a record that is whole and not known here: nothing of it is torn,
    so it is not the end of the log.
    """
    magic, crc, epoch, sequence, position, body, count, zero, array = RECORD_HEADER.unpack_from(
        content
    )
    zeroed = RECORD_HEADER.pack(magic, 0, epoch, sequence, position, body, count, zero, array)
    end = RECORD_HEADER_BYTES + body
    view = memoryview(content)
    if crc32c(view[RECORD_HEADER_BYTES:end], crc32c(zeroed)) != crc:
        return None
    at = RECORD_HEADER_BYTES + count * ENTRY_BYTES
    if zero or at > end:
        raise OtherVersionError(f"record {sequence} of the journal has an unknown header")
    data: list[tuple[Role, Offset, bytes]] = []
    written: list[tuple[Chunk, int]] = []
    table: list[tuple[int, Role, MemberChunk]] = []
    unwritten: list[tuple[Chunk, int]] = []
    mark: int | None = None
    unsettled: list[tuple[Stripe, int, int]] = []
    settled: list[tuple[Stripe, int]] = []
    unverified: list[tuple[Role, Offset, int]] = []
    for index in range(count):
        kind, role, length, offset = ENTRY.unpack_from(
            content, RECORD_HEADER_BYTES + index * ENTRY_BYTES
        )
        if kind == DATA:
            if length > end - at:
                raise _contradicting(sequence)
            data.append((role, offset, bytes(view[at : at + length])))
            at += length
        elif kind == WRITTEN:
            written.append((offset, length))
        elif kind == TABLE:
            table.append((offset, role, length))
        elif kind == UNWRITTEN:
            unwritten.append((offset, length))
        elif kind == MARK:
            mark = offset
        elif kind == UNSETTLED:
            unsettled.append((offset, len(data), length))
        elif kind == SETTLED:  # the newest record before this one whose number ends in these bits
            settled.append((offset, sequence - 1 - (sequence - 1 - length & SEQUENCE_MASK)))
        elif kind == UNVERIFIED:
            unverified.append((role, offset, length))
        elif kind == PARITY_BEFORE:
            raise before_79fb2b4(f"record {sequence} of the journal")
        else:
            what = f"an entry of kind {kind}, unknown to this raidx"
            raise OtherVersionError(f"record {sequence} of the journal has {what}")
    if at != end or any(first + number > len(data) for _, first, number in unsettled):
        raise _contradicting(sequence)
    return Record(
        sequence,
        tuple(data),
        tuple(written),
        len(content),
        tuple(table),
        tuple(unwritten),
        mark,
        tuple(unsettled),
        tuple(settled),
        tuple(unverified),
    )
