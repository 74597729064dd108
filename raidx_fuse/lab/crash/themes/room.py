"""Room on the members changes: larger members are used, checksums and the log get other places."""

from __future__ import annotations

from contextlib import suppress

import trio

from raidx_fuse.errors import TooSmallError, UsageError
from raidx_fuse.format.regions import LOG_SLACK_BYTES, PAGE_BYTES
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.settings import LOG_SIZE, SUMS


async def theme_larger(player: Player) -> None:
    """Use what the members have behind the data, under requests; with checksums, these follow."""
    rng = player.rng
    if rng.random() < 0.6:
        await player.fill()
    await player.steps(0, 2)
    await player.jobs_end()  # a resync after an earlier cut
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_use, player)
        await player.steps(0, 4)
    regions = player.array.member_set.config.regions
    assert not player.cell.sums or regions.sums.offset >= regions.data.end, "tables did not move"
    await player.steps(0, 3)
    if player.cell.sums and rng.random() < 0.4:
        player.recording.sums_begin = True
        await _switch(player, "off", "on")
    if rng.random() < 0.5:
        await player.remount()
        await player.steps(0, 2)


async def _use(player: Player) -> None:
    with player.doing("larger"):
        await player.array.larger_members.use()


async def theme_room(player: Player) -> None:
    """Switch checksums on in an array that was made without, at the free end of its image."""
    rng = player.rng
    player.recording.sums_begin = True
    if rng.random() < 0.6:
        await player.fill()
    await player.steps(0, 2)
    await player.jobs_end()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_switch, player, "on")
        await player.steps(0, 4)
    await player.steps(0, 3)
    if rng.random() < 0.5:
        await player.remount()
        await player.steps(0, 2)
    for change in rng.sample(("again", "larger", "off", "larger"), rng.randint(0, 2)):
        await player.jobs_end()
        if change == "larger":
            with suppress(TooSmallError):  # it was used already
                await _use(player)
        elif SUMS in player.array.member_set.config.jobs:
            await _switch(player, *(("off",) if change == "off" else ("off", "on")))
        await player.steps(0, 3)


async def theme_log(player: Player) -> None:
    """Change the size of the log, under requests, beside what else needs room or uses the log."""
    rng = player.rng
    player.recording.sums_begin = player.recording.log_moves = True
    if rng.random() < 0.5:
        await player.fill()
    await player.steps(0, 3)
    for _ in range(rng.randint(2, 4)):
        await player.jobs_end()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_resize_log, player)
            await player.steps(0, 4)
        await player.steps(1, 6)
        draw = rng.random()
        if draw < 0.3:
            await player.remount()
        elif draw < 0.45 and player.cell.sums:
            await player.jobs_end()
            with suppress(UsageError):  # no room
                await _switch(player, "off", "on")
        elif draw < 0.6:
            await player.jobs_end()
            with suppress(UsageError):  # the log is in the way, or nothing is free
                await _use(player)
    await player.steps(0, 2)


async def _resize_log(player: Player) -> None:
    rng, config = player.rng, player.array.member_set.config
    stripe_bytes = len(player.array.context.code.cells) * config.chunk_bytes
    least = 2 * stripe_bytes + LOG_SLACK_BYTES
    twice = 2 * config.regions.log.length
    size = rng.choice((least, least + rng.randrange(32) * PAGE_BYTES, twice))
    with player.doing("log size"), suppress(UsageError):  # no room
        await player.array.set(LOG_SIZE, str(size))


async def _switch(player: Player, *values: str) -> None:
    for value in values:
        with player.doing(f"sums {value}"):
            await player.array.set(SUMS, value)
        if value == "off":
            await player.steps(0, 2)
    for job in player.array.jobs.running():
        job.limit(None, 0)
