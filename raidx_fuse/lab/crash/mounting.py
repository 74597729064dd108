"""The arrays of a workload, mounted as the daemon mounts them: one alone, or several as a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.members.base import Member
from raidx_fuse.pool.move import MoveVolumes, open_pool
from raidx_fuse.pool.pool import Pool, check_names
from raidx_fuse.pool.volume_table import open_volumes


@asynccontextmanager
async def mounted(arrays: Sequence[Sequence[Member]], **options: Any) -> AsyncIterator[Pool]:
    """Mount *arrays* as one pool; unmount it cleanly. *options* are those of `open_array`."""
    async with AsyncExitStack() as stack:
        opened = []
        for members in arrays:
            array: Array = await stack.enter_async_context(open_array(members, **options))
            opened.append(await stack.enter_async_context(open_volumes(array)))
        pool = await stack.enter_async_context(open_pool(opened))
        check_names(pool.arrays)
        yield pool


def moves_of(pool: Pool) -> list[MoveVolumes]:
    """Return the running moves and swaps."""
    jobs = [job for volumes in pool.arrays for job in volumes.array.jobs.running()]
    return [job for job in jobs if isinstance(job, MoveVolumes)]
