"""The look-up table of a raidx layout in use: what each member's share says, and its changes.

In memory the layout itself is the table (layouts/placements/bundled.py). On disk every member
holds its own share (format/table_page.py), and only pages that differ from the greedy allocation
were ever written. All changes go through the journal: a move is a record; once it is durable,
placing it writes the pages of both places, first slot 0 of each, then a flush, then slot 1, so that
between placements both slots are whole and say the same.

What the shares of all members say together at the start is settled in table_recovery.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.errors import MemberError, no_space
from raidx_fuse.format.pages import encode_page
from raidx_fuse.format.regions import PAGE_SLOTS
from raidx_fuse.format.table_page import KIND, PAGE_ENTRIES, encode_entries, erase_share, shares_of
from raidx_fuse.layouts.placements.bundled import NOWHERE, BundleLayout
from raidx_fuse.members.base import Member
from raidx_fuse.store.member_set import MemberIO, MemberSet
from raidx_fuse.store.table_recovery import Page, TableRecovery, TableScan

log = logging.getLogger(__name__)

Move = tuple[int, int, int]  # cell, its new role, its new member chunk
Cells = NDArray[np.int64]
PAGES_AT_ONCE = 4096  # of memory, when many are saved


class ChunkTable:
    """The shares of *member_set*'s members; without a table, nothing. A page store for
    `MemberSet`.
    """

    def __init__(self, member_set: MemberSet, scan: TableScan) -> None:
        self.member_set = member_set
        self.layout = member_set.layout if isinstance(member_set.layout, BundleLayout) else None
        self.damaged = scan.damaged
        self._regions = shares_of(member_set.config)
        self._claims: TableScan | None = scan
        self._redone: dict[int, tuple[int, int]] = {}
        self._generations = dict(scan.generations)
        self._written: set[Page] = set(scan.generations)  # pages that differ from the first ones
        self._unsaved: set[Page] = set(scan.worn)
        member_set.page_stores.append(self)

    # -- starting ------------------------------------------------------------------------------

    def redo(self, moves: Sequence[Move]) -> None:
        """Note *moves* that are replayed, in their order."""
        for cell, role, chunk in moves:
            self._redone[cell] = (role, chunk)

    def recover(self) -> None:
        """Make the table of what the shares claim and the journal redid. Raises AssemblyError."""
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
            # Pages that are as they should be need not be written again.
            self._unsaved = {page for page in self._unsaved if not self._agrees(page, scan)}

    def _agrees(self, page: Page, scan: TableScan) -> bool:
        """Say whether a present member's page says what the table says, and in both its slots."""
        entries = scan.pages.get(page[0], {}).get(page[1])
        if entries is None or page in scan.worn:
            return False
        return bool(np.array_equal(entries["cell"].astype(np.int64) - 1, self._cells(page)))

    # -- changing ------------------------------------------------------------------------------

    def apply(self, moves: Sequence[Move]) -> None:
        """Make committed *moves* take effect, all at once."""
        layout = self.layout
        assert layout is not None, "only a layout with a table has moves"
        for cell, role, chunk in moves:
            self._unsaved.add((int(layout.disk[cell]), int(layout.offset[cell]) // PAGE_ENTRIES))
            self._unsaved.add((role, chunk // PAGE_ENTRIES))
        self._written |= self._unsaved
        for role, _page in self._unsaved:
            layout.cells_of(role)  # made before the first move: `move` keeps it
        layout.move(moves)

    def take_unsaved(self) -> dict[Page, bytes]:
        """Return the changed pages as they are now, and forget that they are changed."""
        pages = {page: self._payload(page) for page in sorted(self._unsaved)}
        self._unsaved.clear()
        return pages

    def put_back(self, pages: Iterable[Page]) -> None:
        """Note that *pages* were not saved after all."""
        self._unsaved.update(pages)

    async def save_as(self, pages: Mapping[Page, bytes]) -> None:
        """Write *pages* to both their slots, the first durable before the second; not flushed."""
        if not pages:
            return
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

    def reserve(self, role: int, chunk: int) -> None:
        """Take room on the host for the page that a move to *chunk* of *role* changes.

        Raises NoSpaceError.
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

    def _payload(self, page: Page) -> bytes:
        layout = self.layout
        assert layout is not None
        cells = self._cells(page)
        held = np.where(cells == NOWHERE, 0, cells)
        free = cells == NOWHERE
        last = np.where(free, 0, layout.last[held]).astype(np.uint32)
        interval = np.where(free, 0, layout.interval[held]).astype(np.uint16)
        return encode_entries(cells, last, interval, page[0])

    # -- a page store of `MemberSet`
    # -----------------------------------------------------------------

    async def erase(self, role: int, member: Member) -> None:
        """Clear what an earlier life left of a share on *member*, which takes *role*; not flushed.

        Raises MemberError.
        """
        if role in self._regions:
            await erase_share(member, self._regions[role])

    def renew(self) -> None:
        """Look anew where shares lie: members came or left, or are larger."""
        self._regions = shares_of(self.member_set.config)
        counts = self.layout.counts if self.layout is not None else ()
        vacant = {role for role, count in enumerate(counts) if not count}
        self._written = {page for page in self._written if page[0] not in vacant}
        self._unsaved = {page for page in self._unsaved if page[0] not in vacant}

    async def save_places(self, cells: range) -> None:
        """Save the pages that say where *cells* lie; nobody else saves pages now. Durable then."""
        layout = self.layout
        assert layout is not None
        roles, chunks = (
            layout.disk[cells.start : cells.stop],
            layout.offset[cells.start : cells.stop],
        )
        for role in np.unique(roles).tolist():
            pages = np.unique(chunks[roles == role] // PAGE_ENTRIES)
            self._unsaved.update((role, int(page)) for page in pages)
        self._written |= self._unsaved
        await self.member_set.flush()  # records of moves that the pages know of
        while self._unsaved:
            some = sorted(self._unsaved)[:PAGES_AT_ONCE]
            self._unsaved.difference_update(some)
            try:
                await self.save_as({page: self._payload(page) for page in some})
                await self.member_set.flush()
            except BaseException:
                self.put_back(some)
                raise

    async def save_all(self) -> None:
        """Write every page that is not as at first: a new member must hold its own."""
        await self.save_as({page: self._payload(page) for page in sorted(self._written)})

    async def heal(self) -> None:
        """Pages are healed when the journal was replayed: not before does the table hold."""

    def flush_begins(self) -> None:
        """Both slots are written one after the other: nothing depends on who flushes."""

    def flush_ends(self) -> None:
        """See `flush_begins`."""
