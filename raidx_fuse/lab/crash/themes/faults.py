"""Members that misbehave for a while: writes that hang, and records that the log's members refuse.

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
from raidx_fuse.lab.crash.disks import SLOTS_BYTES, Fault, records_of
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, in_sectors
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Roles
from raidx_fuse.layouts.numbers import Role, by_role, cell_range
from raidx_fuse.members.base import SECTOR_BYTES

TIMEOUT_S = 30.0  # io.timeout_s: an operation is given up after this time, or up to a quarter more
HANGS_S = (5.0, 45.0, 60.0, 100.0)  # shorter and longer than the time-out
MENDED_S = 60.0
APART_S = (0.0, 0.0, 0.002, 0.01, 1.5)  # between writes that are refused; a checkpoint takes place


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
    for _ in range(rng.randint(1, 3)):
        await _write_while_one_hangs(player)


async def _write_while_one_hangs(player: Player) -> None:
    rng = player.rng
    role = rng.choice([r for r, q in by_role(player.array.member_set.queues) if q is not None])
    member_set = player.array.member_set
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
        await _write_while_records_are_refused(player)


async def _write_while_records_are_refused(player: Player) -> None:
    rng = player.rng
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
            ranges.append(in_sectors(*(player.near(where) if near else player.place("sectors"))))
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
    if rng.random() < 0.6:
        await player.fill()
        if rng.random() < 0.6:
            await player.flush()
    for _ in range(rng.randint(1, max(1, player.tolerance))):
        await player.jobs_end()  # until then a member may be needed that counts as spare
        _give_one_fault(player)
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


def _give_one_fault(player: Player) -> None:
    """Let operations of a member fail from a drawn one on, if it can be spared or none can."""

    def doubt(event: int) -> None:
        player.refusals = True
        player.doubt(event)

    give_fault(player, player.array, player.roles, None if player.tolerance else doubt)


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
