"""Moves as jobs of the arrays, awaited: the `Mover` of a running pool."""

from __future__ import annotations

from raidx_fuse.errors import RaidxError
from raidx_fuse.pool.move import start_move
from raidx_fuse.pool.pool import Pool


class JobMover:
    """Moves the volumes of *pool*, each as a job of the array that it leaves."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def move(self, volume: str, array: str) -> None:
        """Return when *volume* lies on *array*. Raises RaidxError if it does not come to that."""
        source, found = self._pool.find(volume)
        target = self._pool.array(array)
        if target.free_bytes() < found.size_bytes:
            await target.wiped()  # what has just left the array gives its places back after that
        job = await start_move(self._pool, volume, array)
        result = await source.array.jobs.wait(job)
        if result["state"] != "done":
            error = result.get("error")
            why = f": {error}" if error else ""
            raise RaidxError(f"the move of volume {volume} (job {job}) {result['state']}{why}")
