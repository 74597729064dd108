"""Workloads on the two arrays of a pool, as the campaign crashes them (crashing.py)."""

from __future__ import annotations

from collections.abc import Mapping

from raidx_fuse.lab.crash.pool.judge import PoolLeft
from raidx_fuse.lab.crash.pool.player import record_pool
from raidx_fuse.lab.crash.pool.recording import PoolRecording
from raidx_fuse.lab.crash.state import Cell
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

    def left(
        self,
        recorded: PoolRecording,
        moment: int,
        images: Mapping[int, Image],
        _lost: tuple[int, ...],
    ) -> PoolLeft:
        """Return what a cut at *moment* left: *images*."""
        return PoolLeft(recorded, moment, images)
