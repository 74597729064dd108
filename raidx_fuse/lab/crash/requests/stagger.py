"""Requests one inside the other: writes and flushes that begin while a flush is under way.

A flush covers every write that ended before it began, also if another flush was there first. What
came just too late for that one is the hard part, so there are many flushes here, and they are slow
where the disks are (lab/crash/disks.py).
"""

from __future__ import annotations

import trio

from raidx_fuse.lab.crash.requests.together import Requester, in_sectors

REQUESTS_MAX = 6
APART_S = 0.015  # about as long as a flush of slow disks takes


async def stagger(player: Requester) -> None:
    """Let a flush begin, then writes, each of which is flushed or not, little by little."""
    rng = player.rng
    where = player.place("sectors")
    ranges = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(player.flush)
        for _ in range(rng.randint(2, REQUESTS_MAX)):
            await trio.sleep(rng.expovariate(1 / APART_S))
            place = player.near(where) if rng.random() < 0.5 else player.place("sectors")
            ranges.append(in_sectors(*place))
            nursery.start_soon(write_and_flush, player, *ranges[-1], rng.random() < 0.6)
    await player.observe_met(ranges)


async def write_and_flush(player: Requester, offset: int, length: int, flush: bool) -> None:
    """Write, and *flush* then."""
    await player.write(offset, length)
    if flush:
        await player.flush()
