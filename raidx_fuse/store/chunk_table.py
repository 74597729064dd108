"""The chunk table (look-up table) of a raidx layout: every member's share of it, and its changes.

In memory the layout itself is the table (layouts/placements/bundled.py). On disk every member
holds its own share (format/table_page.py). Only pages that differ from the greedy allocation are
ever written.

All changes go through the write-ahead log. A move is a record. Once the record is durable, the
checkpoint writes the table pages of the cell's old and new place: first slot 0 of each page, then
a flush, then slot 1. Between checkpoints both slots are therefore valid and have the same content.

table_recovery.py combines the shares of all members when the array starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import trio
from numpy.typing import NDArray

from raidx_fuse.errors import MemberError, no_space
from raidx_fuse.format.pages import encode_page, erase_region
from raidx_fuse.format.regions import PAGE_SLOTS, PageRegion
from raidx_fuse.format.table_page import (
    KIND,
    PAGE_ENTRIES,
    encode_entries,
    share_pages,
    shares_of,
)
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import MemberChunk, Role
from raidx_fuse.layouts.placements.bundled import NOWHERE, BundleLayout
from raidx_fuse.members.base import Member
from raidx_fuse.store.member_io import MemberIO
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.table_recovery import Page, Place, TableRecovery, TableScan

log = logging.getLogger(__name__)

Move = tuple[int, Role, MemberChunk]  # cell, its new role, its new member chunk
Cells = NDArray[np.int64]
PAGES_AT_ONCE = 4096  # pages encoded in memory at a time when many are saved


class ChunkTable:
    """The table shares of the members of *member_set*; does nothing if the layout has no table.

    The member set calls it as one of its page stores (`member_set.PagesOfMembers`).
    """

    def __init__(self, member_set: MemberSet, scan: TableScan) -> None:
        self.member_set = member_set
        self.layout = member_set.layout if isinstance(member_set.layout, BundleLayout) else None
        self.damaged = scan.damaged
        self._regions = shares_of(member_set.config)
        self._claims: TableScan | None = scan
        self._redone: dict[int, Place] = {}
        self._generations = dict(scan.generations)
        self._written: set[Page] = set(scan.generations)  # pages unlike the greedy allocation
        self._unsaved: set[Page] = set(scan.worn)
        self._saving = trio.Lock()  # one save after another: the later one has the newer content
        # called with the places that cells have left
        self.on_moves: list[Callable[[Sequence[Move]], None]] = []
        member_set.page_stores.append(self)

    # -- start ---------------------------------------------------------------------------------

    def redo(self, moves: Sequence[Move]) -> None:
        """Note *moves* that the replay of the log found, in the order of their records."""
        for cell, role, chunk in moves:
            self._redone[cell] = (role, chunk)

    def recover(self) -> None:
        """Build the table from the members' shares and the replayed moves.

        Raises AssemblyError if they contradict each other or leave a cell without a place.
        """
        scan, self._claims = self._claims, None
        layout = self.layout
        if layout is None or scan is None:
            return
        paths = [queue.member.path if queue is not None else "" for queue in self.member_set.queues]
        recovery = TableRecovery(layout, scan, self._redone, paths)
        if recovery.is_needed():
            self._unsaved |= recovery.recover()
            self._written |= self._unsaved
            self._redone = {}
            # Pages that already have the right content in both slots need not be written again.
            self._unsaved = {page for page in self._unsaved if not self._agrees(page, scan)}

    def _agrees(self, page: Page, scan: TableScan) -> bool:
        """Return whether *page*, as scanned, agrees with the table in both of its slots."""
        entries = scan.pages.get(page[0], {}).get(page[1])
        if entries is None or page in scan.worn:
            return False
        return bool(np.array_equal(entries["cell"].astype(np.int64) - 1, self._cells(page)))

    async def read_share(self, scan: TableScan, role: Role, member: Member) -> None:
        """Read into *scan* the share that *member* has had as the member of *role*."""
        assert self.layout is not None
        array_uuid = self.member_set.config.array_uuid
        await scan.read(role, member, self._regions[role], self.layout, array_uuid)

    def agrees(self, role: Role, scan: TableScan) -> bool:
        """Return whether the share of *role* in *scan* says the same as the table."""
        pages = {(role, page) for page in scan.pages.get(role, {})}
        pages |= {page for page in self._written if page[0] == role}
        return all(self._agrees(page, scan) for page in pages)

    # -- changes -------------------------------------------------------------------------------

    def require_free(self, moves: Sequence[Move]) -> None:
        """Raise LawError unless *moves* go to free places, or to those that they leave."""
        layout = self.layout
        assert layout is not None, "only a layout with a table has moves"
        cells = {cell for cell, _role, _chunk in moves}
        places = {(role, chunk) for _cell, role, chunk in moves}
        held = (int(layout.cells_of(role)[chunk]) for role, chunk in places)
        if len(places) < len(cells) or any(cell >= 0 and cell not in cells for cell in held):
            raise self.member_set.laws.broken(Law.PLACE, f"moves of the cells {sorted(cells)}")

    def apply(self, moves: Sequence[Move]) -> None:
        """Apply committed *moves* to the table in memory, without suspending."""
        layout = self.layout
        assert layout is not None, "only a layout with a table has moves"
        for cell, role, chunk in moves:
            home = Role(int(layout.disk[cell]))
            self._unsaved.add((home, int(layout.offset[cell]) // PAGE_ENTRIES))
            self._unsaved.add((role, chunk // PAGE_ENTRIES))
        self._written |= self._unsaved
        for role, _page in self._unsaved:
            layout.cells_of(role)  # builds the index before the first move; `move` updates it
        left = [
            (cell, Role(int(layout.disk[cell])), MemberChunk(int(layout.offset[cell])))
            for cell, _role, _chunk in moves
        ]
        layout.move(moves)
        for hook in self.on_moves:
            hook(left)

    def take_unsaved(self) -> dict[Page, bytes]:
        """Return the current payloads of the unsaved pages and stop counting them as unsaved."""
        pages = {page: self._payload(page) for page in sorted(self._unsaved)}
        self._unsaved.clear()
        return pages

    async def save_as(self, pages: Mapping[Page, bytes]) -> None:
        """Write *pages* to both of their slots.

        Slot 0 is flushed before slot 1 is written; slot 1 is not flushed here.
        """
        if pages:
            async with self._saving:
                await self._save_now(pages)

    async def _save_now(self, pages: Mapping[Page, bytes]) -> None:
        contents: list[tuple[Page, bytes]] = []
        for (role, number), payload in pages.items():
            generation = self._generations.get((role, number), 0) + 1
            self._generations[role, number] = generation
            array_uuid = self.member_set.config.array_uuid
            content = encode_page(number, generation, KIND, payload, array_uuid)
            contents.append(((role, number), content))
        for slot in range(PAGE_SLOTS):
            if slot:
                await self.member_set.flush()
            requests: list[MemberIO] = [
                (role, self._regions[role].slot_offset(number, slot), [content], len(content))
                for (role, number), content in contents
                if self.member_set.queues[role] is not None
            ]
            await self.member_set.write(requests)

    def reserve(self, role: Role, chunk: MemberChunk) -> None:
        """Reserve host space for the table page that a move to *chunk* of *role* changes.

        Raises NoSpaceError if the host has none.
        """
        queue = self.member_set.queues[role]
        if queue is not None:
            offset = self._regions[role].slot_offset(chunk // PAGE_ENTRIES, 0)
            end = self._regions[role].slot_offset(chunk // PAGE_ENTRIES, 1)
            try:
                queue.member.reserve(offset, 2 * (end - offset))
            except MemberError as error:
                refused = no_space(error)
                if refused is not None:
                    raise refused from error

    def _cells(self, page: Page) -> Cells:
        assert self.layout is not None
        first = page[1] * PAGE_ENTRIES
        return self.layout.cells_of(page[0])[first : first + PAGE_ENTRIES]

    def _payload(self, page: Page, gained: int = 0) -> bytes:
        layout = self.layout
        assert layout is not None
        cells = self._cells(page)
        more = min(gained, PAGE_ENTRIES - len(cells))
        cells = np.append(cells, np.full(more, NOWHERE, cells.dtype)) if more else cells
        held = np.where(cells == NOWHERE, 0, cells)
        free = cells == NOWHERE
        last = np.where(free, 0, layout.last[held]).astype(np.uint32)
        interval = np.where(free, 0, layout.interval[held]).astype(np.uint16)
        return encode_entries(cells, last, interval, page[0])

    # -- called by `MemberSet` as a page store -------------------------------------------------

    async def erase(self, role: Role, member: Member) -> None:
        """Erase a stale share of an earlier use of *member*, which takes *role*; not flushed.

        Raises MemberError.
        """
        if role in self._regions:
            await erase_region(member, self._regions[role])

    async def give_share(
        self, role: Role, member: Member, region: PageRegion | None = None, gained: int = 0
    ) -> None:
        """Write the share of *role* to *member*, which takes it next; durable on return.

        *region* is where it will lie, if not where the share of the role lies now: the role
        gets *gained* more chunks, which are free.

        As soon as it has the role in memory, any round of superblocks may name it, and a start
        refuses a member that lacks its share. What moves meanwhile follows by `save_all`. Raises
        MemberError.
        """
        array_uuid = self.member_set.config.array_uuid
        region = self._regions.get(role) if region is None else region
        pages = sorted(page for page in self._written if page[0] == role)
        for page in pages:
            generation = self._generations[page] = self._generations.get(page, 0) + 1
            payload = self._payload(page, gained)
            content = encode_page(page[1], generation, KIND, payload, array_uuid)
            assert region is not None, "only a layout with a table has pages of it"
            for slot in range(PAGE_SLOTS):
                await member.writev(region.slot_offset(page[1], slot), [content])
        if pages:
            await member.flush()

    def renew(self) -> None:
        """Recompute the regions of the shares, after members were added, removed or enlarged."""
        self._regions = shares_of(self.member_set.config)
        counts = self.layout.counts if self.layout is not None else ()
        vacant = {role for role, count in enumerate(counts) if not count}
        self._written = {page for page in self._written if page[0] not in vacant}
        self._unsaved = {page for page in self._unsaved if page[0] not in vacant}

    def found_anew(self, role: Role) -> None:
        """Let nothing of *role* follow from the greedy allocation: its next member has it all."""
        assert self.layout is not None
        self.layout.forget_founder(role)
        pages = {(role, page) for page in range(share_pages(self.layout.counts[role]))}
        self._written = {page for page in self._written if page[0] != role} | pages
        self._unsaved = {page for page in self._unsaved if page[0] != role} | pages

    async def save_places(self, cells: range) -> None:
        """Save the pages that hold the places of *cells*; they are durable on return.

        Nothing else may save table pages during the call. Raises what the members raise.
        """
        layout = self.layout
        assert layout is not None
        roles, chunks = (
            layout.disk[cells.start : cells.stop],
            layout.offset[cells.start : cells.stop],
        )
        for role in map(Role, np.unique(roles).tolist()):
            pages = np.unique(chunks[roles == role] // PAGE_ENTRIES)
            self._unsaved.update((role, int(page)) for page in pages)
        self._written |= self._unsaved
        await self.member_set.flush()  # the records of the moves that these pages contain
        while self._unsaved:
            some = sorted(self._unsaved)[:PAGES_AT_ONCE]
            self._unsaved.difference_update(some)
            try:
                await self.save_as({page: self._payload(page) for page in some})
                await self.member_set.flush()
            except BaseException:
                self._unsaved.update(some)
                raise

    async def save_all(self) -> None:
        """Write every page that differs from the greedy allocation, for a new member's share."""
        if self._written:
            async with self._saving:
                pages = {page: self._payload(page) for page in sorted(self._written)}
                await self.member_set.flush()  # the records of the moves that these pages contain
                await self._save_now(pages)

    async def heal(self) -> None:
        """Do nothing: the checkpoint rewrites damaged pages, once the log has been replayed.

        Before the replay the table is not valid.
        """
