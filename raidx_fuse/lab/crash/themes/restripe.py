"""A restripe (md's reshape) while writes go on: a theme for layouts that can be restriped.

The array gets another layout, more members, or both. Meanwhile it is

- written, flushed and left idle;
- closed cleanly and mounted again, or
- degraded by the loss of a member, which is then replaced; or the restripe is cancelled.

The checked content must not change.
"""

from __future__ import annotations

import math
from contextlib import suppress

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.crash.durable import durable_since
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK
from raidx_fuse.lab.crash.themes.growth import grow, live_through, write_beyond
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.registry import LAYOUTS

# layout -> (new layout, number of members that join)
TARGETS: dict[str, tuple[tuple[str, int], ...]] = {
    "raid0": (("raid0", 1), ("raid0", 2), ("raid4", 1), ("raid5", 1), ("raid5", 2)),
    "raid1": (("raid5", 1), ("raid1", 1), ("raid4", 1)),
    "raid4": (("raid5", 0), ("raid4", 1), ("raid5", 1), ("raid0", 0), ("raid4", 2)),
    "raid5": (("raid4", 0), ("raid5", 1), ("raid5", 2), ("raid0", 0), ("raid1", 1), ("rdp", 2)),
    "rdp": (("evenodd", 0), ("rdp", 1), ("raid5", 0)),
    "evenodd": (("rdp", 0), ("evenodd", 1)),
    "pcode": (("upc", 0), ("raid5", 1)),
    "upc": (("pcode", 0), ("raid5", 1)),
}


def restripes_of(layout: str) -> tuple[tuple[str, int], ...]:
    """Return the targets of *layout* in workloads: (new layout, number of members that join)."""
    return TARGETS.get(layout, ())


async def theme_restripe(player: Player) -> None:
    """Restripe while writes go on, and write afterwards."""
    await player.step()
    targets = list(restripes_of(player.cell.layout))
    player.rng.shuffle(targets)
    if player.at_changes:  # more losses tolerated at the end: what was logged before has few copies
        width = player.array.member_set.config.width
        targets.sort(key=lambda target: -LAYOUTS[target[0]].tolerance(width + target[1]))
    for name, added in targets:
        with suppress(UsageError):  # too little space, or the small members' log is too short
            await restripe(player, name, added)
            break
    for _ in range(player.rng.randint(1, 4)):
        await player.step()


async def restripe(player: Player, name: str, added: int) -> None:
    """Restripe the array to layout *name* with *added* more members; random steps go on.

    Raises UsageError if the array cannot be restriped so.
    """
    await player.jobs_end()  # a resync after an earlier cut
    width = player.array.member_set.config.width
    restripe_operation = player.array.restripe_operation
    restripe_operation.moving(restripe_operation.target(added, name, {}))
    disks = [player.new_disk() for _ in range(added)]
    roles, begin = player.roles, player.event
    for number, disk in enumerate(disks):
        roles.holders.append((begin, width + number, disk))
    before, then = roles.tolerance(begin), LAYOUTS[name].tolerance(width + added)
    roles.limits.append((begin, min(before, then)))
    with player.doing("restripe"):
        await player.array.restripe([player.disks[disk] for disk in disks], name, {})
        turns = ["", "", "remount", "cancel"]
        if min(before, then):
            turns += ["lose", "lose"]
        await live_through(player, turns)
    config = player.array.member_set.config
    if (config.layout, config.width) == (name, width + added):
        shape = name, width + added
        since = durable_since(
            *(player.record, begin),
            lambda c: (c.layout, c.width) == shape and "restripe" not in c.jobs,
        )
        roles.limits.append((since, then))
    else:  # cancelled
        roles.limits.append((player.event, before))
    await write_beyond(player)


async def theme_leave(player: Player) -> None:
    """Grow perhaps, then let one member or two leave, one after the other.

    The image fits on one member less. Sometimes the array has grown before, and an old member
    leaves; sometimes the member is lost already. Meanwhile the array is written, closed cleanly and
    mounted again, or degraded by the loss of a member that is then replaced; or the removal is
    cancelled. The checked content must not change.
    """
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
    out = roles.take_out(role, player.event) if lost else None
    if lost:
        turns = ["", "remount"]
        await player.array.fail_disk(role)
    first, begin = len(roles.successors), player.event
    for behind in range(role + 1, width):  # it moves up when the removal ends
        roles.successors.append((begin, math.inf, behind, behind - 1))
    with player.doing("leave"):
        await player.array.remove_disk(role)
        await live_through(player, turns)
    now = player.event
    for number in range(first, len(roles.successors)):
        _, _, behind, up = roles.successors[number]
        roles.successors[number] = (begin, now, behind, up)
    if player.array.member_set.config.width == width:
        return  # cancelled
    if out is not None:
        roles.take_in(out, now)
    holders = [roles.holder(r, now) for r in range(width)]
    for behind in range(role + 1, width):
        roles.holders.append((now, behind - 1, holders[behind]))
    roles.holders.append((now, width - 1, NO_DISK))
