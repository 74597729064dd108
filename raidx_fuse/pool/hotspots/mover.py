"""Moves as jobs of the arrays, awaited: the `Mover` of a running pool."""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.errors import RaidxError
from raidx_fuse.pool.move import plan_exchange, start, start_move
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume_table import ArrayVolumes


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
        await _ended(source, await start_move(self._pool, volume, array), f"volume {volume}")

    async def exchange(self, moves: Sequence[tuple[str, str]]) -> None:
        """Return when volumes lie on arrays, *moves*, between which they have changed places.

        Raises RaidxError as `move`.
        """
        for _, array in moves:
            await self._pool.array(array).wiped()
        planned = plan_exchange(self._pool, moves)
        names = ", ".join(volume for volume, _ in moves)
        await _ended(planned.legs[0].source, await start(self._pool, planned), f"volumes {names}")


async def _ended(source: ArrayVolumes, job: int, what: str) -> None:
    result = await source.array.jobs.wait(job)
    if result["state"] != "done":
        error = result.get("error")
        why = f": {error}" if error else ""
        raise RaidxError(f"the move of {what} (job {job}) {result['state']}{why}")
