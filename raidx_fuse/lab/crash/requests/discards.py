"""Discards: of whole stripes, of chunks, of any range; and what is written there around that time.

A place that was discarded counts as zero. So the hard case is a first write to a part of it, which
relies on that, and a power cut before or after its old content is gone for good.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import trio

from raidx_fuse.lab.crash.requests.together import Requester, in_sectors

SIZES = ("stripe", "stripe", "stripes", "chunks", "many", "sectors", "bytes")


class Discarding(Requester, Protocol):
    """What discards need of the workload."""

    async def write(self, offset: int, length: int, *, discard: bool = False) -> None:
        """Write or *discard* *length* bytes at *offset*, and note it in the history."""


async def discard_some(player: Discarding) -> None:
    """Discard a range, alone or beside other requests, and perhaps write to it again."""
    rng = player.rng
    where = player.place(rng.choice(SIZES))
    if rng.random() < 0.6:
        await player.write(*where, discard=True)
    else:
        ranges = [in_sectors(*where)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(player.write, discard=True), *ranges[0])
            for _ in range(rng.randint(1, 3)):
                await trio.sleep(rng.choice((0.0, 0.0, 0.002, 0.02)))
                place = player.near(where) if rng.random() < 0.7 else player.place()
                ranges.append(in_sectors(*place))
                discard = rng.random() < 0.3
                nursery.start_soon(partial(player.write, discard=discard), *ranges[-1])
            if rng.random() < 0.4:
                nursery.start_soon(player.flush)
        await player.observe_met(ranges)
    draw = rng.random()
    if draw < 0.2:
        await player.flush()
    if draw < 0.5:
        await player.write(*player.near(where))
    elif draw < 0.9:  # a part of a sector at each end: the rest comes from the place itself
        await player.write(where[0] + rng.randrange(where[1]), rng.randint(1, 3000))
