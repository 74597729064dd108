"""McPod's elastic mapping for the columns of any stripe, and the numbers of the chunks it adds.

An array grows from v to w = v + n members. In each stripe a column either stays or moves to one of
the n new members; no row of a member changes. The stripe has a *shift* c from 0 to w - 1:

    column on d moves   if d < v and d <= c < d + n
                        to d - max(0, c - n + 1) + max(v, c + 1)
    new columns         on (c - n + 1 + j) mod w, j = 0 .. n-1: the places that were left, and the
                        new members' places that got nothing

The columns that move are a window of members, and arrive in the same order in another window
(Fig. 9 of the mcpod paper). Over all values of c exactly n/w of the columns move, the lower bound.
Parity columns move like data columns: a moved parity is copied, and not computed, because a new
column counts as zero until it is written. Of RAID-4, only the data columns take part.

The *plain* rule has c = stripe mod w, as the paper: Fig. 1 shows the first region of a growth from
3 to 5 data disks (4 to 6 with parity). Moved blocks are in brackets, new blocks have a plus:

                before                        after
    stripe   0   1   2   3   4         0    1    2    3    4
    disk 0  [0] [3]  6   9  12        16+  17+   6    9   12
    disk 1   1  [4] [7] 10  13         1   18+  19+  10   13
    disk 2   2   5  [8][11] 14         2    5   20+  21+  14
    disk 3                             0    3    7   22+  23+
    disk 4                            15+   4    8   11   24+

The plain rule makes the columns of one kind, the parity for example, gather on some members: where
they are before and whether they move depend on the same remainders. The *turned* rule excludes
that. It takes runs of *granule* stripes together, which become runs of adjacent chunks on the
members. Let P be the number of granules after which the placement before this growth repeats:

    q = stripe div granule,  x = q mod P,  y = q div P,  c = (x + turn * (x div w) + y) mod w

Each x meets every shift once within P * w granules. So over this period every kind of column is
spread evenly over the new width if it was so before. *turn* only mixes shifts within the period; it
is chosen when the array grows so that the members are even in the stripes that the array has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import gcd, lcm
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from raidx_fuse.layouts.codes.code import LayoutError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[np.int64]"
Rule = tuple[int, int] | None
"""(granule, turn) of a growth under the turned rule; None: the plain rule."""

N = TypeVar("N", int, Numbers)

GRANULE_ROWS = 16  # of a member whose kind is not known: see `granule_rows`
GRANULE_ROWS_ROTATING = 64
GRANULE_ROWS_FLASH = 4
TRIED_CELLS = 1 << 17  # looked at for each turn: a growth begins without a noticeable pause
TRIED_TURNS = 24
PERIOD_MAX = 1 << 60  # longer ones never repeat in any array


@dataclass(frozen=True, slots=True)
class Growth:
    """A growth from *before* to *after* members; *period* is P of the module, 0: the plain rule."""

    before: int
    after: int
    granule: int = 1
    turn: int = 0
    period: int = 0

    def shift(self, stripe: N) -> N:
        """Return the shift of *stripe*, a number or an array of numbers."""
        if not self.period:
            return stripe % self.after
        granule = stripe // self.granule
        x, y = granule % self.period, granule // self.period
        return (x + self.turn * (x // self.after) + y) % self.after


class ElasticMapping:
    """The members of the columns of each stripe after the growths of *history*.

    *history* holds the numbers of columns, the first before any growth; *rules* the rule of each
    growth (missing ones: the plain rule). *rotated* says that the first columns lie on
    (column - stripe) mod history[0], otherwise column c lies on member c. Columns are numbered by
    age: those of a growth come after all older ones.

    *period* is the number of stripes after which all places repeat; *run* is the number of stripes,
    from a multiple of it on, that differ in nothing but the rotation of the first columns. Raises
    LayoutError when *history* is not strictly increasing, or a rule is not possible.
    """

    def __init__(
        self, history: Sequence[int], rules: Sequence[Rule] = (), rotated: bool = False
    ) -> None:
        if not history or history[0] < 1:
            raise LayoutError("an elastic mapping needs a first disk")
        if any(new <= old for old, new in pairwise(history)):
            raise LayoutError(f"disks can only be added: {', '.join(map(str, history))}")
        if len(rules) >= len(history):
            raise LayoutError(f"{len(rules)} rules for {len(history) - 1} growths")
        self.history = tuple(history)
        self.rules = (*rules, *[None] * (len(history) - 1 - len(rules)))
        self.rotated = rotated
        self.columns = history[-1]
        self.period = history[0] if rotated else 1
        growths = []
        for (old, new), rule in zip(pairwise(history), self.rules, strict=True):
            if rule is None:
                growths.append(Growth(old, new))
                self.period = lcm(self.period, new)
                continue
            granule, turn = rule
            if granule < 1 or not 0 <= turn < new:
                raise LayoutError(f"a growth to {new} disks cannot have the rule {list(rule)}")
            granules = self.period // gcd(self.period, granule)
            growths.append(Growth(old, new, granule, turn, granules))
            self.period = min(granules * granule * new, PERIOD_MAX)
        self.growths = tuple(growths)
        runs = [growth.granule if growth.period else 1 for growth in growths]
        self.run = gcd(*runs) if runs else 1

    def members(self, start: int, end: int) -> Numbers:
        """Return the member of each column of the stripes start..end-1: (stripes, columns)."""
        return self.members_of(np.arange(start, end, dtype=np.int64))

    def members_of(self, numbers: Numbers) -> Numbers:
        """Return the member of each column of the stripes *numbers*: (stripes, columns)."""
        stripes = numbers[:, None]
        first = np.arange(self.history[0], dtype=np.int64)[None, :]
        found = (first - stripes) % self.history[0] if self.rotated else first + 0 * stripes
        for growth in self.growths:
            v, w = growth.before, growth.after
            n, shift = w - v, growth.shift(stripes)
            moves = (found <= shift) & (shift < found + n)
            to = found - np.maximum(0, shift - n + 1) + np.maximum(v, shift + 1)
            new = (shift - n + 1 + np.arange(n)) % w
            found = np.concatenate((np.where(moves, to, found), new), axis=1)
        return found


def granule_rows(rotates: bool | None) -> int:
    """Return how many rows of a member a granule has: on rotating disks, others, or unknown ones.

    Long granules spare rotating disks seeks, but a request meets fewer members. Requests of 1 MiB,
    four at a time, read the image of a raid5 grown from 4 to 5 (and 4 to 6) modelled disks at this
    share of the speed of an array made so wide:

        rows            1            4            16           64          256
        rotating        0.52 0.29    0.55 0.40    0.70 0.56    0.76 0.67   0.79 0.71
        SSD             1.00 1.00    1.00 1.00    0.99 0.88    0.87 0.79   0.83 0.76
        NVMe            1.00 0.97    1.00 0.95    0.92 0.83    0.86 0.77   0.83 0.76

    Of 16 requests at a time rotating disks serve most with 32 to 64 rows: 0.89 (0.81).
    """
    if rotates is None:
        return GRANULE_ROWS
    return GRANULE_ROWS_ROTATING if rotates else GRANULE_ROWS_FLASH


@lru_cache(maxsize=8)  # asked for three times: to check, and again under the locks
def choose_rule(
    history: tuple[int, ...],
    rules: tuple[Rule, ...],
    rotated: bool,
    stripes: int,
    granule: int | None = None,
    rows: int = 1,
    granule_rows: int = GRANULE_ROWS,
) -> tuple[int, int]:
    """Return (granule, turn) for the last growth of *history* in an array of *stripes* stripes.

    *rows* is the number of chunks that a stripe has on a member. A granule has *granule_rows* of
    them, or fewer in an array of few stripes; *granule*, in stripes, overrides that. The turn is
    the one after which the columns of each kind are most even.
    """
    w = history[-1]
    if granule is None:
        granule, most = 1, -(-granule_rows // rows)
        while granule < most and 8 * w * w * granule <= stripes:
            granule *= 2
    best, chosen = None, 0
    for turn in range(min(w, TRIED_TURNS)):
        mapping = ElasticMapping(history, (*rules, (granule, turn)), rotated)
        found = mapping.members(0, min(stripes, mapping.period, TRIED_CELLS // w))
        counts = (np.bincount(column, minlength=w) for column in found.T)
        spread = sum(int(count.max() - count.min()) for count in counts)
        if best is None or spread < best:
            best, chosen = spread, turn
    return granule, chosen


class Generation:
    """The data columns that were there from the beginning, or that one growth added.

    Their chunks are numbered consecutively, from *start* to *end* - 1. Each of *stripes* stripes
    has *rows* chunks in each of *columns* columns, *each* in all of them; *first_column* is the
    first one among all data columns.

    Those of the beginning and of the plain rule are numbered stripe by stripe, within a stripe row
    by row. Under the turned rule that would put a granule of neighbouring chunks on the same few
    members. So there the chunks of a *region* (as many granules as *members*) are numbered column
    by column, and in a column the granules take turns: neighbouring chunks lie on different
    members, and each member is read in the order of its chunks. The rest behind the last region is
    numbered stripe by stripe.
    """

    __slots__ = (
        "_column_chunks",
        "_region_chunks",
        "_regular",
        "_regular_end",
        "columns",
        "each",
        "end",
        "first_column",
        "granule",
        "members",
        "region",
        "rows",
        "start",
    )

    def __init__(
        self,
        start: int,
        columns: int,
        first_column: int,
        rows: int,
        stripes: int,
        growth: Growth | None = None,
    ) -> None:
        self.start = start
        self.columns = columns
        self.first_column = first_column
        self.rows = rows
        self.each = columns * rows
        self.end = start + stripes * self.each
        self.members = self.granule = self.region = 1
        self._regular = 0  # stripes in whole regions
        if growth is not None and growth.period:
            self.members, self.granule = growth.after, growth.granule
            self.region = growth.after * growth.granule
            self._regular = stripes // self.region * self.region
        self._regular_end = start + self._regular * self.each
        self._column_chunks = self.region * rows
        self._region_chunks = self.region * self.each

    def stripes_of(self, chunks: int) -> int:
        """Return the least number of first stripes that hold the first *chunks* chunks.

        It is such that no later chunk lies in them, unless that one ends the last of them.
        """
        if chunks <= self._regular * self.each:
            return -(-chunks // self._region_chunks) * self.region
        return -(-chunks // self.each)

    def most_chunks(self, end: int) -> int:
        """Return the end of the most chunks before *end* that fill first stripes (`stripes_of`)."""
        stripes = max(0, end - self.start) // self.each
        if stripes < self._regular:
            stripes -= stripes % self.region
        return self.start + stripes * self.each

    @property
    def in_order(self) -> bool:
        """Whether the chunks are numbered stripe by stripe."""
        return not self._regular

    def locate(self, chunk: int) -> tuple[int, int, int]:
        """Return (stripe, row, data column) of the logical *chunk*."""
        number = chunk - self.start
        if chunk >= self._regular_end:
            stripe, number = number // self.each, number % self.each
            return stripe, number // self.columns, self.first_column + number % self.columns
        # Look-ups of grown arrays come here: // and % are twice as fast as divmod.
        first, number = number // self._region_chunks * self.region, number % self._region_chunks
        column = self.first_column
        if self.columns > 1:
            column += number // self._column_chunks
            number %= self._column_chunks
        first += number % self.members * self.granule
        number //= self.members
        if self.rows == 1:
            return first + number, 0, column
        return first + number // self.rows, number % self.rows, column

    def logical(self, stripe: N, row: N, column: N) -> N:
        """Return the logical chunk at *row* of *column* of *stripe*; numbers or arrays."""
        plain = self.start + stripe * self.each + row * self.columns + column
        if not self._regular:
            return plain
        region, within = stripe // self.region, stripe % self.region
        number = (within % self.granule * self.rows + row) * self.members + within // self.granule
        number = self.start + number + column * self._column_chunks + region * self._region_chunks
        if isinstance(stripe, int):
            return number if stripe < self._regular else plain
        return np.where(stripe < self._regular, number, plain)
