"""Moving volumes to other arrays while they are used."""

from __future__ import annotations

from raidx_fuse.errors import UsageError
from raidx_fuse.pool.pool import Pool


async def start_move(
    pool: Pool, volume_name: str, array_name: str, *, accept_degraded: bool = False
) -> int:
    """Start to move a volume to another array; return the job id, on the array that it leaves."""
    pool.find(volume_name)
    raise UsageError(f"array {array_name} is not ready for moves")


async def start_swap(
    pool: Pool, first_name: str, second_name: str, *, accept_degraded: bool = False
) -> int:
    """Start to let two volumes change places; return the job id, on the array of the first."""
    pool.find(first_name)
    raise UsageError(f"volume {second_name} is not ready for moves")
