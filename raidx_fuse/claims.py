"""What the members' shares of a look-up table say, read at the start, before any of it is believed.

Pages are the entries of every chunk of a member; a page that nobody wrote says what the greedy
allocation gave. What a page says of bundles that the array does not have is left from a growth that
a crash cut short: nothing lies there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.errors import AssemblyError, MemberError
from raidx_fuse.format.assemble import Assembly
from raidx_fuse.format.pages import LoadedPages, load_pages
from raidx_fuse.format.regions import PageRegion
from raidx_fuse.format.table_page import ENTRY_DTYPE, PAGE_ENTRIES, decode_entries, shares_of
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import Member

Page = tuple[int, int]  # role, page of its share


class Claims:
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


async def read_claims(assembly: Assembly, layout: Layout) -> Claims:
    """Read the shares of the members of *assembly*; take those out of it whose share is lost.

    Raises AssemblyError when the layout cannot do without them.
    """
    config, by_role = assembly.config, assembly.by_role
    claims = Claims()
    if not isinstance(layout, BundleLayout):
        return claims
    shares = shares_of(config)
    for role, member in by_role.items():
        await claims.read(role, member, shares[role], layout, config.array_uuid)
    rebuilding = config.roles_in("rebuilding") & by_role.keys()
    for role, what in sorted(claims.lost.items()):
        gone = frozenset(config.roles()) - by_role.keys() | rebuilding | {role}
        text = f"{by_role[role].path}: its share of the look-up table is lost: {what}"
        if not layout.tolerates(gone):
            raise AssemblyError(
                text, action="without this member the array cannot give its data back"
            )
        assembly.warnings.append(f"{text}; the array starts without this member")
        assembly.missing_roles[:] = sorted({*assembly.missing_roles, role})
        claims.leave_out(role)
        del by_role[role]
    return claims
