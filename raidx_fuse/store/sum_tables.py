"""The tables of sums: on the members, with their copies and tails, and in memory.

There is one for each role, of its home places as they are. A part of it is read when it is first
needed (`load`); whoever compares pages, or writes them, sees and changes what is in memory
(store/sums.py). On the members the tables follow:

    logged          record durable -> home, sums of it (`save`) -> flush -> the tail moves
    past the log    mark durable -> data -> sums (`save`) -> flush -> unmark
    rebuild         copy -> sums (`save`) -> flush -> watermark
    a chunk moves   through the log; where it lay: none -> flush -> page of the look-up table
    after a crash   records are redone with their sums; in marked regions there are none in memory
                    (`begin_past`), and on the members those of before, until the resync has made
                    their stripes consistent

What changes few sums of a page of a table is written to the table's tail, if it has one
(store/sum_tail.py). So a table on a member, with its tail, is right but for what the log redoes and
for marked regions, whenever the power goes: no two writes have to be atomic together. A cut leaves
old and new sectors of a table, so entries that did not change are the same in both. All copies are
read, and of each sector the newest counts: a copy that missed a write, or lies on an old copy of a
member, costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import trio

from raidx_fuse.errors import MemberError, NoSpaceError
from raidx_fuse.format.configuration.sums import StoredSums
from raidx_fuse.format.regions import SECTOR_BYTES, SUMS_PER_PAGE, SUMS_PER_SECTOR, Regions
from raidx_fuse.format.sum_table import (
    SECTORS_PER_PAGE,
    Sectors,
    Values,
    decode_sums,
    encode_sums,
    seed_of,
)
from raidx_fuse.format.sum_tail import (
    TailSectors,
    decode_tail,
    encode_tail,
    sectors_for,
)
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.store.buffers import zeroed
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberIO, MemberLostError
from raidx_fuse.store.sum_tail import Pages, Tail

log = logging.getLogger(__name__)

ENTRIES = SUMS_PER_PAGE
_LOADED_AT_ONCE = 256  # pages of a table in one read
_TAIL_READ_BYTES = 1 << 20
_TAIL_RESERVED_SECTORS = 128  # of a tail's space on the hosts, at a time
_WHOLE_MIN = ENTRIES // 4  # new sums of a page of a table: it is written, not its tail


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


class Holders(Protocol):
    """What of a member set (store/member_set.py) the tables need."""

    read_only: bool
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

    async def write(self, requests: Sequence[MemberIO], *, background: bool = False) -> None:
        """Write *requests*."""
        ...

    async def sync(self) -> None:
        """Return when what was written is durable; no superblock is written for that."""

    def reserve(self, writes: Iterable[MemberIO]) -> None:
        """Reserve space on the hosts for *writes*. Raises NoSpaceError."""
        ...


@dataclass(slots=True, eq=False)
class TableCopy:
    """A copy of the table of *role* that is being made from byte *offset* on, by *write*.

    *made*: by page, which generation of it.
    """

    role: Role
    offset: int
    write: Callable[[int, list[bytes]], Awaitable[None]]
    made: Values | None = None


class SumTables:
    """The tables of one array, which *stored* says where they lie.

    By role: *values*, of which *views* are for one page, and which pages of a table are *loaded*:
    of the others nothing is known. *seeds* are those of the sums. *damaged_sectors*: of tables, in
    any copy, that could not be read or failed their checks.
    """

    def __init__(self, member_set: Holders, regions: Regions, stored: StoredSums) -> None:
        self.member_set = member_set
        self.damaged_sectors = 0
        self.damaged: list[str] = []  # as page stores have it; tables repair themselves
        self._regions = regions
        self.views: list[memoryview] = []
        self.values: list[Values] = []
        # What the sums of stripes that await their resync were before the crash.
        self._past: list[Values] = []
        self._has_past = False  # else the memory of *_past* stays untouched
        self.loaded: list[bytearray] = []
        self._generations: list[Values] = []
        self._tails: list[Tail] = []
        # Since the last save: pages, runs of them (first, end), and arrays of them.
        self._changes: list[list[Any]] = []
        self._take(stored, [None] * len(stored.tables))
        self._dirty: set[tuple[Role, int]] = set()  # (role, page of its table)
        self._whole: set[tuple[Role, int]] = set()  # those that the tail does not suffice for
        self._reserved: set[tuple[Role, int]] = set()  # (role, page of its table) on every holder
        self._reserved_tails: dict[Role, int] = {}  # sectors
        self._reserved_for = -1  # role epoch
        self._saving = trio.Lock()
        self._loading = trio.Lock()

    def _take(self, stored: StoredSums, came_from: Sequence[int | None]) -> None:
        """Let the tables be those of *stored*; where a role *came_from* another one, it has its."""
        pages = self._regions.sum_table_bytes // PAGE_BYTES
        views, self.views = self.views, []
        tables, self.values = self.values, []
        past, self._past = self._past, []
        loaded, self.loaded = self.loaded, []
        generations, self._generations = self._generations, []
        tails, self._tails = self._tails, []
        changes, self._changes = self._changes, []
        for old in came_from:
            if old is not None and len(loaded[old]) == pages:
                self.views.append(views[old])
                self.values.append(tables[old])
                self._past.append(past[old])
                self.loaded.append(loaded[old])
                self._generations.append(generations[old])
                self._tails.append(tails[old])
                self._changes.append(changes[old])
                continue
            memory = memoryview(zeroed(pages * ENTRIES * 4))
            self.views.append(memory.cast("I"))
            self.values.append(np.frombuffer(memory, np.uint32))
            self._past.append(np.frombuffer(zeroed(pages * ENTRIES * 4), np.uint32))
            self.loaded.append(bytearray(pages))
            self._generations.append(np.zeros(pages, np.uint32))
            if old is not None:  # pages come behind those that there were, and have no sums
                known = len(loaded[old])
                self.values[-1][: known * ENTRIES] = tables[old]
                self._past[-1][: known * ENTRIES] = past[old]
                self.loaded[-1][:] = loaded[old] + b"\1" * (pages - known)
                self._generations[-1][:known] = generations[old]
            sectors = stored.tail // SECTOR_BYTES
            known_tail = None if old is None else tails[old]
            self._tails.append(known_tail or Tail(sectors, is_known=not sectors))
            self._changes.append([] if old is None else changes[old])
        for tail in self._tails:
            tail.resize(stored.tail // SECTOR_BYTES)
        self.stored = stored
        self.width = len(stored.tables)
        self.seeds = [seed_of(stored.seed, table.number) for table in stored.tables]
        self._seeds_given = {seed_of(stored.seed, number) for number in range(stored.given)}

    # -- in memory -----------------------------------------------------------------------------

    def are_loaded(self, role: Role, first: int, end: int) -> bool:
        """Return whether the sums of pages *first* .. *end* - 1 of *role* are in memory."""
        loaded = self.loaded[role]
        number, last = first // ENTRIES, (end - 1) // ENTRIES
        while number <= last:
            if not loaded[number]:
                return False
            number += 1
        return True

    def known(self, role: Role, first: int, end: int) -> Values:
        """Return the sums of pages *first* .. *end* - 1 of *role*, which are in memory; 0: none."""
        return self.values[role][first:end]

    def known_at(self, role: Role, pages: Pages) -> Values:
        """Return the sums of *pages* of *role*, which are in memory; 0: none."""
        return self.values[role][pages]

    def known_one(self, role: Role, page: int) -> int:
        """Return the sum of a page of *role*, which is in memory; 0: none."""
        return self.views[role][page]

    def put_one(self, role: Role, page: int, value: int) -> None:
        """Set the sum of a page, which is in memory."""
        self.views[role][page] = value
        self._changes[role].append(page)
        self._dirty.add((role, page // ENTRIES))

    def put(self, role: Role, first: int, values: Values | int, count: int) -> None:
        """Set the sums of *count* pages from *first* of *role* on; they are in memory."""
        self.values[role][first : first + count] = values
        if self._has_past:
            self._past[role][first : first + count] = 0
        self._changes[role].append((first, first + count))
        dirty = self._dirty
        for number in range(first // ENTRIES, (first + count - 1) // ENTRIES + 1):
            dirty.add((role, number))

    def put_at(self, role: Role, pages: Pages, values: Values) -> None:
        """Set the sums of *pages* of *role*; they are in memory."""
        self.values[role][pages] = values
        self._note_changed(role, pages)

    def used(self, role: Role) -> list[int]:
        """Return the pages of the table of *role*, which is in memory, that have sums."""
        used: list[int] = np.flatnonzero(
            self.values[role].reshape(-1, ENTRIES).any(axis=1)
        ).tolist()
        return used

    def past(self, role: Role, first: int, end: int) -> Values:
        """Return what the sums of pages were before the crash whose resync is due; 0: none."""
        return self._past[role][first:end]

    def begin_past(self, role: Role, pages: Pages) -> None:
        """Let *pages* of *role* have no sum: what they have is past, until their resync ends.

        On the members it stays: another crash may come before.
        """
        self._past[role][pages] = self.values[role][pages]
        self.values[role][pages] = 0
        self._has_past = True
        self._note_changed(role, np.sort(pages))  # of a look-up table they come in any order

    def end_past(self, role: Role, pages: Pages) -> None:
        """Forget what the sums of *pages* of *role* were before a crash."""
        if self._past[role][pages].any():  # of cells that are lost, or hold nothing
            self._past[role][pages] = 0
            self._note_changed(role, np.sort(pages))

    def _note_changed(self, role: Role, pages: Pages) -> None:
        self._changes[role].append(pages)
        self._dirty.update((role, number) for number in np.unique(pages // ENTRIES).tolist())

    # -- read from the members -----------------------------------------------------------------

    async def load(self, role: Role, first: int, end: int) -> None:
        """Have the pages *first* .. *end* - 1 of the table of *role* in memory."""
        loaded, role_epoch = self.loaded[role], self.member_set.role_epoch
        end = min(end, len(loaded))
        while first < end:
            if loaded[first]:
                first += 1
                continue
            async with self._loading:  # others read their part in between
                if loaded[first]:
                    continue
                if role_epoch != self.member_set.role_epoch and loaded is not self.loaded[role]:
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
            self.values[role][first * ENTRIES : end * ENTRIES] = sums.reshape(-1)
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
        table, loaded = self.values[role], self.loaded[role]
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
        end = len(self.loaded[role]) * ENTRIES
        seeds = self._seeds_given
        sectors = decode_tail(content, first, self.seeds[role], seeds, pages_end=end)
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
        found = decode_sums(content, first, self.seeds[role], self._seeds_given)
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
            for role in map(Role, range(self.width)):
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
            sums = self.values[role][pages]
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
                first, seed = int(part[0]), self.seeds[role]
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
            seed=self.seeds[role],
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
                await self.load(role, number, number + 1)
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
        values = self.values[role].reshape(-1, ENTRIES)[numbers].reshape(-1)
        if not self._has_past:
            return values
        return _with_past(values, self._past[role].reshape(-1, ENTRIES)[numbers].reshape(-1))

    async def save_all(self) -> None:
        """Have every member hold the sums as they are, because a new one must hold them, too.

        All that was ever saved is written: a member that returned has older sums, and a twin
        (jobs/replace.py) reads what its old member has.
        """
        for role, table in enumerate(self.values):
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
                    content = [encode_sums(values, first, self.seeds[role], found)]
                    await copy.write(copy.offset + first * PAGE_BYTES, content)
                    copy.made[run] = found

    async def load_table(self, role: Role) -> None:
        """Have all sums of *role* in memory."""
        await self.load(role, 0, len(self.loaded[role]))

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
        self, stored: StoredSums, came_from: Sequence[int | None], regions: Regions | None
    ) -> None:
        """Let roles be other ones, as `Sums.adopt` says."""
        if regions is not None:
            self._regions = regions
        self._reserved_for = -1
        new_role = {Role(old): Role(r) for r, old in enumerate(came_from) if old is not None}
        self._take(stored, came_from)
        for role, old in enumerate(came_from):
            if old is None:
                self.loaded[role][:] = b"\1" * len(self.loaded[role])
                self._tails[role].is_known = True
        self._dirty = {(new_role[r], number) for r, number in self._dirty if r in new_role}
        self._whole = {(new_role[r], number) for r, number in self._whole if r in new_role}

    def begin_empty(self) -> None:
        """Take the tables on the members for what they are: empty. Nothing is read from them."""
        for loaded, tail in zip(self.loaded, self._tails, strict=True):
            loaded[:] = b"\1" * len(loaded)
            tail.is_known = True

    async def heal(self) -> None:
        """Do nothing: what a cut left uneven is redone from the log, or forgotten."""
