"""A restripe (md's reshape) while writes go on: a theme for layouts that can be restriped.

The array gets another layout, more members, or both. Meanwhile it is

- written, flushed and left idle;
- closed cleanly and mounted again, or
- degraded by the loss of a member, which is then replaced; or the restripe is cancelled.

The checked content must not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import trio

from raidx_fuse.errors import UsageError
from raidx_fuse.jobs.restripe.job import Restripe
from raidx_fuse.lab.crash.durable import shaped_since
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK
from raidx_fuse.lab.crash.themes.growth import grow, lose, write_beyond
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.registry import LAYOUTS

SLOW_BYTES = 16384  # a second: a restripe lasts for several steps
LIMIT_S = 900.0
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
    span = player.history.begin("restripe", player.event)
    await player.array.restripe([player.disks[disk] for disk in disks], name, {})
    turns = ["", "", "remount", "cancel"]
    if min(before, then):
        turns += ["lose", "lose"]
    await live_through(player, turns)
    player.history.end(span, player.event)
    config = player.array.member_set.config
    if (config.layout, config.width) == (name, width + added):
        since = shaped_since(player.record, name, width + added, begin)
        roles.limits.append((since, then))
    else:  # cancelled
        roles.limits.append((player.event, before))
    await write_beyond(player)


async def live_through(player: Player, turns: Sequence[str]) -> None:
    """Do random steps, and one of *turns* of events, until the restripe under way has ended."""
    turn = player.rng.choice(turns)
    steps = player.rng.randint(1, 4)
    started_s = trio.current_time()
    while (job := _restripe_of(player)) is not None:
        # A remount opens and closes nurseries, so it cannot run inside a cancel scope.
        assert trio.current_time() < started_s + LIMIT_S, job.status()
        job.set_window(player.rng.choice((1, 2, 4, 8, 16)) * CHUNK_BYTES)
        job.limit(None, SLOW_BYTES if steps else 0)
        if steps:
            steps -= 1
            await player.step()
        elif turn:
            if turn == "cancel":
                job.cancel()
            elif turn == "remount":
                await player.remount()
            else:
                job.pause()  # until roles have other numbers
                await lose(player, job)
                job.resume()
            turn, steps = "", player.rng.randint(0, 2)
        await trio.sleep(player.rng.choice((0.05, 0.5)))


def _restripe_of(player: Player) -> Restripe | None:
    running = player.array.jobs.running()
    return next((job for job in running if isinstance(job, Restripe)), None)


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
