"""Is a layout what it claims to be? Checked before one of another package holds data.

The codes of this package are proved by its tests; those of plug-ins whenever they are built.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from math import comb

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.codes.gf2 import solvable
from raidx_fuse.layouts.placements.pattern import Pattern, Placement

PATTERN_CELLS_MAX = 1 << 16
ROWS_MAX = 64
CELLS_MAX = 4096
LOSSES_MAX = 4096
"""Sets of columns whose loss is tried, so that a proof takes seconds at most."""


def problem_of(built: object, width: int) -> str | None:
    """Return in words why *built* is no code or placement for *width* members, or None.

    Every cell of the grid is data or the parity of one chain, and the chains give back any
    *tolerance* columns. In a placement, the columns of each stripe are on different members, and
    each member has equally many, so that every chunk of it is the place of one cell.
    """
    if type(built) is Placement:
        columns = getattr(built.code, "columns", None)
        if type(columns) is not int or not 1 <= columns <= width:
            return f"its stripes have {columns} columns for {width} members"
        return problem_of(built.code, columns) or _pattern_problem(built, columns, width)
    code = built
    if type(code) is not Code:
        return f"it is {type(code).__name__}, not a Code or a Placement"
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


def _pattern_problem(placement: Placement, columns: int, width: int) -> str | None:
    pattern, roles = placement.pattern, frozenset(range(width))
    if not isinstance(pattern, list | tuple) or not 0 < len(pattern) * columns <= PATTERN_CELLS_MAX:
        return f"its pattern is no list of 1 to {PATTERN_CELLS_MAX // columns} stripes"
    for number, stripe in enumerate(pattern):
        if not isinstance(stripe, list | tuple) or not all(type(role) is int for role in stripe):
            return f"stripe {number} of its pattern is no list of roles"
        if len(stripe) != columns or len(set(stripe)) < columns or not roles.issuperset(stripe):
            return f"stripe {number} of its pattern has not {columns} different roles below {width}"
    counts = Counter(itertools.chain.from_iterable(pattern))
    for role in range(width):
        if counts[role] * width != len(pattern) * columns:
            return f"role {role} is in {counts[role]} stripes of its pattern, others are not"
    return None


def _loss_problem(code: Code) -> str | None:
    if comb(code.columns, code.tolerance) > LOSSES_MAX:
        return (
            f"{code.tolerance} losses of {code.columns} members are too many ways to check: "
            f"up to {LOSSES_MAX}"
        )
    for lost in itertools.combinations(range(code.columns), code.tolerance):
        if not solvable(code.chain_masks, code.columns_mask(frozenset(lost))):
            which = ", ".join(map(str, lost))
            return f"it claims to tolerate {code.tolerance}, but not without columns {which}"
    return None


def fingerprint(code: Code, pattern: Pattern | None = None) -> str:
    """Return 32 hexadecimal digits that name the cells, the chains and the order of the data.

    And the places, if there is a *pattern*.
    """
    chains = [[parity, *sorted(others)] for parity, *others in code.chains]
    values = [code.rows, code.columns, code.tolerance, code.data, chains]
    if pattern is not None:
        values.append(pattern)
    text = json.dumps(values, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
