"""Horizontal codes: parity in columns of its own. Plain striping, replicas and single parity here.

Replicas are chains of two equal cells, all with the one data cell in column 0:

    column   0     1     2
           data  copy  copy      chains {(0,1), (0,0)}, {(0,2), (0,0)}
"""

from __future__ import annotations

from functools import lru_cache

from raidx_fuse.layouts.code import Code


@lru_cache(maxsize=64)
def striping(width: int) -> Code:
    """Return the code of *width* data columns without a chain."""
    return Code("raid0", 1, width, (), tuple((0, c) for c in range(width)), 0)


@lru_cache(maxsize=64)
def replicas(width: int) -> Code:
    """Return the code of one data cell and *width* - 1 copies; any *width* - 1 may be lost."""
    chains = tuple(((0, c), (0, 0)) for c in range(1, width))
    return Code("raid1", 1, width, chains, ((0, 0),), width - 1)


@lru_cache(maxsize=64)
def single_parity(width: int) -> Code:
    """Return the code of *width* - 1 data columns and their XOR in the last column."""
    data = tuple((0, c) for c in range(width - 1))
    return Code("raid4", 1, width, (((0, width - 1), *data),), data, 1)
