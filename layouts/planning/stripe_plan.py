"""Plans: which cells a request reads, XORs and writes, decided before any I/O.

The chains of a stripe are equations that hold for each byte. So a request inside one stripe splits
into at most three *bands*. A band is a byte range of the chunk in which the request touches the
same set of data cells from end to end.

    chunk bytes   0 . . . . a . . . . b . . . . chunk
    first cell              [=====================]      touched from a
    middle cells  [===============================]
    last cell     [===================]                  touched up to b
    bands         [ 0..a )  [ a..b )  [ b..chunk )

Within a band every cell is one vector of bytes. The cells to be written are linear functions of
cells on the members ("old") and of the data of the request ("new"). A `BandPlan` is that function:
the cells to read, the XOR for each computed cell, and the data cells that are written unchanged.
There are plans for normal and degraded reads, read-modify-write (rmw), reconstruct-write (rcw), and
rebuild.

Cells are numbered as in `Code`: data cells in logical order, then parity cells in the order of the
chains. Sets of cells are bit masks. *unwritten* cells were never written: they count as zero and
are never read (see the written map in raidx_fuse/ARCHITECTURE.md). Plans are values: they can be
printed, counted and tested without I/O, and are cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from raidx_fuse.layouts.codes.code import Code, Unrecoverable
from raidx_fuse.layouts.codes.gf2 import bits, solve
from raidx_fuse.layouts.numbers import CellIndex, Stripe

Band = tuple[int, int, int]  # (first byte, end byte, mask of touched data cells)
Part = tuple[CellIndex, int, int]  # (data cell, first byte, end byte)
BandCells = dict[tuple[Stripe, int, int], int]  # (stripe, first byte, end byte) -> mask of cells
FEW = 4  # parts, which are cut sooner than sorted


@dataclass(frozen=True, slots=True)
class Output:
    """Cell *cell* becomes the XOR of the cells *old*, as read, and *new*, from the request."""

    cell: CellIndex
    old: tuple[CellIndex, ...]
    new: tuple[CellIndex, ...]


@dataclass(frozen=True, slots=True)
class BandPlan:
    """The plan for one band of one stripe.

    First the cells *reads* are read, then *outputs* are computed, then the cells *writes* are
    written with the data of the request. *read_mask* is *reads* as a set. *kind* is "read",
    "degraded", "rmw" (read-modify-write), "rcw" (reconstruct-write) or "full" (no pre-read).
    """

    kind: str
    reads: tuple[CellIndex, ...]
    outputs: tuple[Output, ...]
    writes: tuple[CellIndex, ...]
    read_mask: int

    @property
    def pre_reads(self) -> int:
        return len(self.reads)

    def pre_reads_beside(self, cached: int) -> int:
        """Return the number of pre-reads that are left when the cells *cached* are in memory."""
        return (self.read_mask & ~cached).bit_count()


@lru_cache(maxsize=4096)
def cells_of(mask: int) -> tuple[CellIndex, ...]:
    """Return the cell numbers in *mask*, ascending."""
    return tuple(map(CellIndex, bits(mask)))


def bands_of(parts: Sequence[Part]) -> list[Band]:
    """Return the bands of *parts*, which may overlap.

    >>> bands_of([(0, 60, 64), (1, 0, 64), (2, 0, 8)])
    [(0, 8, 6), (8, 60, 2), (60, 64, 3)]
    >>> bands_of([(0, 0, 8), (2, 4, 12), (0, 6, 8)])
    [(0, 4, 1), (4, 6, 5), (6, 8, 5), (8, 12, 4)]
    """
    if not parts:
        return []
    _, low, high = parts[0]
    mask = 0
    for cell, start, end in parts:
        if start != low or end != high:
            break
        mask |= 1 << cell
    else:  # one cell, or whole ones
        return [(low, high, mask)]
    cuts = sorted({edge for _, low, high in parts for edge in (low, high)})
    least, most, middle = cuts[0], cuts[-1], 0
    edges = []
    for part in parts:
        if part[1] == least and part[2] == most:
            middle |= 1 << part[0]
        else:
            edges.append(part)
    if not middle and len(parts) > FEW:
        ordered = sorted([(low, high, 1 << cell) for cell, low, high in parts])
        if all(one[1] <= other[0] for one, other in pairwise(ordered)):
            return ordered
    found = []
    for low, high in pairwise(cuts):
        mask = middle
        for cell, start, end in edges:
            if start <= low and high <= end:
                mask |= 1 << cell
        if mask:
            found.append((low, high, mask))
    return found


@lru_cache(maxsize=65536)
def read_plan(code: Code, wanted: int, lost: int, unwritten: int) -> BandPlan:
    """Return the plan to read the data cells *wanted* without the cells *lost* (degraded read).

    Unwritten cells are left out: they are zero. Raises `Unrecoverable`.
    """
    wanted &= ~unwritten
    unknown = lost & ~unwritten
    reads = wanted & ~unknown
    outputs = []
    for cell, sources in code.solve(unknown, wanted & unknown) if wanted & unknown else ():
        live = sources & ~unwritten
        reads |= live
        outputs.append(Output(CellIndex(cell), cells_of(live), ()))
    kind = "degraded" if outputs else "read"
    return BandPlan(kind, cells_of(reads), tuple(outputs), (), reads)


def _values(code: Code, mask: int, unknown: int, unwritten: int) -> int | None:
    """Return a set of readable cells with the same XOR as the old cells in *mask*.

    None if the chains cannot solve the cells of *mask* that are *unknown* (lost and written).
    """
    mask &= ~unwritten
    lost = mask & unknown
    if not lost:
        return mask
    try:
        solved = code.solve(unknown, lost)
    except Unrecoverable:
        return None
    mask &= ~lost
    for _cell, sources in solved:
        mask ^= sources & ~unwritten
    return mask


def _update(
    code: Code, touched: int, lost: int, unwritten: int, parities: list[int], reconstruct: bool
) -> BandPlan | None:
    unknown = lost & ~unwritten
    outputs = []
    reads, changed = 0, touched
    for parity in parities:
        support = code.support[parity]
        cell = code.data_count + parity
        wanted = support & ~touched if reconstruct else (support & touched) | (1 << cell)
        old = _values(code, wanted, unknown, unwritten)
        if old is None:
            return None
        reads |= old
        changed |= 1 << cell
        outputs.append(Output(CellIndex(cell), cells_of(old), cells_of(support & touched)))
    # Named by what it reads: in place of a lost cell, either way may read what the other one reads.
    kind = ("rmw" if reads & changed else "rcw") if reads else "full"
    return BandPlan(kind, cells_of(reads), tuple(outputs), cells_of(touched & ~lost), reads)


@lru_cache(maxsize=65536)
def write_plans(
    code: Code, touched: int, lost: int, unwritten: int
) -> tuple[BandPlan | None, BandPlan | None]:
    """Return the (read-modify-write, reconstruct-write) plans for new data in the cells *touched*.

    One of them is None if the lost cells make it impossible. A lost cell that a plan needs is
    replaced by the cells whose XOR it is. Raises `Unrecoverable` if the new data could not be read
    back afterwards.
    """
    # New data of a lost cell is kept by parity only: the cell must be solvable after the write.
    gone = touched & lost
    if gone:
        code.solve(lost & (touched | ~unwritten), gone)
    parities = [
        parity
        for parity in range(code.parity_count)
        if code.support[parity] & touched and not lost >> (code.data_count + parity) & 1
    ]
    rmw = _update(code, touched, lost, unwritten, parities, reconstruct=False)
    rcw = _update(code, touched, lost, unwritten, parities, reconstruct=True)
    if rmw is None and rcw is None:
        raise Unrecoverable(touched)
    return rmw, rcw


def proven_plan(rmw: BandPlan | None, rcw: BandPlan | None, unproven: int) -> BandPlan:
    """Return which of two plans, one of which may be None, to take where cells are *unproven*.

    Nothing says that what these hold (a mask) is right. A plan that reads none of them gives a
    parity that may still contradict them. If both do, read-modify-write does so: it takes in only
    what is replaced, where reconstruct-write would make a parity that agrees with all the others.
    """
    for plan in (rmw, rcw):
        if plan is not None and not plan.read_mask & unproven:
            return plan
    plan = rmw or rcw
    assert plan is not None, "write_plans gives at least one plan"
    return plan


def plan_around(code: Code, touched: int, lost: int, zeros: int, around: int) -> BandPlan | None:
    """Return a plan that reads none of the cells *around*, or None if there is none. Pure.

    Their members are present, so that a parity among them is written. *zeros* are cells that count
    as zero. All are masks, as for `write_plans`. Each parity is what the untouched cells of its
    support sum to, with the new data: if the readable cells give that sum at all, it is found.
    """
    gone, readable = touched & lost, code.all_mask & ~(lost | around)
    reads, outputs = 0, []
    try:
        if gone:
            code.solve(lost & (touched | ~zeros), gone)
        for parity, support in enumerate(code.support):
            cell = CellIndex(code.data_count + parity)
            if not support & touched or lost >> cell & 1:
                continue
            old = _sum(code, support & ~touched & ~zeros, (lost | around) & ~zeros) & ~zeros
            assert not old & ~readable
            reads |= old
            outputs.append(Output(cell, cells_of(old), cells_of(support & touched)))
    except Unrecoverable:
        return None
    kind = "rcw" if reads else "full"
    return BandPlan(kind, cells_of(reads), tuple(outputs), cells_of(touched & ~lost), reads)


def _sum(code: Code, mask: int, unknown: int) -> int:
    """Return a set of known cells with the same XOR as the cells of *mask*. Raises Unrecoverable.

    It is solved for as one more cell: the chains may give the sum though not each of its cells.
    """
    if not mask & unknown:
        return mask
    one_more = code.all_mask + 1
    ((_, known),) = solve((*code.chain_masks, mask | one_more), unknown | one_more, one_more)
    return known


@lru_cache(maxsize=65536)
def unwritten_cells(code: Code, unwritten_data: int) -> int:
    """Return *unwritten_data* and every parity cell that depends on no other data cells."""
    mask = unwritten_data
    for parity, support in enumerate(code.support):
        if not support & ~unwritten_data:
            mask |= 1 << (code.data_count + parity)
    return mask


@lru_cache(maxsize=65536)
def rebuild_plan(code: Code, wanted: int, lost: int, unwritten: int) -> tuple[Output, ...]:
    """Return how to compute the cells *wanted* (data or parity, all of them *lost*).

    The outputs must be computed in the returned order. If all lost cells are wanted, later outputs
    use earlier ones, which takes far fewer XORs. If exactly one whole column is lost, the chains
    with the fewest distinct reads are taken (`Code.recover`). Unwritten cells are left out, both
    as targets and as sources. Raises `Unrecoverable`.
    """
    unknown = lost & ~unwritten
    target = wanted & unknown
    if not target:
        return ()
    if lost in code.column_masks:
        solved = code.recover(code.column_masks.index(lost))
    elif target == unknown:
        solved = code.schedule(unknown, target)
    else:
        solved = code.solve(unknown, target)
    return tuple(
        Output(CellIndex(cell), cells_of(sources & ~unwritten), ())
        for cell, sources in solved
        if target >> cell & 1
    )
