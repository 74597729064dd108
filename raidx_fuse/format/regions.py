"""The regions of a member: pure computation of their sizes, equal on all members of an array.

    0        superblock slots A and B, 64 KiB each
    128 KiB  bitmap    dirty-stripe bitmap, two-slot pages
             written   written map, two-slot pages, with space for growth
             log       redo log: a head page in two slots, then a ring of records
             table     empty: the share of the look-up table (raidx) lies after the data
             sums      checksums of other members' data, in arrays that have them
    aligned  data      chunks 0, 1, 2, ...
             sums      here, where the room before the data does not suffice
             log       here, where another size was chosen later, and there was no room before
    end      copies of the superblock slots (`end_offset`), on members of 64 MiB and more

A member of 1 MiB with 4 KiB chunks: log 128 KiB, data from 272 KiB (a multiple of 16 KiB).

>>> regions = plan_regions(1 << 20, 4096, 4)
>>> regions.written, regions.log, regions.data
(Region(offset=139264, length=8192), Region(offset=147456, length=131072), \
Region(offset=278528, length=770048))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, ClassVar, NamedTuple

from raidx_fuse.errors import TooSmallError, UsageError
from raidx_fuse.format.configuration.codec import Stored
from raidx_fuse.layouts.numbers import Offset

SECTOR_BYTES = 512
PAGE_BYTES = 4096
PAGE_HEADER_BYTES = 32
PAYLOAD_BYTES = PAGE_BYTES - PAGE_HEADER_BYTES
PAYLOAD_BITS = PAYLOAD_BYTES * 8
PAGE_SLOTS = 2
SUPERBLOCK_SLOT_BYTES = 64 << 10
SUPERBLOCK_SLOTS = 2
SUPERBLOCK_BYTES = SUPERBLOCK_SLOT_BYTES * SUPERBLOCK_SLOTS
END_MEMBER_BYTES_MIN = 64 << 20  # a smaller member has superblocks in its front only
SUMS_MEMBER_BYTES_MIN = END_MEMBER_BYTES_MIN  # smaller ones have room for checksums if asked to
END_GAP_BYTES = 1 << 20
"""What stays free behind the superblocks at the end, and the unit to which a size is rounded down
before: a GPT's backup lies there, tools clear the last MiB, and loop devices and NBD servers round
sizes."""

COUNTER_MAX = 1 << 62
"""The limit of all counters and sizes of the format; larger numbers were never written by raidx."""

BITMAP_UNIT_BYTES = 1 << 20  # the least member space for each bit of the dirty bitmap
GROWTH_FACTOR = 4
GROWTH_WIDTH_MIN = 64
LOG_SHARE = 8  # of a member; a larger log is emptied less often, at less cost for each write
LOG_BYTES_MAX = 64 << 20  # unless the user asks for more
LOG_BYTES_LIMIT = 128 << 20  # a checkpoint begins at 32 MiB of overlay: a larger log stays empty
LOG_SLACK_BYTES = 64 << 10  # head page, headers and entries of two records
DATA_ALIGNMENT_MAX = 1 << 20
SUMS_PER_SECTOR = 126  # beside their generation and their check (sum_table.py)
SUMS_PER_PAGE = SUMS_PER_SECTOR * (PAGE_BYTES // SECTOR_BYTES)
SUM_TAIL_SHARE = 8  # of a table of checksums: its tail (sum_tail.py)
SUM_TAIL_BYTES_MAX = 16 << 20

PAGE_KINDS = {"bitmap": 1, "written": 2, "journal": 3, "table": 4}
"""Kinds of pages and their number in the page header; 0 is no kind."""
REGION_KINDS = ("bitmap", "written", "journal")
"""Kinds whose regions are equal on all members; see table_page.py for the other kind."""


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def end_offset(member_bytes: int) -> Offset | None:
    """Return where the superblock slots at the end of a member of *member_bytes* begin, or None.

    >>> end_offset((100 << 20) + 12345) == (99 << 20) - (128 << 10)
    True
    """
    if member_bytes < END_MEMBER_BYTES_MIN:
        return None
    return Offset(member_bytes // END_GAP_BYTES * END_GAP_BYTES - END_GAP_BYTES - SUPERBLOCK_BYTES)


def usable_bytes(member_bytes: int) -> int:
    """Return how many bytes of a member may be used that has superblocks at its end, if it can."""
    return end_offset(member_bytes) or member_bytes


def has_room_for_sums(sizes: Sequence[int]) -> bool:
    """Return whether members of *sizes* bytes keep room for checksums also while there are none."""
    return min(sizes) >= SUMS_MEMBER_BYTES_MIN


def member_bytes_for(needed_bytes: int) -> int:
    """Return the least size of a member with *needed_bytes* of `usable_bytes`.

    >>> member_bytes_for(62 << 20) >> 20, member_bytes_for(63 << 20) >> 20
    (62, 63)
    >>> [member_bytes_for(needed << 20) >> 20 for needed in (64, 70)]
    [66, 72]
    """
    if needed_bytes < END_MEMBER_BYTES_MIN:
        return needed_bytes
    return _up(needed_bytes + SUPERBLOCK_BYTES, END_GAP_BYTES) + END_GAP_BYTES


class Region(NamedTuple):
    """Bytes *offset*..*offset* + *length* - 1 of every member."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


NO_REGION = Region(0, 0)
"""The place of a region that the array does not have."""


@dataclass(frozen=True, slots=True)
class PageRegion:
    """*pages* pages of *kind* from byte *offset* on; both slots of a page are adjacent."""

    offset: int
    pages: int
    kind: str

    def slot_offset(self, page: int, slot: int) -> Offset:
        """Return the byte offset on the member of *slot* (0 or 1) of *page*."""
        assert 0 <= page < self.pages
        assert 0 <= slot < PAGE_SLOTS
        return Offset(self.offset + (page * PAGE_SLOTS + slot) * PAGE_BYTES)

    @property
    def length(self) -> int:
        """Size of the region in bytes, both slots of every page."""
        return self.pages * PAGE_SLOTS * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of every member of one array, in their order on the member.

    *sums*, with the tables of checksums, is NO_REGION in an array that keeps none: then the
    superblocks do not name it. It lies before the data or behind them. So does a log whose size was
    changed; if it is not behind the written map any more, *table* marks where it was.
    """

    UNKNOWN: ClassVar[str] = "the configuration has the region"

    superblock: Region
    bitmap: Region
    written: Region
    log: Region
    table: Region
    sums: Annotated[Region, Stored(optional=True)] = field(default=NO_REGION, kw_only=True)
    data: Region

    def pages(self, kind: str) -> PageRegion:
        """Return the page region of *kind*: "bitmap", "written", or "journal", the log's head."""
        assert kind in REGION_KINDS, kind
        if kind == "journal":
            return PageRegion(self.log.offset, 1, kind)
        region: Region = getattr(self, kind)
        return PageRegion(region.offset, region.length // (PAGE_SLOTS * PAGE_BYTES), kind)

    def named(self) -> dict[str, Region]:
        """Return name to region, in the order on the member."""
        every: dict[str, Region] = {one.name: getattr(self, one.name) for one in fields(self)}
        moving = ["sums", "data"]
        if self.log.offset >= self.table.offset:
            moving.insert(0, "log")
        for name in sorted(moving, key=lambda one: every[one].offset):
            every[name] = every.pop(name)
        return {name: region for name, region in every.items() if region != NO_REGION}

    @property
    def end(self) -> int:
        """Where the last region ends."""
        return max(self.data.end, self.sums.end, self.log.end)

    @property
    def has_moved_log(self) -> bool:
        """Whether the log does not follow the written map, where `create` has put it."""
        return self.log.offset != self.written.end

    @property
    def sum_table_bytes(self) -> int:
        """Size of the checksums of one member's data: whole pages, without the copies."""
        return _sum_table_bytes(self.data.length)

    def sums_bytes(self, copies: int) -> int:
        """Return the size of a region with *copies* tables of the checksums of these data.

        With their tails.
        """
        return copies * _sums_bytes(self.data.length)

    def sum_table_offset(self, slot: int) -> Offset:
        """Return the byte offset on each member of *slot* number n for a table of checksums."""
        offset = self.sums.offset + slot * self.sum_table_bytes
        assert self.sums.offset <= offset <= self.sums.end - self.sum_table_bytes
        return Offset(offset)

    def place_for_sums(self, copies: int, used: int, end: int) -> Region | None:
        """Return where *copies* tables of checksums of the data have a place, None if nowhere.

        That is before the data; or behind them, from byte *used* on, up to *end*. Without tails, if
        there is no room for them.
        """
        for is_before in (True, False):
            for length in (self.sums_bytes(copies), copies * self.sum_table_bytes):
                for gap in self._gaps(used, end):
                    if length <= gap.length and (gap.end <= self.data.offset) == is_before:
                        return Region(gap.offset, length)
        return None

    def place_for_log(self, length: int, end: int) -> Region | None:
        """Return where a log of *length* bytes has a place, None if nowhere.

        Where it begins now, if it can; else clear of it, so that either is whole while it changes
        its place. It lies before the data if there is room, or at the far end of what is free up to
        byte *end* of the members, so that what is behind the data stays in one part.
        """
        following = [one.offset for one in (self.sums, self.data) if one.offset > self.log.offset]
        here = Region(self.log.offset, length)
        stays = here.end <= min(following, default=end)
        gaps = self._gaps(0, end)
        before = [gap for gap in gaps if length <= gap.length and gap.end <= self.data.offset]
        if stays and here.offset < self.data.offset:
            return here
        if before:
            return Region(before[0].offset, length)
        if stays:
            return here
        behind = [gap for gap in gaps if length <= gap.length]
        return Region(behind[-1].end - length, length) if behind else None

    @property
    def log_bytes_before_data(self) -> int:
        """How large a log that is behind the data may be to lie before them again."""
        gaps = self._gaps(0, 0)
        return max((gap.length for gap in gaps if gap.end <= self.data.offset), default=0)

    def with_log(self, place: Region) -> Regions:
        """Return these regions with the log in *place*."""
        follows = place.offset == self.written.end
        return replace(self, log=place, table=Region(place.end if follows else self.written.end, 0))

    def _gaps(self, used: int, end: int) -> list[Region]:
        """Return what is free: before the data, and behind them from byte *used* on, up to *end*.

        In whole pages.
        """
        gaps, start = list[Region](), self.table.end
        last = Region(end // PAGE_BYTES * PAGE_BYTES, 0)
        for region in sorted((self.log, self.sums, self.data, last)):
            if region == NO_REGION or region.end <= start:
                continue
            gaps.append(Region(start, region.offset - start))
            start = region.end
            if start >= self.data.end:
                start = max(start, _up(used, PAGE_BYTES))
        return [gap for gap in gaps if gap.length > 0]

    def sum_tail_bytes(self, copies: int) -> int:
        """Return how much room the region of checksums has for a tail beside each of its tables.

        There are *copies* of them.
        """
        room = self.sums.length // copies - self.sum_table_bytes
        return max(0, min(room, SUM_TAIL_BYTES_MAX)) // PAGE_BYTES * PAGE_BYTES

    def sum_tail_offset(self, slot: int, copies: int, tail_bytes: int) -> Offset:
        """Return the byte offset on each member of the tail of the table in *slot* number n.

        The tails lie behind all *copies* of tables.
        """
        offset = self.sums.offset + copies * self.sum_table_bytes + slot * tail_bytes
        assert offset <= self.sums.end - tail_bytes
        return Offset(offset)

    def problem(self) -> str | None:
        """Return in words why these regions are impossible, or None."""
        end = 0
        for name, region in self.named().items():
            if region.offset < end or region.length < 0:
                return f"region {name} overlaps the one before it"
            if region.offset % PAGE_BYTES or region.length % PAGE_BYTES:
                return f"region {name} is not made of whole pages"
            end = region.end
        if self.superblock != Region(0, SUPERBLOCK_BYTES):
            return "the superblock region is not the first 128 KiB"
        if end > COUNTER_MAX:
            return f"the regions reach to byte {end}"
        if not self.sums.length and self.sums != NO_REGION:
            return "region sums is empty"
        pair = PAGE_SLOTS * PAGE_BYTES
        if min(self.bitmap.length, self.written.length) < pair or self.log.length <= pair:
            return "a region has no room for its first page"
        return None


def _sum_table_bytes(data_bytes: int) -> int:
    return -(-data_bytes // (PAGE_BYTES * SUMS_PER_PAGE)) * PAGE_BYTES


def _sums_bytes(data_bytes: int) -> int:
    """Return the size of a table of checksums of *data_bytes*, and of its tail."""
    table_bytes = _sum_table_bytes(data_bytes)
    share = _up(-(-table_bytes // SUM_TAIL_SHARE), PAGE_BYTES)
    return table_bytes + min(share, SUM_TAIL_BYTES_MAX)


def page_count(bits: int) -> int:
    return -(-bits // PAYLOAD_BITS)


def data_alignment(member_bytes: int) -> int:
    """Return the alignment of the data region: 1 MiB, or a power of two of at most 1/64 member."""
    share = max(PAGE_BYTES, member_bytes // 64)
    return int(min(DATA_ALIGNMENT_MAX, 1 << (share.bit_length() - 1)))


def log_bytes(member_bytes: int, stripe_bytes: int, wanted_bytes: int | None = None) -> int:
    """Return the size of the log region: 1/LOG_SHARE of the member, at most LOG_BYTES_MAX.

    *wanted_bytes*, the user's choice, comes instead.

    It always holds two records of a whole stripe (*stripe_bytes* includes parity): a change of a
    stripe is one record, and a part of the ring is reused only half a ring later. Raises UsageError
    if *wanted_bytes* is too little for that, or more than the log can use.
    """
    least = _up(2 * stripe_bytes + LOG_SLACK_BYTES, PAGE_BYTES)
    if wanted_bytes is None:
        return _up(max(min(member_bytes // LOG_SHARE, LOG_BYTES_MAX), least), PAGE_BYTES)
    most = max(least, min(LOG_BYTES_LIMIT, member_bytes // 2))
    if not least <= wanted_bytes <= most:
        raise UsageError(
            f"a log of {wanted_bytes} bytes is not possible: here it has {least} to {most} bytes"
        )
    return _up(wanted_bytes, PAGE_BYTES)


def plan_regions(
    member_bytes: int,
    chunk_bytes: int,
    width: int,
    rows: int = 1,
    total_bytes: int | None = None,
    log_bytes_wanted: int | None = None,
    data_end: int | None = None,
    sums_copies: int = 0,
    sums_end: int | None = None,
    has_sums: bool = False,
) -> Regions:
    """Return the regions for *width* members, of which the smallest has *member_bytes*.

    The data end at *data_end*, by default with the member. *sums_end*: where data with checksums
    may end on larger members; the data region ends there, then, on whatever member it is.

    *rows* is the number of chunks of a stripe on one member. *total_bytes*, the size of all members
    together, is given for raidx layouts, which use every member completely; *width* is then the
    length of a bundle.

    The written map has space for four times the width, and at least for 64 members, so that growth
    never moves a region; with *total_bytes*, for four times that size. *log_bytes_wanted*: of the
    log, instead of the default. *sums_copies*: for how many tables of checksums each member has
    room before its data, each of them of a whole member, with its tail; *has_sums*: they have their
    region there. Raises UsageError if not even one chunk of data fits.
    """
    chunks_max = member_bytes // chunk_bytes * max(GROWTH_WIDTH_MIN, GROWTH_FACTOR * width)
    bitmap_bytes = member_bytes
    if total_bytes is not None:
        chunks_max = total_bytes // chunk_bytes * GROWTH_FACTOR
        # A bit covers at least 16 MiB of the image (store/dirty_bitmap.py): this has space for four
        # times the image as well.
        bitmap_bytes = total_bytes // min(width, GROWTH_FACTOR)
    superblock = Region(0, SUPERBLOCK_BYTES)

    def pages_after(before: Region, bits: int) -> Region:
        pages = max(1, page_count(bits))
        return Region(before.end, pages * PAGE_SLOTS * PAGE_BYTES)

    bitmap = pages_after(superblock, -(-bitmap_bytes // BITMAP_UNIT_BYTES))
    written = pages_after(bitmap, chunks_max)
    log = Region(written.end, log_bytes(member_bytes, rows * width * chunk_bytes, log_bytes_wanted))
    table = Region(log.end, 0)
    end, alignment = data_end or member_bytes, data_alignment(member_bytes)
    start = _up(table.end, alignment)
    usable = (end - start) // chunk_bytes * chunk_bytes
    data_bytes, sums = usable, NO_REGION
    if sums_copies and usable >= chunk_bytes:
        # The place for the checksums of all data that there would be without them; the region
        # is what the data that is left needs.
        far = max(end, sums_end or end)
        data_bytes = (far - start) // chunk_bytes * chunk_bytes
        start = _up(table.end + sums_copies * _sums_bytes(data_bytes), alignment)
        usable = (end - start) // chunk_bytes * chunk_bytes
        data_bytes = max(far - start, 0) // chunk_bytes * chunk_bytes
        sums = Region(table.end, sums_copies * _sums_bytes(data_bytes))
    if usable < chunk_bytes:
        raise TooSmallError(
            f"a member of {member_bytes} bytes is too small: {start} bytes of metadata and one "
            f"chunk of {chunk_bytes} need {start + chunk_bytes}",
            action="use larger members or a smaller chunk"
            + ("" if sums == NO_REGION else ", or leave out the checksums: --sums off"),
        )
    data, sums = Region(start, data_bytes), sums if has_sums else NO_REGION
    return Regions(superblock, bitmap, written, log, table, data, sums=sums)
