"""Members that fail, are replaced, are copied or come back while writes go on: themes of one role.

Members that leave and come back are caught up. A raid1 array gets more copies, and loses some.
"""

from __future__ import annotations

from functools import partial

import trio

from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.jobs.replace import Replace
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK
from raidx_fuse.layouts.numbers import Role

SLOW_JOB_BYTES = 8192  # a second: a rebuild or a catching up lasts for several steps
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
    await player.steps(1, 2)
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
            await player.steps(0, 2)
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
    await player.steps(0, 3)
    if rng.random() < 0.25:
        await player.close()
        await player.open(without=disk)
    back = player.event
    await _return(player, role, disk, absent)
    player.recording.is_whole(out, disk, back)


async def _return(player: Player, role: int, disk: int, absent: bool) -> None:
    """Give *role* its *disk* again: by a new mount if it was *absent*; some steps meanwhile."""
    rng = player.rng
    with player.doing("rebuild"):
        if absent:
            await player.remount()
        state = player.array.member_set.config.record(Role(role)).state
        if state in ("failed", "missing"):  # its chunks have moved: it does not return by itself
            back = partial(player.array.replace_disk, role, player.disks[disk])
            await player.unless_data_would_be_lost(back)
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
        await player.steps(0, 3)
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
