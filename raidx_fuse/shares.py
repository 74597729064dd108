"""The look-up table of a raidx layout in use: what each member's share says, and its changes.

In memory the layout itself is the table (layouts/raidx.py). On disk every member holds its own
share (format/table.py), and only pages that differ from the greedy allocation were ever written.
All changes go through the journal: a move is a record; once it is durable, placing it writes the
pages of both places, first slot 0 of each, then a flush, then slot 1, so that between placements
both slots are whole and say the same.

At the start the shares are compared with each other. A cell must be claimed by exactly one place:

* claimed by the page of one member: it lies there, wherever the greedy allocation had put it;
* named by a record that is replayed: the record is right, pages may be older or newer;
* claimed by none, and a member is absent: it is on that one, its content comes from its bundle;
* claimed twice, or by none with all members there: reported, never guessed.

A member of which both slots of a page are damaged counts as lost if the layout can do without it;
else the array does not start.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.claims import Claims, Page
from raidx_fuse.errors import AssemblyError, MemberError, NoSpaceError
from raidx_fuse.format.pages import encode_page
from raidx_fuse.format.regions import PAGE_SLOTS
from raidx_fuse.format.table import KIND, PAGE_ENTRIES, encode_entries, erase_share, shares_of
from raidx_fuse.layouts.raidx import NOBODY, NOWHERE, BundleLayout
from raidx_fuse.members.base import Member
from raidx_fuse.store import Request, Store

log = logging.getLogger(__name__)

Move = tuple[int, int, int]  # cell, its new role, its new member chunk
Cells = NDArray[np.int64]
PAGES_AT_ONCE = 4096  # of memory, when many are saved


class Shares:
    """The shares of *store*'s members; without a table, nothing. A page store for `Store`."""

    def __init__(self, store: Store, claims: Claims) -> None:
        self.store = store
        self.layout = store.layout if isinstance(store.layout, BundleLayout) else None
        self.damaged = claims.damaged
        self._regions = shares_of(store.config)
        self._claims: Claims | None = claims
        self._redone: dict[int, tuple[int, int]] = {}
        self._generations = dict(claims.generations)
        self._written: set[Page] = set(claims.generations)  # pages that differ from the first ones
        self._unsaved: set[Page] = set(claims.worn)
        store.page_stores.append(self)

    # -- starting ------------------------------------------------------------------------------

    def redo(self, moves: Sequence[Move]) -> None:
        """Note *moves* that are replayed, in their order."""
        for cell, role, chunk in moves:
            self._redone[cell] = (role, chunk)

    def settle(self) -> None:
        """Make the table of what the shares claim and the journal redid. Raises AssemblyError."""
        claims, self._claims = self._claims, None
        layout = self.layout
        if layout is None or claims is None:
            return
        said = self._redone or any(claims.pages.values())
        if not said and not (layout.disk == NOBODY).any():
            return
        for cell, (role, chunk) in self._redone.items():
            if cell >= layout.cells or role >= layout.width or chunk >= layout.counts[role]:
                raise AssemblyError(
                    f"the journal moves chunk {cell}, which the array does not have"
                )
        self._take_access_times(claims)
        displaced = self._take_later_places(claims)
        moved, gone = self._differences(claims)
        gone |= displaced
        first_disk = layout.disk
        for cell, (role, _chunk) in moved.items():
            home = int(first_disk[cell])
            if home != NOBODY:  # whoever takes an absent role must not hold it as at first
                self._unsaved.add((home, int(layout.offset[cell]) // PAGE_ENTRIES))
            if home in claims.pages and cell not in gone and cell not in self._redone:
                raise self._contradiction(cell, home, role)
        homeless = (gone - moved.keys()) | self._displaced(moved, claims)
        changes = [(cell, role, chunk) for cell, (role, chunk) in moved.items()]
        for _cell, role, _chunk in changes:
            layout.cells_of(role)  # made before the first move: `move` and `problem` go by it
        layout.move(changes)
        self._unsaved.update((role, chunk // PAGE_ENTRIES) for _cell, role, chunk in changes)
        self._place_homeless(sorted(homeless), claims)
        self._place_later_ones(claims)
        self._written |= self._unsaved
        self._redone = {}
        problem = layout.problem([*moved, *homeless]) or layout.problem_beyond_founding()
        if problem is not None:
            raise AssemblyError(
                f"the members' shares of the look-up table contradict each other: {problem}",
                action="attach all members; `raidx check` looks at each",
            )
        # Pages that are as they should be need not be written again.
        self._unsaved = {page for page in self._unsaved if not self._agrees(page, claims)}

    def _take_access_times(self, claims: Claims) -> None:
        """Take last accesses and intervals from the pages: hints, whatever else is wrong."""
        layout = self.layout
        assert layout is not None
        for pages in claims.pages.values():
            for entries in pages.values():
                held = entries[entries["cell"] != 0]
                cells = held["cell"].astype(np.int64) - 1
                layout.last[cells] = held["last"]
                layout.interval[cells] = held["interval"]

    def _take_later_places(self, claims: Claims) -> set[int]:
        """Take the places of cells that had none at first: those of later bundles are many.

        Returns the cells that lay there at first, and have left. One that two pages claim has a
        place when the second one is looked at: `_differences` tells.
        """
        layout = self.layout
        assert layout is not None
        redone = np.fromiter(self._redone, np.int64, len(self._redone))
        left: set[int] = set()
        for role, pages in claims.pages.items():
            index = layout.cells_of(role) if pages else None
            for page, entries in pages.items():
                chunks = np.flatnonzero(entries["cell"])
                cells = entries["cell"][chunks].astype(np.int64) - 1
                new = layout.disk[cells] == NOBODY
                if len(redone):
                    new &= ~np.isin(cells, redone)
                if index is not None and new.any():
                    places = page * PAGE_ENTRIES + chunks[new]
                    before = index[places]
                    left.update(before[before != NOWHERE].tolist())
                    layout.settle(cells[new], role, places)
        return left

    def _place_later_ones(self, claims: Claims) -> None:
        """Give cells that never had a place, and that nobody claims, one on absent members."""
        layout = self.layout
        assert layout is not None
        cells = np.flatnonzero(layout.disk == NOBODY)
        absent = [r for r, n in enumerate(layout.counts) if n and r not in claims.pages]
        if len(absent) != 1:
            self._place_homeless(cells.tolist(), claims)
            return
        (role,) = absent  # nothing to choose: all at once
        free = layout.free_chunks(role)[: len(cells)]
        if len(free) < len(cells):
            raise self._nobody_says(int(cells[len(free)]))
        layout.settle(cells, role, free)
        self._unsaved.update((role, int(page)) for page in np.unique(free // PAGE_ENTRIES))

    def _differences(self, claims: Claims) -> tuple[dict[int, tuple[int, int]], set[int]]:
        """Return the cells that lie elsewhere than at first, and those that left their first place.

        What the journal redid counts, whatever pages say. Raises AssemblyError for a cell that two
        pages claim.
        """
        layout = self.layout
        assert layout is not None
        redone = self._redone
        moved: dict[int, tuple[int, int]] = {}
        gone: set[int] = set()
        for role, pages in claims.pages.items():
            if not pages:
                continue
            index = layout.cells_of(role)
            for page, entries in pages.items():
                first = page * PAGE_ENTRIES
                homes = index[first : first + len(entries)]
                cells = entries["cell"].astype(np.int64) - 1
                differing = np.flatnonzero(homes != cells)
                gone.update(cell for cell in homes[differing].tolist() if cell != NOWHERE)
                for at, cell in zip(differing.tolist(), cells[differing].tolist(), strict=True):
                    if cell == NOWHERE:
                        continue
                    if cell in redone:
                        self._unsaved.add((role, page))
                        continue
                    if cell in moved:
                        raise self._contradiction(cell, moved[cell][0], role)
                    moved[cell] = (role, first + at)
        for cell, place in redone.items():
            home = int(layout.disk[cell]), int(layout.offset[cell])
            if home[0] != NOBODY:
                self._unsaved.add((home[0], home[1] // PAGE_ENTRIES))
            moved[cell] = place
        return moved, gone

    def _displaced(self, moved: Mapping[int, tuple[int, int]], claims: Claims) -> set[int]:
        """Return the cells of absent members whose first place another one took.

        They had moved on that same member, which only its own share could tell.
        """
        layout = self.layout
        assert layout is not None
        taken: set[int] = set()
        for role, chunk in moved.values():
            if role not in claims.pages:
                taken.add(int(layout.cells_of(role)[chunk]))
        return taken - {NOWHERE} - moved.keys()

    def _contradiction(self, cell: int, one: int, other: int) -> AssemblyError:
        assert self.layout is not None
        bundle = cell // self.layout.length
        paths = []
        for role in (one, other):
            queue = self.store.queues[role]
            paths.append(queue.member.path if queue is not None else f"role {role}")
        return AssemblyError(
            f"{paths[0]} and {paths[1]} both claim chunk {cell % self.layout.length} of bundle "
            f"{bundle}: one share of the look-up table is wrong",
            action="start without one of them",
        )

    def _place_homeless(self, cells: Sequence[int], claims: Claims) -> None:
        """Give *cells* that no present member claims a place on absent ones. Raises AssemblyError.

        Which place does not matter: what is written there is lost, and whoever takes the role gets
        it anew from the bundles.
        """
        layout = self.layout
        assert layout is not None
        if not cells:
            return
        free = {
            role: layout.free_chunks(role).tolist()
            for role in range(layout.width)
            if role not in claims.pages
        }
        for cell in cells:
            bundle, column = divmod(cell, layout.length)
            there = [r for c, r in enumerate(layout.roles(bundle)) if c != column]
            roles = [role for role, chunks in free.items() if chunks and role not in there]
            if not roles:
                raise self._nobody_says(cell)
            role = max(roles, key=lambda r: len(free[r]))
            chunk = free[role].pop()
            layout.move([(cell, role, chunk)])
            self._unsaved.add((role, chunk // PAGE_ENTRIES))

    def _nobody_says(self, cell: int) -> AssemblyError:
        assert self.layout is not None
        bundle, column = divmod(cell, self.layout.length)
        return AssemblyError(
            f"no member's share of the look-up table says where chunk {column} of bundle "
            f"{bundle} lies",
            action="attach all members",
        )

    def _agrees(self, page: Page, claims: Claims) -> bool:
        """Say whether a present member's page says what the table says, and in both its slots."""
        entries = claims.pages.get(page[0], {}).get(page[1])
        if entries is None or page in claims.worn:
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
            array_uuid = self.store.config.array_uuid
            content = encode_page(number, generation, KIND, payload, array_uuid)
            contents.append(((role, number), content))
        for slot in range(PAGE_SLOTS):
            if slot:
                await self.store.flush()
            requests: list[Request] = [
                (role, self._regions[role].slot_offset(number, slot), [content], len(content))
                for (role, number), content in contents
                if self.store.queues[role] is not None
            ]
            await self.store.write(requests)

    def reserve(self, role: int, chunk: int) -> None:
        """Take room on the host for the page that a move to *chunk* of *role* changes.

        Raises NoSpaceError.
        """
        queue = self.store.queues[role]
        if queue is not None:
            offset = self._regions[role].slot_offset(chunk // PAGE_ENTRIES, 0)
            end = self._regions[role].slot_offset(chunk // PAGE_ENTRIES, 1)
            try:
                queue.member.reserve(offset, 2 * (end - offset))
            except MemberError as error:
                if error.errno == errno.ENOSPC:
                    raise NoSpaceError(
                        error.message, action="free space on the host file system"
                    ) from error

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

    # -- a page store of `Store` -----------------------------------------------------------------

    async def erase(self, role: int, member: Member) -> None:
        """Clear what an earlier life left of a share on *member*, which takes *role*; not flushed.

        Raises MemberError.
        """
        if role in self._regions:
            await erase_share(member, self._regions[role])

    def renew(self) -> None:
        """Look anew where shares lie: members came or left, or are larger."""
        self._regions = shares_of(self.store.config)
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
        await self.store.flush()  # records of moves that the pages know of
        while self._unsaved:
            some = sorted(self._unsaved)[:PAGES_AT_ONCE]
            self._unsaved.difference_update(some)
            try:
                await self.save_as({page: self._payload(page) for page in some})
                await self.store.flush()
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
