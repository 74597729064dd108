"""Workloads on the two arrays of a pool, as the campaign crashes them (crashing.py)."""

from __future__ import annotations

from collections.abc import Mapping

from raidx_fuse.lab.crash.pool.judge import PoolLeft
from raidx_fuse.lab.crash.pool.player import record_pool
from raidx_fuse.lab.crash.pool.recording import PoolRecording
from raidx_fuse.lab.crash.state import Cell, Cut
from raidx_fuse.members.simulated.sparse import Image

POOL = "pool"
"""The name of the theme."""

STATES_MAX = 24  # of one workload


class PoolWorkloads:
    """Workloads whose volumes move between arrays: a `Kind` (crashing.py)."""

    states_max = STATES_MAX

    def run(self, cell: Cell, seed: int) -> PoolRecording:
        """Run workload *seed* on *cell*. Raises what goes wrong."""
        return record_pool(cell, seed)

    def left(self, recorded: PoolRecording, cut: Cut, images: Mapping[int, Image]) -> PoolLeft:
        """Return what *cut* left: *images*."""
        return PoolLeft(recorded, cut.moment, images)
