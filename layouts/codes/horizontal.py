"""Horizontal codes: parity has columns of its own. Striping, replicas, single parity, RDP, EVENODD.

Replicas: each copy forms a chain with the data cell in column 0:

    column   0     1     2
           data  copy  copy      chains {(0,1), (0,0)}, {(0,2), (0,0)}

RDP and EVENODD for a prime p have p - 1 rows. Row parity is one column. A cell belongs to the
diagonal d = (row + column) mod p. Each diagonal except p - 1 has a parity cell in the last column.
The numbers below are the diagonals of the cells for p = 5; diagonal 4 has no parity of its own:

    RDP  0 1 2 3 | 4 | Q0       EVENODD  0 1 2 3 4 | P0 | Q0
         1 2 3 4 | 0 | Q1                1 2 3 4 0 | P1 | Q1
         2 3 4 0 | 1 | Q2                2 3 4 0 1 | P2 | Q2
         3 4 0 1 | 2 | Q3                3 4 0 1 2 | P3 | Q3
     RDP includes the row parities (column p - 1) in the diagonals.
     EVENODD does not; it adds the cells of diagonal 4 to every Q.

*Shortening*: a missing data column counts as zero and is left out, so that every width works with
any prime that has enough columns. With a larger prime than needed, columns can be added later:
until then they count as zero, so no parity changes. Data cells are numbered row by row, so that
neighbouring chunks lie on different members.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

from raidx_fuse.layouts.codes.code import Cell, Code, LayoutError


@lru_cache(maxsize=64)
def striping(width: int) -> Code:
    """Return the code of *width* data columns without a chain."""
    return Code("raid0", 1, width, (), tuple((0, c) for c in range(width)), 0)


@lru_cache(maxsize=64)
def replicas(width: int) -> Code:
    """Return the code of one data cell and *width* - 1 copies; any *width* - 1 may be lost."""
    chains = tuple(((0, c), (0, 0)) for c in range(1, width))
    return Code("raid1", 1, width, chains, ((0, 0),), width - 1)


@lru_cache(maxsize=64)
def single_parity(width: int) -> Code:
    """Return the code of *width* - 1 data columns and their XOR in the last column."""
    data = tuple((0, c) for c in range(width - 1))
    return Code("raid4", 1, width, (((0, width - 1), *data),), data, 1)


@lru_cache(maxsize=64)
def rdp(width: int, prime: int | None = None) -> Code:
    """Return row-diagonal parity on *width* columns: width - 2 of data, rows, diagonals.

    Without *prime* it is the smallest p >= width - 1 (the upc paper, section 2.2.1 and Fig. 1).
    Raises LayoutError if *prime* is not one, or too small for *width*.
    """
    p = _checked_prime("rdp", prime, width, width - 1)
    # For the diagonals the row parity is column p - 1, even if shortening has moved it to the left.
    grid = [(c, c) for c in range(width - 2)] + [(p - 1, width - 2)]
    return _rows_and_diagonals("rdp", p, width, grid)


@lru_cache(maxsize=64)
def evenodd(width: int, prime: int | None = None) -> Code:
    """Return EVENODD on *width* columns: width - 2 of data, rows, diagonals with the adjuster.

    Without *prime* it is the smallest p >= width - 2 (Blaum et al., 1995; the upc paper, section
    5.1). Raises LayoutError if *prime* is not one, or too small for *width*.
    """
    p = _checked_prime("evenodd", prime, width, width - 2)
    grid = [(c, c) for c in range(width - 2)]
    return _rows_and_diagonals("evenodd", p, width, grid, _diagonal(p, p - 1, grid))


def _rows_and_diagonals(
    name: str, p: int, width: int, grid: list[tuple[int, int]], adjuster: tuple[Cell, ...] = ()
) -> Code:
    """Return the code with row parity and, in the last column, that of *grid*'s diagonals."""
    columns = width - 2
    data = tuple((r, c) for r in range(p - 1) for c in range(columns))
    rows = tuple(((r, columns), *((r, c) for c in range(columns))) for r in range(p - 1))
    diagonals = tuple(((d, columns + 1), *_diagonal(p, d, grid), *adjuster) for d in range(p - 1))
    return Code(name, p - 1, width, rows + diagonals, data, 2)


def _checked_prime(name: str, prime: int | None, width: int, least: int) -> int:
    if prime is None:
        return next(filter(is_prime, count(max(3, least))))
    if not is_prime(prime) or prime < 3:
        raise LayoutError(f"the prime of {name} cannot be {prime}")
    if prime < least:
        raise LayoutError(
            f"{name} with prime {prime} has at most {width - least + prime} members, not {width}"
        )
    return prime


def is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))


def _diagonal(p: int, d: int, grid: list[tuple[int, int]]) -> tuple[Cell, ...]:
    """Return the cells of diagonal *d*; *grid* pairs full-code columns with the shortened ones."""
    return tuple(((d - full) % p, column) for full, column in grid if (d - full) % p != p - 1)
