"""Members join and leave again while writes go on: the campaign's theme for `remove-disk`.

The image is smaller than the first members could hold, so that it never needs what a growth adds.
While members leave, the array is written, closed cleanly and mounted again, or degraded by the loss
of a member that is then replaced. The checked content must not change.
"""

from __future__ import annotations

import trio

from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.themes.growth import (
    GROWTH_LIMIT_S,
    SLOW_BYTES,
    grow,
    growth_of,
    lose,
    remount,
)
from raidx_fuse.layouts.placements.elastic import ElasticLayout

_TURNS = {"remount": remount, "lose": lose}


async def theme_shrink(player: Player) -> None:
    """Grow once or twice, then undo one growth or both."""
    await player.step()
    for _ in range(player.rng.choice((1, 1, 2))):
        await grow(player)
    for _ in range(player.rng.choice((1, 2))):
        await shrink(player)
        await player.step()


async def shrink(player: Player) -> None:
    """Take the members of the last growth out, if it can be undone."""
    await player.jobs_end()
    layout, written = player.array.context.layout, player.array.context.written
    if not isinstance(layout, ElasticLayout) or len(layout.history) < 2:
        return  # the growth was cancelled
    free = layout.generations[-1]
    if not written.none_written(free.start, free.end):
        return  # old copies of a growth with piggyback
    span = player.history.begin("shrink", player.event)
    await player.array.remove_disk(layout.history[-1] - 1)
    turn = player.rng.choice(("", "remount", "lose"))
    steps = player.rng.randint(1, 4)
    started_s = trio.current_time()
    while (job := growth_of(player)) is not None:
        assert trio.current_time() < started_s + GROWTH_LIMIT_S, job.status()
        job.set_window(player.rng.randint(1, 4))
        job.limit(None, SLOW_BYTES if steps else 0)
        if steps:
            steps -= 1
            await player.step()
        elif turn:
            await _TURNS[turn](player, job)
            turn, steps = "", player.rng.randint(0, 2)
        await trio.sleep(player.rng.choice((0.05, 0.5)))
    player.history.end(span, player.event)
