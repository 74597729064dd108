"""A growth by the elastic mapping stripe by stripe, for people to follow (mcpod paper, Fig. 1).

Data cells are compared by their logical chunk, which a growth never changes, parity cells by their
chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe, cell_range
from raidx_fuse.layouts.placements.layout import Layout

Place = tuple[Role, MemberChunk]


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """What a growth does to *stripe*: cells as numbered after it, with their places.

    *moved*: (cell, place before, place after); *stays*, *new*: (cell, place). New cells are
    unwritten, so they count as zero.
    """

    stripe: Stripe
    moved: tuple[tuple[CellIndex, Place, Place], ...]
    stays: tuple[tuple[CellIndex, Place], ...]
    new: tuple[tuple[CellIndex, Place], ...]


def growth_step(before: Layout, after: Layout, stripe: Stripe) -> GrowthStep:
    """Return what the growth from *before* to *after* does to *stripe*."""
    old: dict[CellIndex, Place] = {}
    for cell in cell_range(0, len(before.code.cells)):
        if cell < before.code.data_count:
            found, number = after.locate(before.logical(stripe, cell))
            assert found == stripe, "a growth leaves every chunk in its stripe"
        else:
            number = CellIndex(after.code.data_count + cell - before.code.data_count)
        old[number] = before.place(stripe, cell)
    moved, stays, new = [], [], []
    for cell in cell_range(0, len(after.code.cells)):
        place = after.place(stripe, cell)
        if cell not in old:
            new.append((cell, place))
        elif old[cell] == place:
            stays.append((cell, place))
        else:
            moved.append((cell, old[cell], place))
    return GrowthStep(stripe, tuple(moved), tuple(stays), tuple(new))


def runs(places: Iterable[Place]) -> int:
    """Return how many I/Os access *places* if neighbours on a member share one (paper, 3.2).

    >>> runs([(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)])
    3
    """
    known = set(places)
    return sum((role, chunk - 1) not in known for role, chunk in known)
