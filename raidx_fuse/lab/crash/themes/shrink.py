"""Members join and leave again while writes go on: the campaign's theme for `remove-disk`.

The image is smaller than the first members could hold, so that it never needs what a growth adds.
While members leave, the array is written, closed cleanly and mounted again, or degraded by the loss
of a member that is then replaced. The checked content must not change.
"""

from __future__ import annotations

from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.themes.growth import grow, live_through
from raidx_fuse.layouts.placements.elastic import ElasticLayout


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
    layout = player.array.context.layout
    if not isinstance(layout, ElasticLayout) or len(layout.history) < 2:
        return  # the growth was cancelled
    span = player.history.begin("shrink", player.event)
    await player.array.remove_disk(layout.history[-1] - 1)
    await live_through(player, ("", "remount", "lose"))
    player.history.end(span, player.event)
