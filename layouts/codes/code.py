"""An erasure code: a grid of cells, and parity chains whose cells XOR to zero. Pure algebra.

Encoding, partial update, degraded read, rebuild and scrub use only the chains, so a new code is
just a new list of chains. A replica is a chain of two equal cells.

A cell is identified in two ways. A `Cell` is (row, column). A *cell index* is an integer: the data
cells are 0..D-1 in logical order, the parity cells D..D+P-1 in the order of their chains. A set of
cells is an integer with one bit for each cell index. Single parity over three columns:

    (0,0) (0,1) (0,2)        index 0 1 2         chain {2, 0, 1}: parity cell first
      d0    d1   parity

>>> code = Code("raid4", 1, 3, (((0, 2), (0, 0), (0, 1)),), ((0, 0), (0, 1)), 1)
>>> code.index[(0, 2)], code.chain_masks, code.solve(lost=0b001, wanted=0b001)
(2, (7,), ((0, 6),))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from raidx_fuse.layouts.codes import gf2, recovery
from raidx_fuse.layouts.codes.gf2 import Step, Unrecoverable, bits

__all__ = ["Cell", "Code", "LayoutError", "Step", "Unrecoverable", "bits"]

Cell = tuple[int, int]
"""(row, column) of a cell in its stripe, both from 0."""


class LayoutError(ValueError):
    """A layout, width or parameter is not possible; one line that names the nearest valid ones."""


@dataclass(frozen=True, eq=False)
class Code:
    """A grid of *rows* x *columns*, *chains* (parity cell first) and *data* cells in logical order.

    *tolerance* is the number of columns that may be lost at once, whichever they are. The author
    of the code states it; the tests prove it. Codes compare by identity. The other attributes are
    derived:

    * *cells*: the cells by cell index; *index*: the cell index of each cell.
    * *data_count*, *parity_count*: D and P.
    * *data_mask*, *parity_mask*, *all_mask*: sets of cells; *chain_masks*: the chains as sets.
    * *support*: for each parity p (cell D+p) the set of data cells whose XOR it is. Parity cells
      in its chain (the diagonals of RDP contain some) are expanded into their data cells.
    * *affects*: for each data cell the indexes of the parity cells that change with it.
    * *column_cells*, *column_masks*: by column; *column_of*, *row_of*: by cell index.
    """

    name: str
    rows: int
    columns: int
    chains: tuple[tuple[Cell, ...], ...]
    data: tuple[Cell, ...]
    tolerance: int
    cells: tuple[Cell, ...] = field(init=False, repr=False)
    index: dict[Cell, int] = field(init=False, repr=False)
    data_count: int = field(init=False, repr=False)
    parity_count: int = field(init=False, repr=False)
    data_mask: int = field(init=False, repr=False)
    parity_mask: int = field(init=False, repr=False)
    all_mask: int = field(init=False, repr=False)
    chain_masks: tuple[int, ...] = field(init=False, repr=False)
    support: tuple[int, ...] = field(init=False, repr=False)
    affects: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    column_cells: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    column_masks: tuple[int, ...] = field(init=False, repr=False)
    column_of: tuple[int, ...] = field(init=False, repr=False)
    row_of: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Derive the tables. Raises AssertionError if the chains are no code: a bug."""
        cells = self.data + tuple(chain[0] for chain in self.chains)
        index = {cell: i for i, cell in enumerate(cells)}
        assert len(index) == len(cells), f"{self.name}: a cell is both data and parity, or twice"
        for row, column in cells:
            assert 0 <= row < self.rows, f"{self.name}: row {row} is off the grid"
            assert 0 <= column < self.columns, f"{self.name}: column {column} is off the grid"
        for chain in self.chains:
            assert len(set(chain)) == len(chain) >= 2, f"{self.name}: a chain repeats a cell"
            stray = next((cell for cell in chain if cell not in index), None)
            assert stray is None, f"{self.name}: {stray} of a chain is neither data nor parity"
        data_count = len(self.data)
        data_mask = (1 << data_count) - 1
        all_mask = (1 << len(cells)) - 1
        chain_masks = tuple(sum(1 << index[cell] for cell in chain) for chain in self.chains)
        support = _support(chain_masks, data_count)
        column_cells = tuple(
            tuple(
                sorted((i for i, cell in enumerate(cells) if cell[1] == c), key=cells.__getitem__)
            )
            for c in range(self.columns)
        )
        derived: dict[str, object] = {
            "cells": cells,
            "index": index,
            "data_count": data_count,
            "parity_count": len(self.chains),
            "data_mask": data_mask,
            "parity_mask": all_mask ^ data_mask,
            "all_mask": all_mask,
            "chain_masks": chain_masks,
            "support": support,
            "affects": tuple(
                tuple(data_count + p for p, mask in enumerate(support) if mask >> d & 1)
                for d in range(data_count)
            ),
            "column_cells": column_cells,
            "column_masks": tuple(sum(1 << i for i in column) for column in column_cells),
            "column_of": tuple(column for _, column in cells),
            "row_of": tuple(row for row, _ in cells),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    @property
    def is_copies(self) -> bool:
        """Whether the stripe is one data cell and copies of it (mirroring)."""
        return self.data_count == 1 <= self.parity_count

    def name_of(self, cell: int) -> str:
        """Return D0, D1, ... for data and P0, P1, ... for parity; P0 is that of chain 0."""
        return f"D{cell}" if cell < self.data_count else f"P{cell - self.data_count}"

    # Codes are few and kept anyway, so the caches of their methods keep nothing alive.

    @lru_cache(maxsize=16384)  # noqa: B019
    def solve(self, lost: int, wanted: int) -> tuple[Step, ...]:
        """Return (cell, set of surviving cells whose XOR it is) for each cell of *wanted*.

        *lost* and *wanted* are sets of cells; wanted cells that are not lost are left out. Chains
        with few surviving cells are preferred. The result is cached. Raises Unrecoverable when the
        chains cannot solve a wanted cell.
        """
        return gf2.solve(self.chain_masks, lost, wanted)

    @lru_cache(maxsize=1024)  # noqa: B019
    def schedule(self, lost: int, wanted: int) -> tuple[Step, ...]:
        """Return the steps of `solve` in an order in which later steps use results of earlier ones.

        When several cells are lost this takes far fewer XORs than `solve`. The result is cached.
        ``schedule(parity_mask, parity_mask)`` is the encoder. Raises Unrecoverable.
        """
        return gf2.schedule(self.chain_masks, lost, wanted)

    @lru_cache(maxsize=1024)  # noqa: B019
    def recover(self, column: int) -> tuple[Step, ...]:
        """Return one step for each cell of *column*, together reading the fewest distinct cells.

        The sets contain surviving cells only. Among the choices with the fewest reads, the one
        that spreads the reads best over the surviving columns is taken (recovery.py). The result
        is cached. Raises Unrecoverable.
        """
        return recovery.recover(self.chain_masks, self.column_masks, column)

    def columns_mask(self, columns: frozenset[int]) -> int:
        """Return the set of all cells in *columns*."""
        mask = 0
        for column in columns:
            mask |= self.column_masks[column]
        return mask


def _support(chain_masks: tuple[int, ...], data_count: int) -> tuple[int, ...]:
    """Return for each parity the set of data cells whose XOR it is.

    Parity cells inside chains are expanded. AssertionError if parities depend on each other.
    """
    data_mask = (1 << data_count) - 1
    done: dict[int, int] = {}
    waiting = set(range(len(chain_masks)))
    while waiting:
        ready = []
        for p in waiting:
            others = (chain_masks[p] & ~data_mask) ^ (1 << (data_count + p))
            if all(q - data_count in done for q in bits(others)):
                ready.append((p, others))
        assert ready, "the parities of the chains depend on each other in a cycle"
        for p, others in ready:
            mask = chain_masks[p] & data_mask
            for q in bits(others):
                mask ^= done[q - data_count]
            done[p] = mask
            waiting.remove(p)
    return tuple(done[p] for p in range(len(chain_masks)))
