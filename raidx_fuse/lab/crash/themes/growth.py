"""Growth while writes go on: the campaign's theme for layouts that grow in place.

One or two disks join; the parity of raid4 follows by one of the three methods. Meanwhile the
array is

- written, flushed and left idle;
- closed cleanly and mounted again, or
- degraded by the loss of a member, which is then replaced; or the growth is cancelled.

Afterwards the vacated cells are written as well. The checked content must not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

from raidx_fuse.engine.growth_position import LIVE, PIGGYBACK, SURROGATE
from raidx_fuse.errors import BusyError, UsageError
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.jobs.restripe.job import Restripe
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.history import Span
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK
from raidx_fuse.layouts.elastic_params import parity_stays
from raidx_fuse.layouts.growth_room import width_max
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.members.base import SECTOR_BYTES

SLOW_BYTES = 8192  # a second: a growth lasts for several steps
SLOW_RESTRIPE_BYTES = 16384
LIMIT_S = 900.0
GROWN_STRIPES = range(1, 5)  # of a window
RESTRIPED_BYTES = tuple(chunks * CHUNK_BYTES for chunks in (1, 2, 4, 8, 16))


async def theme_growth(player: Player) -> None:
    """Grow once or twice while writes go on."""
    await player.step()
    for _ in range(player.rng.choice((1, 1, 2))):
        await grow(player)
        if player.rng.random() < 0.6:
            await player.step()


async def grow(player: Player) -> None:
    """Grow the array; random steps and perhaps a remount, a loss or a cancel happen meanwhile."""
    await player.jobs_end()  # a resync after an earlier cut
    array = player.array
    config = array.member_set.config
    width, added = config.width, player.rng.randint(1, 2)
    if "prime" in config.params:
        added = min(added, width_max(config.layout, width, config.params) - width)
        if not added:
            return
    disks = [player.new_disk() for _ in range(added)]
    parity = LIVE
    if player.tolerance and parity_stays(player.cell.layout):
        parity = player.rng.choice((LIVE, PIGGYBACK, SURROGATE))
    # Small arrays would always get 1.
    array.grow_operation.set_granule(1 + player.event % 3)
    surrogate = player.new_disk() if parity == SURROGATE else None
    newcomers: list[int] = [*disks, *([] if surrogate is None else [surrogate])]
    for number, disk in enumerate(newcomers):
        player.roles.holders.append((player.event, width + number, disk))
    if surrogate is not None:
        successor = (player.event, math.inf, width + len(disks), player.width - 1)
        player.roles.successors.append(successor)
    span = player.history.begin(f"grow {parity}", player.event)
    changing: Span | None = None
    if parity == PIGGYBACK and player.cell.journal == "none":
        # Parity changes in place, as in a write: this mode promises only a resync for it.
        stripes = frozenset(range(array.context.layout.stripes))
        changing = player.history.begin_write("grow piggyback", player.event, stripes, frozenset())
    joining = [player.disks[disk] for disk in disks]
    if surrogate is not None:
        await array.grow(joining, surrogate=player.disks[surrogate])
    else:
        await array.grow(joining, parity)
    await live_through(player, ("", "", "remount", "cancel", "lose", "lose"))
    player.history.end(span, player.event)
    if changing is not None:
        player.history.end(changing, player.event)
    if surrogate is not None:
        inherit(player)
    await let_go(player)
    await write_beyond(player)


async def live_through(player: Player, turns: Sequence[str]) -> None:
    """Do random steps, and one of *turns*, until the growth or restripe under way has ended."""
    turn = player.rng.choice(turns)
    steps = player.rng.randint(1, 4)
    started_s = trio.current_time()
    while (job := change_of(player)) is not None:
        # A remount opens and closes nurseries, so it cannot run inside a cancel scope.
        assert trio.current_time() < started_s + LIMIT_S, job.status()
        restripes = isinstance(job, Restripe)
        job.set_window(player.rng.choice(RESTRIPED_BYTES if restripes else GROWN_STRIPES))
        slow_bytes = SLOW_RESTRIPE_BYTES if restripes else SLOW_BYTES
        job.limit(None, slow_bytes if steps else 0)
        if steps:
            steps -= 1
            await player.step()
        elif turn:
            if turn == "cancel":  # it moves everything back
                job.cancel()
            elif turn == "remount":
                await player.remount()
            elif restripes:
                job.pause()  # until roles have other numbers
                await lose(player)
                job.resume()
            else:
                await lose(player)
            turn, steps = "", player.rng.randint(0, 2)
        await trio.sleep(player.rng.choice((0.05, 0.5)))


def change_of(player: Player) -> Grow | Restripe | None:
    """Return the job of the growth or restripe under way, if there is one."""
    running = player.array.jobs.running()
    return next((job for job in running if isinstance(job, Grow | Restripe)), None)


def inherit(player: Player) -> None:
    """Note that the surrogate now holds the parity role, unless the growth was cancelled."""
    roles, now = player.roles, player.event
    begin, _, role, successor = roles.successors.pop()
    roles.successors.append((begin, now, role, successor))
    config = player.array.member_set.config
    if config.width == role:
        # Not always the surrogate: it may have been replaced since the growth ended.
        disk = int(config.record(Role(successor)).path_hint.removeprefix("disk"))
        roles.holders.extend([(now, successor, disk), (now, role, NO_DISK)])


async def let_go(player: Player) -> None:
    """Remove, in most cases, the member that held the parity before the surrogate."""
    spares = [record for record in player.array.member_set.config.members if record.role < 0]
    if spares and player.rng.random() < 0.7:
        with player.doing("remove"):
            await player.array.remove_disk(spares[0].member_uuid)


async def lose(player: Player) -> None:
    """Lose a member, old or new, and give its role another disk while writes go on."""
    role = player.rng.randrange(player.array.member_set.config.width)
    if not player.tolerance or player.array.member_set.spares:
        return
    out = player.roles.take_out(role, player.event)
    await player.array.fail_disk(role)
    for _ in range(player.rng.randint(0, 2)):
        await player.step()
    former, begin = player.roles.holder(player.width - 1, player.event), player.event
    disk = former
    if not is_whole(player, role):  # it is if the growth has ended: the former parity member is in
        disk = player.new_disk()
        try:
            await player.array.replace_disk(role, player.disks[disk])
        except (BusyError, UsageError):  # the same: it is a spare, or its rebuild runs
            disk = former
    while not is_whole(player, role):
        await trio.sleep(0.3)
        if player.rng.random() < 0.2:
            await player.step()
    player.recording.is_whole(out, disk, begin)


def is_whole(player: Player, role: int) -> bool:
    """Return whether *role* is active; a surrogate may hold the parity role by now."""
    config = player.array.member_set.config
    return config.record(Role(role if role < config.width else player.width - 1)).state == "active"


async def write_beyond(player: Player) -> None:
    """Write into the new part of the image: it lies in the cells that blocks have vacated."""
    array = player.array
    first = player.parts.end * SECTOR_BYTES
    for _ in range(player.rng.randint(0, 3)):
        room = array.size_bytes - first
        size = min(player.rng.choice((SECTOR_BYTES, 4096, 6000, 20000)), room)
        if size > 0:
            at = first + player.rng.randrange(room - size + 1)
            # This content is not checked, but other chunks of the same stripes are.
            chunks = range(at // CHUNK_BYTES, (at + size - 1) // CHUNK_BYTES + 1)
            stripes = frozenset(array.context.layout.locate(chunk)[0] for chunk in chunks)
            span = player.history.begin_write("write beyond", player.event, stripes, frozenset())
            await array.write(at, player.rng.randbytes(size))
            player.history.end(span, player.event)
        if player.rng.random() < 0.3:
            await player.flush()


async def theme_shrink(player: Player) -> None:
    """Grow once or twice, then undo one growth or both.

    The image is smaller than the first members could hold, so that it never needs what a growth
    adds. While members leave, the array is written, closed cleanly and mounted again, or degraded
    by the loss of a member that is then replaced. The checked content must not change.
    """
    await player.step()
    for _ in range(player.rng.choice((1, 1, 2))):
        await grow(player)
    for _ in range(player.rng.choice((1, 2))):
        await shrink(player)
        await player.step()


async def shrink(player: Player) -> None:
    """Take the members of the last growth out, if it can be undone."""
    await player.jobs_end()
    layout = player.array.context.layout
    if not isinstance(layout, ElasticLayout) or len(layout.history) < 2:
        return  # the growth was cancelled
    with player.doing("shrink"):
        await player.array.remove_disk(layout.history[-1] - 1)
        await live_through(player, ("", "remount", "lose"))
