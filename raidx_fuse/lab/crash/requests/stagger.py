"""Overlapping requests: writes and flushes that begin while a flush is under way.

A flush covers every write that ended before it began, even if an earlier flush is still running.
Writes that came just too late for the earlier flush are the hard case. So there are many flushes
here; on disks with slow flushes (lab/crash/disks.py) they overlap.
"""

from __future__ import annotations

import trio

from raidx_fuse.lab.crash.requests.together import Requester, in_sectors

REQUESTS_MAX = 6
APART_S = 0.015  # mean distance; about as long as a flush of slow disks takes


async def stagger(player: Requester) -> None:
    """Begin a flush, then one write after the other while it runs; some writes are flushed."""
    rng = player.rng
    where = player.place("sectors")
    ranges: list[tuple[int, int]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(player.flush)
        for _ in range(rng.randint(2, REQUESTS_MAX)):
            await trio.sleep(rng.expovariate(1 / APART_S))
            place = player.near(where) if rng.random() < 0.5 else player.place("sectors")
            ranges.append(in_sectors(*place))
            offset, length = ranges[-1]
            nursery.start_soon(write_and_flush, player, offset, length, rng.random() < 0.6)
    await player.observe_met(ranges)


async def write_and_flush(player: Requester, offset: int, length: int, flush: bool) -> None:
    """Write *length* bytes at *offset*; if *flush*, flush afterwards."""
    await player.write(offset, length)
    if flush:
        await player.flush()
