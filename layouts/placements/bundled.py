"""RAIDX layouts: bundles of chunks under a look-up table (the raidx paper, sections II and III).

A bundle is a stripe whose columns lie anywhere, each on a member of its own:

    members of 7, 4, 5, 4 chunks, L = 3, spare chunks not withheld (Fig. 1)

    bundle      0      1      2      3      4      5
    columns   0 2 1  3 0 2  1 2 0  0 3 1  3 0 2  1 2 0      greedy, moved on by one each bundle

The greedy allocation (layouts/planning/allocate.py) says which members; they hand out their chunks
in rising order. The columns of a bundle are moved on by one from bundle to bundle, as RAID-5
rotates: the greedy order would put most parity on the smallest members.

The table is what the paper counts, 15 bytes a cell: an 8-byte chunk number, a 4-byte last access, a
2-byte mean interval, a 1-byte member. Cell i = bundle * L + column; `place` is two look-ups. Where
an unmoved cell lies follows from the numbers of chunks alone, so a new array has nothing to store.

Members come and go: a role whose member left has 0 chunks until another one takes it. What follows
from numbers is therefore kept apart, as the `Founding`: bundles that came later, and cells of roles
whose founding member left, lie where somebody says (`NOBODY` until then).

Logical chunks go through the bundles in order, so the layout is *contiguous*; it is not *aligned*.
The table changes by `move` only, and the caller sees to it that places stay distinct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.codes.horizontal import replicas, single_parity, striping
from raidx_fuse.layouts.placements.founding import Founding, are_counts, founding_from
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.allocate import Table, allocate, check_bundles, maximum

Cells = NDArray[Any]  # signed integers

SPARE_CHUNKS = 1
"""Chunks that each member keeps free for moves (section IV.B)."""
CELL_BYTES = 15
"""Bytes of memory and disk a chunk (section V.B)."""
NOWHERE = -1
NOBODY = 255
"""The role of a cell that has no place yet: one more than a role can be."""
BLOCK_CELLS = 1 << 18
CELLS_MAX = 1 << 27
"""Of a new array: the table is held whole in memory, 15 bytes a cell make 2 GiB."""
MEMBER_CHUNKS_MAX = 1 << 32
"""A journal entry has 32 bits for the chunk number."""

KINDS: dict[str, tuple[Callable[[int], Code], int]] = {
    "raidx-zero": (striping, 1),
    "raidx-copy": (replicas, 2),
    "raidx-parity": (single_parity, 3),
}
"""Name to (code of a bundle by its length, shortest and default length)."""


def bundle_code(name: str, length: object = None) -> Code:
    """Return the code of one bundle of layout *name*. Raises LayoutError for a wrong length."""
    build, shortest = KINDS[name]
    if length is None:
        length = shortest
    if not isinstance(length, int) or isinstance(length, bool):
        raise LayoutError(f"the length of a bundle is a number, not {length!r}")
    if not shortest <= length < NOBODY:
        raise LayoutError(
            f"{name} needs bundles of {shortest} to {NOBODY - 1} chunks, not {length}"
        )
    return build(length)


class BundleLayout(Layout):
    """Bundles of *code* over members of *counts* chunks each, where the greedy allocation put them.

    *length* is L; *counts* are chunks by role, 0 for a role without a member. *bundles*, at most,
    are made; with *founding*, those beyond have no places yet. *disk*, *offset*, *last*, *interval*
    are the table, flat by cell, shared and changed in place: *last* in ticks of the user's clock,
    *interval* in ticks, 0 for unknown. Raises LayoutError when not one bundle can be made.
    """

    contiguous = True
    aligned = False

    def __init__(
        self,
        name: str,
        code: Code,
        chunk_bytes: int,
        counts: Sequence[int],
        bundles: int | None = None,
        founding: Founding | None = None,
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
        self.closed: set[int] = set()  # roles that take no more chunks: their members will leave
        self.promised: set[tuple[int, int]] = set()  # places that chunks are on their way to
        self.take_counts(counts)
        first = founding.counts if founding is not None else tuple(counts)
        check_bundles(first, self.length)
        _check_counts(first)
        made = founding.bundles if founding is not None else bundles
        if max(bundles or 0, made or 0) > maximum(counts, self.length):
            raise LayoutError(f"{name} has no room for {bundles} bundles on its members")
        table = allocate(first, self.length, spare=SPARE_CHUNKS, limit=made)
        if not len(table):
            raise LayoutError(
                f"{name} finds no {self.length} members with a chunk besides their spare one"
            )
        if founding is None:
            founding = Founding(tuple(counts), len(table), frozenset(range(self.width)))
        self.founding = founding
        self.founding_stripes = len(table)
        self.founding_data_count = code.data_count
        self._data_count = code.data_count
        disk = _rotated(table).reshape(-1)
        del table  # four times as large as what is kept of it
        if first != self.counts:
            self._check_founders(disk, founding.roles)
        offset = _rising(disk, len(first))
        left = [role for role in range(len(first)) if role not in founding.roles]
        if left:
            disk[np.isin(disk, left)] = NOBODY
        later = (bundles or self.founding_stripes) - self.founding_stripes
        if later < 0:
            raise LayoutError(f"{bundles} bundles are fewer than the array was made with")
        if later:
            homeless = np.full(later * self.length, NOBODY, np.uint8)
            disk = np.concatenate([disk, homeless])
            offset = np.concatenate([offset, np.zeros(len(homeless), np.uint64)])
        last = np.zeros(len(disk), np.uint32)  # memory only where it is touched
        self._take_table(disk, offset, last, np.zeros(len(disk), np.uint16))
        self._count(len(disk) // self.length)

    def _check_founders(self, disk: NDArray[np.uint8], roles: Iterable[int]) -> None:
        """Raise LayoutError if one of *roles* has no room for what it was given at first."""
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
        self._disk = disk.data  # an item of a memoryview is a plain int, and quicker
        self._offset = offset.data

    def _count(self, stripes: int) -> None:
        self.stripes = stripes
        self.cells = stripes * self.length
        self.chunks = stripes * self._data_count
        self.size_bytes = self.chunks * self.chunk_bytes

    @property
    def table_bytes(self) -> int:
        """Memory of the table: 15 bytes a cell."""
        return sum(part.nbytes for part in (self.disk, self.offset, self.last, self.interval))

    # -- the four questions --------------------------------------------------------------------

    def locate(self, chunk: int) -> tuple[int, int]:
        """Return (stripe, cell) of the logical data chunk *chunk*."""
        return divmod(chunk, self._data_count)

    def logical(self, stripe: int, cell: int) -> int:
        """Return the logical chunk of the data cell *cell* (an index below D) of *stripe*."""
        return stripe * self._data_count + cell

    def place(self, stripe: int, cell: int) -> tuple[int, int]:
        """Return (role, member chunk) of the cell with index *cell* of *stripe*."""
        at = stripe * self.length + cell
        return self._disk[at], self._offset[at]

    def inverse(self, role: int, member_chunk: int) -> tuple[int, int] | None:
        """Return (stripe, cell) that lies at *member_chunk* of *role*, None if it is free."""
        cell = int(self.cells_of(role)[member_chunk])
        return None if cell == NOWHERE else divmod(cell, self.length)

    def roles(self, stripe: int) -> tuple[int, ...]:
        """Return the role of each column of *stripe*."""
        at = stripe * self.length
        return tuple(self._disk[at : at + self.length])

    def lost_cells(self, stripe: int, lost_roles: frozenset[int]) -> int:
        """Return the set of cells of *stripe* that lie on *lost_roles*."""
        at = stripe * self.length
        mask = 0
        for column in range(self.length):
            if self._disk[at + column] in lost_roles:
                mask |= 1 << column
        return mask

    def tolerates(self, lost_roles: frozenset[int]) -> bool:
        """Say whether *lost_roles* can be lost: as many as a bundle can spare.

        More may do by chance, when they share no bundle; the next move would end that.
        """
        return len(lost_roles) <= self.code.tolerance

    def cells_on(self, roles: Iterable[int]) -> float:
        """Return how many cells of a bundle lie on *roles* in the mean."""
        return sum(int(np.count_nonzero(self.disk == role)) for role in roles) / self.stripes

    # -- the other way round -------------------------------------------------------------------

    def cells_of(self, role: int) -> Cells:
        """Return the cell at each chunk of *role*, `NOWHERE` for free ones; made at first need."""
        index = self._index.get(role)
        if index is None:
            small = np.int32 if self.cells < 1 << 31 else np.int64
            index = self._index[role] = np.full(self.counts[role], NOWHERE, small)
            for start in range(0, len(self.disk), BLOCK_CELLS):  # so that no scratch is as large
                block = slice(start, start + BLOCK_CELLS)
                here = np.flatnonzero(self.disk[block] == role)
                index[self.offset[block][here].astype(np.int64)] = here + start
        return index

    def free_chunks(self, role: int) -> Cells:
        """Return the chunks of *role* that hold no cell and await none, ascending."""
        free = np.flatnonzero(self.cells_of(role) == NOWHERE)
        awaiting = [chunk for other, chunk in self.promised if other == role]
        return np.setdiff1d(free, awaiting, assume_unique=True) if awaiting else free

    def used_chunks(self) -> list[int]:
        """Return how many chunks of each member hold cells."""
        return [int(n) for n in np.bincount(self.disk, minlength=self.width)[: self.width]]

    def move(self, changes: Sequence[tuple[int, int, int]]) -> None:
        """Give cells new places, all at once: (cell, role, member chunk) each."""
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
        """Say in words what is impossible about the table since *moved* cells have new places.

        Two cells at one place, or a bundle with two chunks on one member; None if all is well. The
        roles concerned must have been looked at by `cells_of` before the moves.
        """
        for role in sorted({self._disk[cell] for cell in moved}):
            held = int(np.count_nonzero(self.cells_of(role) != NOWHERE))
            if held != int(np.count_nonzero(self.disk == role)):
                return f"two chunks lie at one place of role {role}"
        for bundle in {cell // self.length for cell in moved}:
            if len(set(self.roles(bundle))) < self.length:
                return f"bundle {bundle} has two chunks on one member"
        return None

    # -- members that come and go ----------------------------------------------------------------

    def take_counts(self, counts: Sequence[int]) -> None:
        """Let roles have *counts* chunks from now on; what lies on them must fit."""
        _check_counts(counts)
        old = getattr(self, "counts", ())
        for role in list(self._index):
            if old[role] != counts[role]:
                del self._index[role]
        self.counts = tuple(counts)
        self.width = len(counts)
        self.member_chunks = max(counts)

    def forget_founder(self, role: int) -> None:
        """Note that the founding member of *role* left, and nobody took its place."""
        founding = self.founding
        self.founding = Founding(founding.counts, founding.bundles, founding.roles - {role})

    def append(self, bundles: Table) -> range:
        """Give places to *bundles* behind the last one, as a table of members; return their cells.

        They count from `open_appended` on. Each takes the lowest free chunks of its members.
        """
        first = len(self.disk)
        assert first == self.cells, "one lot at a time"
        disk = _rotated(bundles, self.stripes).reshape(-1)
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

    def assign(self, cells: Cells, role: int, chunks: Cells) -> None:
        """Give *cells* that have no place *chunks* of *role*."""
        self.disk[cells] = role
        self.offset[cells] = chunks
        index = self._index.get(role)
        if index is not None:  # who lay there at first may still be said to: these come later
            index[chunks] = cells

    def problem_beyond_founding(self) -> str | None:
        """Say in words what is impossible about bundles that came later, as `problem` does."""
        first = self.founding_stripes
        rows = np.sort(self.disk[first * self.length : self.cells].reshape(-1, self.length), axis=1)
        twice = np.flatnonzero((rows[:, 1:] == rows[:, :-1]).any(axis=1))
        if len(twice):
            return f"bundle {first + int(twice[0])} has two chunks on one member"
        for role in np.unique(rows).tolist():
            held = int(np.count_nonzero(self.cells_of(role) != NOWHERE))
            if held != int(np.count_nonzero(self.disk == role)):
                return f"two chunks lie at one place of role {role}"
        return None

    def open_appended(self) -> None:
        """Let the bundles appended last be part of the image."""
        self._count(len(self.disk) // self.length)

    def drop_appended(self) -> None:
        """Take back what `append` did."""
        end = self.cells
        self._take_table(self.disk[:end], self.offset[:end], self.last[:end], self.interval[:end])
        self._index.clear()


def _check_counts(counts: Sequence[int]) -> None:
    if max(counts) >= MEMBER_CHUNKS_MAX:
        raise LayoutError(
            f"a member of {max(counts)} chunks is too large: at most {MEMBER_CHUNKS_MAX - 1}, "
            "take larger chunks"
        )


def check_table(cells: int) -> None:
    """Raise LayoutError if a table of so many *cells* is too large for an array to be made."""
    if cells > CELLS_MAX:
        raise LayoutError(
            f"a look-up table of {cells} chunks would need {cells * CELL_BYTES >> 20} MiB of "
            f"memory: at most {CELLS_MAX} chunks, take larger ones"
        )


def _rotated(bundles: Any, first: int = 0) -> NDArray[np.uint8]:
    """Return *bundles* as bytes, the columns of bundle s moved on by s; the first is *first*."""
    length = bundles.shape[1]
    table = bundles.astype(np.uint8)
    for start in range(length):
        if shift := (first + start) % length:
            table[start::length] = np.roll(bundles[start::length], shift, axis=1)
    return np.ascontiguousarray(table)


def _rising(disk: NDArray[np.uint8], width: int) -> NDArray[np.uint64]:
    """Return the chunk numbers of cells whose members are *disk*: each hands out 0, 1, 2, ..."""
    offset = np.zeros(len(disk), np.uint64)
    given = [0] * width
    for start in range(0, len(disk), BLOCK_CELLS):  # so that no scratch array is as large
        block = disk[start : start + BLOCK_CELLS]
        for role in range(width):
            places = np.flatnonzero(block == role)
            end = given[role] + len(places)
            offset[start + places] = np.arange(given[role], end, dtype=np.uint64)
            given[role] = end
    return offset


def make_bundles(
    name: str,
    counts: object,
    chunk_bytes: int,
    length: object = None,
    bundles: object = None,
    founding: object = None,
) -> BundleLayout:
    """Return the raidx layout *name* over members of *counts* chunks. Raises LayoutError."""
    code = bundle_code(name, length)
    if not are_counts(counts):
        raise LayoutError(f"chunk_counts must be a list of numbers of chunks, not {counts!r}")
    if bundles is not None and (type(bundles) is not int or bundles < 1):
        raise LayoutError(f"bundles must be a number of bundles, not {bundles!r}")
    found = None if founding is None else founding_from(founding)
    return BundleLayout(name, code, chunk_bytes, counts, bundles, found)  # type: ignore[arg-type]
