"""Rebuild one lost column with the fewest distinct reads.

A lost cell can be computed from any chain that contains it. A surviving cell that two of the chosen
chains share is read once. "Hybrid recovery" (the upc paper, section 2.3.2) chooses the chains so
that the union of their surviving cells is smallest. An example, RDP with p = 5 and column 0 lost;
the digits are the number of chosen chains that read a cell:

    rows alone: 16 reads       rows 0, 1 by row, rows 2, 3 by diagonal: 12 reads
    - 1 1 1 | 1 | 0            - 1 2 2 | 1 | 0
    - 1 1 1 | 1 | 0            - 2 2 1 | 1 | 0
    - 1 1 1 | 1 | 0            - 1 0 0 | 0 | 1
    - 1 1 1 | 1 | 0            - 0 0 0 | 1 | 1

Branch and bound over the chains of each lost cell finds the choice. It visits every choice that
could still be better, so that the result is optimal among all choices of one chain for each cell.
This holds for columns of up to EXACT_CELLS cells: RDP, EVENODD and X-code up to p = 19, P-code and
Uniform P-code up to p = 37. The results equal the published optima: RDP 3(p-1)^2/4 (Xiang et al.,
2011), EVENODD (3p+1)(p-1)/4 (Wang et al., 2010). Larger columns get a deterministic local search
from two starting points. Its result is an upper bound without proof; for p = 23 to 31 it equals the
two formulas as well.

For parity columns, a sum of several chains for one cell can save a read; a last pass tries those
sums. For p = 5 (P-code: 7), shortened widths included, the tests search all sums of chains and find
no further saving, except one read of 16 (the row parity of EVENODD with six columns).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import combinations, product
from operator import or_

from raidx_fuse.layouts.codes.gf2 import Step, Unrecoverable, bits, solvable, solve

EXACT_CELLS = 19
"""Columns with more lost cells than this get a local search (18 cells cost 0.4 s, once)."""


def recover(
    chain_masks: tuple[int, ...], column_masks: tuple[int, ...], column: int
) -> tuple[Step, ...]:
    """Return (cell, surviving cells whose XOR it is) for all cells of *column*, with fewest reads.

    Raises Unrecoverable when the chains cannot solve the column.
    """
    lost = column_masks[column]
    if lost == 0:
        return ()
    if not solvable(chain_masks, lost):
        raise Unrecoverable(lost)
    search = _Search(chain_masks, column_masks, lost)
    chosen = search.exact() if lost.bit_count() <= EXACT_CELLS else search.local()
    return _polish(solve(chosen, lost, lost), search)


def _polish(steps: tuple[Step, ...], search: _Search) -> tuple[Step, ...]:
    """Add intact chains, or sums of two of them, to single steps while that lowers the cost.

    For parity columns this can save a read that no choice of one chain for each cell saves: one
    row parity of EVENODD is cheaper by the chain of its row plus a diagonal.
    """
    masks = dict(steps)
    cost = search.cost(masks.values())
    better = True
    while better:
        better = False
        for cell, chain in product(tuple(masks), search.intact):
            trial = {**masks, cell: masks[cell] ^ chain}
            trial_cost = search.cost(trial.values())
            if trial_cost < cost:
                masks, cost, better = trial, trial_cost, True
    return tuple(masks.items())


class _Search:
    """The choice of one chain for each lost cell.

    *options* holds, for each lost cell, the chains that contain it; cells with the fewest chains
    come first. *intact* holds the chains without a lost cell, and the sums of any two of them.
    """

    def __init__(
        self, chain_masks: tuple[int, ...], column_masks: tuple[int, ...], lost: int
    ) -> None:
        self.lost = lost
        self.column_masks = column_masks
        whole = [chain for chain in chain_masks if not chain & lost]
        self.intact = whole + [a ^ b for a, b in combinations(whole, 2)]
        options = [[chain for chain in chain_masks if chain >> cell & 1] for cell in bits(lost)]
        self.options = sorted(options, key=len)
        self.best: tuple[int, ...] = ()
        self.best_cost = (1 << 60, 0, 0)

    def cost(self, masks: Iterable[int]) -> tuple[int, int, int]:
        """Return the cost of reading the surviving cells of *masks*, to be compared as a tuple.

        (number of reads, most reads of one column, sum of the squares of the reads by column).
        """
        union = reduce(or_, masks, 0) & ~self.lost
        loads = [(union & mask).bit_count() for mask in self.column_masks]
        return union.bit_count(), max(loads), sum(load * load for load in loads)

    def exact(self) -> tuple[int, ...]:
        self._branch(0, 0, ())
        return self.best

    def _branch(self, depth: int, union: int, chosen: tuple[int, ...]) -> None:
        """Try every chain for the cell at *depth*; prune where the reads exceed the best."""
        if union.bit_count() > self.best_cost[0]:
            return
        if depth == len(self.options):
            cost = self.cost(chosen)
            if cost < self.best_cost and solvable(chosen, self.lost):
                self.best, self.best_cost = chosen, cost
            return
        for chain in self.options[depth]:
            if chain not in chosen:
                self._branch(depth + 1, union | (chain & ~self.lost), (*chosen, chain))

    def local(self) -> tuple[int, ...]:
        """Return a local optimum: no change of a single chain improves it. The better of two."""
        for start in (0, 1):
            picks = [len(o) > 1 and i % 2 * start for i, o in enumerate(self.options)]
            chosen = [o[int(pick)] for o, pick in zip(self.options, picks, strict=True)]
            if solvable(chosen, self.lost):
                self._improve(chosen)
        return self.best or self.exact()

    def _improve(self, chosen: list[int]) -> None:
        """Change one chain at a time while the cost falls; keep the result if it is the best."""
        cost = self.cost(chosen)
        better = True
        while better:
            better = False
            for i, options in enumerate(self.options):
                for chain in options:
                    trial = [*chosen[:i], chain, *chosen[i + 1 :]]
                    trial_cost = self.cost(trial)
                    if trial_cost < cost and solvable(trial, self.lost):
                        chosen, cost, better = trial, trial_cost, True
        if cost < self.best_cost:
            self.best, self.best_cost = tuple(chosen), cost
