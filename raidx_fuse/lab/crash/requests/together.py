"""Requests that come together, and are run as the door runs them (held_handlers.py).

Mostly small writes, which share records of the log; some to the same place, some that flush before
they are answered; now and then a large one, a flush or a placement between them.
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
    """The player, as far as requests that come together need it."""

    rng: random.Random
    sectors: int

    @property
    def array(self) -> Array:
        """The array that runs."""

    async def flush(self) -> None:
        """Flush, and note it."""

    async def write(self, offset: int, length: int) -> None:
        """Write *length* bytes at *offset*, and note it."""

    async def observe_met(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read where writes at once, which are over now, met: one of them came last."""

    def place(self, kind: str | None = None) -> tuple[int, int]:
        """Draw (offset, length) in bytes: all sizes and alignments, mostly small."""

    def near(self, where: tuple[int, int]) -> tuple[int, int]:
        """Draw a range that overlaps *where*, or lies right beside it."""


async def come_together(player: Requester) -> None:
    """Let some requests of *player* come together."""
    rng = player.rng
    if rng.random() < 0.5:  # the log is small here, and without room nothing is held
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
        if ranges and draw < 0.25:  # the same once more
            offset, length = rng.choice(ranges)
        elif draw < 0.33:
            offset, length = player.place(rng.choice(("stripe", "chunks", "page")))
        elif draw < 0.6:
            offset, length = player.near(where)
        else:
            offset, length = small(player)
        ranges.append(in_sectors(offset, length))
        handlers.append(_write(player, *ranges[-1], flush=rng.random() < 0.25))
    await through_door(handlers)
    await player.observe_met(ranges)


async def _write(player: Requester, offset: int, length: int, *, flush: bool) -> None:
    await player.write(offset, length)
    if flush:
        await player.flush()


def small(player: Requester) -> tuple[int, int]:
    """Draw some sectors inside one chunk."""
    sectors = CHUNK_BYTES // SECTOR_BYTES
    count = player.rng.randint(1, 3)
    first = player.rng.randrange(player.sectors // sectors) * sectors
    first += player.rng.randint(0, sectors - count)
    return first * SECTOR_BYTES, count * SECTOR_BYTES


def in_sectors(offset: int, length: int) -> tuple[int, int]:
    """Return whole sectors: two writes at once never share half of one."""
    low = offset // SECTOR_BYTES * SECTOR_BYTES
    return low, -(-(offset + length) // SECTOR_BYTES) * SECTOR_BYTES - low
