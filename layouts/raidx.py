"""RAIDX layouts: bundles of chunks under a look-up table (the raidx paper, sections II and III).

A bundle is a stripe whose columns lie anywhere, each on a member of its own:

    members of 7, 4, 5, 4 chunks, L = 3, spare chunks not withheld (Fig. 1)

    bundle      0      1      2      3      4      5
    columns   0 2 1  3 0 2  1 2 0  0 3 1  3 0 2  1 2 0      greedy, moved on by one each bundle

The greedy allocation (bundle.py) says which members; they hand out their chunks in rising order.
The columns of a bundle are moved on by one from bundle to bundle, as RAID-5 rotates: the greedy
order would put most parity on the smallest members.

The table is what the paper counts, 15 bytes a cell: an 8-byte chunk number, a 4-byte last access, a
2-byte mean interval, a 1-byte member. Cell i = bundle * L + column; `place` is two look-ups. Where
an unmoved cell lies follows from the numbers of chunks alone, so a new array has nothing to store.

Logical chunks go through the bundles in order, so the layout is *contiguous*; it is not *aligned*.
The table changes by `move` only, and the caller sees to it that places stay distinct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.bundle import allocate, check_bundles
from raidx_fuse.layouts.code import Code, LayoutError
from raidx_fuse.layouts.horizontal import replicas, single_parity, striping
from raidx_fuse.layouts.layout import Layout

Cells = NDArray[Any]  # signed integers

SPARE_CHUNKS = 1
"""Chunks that each member keeps free for moves (section IV.B)."""
CELL_BYTES = 15
"""Bytes of memory and disk a chunk (section V.B)."""
NOWHERE = -1
BLOCK_CELLS = 1 << 18
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
    if length < shortest:
        raise LayoutError(f"{name} needs bundles of {shortest} chunks or more, not {length}")
    return build(length)


class BundleLayout(Layout):
    """Bundles of *code* over members of *counts* chunks each, where the greedy allocation put them.

    *length* is L; *counts* are chunks by role. *disk*, *offset*, *last*, *interval* are the table,
    flat by cell, shared and changed in place: *last* in ticks of the user's clock, *interval* in
    ticks, 0 for unknown. Raises LayoutError when not one bundle can be made.
    """

    contiguous = True
    aligned = False

    def __init__(self, name: str, code: Code, chunk_bytes: int, counts: Sequence[int]) -> None:
        assert code.rows == 1
        assert code.column_of == tuple(range(code.columns))
        check_bundles(counts, code.columns)
        if max(counts) >= MEMBER_CHUNKS_MAX:
            raise LayoutError(
                f"a member of {max(counts)} chunks is too large: at most {MEMBER_CHUNKS_MAX - 1}, "
                "take larger chunks"
            )
        self.name = name
        self.code = code
        self.counts = tuple(counts)
        self.length = code.columns
        self.width = len(counts)
        self.chunk_bytes = chunk_bytes
        self.member_chunks = max(counts)
        bundles = allocate(counts, self.length, spare=SPARE_CHUNKS)
        if not len(bundles):
            raise LayoutError(
                f"{name} finds no {self.length} members with a chunk besides their spare one"
            )
        self.stripes = len(bundles)
        self.chunks = self.stripes * code.data_count
        self.founding_data_count = code.data_count
        self.size_bytes = self.chunks * chunk_bytes
        self._data_count = code.data_count
        self.cells = cells = self.stripes * self.length
        self.disk = _rotated(bundles).reshape(-1)
        del bundles  # four times as large as what is kept of it
        self.offset = _rising(self.disk, self.width)
        self.last = np.zeros(cells, np.uint32)  # memory only where it is touched
        self.interval = np.zeros(cells, np.uint16)
        self._disk = self.disk.data  # an item of a memoryview is a plain int, and quicker
        self._offset = self.offset.data
        self._index: dict[int, Cells] = {}

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
            cells = np.flatnonzero(self.disk == role)
            index[self.offset[cells].astype(np.int64)] = cells
        return index

    def free_chunks(self, role: int) -> Cells:
        """Return the chunks of *role* that hold no cell, ascending."""
        return np.flatnonzero(self.cells_of(role) == NOWHERE)

    def used_chunks(self) -> list[int]:
        """Return how many chunks of each member hold cells."""
        return [int(n) for n in np.bincount(self.disk, minlength=self.width)]

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


def _rotated(bundles: Any) -> NDArray[np.uint8]:
    """Return *bundles* as bytes, the columns of bundle s moved on by s."""
    length = bundles.shape[1]
    table = bundles.astype(np.uint8)
    for shift in range(1, length):
        table[shift::length] = np.roll(bundles[shift::length], shift, axis=1)
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
    name: str, counts: object, chunk_bytes: int, length: object = None
) -> BundleLayout:
    """Return the raidx layout *name* over members of *counts* chunks. Raises LayoutError."""
    code = bundle_code(name, length)
    if not isinstance(counts, list | tuple) or not all(isinstance(c, int) for c in counts):
        raise LayoutError(f"chunk_counts must be a list of numbers of chunks, not {counts!r}")
    return BundleLayout(name, code, chunk_bytes, counts)
