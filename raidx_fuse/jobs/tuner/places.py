"""Where planned chunks go: the chunk table as it will be, free places, and less used chunks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from raidx_fuse.engine.access_stats import TICKS_A_SECOND, AccessStats
from raidx_fuse.layouts.numbers import MemberChunk, Role, stripe_and_cell
from raidx_fuse.layouts.placements.bundled import NOWHERE, BundleLayout
from raidx_fuse.store.chunk_table import Move

VICTIM_SAMPLE = 64
VICTIM_RATIO = 2.0


class PlannedPlaces:
    """The chunk table of *layout* as it will be after the steps planned so far."""

    def __init__(
        self, layout: BundleLayout, access: AccessStats, pinned: set[int], rng: random.Random
    ) -> None:
        self.layout = layout
        self._access = access
        self._pinned = pinned
        self._random = rng
        self._places: dict[int, tuple[Role, MemberChunk]] = {}
        self._free: dict[Role, list[MemberChunk]] = {}

    def is_touched(self, cell: int) -> bool:
        """Return whether *cell* is part of a planned move or is pinned."""
        return cell in self._places or cell in self._pinned

    def place(self, cell: int) -> tuple[Role, MemberChunk]:
        """Return (role, chunk) of *cell*."""
        known = self._places.get(cell)
        return known or self.layout.place(*stripe_and_cell(cell, self.layout.length))

    def roles(self, cell: int) -> set[Role]:
        """Return the roles that the bundle of *cell* lies on."""
        first = cell - cell % self.layout.length
        return {self.place(first + column)[0] for column in range(self.layout.length)}

    def rate_of(self, cell: int) -> float:
        """Return the accesses a second of *cell*."""
        return float(TICKS_A_SECOND / self._access.intervals(np.array([cell]))[0])

    def take(self, moves: Sequence[Move]) -> None:
        """Record *moves* as planned."""
        for cell, role, chunk in moves:
            self._places[cell] = (role, chunk)
            free = self._free.get(role)
            if free and chunk in free[-2 * len(moves) :]:
                free.remove(chunk)

    def moves(self, cells: list[int], target: Role, rate: float) -> list[tuple[Move, ...]] | None:
        """Return moves of *cells*, each used *rate* times a second, to places in order on *target*.

        To free places, or in exchange with chunks that are used less; None if there are too few.
        """
        if any(target in self.roles(cell) for cell in cells):
            return None
        free = self._free_run(target, len(cells))
        if free is not None:
            return [((cell, target, chunk),) for cell, chunk in zip(cells, free, strict=True)]
        victims = self._victims(cells, target, rate)
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

    def _victims(self, cells: list[int], target: Role, rate: float) -> list[int] | None:
        """Return the least used run of cells on *target* of a sample, for an exchange, or None."""
        index = self.layout.cells_of(target)
        length, source = len(cells), self.place(cells[0])[0]
        if len(index) < length:
            return None
        starts = [
            self._random.randrange(len(index) - length + 1)
            for _ in range(max(8, VICTIM_SAMPLE // length))
        ]
        sample = index[np.array(starts)[:, None] + np.arange(length)]
        held = np.unique(sample[(sample != NOWHERE).all(axis=1)], axis=0)
        best: list[int] | None = None
        best_rate = rate * length / VICTIM_RATIO
        if len(held):
            rates = (TICKS_A_SECOND / self._access.intervals(held)).sum(axis=1)
            for at in np.argsort(rates).tolist():
                run = held[at].tolist()
                if rates[at] > best_rate:
                    break
                if any(self.is_touched(v) or source in self.roles(v) for v in run):
                    continue
                best = run
                break
        return best
