"""Members that fail or are replaced while writes go on: the campaign's theme for disks."""

from __future__ import annotations

from functools import partial

import trio

from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.jobs.replace import Replace
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.layouts.numbers import Role

SLOW_JOB_BYTES = 8192  # a second: the rebuild of some windows lasts for several steps
REBUILD_LIMIT_S = 600.0


async def theme_disks(player: Player) -> None:
    """Lose a member and rebuild it while writes go on."""
    if player.bundled:  # what is free is for the spare
        await player.array.set("restore.after", "off")
    await player.step()
    role = player.rng.randrange(player.width)
    spare = player.rng.random() < 0.3
    remount = player.rng.random() < 0.4
    fail_first = player.rng.random() < 0.7
    await lose_and_rebuild(player, role, spare=spare, fail_first=fail_first, remount=remount)
    for _ in range(player.rng.randint(1, 2)):
        await player.step()
    await player.write(*player.place())  # the rebuilt log member must hold the flushed record
    await player.flush()


async def theme_replaces(player: Player) -> None:
    """Copy members that are in use to other disks while writes go on, one after the other."""
    if player.rng.random() < 0.7:
        await player.fill()
    for _ in range(player.rng.randint(1, 2)):
        await player.step()
        await replace_in_use(player, player.rng.randrange(player.width))
    await player.write(*player.place())
    await player.flush()


async def lose_and_rebuild(
    player: Player,
    role: int,
    *,
    spare: bool,
    fail_first: bool,
    remount: bool = False,
    look: bool = False,
) -> None:
    """Give *role* another disk: a hot *spare* that waits, or a replacement.

    *fail_first*: the member fails before its replacement comes. *remount*: the array is mounted
    again between the two, so that the log must do without the role from the start. *look*: all is
    read when the member has failed.
    """
    if not spare and not fail_first:
        await replace_in_use(player, role)
        return
    disk = await join_spare(player, role) if spare else None
    out = player.roles.take_out(role, player.event)
    if disk is not None or fail_first:
        with player.doing("fail"):
            await player.unless_data_would_be_lost(partial(player.array.fail_disk, role))
        if look:
            await player.compare()
        if disk is None:
            for _ in range(player.rng.randint(0, 2)):
                await player.step()
            if remount:
                await player.remount()
    begin = player.event
    with player.doing("rebuild"):
        if disk is None:
            disk = player.new_disk()
            new = player.disks[disk]
            await player.unless_data_would_be_lost(partial(player.array.replace_disk, role, new))
        await rebuild_under_writes(player, role)
    player.recording.is_whole(out, disk, begin)


async def replace_in_use(player: Player, role: int) -> None:
    """Copy the member in *role* to another disk while it is used; its role is never lost."""
    present = player.roles.holder(role, player.event)
    # As large as the present one: a raidx array rebuilds the role onto a larger one instead.
    disk = player.new_disk(player.disks[present].size_bytes if player.bundled else 0)
    with player.doing("replace"):
        await player.array.replace_disk(role, player.disks[disk])
        if player.rng.random() < 0.3:
            await player.step()
            await player.remount()
        await rebuild_under_writes(player, role)
    player.roles.holders.append((player.event, role, disk))


async def join_spare(player: Player, role: int) -> int:
    """Add a hot spare; return its disk number.

    In a raidx array it may have no more room than what *role* holds needs.
    """
    size = 0
    if (rebundle := player.array.rebundle) is not None and player.rng.random() < 0.6:
        size = rebundle.needed_bytes(Role(role))
    disk = player.new_disk(size)
    with player.doing("add spare"):
        await player.array.add_spare(player.disks[disk])
    return disk


async def rebuild_under_writes(player: Player, role: int) -> None:
    """Wait until *role* is rebuilt; the rebuild is slow and some steps happen meanwhile."""
    steps = player.rng.randint(0, 2)
    with trio.fail_after(REBUILD_LIMIT_S):
        while True:
            for job in player.array.jobs.running():
                if isinstance(job, Rebuild | Replace) and steps:
                    job.limit(None, SLOW_JOB_BYTES)
                    job.set_window(2)  # several windows, not one
            record = player.array.member_set.config.record(Role(role))
            if record.state == "active" and not player.array.jobs.running():
                return
            if steps:
                steps -= 1
                await player.step()
            await trio.sleep(0.3)
