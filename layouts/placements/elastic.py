"""McPod's elastic mapping: RAID-4 that grows by moving the fewest blocks (the mcpod paper).

The array grows from v to w = v + n data disks; the parity disk is not counted. A block moves only
to a new disk, and keeps its block number. w consecutive blocks of every disk form a *region*. Block
b of all disks together is a *column*; b1 = b mod w is its number in the region. The block b of disk
d0 moves exactly if d0 <= b1 <= d0 + n - 1: in the region the moved blocks form a parallelogram.
Fig. 1 of the paper shows the first region of a growth from 3 to 5 data disks (4 to 6 with parity).
Moved blocks are in brackets, new blocks have a plus:

                before                        after
    block    0   1   2   3   4         0    1    2    3    4
    disk 0  [0] [3]  6   9  12        16+  17+   6    9   12
    disk 1   1  [4] [7] 10  13         1   18+  19+  10   13
    disk 2   2   5  [8][11] 14         2    5   20+  21+  14
    disk 3                             0    3    7   22+  23+
    disk 4                            15+   4    8   11   24+

The last column of a region moves nothing. One rule covers the three parts of the paper's Fig. 9.
The moved blocks of a column lie in a window of old disks, and move in the same order to a window of
new disks:

    d = d0 - max(0, b1 - n + 1) + max(v, b1 + 1)

The n vacant places of the column are the cyclic window of n disks that ends at disk b1. New blocks
fill them in the order (b1 - n + 1 + j) mod w, j = 0 .. n-1. The share of moved blocks is n/w, the
lower bound.

Logical blocks are numbered so that each growth appends its new blocks after all older ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.codes.horizontal import single_parity, striping
from raidx_fuse.layouts.numbers import (
    CellIndex,
    Chunk,
    MemberChunk,
    Role,
    Stripe,
    cell_range,
    role_range,
)
from raidx_fuse.layouts.placements.layout import Layout

Blocks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """Block *block* moves from data disk *source* to data disk *target*, same block number."""

    block: int
    source: int
    target: int


class ElasticMapping:
    """The mapping of logical blocks after the growths in *history*.

    *history* holds the numbers of data disks, the first before any growth. *blocks_per_disk* is
    the number of blocks on each disk. Logical blocks run from 0 to *blocks* - 1, disks from 0 to
    *disks* - 1. Each look-up costs O(number of growths). Raises LayoutError when *history* is not
    strictly increasing.
    """

    def __init__(self, history: tuple[int, ...], blocks_per_disk: int) -> None:
        if not history or history[0] < 1 or blocks_per_disk < 1:
            raise LayoutError("an elastic mapping needs a first disk and a first block")
        if any(new <= old for old, new in pairwise(history)):
            raise LayoutError(f"disks can only be added: {', '.join(map(str, history))}")
        self.history = tuple(history)
        self.blocks_per_disk = blocks_per_disk
        self.disks = history[-1]
        self.blocks = self.disks * blocks_per_disk
        # (old disks v, added n, all w, first logical block of this growth)
        self._growths = tuple(
            (old, new - old, new, old * blocks_per_disk) for old, new in pairwise(history)
        )

    def grown(self, disks: int) -> ElasticMapping:
        """Return the mapping after one more growth, to *disks* data disks."""
        return ElasticMapping((*self.history, disks), self.blocks_per_disk)

    def locate(self, block: int) -> tuple[int, int]:
        """Return (disk, block on it) of logical *block*. Figs. 8 and 9 of the paper."""
        first = self.history[0]
        if block < first * self.blocks_per_disk:
            row, disk = divmod(block, first)
        for v, n, w, start in self._growths:
            if block >= start + n * self.blocks_per_disk:
                continue  # added by a later growth
            if block >= start:
                row, j = divmod(block - start, n)
                disk = (row - n + 1 + j) % w
                continue
            column = row % w
            if disk <= column < disk + n:
                disk += max(v, column + 1) - max(0, column - n + 1)
        return disk, row

    def logical(self, disk: int, row: int) -> int:
        """Return the logical block at block *row* of *disk*. Fig. 10 of the paper."""
        for v, n, w, start in reversed(self._growths):
            column = row % w
            back = (column - disk) % w
            if back < n:
                return start + row * n + n - 1 - back
            if disk >= v:
                disk += max(0, column - n + 1) - max(v, column + 1)
        return row * self.history[0] + disk

    def locate_many(self, blocks: Blocks) -> tuple[Blocks, Blocks]:
        """Return (disks, blocks on them) of logical *blocks*, as `locate`, for any shape."""
        blocks = np.asarray(blocks, dtype=np.int64)
        row, disk = np.divmod(blocks, self.history[0])
        for v, n, w, start in self._growths:
            new_row, j = np.divmod(blocks - start, n)
            column = row % w
            moves = (disk <= column) & (column < disk + n)
            to = disk + np.maximum(v, column + 1) - np.maximum(0, column - n + 1)
            appended = blocks >= start  # later growths correct their blocks in their own iteration
            disk = np.where(appended, (new_row - n + 1 + j) % w, np.where(moves, to, disk))
            row = np.where(appended, new_row, row)
        return disk, row

    def logical_many(self, disks: Blocks, rows: Blocks) -> Blocks:
        """Return the logical blocks at blocks *rows* of *disks*, as `logical`, broadcast."""
        disk, row = np.broadcast_arrays(
            np.asarray(disks, dtype=np.int64), np.asarray(rows, dtype=np.int64)
        )
        result = np.full(disk.shape, -1, dtype=np.int64)
        for v, n, w, start in reversed(self._growths):
            column = row % w
            back = (column - disk) % w
            appended = (back < n) & (result < 0)
            result = np.where(appended, start + row * n + n - 1 - back, result)
            from_ = disk + np.maximum(0, column - n + 1) - np.maximum(v, column + 1)
            disk = np.where(disk >= v, from_, disk)
        return np.where(result < 0, row * self.history[0] + disk, result)

    def generations(self) -> tuple[tuple[int, int], ...]:
        """Return (first logical block, blocks in each row) of the first blocks and of each growth.

        The blocks that one growth added (a *generation*) are numbered consecutively, row by row.
        """
        return ((0, self.history[0]), *((start, n) for _, n, _, start in self._growths))

    def moves(self, first_row: int = 0, end_row: int | None = None) -> Iterator[Move]:
        """Yield the moves of the last growth among block rows *first_row* .. *end_row* - 1.

        Moves come by rising row, within a row by rising source disk. Within a region the rows of
        one source disk are adjacent, and so are those of one target disk: each coalesces into one
        I/O (section 3.2). Without a growth there are no moves.
        """
        if not self._growths:
            return
        v, n, w, _ = self._growths[-1]
        for row in range(first_row, self.blocks_per_disk if end_row is None else end_row):
            column = row % w
            low = max(0, column - n + 1)
            shift = max(v, column + 1) - low
            for disk in range(low, min(v - 1, column) + 1):
                yield Move(row, disk, disk + shift)


class ElasticLayout(Layout):
    """Striping or RAID-4 that can grow. Stripe b is block b of every member; a cell is a data disk.

    *history* holds the numbers of members (data and parity), the first before any growth. Parity
    keeps its initial role, the last one of the first members. Members that were added later have
    the roles after it.

    *migrated* is the first stripe that has not migrated in the growth under way. None means that no
    growth is under way; the attribute then is the number of stripes.

    A block keeps its stripe when it moves. So each stripe has either the old or the new mapping as
    a whole, under one code of the new width. A move exchanges a block with the new block that will
    take its place. So in a stripe that has not migrated, the cells of the new disks hold the new
    blocks of the growth:

        stripe            0   1  | 2   3   4        3 to 5 data disks, *migrated* = 2
        disk 0           16+ 17+ | 6   9   12
        disk 1            1  18+ | 7   10  13
        disk 2            2   5  | 8   11  14
        disk 3            0   3  | 19+ 22+ 23+
        disk 4           15+  4  | 20+ 21+ 24+

    So the migration of a stripe changes only the places of its blocks, not the set of its blocks.
    The image keeps its old size until the growth ends (`finish_growth`).

    With *surrogate*, one more member with the last role holds the parity of the stripes that have
    migrated (the mcpod paper, section 3.4, Fig. 5). During the growth one of the two parity members
    has no cell in each stripe.
    """

    contiguous = False
    aligned = True

    def __init__(
        self,
        name: str,
        history: Sequence[int],
        chunk_bytes: int,
        member_chunks: int,
        migrated: int | None = None,
        surrogate: bool = False,
    ) -> None:
        parities = 0 if name == "raid0" else 1
        self.mapping = ElasticMapping(tuple(m - parities for m in history), member_chunks)
        if migrated is not None and (len(history) < 2 or not 0 <= migrated <= member_chunks):
            raise LayoutError(f"{migrated} stripes cannot have migrated in the growth {history}")
        if surrogate and (migrated is None or not parities):
            raise LayoutError("a surrogate takes parity over while it grows, and only then")
        self.name = name
        self.history = tuple(history)
        self.width = history[-1] + surrogate
        self.code = single_parity(history[-1]) if parities else striping(history[-1])
        self.chunk_bytes = chunk_bytes
        self.stripes = self.member_chunks = member_chunks
        self.chunks = self.mapping.blocks
        self.founding_data_count = self.mapping.history[0]
        self.founding_stripes = self.stripes
        self.migrated = member_chunks if migrated is None else migrated
        self.disks_before = self.mapping.history[-2 if len(history) > 1 else -1]
        self._before: ElasticMapping | None = None
        if migrated is not None:
            self._before = ElasticMapping(self.mapping.history[:-1], member_chunks)
        shown = self._before or self.mapping
        self.size_bytes = shown.blocks * chunk_bytes
        roles = list(range(history[-1]))
        if parities:
            roles.append(roles.pop(history[0] - 1))
        self._roles = tuple(map(Role, roles))
        self.surrogate = history[-1] if surrogate else None
        self._roles_after = (*self._roles[:-1], Role(history[-1])) if surrogate else self._roles
        self._cells = tuple(self._roles.index(role) for role in role_range(0, history[-1]))

    @property
    def growing(self) -> bool:
        """Whether a growth is under way."""
        return self._before is not None

    @property
    def parity_cell(self) -> CellIndex:
        """The index of the parity cell, if the layout has parity."""
        return CellIndex(self.mapping.disks)

    def migrate_to(self, stripe: Stripe) -> None:
        """Let *stripe* be the first that has not migrated; its neighbours' blocks are copied."""
        self.migrated = stripe

    def finish_growth(self) -> None:
        """End the growth after every stripe has migrated: the image now includes the new blocks.

        A surrogate takes the role of the old parity member.
        """
        assert self.migrated == self.stripes, "some stripes have not migrated"
        self._before = None
        self.width = self.history[-1]
        self.surrogate, self._roles_after = None, self._roles
        self.size_bytes = self.chunks * self.chunk_bytes

    def locate(self, chunk: int) -> tuple[Stripe, CellIndex]:
        """Return (stripe, cell) of the logical data chunk *chunk*."""
        before = self._before
        if before is None:
            disk, row = self.mapping.locate(chunk)
            return row, disk  # type: ignore[return-value]
        v, w = before.disks, self.mapping.disks
        n = w - v
        if chunk >= before.blocks:
            disk, row = self.mapping.locate(chunk)
            leaves = disk < v and row >= self.migrated  # the old block has not left yet
        else:
            disk, row = before.locate(chunk)
            leaves = row < self.migrated and disk <= row % w < disk + n
        if leaves:
            column = row % w
            disk += max(v, column + 1) - max(0, column - n + 1)
        return row, disk  # type: ignore[return-value]

    def logical(self, stripe: Stripe, cell: CellIndex) -> Chunk:
        """Return the logical chunk of the data cell *cell* of *stripe*."""
        before = self._before
        if before is None or stripe < self.migrated:
            return Chunk(self.mapping.logical(cell, stripe))
        if cell < before.disks:
            return Chunk(before.logical(cell, stripe))
        w = self.mapping.disks
        n, column = w - before.disks, stripe % w
        if (column - cell) % w >= n:  # a block will move here: name the new block of its old place
            born = cell + max(0, column - n + 1) - max(before.disks, column + 1)
            return Chunk(self.mapping.logical(born, stripe))
        return Chunk(self.mapping.logical(cell, stripe))

    def logical_rows(self, start: int, end: int) -> Blocks:
        """Return the logical chunks of the stripes start..end-1 as an array (stripes, cells)."""
        rows = np.arange(start, end, dtype=np.int64)[:, None]
        disks = np.arange(self.mapping.disks, dtype=np.int64)[None, :]
        now = self.mapping.logical_many(disks, rows)
        before = self._before
        if before is None or end <= self.migrated:
            return now
        v, w = before.disks, self.mapping.disks
        column = rows % w
        left = disks + np.maximum(0, column - (w - v) + 1) - np.maximum(v, column + 1)
        comes = (disks >= v) & ((column - disks) % w >= w - v)
        appended = self.mapping.logical_many(np.where(comes, left, disks), rows)
        old = np.where(disks < v, before.logical_many(np.minimum(disks, v - 1), rows), appended)
        return np.where(rows < self.migrated, now, old)

    def moving(self, start: int, end: int) -> tuple[Blocks, Blocks, Blocks, Blocks]:
        """Return all moves of the last growth in the stripes start..end-1, by rising stripe.

        Four arrays of equal length: stripes, data disks before, data disks after, logical chunks.
        """
        v, w = self.disks_before, self.mapping.disks
        disks = np.arange(v, dtype=np.int64)[None, :]
        column = np.arange(start, end, dtype=np.int64)[:, None] % w
        rows, old = np.nonzero((disks <= column) & (column < disks + (w - v)))
        column = column[rows, 0]
        new = old - np.maximum(0, column - (w - v) + 1) + np.maximum(v, column + 1)
        rows = rows + start
        return rows, old, new, self.mapping.logical_many(new, rows)

    def moved(self, stripe: Stripe, cell: CellIndex) -> bool:
        """Return whether the growth under way moves the chunk that *cell* of *stripe* holds now.

        That is, whether the chunk has different cells before and after the growth.
        """
        before = self._before
        if before is None:
            return False
        if stripe < self.migrated:
            return cell >= before.disks
        added = self.mapping.disks - before.disks
        return cell < before.disks and cell <= stripe % self.mapping.disks < cell + added

    def is_generation(self, stripe: Stripe, cells: int) -> bool:
        """Return whether the set *cells* holds exactly the blocks of one generation in *stripe*.

        See `ElasticMapping.generations`.
        """
        disks = [disk for disk in cell_range(0, self.mapping.disks) if cells >> disk & 1]
        if not disks:
            return False
        blocks = sorted(self.logical(stripe, disk) for disk in disks)
        start, count = next(b for b in reversed(self.mapping.generations()) if b[0] <= blocks[0])
        first = start + stripe * count
        return blocks == list(range(first, first + count))

    def role_of(self, cell: CellIndex, *, after: bool) -> Role:
        """Return the role of *cell* in stripes that have (*after*) or have not migrated."""
        return (self._roles_after if after else self._roles)[cell]

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, MemberChunk]:
        """Return (role, member chunk) of the cell with index *cell* of *stripe*."""
        role = (self._roles_after if stripe < self.migrated else self._roles)[cell]
        return role, stripe  # type: ignore[return-value]  # each stripe is one chunk high

    def inverse(self, role: Role, member_chunk: MemberChunk) -> tuple[Stripe, CellIndex] | None:
        """Return (stripe, cell) that lies at *member_chunk* of *role*, None if nothing does."""
        stripe = Stripe(member_chunk)
        if not 0 <= stripe < self.stripes or role not in self.roles(stripe):
            return None
        return stripe, CellIndex(self.roles(stripe).index(role))

    def roles(self, stripe: Stripe) -> tuple[Role, ...]:
        """Return the role of each column: the data disks in order, parity last."""
        return self._roles_after if stripe < self.migrated else self._roles

    def lost_cells(self, stripe: Stripe, lost_roles: frozenset[Role]) -> int:
        """Return the set of cells of *stripe* that lie on *lost_roles*."""
        mask = 0
        if self.surrogate is not None:
            roles = self.roles(stripe)
            return sum(1 << roles.index(role) for role in lost_roles if role in roles)
        for role in lost_roles:
            mask |= 1 << self._cells[role]
        return mask

    def tolerates(self, lost_roles: frozenset[Role]) -> bool:
        """Return whether every stripe can be read without *lost_roles*, before and after a move."""
        return len(lost_roles) <= self.code.tolerance
