"""Checksummed pages of 4 KiB in two slots each, for written map, dirty bitmap, log head and table.

    page p of a region:   | slot 0: header 32, payload 4064 | slot 1: header 32, payload 4064 |

Of the valid slots of a page, the one with the higher generation counts. A page that was never
written is zero. A page contains the UUID of its array, so pages of an earlier array never count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import crc32c
import numpy as np

from raidx_fuse.errors import MemberError, OtherVersionError
from raidx_fuse.format.configuration.config import uuid_bytes, uuid_text
from raidx_fuse.format.log_record import RECORD_MAGIC
from raidx_fuse.format.regions import (
    COUNTER_MAX,
    PAGE_BYTES,
    PAGE_HEADER_BYTES,
    PAGE_KINDS,
    PAGE_SLOTS,
    PAYLOAD_BYTES,
    REGION_KINDS,
    SECTOR_BYTES,
    SUPERBLOCK_SLOT_BYTES,
    SUPERBLOCK_SLOTS,
    PageRegion,
    Regions,
)
from raidx_fuse.members.base import Member, ReadBuffer
from raidx_fuse.members.threads import read_promptly

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE_HEADER = struct.Struct("<IIQIHH8s")
"""magic, crc, generation, page number, kind, zero, first half of the array UUID."""
assert PAGE_HEADER.size == PAGE_HEADER_BYTES
PAGE_MAGIC = 0x50584452  # "RDXP"
PAGE_CRC_OFFSET = 4
_SLOT_DTYPE: Any = {  # as long as a slot, so that many slots are examined in place
    "names": ["magic", "generation", "array"],
    "formats": ["<u4", "<u8", "<u8"],
    "offsets": [0, 8, 24],
    "itemsize": PAGE_BYTES,
}
PAIR_BYTES = PAGE_BYTES * PAGE_SLOTS
SEARCHED_BYTES = 1 << 20  # behind lost superblocks
READ_BYTES = 2 << 20  # of one read: large enough for a disk, small enough for the CPU cache


class DamagedPage(NamedTuple):
    """A slot of this array that is not valid; *generation* is that in its header, or 0."""

    page: int
    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class LoadedPages:
    """The content of a region: the newest valid slot of each of the pages 0..n-1.

    * *generations* (n, uint64): 0 for pages without a valid slot.
    * *payload* (n, PAYLOAD_BYTES, uint8): zero for pages without a valid slot.
    * *slots* (n, int8): -1 for pages without a valid slot.
    * *damaged*: slots of this array that are torn, rotten or misdirected.
    * *older* (n, uint64): the generation of the other valid slot. It was durable on every member
      before the write of the newer one began.
    """

    generations: NDArray[np.uint64]
    payload: NDArray[np.uint8]
    slots: NDArray[np.int8]
    damaged: list[DamagedPage]
    older: NDArray[np.uint64]

    def present(self) -> list[int]:
        """Return the numbers of the pages that were ever written, ascending."""
        return [int(page) for page in np.flatnonzero(self.generations)]


def encode_page(
    page: int, generation: int, kind: str, payload: ReadBuffer, array_uuid: str
) -> bytes:
    """Return the 4096 bytes of *page* of *kind*; *payload* has PAYLOAD_BYTES bytes."""
    assert len(payload) == PAYLOAD_BYTES
    assert generation > 0
    half = uuid_bytes(array_uuid)[:8]
    header = PAGE_HEADER.pack(PAGE_MAGIC, 0, generation, page, PAGE_KINDS[kind], 0, half)
    crc = crc32c.crc32c(payload, crc32c.crc32c(header))
    header = PAGE_HEADER.pack(PAGE_MAGIC, crc, generation, page, PAGE_KINDS[kind], 0, half)
    return b"".join((header, payload))


def _crc_holds(content: ReadBuffer, crc: int) -> bool:
    view = memoryview(content)
    value = crc32c.crc32c(bytes(4), crc32c.crc32c(view[:PAGE_CRC_OFFSET]))
    return crc32c.crc32c(view[PAGE_CRC_OFFSET + 4 :], value) == crc


async def load_pages(
    member: Member,
    region: PageRegion,
    array_uuid: str,
    count: int | None = None,
    *,
    payloads: bool = True,
    newest: LoadedPages | None = None,
) -> LoadedPages:
    """Return the first *count* pages (default: all) of *region* as *member* holds them.

    Payloads are left out without *payloads*, because the maps of a large array take most of its
    memory. They are also left out with *newest*: each page that is newer than the one in *newest*
    is stored there. Parts that the member knows to be zero are not read. Raises MemberError, and
    OtherVersionError for a page that is whole and not known here.
    """
    pages = region.pages if count is None else count
    assert 0 <= pages <= region.pages
    kept = pages if payloads and newest is None else 0
    space = np.zeros((kept, PAYLOAD_BYTES), np.uint8)  # memory only where it is touched
    found = _Found(region.kind, uuid_bytes(array_uuid)[:8], nothing_loaded(space, pages), newest)
    for offset, length in _blocks(member, region.offset, pages * PAIR_BYTES):
        block = await _read(member, offset, length)
        try:
            found.scan(block, (offset - region.offset) // PAIR_BYTES)
        except OtherVersionError as error:
            raise OtherVersionError(f"{member.path}: {error.message}") from error
    return found.result


def _blocks(member: Member, start: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of whole pages, both slots, that may contain nonzero bytes."""
    position = end = start
    for offset, size in member.data_extents(start, length):
        position = max(position, start + (offset - start) // PAIR_BYTES * PAIR_BYTES)
        end = start + min(length, -(-(offset + size - start) // PAIR_BYTES) * PAIR_BYTES)
        while position < end:
            block = min(READ_BYTES, end - position)
            yield position, block
            position += block


async def _read(member: Member, offset: int, length: int) -> memoryview:
    buffer = memoryview(bytearray(length))
    if not member.try_readv(offset, [buffer]):
        await read_promptly(member, offset, [buffer])
    return buffer


async def array_behind(member: Member) -> str | None:
    """Return the first half of the UUID of the array whose maps lie on *member*, or None.

    For a member without a superblock: only the first of them are looked at. Raises MemberError.
    """
    start = SUPERBLOCK_SLOT_BYTES * SUPERBLOCK_SLOTS
    length = min(SEARCHED_BYTES, member.size_bytes - start) // PAGE_BYTES * PAGE_BYTES
    if length <= 0:
        return None
    block = await _read(member, start, length)
    for at in range(0, length, PAGE_BYTES):
        magic, crc, *_, half = PAGE_HEADER.unpack_from(block, at)
        if magic == PAGE_MAGIC and _crc_holds(block[at : at + PAGE_BYTES], crc):
            return uuid_text(half + bytes(8))[:18]
    return None


async def hint_behind(member: Member) -> str:
    """Return what to do if *member* has lost its superblocks, "" if nothing says that."""
    try:
        half = await array_behind(member)
    except MemberError:
        half = None
    if half is None:
        return ""
    return (
        f"; maps of array {half[:8]} lie behind its front: raidx restore-metadata FILE MEMBER... "
        "gives it a superblock"
    )


class _Found:
    """Collects the newest valid slots of one region of one member, block by block."""

    def __init__(
        self, kind: str, half: bytes, result: LoadedPages, newest: LoadedPages | None
    ) -> None:
        self.kind, self.kind_number = kind, PAGE_KINDS[kind]
        self.half = half
        self._half_number = int.from_bytes(half, "little")
        self.result = result
        self._newest = newest or result

    def scan(self, view: memoryview, first: int) -> None:
        """Examine the slots in *view*, which begins with slot 0 of page *first*."""
        slots = np.frombuffer(view, _SLOT_DTYPE)
        magic = slots["magic"]
        # One wrong field does not hide a page of ours: it is then damaged, and said to be.
        written = (magic != 0) | (slots["generation"] != 0)
        candidates = (magic == PAGE_MAGIC) | ((slots["array"] == self._half_number) & written)
        for at in candidates.nonzero()[0].tolist():
            content = view[at * PAGE_BYTES : (at + 1) * PAGE_BYTES]
            self._take(content, first + at // PAGE_SLOTS, at % PAGE_SLOTS)

    def _take(self, content: memoryview, page: int, slot: int) -> None:
        magic, crc, generation, number, kind, zero, half = PAGE_HEADER.unpack_from(content)
        if not _crc_holds(content, crc):
            self.result.damaged.append(DamagedPage(page, slot, generation))
            return
        if half != self.half:
            return  # an earlier array's page: whole, but not ours
        if magic == PAGE_MAGIC and (zero or kind not in PAGE_KINDS.values()):
            raise OtherVersionError(f"{self.kind}: page {page} has an unknown header")
        ours = magic == PAGE_MAGIC and kind == self.kind_number
        if not ours or number != page or not generation:
            self.result.damaged.append(DamagedPage(page, slot, 0))  # a misdirected write
        elif generation > COUNTER_MAX:
            self.result.damaged.append(DamagedPage(page, slot, 0))  # beyond any count
        else:
            self.result.older[page] = min(generation, self.result.generations[page])
            if generation > self.result.generations[page]:
                self._keep(page, slot, generation, content)

    def _keep(self, page: int, slot: int, generation: int, content: memoryview) -> None:
        for pages in (self.result, self._newest):
            if generation > pages.generations[page]:
                pages.generations[page] = generation
                pages.slots[page] = slot
                if len(pages.payload):
                    pages.payload[page] = np.frombuffer(content, np.uint8)[PAGE_HEADER_BYTES:]


def nothing_loaded(payload: NDArray[np.uint8], pages: int) -> LoadedPages:
    """Return the state of *pages* pages before any is loaded; *payload* is for their content."""
    counts = np.zeros(pages, np.uint64), np.zeros(pages, np.uint64)
    return LoadedPages(counts[0], payload, np.full(pages, -1, np.int8), [], counts[1])


async def erase_pages(member: Member, regions: Regions) -> None:
    """Clear the pages of earlier arrays on *member*; not flushed. Raises MemberError.

    A disk that was in the same array before must not bring its old pages back. Bytes that do not
    look like a page stay as they are: they never count.
    """
    for kind in REGION_KINDS:
        await erase_region(member, regions.pages(kind))


async def erase_region(member: Member, region: PageRegion) -> None:
    """Clear every page in *region* of *member*; not flushed. Raises MemberError."""
    await _erase(member, region.offset, region.length, PAGE_BYTES, PAGE_MAGIC)


async def _read_or_clear(member: Member, offset: int, length: int) -> memoryview:
    """Return a range that is to be erased; zeros are written to one that cannot be read."""
    try:
        return await _read(member, offset, length)
    except MemberError:
        zeros = bytes(length)
        await member.writev(offset, [zeros])
        return memoryview(zeros)


async def forget_maps(member: Member) -> None:
    """Clear the pages by which `array_behind` finds an array; not flushed. Raises MemberError.

    What has left its array has no superblock that could be restored.
    """
    start = SUPERBLOCK_SLOT_BYTES * SUPERBLOCK_SLOTS
    length = min(SEARCHED_BYTES, member.size_bytes - start) // PAGE_BYTES * PAGE_BYTES
    if length > 0:
        await _erase_units(member, start, length, PAGE_BYTES, PAGE_MAGIC)


async def erase_log(member: Member, regions: Regions) -> None:
    """Clear every log record on *member*; not flushed. Raises MemberError.

    A disk that was in the same array before, and was then used alone, could have records that match
    the epoch, sequence and position of the running log.
    """
    await _erase(member, *regions.log, SECTOR_BYTES, RECORD_MAGIC)


async def zero_range(member: Member, start: int, length: int) -> None:
    """Make a range of *member* read as zero; not flushed. Raises MemberError."""
    if await member.punch(start, length):
        return
    zeros = bytes(min(length, READ_BYTES))
    for offset, size in _blocks(member, start, length):
        await member.writev(offset, [memoryview(zeros)[:size]])


async def _erase(member: Member, start: int, length: int, unit_bytes: int, magic: int) -> None:
    """Clear every unit of a range that begins with *magic*."""
    if not await member.punch(start, length):
        await _erase_units(member, start, length, unit_bytes, magic)


async def _erase_units(
    member: Member, start: int, length: int, unit_bytes: int, magic: int
) -> None:
    for offset, size in _blocks(member, start, length):
        words = np.frombuffer(await _read_or_clear(member, offset, size), "<u4")
        for at in np.flatnonzero(words[:: unit_bytes // 4] == magic).tolist():
            await member.writev(offset + at * unit_bytes, [bytes(unit_bytes)])
