"""Requests that arrive in one batch, and run as the session loop runs them (held_handlers.py).

Most are small writes, which share log records (group commit). Some go to the same range, some are
flushed before they are answered. A few are large writes, flushes or checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from raidx_fuse.array.array import Array
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.requests.held_handlers import Handler, through_door
from raidx_fuse.members.base import SECTOR_BYTES

TOGETHER_MAX = 8


class Requester(Protocol):
    """What a batch of requests needs of the player."""

    rng: random.Random
    sectors: int

    @property
    def array(self) -> Array:
        """The running array."""
        ...

    async def flush(self) -> None:
        """Flush the array, and note it in the history."""

    async def write(self, offset: int, length: int) -> None:
        """Write *length* bytes at *offset*, and note it in the history."""

    async def observe_met(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read the sectors where *ranges*, written concurrently, overlap: which write was last?"""

    def place(self, kind: str | None = None) -> tuple[int, int]:
        """Draw (offset, length) in bytes: all sizes and alignments, mostly small."""
        ...

    def near(self, where: tuple[int, int]) -> tuple[int, int]:
        """Draw a range that overlaps *where* or is adjacent to it."""
        ...


async def come_together(player: Requester) -> None:
    """Run one random batch of requests of *player*."""
    rng = player.rng
    if rng.random() < 0.5:  # a log without free space holds no handler, and this log is small
        await player.array.context.journal.drain()
    where = small(player)
    ranges: list[tuple[int, int]] = []
    handlers: list[Handler] = []
    for _ in range(rng.randint(2, TOGETHER_MAX)):
        draw = rng.random()
        if draw < 0.05:
            handlers.append(player.flush())
            continue
        if draw < 0.1:
            handlers.append(player.array.context.journal.place())
            continue
        if ranges and draw < 0.25:  # an earlier range again
            offset, length = rng.choice(ranges)
        elif draw < 0.33:
            offset, length = player.place(rng.choice(("stripe", "chunks", "page")))
        elif draw < 0.6:
            offset, length = player.near(where)
        else:
            offset, length = small(player)
        ranges.append(in_sectors(offset, length))
        handlers.append(_write(player, *ranges[-1], flush=rng.random() < 0.25))
    await through_door(handlers, player.array.context.journal.deferral)
    await player.observe_met(ranges)


async def _write(player: Requester, offset: int, length: int, *, flush: bool) -> None:
    await player.write(offset, length)
    if flush:
        await player.flush()


def small(player: Requester) -> tuple[int, int]:
    """Draw (offset, length) in bytes of a few sectors inside one chunk."""
    sectors = CHUNK_BYTES // SECTOR_BYTES
    count = player.rng.randint(1, 3)
    first = player.rng.randrange(player.sectors // sectors) * sectors
    first += player.rng.randint(0, sectors - count)
    return first * SECTOR_BYTES, count * SECTOR_BYTES


def in_sectors(offset: int, length: int) -> tuple[int, int]:
    """Return the range extended to whole sectors: concurrent writes never share a sector's half."""
    low = offset // SECTOR_BYTES * SECTOR_BYTES
    return low, -(-(offset + length) // SECTOR_BYTES) * SECTOR_BYTES - low
