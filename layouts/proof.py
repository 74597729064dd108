"""Is a code what it claims to be? Checked before a code of another package holds data.

The codes of this package are proved by its tests; those of plug-ins whenever they are built.
"""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from math import comb

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.codes.gf2 import solvable

ROWS_MAX = 64
CELLS_MAX = 4096
LOSSES_MAX = 4096
"""Sets of columns whose loss is tried, so that a proof takes seconds at most."""


def problem_of(code: object, width: int) -> str | None:
    """Return in words why *code* is no code for *width* members, or None.

    Every cell of the grid is data or the parity of one chain, and the chains give back any
    *tolerance* columns.
    """
    if type(code) is not Code:
        return f"it is {type(code).__name__}, not a Code"
    if type(code.columns) is not int or code.columns != width:
        return f"it has {code.columns} columns for {width} members"
    if type(code.rows) is not int or not 1 <= code.rows <= ROWS_MAX:
        return f"it has {code.rows} rows: 1 to {ROWS_MAX} are possible"
    if type(code.tolerance) is not int or not 0 <= code.tolerance < width:
        return f"{width} members cannot tolerate {code.tolerance} losses"
    if len(code.cells) > CELLS_MAX:
        return f"it has {len(code.cells)} cells: up to {CELLS_MAX} are possible"
    if not code.data:
        return "it has no data"
    for cell in (*code.data, *(cell for chain in code.chains for cell in chain)):
        if type(cell) is not tuple or [type(number) for number in cell] != [int, int]:
            return f"{cell!r:.40} is no cell: a tuple of row and column"
    grid = {(row, column) for row in range(code.rows) for column in range(width)}
    if unused := sorted(grid - set(code.cells)):
        return f"the cell in row {unused[0][0]}, column {unused[0][1]} is neither data nor parity"
    if outside := sorted(set(code.cells) - grid):
        return f"the cell in row {outside[0][0]}, column {outside[0][1]} is off the grid"
    for number, support in enumerate(code.support):
        if not support:
            return f"the chain of {code.name_of(code.data_count + number)} protects no data"
    return _loss_problem(code)


def _loss_problem(code: Code) -> str | None:
    if comb(code.columns, code.tolerance) > LOSSES_MAX:
        return (
            f"{code.tolerance} losses of {code.columns} members are too many ways to check: "
            f"up to {LOSSES_MAX}"
        )
    for lost in combinations(range(code.columns), code.tolerance):
        if not solvable(code.chain_masks, code.columns_mask(frozenset(lost))):
            which = ", ".join(map(str, lost))
            return f"it claims to tolerate {code.tolerance}, but not without columns {which}"
    return None


def fingerprint(code: Code) -> str:
    """Return 32 hexadecimal digits that name the cells, the chains and the order of the data."""
    chains = [[chain[0], *sorted(chain[1:])] for chain in code.chains]
    values = [code.rows, code.columns, code.tolerance, code.data, chains]
    text = json.dumps(values, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
