"""The chunk table (look-up table) of a raidx layout: every member's share of it, and its changes.

In memory the layout itself is the table (layouts/placements/bundled.py). On disk every member
holds its own share (format/table_page.py). Only pages that differ from the greedy allocation are
ever written.

All changes go through the write-ahead log. A move is a record. Once the record is durable, the
checkpoint writes the table pages of the cell's old and new place: first slot 0 of each page, then
a flush, then slot 1. Between checkpoints both slots are therefore valid and have the same content.

When an array starts, the shares are read (`TableScan`) and compared with each other
(`TableRecovery`). Exactly one place must claim each cell:

* the page of one member claims it: it lies there, wherever the greedy allocation put it;
* a replayed log record moves it: the record is right, pages may be older or newer;
* no page claims it and a member is absent: it is on that member, and its content is computed from
  the other cells of its bundle;
* two pages claim it, or none although all members are present: an error, never a guess.

If both slots of a page of a member are damaged, the member counts as lost if the layout tolerates
that. Otherwise the array does not start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import trio
from numpy.typing import NDArray

from raidx_fuse.errors import AssemblyError, MemberError, Reason
from raidx_fuse.format.assemble import Assembly
from raidx_fuse.format.pages import LoadedPages, encode_page, erase_region, load_pages
from raidx_fuse.format.regions import PAGE_SLOTS, PageRegion
from raidx_fuse.format.table_page import (
    ENTRY_DTYPE,
    KIND,
    PAGE_ENTRIES,
    decode_entries,
    encode_entries,
    share_pages,
    shares_of,
)
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import (
    MemberChunk,
    Role,
    Stripe,
    by_role,
    role_range,
)
from raidx_fuse.layouts.placements.bundled import NOWHERE, UNASSIGNED, BundleLayout, table_of
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.stripe_plan import unwritten_cells
from raidx_fuse.members.base import Member
from raidx_fuse.store.io_tuples import MemberIO
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.written_map import WrittenMap

# A page has an entry for each of its chunks. A page that was never written stands for the greedy
# allocation. Entries that name bundles beyond the array's last one are left over from a growth that
# a crash interrupted: those chunks are free.

Page = tuple[Role, int]  # role, page of its share


class TableScan:
    """The shares of the present members as read, before any of their content is trusted.

    Attributes: *layout* (None: it has no table, and there is nothing to read);
    *pages* (role -> page -> entries, for every page that was ever written);
    *generations* (of these pages); *worn* (pages that must be written again: a slot is damaged, or
    they name cells that do not exist); *lost* (role -> why its share cannot be used); *damaged*
    (one text for each damaged slot).
    """

    def __init__(self, layout: BundleLayout | None) -> None:
        self.layout = layout
        self.pages: dict[Role, dict[int, NDArray[np.void]]] = {}
        self.generations: dict[Page, int] = {}
        self.worn: set[Page] = set()
        self.lost: dict[Role, str] = {}
        self.damaged: list[str] = []

    async def read(self, role: Role, member: Member, region: PageRegion, array_uuid: str) -> None:
        """Read the share of *member*, which has *role*."""
        layout = self.layout
        assert layout is not None
        self.pages[role] = {}
        try:
            found = await load_pages(member, region, array_uuid)
        except MemberError as error:
            self.lost[role] = error.message
            return
        self._note_damage(role, member, found)
        for page in found.present():
            first = page * PAGE_ENTRIES
            count = min(PAGE_ENTRIES, layout.counts[role] - first)
            entries = decode_entries(found.payload[page].tobytes(), count)
            beyond = entries["cell"] > layout.cells
            if beyond.any():
                entries = np.where(beyond, _free_entry(role), entries)
                self.worn.add((role, page))
            used = entries["cell"] != 0
            if (entries["role"] != role).any():
                self.lost[role] = f"page {page} is impossible"
            elif len(np.unique(entries["cell"][used])) != np.count_nonzero(used):
                self.lost[role] = f"page {page} names a chunk twice"
            self.pages[role][page] = entries
            self.generations[role, page] = int(found.generations[page])

    def _note_damage(self, role: Role, member: Member, found: LoadedPages) -> None:
        damaged = {(page, slot) for page, slot, _generation in found.damaged}
        for page, slot in sorted(damaged):
            self.worn.add((role, page))
            self.damaged.append(f"{member.path}: table: page {page}, slot {slot} is damaged")
            if (page, 1 - slot) in damaged:
                self.lost[role] = f"both copies of page {page} are damaged"

    def leave_out(self, role: Role) -> None:
        """Remove the share of *role* from the scan: its member is not used."""
        self.pages.pop(role, None)
        self.worn = {page for page in self.worn if page[0] != role}
        self.generations = {p: g for p, g in self.generations.items() if p[0] != role}


def _free_entry(role: Role) -> NDArray[np.void]:
    entry = np.zeros((), ENTRY_DTYPE)
    entry["role"] = role
    return entry


async def scan_table(assembly: Assembly, layout: Layout) -> TableScan:
    """Read the table shares of the members of *assembly*; return an empty scan without a table.

    Members whose share is lost are removed from *assembly*. Raises AssemblyError if the layout does
    not tolerate that.
    """
    config, by_role = assembly.config, assembly.by_role
    scan = TableScan(table_of(layout))
    if scan.layout is None:
        return scan
    shares = shares_of(config)
    for role, member in by_role.items():
        await scan.read(role, member, shares[role], config.array_uuid)
    rebuilding = config.roles_in("rebuilding") & by_role.keys()
    for role, what in sorted(scan.lost.items()):
        gone = frozenset(config.roles()) - by_role.keys() | rebuilding | {role}
        text = f"{by_role[role].path}: its share of the look-up table is lost: {what}"
        if not layout.tolerates(gone):
            raise AssemblyError(
                text,
                action="without this member the array cannot give its data back",
                reason=Reason.MEMBERS_MISSING,
            )
        assembly.warnings.append(f"{text}; the array starts without this member")
        assembly.missing_roles[:] = sorted({*assembly.missing_roles, role})
        scan.leave_out(role)
        del by_role[role]
    return scan


Place = tuple[Role, MemberChunk]  # a role, a chunk of its member


@dataclass(slots=True)
class TableRecovery:
    """Assigns the cells of *layout* the places given by *scan* and the replayed moves *redone*.

    *redone* maps cells to places; *paths* has each role's member path, "" if it is absent.
    *unsaved* pages may have to be written again. *left*: where the cells in *redone* have been,
    as far as the members that are there say.
    """

    layout: BundleLayout
    scan: TableScan
    redone: Mapping[int, Place]
    paths: Sequence[str]
    unsaved: set[Page] = field(default_factory=set)
    left: set[Place] = field(default_factory=set)

    def is_needed(self) -> bool:
        """Return whether any cell may lie elsewhere than the greedy allocation put it."""
        if self.redone or any(self.scan.pages.values()):
            return True
        return bool((self.layout.disk == UNASSIGNED).any())

    def recover(self) -> None:
        """Build the table in the layout. Raises AssemblyError if shares or moves contradict."""
        layout, scan = self.layout, self.scan
        for cell, (role, chunk) in self.redone.items():
            if cell >= layout.cells or role >= layout.width or chunk >= layout.counts[role]:
                raise AssemblyError(
                    f"the journal moves chunk {cell}, which the array does not have"
                )
        self._take_access_times()
        displaced = self._take_later_places()
        moved, gone = self._differences()
        gone |= displaced
        first_disk = layout.disk
        for cell, (role, _chunk) in moved.items():
            home = Role(int(first_disk[cell]))
            if home != UNASSIGNED:  # an absent member's share must not claim the cell any more
                self.unsaved.add((home, int(layout.offset[cell]) // PAGE_ENTRIES))
            if home in scan.pages and cell not in gone and cell not in self.redone:
                raise self._contradiction(cell, home, role)
        unassigned = (gone - moved.keys()) | self._displaced(moved)
        changes = [(cell, role, chunk) for cell, (role, chunk) in moved.items()]
        for _cell, role, _chunk in changes:
            layout.cells_of(role)  # builds the index that `move` and `problem` use
        layout.move(changes)
        self.unsaved.update((role, chunk // PAGE_ENTRIES) for _cell, role, chunk in changes)
        self._place_unassigned(sorted(unassigned))
        self._place_later_ones()
        problem = layout.problem([*moved, *unassigned]) or layout.problem_beyond_initial()
        if problem is not None:
            raise AssemblyError(
                f"the members' shares of the look-up table contradict each other: {problem}",
                action="attach all members; `raidx check` looks at each",
            )

    def _take_access_times(self) -> None:
        """Take last accesses and intervals from the pages: hints that need no agreement."""
        layout = self.layout
        for pages in self.scan.pages.values():
            for entries in pages.values():
                held = entries[entries["cell"] != 0]
                cells = held["cell"].astype(np.int64) - 1
                layout.last[cells] = held["last"]
                layout.interval[cells] = held["interval"]

    def _take_later_places(self) -> set[int]:
        """Assign the claimed places of cells that the greedy allocation gave none, in bulk.

        These are the cells of bundles that growth added. Returns the cells that the greedy
        allocation had put at those places, and that have left them. If two pages claim a cell, it
        has a place when the second page is read; `_differences` reports that.
        """
        layout = self.layout
        redone = np.fromiter(self.redone, np.int64, len(self.redone))
        left: set[int] = set()
        for role, pages in self.scan.pages.items():
            index = layout.cells_of(role) if pages else None
            for page, entries in pages.items():
                chunks = np.flatnonzero(entries["cell"])
                cells = entries["cell"][chunks].astype(np.int64) - 1
                new = layout.disk[cells] == UNASSIGNED
                if len(redone):
                    new &= ~np.isin(cells, redone)
                if index is not None and new.any():
                    places = page * PAGE_ENTRIES + chunks[new]
                    before = index[places]
                    left.update(before[before != NOWHERE].tolist())
                    layout.assign(cells[new], role, places)
        return left

    def _place_later_ones(self) -> None:
        """Assign cells that still have no place, and that no page claims, to absent members."""
        layout = self.layout
        cells = np.flatnonzero(layout.disk == UNASSIGNED)
        absent = [r for r, n in by_role(layout.counts) if n and r not in self.scan.pages]
        if len(absent) != 1:
            self._place_unassigned(cells.tolist())
            return
        (role,) = absent  # no choice: all cells go there, in bulk
        free = layout.free_chunks(role)[: len(cells)]
        if len(free) < len(cells):
            raise self._no_share_names(int(cells[len(free)]))
        layout.assign(cells, role, free)
        self.unsaved.update((role, int(page)) for page in np.unique(free // PAGE_ENTRIES))

    def _differences(self) -> tuple[dict[int, Place], set[int]]:
        """Compare the pages with the greedy allocation.

        Returns the places of the cells that lie elsewhere, and the cells that left their first
        place. A replayed move overrides every page. Raises AssemblyError for a cell that two pages
        claim.
        """
        layout = self.layout
        redone = self.redone
        moved: dict[int, Place] = {}
        gone: set[int] = set()
        for role, pages in self.scan.pages.items():
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
                        self.left.add((role, MemberChunk(first + at)))
                        self.unsaved.add((role, page))
                        continue
                    if cell in moved:
                        raise self._contradiction(cell, moved[cell][0], role)
                    moved[cell] = (role, MemberChunk(first + at))
        for cell, place in redone.items():
            home = Role(int(layout.disk[cell])), MemberChunk(int(layout.offset[cell]))
            if home[0] != UNASSIGNED:
                self.left.add(home)
                self.unsaved.add((home[0], home[1] // PAGE_ENTRIES))
            moved[cell] = place
        return moved, gone

    def _displaced(self, moved: Mapping[int, Place]) -> set[int]:
        """Return the cells of absent members whose first place another cell took.

        Each of them had moved on the same member, and only that member's share has its new place.
        """
        layout = self.layout
        taken: set[int] = set()
        for role, chunk in moved.values():
            if role not in self.scan.pages:
                taken.add(int(layout.cells_of(role)[chunk]))
        return taken - {NOWHERE} - moved.keys()

    def _contradiction(self, cell: int, one: int, other: int) -> AssemblyError:
        bundle = cell // self.layout.length
        paths = [self.paths[role] or f"role {role}" for role in (one, other)]
        return AssemblyError(
            f"{paths[0]} and {paths[1]} both claim chunk {cell % self.layout.length} of bundle "
            f"{bundle}: one share of the look-up table is wrong",
            action="start without one of them",
        )

    def _place_unassigned(self, cells: Sequence[int]) -> None:
        """Assign *cells* that no present member claims to free chunks of absent members.

        Any free chunk will do: its content is lost with the member, and a rebuild of the role
        computes it from the bundles. Raises AssemblyError if there is no free chunk.
        """
        layout = self.layout
        if not cells:
            return
        free = {
            role: layout.free_chunks(role).tolist()
            for role in role_range(0, layout.width)
            if role not in self.scan.pages
        }
        for cell in cells:
            bundle, column = divmod(cell, layout.length)
            there = [r for c, r in enumerate(layout.roles(Stripe(bundle))) if c != column]
            roles = [role for role, chunks in free.items() if chunks and role not in there]
            if not roles:
                raise self._no_share_names(cell)
            role = max(roles, key=lambda r: len(free[r]))
            chunk = free[role].pop()
            layout.move([(cell, role, chunk)])
            self.unsaved.add((role, chunk // PAGE_ENTRIES))

    def _no_share_names(self, cell: int) -> AssemblyError:
        bundle, column = divmod(cell, self.layout.length)
        return AssemblyError(
            f"no member's share of the look-up table says where chunk {column} of bundle "
            f"{bundle} lies",
            action="attach all members",
            reason=Reason.MEMBERS_MISSING,
        )


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
        self.layout = scan.layout
        self.damaged = scan.damaged
        self._regions = shares_of(member_set.config)
        self._claims: TableScan | None = scan
        self._redone: dict[int, Place] = {}
        self._generations = dict(scan.generations)
        self._written: set[Page] = set(scan.generations)  # pages unlike the greedy allocation
        self._unsaved: set[Page] = set(scan.worn)
        self._saving = trio.Lock()  # one save after another: the later one has the newer content
        self._written_map: WrittenMap | None = None
        # Places that moves since the last checkpoint began have named, or cells have left by them.
        self._left: set[Place] = set()
        # called with the places that cells have left
        self.on_moves: list[Callable[[Sequence[Move]], None]] = []
        member_set.page_stores.append(self)

    # -- start ---------------------------------------------------------------------------------

    def connect(self, written: WrittenMap) -> None:
        """Take the map of the chunks that are *written*: the other cells have no content."""
        self._written_map = written

    def redo(self, moves: Sequence[Move]) -> None:
        """Note *moves* that the replay of the log found, in the order of their records."""
        self._left.update((role, chunk) for _cell, role, chunk in moves)
        self._redone.update({cell: (role, chunk) for cell, role, chunk in moves})

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
            recovery.recover()
            self._unsaved |= recovery.unsaved
            self._left |= recovery.left
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
        await scan.read(role, member, self._regions[role], self.member_set.config.array_uuid)

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
        self._left.update((role, chunk) for _cell, role, chunk in [*left, *moves])
        layout.move(moves)
        for hook in self.on_moves:
            hook(left)

    def take_unsaved(self) -> dict[Page, bytes]:
        """Return the current payloads of the unsaved pages and stop counting them as unsaved."""
        pages = {page: self._payload(page) for page in sorted(self._unsaved)}
        self._unsaved.clear()
        return pages

    # A place that has no content any more has no sums, durably, before a page says so: recovery
    # knows of it by its record, or by a page of before.

    def take_left(self) -> set[Place]:
        """Return where moves have left nothing, since the last call: a checkpoint begins."""
        if not self._left:
            return set()
        left, self._left = self._left, set()
        return {place for place in left if not self._has_content(place)}

    def _has_content(self, place: Place) -> bool:
        layout, written = self.layout, self._written_map
        assert layout is not None
        assert written is not None
        role, chunk = place
        if role >= layout.width or chunk >= layout.counts[role]:
            return False
        found = layout.inverse(role, chunk)
        if found is None or found[0] >= layout.stripes:
            return False
        data = written.unwritten_data(layout, found[0])
        return not unwritten_cells(layout.code, data) >> found[1] & 1

    def note_redone(self, pages: Iterable[tuple[Role, int]]) -> None:
        """Note that recovery writes *pages* (role, byte offset) again: perhaps where nothing is.

        A record from before a move may be redone though a page of the table has that move already.
        """
        layout = self.layout
        if layout is not None and self.member_set.sums is not None:
            begin, size = self.member_set.data_offset, layout.chunk_bytes
            self._left.update(
                (role, MemberChunk((offset - begin) // size))
                for role, offset in pages
                if offset >= begin
            )

    async def forget_sums(self, places: Collection[Place], *, still: bool = False) -> None:
        """Let *places* have no sums, if the array has any; with *still*, those without content."""
        layout, sums = self.layout, self.member_set.sums
        if layout is None or sums is None or not places:
            return
        size, begin = layout.chunk_bytes, self.member_set.data_offset
        requests = {place: (place[0], begin + place[1] * size, (), size) for place in places}
        for place, request in requests.items():
            await sums.load([request])
            if not (still and self._has_content(place)):
                sums.forget_now(*request)

    async def forget_role(self, role: Role, *, changed: bool) -> None:
        """Let no place of *role* have sums, durably: all its content is about to be rebuilt.

        While its member is absent it is not known what lay where, and what has left. Only what
        *changed* is rebuilt on a member that was away: then free places have none.
        """
        layout, sums = self.layout, self.member_set.sums
        if layout is not None and sums is not None:
            kept = layout.cells_of(role) != NOWHERE if changed else None
            await sums.forget_role(role, kept, layout.chunk_bytes)
            await sums.tables.save()
            await self.member_set.flush()

    async def _end_left(self) -> None:
        """Make the moves so far durable, and that where they left nothing there are no sums."""
        left = set(self._left)
        await self.member_set.flush()
        if left and self.member_set.sums is not None:
            await self.forget_sums(left, still=True)
            await self.member_set.sums.tables.save()
            await self.member_set.flush()

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
        page, region = chunk // PAGE_ENTRIES, self._regions[role]
        offset, second = region.slot_offset(page, 0), region.slot_offset(page, 1)
        self.member_set.reserve([(role, offset, (), 2 * (second - offset))])

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
        if self._left:
            await self._end_left()
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
        self.layout.forget_initial_member(role)
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
        await self._end_left()  # the moves that these pages contain
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
                await self._end_left()  # the moves that these pages contain
                await self._save_now(pages)

    async def heal(self) -> None:
        """Do nothing: the checkpoint rewrites damaged pages, once the log has been replayed.

        Before the replay the table is not valid.
        """
