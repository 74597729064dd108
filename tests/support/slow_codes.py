"""A second, slow implementation of the five two-loss codes, independent of `raidx_fuse.layouts`.

The equations are written down from the papers' definitions as sets of (row, column), the content of
a cell is a Python integer, and lost cells are solved by Gaussian elimination over GF(2). No code is
shared with the package, so that an error in its algebra cannot be in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, count

Cell = tuple[int, int]  # (row, column)


@dataclass(frozen=True)
class SlowCode:
    """*rows* x *width* cells; *data* in logical order; every equation is a set that XORs to 0."""

    rows: int
    width: int
    data: list[Cell]
    equations: list[set[Cell]]

    def decode(self, content: dict[Cell, int], lost_columns: Iterable[int]) -> dict[Cell, int]:
        """Return *content* with every cell of *lost_columns* solved; ValueError if it cannot be.

        Whatever *content* says of the lost cells is not looked at.
        """
        gone = set(lost_columns)
        known = {cell: value for cell, value in content.items() if cell[1] not in gone}
        rows: list[tuple[set[Cell], int]] = []  # (unknown cells, XOR of the known ones)
        for equation in self.equations:
            value = 0
            for cell in equation:
                value ^= known.get(cell, 0)
            rows.append(({cell for cell in equation if cell[1] in gone}, value))
        pivots: list[tuple[Cell, set[Cell], int]] = []
        for unknown in sorted(cell for cell in set().union(*self.equations) if cell[1] in gone):
            pivot = next((row for row in rows if unknown in row[0]), None)
            if pivot is None:
                raise ValueError(f"the cell {unknown} cannot be solved")
            rows.remove(pivot)
            rows = [
                (cells ^ pivot[0], value ^ pivot[1]) if unknown in cells else (cells, value)
                for cells, value in rows
            ]
            pivots.append((unknown, pivot[0], pivot[1]))
        for unknown, cells, value in reversed(pivots):  # a pivot names itself and later unknowns
            for cell in cells - {unknown}:
                value ^= known[cell]
            known[unknown] = value
        return known

    def encode(self, data: list[int]) -> dict[Cell, int]:
        """Return every cell of a stripe that holds *data*, one integer for each data cell."""
        content = dict(zip(self.data, data, strict=True))
        waiting = [set(equation) for equation in self.equations]
        while waiting:  # an equation with one unknown cell gives it; parities may need parities
            for equation in waiting:
                unknown = equation - content.keys()
                if len(unknown) == 1:
                    value = 0
                    for cell in equation - unknown:
                        value ^= content[cell]
                    content[unknown.pop()] = value
            waiting = [equation for equation in waiting if not equation <= content.keys()]
        return content


def _smallest_prime(least: int) -> int:
    return next(n for n in count(least) if n > 1 and all(n % d for d in range(2, n)))


def _horizontal(name: str, width: int) -> SlowCode:
    """RDP (Corbett et al., 2004) and EVENODD (Blaum et al., 1995), absent data columns zero."""
    disks = width - 2
    p = _smallest_prime(max(3, disks + 1 if name == "rdp" else disks))
    data = [(r, c) for r in range(p - 1) for c in range(disks)]
    row_parity, diagonal_parity = disks, disks + 1
    equations = [{(r, c) for c in range(disks + 1)} for r in range(p - 1)]
    diagonals: list[set[Cell]] = [set() for _ in range(p)]
    for r, c in data:
        diagonals[(r + c) % p].add((r, c))
    if name == "rdp":
        for r in range(p - 1):
            diagonals[(r + p - 1) % p].add((r, row_parity))
    for d in range(p - 1):
        adjuster = diagonals[p - 1] if name == "evenodd" else set()
        equations.append({(d, diagonal_parity)} | diagonals[d] | adjuster)
    return SlowCode(p - 1, width, data, equations)


def _xcode(p: int) -> SlowCode:
    """X-code (Xu and Bruck, 1999)."""
    data = [(r, c) for r in range(p - 2) for c in range(p)]
    equations = []
    for i in range(p):
        equations.append({(p - 2, i)} | {(k, (i + k + 2) % p) for k in range(p - 2)})
        equations.append({(p - 1, i)} | {(k, (i - k - 2) % p) for k in range(p - 2)})
    return SlowCode(p, p, data, equations)


def _pairs(name: str, p: int) -> SlowCode:
    """P-code (Jin et al., 2009) and Uniform P-code (the upc paper, section 3; DESIGN's rows)."""
    where: dict[Cell, Cell] = {}  # pair -> cell
    if name == "pcode":
        for column in range(1, p):
            mine = [(x, y) for x, y in combinations(range(1, p), 2) if (x + y) % p == column]
            where |= {pair: (1 + row, column - 1) for row, pair in enumerate(sorted(mine))}
    else:
        row = 0
        for ratio in range(2, p - 1):
            fresh = [
                (x, y)
                for x, y in combinations(range(1, p), 2)
                if (x * ratio - y) % p == 0 or (y * ratio - x) % p == 0
            ]
            if fresh and fresh[0] not in where:
                row += 1
                where |= {(x, y): (row, (x + y) % p - 1) for x, y in fresh}
    equations = [
        {(0, i - 1)} | {cell for pair, cell in where.items() if i in pair} for i in range(1, p)
    ]
    return SlowCode((p - 1) // 2, p - 1, sorted(where.values()), equations)


def slow_code(name: str, width: int) -> SlowCode:
    """Return the code *name* on *width* members; the width must be one that exists."""
    if name in ("rdp", "evenodd"):
        return _horizontal(name, width)
    return _xcode(width) if name == "xcode" else _pairs(name, width + 1)
