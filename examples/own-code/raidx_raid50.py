"""A code and a placement in ten lines each, a policy in twenty: what a package adds to raidx."""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.placements.pattern import Placement


def raid50(width: int) -> Code:
    """Two groups of single parity: a rebuild reads half of the members."""
    if width < 6 or width % 2:
        raise LayoutError("raid50 needs an even number of members, at least six")
    half = width // 2
    first = [(0, column) for column in range(half)]
    second = [(0, column) for column in range(half, width)]
    chains = tuple((group[-1], *group[:-1]) for group in (first, second))
    data = tuple(first[:-1] + second[:-1])
    return Code("raid50", rows=1, columns=width, chains=chains, data=data, tolerance=1)


def declustered(width: int) -> Placement:
    """Single parity over four members in turn: all others share the reads of a rebuild."""
    if width < 5 or any(width % divisor == 0 for divisor in range(2, width)):
        raise LayoutError("declustered needs a prime number of members, at least five")
    data = ((0, 0), (0, 1), (0, 2))
    code = Code("declustered", rows=1, columns=4, chains=(((0, 3), *data),), data=data, tolerance=1)
    steps = range(1, width // 2 + 1)  # with all of them, any two members meet equally often
    starts = [(first, step) for step in steps for first in range(width)]
    pattern = [[(first + step * n) % width for n in range(4)] for first, step in starts]
    return Placement(code, pattern)


def shortest(rmw: Sequence[int], rcw: Sequence[int], waiting: Sequence[int]) -> str:
    """Choose the plan that waits for the shorter queue; if both are alike, the fewer reads.

    *rmw* and *rcw* are the roles from which read-modify-write and reconstruct-write would read,
    *waiting* is the number of operations that wait for each role.
    """

    def cost(reads: Sequence[int]) -> tuple[int, int]:
        return max(waiting[role] for role in reads), len(reads)

    return "rmw" if cost(rmw) <= cost(rcw) else "rcw"
