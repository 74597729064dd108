"""Random workloads in virtual time over recorded disks.

One seed decides everything: width, size, first content and pace of the disks, whether the array has
lost power before, the theme and its steps. `themes_of` lists the themes, except for that of pairs.
"""

from __future__ import annotations

import math
import random

import trio

from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, POOL, Shape, in_sectors
from raidx_fuse.lab.crash.player import Player, Script
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.themes.absent import theme_absent
from raidx_fuse.lab.crash.themes.checksums import (
    theme_beside,
    theme_excess,
    theme_full,
    theme_rot,
    theme_rot_while_off,
    theme_sums,
)
from raidx_fuse.lab.crash.themes.members import (
    lose_and_rebuild,
    theme_copies,
    theme_disks,
    theme_errors,
    theme_hangs,
    theme_latent,
    theme_refusals,
    theme_replaces,
    theme_returns,
)
from raidx_fuse.lab.crash.themes.pool import theme_pool
from raidx_fuse.lab.crash.themes.room import theme_larger, theme_log, theme_room
from raidx_fuse.lab.crash.themes.shapes import (
    targets_of,
    theme_growth,
    theme_leave,
    theme_members,
    theme_restripe,
    theme_shrink,
)
from raidx_fuse.layouts.numbers import Stripe, cell_range
from raidx_fuse.layouts.registry import find_layout, grows_in_place
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.virtual_time import run

HAD_POWER_CUT_SHARE = 0.35
ERRORS_SHARE = 0.15  # of the workloads of all themes have errors inside operations instead
AT_CHANGES_SHARE = 0.7  # of the workloads also write when the configuration changes
# Their own writes fail or must be the only ones.
WITHOUT_WRITES_AT_CHANGES = (
    *("hangs", "refusals", "latent", "scrub", "huge", "rot", "off", "beside", "absent"),
    *("excess", "full"),
    POOL,
)
# Of the theme squeeze:
SQUEEZED_MAX, HELD_UP_S, APART_S = 10, 0.1, 0.01


def record_workload(
    cell: Cell, seed: int, script: Script | None = None, shape: Shape | None = None
) -> Recording:
    """Run workload *seed* on *cell* and return what happened; *script* replaces the theme.

    Raises ViolationError if a read returns wrong content while the workload runs, and whatever the
    array raises.
    """
    if script is not None:
        return run(Player(cell, seed, "", shape).play, script, 0, False, seed=seed)
    themes = themes_of(cell)
    weights = [weight for _, weight in themes.values()]
    draw = random.Random(f"{cell} {seed} theme")
    theme = cell.theme or draw.choices(list(themes), weights)[0]
    errors = random.Random(f"{cell} {seed} errors")
    if not cell.theme and errors.random() < ERRORS_SHARE:
        theme = "errors"
    changes = random.Random(f"{cell} {seed} writes at changes")
    at_changes = theme not in WITHOUT_WRITES_AT_CHANGES and changes.random() < AT_CHANGES_SHARE
    player = Player(cell, seed, theme, shape, at_changes=at_changes)
    if player.is_pool:
        return run(player.play, themes[theme][0], 0, False, seed=seed)
    writes = player.rng.randint(0, 3)
    had_power_cut = player.rng.random() < HAD_POWER_CUT_SHARE
    return run(player.play, themes[theme][0], writes, had_power_cut, seed=seed)


def themes_of(cell: Cell) -> dict[str, tuple[Script, int]]:
    """Return name -> (script, weight) of the themes that *cell* can have; 0: only on request."""
    layout = find_layout(cell.layout)
    redundant, logged = layout.tolerance(3) > 0, cell.journal != "none"
    is_fixed, grows = layout.build is not None, grows_in_place(cell.layout)
    themes: tuple[tuple[str, Script, int, bool], ...] = (
        ("writes", lambda player: player.steps(5, 9), 3, True),
        ("remounts", theme_remounts, 1, True),
        ("hangs", theme_hangs, 1, True),
        ("replaces", theme_replaces, 1, True),
        ("errors", theme_errors, 0, True),
        ("disks", theme_disks, 2, redundant),
        ("returns", theme_returns, 2, redundant),
        ("scrub", theme_scrub, 1, redundant),
        ("latent", theme_latent, 1, redundant),
        ("squeeze", theme_squeeze, 1, logged),
        ("huge", theme_huge, 1, is_fixed),
        ("ends", theme_ends, 0, True),
        ("growth", theme_growth, 1, grows),
        ("shrink", theme_shrink, 0, grows),
        ("leave", theme_leave, 0, grows),
        ("copies", theme_copies, 1, cell.layout == "raid1"),
        ("restripe", theme_restripe, 1, bool(targets_of(cell.layout))),
        ("moves", theme_moves, 4, layout.bundled),
        ("members", theme_members, 4, layout.bundled),
        ("discards", theme_discards, 0, True),  # many workloads of other themes have some, too
        ("streams", theme_streams, 0, redundant),
        ("door", theme_door, 0, logged),  # so have they of these
        ("refusals", theme_refusals, 0, logged),
        (POOL, theme_pool, 0, logged and is_fixed),  # an array that has free space
        ("checkpoints", theme_checkpoints, 0, logged and redundant),
        ("rewrites", theme_rewrites, 0, logged and redundant),
        ("sums", theme_sums, 1, cell.sums),
        ("room", theme_room, 1, cell.sums and is_fixed),
        ("larger", theme_larger, int(cell.sums), is_fixed),
        ("log", theme_log, 1, True),
        ("rot", theme_rot, 2, cell.sums),
        ("off", theme_rot_while_off, 1, cell.sums and redundant and not layout.bundled),
        ("full", theme_full, 1, cell.sums),
        ("excess", theme_excess, 1, cell.sums and redundant),
        ("beside", theme_beside, 1, cell.sums),
        ("absent", theme_absent, 2, cell.sums and redundant and not layout.bundled),
    )
    return {name: (script, weight) for name, script, weight, suits in themes if suits}


async def theme_ends(player: Player) -> None:
    """Change the members of an array with superblocks at both ends: many rounds of superblocks."""
    themes = [theme_replaces, theme_remounts]
    if player.tolerance:
        themes += [theme_disks, theme_returns]
    await player.rng.choice(themes)(player)


async def theme_huge(player: Player) -> None:
    """Write to the parts of a huge image, mostly to unwritten chunks."""
    for _ in range(player.rng.randint(6, 10)):
        await player.write(*player.place(player.rng.choice(("sectors", "page", "chunks"))))
        if player.rng.random() < 0.4:
            await player.flush()
        if player.rng.random() < 0.4:
            await player.step()


async def theme_discards(player: Player) -> None:
    """Discard ranges and write them again, also while a member is lost and rebuilt."""
    rng = player.rng
    await player.fill()
    for _ in range(rng.randint(3, 6)):
        await player.discard_some()
        if rng.random() < 0.5:
            await player.flush()
        await player.step()
        if rng.random() < 0.15:
            await player.remount()
    if player.tolerance and rng.random() < 0.4:
        role = rng.randrange(player.width)
        await lose_and_rebuild(player, role, spare=False, fail_first=rng.random() < 0.7)
        await player.discard_some()


async def theme_door(player: Player) -> None:
    """Let requests share commit batches, among other steps; sometimes lose a member meanwhile."""
    if player.rng.random() < 0.7:  # small writes need written chunks
        await player.fill()
        await player.flush()  # small writes wait until no sector of the first write can be torn
    for _ in range(player.rng.randint(2, 5)):
        await player.step()
        await player.come_together()
    if player.tolerance and player.rng.random() < 0.25:
        role = player.rng.randrange(player.width)
        await lose_and_rebuild(player, role, spare=False, fail_first=True)


async def theme_checkpoints(player: Player) -> None:
    """Overwrite parts of few stripes again and again while checkpoints and scrubs are under way."""
    rng, journal = player.rng, player.array.context.journal
    await player.fill()
    await player.flush()
    async with trio.open_nursery() as nursery:
        for _ in range(rng.randint(3, 6)):
            stripe = rng.randrange(min(3, player.stripes))
            for _ in range(rng.choice((1, 2, 3, 3, 30))):
                await _write_piece(player, stripe)
            draw = rng.random()
            if draw < 0.4:
                nursery.start_soon(journal.place)
                await trio.sleep(rng.choice((0.0, 0.001, 0.005)))
                await _write_piece(player, stripe)
            elif draw < 0.5:
                await journal.place()
            elif draw < 0.6:
                await player.flush()
            elif draw < 0.75:  # a scrub settles what it visits
                await player.jobs_end()
                await player.array.jobs.wait(await player.array.start_scrub(repair=True))
                await _write_piece(player, stripe)
            elif draw < 0.85:
                await player.come_together()
            else:
                await player.step()
            if rng.random() < 0.4:
                await _settle_behind_a_rewrite(player)
    if rng.random() < 0.4:
        role = rng.randrange(player.width)
        await _write_piece(player, 0)
        await lose_and_rebuild(player, role, spare=False, fail_first=True, look=True)


async def theme_rewrites(player: Player) -> None:
    """Overwrite what is flushed, and settle it; cuts come before the next flush, and again."""
    await player.fill()
    await player.flush()
    for _ in range(player.rng.randint(2, 4)):
        player.recording.tempting.extend(await _settle_behind_a_rewrite(player))


async def _settle_behind_a_rewrite(player: Player) -> range:
    """Log data, the same range again, and its parity: a cut may take the second record alone.

    Returns the moments at which it may.
    """
    rng, journal = player.rng, player.array.context.journal
    await journal.drain()
    stripe = rng.randrange(player.stripes)
    offset = stripe * player.stripe_bytes + rng.randrange(player.stripe_bytes // SECTOR_BYTES) * 512
    await player.write(offset, SECTOR_BYTES)
    await player.flush()
    await player.write(offset, SECTOR_BYTES)
    locks = player.array.context.locks
    per_stripe = player.stripe_bytes // SECTOR_BYTES
    in_array = Stripe(player.parts.in_image(stripe * per_stripe) // per_stripe)
    held = await locks.acquire_all([in_array])
    begin = player.event
    await journal.settle(held)
    settled = range(begin + 1, player.event + 2)
    locks.release_all(held)
    await player.tidy()
    return settled


async def _write_piece(player: Player, stripe: int) -> None:
    """Write some sectors of *stripe*, or a part of a sector."""
    rng = player.rng
    low = rng.randrange(player.stripe_bytes // SECTOR_BYTES) * SECTOR_BYTES
    longest = min(player.stripe_bytes - low, 3 * CHUNK_BYTES) // SECTOR_BYTES
    length = min(rng.choice((1, 1, 3, 8, 8, 16)), longest) * SECTOR_BYTES
    if rng.random() < 0.2:
        low, length = low + 7, length - 100
    await player.write(stripe * player.stripe_bytes + low, length)


async def theme_streams(player: Player) -> None:
    """Overwrite stripes by sequential requests of whole chunks that end inside stripes."""
    rng = player.rng
    await player.fill()
    chunks = player.stripes * player.stripe_bytes // CHUNK_BYTES
    per_stripe = player.stripe_bytes // CHUNK_BYTES
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(player.stripes) * per_stripe
        if rng.random() < 0.5:  # no region is marked, as after a rest
            await player.array.context.dirty_bitmap.clean_quiet(all_regions=True)
        async with trio.open_nursery() as nursery:
            for _ in range(rng.randint(2, 8)):
                filled = at % per_stripe
                if filled and rng.random() < 0.7:  # up to the stripe's end
                    count = per_stripe - filled
                else:
                    count = min(rng.randint(1, 2 * per_stripe + 1), chunks - at)
                if count <= 0:
                    break
                await player.write(at * CHUNK_BYTES, count * CHUNK_BYTES)
                at += count
                if rng.random() < 0.1:  # a checkpoint runs while the next request comes
                    nursery.start_soon(player.array.context.journal.place)
                    await trio.sleep(rng.choice((0.0, 0.005)))
                else:
                    await _beside_a_stream(player, min(at, chunks - 1) * CHUNK_BYTES)


async def _beside_a_stream(player: Player, offset: int) -> None:
    """Do a random step, or none, between two sequential requests; the next is at *offset*."""
    rng = player.rng
    draw = rng.random()
    if draw < 0.2:
        await player.flush()
    elif draw < 0.25:
        await player.tidy()
    elif draw < 0.4:
        await player.array.context.journal.place()
    elif draw < 0.55:  # in the stripe that is being filled, before or behind the logged chunks
        low = max(0, offset + rng.randint(-4, 3) * SECTOR_BYTES * rng.choice((1, 8)))
        room = player.sectors * SECTOR_BYTES - low
        if room > 0:
            await player.write(low, min(room, rng.randint(1, 3) * SECTOR_BYTES))
    elif draw < 0.59:
        role = rng.randrange(player.width)
        await lose_and_rebuild(player, role, spare=False, fail_first=True)


async def theme_moves(player: Player) -> None:
    """Move and exchange chunks of bundles (a rebundle), among other steps."""
    await player.write(*player.place("many"))
    for _ in range(player.rng.randint(2, 4)):
        await player.move_some()
        await player.step()


async def theme_remounts(player: Player) -> None:
    for _ in range(2):
        await player.steps(1, 3)
        await player.remount()
    await player.step()


async def theme_scrub(player: Player) -> None:
    """Corrupt a parity sector, and let a scrub repair it."""
    await player.step()
    await player.flush()
    await rot_parity(player)
    with player.doing("scrub"):
        job = await player.array.start_scrub(repair=True)
        if player.rng.random() < 0.5:
            await player.step()
        status = await player.array.jobs.wait(job)
    if not status["repaired"]:  # a write, or its checksum, replaced the bad parity first
        await player.flush()
    if player.roles.damaged:
        player.roles.repair(player.event)
    await player.step()


async def rot_parity(player: Player) -> None:
    context = player.array.context
    await context.journal.drain()  # a scrub does not see a home place under logged content
    live = context.written.written_stripes(context.layout, 0, context.layout.stripes)
    if not live:
        return
    stripe = player.rng.choice(live)
    cells = cell_range(context.code.data_count, context.code.data_count + context.code.parity_count)
    role, start = context.position(stripe, player.rng.choice(cells))
    offset = start + player.rng.randrange(CHUNK_BYTES // SECTOR_BYTES) * SECTOR_BYTES
    cut = player.disks[role].cut
    rotten = bytes(byte ^ 0x40 for byte in cut.state.image[offset : offset + SECTOR_BYTES])
    player.roles.damaged.append((player.event, math.inf))
    await cut.writev(offset, [rotten])
    await cut.flush()


async def theme_squeeze(player: Player) -> None:
    """Fill the log several times, with large partial writes to a few stripes each time.

    Checkpoints are slow: another task holds the checkpoint's lock, and the disks flush slowly. A
    log that reused its space too early would overwrite records that recovery still needs.
    """
    rng = player.rng
    if rng.random() < 0.7:  # a write to unwritten chunks would log pages of the written map, too
        await player.fill()
    for _ in range(rng.randint(2, 4)):
        stripe = rng.randrange(player.stripes)
        ranges: list[tuple[int, int]] = []
        async with trio.open_nursery() as nursery:
            if rng.random() < 0.6:
                nursery.start_soon(_hold_up_placements, player)
            for _ in range(rng.randint(3, SQUEEZED_MAX)):
                ranges.append(_large_part(player, stripe))
                offset, length = ranges[-1]
                nursery.start_soon(player.write_and_flush, offset, length, rng.random() < 0.3)
                await trio.sleep(rng.expovariate(1 / APART_S))
        await player.observe_met(ranges)
        if rng.random() < 0.3:
            await player.step()


async def _hold_up_placements(player: Player) -> None:
    async with player.array.context.journal.placing:
        await trio.sleep(player.rng.expovariate(1 / HELD_UP_S))


def _large_part(player: Player, stripe: int) -> tuple[int, int]:
    """Draw a range in or near *stripe* of one chunk or more, but less than a stripe."""
    rng = player.rng
    end = player.sectors * 512
    length = rng.randint(1, max(1, player.stripe_bytes // CHUNK_BYTES - 1)) * CHUNK_BYTES
    offset = stripe * player.stripe_bytes + rng.randrange(-length, player.stripe_bytes)
    offset = max(0, min(offset, end - length))
    return in_sectors(offset, length)
