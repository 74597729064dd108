"""What the shares of a look-up table say together when an array starts (see chunk_table.py).

The shares are compared with each other. A cell must be claimed by exactly one place:

* claimed by the page of one member: it lies there, wherever the greedy allocation had put it;
* named by a record that is replayed: the record is right, pages may be older or newer;
* claimed by none, and a member is absent: it is on that one, its content comes from its bundle;
* claimed twice, or by none with all members there: reported, never guessed.

A member of which both slots of a page are damaged counts as lost if the layout can do without it;
else the array does not start (table_recovery.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.errors import AssemblyError, MemberError
from raidx_fuse.format.assemble import Assembly
from raidx_fuse.format.pages import LoadedPages, load_pages
from raidx_fuse.format.regions import PageRegion
from raidx_fuse.format.table_page import ENTRY_DTYPE, PAGE_ENTRIES, decode_entries, shares_of
from raidx_fuse.layouts.placements.bundled import NOBODY, NOWHERE, BundleLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import Member

# What the members' shares of a look-up table say, read at the start, before any of it is believed.
#
# Pages are the entries of every chunk of a member; a page that nobody wrote says what the greedy
# allocation gave. What a page says of bundles that the array does not have is left from a growth
# that a crash cut short: nothing lies there.

Page = tuple[int, int]  # role, page of its share


class TableScan:
    """What the shares of the present members say, before anything of it is believed.

    *pages* are the entries of every page that was ever written, by role; *worn*, pages of which a
    slot is damaged; *lost*, role to the first page that has no whole slot.
    """

    def __init__(self) -> None:
        self.pages: dict[int, dict[int, NDArray[np.void]]] = {}
        self.generations: dict[Page, int] = {}
        self.worn: set[Page] = set()
        self.lost: dict[int, str] = {}
        self.damaged: list[str] = []

    async def read(
        self, role: int, member: Member, region: PageRegion, layout: BundleLayout, array_uuid: str
    ) -> None:
        """Take in the share of *member*, which is in *role*."""
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

    def _note_damage(self, role: int, member: Member, found: LoadedPages) -> None:
        damaged = {(page, slot) for page, slot, _generation in found.damaged}
        for page, slot in sorted(damaged):
            self.worn.add((role, page))
            self.damaged.append(f"{member.path}: table: page {page}, slot {slot} is damaged")
            if (page, 1 - slot) in damaged:
                self.lost[role] = f"both copies of page {page} are damaged"

    def leave_out(self, role: int) -> None:
        """Forget what *role* said: it is not used."""
        self.pages.pop(role, None)
        self.worn = {page for page in self.worn if page[0] != role}
        self.generations = {p: g for p, g in self.generations.items() if p[0] != role}


def _free_entry(role: int) -> NDArray[np.void]:
    entry = np.zeros((), ENTRY_DTYPE)
    entry["role"] = role
    return entry


async def scan_table(assembly: Assembly, layout: Layout) -> TableScan:
    """Read the shares of the members of *assembly*; take those out of it whose share is lost.

    Raises AssemblyError when the layout cannot do without them.
    """
    config, by_role = assembly.config, assembly.by_role
    scan = TableScan()
    if not isinstance(layout, BundleLayout):
        return scan
    shares = shares_of(config)
    for role, member in by_role.items():
        await scan.read(role, member, shares[role], layout, config.array_uuid)
    rebuilding = config.roles_in("rebuilding") & by_role.keys()
    for role, what in sorted(scan.lost.items()):
        gone = frozenset(config.roles()) - by_role.keys() | rebuilding | {role}
        text = f"{by_role[role].path}: its share of the look-up table is lost: {what}"
        if not layout.tolerates(gone):
            raise AssemblyError(
                text, action="without this member the array cannot give its data back"
            )
        assembly.warnings.append(f"{text}; the array starts without this member")
        assembly.missing_roles[:] = sorted({*assembly.missing_roles, role})
        scan.leave_out(role)
        del by_role[role]
    return scan


Place = tuple[int, int]  # a role, a chunk of its member


class TableRecovery:
    """Gives the cells of *layout* the places that *scan* and the moves *redone* say.

    *redone*: cell -> place; *paths*, role -> the member's path, "" where it is absent.
    """

    def __init__(
        self,
        layout: BundleLayout,
        scan: TableScan,
        redone: Mapping[int, Place],
        paths: Sequence[str],
    ) -> None:
        self.layout = layout
        self.scan = scan
        self._redone = redone
        self._paths = paths
        self._unsaved: set[Page] = set()

    def is_needed(self) -> bool:
        """Say whether any cell may lie elsewhere than at first."""
        if self._redone or any(self.scan.pages.values()):
            return True
        return bool((self.layout.disk == NOBODY).any())

    def recover(self) -> set[Page]:
        """Make the table; return the pages that may have to say something else from now on.

        Raises AssemblyError.
        """
        layout, scan = self.layout, self.scan
        for cell, (role, chunk) in self._redone.items():
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
            home = int(first_disk[cell])
            if home != NOBODY:  # whoever takes an absent role must not hold it as at first
                self._unsaved.add((home, int(layout.offset[cell]) // PAGE_ENTRIES))
            if home in scan.pages and cell not in gone and cell not in self._redone:
                raise self._contradiction(cell, home, role)
        homeless = (gone - moved.keys()) | self._displaced(moved)
        changes = [(cell, role, chunk) for cell, (role, chunk) in moved.items()]
        for _cell, role, _chunk in changes:
            layout.cells_of(role)  # made before the first move: `move` and `problem` go by it
        layout.move(changes)
        self._unsaved.update((role, chunk // PAGE_ENTRIES) for _cell, role, chunk in changes)
        self._place_homeless(sorted(homeless))
        self._place_later_ones()
        problem = layout.problem([*moved, *homeless]) or layout.problem_beyond_founding()
        if problem is not None:
            raise AssemblyError(
                f"the members' shares of the look-up table contradict each other: {problem}",
                action="attach all members; `raidx check` looks at each",
            )
        return self._unsaved

    def _take_access_times(self) -> None:
        """Take last accesses and intervals from the pages: hints, whatever else is wrong."""
        layout = self.layout
        for pages in self.scan.pages.values():
            for entries in pages.values():
                held = entries[entries["cell"] != 0]
                cells = held["cell"].astype(np.int64) - 1
                layout.last[cells] = held["last"]
                layout.interval[cells] = held["interval"]

    def _take_later_places(self) -> set[int]:
        """Take the places of cells that had none at first: those of later bundles are many.

        Returns the cells that lay there at first, and have left. One that two pages claim has a
        place when the second one is looked at: `_differences` tells.
        """
        layout = self.layout
        redone = np.fromiter(self._redone, np.int64, len(self._redone))
        left: set[int] = set()
        for role, pages in self.scan.pages.items():
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
                    layout.assign(cells[new], role, places)
        return left

    def _place_later_ones(self) -> None:
        """Give cells that never had a place, and that nobody claims, one on absent members."""
        layout = self.layout
        cells = np.flatnonzero(layout.disk == NOBODY)
        absent = [r for r, n in enumerate(layout.counts) if n and r not in self.scan.pages]
        if len(absent) != 1:
            self._place_homeless(cells.tolist())
            return
        (role,) = absent  # nothing to choose: all at once
        free = layout.free_chunks(role)[: len(cells)]
        if len(free) < len(cells):
            raise self._nobody_says(int(cells[len(free)]))
        layout.assign(cells, role, free)
        self._unsaved.update((role, int(page)) for page in np.unique(free // PAGE_ENTRIES))

    def _differences(self) -> tuple[dict[int, tuple[int, int]], set[int]]:
        """Return the cells that lie elsewhere than at first, and those that left their first place.

        What the journal redid counts, whatever pages say. Raises AssemblyError for a cell that two
        pages claim.
        """
        layout = self.layout
        redone = self._redone
        moved: dict[int, tuple[int, int]] = {}
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

    def _displaced(self, moved: Mapping[int, tuple[int, int]]) -> set[int]:
        """Return the cells of absent members whose first place another one took.

        They had moved on that same member, which only its own share could tell.
        """
        layout = self.layout
        taken: set[int] = set()
        for role, chunk in moved.values():
            if role not in self.scan.pages:
                taken.add(int(layout.cells_of(role)[chunk]))
        return taken - {NOWHERE} - moved.keys()

    def _contradiction(self, cell: int, one: int, other: int) -> AssemblyError:
        bundle = cell // self.layout.length
        paths = [self._paths[role] or f"role {role}" for role in (one, other)]
        return AssemblyError(
            f"{paths[0]} and {paths[1]} both claim chunk {cell % self.layout.length} of bundle "
            f"{bundle}: one share of the look-up table is wrong",
            action="start without one of them",
        )

    def _place_homeless(self, cells: Sequence[int]) -> None:
        """Give *cells* that no present member claims a place on absent ones. Raises AssemblyError.

        Which place does not matter: what is written there is lost, and whoever takes the role gets
        it anew from the bundles.
        """
        layout = self.layout
        if not cells:
            return
        free = {
            role: layout.free_chunks(role).tolist()
            for role in range(layout.width)
            if role not in self.scan.pages
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
        bundle, column = divmod(cell, self.layout.length)
        return AssemblyError(
            f"no member's share of the look-up table says where chunk {column} of bundle "
            f"{bundle} lies",
            action="attach all members",
        )
