"""Erasure decoding over GF(2): which surviving cells XOR to a lost cell.

A set of cells is an integer whose bit i stands for cell i. A chain is a set whose cells XOR to
zero. The sum of two chains (the XOR of the integers) is another set whose cells XOR to zero.

A chain with exactly one unknown cell gives that cell immediately ("peeling"). When every chain has
two or more unknown cells, Gaussian elimination finds a sum of chains with one unknown cell, and
peeling continues from there:

>>> chains = (0b0111, 0b1101)          # cells 0,1,2 XOR to zero; cells 0,2,3 too
>>> solve(chains, lost=0b0010, wanted=0b0010)
((1, 5),)
>>> schedule(chains, lost=0b0101, wanted=0b0101)
Traceback (most recent call last):
    ...
raidx_fuse.layouts.codes.gf2.Unrecoverable: the chains cannot solve 2 of the lost cells

Peeling comes first and takes the cheapest chain first, which keeps the solutions sparse.
Elimination alone returns sums of many chains, and so many cells to read for one degraded read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Step = tuple[int, int]
"""A lost cell and the set of cells whose XOR it is."""


class Unrecoverable(ValueError):
    """More cells are lost than the chains can solve. *cells* is the set of unsolved cells."""

    def __init__(self, cells: int) -> None:
        super().__init__(f"the chains cannot solve {cells.bit_count()} of the lost cells")
        self.cells = cells


def bits(mask: int) -> Iterator[int]:
    """Yield the members of the set *mask* in rising order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def solvable(chains: Iterable[int], lost: int) -> bool:
    """Return whether *chains* give back all cells of *lost*, that is, have its rank over GF(2)."""
    basis: dict[int, int] = {}
    for chain in chains:
        row = chain & lost
        while row:
            top = row.bit_length()
            if top not in basis:
                basis[top] = row
                break
            row ^= basis[top]
    return len(basis) == lost.bit_count()


def schedule(chains: tuple[int, ...], lost: int, wanted: int) -> tuple[Step, ...]:
    """Return ordered steps that compute the *wanted* cells of *lost*.

    The set of a step may contain lost cells that earlier steps have computed, so that a decoder
    that keeps its results needs far fewer XORs than with `solve`. Raises Unrecoverable.
    """
    wanted &= lost
    unknown = lost
    sources: dict[int, int] = {}  # solved cell -> set of surviving cells
    steps: list[Step] = []
    while unknown & wanted:
        found = _peel(chains, unknown, lost, sources) or _eliminate(chains, unknown, lost, sources)
        if found is None:
            raise Unrecoverable(unknown & wanted)
        cell, mask = found
        steps.append(found)
        sources[cell] = _expand(mask, lost, sources)
        unknown ^= 1 << cell
    return _needed(steps, wanted)


def solve(chains: tuple[int, ...], lost: int, wanted: int) -> tuple[Step, ...]:
    """Return for each *wanted* cell of *lost* the set of surviving cells whose XOR it is.

    The steps are in rising order of cells. Raises Unrecoverable.
    """
    sources: dict[int, int] = {}
    for cell, mask in schedule(chains, lost, wanted):
        sources[cell] = _expand(mask, lost, sources)
    return tuple((cell, sources[cell]) for cell in bits(wanted & lost))


def _peel(chains: Iterable[int], unknown: int, lost: int, sources: dict[int, int]) -> Step | None:
    """Return the step with the fewest surviving sources among the chains with one unknown cell."""
    best: Step | None = None
    best_count = 0
    for chain in chains:
        cell = chain & unknown
        if not cell or cell & (cell - 1):
            continue
        count = _expand(chain ^ cell, lost, sources).bit_count()
        if best is None or count < best_count:
            best, best_count = (cell.bit_length() - 1, chain ^ cell), count
    return best


def _eliminate(
    chains: tuple[int, ...], unknown: int, lost: int, sources: dict[int, int]
) -> Step | None:
    """Return the sparsest step from a sum of chains with one unknown cell.

    Gaussian elimination, chains with few cells first.
    """
    pivots: dict[int, int] = {}  # pivot bit -> row, each pivot in no other row (reduced form)
    for chain in sorted(chains, key=int.bit_count):
        row = chain
        for pivot, other in pivots.items():
            if row & pivot:
                row ^= other
        left = row & unknown
        if not left:
            continue
        pivot = left & -left
        for key, other in pivots.items():
            if other & pivot:
                pivots[key] = other ^ row
        pivots[pivot] = row
    return _peel(pivots.values(), unknown, lost, sources)


def _expand(mask: int, lost: int, sources: dict[int, int]) -> int:
    """Replace solved cells in *mask* by the surviving cells whose XOR they are."""
    result = mask & ~lost
    for cell in bits(mask & lost):
        result ^= sources[cell]
    return result


def _needed(steps: list[Step], wanted: int) -> tuple[Step, ...]:
    """Drop the steps that no wanted cell depends on."""
    kept: list[Step] = []
    for cell, mask in reversed(steps):
        if wanted >> cell & 1:
            kept.append((cell, mask))
            wanted |= mask
    return tuple(reversed(kept))
