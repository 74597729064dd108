"""Greedy allocation of RAIDX bundles on members of different sizes (the raidx paper, section II).

A bundle is L chunks on L different members. Each bundle takes one chunk from each of the L members
with the most unassigned chunks, in falling order; of equal members the lowest index comes first.
Members of 7, 4, 5 and 4 chunks, L = 3 (Fig. 1):

    left      7 4 5 4   6 3 4 4   5 3 3 3   4 2 2 3   3 1 2 2   2 1 1 1   1 0 0 1
    bundle      0 2 1     0 2 3     0 1 2     0 3 1     0 2 3     0 1 2    two members left: end

>>> allocate([7, 4, 5, 4], 3).tolist()
[[0, 2, 1], [0, 2, 3], [0, 1, 2], [0, 3, 1], [0, 2, 3], [0, 1, 2]]
>>> maximum([7, 4, 5, 4], 3), maximum([7, 4, 5, 4], 2)
(6, 10)

The greedy allocation reaches the maximum: the largest B with sum(min(c_i, B)) >= L * B, because a
member gives at most one chunk to each of B bundles. For arrays of millions of chunks, `allocate`
uses that the pattern of bundles is periodic as long as the order of the members repeats: one period
is computed and copied.

Bundles of one chunk are numbered in turn instead: the first chunk of each member, then the second
of each that has one, and so on. The greedy allocation would put the whole beginning of the image on
the largest member.

>>> in_turn([3, 1, 2], limit=5).reshape(-1).tolist()
[0, 1, 2, 0, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from raidx_fuse.layouts.codes.code import LayoutError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Table: TypeAlias = "NDArray[np.int32]"

BLOCK_CELLS = 1 << 18  # scanned at a time, to bound temporary memory


def check_bundles(counts: Sequence[int], length: int) -> None:
    """Raise LayoutError unless bundles of *length* chunks are possible on members of *counts*."""
    if length < 1:
        raise LayoutError(f"a bundle of {length} chunks does not exist; the shortest has 1")
    if length > len(counts):
        raise LayoutError(
            f"bundles of {length} chunks need {length} members, {len(counts)} are given"
        )
    if any(count < 0 for count in counts):
        raise LayoutError("a member cannot have fewer than 0 chunks")


def maximum(counts: Sequence[int], length: int) -> int:
    """Return the largest number of bundles of *length* that members of *counts* chunks allow."""
    check_bundles(counts, length)
    low, high = 0, sum(counts) // length
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(count, middle) for count in counts) >= length * middle:
            low = middle
        else:
            high = middle - 1
    return low


def allocate(
    counts: Sequence[int], length: int, *, spare: int = 0, limit: int | None = None
) -> Table:
    """Return the members of each bundle by the greedy allocation, shape (bundles, *length*).

    *counts* are the chunks of each member; *spare* chunks of each member are withheld for moves. At
    most the first *limit* bundles, in the memory that these take.
    """
    check_bundles(counts, length)
    left = [max(0, count - spare) for count in counts]
    parts: list[Table] = []
    made = 0
    while limit is None or made < limit:
        before = tuple(left)
        period: list[tuple[int, ...]] = []
        times = 0
        # If k members take turns at j places of each bundle, their order repeats within k steps.
        while not times and len(period) < len(counts):
            bundle = _next_bundle(left, length)
            if bundle is None:
                parts.append(_table(period, length))
                return np.concatenate(parts)[:limit]
            period.append(bundle)
            times = _repeats(before, left)
        if limit is not None:
            times = min(times, (limit - made) // max(1, len(period)))
        parts.append(np.tile(_table(period, length), (1 + times, 1)))
        made += len(parts[-1])
        for i, count in enumerate(before):
            left[i] -= times * (count - left[i])
    return np.concatenate([_table([], length), *parts])[:limit]


def in_turn(counts: Sequence[int], *, spare: int = 0, limit: int | None = None) -> Table:
    """Return the members of bundles of one chunk, numbered in turn; arguments as for `allocate`."""
    left = [max(0, count - spare) for count in counts]
    parts: list[Table] = []
    made = level = 0
    for until in sorted({count for count in left if count}):
        members = _table([(i,) for i, count in enumerate(left) if count > level], 1)
        rows = until - level
        if limit is not None:
            rows = min(rows, -(-(limit - made) // len(members)))
        parts.append(np.tile(members, (rows, 1)))
        made += len(parts[-1])
        level = until
        if limit is not None and made >= limit:
            break
    return np.concatenate([_table([], 1), *parts])[:limit]


def rotated(bundles: Table, first: int = 0) -> NDArray[np.uint8]:
    """Return *bundles* as bytes, bundle s rotated by s columns; they begin with *first*."""
    length = bundles.shape[1]
    table = bundles.astype(np.uint8)
    for start in range(length):
        if shift := (first + start) % length:
            table[start::length] = np.roll(bundles[start::length], shift, axis=1)
    return np.ascontiguousarray(table)


def rising(disk: NDArray[np.uint8], width: int) -> NDArray[np.uint64]:
    """Return the chunk numbers of cells with the roles *disk*: each role gives 0, 1, 2, ..."""
    offset = np.zeros(len(disk), np.uint64)
    given = [0] * width
    for start in range(0, len(disk), BLOCK_CELLS):  # bounds the temporary arrays
        block = disk[start : start + BLOCK_CELLS]
        for role in range(width):
            places = np.flatnonzero(block == role)
            end = given[role] + len(places)
            offset[start + places] = np.arange(given[role], end, dtype=np.uint64)
            given[role] = end
    return offset


def _next_bundle(left: list[int], length: int) -> tuple[int, ...] | None:
    """Take one chunk from the *length* members with the most left; None when there are too few."""
    order = sorted(range(len(left)), key=lambda i: -left[i])[:length]  # stable: ties by index
    if left[order[-1]] < 1:
        return None
    for i in order:
        left[i] -= 1
    return tuple(order)


def _table(bundles: list[tuple[int, ...]], length: int) -> Table:
    return np.array(bundles, dtype=np.int32).reshape(-1, length)


def _repeats(before: tuple[int, ...], after: list[int]) -> int:
    """Return how often the period from *before* to *after* can be repeated, 0 if unknown.

    *before* and *after* are the unassigned chunks of each member. Two members that gave equally
    many chunks keep their difference, so their order repeats. Two other members keep their order as
    long as their difference exceeds the most chunks that one member gives in a period.
    """
    fell = [b - a for b, a in zip(before, after, strict=True)]
    most = max(fell)
    order = sorted(range(len(before)), key=lambda i: -before[i])
    times = min((after[i] // fell[i] for i in order if fell[i]), default=0)
    for upper, lower in pairwise(order):
        closing = fell[upper] - fell[lower]
        gap = after[upper] - after[lower]
        if closing == 0:
            continue
        if gap <= most:
            return 0
        if closing > 0:
            times = min(times, (gap - most) // closing)
    return max(0, times - 1)
