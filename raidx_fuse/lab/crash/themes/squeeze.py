"""A full log: large partial writes to the same stripes, more than the ring has space for.

Checkpoints are slow: another task holds the checkpoint's lock, and the disks flush slowly. A log
that reused its space too early would overwrite records that recovery still needs.
"""

from __future__ import annotations

import trio

from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.parts import in_sectors
from raidx_fuse.lab.crash.player import Player

WRITES_MAX = 10
HELD_UP_S = 0.1
APART_S = 0.01


async def theme_squeeze(player: Player) -> None:
    """Fill the log several times, with writes to a few stripes each time."""
    rng = player.rng
    if rng.random() < 0.7:  # a write to unwritten chunks would log pages of the written map, too
        await player.fill()
    for _ in range(rng.randint(2, 4)):
        stripe = rng.randrange(player.stripes)
        ranges: list[tuple[int, int]] = []
        async with trio.open_nursery() as nursery:
            if rng.random() < 0.6:
                nursery.start_soon(_hold_up_placements, player)
            for _ in range(rng.randint(3, WRITES_MAX)):
                ranges.append(_large_part(player, stripe))
                offset, length = ranges[-1]
                nursery.start_soon(player.write_and_flush, offset, length, rng.random() < 0.3)
                await trio.sleep(rng.expovariate(1 / APART_S))
        await player.observe_met(ranges)
        if rng.random() < 0.3:
            await player.step()


async def _hold_up_placements(player: Player) -> None:
    async with player.array.context.journal.placing:
        await trio.sleep(player.rng.expovariate(1 / HELD_UP_S))


def _large_part(player: Player, stripe: int) -> tuple[int, int]:
    """Draw a range in or near *stripe* of one chunk or more, but less than a stripe."""
    rng = player.rng
    end = player.sectors * 512
    length = rng.randint(1, max(1, player.stripe_bytes // CHUNK_BYTES - 1)) * CHUNK_BYTES
    offset = stripe * player.stripe_bytes + rng.randrange(-length, player.stripe_bytes)
    offset = max(0, min(offset, end - length))
    return in_sectors(offset, length)
