"""Another copy of a raid1 array while writes go on: the campaign's theme for whole copies."""

from __future__ import annotations

from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK


async def theme_copies(player: Player) -> None:
    """Give the array one or two more copies, one after the other, among other steps."""
    await player.step()
    for _ in range(player.rng.choice((1, 1, 2))):
        await _add_copies(player)
        await player.step()
        if player.rng.random() < 0.4:
            await _remove_copy(player)
            await player.step()


async def _add_copies(player: Player) -> None:
    rng, roles = player.rng, player.roles
    await player.jobs_end()  # a resync after an earlier cut
    width = player.array.member_set.config.width
    added = rng.randint(1, 2)
    disks = [player.new_disk() for _ in range(added)]
    begin = player.event
    out = [roles.take_out(role, begin) for role in range(width, width + added)]
    roles.holders.extend((begin, role, disk) for role, disk in enumerate(disks, width))
    with player.doing("add copies"):
        await player.array.grow([player.disks[disk] for disk in disks])
        for job in player.array.jobs.running():
            job.limit(None, 8192)
            if isinstance(job, Rebuild):
                job.set_window(2)  # several windows, not one
        for _ in range(rng.randint(0, 3)):
            await player.step()
        if rng.random() < 0.4:
            await player.remount()
        for job in player.array.jobs.running():
            job.limit(None, 0)
        await player.jobs_end()
    for number, disk in zip(out, disks, strict=True):
        player.recording.is_whole(number, disk, begin)
    since = max(event for event, _, disk in roles.holders if disk in disks)
    roles.limits.append((since, width + added - 1))


async def _remove_copy(player: Player) -> None:
    with player.doing("remove copy"):
        role = player.array.member_set.config.width - 1
        player.roles.take_out(role, player.event)
        player.roles.limits.append((player.event, role - 1))
        await player.array.remove_disk(role)
        player.roles.holders.append((player.event, role, NO_DISK))
