"""Members that fail, are replaced, come back or misbehave for a while: themes of one role.

Members that leave and come back are caught up. A raid1 array gets more copies, and loses some.

A write that hangs until the engine gives up its member, or the request, reaches the disk later. The
caller has got an error by then, and may have written the same range again. The newer write must be
kept, whether the array could do without the member or not.

Where no member can be spared, a record that is refused ends writes in errors, though some members
may have it. The log must go on as soon as its members do (journal/journal.py), and what is written
then must be kept.

Errors inside operations: at a drawn operation one flush, or one write to a superblock, a page, a
record or a home place ends in an error, and some that follow. A member that can be spared is, and
no request ends in an error; what was in its cache may be lost. In pools the same strikes beside
moves of volumes (themes/pool.py), and in pairs inside every job (pairs.py).

Latent errors: sectors that cannot be read until they are written, which mending does.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.jobs.replace import Replace
from raidx_fuse.lab.crash.disks import SLOTS_BYTES, Fault, records_of
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, in_sectors
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK, Roles
from raidx_fuse.layouts.numbers import Role, by_role, cell_range
from raidx_fuse.members.base import SECTOR_BYTES

SLOW_JOB_BYTES = 8192  # a second: a rebuild or a catching up lasts for several steps
REBUILD_LIMIT_S = 600.0
TIMEOUT_S = 30.0  # io.timeout_s: an operation is given up after this time, or up to a quarter more
HANGS_S = (5.0, 45.0, 60.0, 100.0)  # shorter and longer than the time-out
MENDED_S = 60.0
APART_S = (0.0, 0.0, 0.002, 0.01, 1.5)  # between writes that are refused; a checkpoint takes place


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
    disk = None
    if spare:
        size = 0  # as large as the others
        if (rebundle := player.array.rebundle) is not None and player.rng.random() < 0.6:
            size = rebundle.needed_bytes(Role(role))  # no more room than what the role holds needs
        disk = player.new_disk(size)
        with player.doing("add spare"):
            await player.array.add_spare(player.disks[disk])
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
    begin = player.event
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
    player.recording.is_whole(out, disk, begin)


async def theme_copies(player: Player) -> None:
    """Give the array one or two more copies, one after the other, among other steps."""
    await player.step()
    for _ in range(player.rng.choice((1, 1, 2))):
        await _add_copies(player)
        await player.step()
        if player.rng.random() < 0.4:
            with player.doing("remove copy"):
                role = player.array.member_set.config.width - 1
                player.roles.take_out(role, player.event)
                player.roles.limits.append((player.event, role - 1))
                await player.array.remove_disk(role)
                player.roles.holders.append((player.event, role, NO_DISK))
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


async def theme_hangs(player: Player) -> None:
    """Let single writes hang while the same ranges are written again."""
    rng = player.rng
    player.refusals = True
    await player.fill()
    await player.flush()
    if player.tolerance and rng.random() < 0.5:  # then the array may need every other member
        role = rng.randrange(player.width)
        player.roles.take_out(role, player.event)
        await player.unless_data_would_be_lost(partial(player.array.fail_disk, role))
    member_set = player.array.member_set
    for _ in range(rng.randint(1, 3)):
        role = rng.choice([r for r, q in by_role(member_set.queues) if q is not None])
        spared = member_set.layout.tolerates(member_set.lost | {role})
        out = player.roles.take_out(role, player.event) if spared else None  # it may be given up
        disk = player.disks[role]
        disk.hangs_s = rng.choice(HANGS_S)
        player.hanging = True
        where = player.place("sectors")
        ranges: list[tuple[int, int]] = []
        async with trio.open_nursery() as nursery:
            for _ in range(rng.randint(2, 5)):
                ranges.append(in_sectors(*(player.near(where) if ranges else where)))
                nursery.start_soon(player.write_and_flush, *ranges[-1], rng.random() < 0.4)
                await trio.sleep(rng.choice((0.0, 0.01, 10.0, 1.3 * TIMEOUT_S)))
        if rng.random() < 0.7:
            await player.flush()
        if rng.random() < 0.5:
            await player.observe_met(ranges)
        disk.hangs_s = 0.0  # in case that no write has reached this disk
        await trio.sleep(max(0.0, disk.late_until_s + 1.0 - trio.current_time()))
        player.hanging = False
        await player.observe_met(ranges)
        if out is not None and member_set.queues[role] is not None:  # the member was not given up
            player.roles.take_in(out, player.event)


async def theme_refusals(player: Player) -> None:
    """Let log members refuse records while several writes come together, then let them take all."""
    rng = player.rng
    await player.fill()
    await player.flush()
    for role in rng.sample(range(player.width), player.tolerance):  # then no member can be spared
        player.roles.take_out(role, player.event)
        await player.unless_data_would_be_lost(partial(player.array.fail_disk, role))
    for _ in range(rng.randint(1, 3)):
        queues = player.array.member_set.queues
        disks = [player.disks[role] for role, queue in by_role(queues) if queue is not None]
        player.refusals = True
        for disk in disks:
            disk.refused_bytes = records_of(player.regions.log)
        where = player.place("sectors")
        ranges: list[tuple[int, int]] = []
        async with trio.open_nursery() as nursery:
            for _ in range(rng.randint(2, 6)):
                near = ranges and rng.random() < 0.5
                place = player.near(where) if near else player.place("sectors")
                ranges.append(in_sectors(*place))
                nursery.start_soon(player.write_and_flush, *ranges[-1], rng.random() < 0.3)
                await trio.sleep(rng.choice(APART_S))
            if rng.random() < 0.5:
                await trio.sleep(rng.choice(APART_S))
                for disk in disks:
                    disk.refused_bytes = range(0)
        await player.observe_met(ranges)
        for disk in disks:
            disk.refused_bytes = range(0)
        player.refusals = False  # from now on nothing fails
        await player.write(*in_sectors(*player.place("sectors")))
        if rng.random() < 0.7:
            await player.flush()
        await player.observe_met(ranges)


async def theme_errors(player: Player) -> None:
    """Let operations of members fail, one member after the other, as long as each can be spared.

    Without redundancy requests may end in errors, until the array is mounted again.
    """
    rng = player.rng

    def doubt(event: int) -> None:
        player.refusals = True
        player.doubt(event)

    if rng.random() < 0.6:
        await player.fill()
        if rng.random() < 0.6:
            await player.flush()
    for _ in range(rng.randint(1, max(1, player.tolerance))):
        await player.jobs_end()  # until then a member may be needed that counts as spare
        give_fault(player, player.array, player.roles, None if player.tolerance else doubt)
        await player.steps(2, 5)
        draw = rng.random()
        if draw < 0.2 or not player.tolerance:
            await player.remount()
            player.refusals = False
        elif draw < 0.4:
            await player.array.context.journal.place()
        elif draw < 0.5:
            await player.array.context.dirty_bitmap.clean_quiet(all_regions=True)
        elif draw < 0.7:
            await player.flush()
        await player.step()
    for disk in player.disks:
        disk.give_fault(None)
    if rng.random() < 0.5:
        await player.remount()
        await player.step()


def give_fault(
    player: Player,
    array: Array,
    roles: Roles,
    doubt: Callable[[int], None] | None = None,
    *,
    rng: random.Random | None = None,
) -> None:
    """Let operations of a member of *array* fail from a drawn one on, if it can be spared.

    *doubt*: none can, and this is called with the event of the first error.
    """
    rng, member_set = rng or player.rng, array.member_set
    regions = member_set.config.regions
    present = [role for role, queue in by_role(member_set.queues) if queue is not None]
    role = rng.choice(present)
    out = frozenset(map(Role, roles.out_at(player.event + 1)))
    spared = member_set.layout.tolerates(member_set.lost | out | {role})
    if role in out or (doubt is None and not spared):
        return
    where = {
        "flush": None,
        "superblock": range(SLOTS_BYTES),
        "home": range(regions.data.offset, regions.data.end),
        "record": range(regions.log.offset, regions.log.end),
        "page": range(regions.bitmap.offset, regions.written.end),
    }
    kind = rng.choice(("flush", "flush", "superblock", "home", "home", "record", "page"))
    player.disks[roles.holder(role, player.event)].give_fault(
        Fault(
            where[kind],
            rng.choice((0, 0, 1, 2, 3, 5, 8, 13, 21)),
            rng.choice((1, 2, 2, 3, 1000)),  # one error may be transient
            doubt or partial(roles.take_out, role),
            loses_cache=rng.random() < 0.7,
        )
    )


async def theme_latent(player: Player) -> None:
    """Let sectors become unreadable, one after the other; they are found by chance or a scrub."""
    rng = player.rng
    await player.fill()
    if rng.random() < 0.5:
        await player.flush()
    for _ in range(rng.randint(1, 3)):
        await player.jobs_end()  # a torn stripe with an unreadable sector may have lost data
        if not await lose_sector(player):
            return
        await player.steps(0, 3)
        if rng.random() < 0.3:
            await player.remount()
        await mend(player)
        await player.step()


async def lose_sector(player: Player) -> bool:
    """Make a sector of a written cell unreadable; return False if there is none."""
    context, rng = player.array.context, player.rng
    await context.journal.drain()  # nobody reads a place under logged content
    live = context.written.written_stripes(context.layout, 0, context.layout.stripes)
    if not live:
        return False
    stripe = rng.choice(live)
    unwritten = context.unwritten_cells(stripe)
    cells = [c for c in cell_range(0, len(context.code.cells)) if not unwritten >> c & 1]
    role, start = context.position(stripe, rng.choice(cells))
    number = player.roles.holder(role, player.event)
    offset = start + rng.randrange(CHUNK_BYTES // SECTOR_BYTES) * SECTOR_BYTES
    event = player.event
    player.roles.damaged.append((event, math.inf))
    content = await player.disks[number].poison(offset)
    player.recording.poisoned.append((event, number, offset, content))
    return True


async def mend(player: Player) -> None:
    """Read everything, or scrub, until no sector is unreadable; no member may be out."""
    with player.doing("mend"):
        if player.rng.random() < 0.5:
            await player.compare()
        await player.jobs_end()
        await player.array.jobs.wait(await player.array.start_scrub(repair=False))
        with trio.fail_after(MENDED_S):
            while player.array.member_set.unreadable:  # noqa: ASYNC110  # mending tells nobody
                await trio.sleep(0.05)
        # A write may have replaced the sector in the log, or past it: now it is in its place.
        await player.array.context.journal.drain()
    await player.flush()
    assert not player.array.member_set.lost, "one sector does not cost a member"
    player.roles.repair(player.event)
