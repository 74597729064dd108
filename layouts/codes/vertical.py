"""Vertical codes: every column holds data and parity. X-code, P-code, Uniform P-code.

Every data cell belongs to exactly two chains, so a small write updates exactly two parity cells.
The codes cannot be shortened, because every column also holds parity of other columns. So they
exist only for p columns (X-code) or p - 1 columns (P-code, Uniform P-code), p prime, p >= 5.

X-code, p = 5: rows 0..2 hold data, rows 3 and 4 the parities along the two diagonals. A letter
names the parity cell to which a data cell belongs:

    row 3 (i = column)              row 4
    a b c d e   data row 0          a b c d e   cell (3, i) = XOR of (k, (i + k + 2) mod p)
    e a b c d   ...                             cell (4, i) = XOR of (k, (i - k - 2) mod p)

P-code, p = 7, six columns 1..6. Row 0 of column i is parity (i). A data cell is a pair {x, y},
x + y != p, in column (x + y) mod p; parity (i) is the XOR of the pairs that contain i. P-code sorts
the pairs of a column by rising x. Uniform P-code (the upc paper, section 3) permutes the pairs
within each column so that every data row holds two cells of every chain:

    P-code                              Uniform P-code
    (1)  (2)  (3)  (4)  (5)  (6)        (1)  (2)  (3)  (4)  (5)  (6)
    2,6  3,6  1,2  1,3  1,4  1,5        3,5  3,6  1,2  5,6  1,4  2,4    ratio 2 or 4
    3,5  4,5  4,6  5,6  2,3  2,4        2,6  4,5  4,6  1,3  2,3  1,5    ratio 3 or 5

The paper finds the rows by exhaustive search. This module uses a closed form: {x, y} goes to the
row of the class {y/x, x/y} mod p. The relation k ~ 1/k divides 2..p-2 into (p - 3)/2 classes,
exactly as many as there are data rows. In the row of class {k, 1/k} the cell {x, kx} lies in column
(1 + k)x. As x runs over 1..p-1, so does (1 + k)x: the row has one cell in every column. Chain i has
the two cells {i, ki} and {i, i/k} in this row. So the row holds two cells of every chain, for every
prime p.
"""

from __future__ import annotations

from functools import lru_cache

from raidx_fuse.layouts.codes.code import Cell, Code
from raidx_fuse.layouts.codes.horizontal import is_prime

Pair = tuple[int, int]
"""{x, y} with x < y, numbers of the two P-code chains that a data cell is in."""


@lru_cache(maxsize=32)
def xcode(width: int) -> Code:
    """Return X-code on *width* = p columns, p rows (Xu and Bruck, 1999)."""
    p = width
    assert is_prime(p), "the registry lets only prime widths through"
    data = tuple((r, c) for r in range(p - 2) for c in range(p))
    chains = tuple(
        ((row, i), *((k, (i + sign * (k + 2)) % p) for k in range(p - 2)))
        for row, sign in ((p - 2, 1), (p - 1, -1))
        for i in range(p)
    )
    return Code("xcode", p, p, chains, data, 2)


@lru_cache(maxsize=32)
def pcode(width: int) -> Code:
    """Return P-code on *width* = p - 1 columns, (p - 1)/2 rows (Jin et al., 2009)."""
    p = width + 1
    cells: dict[Pair, Cell] = {}
    used = [1] * p  # next free row of each column; row 0 is parity
    for x in range(1, p):  # rising x, so rising within each column
        for y in range(x + 1, p):
            if x + y != p:
                column = (x + y) % p
                cells[x, y] = (used[column], column - 1)
                used[column] += 1
    return _pair_code("pcode", p, cells)


@lru_cache(maxsize=32)
def upc(width: int) -> Code:
    """Return Uniform P-code on *width* = p - 1 columns (the upc paper, section 3.2)."""
    p = width + 1
    row_of_ratio: dict[int, int] = {}
    for k in range(2, p - 1):
        if k not in row_of_ratio:
            row_of_ratio[k] = row_of_ratio[pow(k, -1, p)] = 1 + len(set(row_of_ratio.values()))
    cells = {
        (x, y): (row_of_ratio[y * pow(x, -1, p) % p], (x + y) % p - 1)
        for x in range(1, p)
        for y in range(x + 1, p)
        if x + y != p
    }
    return _pair_code("upc", p, cells)


def _pair_code(name: str, p: int, cells: dict[Pair, Cell]) -> Code:
    """Return the code whose parity (i), row 0 of column i - 1, protects the pairs containing i."""
    assert p >= 5, "the registry lets only primes from 5 through"
    assert is_prime(p), "the registry lets only primes from 5 through"
    chains = tuple(
        ((0, i - 1), *(cell for pair, cell in cells.items() if i in pair)) for i in range(1, p)
    )
    return Code(name, (p - 1) // 2, p - 1, chains, tuple(sorted(cells.values())), 2)
