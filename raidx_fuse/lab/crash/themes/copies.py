"""Another copy of a raid1 array while writes go on: the campaign's theme for whole copies."""

from __future__ import annotations

import math

from raidx_fuse.lab.crash.player import Player


async def theme_copies(player: Player) -> None:
    """Give the array one or two more copies, one after the other, among other steps."""
    await player.step()
    for _ in range(player.rng.choice((1, 1, 2))):
        await _add_copies(player)
        await player.step()


async def _add_copies(player: Player) -> None:
    rng, recording = player.rng, player.recording
    await player.jobs_end()  # a resync after an earlier cut
    width = player.array.member_set.config.width
    added = rng.randint(1, 2)
    disks = [player.new_disk() for _ in range(added)]
    first, begin = len(recording.out), player.event
    for role, disk in enumerate(disks, width):
        recording.out.append((role, begin, math.inf))
        recording.holders.append((begin, role, disk))
    span = player.history.begin("add copies", begin)
    await player.array.grow([player.disks[disk] for disk in disks])
    for job in player.array.jobs.running():
        job.limit(None, 8192)
        job.set_window(2)  # several windows, not one
    for _ in range(rng.randint(0, 3)):
        await player.step()
    if rng.random() < 0.4:
        await player.close()
        await player.open()
    for job in player.array.jobs.running():
        job.limit(None, 0)
    await player.jobs_end()
    player.history.end(span, player.event)
    for number, role in enumerate(range(width, width + added)):
        recording.out[first + number] = (role, begin, player.event)
