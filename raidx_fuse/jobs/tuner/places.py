"""Where planned chunks go: the chunk table as it will be, free places, and less used chunks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.access_stats import INTERVAL_MAX, TICKS_A_SECOND, AccessStats
from raidx_fuse.layouts.numbers import MemberChunk, Role, stripe_and_cell
from raidx_fuse.layouts.placements.bundled import NOWHERE, BundleLayout, Cells
from raidx_fuse.store.chunk_table import Move

VICTIM_SAMPLE = 64
VICTIM_RATIO = 2.0
GATHER_RATIO = 1.5  # for chunks that are put together
ROOM_MAX = 65536  # chunks of a member that are looked at for a run to be exchanged


class PlannedPlaces:
    """The chunk table of *layout* as it will be after the steps planned so far.

    *once_rate*: accesses a second to expect of a chunk that was used once; it has no interval.
    """

    def __init__(
        self,
        layout: BundleLayout,
        access: AccessStats,
        pinned: set[int],
        rng: random.Random,
        once_rate: float,
    ) -> None:
        self.layout = layout
        self._access = access
        self._pinned = pinned
        self._random = rng
        self._once_rate = once_rate
        self._places: dict[int, tuple[Role, MemberChunk]] = {}
        self._free: dict[Role, list[MemberChunk]] = {}

    def is_touched(self, cell: int) -> bool:
        """Return whether *cell* is part of a planned move or is pinned."""
        return cell in self._places or cell in self._pinned

    def place(self, cell: int) -> tuple[Role, MemberChunk]:
        """Return (role, chunk) of *cell*."""
        known = self._places.get(cell)
        return known or self.layout.place(*stripe_and_cell(cell, self.layout.length))

    def may_go(self, cell: int, role: Role) -> bool:
        """Return whether no other cell of the bundle of *cell* lies on *role*."""
        first = cell - cell % self.layout.length
        return all(
            other == cell or self.place(other)[0] != role
            for other in range(first, first + self.layout.length)
        )

    def rate_of(self, cell: int) -> float:
        """Return the accesses a second of *cell*."""
        return float(self._rates(np.array([cell]))[0])

    def _rates(self, cells: NDArray[np.int64]) -> NDArray[np.float64]:
        rates = TICKS_A_SECOND / self._access.intervals(cells)
        once = self.layout.interval[cells] == INTERVAL_MAX
        return np.where(once, np.minimum(rates, self._once_rate), rates)

    def take(self, moves: Sequence[Move]) -> None:
        """Record *moves* as planned."""
        for cell, role, chunk in moves:
            self._places[cell] = (role, chunk)
            free = self._free.get(role)
            if free and chunk in free[-2 * len(moves) :]:
                free.remove(chunk)

    def moves(
        self, cells: list[int], target: Role, rate: float, *, together: bool = False
    ) -> list[tuple[Move, ...]] | None:
        """Return moves of *cells*, each used *rate* times a second, to places in order on *target*.

        To free places, or in exchange with chunks that are used less; None if there are too few.
        *together*: what is gained is their order (gather.py), so they stay where heads go now.
        """
        if not all(self.may_go(cell, target) for cell in cells):
            return None
        free = self._free_run(target, len(cells))
        if free is not None:
            return [((cell, target, chunk),) for cell, chunk in zip(cells, free, strict=True)]
        victims = self._victims(cells, target, rate, together=together)
        if victims is None:
            return None
        return [
            ((cell, *self.place(victim)), (victim, *self.place(cell)))
            for cell, victim in zip(cells, victims, strict=True)
        ]

    def _free_run(self, role: Role, length: int) -> list[MemberChunk] | None:
        """Return *length* free chunks of *role*, the lowest that lie together, else None."""
        if role not in self._free:
            self._free[role] = self.layout.free_chunks(role)[::-1].tolist()
        free = self._free[role]
        for end in range(len(free), length - 1, -1):
            run = free[end - length : end][::-1]
            if run[-1] - run[0] == length - 1:
                return run
            if end < len(free) - VICTIM_SAMPLE:
                break
        return None

    def _quiet(self, index: Cells, length: int, cells: list[int]) -> NDArray[np.int64]:
        """Return where the quietest run of *length* in *index* begins that may move, as a list.

        Heads should not have farther to go than now: it lies before the last chunk in use.
        """
        used = np.flatnonzero((index != NOWHERE) & (self.layout.last[index] > 0))
        room = min(int(used[-1]) + 1 if len(used) else 0, ROOM_MAX)
        if room < length:
            return np.zeros(0, np.int64)
        here = index[:room]
        rates = self._rates(here)
        fixed = [*self._places, *self._pinned, *cells]
        rates[(here == NOWHERE) | np.isin(here, fixed)] = np.inf
        sums = np.lib.stride_tricks.sliding_window_view(rates, length).sum(axis=1)
        return np.array([np.argmin(sums)])

    def _victims(
        self, cells: list[int], target: Role, rate: float, *, together: bool
    ) -> list[int] | None:
        """Return the least used run of cells on *target* of a sample, for an exchange, or None."""
        index = self.layout.cells_of(target)
        length, sources = len(cells), [self.place(cell)[0] for cell in cells]
        if len(index) < length:
            return None
        starts: Sequence[int] | NDArray[np.int64] = [
            self._random.randrange(len(index) - length + 1)
            for _ in range(max(8, VICTIM_SAMPLE // length))
        ]
        if together:
            starts = self._quiet(index, length, cells)
        sample = index[np.array(starts)[:, None] + np.arange(length)]
        held = np.unique(sample[(sample != NOWHERE).all(axis=1)], axis=0)
        best: list[int] | None = None
        best_rate = rate * length / (GATHER_RATIO if together else VICTIM_RATIO)
        if len(held):
            rates = self._rates(held).sum(axis=1)
            for at in np.argsort(rates).tolist():
                run = held[at].tolist()
                if rates[at] > best_rate:
                    break
                if any(self.is_touched(v) or v in cells for v in run):
                    continue
                if not all(map(self.may_go, run, sources)):
                    continue
                best = run
                break
        return best
