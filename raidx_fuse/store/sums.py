"""Sums: a checksum for every page of 4 KiB of the members' data, and who is asked when one misfits.

A sum is *none* (0) or the CRC-32C of a page, combined with the page's place, so that right bytes at
a wrong place do not fit. In memory there is a table for each role, of the home places as they are:
whatever writes cells sets their sums with the write (`Sums.write`, `Sums.note`), and every read of
a home place is compared with them (`Sums.read`, `Sums.fits_now`). Where whole stripes are written,
the sums of parities are computed from those of data (`stripe_crcs`), not from the parities. A table
is read when a page of it is first needed. On the members the tables follow:

    logged          record durable -> home, sums of it (`save`) -> flush -> the tail moves
    past the log    mark durable -> data -> sums (`save`) -> flush -> unmark
    rebuild         copy -> sums (`save`) -> flush -> watermark
    a chunk moves   through the log; where it lay: none -> flush -> page of the look-up table
    after a crash   records are redone with their sums; in marked regions there are none in memory
                    (`forget_stripes`), and on the members those of before, until the resync has
                    made their stripes consistent

What changes few sums of a page of a table is written to the table's tail, if it has one
(store/sum_tail.py). So a table on a member, with its tail, is right but for what the log redoes and
for marked regions, whenever the power goes: no two writes have to be atomic together. A cut leaves
old and new sectors of a table, so entries that did not change are the same in both. All copies are
read, and of each sector the newest counts: a copy that missed a write, or lies on an old copy of a
member, costs nothing.

Laws:
 1. A page is written whole, and its old bytes are verified before. Requests for parts of pages are
    made whole before they are planned (engine/write/write.py), first writes fill their chunks. An
    old page that has no sum gets that of what the code gives back, if all of that has sums; else
    the new page gets none, nor the parities that come from it (`Overlay.doubt`), until a scrub. Not
    held yet: where whole pages are written, parities that come from other pages without a sum, and
    what the log redoes, get one all the same.
 2. A sum is set before the first byte of its page is written, in the same step. Until an
    asynchronous write has ended, its pages are *in flight*: what is read there meanwhile is read
    again (healthy reads take no lock).
 3. A page misfits only if it was read again with no write to it in flight (`judge`). Then it counts
    as unreadable: readers plan around it, and the mender decides (engine/write/mend.py).
 4. Only bytes that fit are written home to heal a page. If what the code gives back equals what
    was read, the sum was wrong, and is replaced.
 5. While a role is lost, or not rebuilt yet, the sums of its data say what its pages must be: they
    are set with writes that cannot reach them (engine/write/prepare.py, `Cells.write_frozen`), or
    are none. What the code gives back must fit them: else it is solved without the survivors that
    have no sum, or it is lost (engine/contradictions.py). Those of its parities say nothing, for
    data alone decides what they are, nor those of layouts whose cells a table places. What is
    rebuilt gets a sum if all that it comes from had one, or if it fits (jobs/verify_rebuilt.py).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import trio
from crc32c import crc32c
from numpy.typing import NDArray

from raidx_fuse.errors import MemberError, NoSpaceError
from raidx_fuse.format.configuration.sums import StoredSums
from raidx_fuse.format.regions import SECTOR_BYTES, SUMS_PER_PAGE, SUMS_PER_SECTOR, Regions
from raidx_fuse.format.sum_table import (
    RUN_PAGES_MAX,
    SECTORS_PER_PAGE,
    ZEROS_CRC,
    Sectors,
    decode_sums,
    encode_sums,
    places_of,
    runs_fit,
    seed_of,
    sum_of,
    sums_from,
    sums_of,
)
from raidx_fuse.format.sum_tail import (
    TailSectors,
    decode_tail,
    encode_tail,
    sectors_for,
)
from raidx_fuse.laws import Law, Laws
from raidx_fuse.layouts.numbers import Role, cell_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.members.unreadable import Unreadable, is_of_place
from raidx_fuse.store.buffers import zeroed
from raidx_fuse.store.io_tuples import (
    PAGE_BYTES,
    PAGE_MASK,
    PAGE_SHIFT,
    MemberIO,
    MemberLostError,
    MemberRead,
)
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.sum_tail import Pages, Tail
from raidx_fuse.store.xor import Program

log = logging.getLogger(__name__)

ENTRIES = SUMS_PER_PAGE
COVERED = ENTRIES * PAGE_BYTES  # of the data, by the sums in one page of a table
RUN_BYTES_MAX = RUN_PAGES_MAX * PAGE_BYTES
_FEW = 8  # reads that are compared sooner without sorting them
_LOADED_AT_ONCE = 256  # pages of a table in one read
_TAIL_READ_BYTES = 1 << 20
_TAIL_RESERVED_SECTORS = 128  # of a tail's space on the hosts, at a time
_WHOLE_MIN = ENTRIES // 4  # new sums of a page of a table: it is written, not its tail
Values = NDArray[np.uint32]
Page = tuple[Role, int]  # role, page of the data region
Covers = Callable[[Role, int, int], bool]  # as `Overlay.covers`


def _nothing(pages: int) -> Sectors:
    """Return *pages* pages of a table that were never written."""
    count = pages * SECTORS_PER_PAGE
    sums = np.zeros((count, SUMS_PER_SECTOR), np.uint32)
    return Sectors(sums, np.zeros(count, np.uint32), [])


def _with_past(values: Values, past: Values) -> Values:
    """Return *values* as they are saved: what awaits its resync keeps the sums of before the crash.

    Another crash may come before the resync.
    """
    kept: Values = np.where(values == 0, past, values)
    return kept


def _part(buffers: Sequence[Any], at: int) -> memoryview:
    """Return the page from byte *at* on of *buffers*, which follow one another."""
    for buffer in buffers:
        if at < len(buffer):
            return memoryview(buffer)[at : at + PAGE_BYTES]
        at -= len(buffer)
    raise ValueError("no such page")


def _pages_of(buffers: Sequence[Any]) -> list[Any]:
    """Return the pages of *buffers*, which follow one another and are whole pages together."""
    if len(buffers) > 1 and any(len(buffer) & PAGE_MASK for buffer in buffers):
        buffers = [b"".join(buffers)]
    pages: list[Any] = []
    for buffer in buffers:
        size = len(buffer)
        if size == PAGE_BYTES:
            pages.append(buffer)
        else:
            view = memoryview(buffer)
            pages += [view[at : at + PAGE_BYTES] for at in range(0, size, PAGE_BYTES)]
    return pages


def _batches(reads: Iterable[MemberIO]) -> Iterator[list[MemberIO]]:
    """Yield *reads* of whole pages in batches for `Sums.fit_now`; what is larger is cut."""
    batch: list[MemberIO] = []
    left = RUN_BYTES_MAX
    for read in reads:
        for part in (read,) if read[3] <= RUN_BYTES_MAX else _cut(read):
            left -= part[3]
            if left < 0:
                yield batch
                batch, left = [], RUN_BYTES_MAX - part[3]
            batch.append(part)
    if batch:
        yield batch


def _cut(read: MemberIO) -> Iterator[MemberIO]:
    """Yield parts of *read* that are not larger than RUN_BYTES_MAX."""
    role, offset, buffers, _ = read
    if any(len(buffer) & PAGE_MASK for buffer in buffers):
        buffers = [b"".join(buffers)]
    for buffer in buffers:
        view = memoryview(buffer)
        for at in range(0, len(view), RUN_BYTES_MAX):
            part = view[at : at + RUN_BYTES_MAX]
            yield role, offset, [part], len(part)
            offset += len(part)


def stripe_crcs(
    encoder: Program, data: Sequence[memoryview], data_count: int, stripes: int
) -> Values:
    """Return the CRCs of the pages of all cells of whole *stripes*: [stripe * cells + cell, page].

    *data* are their data cells end to end, *data_count* in each stripe. The CRC of a XOR of
    pages is the XOR of their CRCs, but for a constant: the CRC of zeros. So those of parities
    follow from those of data by the *encoder* of the parities themselves; and what it computed
    wrongly does not fit.
    """
    pages = [part[at : at + PAGE_BYTES] for part in data for at in range(0, len(part), PAGE_BYTES)]
    found = np.fromiter(map(crc32c, pages), np.uint32, len(pages))
    found = found.reshape(stripes, data_count, -1).swapaxes(0, 1)
    crcs = np.empty((encoder.cells, stripes, found.shape[2]), np.uint32)
    crcs[:data_count] = found ^ ZEROS_CRC
    encoder.run([*crcs.reshape(encoder.cells, -1).view(np.uint8)])
    crcs ^= ZEROS_CRC
    return crcs.swapaxes(0, 1).reshape(stripes * encoder.cells, -1)


def no_cover(_role: Role, _begin: int, _end: int) -> bool:
    """Say that nothing lies over the home places."""
    return False


class HomePlaces(Protocol):
    """What of a member set (store/member_set.py) the sums need."""

    overlay: Overlay
    unreadable: Unreadable
    laws: Laws
    read_only: bool
    place_epoch: int
    role_epoch: int

    @property
    def queues(self) -> Sequence[object]:
        """By role; None for those that are lost."""
        ...

    @property
    def readable(self) -> Sequence[object]:
        """By role; None for those that are lost or not rebuilt."""
        ...

    def path_of(self, role: Role) -> str:
        """Return the path of a member."""
        ...

    async def read_home(self, role: Role, offset: int, size: int) -> bytearray | MemberError | None:
        """Return the bytes of a range as they lie there."""
        ...

    async def read(
        self, requests: Sequence[MemberRead], *, background: bool = False, home: bool = False
    ) -> None:
        """Fill the buffers of *requests*, from the *home* places."""
        ...

    async def write(self, requests: Sequence[MemberIO], *, background: bool = False) -> None:
        """Write *requests*."""
        ...

    async def sync(self) -> None:
        """Return when what was written is durable; no superblock is written for that."""

    def reserve(self, writes: Iterable[MemberIO]) -> None:
        """Reserve space on the hosts for *writes*. Raises NoSpaceError."""
        ...


class GivenSums(NamedTuple):
    """The sums of the pages from byte *offset* of *role* on that come with a write; 0: none."""

    role: Role
    offset: int
    values: Values


@dataclass(slots=True)
class Misfits:
    """Collects the *pages* that reads find not to fit; with *stay* nothing else comes of it.

    They are read as they lie there then: no other reader plans around them, and nobody heals them.
    """

    stay: bool
    pages: set[Page] = field(default_factory=set)

    def take(self) -> set[Page]:
        """Return the pages so far, and begin anew."""
        pages, self.pages = self.pages, set()
        return pages


@dataclass(slots=True, eq=False)
class _Flight:
    """A write under way to *runs* of pages (role, first, end)."""

    runs: list[tuple[Role, int, int]]
    landed: trio.Event = field(default_factory=trio.Event)

    def over(self, role: Role, page: int) -> bool:
        """Return whether *page* of *role* is being written."""
        return any(run[0] == role and run[1] <= page < run[2] for run in self.runs)


@dataclass(slots=True, eq=False)
class TableCopy:
    """A copy of the table of *role* that is being made from byte *offset* on, by *write*.

    *made*: by page, which generation of it.
    """

    role: Role
    offset: int
    write: Callable[[int, list[bytes]], Awaitable[None]]
    made: Values | None = None


class Sums:
    """The sums of one array; `MemberSet.sums` is None while it has none.

    *stored* says where its tables lie. Attributes: *misfits* (pages that did not fit their sums),
    *healed* (of those, written anew), *wrong_sums* (sums that were wrong about
    right bytes), *unverified* (pages whose bytes were taken as they were after a crash),
    *damaged_sectors* (of tables, in any copy, that could not be read or failed their checks);
    *suspects* (pages that misfit and are not healed yet).
    """

    def __init__(self, member_set: HomePlaces, regions: Regions, stored: StoredSums) -> None:
        self.member_set = member_set
        self.misfits = self.healed = self.wrong_sums = self.unverified = 0
        self.damaged_sectors = 0
        self.suspects: set[Page] = set()
        self._contradicted: set[Page] = set()  # that misfit as the code gave them back, so far
        self.damaged: list[str] = []  # as page stores have it; tables repair themselves
        self._begin = regions.data.offset
        self._end = regions.data.end
        self._regions = regions
        # By role; the sums are in *_tables*, of which *_views* are for one page.
        self._views: list[memoryview] = []
        self._tables: list[Values] = []
        # What the sums of stripes that await their resync were before the crash.
        self._past: list[Values] = []
        self._has_past = False  # else the memory of *_past* stays untouched
        self._loaded: list[bytearray] = []
        self._generations: list[Values] = []
        self._tails: list[Tail] = []
        # Since the last save: pages, runs of them (first, end), and arrays of them.
        self._changes: list[list[Any]] = []
        self._take(stored, [None] * len(stored.tables))
        self._dirty: set[tuple[Role, int]] = set()  # (role, page of its table)
        self._whole: set[tuple[Role, int]] = set()  # those that the tail does not suffice for
        self._flights: list[_Flight] = []
        self._reserved: set[tuple[Role, int]] = set()  # (role, page of its table) on every holder
        self._reserved_tails: dict[Role, int] = {}  # sectors
        self._reserved_for = -1  # role epoch
        self._saving = trio.Lock()
        self._loading = trio.Lock()

    def _take(self, stored: StoredSums, came_from: Sequence[int | None]) -> None:
        """Let the tables be those of *stored*; where a role *came_from* another one, it has its."""
        pages = self._regions.sum_table_bytes // PAGE_BYTES
        views, self._views = self._views, []
        tables, self._tables = self._tables, []
        past, self._past = self._past, []
        loaded, self._loaded = self._loaded, []
        generations, self._generations = self._generations, []
        tails, self._tails = self._tails, []
        changes, self._changes = self._changes, []
        for old in came_from:
            if old is not None and len(loaded[old]) == pages:
                self._views.append(views[old])
                self._tables.append(tables[old])
                self._past.append(past[old])
                self._loaded.append(loaded[old])
                self._generations.append(generations[old])
                self._tails.append(tails[old])
                self._changes.append(changes[old])
                continue
            memory = memoryview(zeroed(pages * ENTRIES * 4))
            self._views.append(memory.cast("I"))
            self._tables.append(np.frombuffer(memory, np.uint32))
            self._past.append(np.frombuffer(zeroed(pages * ENTRIES * 4), np.uint32))
            self._loaded.append(bytearray(pages))
            self._generations.append(np.zeros(pages, np.uint32))
            if old is not None:  # pages come behind those that there were, and have no sums
                known = len(loaded[old])
                self._tables[-1][: known * ENTRIES] = tables[old]
                self._past[-1][: known * ENTRIES] = past[old]
                self._loaded[-1][:] = loaded[old] + b"\1" * (pages - known)
                self._generations[-1][:known] = generations[old]
            sectors = stored.tail // SECTOR_BYTES
            known_tail = None if old is None else tails[old]
            self._tails.append(known_tail or Tail(sectors, is_known=not sectors))
            self._changes.append([] if old is None else changes[old])
        for tail in self._tails:
            tail.resize(stored.tail // SECTOR_BYTES)
        self.stored = stored
        self._width = len(stored.tables)
        self._seeds = [seed_of(stored.seed, table.number) for table in stored.tables]
        self._seeds_given = {seed_of(stored.seed, number) for number in range(stored.given)}

    # -- values --------------------------------------------------------------------------------

    def _value(self, role: Role, page: int, content: ReadBuffer) -> int:
        return sum_of(content, page, self._seeds[role])

    def _values(self, role: Role, first: int, buffers: Sequence[ReadBuffer]) -> Values:
        """Return the sums of *buffers*, whole pages from page *first* of *role* on."""
        pages = _pages_of(buffers)
        return sums_of(
            pages, np.arange(first, first + len(pages), dtype=np.uint32), self._seeds[role]
        )

    def _pages(self, role: Role, offset: int, size: int) -> tuple[int, int] | None:
        """Return first page and end of a range of a member; None if it is not of the data."""
        if not self._begin <= offset < self._end or role >= self._width:
            return None
        return offset - self._begin >> PAGE_SHIFT, offset + size - self._begin >> PAGE_SHIFT

    # -- tables --------------------------------------------------------------------------------

    def _has(self, role: Role, first: int, end: int) -> bool:
        loaded = self._loaded[role]
        number, last = first // ENTRIES, (end - 1) // ENTRIES
        while number <= last:
            if not loaded[number]:
                return False
            number += 1
        return True

    async def load(self, requests: Iterable[tuple[Role, int, Any, int]]) -> None:
        """Have the sums of *requests* (role, byte offset, buffers, size) in memory."""
        begin, end, width = self._begin, self._end, self._width
        for role, offset, _, size in requests:
            if begin <= offset < end and role < width:
                first = (offset - begin) // COVERED
                last = (offset + max(size, 1) - 1 - begin) // COVERED
                loaded = self._loaded[role]
                if not (loaded[first] and loaded[last] and last - first < 2):
                    await self._load(role, first, last + 1)

    async def _load(self, role: Role, first: int, end: int) -> None:
        """Load the pages *first* .. *end* - 1 of the table of *role* that are not in memory."""
        loaded, role_epoch = self._loaded[role], self.member_set.role_epoch
        end = min(end, len(loaded))
        while first < end:
            if loaded[first]:
                first += 1
                continue
            async with self._loading:  # others read their part in between
                if loaded[first]:
                    continue
                if role_epoch != self.member_set.role_epoch and loaded is not self._loaded[role]:
                    raise MemberLostError  # it is another role by now
                stop = first + 1
                while stop < min(end, first + _LOADED_AT_ONCE) and not loaded[stop]:
                    stop += 1
                if not self._tails[role].is_known:
                    await self._read_tail(role)
                    continue
                await self._read_table(role, first, stop)
                loaded[first:stop] = b"\1" * (stop - first)
                first = stop

    def _holders(self, role: Role) -> Iterator[tuple[Role, int]]:
        """Yield role and byte offset of each copy of the table of *role*."""
        for holder, slot in self.stored.tables[role].slots:
            yield Role(holder), self._regions.sum_table_offset(slot)

    async def _read_table(self, role: Role, first: int, end: int) -> None:
        """Take the newest copy of each sector of pages *first* .. *end* - 1 of the table of *role*.

        Copies that lack it are written again. The pages of sectors that nobody has, have no sums.
        """
        count = (end - first) * SECTORS_PER_PAGE
        sums = np.zeros((count, SUMS_PER_SECTOR), np.uint32)
        newest = np.zeros(count, np.uint32)
        copies = []
        for holder, offset in self._holders(role):
            if self.member_set.queues[holder] is None:
                continue
            found = await self._read_copy(role, holder, offset, first, end)
            counts = self.member_set.readable[holder] is not None
            copies.append((found, counts))
            if counts:  # the others have what is long past
                better = found.generations > newest
                sums[better], newest[better] = found.sums[better], found.generations[better]
        lacking = np.zeros(count, np.bool_)
        # A role without a member has no table.
        unknown = np.full(count, bool(self.stored.tables[role].slots))
        for copy, counts in copies:
            lacking |= copy.generations != newest
            bad = np.zeros(count, np.bool_)
            bad[copy.bad] = True
            lacking |= bad
            if counts:
                unknown &= bad
                self.damaged_sectors += len(copy.bad)
        if unknown.any():
            log.error("checksums of role %d cannot be read: their pages are not verified", role)
        tail = self._tails[role]
        tail.note_generation(int(newest.max()))
        tail.lay_over(sums, newest, first)
        if sums.any():  # else the memory of the table stays untouched
            self._tables[role][first * ENTRIES : end * ENTRIES] = sums.reshape(-1)
        # What nobody gives may lie, older, on a member that will be read again: `save_all` before.
        pages = np.maximum(newest, unknown).reshape(-1, SECTORS_PER_PAGE)
        self._generations[role][first:end] = pages.max(axis=1)
        numbers = np.unique(np.flatnonzero(lacking) // SECTORS_PER_PAGE).tolist()
        self._whole.update((role, first + number) for number in numbers)

    async def _read_tail(self, role: Role) -> None:
        """Take what the copies of the tail of *role* have.

        If some of it is lost, nothing says which sums of the table are old: then none of them
        counts any more.
        """
        tail = self._tails[role]
        copies, others = list[TailSectors](), list[TailSectors]()
        for holder, offset in self._tail_holders(role):
            if self.member_set.queues[holder] is None:
                continue
            found = await self._read_tail_copy(role, holder, offset)
            counts = self.member_set.readable[holder] is not None
            (copies if counts else others).append(found)
        self.damaged_sectors += sum(len(copy.bad) for copy in copies)
        if tail.take(copies, others):
            return
        log.error("checksums of role %d are lost: its pages are not verified", role)
        table, loaded = self._tables[role], self._loaded[role]
        for first in range(0, len(loaded), _LOADED_AT_ONCE):
            end = min(first + _LOADED_AT_ONCE, len(loaded))
            await self._read_table(role, first, end)
            table[first * ENTRIES : end * ENTRIES] = 0
        loaded[:] = b"\1" * len(loaded)
        self.save_again(role)

    async def _read_tail_copy(self, role: Role, holder: Role, at: int) -> TailSectors:
        """Return the copy of the tail of *role* at *at* of *holder*; what cannot be read is bad."""
        bad, content = list[int](), bytearray()
        for begin in range(0, self.stored.tail, _TAIL_READ_BYTES):
            size = min(_TAIL_READ_BYTES, self.stored.tail - begin)
            found = await self.member_set.read_home(holder, at + begin, size)
            if isinstance(found, bytearray):
                content += found
                continue
            for page in range(begin, begin + size, PAGE_BYTES):
                found = await self.member_set.read_home(holder, at + page, PAGE_BYTES)
                if not isinstance(found, bytearray):
                    log.error("checksums cannot be read: %s", found)
                    first = page // SECTOR_BYTES
                    bad += range(first, first + SECTORS_PER_PAGE)
                    found = bytearray(PAGE_BYTES)
                content += found
        first = self._tail_number
        end = len(self._loaded[role]) * ENTRIES
        seeds = self._seeds_given
        sectors = decode_tail(content, first, self._seeds[role], seeds, pages_end=end)
        if sectors.bad:
            path = self.member_set.path_of(holder)
            log.error("%s: %d sectors of checksums are damaged", path, len(sectors.bad))
        return sectors._replace(bad=sorted({*bad, *sectors.bad}))

    def _tail_holders(self, role: Role) -> Iterator[tuple[Role, int]]:
        """Yield role and byte offset of each copy of the tail of *role*."""
        stored = self.stored
        for holder, slot in stored.tables[role].slots:
            offset = self._regions.sum_tail_offset(slot, stored.copies, stored.tail)
            yield Role(holder), offset

    @property
    def _tail_number(self) -> int:
        """The number of the first sector of a tail, counted from the beginning of the table."""
        return self._regions.sum_table_bytes // SECTOR_BYTES

    async def _read_copy(
        self, role: Role, holder: Role, offset: int, first: int, end: int
    ) -> Sectors:
        """Return the copy at *offset* of *holder*; what cannot be read is bad."""
        at, size = offset + first * PAGE_BYTES, (end - first) * PAGE_BYTES
        content = await self.member_set.read_home(holder, at, size)
        if not isinstance(content, bytearray) and end - first > 1:
            parts = [
                await self._read_copy(role, holder, offset, page, page + 1)
                for page in range(first, end)
            ]
            bad = [n * SECTORS_PER_PAGE + b for n, part in enumerate(parts) for b in part.bad]
            sums = np.concatenate([part.sums for part in parts])
            return Sectors(sums, np.concatenate([part.generations for part in parts]), bad)
        if not isinstance(content, bytearray):
            log.error("checksums cannot be read: %s", content)
            return _nothing(1)._replace(bad=[*range(SECTORS_PER_PAGE)])
        if not any(content):
            return _nothing(end - first)
        found = decode_sums(content, first, self._seeds[role], self._seeds_given)
        if found.bad:
            path = self.member_set.path_of(holder)
            log.error("%s: %d sectors of checksums are damaged", path, len(found.bad))
        return found

    def reserve(self, pages: Iterable[tuple[Role, int]]) -> None:
        """Reserve space on the hosts for the *pages* of tables (role, page), in every copy.

        Raises NoSpaceError. A write of a table on a full host would cost its member.
        """
        if self._reserved_for != self.member_set.role_epoch:  # a new member has none yet
            self._reserved_for, self._reserved = self.member_set.role_epoch, set()
            self._reserved_tails = {}
        for role, number in set(pages) - self._reserved:
            self.member_set.reserve(
                (holder, offset + number * PAGE_BYTES, (), PAGE_BYTES)
                for holder, offset in self._holders(role)
            )
            self._reserved.add((role, number))

    def reserve_for(self, requests: Iterable[tuple[Role, int, Any, int]]) -> None:
        """Reserve space for the sums of *requests*, which are about to be written first.

        Raises NoSpaceError.
        """
        for role, offset, _, size in requests:
            pages = self._pages(role, offset, size)
            if pages is not None:
                numbers = range(pages[0] // ENTRIES, (pages[1] - 1) // ENTRIES + 1)
                self.reserve((role, number) for number in numbers)

    async def save(self) -> None:
        """Write the sums that changed to their members; durable after the next flush.

        Raises what the members raise, and NoSpaceError, with nothing written, if a host is full;
        then the next call writes them again.
        """
        if self.member_set.read_only:
            return
        # One call after another: the caller relies on what an earlier one is writing still, and a
        # member may turn round two writes to one place.
        async with self._saving:
            await self._save()

    async def _save(self, *, turn: bool = False) -> None:
        """Do so; *turn*: and have all sums in the tables, durably."""
        for role, tail in enumerate(self._tails):
            if not tail.sectors_max:
                continue
            needed = sectors_for(self._changed_pages(Role(role))) if self._changes[role] else 0
            is_full = not tail.has_room(needed) and tail.position > 1
            if (tail.is_due and not tail.is_unused) or (turn and tail.tables) or is_full:
                await self._turn(Role(role))
            tail.is_due = False
        self.reserve(self._dirty | self._whole)
        requests: list[MemberIO] = []
        due, self._dirty = self._dirty | self._whole, set()
        whole, self._whole = self._whole, set()
        try:
            for role in map(Role, range(self._width)):
                numbers = {number for of_role, number in due if of_role == role}
                if numbers:
                    again = {number for of_role, number in whole if of_role == role}
                    requests += self._requests(role, numbers, again, turn)
            await self.member_set.write(requests, background=True)
        except BaseException:
            self._dirty |= due
            self._whole |= due
            raise

    def _changed_pages(self, role: Role) -> Pages:
        """Return the pages of *role* whose sums were set since the last save, in order."""
        changes = self._changes[role]
        if len(changes) == 1 and isinstance(changes[0], np.ndarray):
            return changes[0]
        single = [change for change in changes if not isinstance(change, tuple | np.ndarray)]
        runs = [np.arange(*change) for change in changes if isinstance(change, tuple)]
        arrays = [change for change in changes if isinstance(change, np.ndarray)]
        pages: Pages = np.unique(np.concatenate([np.array(single, np.int64), *runs, *arrays]))
        self._changes[role] = [pages]
        return pages

    def _requests(
        self, role: Role, numbers: set[int], again: set[int], turn: bool
    ) -> list[MemberIO]:
        """Return the writes that save the pages *numbers* of the table of *role*, *again* whole."""
        tail, generations = self._tails[role], self._generations[role]
        if not tail.sectors_max:
            self._changes[role] = []
            at = np.array(sorted(numbers))
            generations[at] += np.uint32(1)
            return self._of_table(role, at)
        pages = self._changed_pages(role)
        self._changes[role] = []
        tables, counts = np.unique(pages // ENTRIES, return_counts=True)
        few = {*tables[counts < _WHOLE_MIN].tolist()} & numbers - again
        pages = pages[np.isin(pages // ENTRIES, np.fromiter(few, np.int64, len(few)))]
        sectors = sectors_for(pages)
        if turn or not tail.has_room(sectors) or not self._reserve_tail(role, sectors):
            few = set()
        requests: list[MemberIO] = []
        if few:
            sums = self._tables[role][pages]
            if self._has_past:
                sums = _with_past(sums, self._past[role][pages])
            requests += self._of_tail(role, pages, sums)
        if len(few) < len(numbers):
            # Sums of these that the tail has already must not count any more.
            at = np.array(sorted(numbers - few))
            generations[at] = tail.new_generation()
            requests += self._of_table(role, at)
        return requests

    def _of_table(self, role: Role, numbers: Pages) -> list[MemberIO]:
        """Return the writes of the pages *numbers*, ascending, of the table of *role*."""
        requests: list[MemberIO] = []
        generations = self._generations[role]
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(numbers, cuts):
            for at in range(0, len(run), _LOADED_AT_ONCE):
                part = run[at : at + _LOADED_AT_ONCE]
                first, seed = int(part[0]), self._seeds[role]
                values = self._pages_to_save(role, part)
                content = encode_sums(values, first, seed, generations[part])
                for holder, offset in self._holders(role):
                    place = offset + first * PAGE_BYTES
                    requests.append((holder, place, [content], len(content)))
        return requests

    def _of_tail(
        self, role: Role, pages: Pages, sums: Values, at: int | None = None
    ) -> list[MemberIO]:
        """Return the writes of the next sectors of the tail of *role*, or of empty sector *at*."""
        tail = self._tails[role]
        position = tail.position if at is None else at
        content = encode_tail(
            pages,
            sums,
            first=self._tail_number + position,
            seed=self._seeds[role],
            generation=tail.generation,
            since=tail.since,
        )
        if at is None:
            tail.add(pages, sums, len(content) // SECTOR_BYTES)
        return [
            (holder, offset + position * SECTOR_BYTES, [content], len(content))
            for holder, offset in self._tail_holders(role)
        ]

    def _reserve_tail(self, role: Role, sectors: int) -> bool:
        """Reserve space on the hosts for so many *sectors* more of a tail; return if there is."""
        tail, reserved = self._tails[role], self._reserved_tails.get(role, 0)
        end = tail.position + sectors
        if end <= reserved:
            return True
        end = min(tail.sectors_max, -(-end // _TAIL_RESERVED_SECTORS) * _TAIL_RESERVED_SECTORS)
        size = (end - reserved) * SECTOR_BYTES
        try:
            self.member_set.reserve(
                (holder, offset + reserved * SECTOR_BYTES, (), size)
                for holder, offset in self._tail_holders(role)
            )
        except NoSpaceError:
            return False  # the pages of the table have theirs
        self._reserved_tails[role] = end
        return True

    async def _turn(self, role: Role) -> None:
        """Write each page of the table of which the tail has sums, and let the tail begin anew.

        Those that are to be written whole are among them: if some of the tail was lost, nothing
        says so any more when its sectors are empty.
        """
        tail = self._tails[role]
        whole = {(of_role, number) for of_role, number in self._whole if of_role == role}
        numbers = np.array(sorted(tail.tables | {number for _, number in whole}), np.int64)
        self.reserve((role, number) for number in numbers.tolist())
        for at in range(0, len(numbers), _LOADED_AT_ONCE):
            part = numbers[at : at + _LOADED_AT_ONCE]
            for number in part.tolist():
                await self._load(role, number, number + 1)
            # Not before: what is loaded may have as high a one.
            self._generations[role][part] = tail.new_generation()
            await self.member_set.write(self._of_table(role, part), background=True)
        await self.member_set.sync()  # before the first sector is overwritten
        self._whole -= whole
        spoilt = {0, *tail.spoilt}
        tail.begin_anew()
        none = np.zeros(0, np.int64), np.zeros(0, np.uint32)
        requests = [request for at in sorted(spoilt) for request in self._of_tail(role, *none, at)]
        await self.member_set.write(requests, background=True)

    def _pages_to_save(self, role: Role, numbers: Pages) -> Values:
        """Return the sums in the pages *numbers* of the table of *role*, as they are saved."""
        values = self._tables[role].reshape(-1, ENTRIES)[numbers].reshape(-1)
        if not self._has_past:
            return values
        return _with_past(values, self._past[role].reshape(-1, ENTRIES)[numbers].reshape(-1))

    async def save_all(self) -> None:
        """Have every member hold the sums as they are, because a new one must hold them, too.

        All that was ever saved is written: a member that returned has older sums, and a twin
        (jobs/replace.py) reads what its old member has.
        """
        for role, table in enumerate(self._tables):
            await self.load_table(Role(role))
            used = table.reshape(-1, ENTRIES).any(axis=1) | (self._generations[role] > 0)
            self._whole.update((Role(role), number) for number in np.flatnonzero(used).tolist())
            self._tails[role].is_due = True
        await self.save()

    # -- other roles ---------------------------------------------------------------------------

    async def copy_tables(self, copies: Sequence[TableCopy]) -> None:
        """Bring *copies* up to date with what was saved. Raises what their members raise."""
        for copy in copies:
            role = copy.role
            await self.load_table(role)
            generations = self._generations[role]
            if copy.made is None:
                copy.made = np.zeros_like(generations)
            due = np.flatnonzero(generations != copy.made)
            for at in range(0, len(due), _LOADED_AT_ONCE):
                numbers = due[at : at + _LOADED_AT_ONCE]
                for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
                    first, found = int(run[0]), generations[run]
                    values = self._pages_to_save(role, run)
                    content = [encode_sums(values, first, self._seeds[role], found)]
                    await copy.write(copy.offset + first * PAGE_BYTES, content)
                    copy.made[run] = found

    async def load_table(self, role: Role) -> None:
        """Have all sums of *role* in memory."""
        await self._load(role, 0, len(self._loaded[role]))

    def save_again(self, role: Role) -> None:
        """Let the next `save` write all of the table of *role*: its places were used for others."""
        saved = np.flatnonzero(self._generations[role]).tolist()
        self._whole.update((role, number) for number in saved)
        self._tails[role].is_due = True

    def are_copied(self, copies: Sequence[TableCopy]) -> bool:
        """Return whether *copies* have all that was set, and no table is being saved or loaded."""
        return not (
            self._dirty
            or self._whole
            or any(tail.tables for tail in self._tails)
            or self._saving.locked()
            or self._loading.locked()
            or any(
                copy.made is None or (self._generations[copy.role] != copy.made).any()
                for copy in copies
            )
        )

    @asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Have all sums saved, and no table read or written while the block runs."""
        async with self._saving:
            if not self.member_set.read_only:
                await self._save(turn=True)
            async with self._loading:
                yield

    def adopt(
        self,
        stored: StoredSums,
        came_from: Sequence[int | None],
        regions: Regions | None = None,
    ) -> None:
        """Let roles be other ones, whose tables lie where *stored* says.

        *came_from*: by new role, its old one, None for a new member, whose pages have no sums. The
        copies that are new have been made (`are_copied`). *regions*: with as many data or more; the
        pages that come have no sums.
        """
        if regions is not None:
            self._regions, self._end = regions, regions.data.end
        self._reserved_for = -1
        new_role = {Role(old): Role(r) for r, old in enumerate(came_from) if old is not None}
        self._take(stored, came_from)
        for role, old in enumerate(came_from):
            if old is None:
                self._loaded[role][:] = b"\1" * len(self._loaded[role])
                self._tails[role].is_known = True
        self._dirty = {(new_role[r], number) for r, number in self._dirty if r in new_role}
        self._whole = {(new_role[r], number) for r, number in self._whole if r in new_role}
        self.suspects = {(new_role[r], page) for r, page in self.suspects if r in new_role}
        for flight in self._flights:
            runs = flight.runs
            flight.runs = [(new_role[r], first, end) for r, first, end in runs if r in new_role]

    def begin_empty(self) -> None:
        """Take the tables on the members for what they are: empty. Nothing is read from them."""
        for loaded, tail in zip(self._loaded, self._tails, strict=True):
            loaded[:] = b"\1" * len(loaded)
            tail.is_known = True

    async def heal(self) -> None:
        """Do nothing: what a cut left uneven is redone from the log, or forgotten."""

    def _set(self, role: Role, first: int, values: Values | int, count: int) -> None:
        self._tables[role][first : first + count] = values
        if self._has_past:
            self._past[role][first : first + count] = 0
        self._changes[role].append((first, first + count))
        dirty = self._dirty
        for number in range(first // ENTRIES, (first + count - 1) // ENTRIES + 1):
            dirty.add((role, number))

    # -- writing -------------------------------------------------------------------------------

    def is_ready(self, requests: Iterable[MemberIO]) -> bool:
        """Return whether `note` and `note_written` can be called for *requests* now."""
        for role, offset, _, size in requests:
            pages = self._pages(role, offset, size)
            if pages is not None and not self._has(role, *pages):
                return False
        return True

    def note(self, role: Role, offset: int, buffers: Sequence[ReadBuffer], size: int) -> None:
        """Set the sums of a write whose first byte is written in this step, or was just now.

        Raises LawError for a part of a page.
        """
        pages = self._pages(role, offset, size)
        if pages is None:
            return
        self._require_whole(offset, size)
        first, end = pages
        if end - first == 1 and len(buffers) == 1:
            self._views[role][first] = self._value(role, first, buffers[0])
            self._changes[role].append(first)
            self._dirty.add((role, first // ENTRIES))
            return
        self._set(role, first, self._values(role, first, buffers), end - first)

    def note_written(
        self, requests: Sequence[MemberIO], written: Sequence[MemberIO | None], crcs: Values
    ) -> None:
        """Do as `note` for those *written* of *requests*; *crcs* are those of all their pages."""
        pages = [request[1] - self._begin >> PAGE_SHIFT for request in requests]
        seeds = [self._seeds[request[0]] for request in requests]
        counts = [request[3] >> PAGE_SHIFT for request in requests]
        values = sums_from(crcs, places_of(pages, seeds, counts))
        at = 0
        for request, first, count in zip(written, pages, counts, strict=True):
            if request is not None:
                self._require_whole(request[1], request[3])
                self._set(request[0], first, values[at : at + count], count)
            at += count

    def _require_whole(self, offset: int, size: int) -> None:
        """Raise LawError for a write of a part of a page."""
        if (offset | size) & PAGE_MASK:
            raise self.member_set.laws.broken(Law.WHOLE, f"{size} bytes at {offset}")

    def note_all(self, requests: Sequence[MemberIO]) -> list[tuple[Role, int, int]]:
        """Do as `note` for each of *requests*; return their runs of pages (role, first, end)."""
        runs: list[tuple[Role, int, int]] = []
        pages: list[Any] = []
        for role, offset, buffers, size in requests:
            run = self._pages(role, offset, size)
            if run is not None:
                self._require_whole(offset, size)
                runs.append((role, *run))
                pages += _pages_of(buffers)
        if not runs:
            return runs
        firsts = [first for _, first, _ in runs]
        counts = [end - first for _, first, end in runs]
        places = places_of(firsts, [self._seeds[role] for role, _, _ in runs], counts)
        values = sums_from(np.fromiter(map(crc32c, pages), np.uint32, len(pages)), places)
        at = 0
        for (role, first, _), count in zip(runs, counts, strict=True):
            self._set(role, first, values[at : at + count], count)
            at += count
        return runs

    def note_many(self, role: Role, writes: Sequence[tuple[int, Any, int]]) -> None:
        """Do as `note` for many writes (byte offset, buffers, size) of one role."""
        single = [write for write in writes if write[2] == PAGE_BYTES and len(write[1]) == 1]
        if len(single) < len(writes):
            others = [write for write in writes if write[2] != PAGE_BYTES or len(write[1]) != 1]
            self.note_all([(role, *write) for write in others])
        if not single:
            return
        offsets = np.fromiter((write[0] for write in single), np.int64, len(single))
        if (offsets & PAGE_MASK).any():
            raise self.member_set.laws.broken(Law.WHOLE, f"pages at {offsets.tolist()}")
        pages = offsets - self._begin >> PAGE_SHIFT
        contents = [write[1][0] for write in single]
        self._tables[role][pages] = sums_of(contents, pages.astype(np.uint32), self._seeds[role])
        self._changes[role].append(pages)
        self._dirty.update((role, number) for number in np.unique(pages // ENTRIES).tolist())

    async def write(
        self,
        requests: Sequence[MemberIO],
        *,
        background: bool,
        given: Sequence[GivenSums] | None = None,
        unverified: Collection[Page] = (),
    ) -> None:
        """Set the sums of *requests* and write them as `MemberSet.write` does. Raises as it does.

        They are those that are *given*, for all pages, else computed, and none for the *unverified*
        pages. If it raises, what the places hold is not known, and they have no sum.
        """
        await self.load(requests)
        for _, offset, _, size in requests:
            self._require_whole(offset, size)  # before the first sum is set
        flight = _Flight(
            self.note_all(requests) if given is None else self._note_given(requests, given)
        )
        for role, page in unverified:
            self._set(role, page, 0, 1)
        self._flights.append(flight)
        try:
            await self.member_set.write(requests, background=background)
        except BaseException:
            for role, first, end in flight.runs:
                self._set(role, first, 0, end - first)
            raise
        finally:
            self._flights.remove(flight)
            flight.landed.set()

    def _note_given(
        self, requests: Sequence[MemberIO], given: Sequence[GivenSums]
    ) -> list[tuple[Role, int, int]]:
        """Set the sums *given* for *requests*; return their runs of pages. Raises LawError."""
        runs = [
            (request[0], *run)
            for request in requests
            if (run := self._pages(*request[:2], request[3]))
        ]
        if sum(end - first for _, first, end in runs) != sum(len(one.values) for one in given):
            raise self.member_set.laws.broken(Law.WHOLE, "sums are not given for all pages")
        for role, offset, values in given:
            self._set(role, offset - self._begin >> PAGE_SHIFT, values, len(values))
        return runs

    async def forget(self, requests: Iterable[tuple[Role, int, Any, int]]) -> None:
        """Let the places of *requests* have no sum: they are not live any more."""
        requests = list(requests)
        await self.load(requests)
        for request in requests:
            self.forget_now(*request)

    def forget_now(self, role: Role, offset: int, _buffers: Any, size: int) -> None:
        """Do as `forget` for one place, whose sums are in memory."""
        pages = self._pages(role, offset, size)
        if pages is not None:
            first, end = pages
            self._set(role, first, 0, end - first)
            self.suspects -= {
                page for page in self.suspects if page[0] == role and first <= page[1] < end
            }

    async def forget_role(
        self, role: Role, kept: NDArray[np.bool_] | None = None, chunk_bytes: int = PAGE_BYTES
    ) -> None:
        """Let no page of *role* have a sum, but those of the chunks that are *kept*."""
        await self.load_table(role)
        table = self._tables[role].reshape(-1, ENTRIES)
        for number in np.flatnonzero(table.any(axis=1)).tolist():
            values = np.zeros(ENTRIES, np.uint32)
            if kept is not None:
                pages = np.arange(number * ENTRIES, (number + 1) * ENTRIES)
                chunks = np.minimum(pages * PAGE_BYTES // chunk_bytes, len(kept) - 1)
                values = np.where(kept[chunks], table[number], values)
            if (values != table[number]).any():
                self._set(role, number * ENTRIES, values, ENTRIES)

    async def forget_stripes(self, layout: Layout, ranges: Iterable[range]) -> None:
        """Let the cells of stripes have no sum: a crash came while they were written.

        Their *past* sums are kept for the resync (jobs/fill_sums.py), also on the members: another
        crash may come before it. The dirty bitmap says so durably, and the sums follow before its
        bits are cleared.
        """
        for stripes in ranges:
            for at in range(stripes.start, stripes.stop, ENTRIES):
                numbers = np.arange(at, min(stripes.stop, at + ENTRIES), dtype=np.int64)
                async for role, found in self._cells_of(layout, numbers):
                    self._past[role][found] = self._tables[role][found]
                    self._tables[role][found] = 0
                    self._has_past = True
                    self._note_changed(role, found)

    async def forget_past(self, layout: Layout, stripes: Sequence[int]) -> None:
        """Forget what the sums of *stripes* were before a crash: their resync has ended."""
        async for role, found in self._cells_of(layout, np.array(stripes, np.int64)):
            if self._past[role][found].any():  # of cells that are lost, or hold nothing
                self._past[role][found] = 0
                self._note_changed(role, found)

    def _note_changed(self, role: Role, pages: NDArray[np.int64]) -> None:
        pages = np.sort(pages)  # of a look-up table they come in any order; a tail's ascend
        self._changes[role].append(pages)
        self._dirty.update((role, number) for number in np.unique(pages // ENTRIES).tolist())

    async def _cells_of(
        self, layout: Layout, stripes: NDArray[np.int64]
    ) -> AsyncIterator[tuple[Role, NDArray[np.int64]]]:
        """Yield (role, pages) of the cells of *stripes*; their sums are in memory."""
        pages = layout.chunk_bytes >> PAGE_SHIFT
        inner = np.arange(pages)
        for cell in cell_range(0, len(layout.code.cells)):
            roles, chunks = layout.places(stripes, cell)
            for role in np.unique(roles).tolist():
                if not 0 <= role < self._width:
                    continue
                places = chunks[roles == role]
                first, end = int(places.min()) * pages, (int(places.max()) + 1) * pages
                await self._load(Role(role), first // ENTRIES, -(-end // ENTRIES))
                yield Role(role), (places[:, None] * pages + inner).ravel()

    # -- reading -------------------------------------------------------------------------------

    def fits_now(self, role: Role, offset: int, buffers: Sequence[ReadBuffer], size: int) -> bool:
        """Return whether bytes that were read in this step fit; False if it cannot be told now."""
        if size != PAGE_BYTES or offset & PAGE_MASK:
            return self.fit_now(((role, offset, buffers, size),))
        page = offset - self._begin >> PAGE_SHIFT
        if not self._loaded[role][page // ENTRIES]:
            return False
        known = self._views[role][page]
        return not known or known == sum_of(buffers[0], page, self._seeds[role])

    def fit_now(self, reads: Sequence[MemberIO]) -> bool:
        """Return whether all that *reads* have read in this step fits; False as `fits_now`."""
        known: list[Values] = []
        firsts: list[int] = []
        seeds: list[int] = []
        counts: list[int] = []
        crc = 0
        left = RUN_PAGES_MAX
        for role, offset, buffers, size in reads:
            if (offset | size) & PAGE_MASK or not self._begin <= offset < self._end:
                return False
            if role >= self._width:
                return False
            first = offset - self._begin >> PAGE_SHIFT
            count = size >> PAGE_SHIFT
            left -= count
            loaded = self._loaded[role]
            if left < 0 or not (
                loaded[first // ENTRIES] and loaded[(first + count - 1) // ENTRIES]
            ):
                return False
            known.append(self._tables[role][first : first + count])
            firsts.append(first)
            counts.append(count)
            seeds.append(self._seeds[role])
            for buffer in buffers:
                crc = crc32c(buffer, crc)
        if runs_fit(crc, known, places_of(firsts, seeds, counts)):
            return True
        for run, first, read in zip(known, firsts, reads, strict=True):  # some may have no sum
            if self._misfits(read[0], first, first + len(run), read[2]):
                return False
        return True

    def _misfits(
        self, role: Role, first: int, end: int, buffers: Sequence[ReadBuffer]
    ) -> list[int]:
        """Return which of the pages *first* .. *end* - 1 of *role*, in *buffers*, do not fit."""
        known = self._tables[role][first:end]
        if not known.any():
            return []
        wrong = (self._values(role, first, buffers) != known) & (known != 0)
        return [first + at for at in np.flatnonzero(wrong).tolist()] if wrong.any() else []

    def wrong_pages(self, role: Role, offset: int, content: ReadBuffer) -> list[int]:
        """Return the bytes of home *content*, whole pages, at which pages begin that do not fit.

        The sums are in memory (`load`). A page to which a write is in flight may be among them.
        """
        return [at - offset for _, at, _ in self._wrong([(role, offset, [content], len(content))])]

    def fits(self, role: Role, offset: int, content: ReadBuffer) -> bool:
        """Return whether *content*, a whole page, fits the sum of its place, or has none.

        The sum is in memory (`load`).
        """
        page = offset - self._begin >> PAGE_SHIFT
        known = self._views[role][page]
        return not known or known == self._value(role, page, content)

    def replace(self, role: Role, offset: int, content: ReadBuffer) -> None:
        """Let *content*, which is right, be what the sum of its page says: the sum was wrong."""
        page = offset - self._begin >> PAGE_SHIFT
        self._set(role, page, self._value(role, page, content), 1)
        self.suspects.discard((role, page))
        self.wrong_sums += 1

    def page_at(self, role: Role, offset: int) -> Page:
        """Return the page at byte *offset* of *role*."""
        return role, offset - self._begin >> PAGE_SHIFT

    def is_suspect(self, role: Role, offset: int) -> bool:
        """Return whether the page at *offset* of *role* misfits, and is not healed yet."""
        return self.page_at(role, offset) in self.suspects

    def forget_suspects(self, role: Role) -> None:
        """Forget the pages of *role* that misfit: the member that had them has left."""
        self.suspects = {page for page in self.suspects if page[0] != role}

    def note_healed(self, role: Role, offset: int) -> None:
        """Note that the page at *offset* of *role* fits again."""
        page = role, offset - self._begin >> PAGE_SHIFT
        if page in self.suspects:
            self.suspects.discard(page)
            self.healed += 1

    async def read(
        self, requests: Sequence[MemberRead], background: bool, misfits: Misfits | None = None
    ) -> None:
        """Fill the buffers of *requests* from the home places with bytes that fit their sums.

        What the overlay has is laid over them by the caller. Raises as `MemberSet.read`; pages that
        do not fit are unreadable from then on, unless *misfits* says that they stay.
        """
        member_set = self.member_set
        wide = [self._widened(request) for request in requests]
        role_epoch = member_set.role_epoch
        await self.load(wide)
        done = False
        while not done:
            if role_epoch != member_set.role_epoch:
                raise MemberLostError  # a new member of a role has nothing yet: plan again
            change = member_set.unreadable.changes
            await member_set.read(wide, background=background, home=True)
            done = await self.correct(wide, member_set.overlay.covers, change, misfits)
        for request, read in zip(requests, wide, strict=True):
            if read is not request:
                at = request[1] - read[1]
                content = memoryview(read[2][0])
                for buffer in request[2]:
                    buffer[:] = content[at : at + len(buffer)]
                    at += len(buffer)

    def _widened(self, request: MemberRead) -> MemberRead:
        """Return *request* for whole pages, with a buffer of its own if it was not so."""
        role, offset, buffers, size = request
        if self._pages(role, offset, size) is None:
            return request
        if not ((offset | size) & PAGE_MASK or any(len(buffer) & PAGE_MASK for buffer in buffers)):
            return request
        low = offset & ~PAGE_MASK
        length = (offset + size + PAGE_MASK & ~PAGE_MASK) - low
        return role, low, [bytearray(length)], length

    async def correct(
        self,
        reads: Sequence[MemberRead],
        covers: Covers,
        change: int,
        misfits: Misfits | None = None,
    ) -> bool:
        """Make what *reads* have just read fit; return False if it must be read again.

        That is so if home places have changed meanwhile. What *covers* knows need not fit. *change*
        is that of the unreadable pages when the read began. Raises MemberLostError if pages are
        unreadable now, and MemberError for a reader that cannot plan around them. Pages that
        *misfits* lets stay are neither.
        """
        if not reads or (len(reads) <= _FEW and self.fit_now(reads)):
            return True
        found = [page for page in self._wrong(reads) if not covers(*page[:2], page[1] + PAGE_BYTES)]
        if not found:
            return True
        role_epoch = self.member_set.role_epoch
        epoch, lost = self.member_set.place_epoch, False
        for role, at, buffer in found:
            content = await self.judge(role, at)
            if isinstance(content, MemberError):
                if misfits is not None and content.errno == errno.EILSEQ:
                    misfits.pages.add((role, at - self._begin >> PAGE_SHIFT))
                    if misfits.stay:
                        continue
                if is_of_place(content):  # else the member has failed meanwhile
                    self._note_misfit(role, at, content, change)
                lost = True
            elif content is not None:
                buffer[:] = content
        if lost or role_epoch != self.member_set.role_epoch:
            raise MemberLostError
        return epoch == self.member_set.place_epoch

    def _wrong(self, reads: Sequence[MemberIO]) -> list[tuple[Role, int, memoryview]]:
        """Return (role, byte offset, content) of the pages of *reads* that do not fit."""
        single: dict[Role, list[MemberIO]] = {}
        runs: list[MemberIO] = []
        begin, end, width = self._begin, self._end, self._width
        for read in reads:
            role, offset, buffers, size = read
            if not begin <= offset < end or role >= width:
                continue
            if (offset | size) & PAGE_MASK:
                raise self.member_set.laws.broken(Law.WHOLE, f"{size} bytes read at {offset}")
            if size == PAGE_BYTES and len(buffers) == 1:
                single.setdefault(role, []).append(read)
            else:
                runs.append(read)
        found = []
        for role, of_role in single.items():
            offsets = np.fromiter((read[1] for read in of_role), np.int64, len(of_role))
            pages = offsets - begin >> PAGE_SHIFT
            contents = [read[2][0] for read in of_role]
            values = sums_of(contents, pages.astype(np.uint32), self._seeds[role])
            known = self._tables[role][pages]
            wrong = np.flatnonzero((values != known) & (known != 0)).tolist()
            found += [(role, of_role[at][1], memoryview(contents[at])) for at in wrong]
        for batch in _batches(runs):
            if self.fit_now(batch):
                continue
            for role, offset, buffers, size in batch:
                first = offset - begin >> PAGE_SHIFT
                for page in self._misfits(role, first, first + (size >> PAGE_SHIFT), buffers):
                    at = begin + page * PAGE_BYTES
                    found.append((role, at, _part(buffers, at - offset)))
        return found

    async def judge(self, role: Role, offset: int) -> bytearray | MemberError | None:
        """Return the page at *offset* of *role*, or an error if it cannot be read, or misfits.

        None: the role has no member. No write to the page is in flight then.
        """
        member_set = self.member_set
        page = offset - self._begin >> PAGE_SHIFT
        while True:
            await self.load([(role, offset, (), PAGE_BYTES)])
            await self._landed(role, page)
            before = self._views[role][page]
            content = await member_set.read_home(role, offset, PAGE_BYTES)
            known = self._views[role][page]
            if known != before or self._is_flying(role, page):
                continue
            if not isinstance(content, bytearray):
                return content
            if not known or known == self._value(role, page, content):
                return content
            path = member_set.path_of(role)
            return MemberError(path, "read", offset, errno.EILSEQ, "its checksum does not fit")

    def _is_flying(self, role: Role, page: int) -> bool:
        return any(flight.over(role, page) for flight in self._flights)

    async def _landed(self, role: Role, page: int) -> None:
        """Return when no write to *page* of *role* is in flight."""
        while True:
            flying = [flight for flight in self._flights if flight.over(role, page)]
            if not flying:
                return
            await flying[0].landed.wait()

    def _note_misfit(self, role: Role, offset: int, error: MemberError, change: int) -> None:
        """Count the page at *offset* of *role* as unreadable.

        Raises *error* to a reader that asks again and again, as it cannot plan around it; not to
        one that began before the page was known (*change*).
        """
        unreadable = self.member_set.unreadable
        page = role, offset - self._begin >> PAGE_SHIFT
        if error.errno == errno.EILSEQ and page not in self.suspects:
            self.suspects.add(page)
            self.misfits += 1
            log.error("%s", error.message)
        if not unreadable.pages(role, offset, offset + PAGE_BYTES):
            unreadable.add(role, offset >> PAGE_SHIFT)
        elif unreadable.came_since(change, role, offset, offset + PAGE_BYTES):
            pass  # it may plan around it
        elif unreadable.asked_again(role, offset, offset + PAGE_BYTES):
            raise error

    def note_contradiction(self, role: Role, offset: int) -> None:
        """Count the page at *offset* of *role* if it misfits as the code gives it back."""
        page = self.page_at(role, offset)
        if page not in self.suspects and page not in self._contradicted:
            self._contradicted.add(page)
            self.misfits += 1
            log.error("role %d: what gives byte %d back contradicts its checksum", role, offset)

    def note_unverified(self, pages: int) -> None:
        """Count *pages* whose bytes were taken as they were after a crash."""
        self.unverified += pages

    # -- places that have no sum yet ---------------------------------------------------------------

    def lacking(self, role: Role, offset: int, size: int) -> int:
        """Return how many pages of a range, whose sums are in memory, have none."""
        pages = self._pages(role, offset, size)
        if pages is None:
            return 0
        return int(pages[1] - pages[0] - np.count_nonzero(self._tables[role][slice(*pages)]))

    def lacks(self, role: Role, offset: int, size: int) -> bool:
        """Return whether a page of a range, whose sums are in memory, has none."""
        pages = self._pages(role, offset, size)
        return pages is not None and not self._tables[role][pages[0] : pages[1]].all()

    def crcs(self, role: Role, offset: int, size: int) -> tuple[Values, NDArray[np.bool_]] | None:
        """Return the CRCs that a range of pages has by its sums, and which of them are known.

        They are XORed with that of a page of zeros, so that pages whose XOR is zero have CRCs whose
        XOR is zero. None if the range is not of the data. The sums are in memory.
        """
        pages = self._pages(role, offset, size)
        if pages is None:
            return None
        known = self._tables[role][slice(*pages)]
        crcs = known ^ places_of((pages[0],), (self._seeds[role],), (len(known),))
        crcs ^= ZEROS_CRC
        return crcs, known > 1  # 1 stands for two CRCs

    def values_by(self, role: Role, offset: int, crcs: Values) -> Values:
        """Return the sums of pages at *offset* of *role* whose *crcs* are as `crcs` has them."""
        first = offset - self._begin >> PAGE_SHIFT
        return sums_from(crcs ^ ZEROS_CRC, places_of((first,), (self._seeds[role],), (len(crcs),)))

    def has(self, role: Role, offset: int) -> bool:
        """Return whether the page at *offset* of *role*, whose sum is in memory, has one."""
        return bool(self._views[role][offset - self._begin >> PAGE_SHIFT])

    def known(self, role: Role, offset: int, size: int) -> Values:
        """Return the sums of a range, which are in memory; 0: none."""
        pages = self._pages(role, offset, size)
        return np.zeros(0, np.uint32) if pages is None else self._tables[role][pages[0] : pages[1]]

    def past(self, role: Role, offset: int, size: int) -> Values:
        """Return the sums of a range before the crash whose resync is due; 0: none, or another one.

        What the log has redone has its own.
        """
        pages = self._pages(role, offset, size)
        if pages is None:
            return np.zeros(0, np.uint32)
        part = slice(*pages)
        return np.where(self._tables[role][part] == 0, self._past[role][part], np.uint32(0))

    def values(self, role: Role, offset: int, content: ReadBuffer) -> Values:
        """Return the sums that *content*, whole pages at *offset* of *role*, would have."""
        return self._values(role, offset - self._begin >> PAGE_SHIFT, [content])

    def fill(self, role: Role, offset: int, content: ReadBuffer) -> int:
        """Set the sums of home *content* that have none; return how many are not as in the *past*.

        Pages that got one meanwhile keep it: they have been written.
        """
        pages = self._pages(role, offset, len(content))
        if pages is None:
            return 0
        first, end = pages
        table = self._tables[role][first:end]
        empty = table == 0
        for of_role, begun, stop in (run for flight in self._flights for run in flight.runs):
            # It may have failed on the way, and have no sum for that.
            if of_role == role and begun < end and first < stop:
                empty[max(0, begun - first) : stop - first] = False
        if not empty.any():
            return 0
        values = self._values(role, first, [content])
        others = int((empty & (values != self._past[role][first:end])).sum())
        self._set(role, first, np.where(empty, values, table), end - first)
        return others
