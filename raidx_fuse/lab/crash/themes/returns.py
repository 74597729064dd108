"""Members that leave and come back, and are caught up: the campaign's theme for absences."""

from __future__ import annotations

from functools import partial

from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.layouts.numbers import Role

SLOW_JOB_BYTES = 8192  # a second: a catching up lasts for several steps


async def theme_returns(player: Player) -> None:
    """Let a member leave, write, and take it back; once more, perhaps another one."""
    if player.rng.random() < 0.7:  # what is unwritten needs no catching up
        await player.fill()
    await player.step()
    for _ in range(player.rng.choice((1, 1, 2))):
        await _leave_and_return(player)
        await player.step()
    await player.flush()


async def _leave_and_return(player: Player) -> None:
    rng = player.rng
    role = rng.randrange(player.width)
    disk = player.roles.holder(role, player.event)
    await player.jobs_end()  # a resync after an earlier cut
    out = player.roles.take_out(role, player.event)
    absent = rng.random() < 0.4
    with player.doing("leave"):
        if absent:
            await player.close()
            await player.open(without=disk)
        else:
            await player.unless_data_would_be_lost(partial(player.array.fail_disk, role))
            player.disks[disk].pull()
    for _ in range(rng.randint(0, 3)):
        await player.step()
    if rng.random() < 0.25:
        await player.close()
        await player.open(without=disk)
    back = player.event
    await _return(player, role, disk, absent)
    player.recording.is_whole(out, disk, back)


async def _return(player: Player, role: int, disk: int, absent: bool) -> None:
    """Give *role* its *disk* again: by a new mount if it was *absent*; some steps meanwhile."""
    rng = player.rng
    span = player.history.begin("rebuild", player.event)
    if absent:
        await player.remount()
    record = player.array.member_set.config.record(Role(role))
    if record.state in ("failed", "missing"):  # its chunks have moved: it does not return by itself
        await player.unless_data_would_be_lost(
            partial(player.array.replace_disk, role, player.disks[disk])
        )
    steps = rng.randint(0, 3)
    for job in player.array.jobs.running():
        if isinstance(job, Rebuild) and steps:
            job.limit(SLOW_JOB_BYTES, SLOW_JOB_BYTES)
            job.set_window(rng.choice((1, 2)))  # several windows, not one
    for _ in range(steps):
        await player.step()
    if rng.random() < 0.2:
        await player.remount()
    for job in player.array.jobs.running():
        job.limit(None, 0)
    await player.jobs_end()
    assert player.array.member_set.config.record(Role(role)).state == "active"
    player.history.end(span, player.event)
