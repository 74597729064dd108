"""Was the last tuning right? Moves after which a load is slower than before are undone.

A *period* lasts from one idle time to the next; short ones are taken together. Loads are *alike* if
requests have about the same size, the same fraction of writes and the same fraction in order. When
a load comes again and is slower than last time, the moves since then are undone, if it used most of
the moved chunks: a load at other places says nothing about them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raidx_fuse.engine.access_stats import AccessStats
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.store.chunk_table import Move

REQUESTS_MIN = 100  # a mean of fewer says little
SLOWER = 1.02  # times the response time that the same load had
USED_SHARE = 0.5  # of the moved chunks: so many must be in use for a verdict
SIZE_RATIO = 1.25
SHARE_STEP = 0.1
LOADS_MAX = 8
UNDO_MAX = 8192  # moves


@dataclass(frozen=True, slots=True)
class _Load:
    """A load in one period; *moves*: how many steps the tuner had done before."""

    size_bytes: float
    write_share: float
    order_share: float
    response_s: float
    moves: int

    def is_like(self, other: _Load) -> bool:
        larger = max(self.size_bytes, other.size_bytes)
        return (
            larger <= SIZE_RATIO * min(self.size_bytes, other.size_bytes)
            and abs(self.write_share - other.write_share) <= SHARE_STEP
            and abs(self.order_share - other.order_share) <= SHARE_STEP
        )


class Verdicts:
    """Judges the steps of the tuner of *context*; *access* are the array's access statistics."""

    def __init__(self, context: ArrayContext, access: AccessStats) -> None:
        self._context = context
        self._access = access
        self._loads: list[_Load] = []  # the newest last
        self._back: deque[tuple[Move, ...]] = deque(maxlen=UNDO_MAX)  # how to undo each step
        self._steps = 0  # in all; the last of them are in *_back*
        self._began = self._latest = self._totals()
        self._began_ticks = self._latest_ticks = 0  # the table is not loaded yet

    def _totals(self) -> tuple[float, ...]:
        latency, counters = self._context.latency, self._context.counters
        size = counters.read_bytes + counters.write_bytes
        access = self._access
        return (
            *(latency.count, latency.total_s, size, counters.reads + counters.writes),
            *(counters.writes, access.in_order, access.arrivals),
        )

    def note(self, back: tuple[Move, ...]) -> None:
        """Note a step that was done; *back* are the moves that undo it."""
        self._back.append(back)
        self._steps += 1

    def judge(self) -> list[tuple[Move, ...]]:
        """Judge the load that has ended; return the moves to be made, in order, to undo steps."""
        self._access.digest()
        totals = self._totals()
        if totals[3] - self._latest[3] >= REQUESTS_MIN:  # by itself, without what came before
            self._began, self._began_ticks = self._latest, self._latest_ticks
        self._latest, self._latest_ticks = totals, self._access.ticks()
        timed, total_s, size, requests, writes, in_order, accesses = (
            now - before for now, before in zip(totals, self._began, strict=True)
        )
        if min(timed, requests, accesses) < REQUESTS_MIN:
            return []
        since = self._began_ticks
        self._began, self._began_ticks = self._latest, self._latest_ticks
        load = _Load(
            size / requests, writes / requests, in_order / accesses, total_s / timed, self._steps
        )
        known = next((old for old in reversed(self._loads) if old.is_like(load)), None)
        undo: list[tuple[Move, ...]] = []
        if known is not None:
            done = min(self._steps - known.moves, len(self._back))
            last = [self._back[-1 - i] for i in range(done)]
            if load.response_s > SLOWER * known.response_s and self._are_used(last, since):
                undo = last
                for _ in range(done):
                    self._back.pop()
                self._steps -= done
                load = known
            self._loads.remove(known)
        self._loads = [*self._loads[1 - LOADS_MAX :], load]
        return undo

    def _are_used(self, steps: Sequence[tuple[Move, ...]], since_ticks: int) -> bool:
        """Return whether enough of the chunks that *steps* moved were used since then."""
        if not steps:
            return False
        cells = np.array([step[0][0] for step in steps])
        used = self._access.last_use(cells) > since_ticks
        return bool(used.mean() >= USED_SHARE)
