"""Members of raidx arrays join, leave and are lost while writes go on: a theme of the campaign.

- Disks of other sizes join.
- A member is evacuated and removed.
- The chunks of a lost member are restored onto the others (self-heal).
- A larger disk takes a role, and its additional space becomes usable.

Meanwhile the array is written, flushed, left idle, closed cleanly and mounted again. Afterwards the
vacated places are written as well.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.jobs.rebundle.job import RebundleJob
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK
from raidx_fuse.lab.crash.themes.growth import write_beyond

SLOW_BYTES = 16384  # a second: a change lasts for several steps
LIMIT_S = 900.0


async def theme_members(player: Player) -> None:
    """Change the members a few times."""
    await player.write(*player.place("many"))
    await player.step()
    for _ in range(player.rng.randint(1, 3)):
        await player.jobs_end()  # a resync after an earlier cut
        turn = player.rng.choice(_TURNS if player.tolerance else _TURNS[:2])
        await turn(player)
        if player.rng.random() < 0.6:
            await player.step()
    await write_beyond(player)


def _rebundle(player: Player) -> RebundleOperation:
    rebundle = player.array.rebundle
    assert rebundle is not None
    return rebundle


async def _through(player: Player) -> None:
    """Wait until the jobs have ended; some steps and perhaps a remount happen meanwhile."""
    steps = player.rng.randint(0, 3)
    remount = player.rng.random() < 0.3
    started_s = trio.current_time()
    while running := player.array.jobs.running():
        # A remount opens and closes nurseries, so it cannot run inside a cancel scope.
        assert trio.current_time() < started_s + LIMIT_S, [job.status() for job in running]
        for job in running:
            job.limit(None, SLOW_BYTES if steps else 0)
            if isinstance(job, RebundleJob):
                job.set_window(player.rng.randint(1, 3))
        if steps:
            steps -= 1
            await player.step()
        elif remount:
            remount = False
            await player.remount()
        await trio.sleep(player.rng.choice((0.05, 0.5)))


async def add(player: Player) -> None:
    """Add one or two disks of other sizes."""
    largest = max(disk.size_bytes for disk in player.disks)
    least = player.array.member_set.data_offset + 8 * CHUNK_BYTES
    disks = [
        player.new_disk(max(least, largest + player.rng.randrange(-12, 13) * CHUNK_BYTES))
        for _ in range(player.rng.randint(1, 2))
    ]
    sizes = [player.disks[disk].size_bytes for disk in disks]
    _counts, roles = _rebundle(player).capacity.counts_with(sizes)
    for role, disk in zip(roles, disks, strict=True):
        player.roles.holders.append((player.event, role, disk))
    with player.doing("grow"):
        await player.array.grow([player.disks[disk] for disk in disks])
        await _through(player)


async def remove(player: Player) -> None:
    """Evacuate a member and remove it, if the others have enough free space."""
    role = player.rng.choice(player.array.member_set.config.roles())
    out = player.roles.take_out(role, player.event)
    await _remove(player, role, "evacuate")
    is_there = role in player.array.member_set.config.roles()
    player.roles.take_in(out, player.event, None if is_there else NO_DISK)


async def _remove(player: Player, role: int, verb: str) -> None:
    with player.doing(verb), suppress(RaidxError):  # no room
        await player.array.remove_disk(role)
        await _through(player)


async def _rebuild(player: Player, role: int, disk: int) -> None:
    with player.doing("rebuild"):
        await player.array.replace_disk(role, player.disks[disk])
        await _through(player)


async def restore(player: Player) -> None:
    """Lose a member; restore its chunks onto the others, or onto a new disk if they are full."""
    role = player.rng.choice(player.array.member_set.config.roles())
    out = player.roles.take_out(role, player.event)
    await player.array.fail_disk(role)
    for _ in range(player.rng.randint(0, 2)):
        await player.step()
    await _remove(player, role, "restore")
    disk = NO_DISK
    if role in player.array.member_set.config.roles():
        disk = player.new_disk()
        await _rebuild(player, role, disk)
    player.roles.take_in(out, player.event, disk)


async def enlarge(player: Player) -> None:
    """Give a role a larger disk; its additional space becomes usable."""
    role = player.rng.choice(player.array.member_set.config.roles())
    out = player.roles.take_out(role, player.event)
    largest = max(disk.size_bytes for disk in player.disks)
    disk = player.new_disk(largest + player.rng.randint(1, 12) * CHUNK_BYTES)
    await _rebuild(player, role, disk)
    player.roles.take_in(out, player.event, disk)


_TURNS = (add, remove, restore, enlarge)
