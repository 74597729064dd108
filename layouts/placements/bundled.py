"""RAIDX layouts: bundles of chunks with a look-up table (the raidx paper, sections II and III).

A bundle is a stripe whose columns may lie anywhere, each on a different member:

    members of 7, 4, 5, 4 chunks, L = 3, no spare chunks withheld (Fig. 1)

    bundle      0      1      2      3      4      5
    columns   0 2 1  3 0 2  1 2 0  0 3 1  3 0 2  1 2 0      greedy, rotated by one each bundle

The greedy allocation (layouts/planning/allocate.py) chooses the members of each bundle. Each member
gives its chunks in rising order. The columns of a bundle are rotated by one from bundle to bundle,
as in RAID-5, because the greedy order would put most parity on the smallest members. Bundles of
one chunk (raidx-zero) are numbered in turn over the members, as section II says of L = 1; arrays
that were made before have the greedy numbering, and keep it (`numbering`).

The look-up table is that of the paper, 15 bytes a cell: an 8-byte chunk number, a 4-byte last
access, a 2-byte mean interval, a 1-byte role. The cell number is bundle * L + column; `place` is
two look-ups. The place of a cell that never moved follows from the numbers of chunks alone, so a
new array stores no table. After a move, memory takes 20: 4 for the reverse index, 1 for the runs.

Members join and leave the array: a role without a member has 0 chunks until one takes it. So the
numbers from which the initial places follow are kept apart, as the `InitialShape`. Two kinds of
cells have no computed place: those of bundles that were appended later, and those of roles whose
initial member left the array. They have the role `UNASSIGNED` until `assign` gives them a place.

Logical chunks fill the bundles in order: the layout is *contiguous*, not *aligned*. Callers of
`move` and `assign` ensure that no two cells get the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import numpy as np

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.codes.horizontal import replicas, single_parity, striping
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe, stripe_and_cell
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.allocate import (
    BLOCK_CELLS,
    Table,
    allocate,
    check_bundles,
    in_turn,
    maximum,
    rising,
    rotated,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Cells: TypeAlias = "NDArray[Any]"  # signed integers
SPARE_CHUNKS = 1
"""Chunks that each member keeps free for moves (section IV.B)."""
CELL_BYTES = 15
"""Bytes of the table for each cell (section V.B); see above for what memory takes besides."""
NOWHERE = -1  # the cell number of a free chunk
UNASSIGNED = 255
"""The role of a cell that has no place yet: larger than any role."""
CELLS_MAX = 1 << 27
"""Limit for a new array: the whole table is in memory, and 15 bytes a cell make 2 GiB."""
MEMBER_CHUNKS_MAX = 1 << 32
"""A log entry has 32 bits for the chunk number."""

TURNS = "turns"
"""The `numbering` of bundles of one chunk over the members in turn; absent: greedy."""

KINDS: dict[str, tuple[Callable[[int], Code], int]] = {
    "raidx-zero": (striping, 1),
    "raidx-copy": (replicas, 2),
    "raidx-parity": (single_parity, 3),
}
"""By layout name: (function from length to the code of a bundle, shortest and default length)."""


def bundle_code(name: str, length: object = None) -> Code:
    """Return the code of one bundle of layout *name*. Raises LayoutError for a wrong length."""
    build, shortest = KINDS[name]
    if length is None:
        length = shortest
    if not isinstance(length, int) or isinstance(length, bool):
        raise LayoutError(f"the length of a bundle is a number, not {length!r}")
    if not shortest <= length < UNASSIGNED:
        raise LayoutError(
            f"{name} needs bundles of {shortest} to {UNASSIGNED - 1} chunks, not {length}"
        )
    return build(length)


@dataclass(frozen=True, slots=True)
class InitialShape:
    """The numbers of chunks by role (*counts*) and of *bundles* when the array was created.

    The initial table is computed from them. They stay the same when members join or leave later, so
    that the places of chunks that never moved need not be stored.
    *roles* are the roles that their initial member, or one rebuilt in its place, still has.
    """

    counts: tuple[int, ...]
    bundles: int
    roles: frozenset[Role]

    def as_dict(self) -> dict[str, Any]:
        """Return the shape as JSON values; `initial_shape_from` is the inverse."""
        counts, roles = list(self.counts), sorted(self.roles)
        return {"counts": counts, "bundles": self.bundles, "roles": roles}


def are_counts(values: object) -> TypeGuard[Sequence[int]]:
    """Return whether *values* is a nonempty list of numbers of chunks (integers from 0)."""
    return (
        isinstance(values, list | tuple)
        and bool(values)
        and all(type(value) is int and value >= 0 for value in values)
    )


def initial_shape_from(values: object) -> InitialShape:
    """Return the initial shape from JSON *values*. Raises LayoutError if they are not valid."""
    match values:
        case {"counts": counts, "bundles": int(bundles), "roles": roles}:
            known = are_counts(counts) and (roles == [] or are_counts(roles))
            if known and bundles > 0 and all(role < len(counts) for role in roles):
                return InitialShape(tuple(counts), bundles, frozenset(roles))
    raise LayoutError(f"founding must say counts, bundles and roles, not {values!r}")


class BundleLayout(Layout):
    """Bundles of *code* over members of *counts* chunks.

    The greedy allocation places them, or, if *numbering* is `TURNS`, the members take turns.

    * *length*: L, the chunks of a bundle; *counts*: chunks by role, 0 for a role without member.
    * *bundles*: at most so many are made; those beyond *initial* have no places yet.
    * *disk* (role), *offset* (member chunk), *last*, *interval*: the table, one array each, indexed
      by cell number, shared with users and changed in place. *last* (the last access) and
      *interval* are in ticks of the caller's clock; 0 is unknown.
    * *closed*: roles that accept no more chunks, because their members will leave.
    * *promised*: places (role, chunk) that are targets of moves under way.

    Raises LayoutError when not even one bundle can be made.
    """

    contiguous = True
    aligned = False
    has_table = True

    def __init__(
        self,
        name: str,
        code: Code,
        chunk_bytes: int,
        counts: Sequence[int],
        bundles: int | None = None,
        initial: InitialShape | None = None,
        numbering: str | None = None,
    ) -> None:
        assert code.rows == 1
        assert code.column_of == tuple(range(code.columns))
        check_bundles(counts, code.columns)
        _check_counts(counts)
        self.name = name
        self.code = code
        self.length = code.columns
        self.chunk_bytes = chunk_bytes
        self._index: dict[int, Cells] = {}
        self.closed: set[int] = set()
        self.promised: set[tuple[int, int]] = set()
        self.take_counts(counts)
        first = initial.counts if initial is not None else tuple(counts)
        check_bundles(first, self.length)
        _check_counts(first)
        made = initial.bundles if initial is not None else bundles
        if max(bundles or 0, made or 0) > maximum(counts, self.length):
            raise LayoutError(f"{name} has no room for {bundles} bundles on its members")
        self.numbering = numbering
        table = self.allocate(first, spare=SPARE_CHUNKS, limit=made)
        if not len(table):
            raise LayoutError(
                f"{name} finds no {self.length} members with a chunk besides their spare one"
            )
        if initial is None:
            initial = InitialShape(
                tuple(counts), len(table), frozenset(map(Role, range(self.width)))
            )
        self.initial_shape = initial
        self.initial_stripes = len(table)
        self.initial_data_count = code.data_count
        self.data_count = code.data_count
        disk = rotated(table).reshape(-1)
        del table  # four times as large as the array that is kept
        if first != self.counts:
            self._check_initial_roles(disk, initial.roles)
        offset = rising(disk, len(first))
        left = [role for role in range(len(first)) if role not in initial.roles]
        if left:
            disk[np.isin(disk, left)] = UNASSIGNED
        later = (bundles or self.initial_stripes) - self.initial_stripes
        if later < 0:
            raise LayoutError(f"{bundles} bundles are fewer than the array was made with")
        if later:
            unassigned = np.full(later * self.length, UNASSIGNED, np.uint8)
            disk = np.concatenate([disk, unassigned])
            offset = np.concatenate([offset, np.zeros(len(unassigned), np.uint64)])
        last = np.zeros(len(disk), np.uint32)  # takes memory only for touched pages
        self._take_table(disk, offset, last, np.zeros(len(disk), np.uint16))
        self._count(len(disk) // self.length)

    def allocate(self, counts: Sequence[int], *, spare: int = 0, limit: int | None) -> Table:
        """Return at most *limit* bundles on members that have *counts* chunks, *spare* withheld."""
        if self.numbering == TURNS:
            return in_turn(counts, spare=spare, limit=limit)
        return allocate(counts, self.length, spare=spare, limit=limit)

    def _check_initial_roles(self, disk: NDArray[np.uint8], roles: Iterable[Role]) -> None:
        """Raise LayoutError if one of *roles* now has fewer chunks than its initial cells need."""
        for role in roles:
            room = self.counts[role] if role < len(self.counts) else 0
            if np.count_nonzero(disk == role) > room:
                raise LayoutError(f"role {role} has no room for what it was founded with")

    def _take_table(
        self,
        disk: NDArray[np.uint8],
        offset: NDArray[np.uint64],
        last: NDArray[np.uint32],
        interval: NDArray[np.uint16],
    ) -> None:
        self.disk, self.offset, self.last, self.interval = disk, offset, last, interval
        # an item of a memoryview is a plain int, and faster to get
        self._disk = cast("MutableSequence[Role]", disk.data)
        self._offset = cast("MutableSequence[MemberChunk]", offset.data)

    def _count(self, stripes: int) -> None:
        self.stripes = stripes
        self.cells = stripes * self.length
        self.chunks = stripes * self.data_count
        self.size_bytes = self.chunks * self.chunk_bytes

    # -- the layout interface ------------------------------------------------------------------

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        at = stripe * self.length + cell
        return self._disk[at], self._offset[at]

    def places(
        self, stripes: NDArray[np.int64], cell: CellIndex
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        at = stripes * self.length + cell
        return self.disk[at].astype(np.int64), self.offset[at].astype(np.int64)

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        cell = int(self.cells_of(role)[member_chunk])
        return None if cell == NOWHERE else stripe_and_cell(cell, self.length)

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        at = stripe * self.length
        return tuple(self._disk[at : at + self.length])

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        at = stripe * self.length
        columns = enumerate(self._disk[at : at + self.length])
        return sum(1 << column for column, role in columns if role in lost_roles)

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        return len(lost_roles) <= self.code.tolerance

    def cells_on(self, roles: Iterable[Role]) -> float:
        return sum(int(np.count_nonzero(self.disk == role)) for role in roles) / self.stripes

    def chunks_of(self, role: Role) -> int:
        return self.counts[role]

    def used_chunks(self) -> list[int]:
        return [int(n) for n in np.bincount(self.disk, minlength=self.width)[: self.width]]

    def stored_params(self) -> dict[str, object]:
        params = {"length": self.length, "chunk_counts": list(self.counts), "bundles": self.stripes}
        return params | ({"numbering": self.numbering} if self.numbering else {})

    # -- from member chunks to cells -----------------------------------------------------------

    def cells_of(self, role: Role) -> Cells:
        """Return the cell at each chunk of *role*, `NOWHERE` if free. Built on first use."""
        index = self._index.get(role)
        if index is None:
            small = np.int32 if self.cells < 1 << 31 else np.int64
            index = self._index[role] = np.full(self.counts[role], NOWHERE, small)
            for start in range(0, len(self.disk), BLOCK_CELLS):  # bounds the temporary arrays
                block = slice(start, start + BLOCK_CELLS)
                here = np.flatnonzero(self.disk[block] == role)
                index[self.offset[block][here].astype(np.int64)] = here + start
        return index

    def free_chunks(self, role: Role) -> Cells:
        """Return the chunks of *role* that hold no cell and are promised to none, ascending."""
        free = np.flatnonzero(self.cells_of(role) == NOWHERE)
        awaiting = [chunk for other, chunk in self.promised if other == role]
        return np.setdiff1d(free, awaiting, assume_unique=True) if awaiting else free

    def move(self, changes: Sequence[tuple[int, Role, MemberChunk]]) -> None:
        """Give cells new places, all together: each change is (cell, role, member chunk)."""
        self.moves += 1
        for cell, _role, _chunk in changes:
            role, chunk = self._disk[cell], self._offset[cell]
            index = self._index.get(role)
            if index is not None and index[chunk] == cell:
                index[chunk] = NOWHERE
        for cell, role, chunk in changes:
            self._disk[cell] = role
            self._offset[cell] = chunk
            if role in self._index:
                self._index[role][chunk] = cell

    def problem(self, moved: Sequence[int]) -> str | None:
        """Return in words why the table is invalid after the cells *moved* got new places, or None.

        It is invalid if two cells share a place, or if a bundle has two chunks on one member.
        `cells_of` must have been called for the roles concerned before the moves.
        """
        shared = self._shared_place(sorted({self._disk[cell] for cell in moved}))
        if shared is not None:
            return shared
        for bundle in {cell // self.length for cell in moved}:
            if len(set(self.roles(Stripe(bundle)))) < self.length:
                return f"bundle {bundle} has two chunks on one member"
        return None

    def _shared_place(self, roles: Iterable[Role]) -> str | None:
        for role in roles:
            held = int(np.count_nonzero(self.cells_of(role) != NOWHERE))
            if held != int(np.count_nonzero(self.disk == role)):
                return f"two chunks lie at one place of role {role}"
        return None

    # -- members that join and leave -------------------------------------------------------------

    def take_counts(self, counts: Sequence[int]) -> None:
        """Set the numbers of chunks by role; every cell must lie below its role's number."""
        _check_counts(counts)
        old = getattr(self, "counts", ())
        for role in list(self._index):
            if old[role] != counts[role]:
                del self._index[role]
        self.counts = tuple(counts)
        self.width = len(counts)
        self.member_chunks = max(counts)

    def forget_initial_member(self, role: Role) -> None:
        """Note that the initial member of *role* left and was not rebuilt on another member."""
        initial = self.initial_shape
        self.initial_shape = InitialShape(initial.counts, initial.bundles, initial.roles - {role})

    def append(self, bundles: Table) -> range:
        """Append *bundles*, a table of members, with places on free chunks; return their cells.

        Each takes the lowest free chunks of its members. They belong to the image only after
        `open_appended`.
        """
        first = len(self.disk)
        assert first == self.cells, "the bundles appended before are not opened or dropped yet"
        disk = rotated(bundles, self.stripes).reshape(-1)
        offset = np.empty(len(disk), np.uint64)
        for role in np.unique(disk).tolist():
            places = np.flatnonzero(disk == role)
            offset[places] = self.free_chunks(role)[: len(places)]
        self._take_table(
            np.concatenate([self.disk, disk]),
            np.concatenate([self.offset, offset]),
            np.concatenate([self.last, np.zeros(len(disk), np.uint32)]),
            np.concatenate([self.interval, np.zeros(len(disk), np.uint16)]),
        )
        self._index.clear()
        return range(first, first + len(disk))

    def assign(self, cells: Cells, role: Role, chunks: Cells) -> None:
        """Give *cells*, which have no place yet, the places *chunks* of *role*."""
        self.disk[cells] = role
        self.offset[cells] = chunks
        index = self._index.get(role)
        if index is not None:  # overwrites the cells that lay there when the array was created
            index[chunks] = cells

    def problem_beyond_initial(self) -> str | None:
        """Return why the bundles beyond the initial ones are invalid (see `problem`), or None."""
        first = self.initial_stripes
        rows = np.sort(self.disk[first * self.length : self.cells].reshape(-1, self.length), axis=1)
        twice = np.flatnonzero((rows[:, 1:] == rows[:, :-1]).any(axis=1))
        if len(twice):
            return f"bundle {first + int(twice[0])} has two chunks on one member"
        return self._shared_place(np.unique(rows).tolist())

    def open_appended(self) -> None:
        """Make the bundles of the last `append` part of the image."""
        self._count(len(self.disk) // self.length)

    def drop_appended(self) -> None:
        """Undo the last `append`."""
        end = self.cells
        self._take_table(self.disk[:end], self.offset[:end], self.last[:end], self.interval[:end])
        self._index.clear()


def table_of(layout: Layout) -> BundleLayout | None:
    """Return *layout* if it has a look-up table."""
    return layout if isinstance(layout, BundleLayout) else None


def _check_counts(counts: Sequence[int]) -> None:
    if max(counts) >= MEMBER_CHUNKS_MAX:
        raise LayoutError(
            f"a member of {max(counts)} chunks is too large: at most {MEMBER_CHUNKS_MAX - 1}, "
            "take larger chunks"
        )


def check_table(cells: int) -> None:
    """Raise LayoutError if a table of *cells* is too large for a new array."""
    if cells > CELLS_MAX:
        raise LayoutError(
            f"a look-up table of {cells} chunks would need {cells * CELL_BYTES >> 20} MiB of "
            f"memory: at most {CELLS_MAX} chunks, take larger ones"
        )


def make_bundles(
    name: str,
    counts: object,
    chunk_bytes: int,
    length: object = None,
    bundles: object = None,
    founding: object = None,
    numbering: object = None,
) -> BundleLayout:
    """Return the raidx layout *name* over members of *counts* chunks. Raises LayoutError."""
    code = bundle_code(name, length)
    if not are_counts(counts):
        raise LayoutError(f"chunk_counts must be a list of numbers of chunks, not {counts!r}")
    if bundles is not None and (type(bundles) is not int or bundles < 1):
        raise LayoutError(f"bundles must be a number of bundles, not {bundles!r}")
    if numbering is not None and (numbering != TURNS or code.columns > 1):
        raise LayoutError(f"numbering is {TURNS!r}, of bundles of one chunk only")
    found = None if founding is None else initial_shape_from(founding)
    turns = None if numbering is None else TURNS
    return BundleLayout(name, code, chunk_bytes, counts, bundles, found, turns)
