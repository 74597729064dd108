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
from typing import Protocol

import numpy as np
import trio
from numpy.typing import NDArray

from raidx_fuse.errors import MemberError, NoSpaceError
from raidx_fuse.format.configuration.sums import StoredSums
from raidx_fuse.format.regions import SECTOR_BYTES, SUMS_PER_SECTOR, Regions
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
from raidx_fuse.laws import Laws
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberIO, MemberLostError
from raidx_fuse.store.sum_memory import ENTRIES, PAGE_MEMORY_BYTES, Hold, Key, SumMemory
from raidx_fuse.store.sum_tail import Pages, Tail

log = logging.getLogger(__name__)

_AT_ONCE = 256  # pages of tables that are read, or written, in one go
_AHEAD_MAX = 64  # pages of a table that are read for one that is needed
_AHEAD_SHARE = 4  # reading ahead takes this part of the time until a member answers
_AHEAD_BYTES_S = 150e6  # as disks do at least
_TAIL_READ_BYTES = 1 << 20
_TAIL_MEMORY_BYTES = 256 << 10  # of a tail's sums, whatever the limit
_TAIL_RESERVED_SECTORS = 128  # of a tail's space on the hosts, at a time
_WHOLE_MIN = ENTRIES // 4  # new sums of a page of a table: it is written, not its tail


def _nothing(pages: int) -> Sectors:
    """Return *pages* pages of a table that were never written."""
    count = pages * SECTORS_PER_PAGE
    sums = np.zeros((count, SUMS_PER_SECTOR), np.uint32)
    return Sectors(sums, np.zeros(count, np.uint32), [])


class Holders(Protocol):
    """What of a member set (store/member_set.py) the tables need."""

    laws: Laws
    clock: Callable[[], float]
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

    async def read_homes(
        self, places: Sequence[tuple[Role, int, int]]
    ) -> list[bytearray | MemberError | None]:
        """Return the bytes of each of *places* (role, byte offset, size), all read at once."""
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
    """The tables of one array, which lie where *stored* says; *memory* has a part of them.

    *seeds*, by role, are those of the sums. *damaged_sectors*: of tables, in any copy, that could
    not be read or failed their checks. *lost_of*: roles of which no member gave some sums, so that
    their pages are not verified until a scrub has filled them.
    """

    def __init__(self, member_set: Holders, regions: Regions, stored: StoredSums) -> None:
        self.member_set = member_set
        self.memory = SumMemory(member_set.laws)
        self.damaged_sectors = 0
        self.lost_of: set[Role] = set()
        self.damaged: list[str] = []  # as page stores have it; tables repair themselves
        self._regions = regions
        # By role; of pages that were never read the generations are 0.
        self._generations: list[Values] = []
        self._seen: list[NDArray[np.bool_]] = []  # whether each page was read once
        self._reserved: list[bytearray] = []  # whether each page has space on every holder
        self._tails: list[Tail] = []
        self._take(stored, [None] * len(stored.tables))
        self._whole: set[Key] = set()  # due, and the tail does not suffice for them
        self._reserved_tails: dict[Role, int] = {}  # sectors
        self._reserved_for = -1  # role epoch
        self._saving = trio.Lock()
        self._arriving: dict[Key, trio.Event] = {}  # pages that a task is reading
        self._adopted = 0
        self._wait_s = 0.0  # until a member answers, as of late

    def _take(
        self, stored: StoredSums, came_from: Sequence[int | None], *, empty: bool = False
    ) -> None:
        """Let the tables be those of *stored*; where a role *came_from* another one, it has its.

        The others are *empty*, or not known.
        """
        pages = self._regions.sum_table_bytes // PAGE_BYTES
        sectors = stored.tail // SECTOR_BYTES
        self.memory.take(came_from, pages, empty=empty)
        generations, self._generations = self._generations, []
        seen, self._seen = self._seen, []
        tails, self._tails = self._tails, []
        for old in came_from:
            self._generations.append(np.zeros(pages, np.uint32))
            self._seen.append(np.full(pages, empty or old is not None, np.bool_))
            if old is None:
                self._tails.append(Tail(sectors, is_known=empty or not sectors))
                continue
            known = len(seen[old])
            self._generations[-1][:known] = generations[old]
            self._seen[-1][:known] = seen[old]
            self._tails.append(tails[old])
        for tail in self._tails:
            tail.resize(sectors)
        self._reserved = [bytearray(pages) for _ in came_from]
        self.stored = stored
        self.width = len(stored.tables)
        self.seeds = [seed_of(stored.seed, table.number) for table in stored.tables]
        self._seeds_given = {seed_of(stored.seed, number) for number in range(stored.given)}

    # -- read from the members -----------------------------------------------------------------

    async def load(self, wanted: Iterable[Key]) -> None:
        """Have pages of tables in memory, until the caller waits for anything else.

        Raises MemberLostError if a role is another one by now.
        """
        wanted = set(wanted)
        role_epoch, adopted = self.member_set.role_epoch, self._adopted
        loaded = self.memory.loaded
        with self.memory.holding(wanted):
            while missing := {key for key in wanted if not loaded[key[0]][key[1]]}:
                due = missing - self._arriving.keys()
                if due:
                    await self._bring(due)
                else:
                    await self._arriving[min(missing)].wait()
                if adopted != self._adopted and role_epoch != self.member_set.role_epoch:
                    raise MemberLostError
                loaded = self.memory.loaded
            self.make_room()

    def make_room(self) -> None:
        """Have no more in memory than the limit says, where it may go."""
        self.memory.evict(sum(tail.memory_bytes for tail in self._tails), self._has_copy)

    def _has_copy(self, role: Role) -> bool:
        readable = self.member_set.readable
        return any(readable[holder] is not None for holder, _ in self._holders(role))

    def limit(self, size_bytes: int) -> None:
        """Have no more than *size_bytes* in memory from now on, where it may go."""
        self.memory.limit_bytes = size_bytes
        self.memory.look_again()
        self.make_room()

    async def _bring(self, keys: set[Key]) -> None:
        """Read the pages *keys* of tables, which nobody else is reading; and some behind them."""
        done, adopted = trio.Event(), self._adopted
        runs = self._runs(keys)
        taken = [(role, number) for role, first, end in runs for number in range(first, end)]
        self._arriving |= dict.fromkeys(taken, done)
        try:
            for role in sorted({role for role, _ in keys}):
                tail = self._tails[role]
                async with tail.reading:
                    if not tail.is_known and adopted == self._adopted:
                        await self._read_tail(role)
                if adopted != self._adopted:
                    return
            for at in range(0, len(runs), _AT_ONCE):
                await self._read_tables(runs[at : at + _AT_ONCE])
        finally:
            for key in taken:
                del self._arriving[key]
            done.set()

    def _runs(self, keys: set[Key]) -> list[tuple[Role, int, int]]:
        """Return runs (role, first, end) of pages of tables that are to be read for *keys*.

        Where the pages before are in memory, requests follow one another: more and more is read
        ahead. Elsewhere as much as costs little beside the time until a member answers.
        """
        pages_s = _AHEAD_BYTES_S / PAGE_BYTES
        few = max(1, int(self._wait_s / _AHEAD_SHARE * pages_s))
        most = max(1, min(_AHEAD_MAX, self.memory.limit_bytes // PAGE_MEMORY_BYTES // 8))
        runs: list[tuple[Role, int, int]] = []
        for role, number in sorted(keys):
            loaded = self.memory.loaded[role]
            if runs and runs[-1][0] == role and runs[-1][1] <= number:
                _, first, end = runs[-1]
                if number < end:
                    continue
                if number == end and end - first < _AT_ONCE:
                    runs[-1] = role, first, end + 1
                    continue
            before = number
            while before and number - before < most and loaded[before - 1]:
                before -= 1
            stop = min(number + min(most, max(few, number - before)), len(loaded))
            end = number + 1
            while end < stop and not loaded[end] and (role, end) not in self._arriving:
                end += 1
            runs.append((role, number, end))
        return runs

    def _holders(self, role: Role) -> Iterator[tuple[Role, int]]:
        """Yield role and byte offset of each copy of the table of *role*."""
        for holder, slot in self.stored.tables[role].slots:
            yield Role(holder), self._regions.sum_table_offset(slot)

    async def _read_tables(self, runs: Sequence[tuple[Role, int, int]]) -> None:
        """Bring *runs* (role, first, end) of pages of tables to memory, from all copies at once."""
        adopted, begun_s = self._adopted, self.member_set.clock()
        reads: list[tuple[Role, int, int]] = []
        held: list[list[Role]] = []
        for role, first, end in runs:
            held.append([])
            for holder, offset in self._holders(role):
                if self.member_set.queues[holder] is not None:
                    held[-1].append(holder)
                    reads.append((holder, offset + first * PAGE_BYTES, (end - first) * PAGE_BYTES))
        contents = iter(await self.member_set.read_homes(reads))
        if len(runs) == 1:
            transfer_s = (runs[0][2] - runs[0][1]) * PAGE_BYTES / _AHEAD_BYTES_S
            waited_s = max(0.0, self.member_set.clock() - begun_s - transfer_s)
            self._wait_s += (waited_s - self._wait_s) / 4
        for (role, first, end), holders in zip(runs, held, strict=True):
            copies = []
            for holder in holders:
                copy = await self._copy(role, holder, first, end, next(contents))
                copies.append((holder, copy))
            if adopted != self._adopted:
                return  # what was read may be of other tables by now
            self.memory.bring(role, first, self._newest(role, first, end, copies))

    def _newest(
        self, role: Role, first: int, end: int, copies: Sequence[tuple[Role, Sectors]]
    ) -> Values:
        """Return the sums in pages *first* .. *end* - 1 of a table, by the *copies* of holders.

        Of each sector the newest copy counts; those that lack it are written again. The pages of
        sectors that nobody has, have no sums.
        """
        count = (end - first) * SECTORS_PER_PAGE
        sums = np.zeros((count, SUMS_PER_SECTOR), np.uint32)
        newest = np.zeros(count, np.uint32)
        counting = []
        for holder, found in copies:
            counts = self.member_set.readable[holder] is not None
            counting.append(counts)
            if counts:  # the others have what is long past
                better = found.generations > newest
                sums[better], newest[better] = found.sums[better], found.generations[better]
        lacking = np.zeros(count, np.bool_)
        has_slots = bool(self.stored.tables[role].slots)  # else it has no member, nor a table
        unknown = np.full(count, has_slots)
        for (_, copy), counts in zip(copies, counting, strict=True):
            lacking |= copy.generations != newest
            bad = np.zeros(count, np.bool_)
            bad[copy.bad] = True
            lacking |= bad
            if counts:
                unknown &= bad
                self.damaged_sectors += len(copy.bad)
        if unknown.any():
            log.error("checksums of role %d cannot be read: their pages are not verified", role)
            self.lost_of.add(role)
        tail = self._tails[role]
        tail.note_generation(int(newest.max()))
        tail.lay_over(sums, newest, first)
        # What nobody gives may lie, older, on a member that will be read again: `save_all` before.
        of_pages = np.maximum(newest, unknown).reshape(-1, SECTORS_PER_PAGE).max(axis=1)
        generations, seen = self._generations[role], self._seen[role]
        old = seen[first:end] & (of_pages < generations[first:end])
        if old.any() and has_slots:
            # Every copy has lost what was written since this start: nobody has what counts.
            log.error("checksums of role %d are old: their pages are not verified", role)
            self.lost_of.add(role)
            sums.reshape(-1, ENTRIES)[old] = 0
            lacking.reshape(-1, SECTORS_PER_PAGE)[old] = True
        generations[first:end] = np.maximum(of_pages, generations[first:end])
        seen[first:end] = True
        numbers = np.unique(np.flatnonzero(lacking) // SECTORS_PER_PAGE).tolist()
        self._whole.update((role, first + number) for number in numbers)
        return sums.reshape(-1)

    async def _read_tail(self, role: Role) -> None:
        """Take what the copies of the tail of *role* have.

        If some of it is lost, nothing says which sums of the table are old: then none of them
        counts any more.
        """
        tail, adopted = self._tails[role], self._adopted
        copies, others = list[TailSectors](), list[TailSectors]()
        holders = [
            (holder, offset)
            for holder, offset in self._tail_holders(role)
            if self.member_set.queues[holder] is not None
        ]
        found = await self._read_tail_copies(role, holders)
        if adopted != self._adopted:
            return
        for (holder, _), copy in zip(holders, found, strict=True):
            counts = self.member_set.readable[holder] is not None
            (copies if counts else others).append(copy)
        self.damaged_sectors += sum(len(copy.bad) for copy in copies)
        if tail.take(copies, others):
            return
        log.error("checksums of role %d are lost: its pages are not verified", role)
        self.lost_of.add(role)
        pages = len(self.memory.loaded[role])
        for first in range(0, pages, _AT_ONCE):  # to know their generations
            await self._read_tables([(role, first, min(first + _AT_ONCE, pages))])
        self.memory.forget_table(role)
        self.save_again(role)

    async def _read_tail_copies(
        self, role: Role, holders: Sequence[tuple[Role, int]]
    ) -> list[TailSectors]:
        """Return the copies of the tail of *role* at *holders*; what cannot be read is bad."""
        parts = [list[TailSectors]() for _ in holders]
        for begin in range(0, self.stored.tail, _TAIL_READ_BYTES):
            size = min(_TAIL_READ_BYTES, self.stored.tail - begin)
            contents = await self.member_set.read_homes(
                [(holder, at + begin, size) for holder, at in holders]
            )
            for (holder, at), content, of_holder in zip(holders, contents, parts, strict=True):
                bad = list[int]()
                if not isinstance(content, bytearray):
                    content, bad = await self._tail_by_page(holder, at + begin, size)
                of_holder.append(self._tail_part(role, begin // SECTOR_BYTES, content, bad))
        for (holder, _), of_holder in zip(holders, parts, strict=True):
            if count := sum(len(part.bad) for part in of_holder):
                path = self.member_set.path_of(holder)
                log.error("%s: %d sectors of checksums are damaged", path, count)
        return [
            TailSectors(
                np.concatenate([part.generations for part in of_holder]),
                np.concatenate([part.since for part in of_holder]),
                [at for part in of_holder for at in part.bad],
                np.concatenate([part.pages for part in of_holder]),
                np.concatenate([part.sums for part in of_holder]),
                np.concatenate([part.sector_of for part in of_holder]),
            )
            for of_holder in parts
        ]

    def _tail_part(
        self, role: Role, at: int, content: bytearray, unread: Sequence[int]
    ) -> TailSectors:
        """Return the sectors in *content*, those from number *at* of the tail of *role* on.

        Of them, those *unread* are bad.
        """
        found = decode_tail(
            content,
            self._tail_number + at,
            self.seeds[role],
            self._seeds_given,
            pages_end=len(self.memory.loaded[role]) * ENTRIES,
        )
        bad = sorted(at + number for number in {*unread, *found.bad})
        return found._replace(bad=bad, sector_of=found.sector_of + at)

    async def _tail_by_page(self, holder: Role, at: int, size: int) -> tuple[bytearray, list[int]]:
        """Return the bytes of a tail from byte *at* of *holder* on, and the sectors not read."""
        bad, content = list[int](), bytearray()
        for page in range(0, size, PAGE_BYTES):
            (found,) = await self.member_set.read_homes([(holder, at + page, PAGE_BYTES)])
            if not isinstance(found, bytearray):
                log.error("checksums cannot be read: %s", found)
                first = page // SECTOR_BYTES
                bad += range(first, first + SECTORS_PER_PAGE)
                found = bytearray(PAGE_BYTES)
            content += found
        return content, bad

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

    async def _copy(
        self,
        role: Role,
        holder: Role,
        first: int,
        end: int,
        content: bytearray | MemberError | None,
    ) -> Sectors:
        """Return *holder*'s copy of pages of the table of *role*, whose bytes are *content*.

        What cannot be read is bad.
        """
        if not isinstance(content, bytearray) and end - first > 1:
            offset = dict(self._holders(role))[holder]
            places = [(holder, offset + at * PAGE_BYTES, PAGE_BYTES) for at in range(first, end)]
            contents = await self.member_set.read_homes(places)
            parts = [
                await self._copy(role, holder, at, at + 1, part)
                for at, part in enumerate(contents, first)
            ]
            bad = [n * SECTORS_PER_PAGE + b for n, part in enumerate(parts) for b in part.bad]
            sums = np.concatenate([part.sums for part in parts])
            return Sectors(sums, np.concatenate([part.generations for part in parts]), bad)
        if not isinstance(content, bytearray):
            log.error("checksums cannot be read: %s", content)
            return _nothing(1)._replace(bad=[*range(SECTORS_PER_PAGE)])
        if content == bytes(len(content)):
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
            self._reserved_for = self.member_set.role_epoch
            self._reserved = [bytearray(len(reserved)) for reserved in self._reserved]
            self._reserved_tails = {}
        for role, number in pages:
            if self._reserved[role][number]:
                continue
            self.member_set.reserve(
                (holder, offset + number * PAGE_BYTES, (), PAGE_BYTES)
                for holder, offset in self._holders(role)
            )
            self._reserved[role][number] = 1

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
        memory = self.memory
        tail_bytes_max = max(_TAIL_MEMORY_BYTES, memory.limit_bytes // (2 * len(self._tails)))
        for role, tail in enumerate(self._tails):
            if not tail.sectors_max:
                continue
            needed = sectors_for(self._changed_pages(Role(role))) if memory.changes[role] else 0
            is_full = not tail.has_room(needed) and tail.position > 1
            is_large = tail.memory_bytes > tail_bytes_max
            due = tail.is_due and not tail.is_unused
            if due or (turn and tail.has_sums) or is_full or is_large:
                await self._turn(Role(role))
            tail.is_due = False
        self.reserve(memory.unsaved | self._whole)
        changed = memory.take_unsaved()
        whole, self._whole = self._whole, set()
        try:
            with memory.holding(changed):
                requests: list[MemberIO] = []
                left: list[Key] = []
                for role in map(Role, range(self.width)):
                    numbers = {number for of_role, number in changed if of_role == role}
                    again = {number for of_role, number in whole if of_role == role}
                    few = numbers - again
                    if few and self._tails[role].sectors_max and not turn:
                        few, of_tail = self._to_tail(role, few)
                        requests += of_tail
                    else:
                        few = set()
                    memory.changes[role] = []
                    left += ((role, number) for number in sorted((numbers | again) - few))
                await self._write_tables(left, requests)
        except BaseException:
            memory.unsaved.update(changed)
            self._whole |= changed | whole
            raise
        memory.look_again()
        self.make_room()

    async def _write_tables(self, keys: Sequence[Key], requests: list[MemberIO]) -> None:
        """Write *requests*, and the pages *keys* of tables, which ascend."""
        for at in range(0, max(1, len(keys)), _AT_ONCE):
            part = keys[at : at + _AT_ONCE]
            with self.memory.holding(part):
                await self.load(part)
                for role in sorted({role for role, _ in part}):
                    numbers = np.array([number for of_role, number in part if of_role == role])
                    self._count_up(role, numbers)
                    requests += self._of_table(role, numbers)
                await self.member_set.write(requests, background=True)
            requests = []

    def write_again(self, role: Role, page: int) -> None:
        """Have the page of the table of *role* that has the sum of *page* written, if in memory."""
        if self.memory.are_loaded(role, page, page + 1):
            self.memory.put_one(role, page, self.memory.known_one(role, page))  # it stays there
            self._whole.add((role, page // ENTRIES))

    def _count_up(self, role: Role, at: Pages) -> None:
        """Give the pages *at* of the table of *role* a new generation."""
        tail, generations = self._tails[role], self._generations[role]
        if tail.sectors_max:
            # Sums of these that the tail has already must not count any more.
            generations[at] = tail.new_generation()
        else:
            generations[at] += np.uint32(1)

    def _changed_pages(self, role: Role) -> Pages:
        """Return the pages of *role* whose sums were set since the last save, in order."""
        changes = self.memory.changes[role]
        if len(changes) == 1 and isinstance(changes[0], np.ndarray):
            return changes[0]
        single = [change for change in changes if not isinstance(change, tuple | np.ndarray)]
        runs = [np.arange(*change) for change in changes if isinstance(change, tuple)]
        arrays = [change for change in changes if isinstance(change, np.ndarray)]
        pages: Pages = np.unique(np.concatenate([np.array(single, np.int64), *runs, *arrays]))
        self.memory.changes[role] = [pages]
        return pages

    def _to_tail(self, role: Role, numbers: set[int]) -> tuple[set[int], list[MemberIO]]:
        """Return which of the pages *numbers* of a table go to its tail, and the writes for them.

        They are those of which few sums have changed, if the tail has room for all these.
        """
        tail, pages = self._tails[role], self._changed_pages(role)
        tables, counts = np.unique(pages // ENTRIES, return_counts=True)
        few = {*tables[counts < _WHOLE_MIN].tolist()} & numbers
        if not few:
            return few, []
        pages = pages[np.isin(pages // ENTRIES, np.fromiter(few, np.int64, len(few)))]
        sectors = sectors_for(pages)
        if not tail.has_room(sectors) or not self._reserve_tail(role, sectors):
            return set(), []
        return few, self._of_tail(role, pages, self.memory.to_save(role, pages))

    def _of_table(self, role: Role, numbers: Pages) -> list[MemberIO]:
        """Return the writes of the pages *numbers*, ascending, of the table of *role*."""
        requests: list[MemberIO] = []
        generations = self._generations[role]
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(numbers, cuts):
            for at in range(0, len(run), _AT_ONCE):
                part = run[at : at + _AT_ONCE]
                first, seed = int(part[0]), self.seeds[role]
                values = self.memory.of_tables(role, part)
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
        numbers = sorted(tail.tables() | {number for _, number in whole})
        self.reserve((role, number) for number in numbers)
        await self._write_tables([(role, number) for number in numbers], [])
        await self.member_set.sync()  # before the first sector is overwritten
        self._whole -= whole
        spoilt = {0, *tail.spoilt}
        tail.begin_anew()
        none = np.zeros(0, np.int64), np.zeros(0, np.uint32)
        requests = [request for at in sorted(spoilt) for request in self._of_tail(role, *none, at)]
        await self.member_set.write(requests, background=True)

    async def save_all(self) -> None:
        """Have every member hold the sums as they are, because a new one must hold them, too.

        All that was ever saved is written: a member that returned has older sums, and a twin
        (jobs/replace.py) reads what its old member has.
        """
        for role in map(Role, range(self.width)):
            generations = self._generations[role]
            for keys in self.windows(role):
                with self.memory.holding(keys):
                    await self.load(keys)
                    numbers = np.array([number for _, number in keys])
                    used = self.memory.have_sums(role, numbers) | (generations[numbers] > 0)
                    self._whole.update((role, number) for number in numbers[used].tolist())
                if len(self._whole) >= _AT_ONCE:
                    await self.save()
            self._tails[role].is_due = True
        await self.save()

    def windows(self, role: Role) -> Iterator[list[Key]]:
        """Yield the pages of the table of *role*, some at a time."""
        pages = len(self.memory.loaded[role])
        for first in range(0, pages, _AT_ONCE):
            yield [(role, number) for number in range(first, min(first + _AT_ONCE, pages))]

    # -- other roles ---------------------------------------------------------------------------

    async def copy_tables(self, copies: Sequence[TableCopy]) -> None:
        """Bring *copies* up to date with what was saved. Raises what their members raise."""
        for copy in copies:
            role, generations = copy.role, self._generations[copy.role]
            if copy.made is None:
                copy.made = np.zeros_like(generations)
            for keys in self.windows(role):
                numbers = np.array([number for _, number in keys])
                if not self._seen[role][numbers].all():
                    await self.load(keys)
                due = numbers[generations[numbers] != copy.made[numbers]]
                if len(due):
                    await self._copy_to(copy, due)

    async def _copy_to(self, copy: TableCopy, due: Pages) -> None:
        """Write the pages *due* of a table to its *copy*."""
        role, generations, made = copy.role, self._generations[copy.role], copy.made
        assert made is not None
        keys = [(role, number) for number in due.tolist()]
        with self.memory.holding(keys):
            await self.load(keys)
            for run in np.split(due, np.flatnonzero(np.diff(due) != 1) + 1):
                first, found = int(run[0]), generations[run]
                values = self.memory.of_tables(role, run)
                content = [encode_sums(values, first, self.seeds[role], found)]
                await copy.write(copy.offset + first * PAGE_BYTES, content)
                made[run] = found

    async def keep(self, role: Role) -> Hold:
        """Have all sums of *role* in memory, until `SumMemory.release`, and return the hold."""
        hold = self.memory.hold(())
        for keys in self.windows(role):
            with self.memory.holding(keys):
                await self.load(keys)
                self.memory.hold_more(hold, keys)
        return hold

    def save_again(self, role: Role) -> None:
        """Let the next `save` write all of the table of *role*: its places were used for others."""
        saved = np.flatnonzero(self._generations[role]).tolist()
        self._whole.update((role, number) for number in saved)
        self._tails[role].is_due = True

    def are_copied(self, copies: Sequence[TableCopy]) -> bool:
        """Return whether *copies* have all that was set, and no table is being saved or loaded."""
        return not (
            self.memory.unsaved
            or self._whole
            or any(tail.has_sums for tail in self._tails)
            or self._saving.locked()
            or any(
                copy.made is None or (self._generations[copy.role] != copy.made).any()
                for copy in copies
            )
        )

    @asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Have all sums saved, and no table written while the block runs.

        A table that is being read when others are adopted is read again.
        """
        async with self._saving:
            if not self.member_set.read_only:
                await self._save(turn=True)
            yield

    def adopt(
        self, stored: StoredSums, came_from: Sequence[int | None], regions: Regions | None
    ) -> None:
        """Let roles be other ones, as `Sums.adopt` says."""
        if regions is not None:
            self._regions = regions
        self._reserved_for = -1
        self._adopted += 1
        self._take(stored, came_from, empty=True)
        new_role = {Role(old): Role(r) for r, old in enumerate(came_from) if old is not None}
        self._whole = {(new_role[r], number) for r, number in self._whole if r in new_role}

    def begin_empty(self) -> None:
        """Take the tables on the members for what they are: empty. Nothing is read from them."""
        self._adopted += 1
        self._take(self.stored, [None] * self.width, empty=True)

    async def heal(self) -> None:
        """Do nothing: what a cut left uneven is redone from the log, or forgotten."""
