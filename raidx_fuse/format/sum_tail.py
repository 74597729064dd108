"""Tails of tables of sums as they lie on members: sectors of pages and their sums. See FORMAT.md.

What changes few sums of a page of a table is written to its tail: one sector behind the other,
instead of one page of the table each. A sector stands for itself, wherever it is found:

    sector of 512 bytes:  | 61 pages | 61 sums | zero | since | high | count | generation | check |

Of a page's sums, those in its table and in all sectors of the tail, the one with the highest
generation counts; where generations are equal, the tail comes after the table, and the sector
behind after the one before it. So sectors that an earlier use of the tail has left change nothing:
the table has a higher generation. *since* is the least generation of those that may count still.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raidx_fuse.format.regions import SECTOR_BYTES
from raidx_fuse.format.sum_table import CHECK_WORD, SECTOR_WORDS, checked_sectors, checks_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raidx_fuse.format.sum_table import Values

    Pages = NDArray[np.int64]

ENTRIES_MAX = 61  # of a sector
_SINCE, _HIGH, _COUNT, _GENERATION = range(CHECK_WORD - 4, CHECK_WORD)


class TailSectors(NamedTuple):
    """Sectors of a tail: for each its *generations* and *since*; and the entries of all.

    Entry n is the sum *sums[n]* of page *pages[n]*, and stands in sector *sector_of[n]*. Sectors
    that were never written have generation 0, as those that are *bad*.
    """

    generations: Values
    since: Values
    bad: list[int]
    pages: Pages
    sums: Values
    sector_of: Pages


def encode_tail(
    pages: Pages, sums: Values, *, first: int, seed: int, generation: int, since: int
) -> bytes:
    """Return sectors with the *sums* of *pages*, which ascend; at least one.

    *first*: the number of the first of them, counted from the beginning of the table.
    """
    cuts = np.flatnonzero(np.diff(pages >> 32)) + 1 if len(pages) else np.zeros(0, np.int64)
    rows: list[NDArray[np.uint32]] = []
    for some, of_some in zip(np.split(pages, cuts), np.split(sums, cuts), strict=True):
        count = max(1, -(-len(some) // ENTRIES_MAX))
        sectors = np.zeros((count, SECTOR_WORDS), np.uint32)
        padded = np.zeros((2, count * ENTRIES_MAX), np.uint32)
        padded[0, : len(some)] = some & 0xFFFFFFFF
        padded[1, : len(some)] = of_some
        sectors[:, :ENTRIES_MAX] = padded[0].reshape(count, ENTRIES_MAX)
        sectors[:, ENTRIES_MAX : 2 * ENTRIES_MAX] = padded[1].reshape(count, ENTRIES_MAX)
        sectors[:, _HIGH] = some[0] >> 32 if len(some) else 0
        sectors[:, _COUNT] = ENTRIES_MAX
        sectors[-1, _COUNT] = len(some) - (count - 1) * ENTRIES_MAX
        rows.append(sectors)
    every = rows[0] if len(rows) == 1 else np.concatenate(rows)
    every[:, _SINCE] = since
    every[:, _GENERATION] = generation
    every[:, CHECK_WORD] = checks_of(every, first, seed)
    return every.astype("<u4", copy=False).tobytes()


def sectors_for(pages: Pages) -> int:
    """Return how many sectors `encode_tail` makes for *pages*."""
    _, counts = np.unique(pages >> 32, return_counts=True)
    return int((-(-counts // ENTRIES_MAX)).sum()) or 1


def decode_tail(
    content: bytes | bytearray,
    first: int,
    seed: int,
    others: Collection[int] = (),
    *,
    pages_end: int = 1 << 62,
) -> TailSectors:
    """Return the sectors in *content*, whose first one has the number *first* (`encode_tail`).

    Sectors that fit one of the seeds *others* are as if they had never been written. Those that
    name pages from *pages_end* on, which the table does not have, are bad.
    """
    sectors, bad = checked_sectors(content, first, seed, others)
    inside = np.arange(ENTRIES_MAX) < np.minimum(sectors[:, _COUNT], ENTRIES_MAX)[:, None]
    high = sectors[:, _HIGH].astype(np.int64)[:, None] << 32
    pages = sectors[:, :ENTRIES_MAX].astype(np.int64) | high
    beyond = (((pages < 0) | (pages >= pages_end)) & inside).any(axis=1)
    sectors[beyond], inside[beyond] = 0, False
    bad = sorted({*bad, *np.flatnonzero(beyond).tolist()})
    sums = sectors[:, ENTRIES_MAX : 2 * ENTRIES_MAX][inside]
    at = np.repeat(np.arange(len(sectors), dtype=np.int64), inside.sum(axis=1))
    return TailSectors(sectors[:, _GENERATION], sectors[:, _SINCE], bad, pages[inside], sums, at)


assert 2 * ENTRIES_MAX <= _SINCE
assert SECTOR_WORDS * 4 == SECTOR_BYTES
