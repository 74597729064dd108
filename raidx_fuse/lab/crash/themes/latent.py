"""Sectors that cannot be read until they are written: the campaign's theme for mending."""

from __future__ import annotations

import math

import trio

from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.layouts.numbers import cell_range
from raidx_fuse.members.base import SECTOR_BYTES

MENDED_S = 60.0


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
        for _ in range(rng.randint(0, 3)):
            await player.step()
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
    span = player.history.begin("mend", player.event)
    if player.rng.random() < 0.5:
        await player.compare()
    await player.jobs_end()
    await player.array.jobs.wait(await player.array.start_scrub(repair=False))
    with trio.fail_after(MENDED_S):
        while player.array.member_set.unreadable:  # noqa: ASYNC110  # mending tells nobody
            await trio.sleep(0.05)
    # A write may have replaced the sector in the log, or past it: now it is in its place, durably.
    await player.array.context.journal.drain()
    player.history.end(span, player.event)
    await player.flush()
    assert not player.array.member_set.lost, "one sector does not cost a member"
    player.roles.repair(player.event)
