"""Sums: a checksum for every page of 4 KiB of the members' data, and who is asked when one misfits.

A sum is *none* (0) or the CRC-32C of a page, combined with the page's place, so that right bytes at
a wrong place do not fit. In memory there is a table for each role, of the home places as they are:
whatever writes cells sets their sums with the write (`Sums.write`, `Sums.note`), and every read of
a home place is compared with them (`Sums.read`, `Sums.fits_now`). Where whole stripes are written,
the sums of parities are computed from those of data (`stripe_crcs`), not from the parities. How the
tables get to memory, and back to the members, is told in store/sum_tables.py.

Laws:
 1. A page is written whole, and its old bytes are verified before. Requests for parts of pages are
    made whole before they are planned (engine/write/write.py), first writes fill their chunks. An
    old page that has no sum gets that of what the code gives back, if all of that has sums; else
    the new page gets none until a scrub, nor do the parities that come from it. The log carries
    that (`Overlay.doubt`, and entries *unverified*). Parities are made of pages that have sums, if
    one of the two plans reads no other (`proven_plan`): so the old parity goes on contradicting
    what is wrong. Else they get none. Jobs that copy pages give them sums first, as above, or copy
    them without (`unproven_pages` in engine/contradictions.py).
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
from collections import Counter
from collections.abc import (
    AsyncIterator,
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

from raidx_fuse.errors import MemberError, ungrouped
from raidx_fuse.format.configuration.sums import StoredSums
from raidx_fuse.format.regions import Regions
from raidx_fuse.format.sum_table import (
    RUN_PAGES_MAX,
    ZEROS_CRC,
    Values,
    places_of,
    runs_fit,
    sum_of,
    sums_from,
    sums_of,
)
from raidx_fuse.laws import Law, Laws
from raidx_fuse.layouts.numbers import Role, cell_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.members.unreadable import PageLines, Unreadable, is_of_place
from raidx_fuse.store.io_tuples import (
    PAGE_BYTES,
    PAGE_MASK,
    PAGE_SHIFT,
    MemberIO,
    MemberLostError,
    MemberRead,
)
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.sum_memory import ENTRIES, LOADED, USED, Key
from raidx_fuse.store.sum_tables import Holders, SumTables
from raidx_fuse.store.xor import Program

log = logging.getLogger(__name__)

COVERED = ENTRIES * PAGE_BYTES  # of the data, by the sums in one page of a table
RUN_BYTES_MAX = RUN_PAGES_MAX * PAGE_BYTES
_HEALED_MAX = 1 << 17  # pages of which it is known that they were healed
_AT_ONCE = 64  # places that are forgotten between two loads of their tables
_FEW = 8  # reads that are compared sooner without sorting them
Page = tuple[Role, int]  # role, page of the data region
Covers = Callable[[Role, int, int], bool]  # as `Overlay.covers`
Ranges = tuple[NDArray[np.int64], NDArray[np.int64], int]  # roles, byte offsets, one size


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


class HomePlaces(Holders, Protocol):
    """What of a member set (store/member_set.py) the sums need."""

    overlay: Overlay
    unreadable: Unreadable
    laws: Laws
    place_epoch: int

    async def read(
        self, requests: Sequence[MemberRead], *, background: bool = False, home: bool = False
    ) -> None:
        """Fill the buffers of *requests*, from the *home* places."""
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


class Sums:
    """The sums of one array; `MemberSet.sums` is None while it has none.

    *stored* says where its *tables* lie. Attributes: *misfits* (pages that did not fit their sums),
    *healed* (of those, written anew), *wrong_sums* (sums that were wrong about
    right bytes), *unverified* (pages whose bytes were taken as they were after a crash);
    *suspects* (pages that misfit and are not healed yet).
    """

    def __init__(self, member_set: HomePlaces, regions: Regions, stored: StoredSums) -> None:
        self.member_set = member_set
        self.tables = SumTables(member_set, regions, stored)
        self._memory = self.tables.memory
        self.misfits = self.healed = self.wrong_sums = self.unverified = 0
        self.suspects: set[Page] = set()
        self._lines = PageLines(log)
        self._found: Counter[Role] = Counter()  # misfits since the member has its role
        self._again: Counter[Role] = Counter()  # those of them that had been healed
        self._were_healed: set[Page] = set()
        # Of absent members, that misfit as all others give them back: with the sum that says so.
        self._refused: dict[Page, int] = {}
        self._hold = self._memory.hold(())  # has their sums
        self._contradicted: set[Page] = set()  # that misfit as the code gave them back, so far
        self._begin = regions.data.offset
        self._end = regions.data.end
        self._flights: list[_Flight] = []

    def adopt(
        self,
        stored: StoredSums,
        came_from: Sequence[int | None],
        regions: Regions | None = None,
    ) -> None:
        """Let roles be other ones, whose tables lie where *stored* says.

        *came_from*: by new role, its old one, None for a new member, whose pages have no sums. The
        copies that are new have been made (`SumTables.are_copied`). *regions*: with as many data or
        more; the pages that come have no sums.
        """
        self.tables.adopt(stored, came_from, regions)
        if regions is not None:
            self._end = regions.data.end
        new_role = {Role(old): Role(r) for r, old in enumerate(came_from) if old is not None}
        self.suspects = {(new_role[r], page) for r, page in self.suspects if r in new_role}
        for counted in (self._found, self._again, self._were_healed):
            counted.clear()
        refused, self._refused = self._refused, {}
        for (role, page), known in refused.items():
            if role in new_role:
                self._refused[new_role[role], page] = known
        for flight in self._flights:
            runs = flight.runs
            flight.runs = [(new_role[r], first, end) for r, first, end in runs if r in new_role]

    # -- values --------------------------------------------------------------------------------

    def _value(self, role: Role, page: int, content: ReadBuffer) -> int:
        return sum_of(content, page, self.tables.seeds[role])

    def _values(self, role: Role, first: int, buffers: Sequence[ReadBuffer]) -> Values:
        """Return the sums of *buffers*, whole pages from page *first* of *role* on."""
        pages = _pages_of(buffers)
        return sums_of(
            pages, np.arange(first, first + len(pages), dtype=np.uint32), self.tables.seeds[role]
        )

    def _pages(self, role: Role, offset: int, size: int) -> tuple[int, int] | None:
        """Return first page and end of a range of a member; None if it is not of the data."""
        if not self._begin <= offset < self._end or role >= self.tables.width:
            return None
        return offset - self._begin >> PAGE_SHIFT, offset + size - self._begin >> PAGE_SHIFT

    async def load(self, requests: Iterable[tuple[Role, int, Any, int]]) -> None:
        """Have the sums of *requests* (role, byte offset, buffers, size) in memory.

        They may go again when the caller has waited for anything else (`holding`).
        """
        wanted, are_loaded = self._keys(requests)
        if not are_loaded:
            await self.tables.load(wanted)

    def _keys(self, requests: Iterable[tuple[Role, int, Any, int]]) -> tuple[set[Key], bool]:
        """Return the pages of tables with the sums of *requests*; and whether all are in memory."""
        begin, end, width = self._begin, self._end, self.tables.width
        of_role, are_loaded = self._memory.loaded, True
        keys: set[Key] = set()
        for role, offset, _, size in requests:
            if begin <= offset < end and role < width:
                first = (offset - begin) // COVERED
                last = (offset + max(size, 1) - 1 - begin) // COVERED
                loaded = of_role[role]
                for number in (first,) if first == last else range(first, last + 1):
                    keys.add((role, number))
                    if not loaded[number]:
                        are_loaded = False
                    elif loaded[number] == LOADED:
                        loaded[number] = USED
        return keys, are_loaded

    @asynccontextmanager
    async def arriving(self, requests: Iterable[tuple[Role, int, Any, int]]) -> AsyncIterator[None]:
        """Have the sums of *requests* come to memory while the block runs: it reads their places.

        Raises MemberLostError if a role is another one by then.
        """
        keys, are_loaded = self._keys(requests)
        if are_loaded:
            yield
            return
        lost: list[MemberLostError] = []

        async def load() -> None:
            try:
                await self.tables.load(keys)
            except MemberLostError as error:
                lost.append(error)

        with ungrouped(), self._memory.holding(keys):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load)
                yield
        if lost:
            raise lost[0]

    @asynccontextmanager
    async def holding(
        self, requests: Collection[tuple[Role, int, Any, int]]
    ) -> AsyncIterator[None]:
        """Have the sums of *requests* in memory while the block runs."""
        with self._memory.holding(self._keys(requests)[0]):
            await self.load(requests)
            yield

    def reserve_for(self, requests: Iterable[tuple[Role, int, Any, int]]) -> None:
        """Reserve space for the sums of *requests*, which are about to be written first.

        Raises NoSpaceError.
        """
        for role, offset, _, size in requests:
            pages = self._pages(role, offset, size)
            if pages is not None:
                numbers = range(pages[0] // ENTRIES, (pages[1] - 1) // ENTRIES + 1)
                self.tables.reserve((role, number) for number in numbers)

    # -- writing -------------------------------------------------------------------------------

    def is_ready(self, requests: Iterable[MemberIO]) -> bool:
        """Return whether `note` and `note_written` can be called for *requests* now.

        Not if much is unsaved already: a write that may wait saves it before.
        """
        if self._memory.has_many_unsaved:
            return False
        for role, offset, _, size in requests:
            pages = self._pages(role, offset, size)
            if pages is not None and not self._memory.are_loaded(role, *pages):
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
            self._memory.put_one(role, first, self._value(role, first, buffers[0]))
            return
        self._memory.put(role, first, self._values(role, first, buffers), end - first)

    def note_written(
        self, requests: Sequence[MemberIO], written: Sequence[MemberIO | None], crcs: Values
    ) -> None:
        """Do as `note` for those *written* of *requests*; *crcs* are those of all their pages."""
        pages = [request[1] - self._begin >> PAGE_SHIFT for request in requests]
        seeds = [self.tables.seeds[request[0]] for request in requests]
        counts = [request[3] >> PAGE_SHIFT for request in requests]
        values = sums_from(crcs, places_of(pages, seeds, counts))
        at = 0
        for request, first, count in zip(written, pages, counts, strict=True):
            if request is not None:
                self._require_whole(request[1], request[3])
                self._memory.put(request[0], first, values[at : at + count], count)
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
        places = places_of(firsts, [self.tables.seeds[role] for role, _, _ in runs], counts)
        values = sums_from(np.fromiter(map(crc32c, pages), np.uint32, len(pages)), places)
        at = 0
        for (role, first, _), count in zip(runs, counts, strict=True):
            self._memory.put(role, first, values[at : at + count], count)
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
        values = sums_of(contents, pages.astype(np.uint32), self.tables.seeds[role])
        self._memory.put_at(role, pages, values)

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
        await self.save_many()
        hold = self._memory.hold(self._keys(requests)[0])
        try:
            await self.load(requests)
            for _, offset, _, size in requests:
                self._require_whole(offset, size)  # before the first sum is set
            await self._write(requests, background, given, unverified)
        finally:
            self._memory.release(hold)

    async def save_many(self) -> None:
        """Save what is unsaved if that is much of what may be in memory. Raises as `save`."""
        if self._memory.has_many_unsaved:
            await self.tables.save()

    async def _write(
        self,
        requests: Sequence[MemberIO],
        background: bool,
        given: Sequence[GivenSums] | None,
        unverified: Collection[Page],
    ) -> None:
        flight = _Flight(
            self.note_all(requests) if given is None else self._note_given(requests, given)
        )
        for role, page in unverified:
            self._memory.put(role, page, 0, 1)
        self._flights.append(flight)
        try:
            await self.member_set.write(requests, background=background)
        except BaseException:
            for role, first, end in flight.runs:
                self._memory.put(role, first, 0, end - first)
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
            self._memory.put(role, offset - self._begin >> PAGE_SHIFT, values, len(values))
        return runs

    async def forget(self, requests: Iterable[tuple[Role, int, Any, int]]) -> None:
        """Let the places of *requests* have no sum: they are not live any more."""
        requests = list(requests)
        for at in range(0, len(requests), _AT_ONCE):
            part = requests[at : at + _AT_ONCE]
            await self.load(part)
            for request in part:
                self.forget_now(*request)

    def forget_now(self, role: Role, offset: int, _buffers: Any, size: int) -> None:
        """Do as `forget` for one place, whose sums are in memory."""
        pages = self._pages(role, offset, size)
        if pages is not None:
            first, end = pages
            self._memory.put(role, first, 0, end - first)
            self.suspects -= {
                page for page in self.suspects if page[0] == role and first <= page[1] < end
            }

    async def forget_role(
        self, role: Role, kept: NDArray[np.bool_] | None = None, chunk_bytes: int = PAGE_BYTES
    ) -> None:
        """Let no page of *role* have a sum, but those of the chunks that are *kept*."""
        for keys in self.tables.windows(role):
            await self.tables.load(keys)
            numbers = np.array([number for _, number in keys])
            for number in numbers[self._memory.have_sums(role, numbers)].tolist():
                first = number * ENTRIES
                known = self._memory.known(role, first, first + ENTRIES)
                values = np.zeros(ENTRIES, np.uint32)
                if kept is not None:
                    pages = np.arange(first, first + ENTRIES)
                    chunks = np.minimum(pages * PAGE_BYTES // chunk_bytes, len(kept) - 1)
                    values = np.where(kept[chunks], known, values)
                if (values != known).any():
                    self._memory.put(role, first, values, ENTRIES)

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
                    self._memory.begin_past(role, found)

    async def forget_past(self, layout: Layout, stripes: Sequence[int]) -> None:
        """Forget what the sums of *stripes* were before a crash: their resync has ended."""
        async for role, found in self._cells_of(layout, np.array(stripes, np.int64)):
            self._memory.end_past(role, found)

    async def _cells_of(
        self, layout: Layout, stripes: NDArray[np.int64]
    ) -> AsyncIterator[tuple[Role, NDArray[np.int64]]]:
        """Yield (role, pages) of the cells of *stripes*; their sums are in memory."""
        pages = layout.chunk_bytes >> PAGE_SHIFT
        inner = np.arange(pages)
        for cell in cell_range(0, len(layout.code.cells)):
            roles, chunks = layout.places(stripes, cell)
            for role in np.unique(roles).tolist():
                if not 0 <= role < self.tables.width:
                    continue
                places = chunks[roles == role]
                found = (places[:, None] * pages + inner).ravel()
                numbers = np.unique(found // ENTRIES).tolist()
                await self.tables.load((Role(role), number) for number in numbers)
                yield Role(role), found

    # -- reading -------------------------------------------------------------------------------

    def fits_now(self, role: Role, offset: int, buffers: Sequence[ReadBuffer], size: int) -> bool:
        """Return whether bytes that were read in this step fit; False if it cannot be told now."""
        if size != PAGE_BYTES or offset & PAGE_MASK:
            return self.fit_now(((role, offset, buffers, size),))
        page, tables, memory = offset - self._begin >> PAGE_SHIFT, self.tables, self._memory
        loaded, number = memory.loaded[role], page // ENTRIES
        if loaded[number] != USED:
            if not loaded[number]:
                return False
            if loaded[number] == LOADED:
                loaded[number] = USED
        known = memory.views[role][page]
        return not known or known == sum_of(buffers[0], page, tables.seeds[role])

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
            if role >= self.tables.width:
                return False
            first = offset - self._begin >> PAGE_SHIFT
            count = size >> PAGE_SHIFT
            left -= count
            loaded = self._memory.loaded[role]
            if left < 0 or not (
                loaded[first // ENTRIES] and loaded[(first + count - 1) // ENTRIES]
            ):
                return False
            known.append(self._memory.known(role, first, first + count))
            firsts.append(first)
            counts.append(count)
            seeds.append(self.tables.seeds[role])
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
        known = self._memory.known(role, first, end)
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
        known = self._memory.known_one(role, page)
        return not known or known == self._value(role, page, content)

    def replace(self, role: Role, offset: int, content: ReadBuffer) -> None:
        """Let *content*, which is right, be what the sum of its page says: the sum was wrong."""
        page = offset - self._begin >> PAGE_SHIFT
        self._memory.put(role, page, self._value(role, page, content), 1)
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
        self._were_healed = {page for page in self._were_healed if page[0] != role}
        self._found.pop(role, None)
        self._again.pop(role, None)

    def forget_counts(self) -> tuple[int, int, int, int]:
        """Count misfits, healed pages, wrong sums and unverified pages anew; return what they were.

        Which pages misfit now stays known, and how many of each member did.
        """
        before = self.misfits, self.healed, self.wrong_sums, self.unverified
        self.misfits = self.healed = self.wrong_sums = self.unverified = 0
        return before

    def found_on(self, role: Role) -> tuple[int, int]:
        """Return how many pages of the member in *role* misfitted, and did so after being healed.

        Counted since it took its role, or since roles were others.
        """
        return self._found[role], self._again[role]

    def note_healed(self, role: Role, offset: int) -> None:
        """Note that the page at *offset* of *role* fits again."""
        page = role, offset - self._begin >> PAGE_SHIFT
        if page in self.suspects:
            self.suspects.discard(page)
            self.healed += 1
            if len(self._were_healed) < _HEALED_MAX:
                self._were_healed.add(page)

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
        done = False
        while not done:
            if role_epoch != member_set.role_epoch:
                raise MemberLostError  # a new member of a role has nothing yet: plan again
            change = member_set.unreadable.changes
            async with self.arriving(wide):
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
        await self.load(reads)
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
        begin, end, width = self._begin, self._end, self.tables.width
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
            values = sums_of(contents, pages.astype(np.uint32), self.tables.seeds[role])
            known = self._memory.known_at(role, pages)
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
        place = [(role, offset, (), PAGE_BYTES)]
        while True:
            await self._landed(role, page)
            async with self.holding(place):
                before = self._memory.known_one(role, page)
                content = await member_set.read_home(role, offset, PAGE_BYTES)
                known = self._memory.known_one(role, page)
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
            self.tables.write_again(*page)  # what spoils pages may spoil tables
            self.misfits += 1
            self._found[role] += 1
            self._again[role] += page in self._were_healed
            self._lines.say(logging.ERROR, f"misfit {role}", error.message)
        if not unreadable.pages(role, offset, offset + PAGE_BYTES):
            unreadable.add(role, offset >> PAGE_SHIFT)
        elif unreadable.came_since(change, role, offset, offset + PAGE_BYTES):
            pass  # it may plan around it
        elif unreadable.asked_again(role, offset, offset + PAGE_BYTES):
            raise error

    def offset_of(self, page: Page) -> int:
        """Return the byte of its member at which *page* begins."""
        return self._begin + page[1] * PAGE_BYTES

    def note_contradiction(self, role: Role, offset: int) -> None:
        """Count the page at *offset* of *role* if it misfits as the code gives it back."""
        page = self.page_at(role, offset)
        if page not in self.suspects and page not in self._contradicted:
            self._contradicted.add(page)
            self.misfits += 1
            line = f"role {role}: what gives byte {offset} back contradicts its checksum"
            self._lines.say(logging.ERROR, f"contradiction {role}", line)

    def note_refused(self, role: Role, offset: int) -> None:
        """Note that the page at *offset* of the absent *role* misfits, however it is given back.

        Its sum is in memory, and stays there.
        """
        page = self.page_at(role, offset)
        self._refused[page] = self._memory.known_one(*page)
        self._memory.hold_more(self._hold, [(role, page[1] // ENTRIES)])

    def accept(self, role: Role, offset: int, size: int, wrong: Collection[int] = ()) -> None:
        """Note that what gives a range of *role* back fits, but for the pages at bytes *wrong*."""
        for at in range(0, size, PAGE_BYTES) if self._refused else ():
            if at not in wrong:
                self._refused.pop(self.page_at(role, offset + at), None)

    def refused_places(self) -> list[tuple[Role, int]]:
        """Return the pages (role, byte offset) that were refused, and not written since."""
        readable = self.member_set.readable
        self._refused = {
            (role, page): known
            for (role, page), known in self._refused.items()
            if readable[role] is None and self._memory.known_one(role, page) == known
        }
        if not self._refused:
            self._memory.release(self._hold)
            self._hold = self._memory.hold(())
        return [(role, self._begin + page * PAGE_BYTES) for role, page in self._refused]

    def note_unverified(self, pages: int) -> None:
        """Count *pages* whose bytes were taken as they were after a crash."""
        self.unverified += pages

    # -- places that have no sum yet ---------------------------------------------------------------

    def lacking(self, role: Role, offset: int, size: int) -> int:
        """Return how many pages of a range, whose sums are in memory, have none."""
        pages = self._pages(role, offset, size)
        if pages is None:
            return 0
        return int(pages[1] - pages[0] - np.count_nonzero(self._memory.known(role, *pages)))

    def lacks(self, role: Role, offset: int, size: int) -> bool:
        """Return whether a page of a range, whose sums are in memory, has none."""
        pages = self._pages(role, offset, size)
        return pages is not None and not self._memory.known(role, *pages).all()

    def crcs(self, role: Role, offset: int, size: int) -> tuple[Values, NDArray[np.bool_]] | None:
        """Return the CRCs that a range of pages has by its sums, and which of them are known.

        They are XORed with that of a page of zeros, so that pages whose XOR is zero have CRCs whose
        XOR is zero. None if the range is not of the data, or its sums are not in memory.
        """
        pages = self._pages(role, offset, size)
        if pages is None or not self._memory.are_loaded(role, *pages):
            return None
        known = self._memory.known(role, *pages)
        crcs = known ^ places_of((pages[0],), (self.tables.seeds[role],), (len(known),))
        crcs ^= ZEROS_CRC
        return crcs, known > 1  # 1 stands for two CRCs

    def values_by(self, role: Role, offset: int, crcs: Values) -> Values:
        """Return the sums of pages at *offset* of *role* whose *crcs* are as `crcs` has them."""
        first = offset - self._begin >> PAGE_SHIFT
        return sums_from(
            crcs ^ ZEROS_CRC, places_of((first,), (self.tables.seeds[role],), (len(crcs),))
        )

    def is_unproven(self, role: Role, offset: int, size: int) -> bool:
        """Return whether nothing says of a page of a range that readers see what was written.

        It has no sum, and the log does not have it; or the log has it from what nothing has
        verified (`Overlay.doubt`). Sums of what the log does not have are in memory.
        """
        if not self._begin <= offset < self._end or role >= self.tables.width:
            return False
        overlay, first = self.member_set.overlay, offset - self._begin >> PAGE_SHIFT
        if not (overlay.unverified or overlay.frozen_unverified):
            if size == PAGE_BYTES:  # without an array
                if self._memory.views[role][first]:
                    return False
            elif self._memory.values[role][first : first + (size >> PAGE_SHIFT)].all():
                return False
        places = range(offset, offset + size, PAGE_BYTES)
        return any(self._is_unproven(role, at, overlay.covers) for at in places)

    def _is_unproven(self, role: Role, at: int, covers: Covers) -> bool:
        if covers(role, at, at + PAGE_BYTES):
            return self.member_set.overlay.is_doubted(role, at)
        return not self._memory.known_one(role, at - self._begin >> PAGE_SHIFT)

    async def unproven(self, ranges: Sequence[Ranges], covers: Covers) -> set[tuple[Role, int]]:
        """Return the pages (role, byte offset) of many *ranges* that are unproven.

        As `is_unproven`, but of the log only what *covers* knows lies over the home places.
        """
        every = []
        for roles, offsets, size in ranges:
            inner = np.arange(0, size, PAGE_BYTES)
            every.append((np.repeat(roles, len(inner)), (offsets[:, None] + inner).ravel()))
        roles, offsets = (np.concatenate(some) for some in zip(*every, strict=True))
        of_roles = [(Role(role), offsets[roles == role]) for role in np.unique(roles).tolist()]
        keys = {
            (role, number)
            for role, at in of_roles
            for number in np.unique((at - self._begin) // COVERED).tolist()
        }
        overlay, found = self.member_set.overlay, set[tuple[Role, int]]()
        with self._memory.holding(keys):
            await self.tables.load(keys)
            for role, at in of_roles:
                perhaps = self._memory.known_at(role, at - self._begin >> PAGE_SHIFT) == 0
                if overlay.unverified or overlay.frozen_unverified:
                    perhaps[:] = True  # what the log has of it
                for place in at[perhaps].tolist() if perhaps.any() else ():
                    if self._is_unproven(role, place, covers):
                        found.add((role, place))
        return found

    def has(self, role: Role, offset: int) -> bool:
        """Return whether the page at *offset* of *role*, whose sum is in memory, has one."""
        return bool(self._memory.known_one(role, offset - self._begin >> PAGE_SHIFT))

    def known(self, role: Role, offset: int, size: int) -> Values:
        """Return the sums of a range, which are in memory; 0: none."""
        pages = self._pages(role, offset, size)
        return np.zeros(0, np.uint32) if pages is None else self._memory.known(role, *pages)

    def past(self, role: Role, offset: int, size: int) -> Values:
        """Return the sums of a range before the crash whose resync is due; 0: none, or another one.

        What the log has redone has its own.
        """
        pages = self._pages(role, offset, size)
        if pages is None:
            return np.zeros(0, np.uint32)
        known = self._memory.known(role, *pages)
        return np.where(known == 0, self._memory.past(role, *pages), np.uint32(0))

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
        table = self._memory.known(role, first, end)
        empty = table == 0
        for of_role, begun, stop in (run for flight in self._flights for run in flight.runs):
            # It may have failed on the way, and have no sum for that.
            if of_role == role and begun < end and first < stop:
                empty[max(0, begun - first) : stop - first] = False
        if not empty.any():
            return 0
        values = self._values(role, first, [content])
        others = int((empty & (values != self._memory.past(role, first, end))).sum())
        self._memory.put(role, first, np.where(empty, values, table), end - first)
        return others
