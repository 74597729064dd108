"""Any member leaves by a restripe onto the others: the campaign's theme for that `remove-disk`.

The image fits on one member less. Sometimes the array has grown before, and an old member leaves;
sometimes the member is lost already. Meanwhile the array is written, closed cleanly and mounted
again, or degraded by the loss of a member that is then replaced; or the removal is cancelled. The
checked content must not change.
"""

from __future__ import annotations

import math
from contextlib import suppress

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK
from raidx_fuse.lab.crash.themes.growth import grow
from raidx_fuse.lab.crash.themes.restripe import live_through
from raidx_fuse.layouts.numbers import Role


async def theme_leave(player: Player) -> None:
    """Grow perhaps, then let one member or two leave, one after the other."""
    await player.step()
    if player.rng.random() < 0.3:
        await grow(player)
    for _ in range(player.rng.choice((1, 1, 2))):
        with suppress(UsageError):  # the layout has no fewer members, or the log is too short
            await leave(player)
        await player.step()


async def leave(player: Player) -> None:
    """Let a member leave by a restripe; random steps go on. Raises UsageError if none can."""
    await player.jobs_end()  # a resync after an earlier cut
    rng, roles, member_set = player.rng, player.roles, player.array.member_set
    width = member_set.config.width
    role = rng.randrange(width)
    if not isinstance(player.array.removal.plan(member_set.config.record(Role(role))), tuple):
        return  # the growth would be undone: that is the theme "shrink"
    turns = ["", "", "remount", "cancel", *(["lose", "lose"] if player.tolerance else [])]
    lost = player.tolerance > 0 and rng.random() < 0.3
    out = len(roles.out)
    if lost:
        turns = ["", "remount"]
        roles.out.append((role, player.event, math.inf))
        await player.array.fail_disk(role)
    first, begin = len(roles.successors), player.event
    for behind in range(role + 1, width):  # it moves up when the removal ends
        roles.successors.append((begin, math.inf, behind, behind - 1))
    span = player.history.begin("leave", begin)
    await player.array.remove_disk(role)
    await live_through(player, turns)
    now = player.event
    player.history.end(span, now)
    for number in range(first, len(roles.successors)):
        _, _, behind, up = roles.successors[number]
        roles.successors[number] = (begin, now, behind, up)
    if player.array.member_set.config.width == width:
        return  # cancelled
    if lost:
        roles.out[out] = (role, roles.out[out][1], now)
    holders = [roles.holder(r, now) for r in range(width)]
    for behind in range(role + 1, width):
        roles.holders.append((now, behind - 1, holders[behind]))
    roles.holders.append((now, width - 1, NO_DISK))
