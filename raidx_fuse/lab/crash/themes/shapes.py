"""Arrays that change their members, width or layout while writes go on: themes of the whole array.

- Growth of layouts that grow in place: one or two disks join; the parity of raid4 follows by one of
  the three methods.
- A restripe (md's reshape): another layout, more or fewer members, or both.
- Members of raidx arrays: disks of other sizes join; a member is evacuated and removed; the chunks
  of a lost one are restored onto the others (self-heal); a larger disk takes a role.

Meanwhile the array is written, flushed, left idle, closed cleanly and mounted again, or degraded by
the loss of a member, which is then replaced; or the change is cancelled. Afterwards the vacated
cells are written as well. The checked content must not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import trio

from raidx_fuse.engine.growth_position import LIVE, PIGGYBACK, SURROGATE
from raidx_fuse.errors import BusyError, RaidxError, UsageError
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.jobs.rebundle.job import RebundleJob
from raidx_fuse.jobs.restripe.job import Restripe
from raidx_fuse.jobs.restripe.operation import PlannedRestripe
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.history import Span
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import NO_DISK, durable_since
from raidx_fuse.layouts.elastic_params import parity_stays
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.registry import LAYOUTS, width_max
from raidx_fuse.members.base import SECTOR_BYTES

SLOW_BYTES = 8192  # a second: a growth lasts for several steps
SLOW_RESTRIPE_BYTES = 16384  # also of what members of raidx arrays join or leave by
LIMIT_S = 900.0
GROWN_STRIPES = range(1, 5)  # of a window
RESTRIPED_BYTES = tuple(chunks * CHUNK_BYTES for chunks in (1, 2, 4, 8, 16))
# layout -> (new layout, number of members that join)
TARGETS: dict[str, tuple[tuple[str, int], ...]] = {
    "raid0": (("raid0", 1), ("raid0", 2), ("raid4", 1), ("raid5", 1), ("raid5", 2)),
    "raid1": (("raid5", 1), ("raid1", 1), ("raid4", 1)),
    "raid4": (("raid5", 0), ("raid4", 1), ("raid5", 1), ("raid0", 0), ("raid4", 2)),
    "raid5": (("raid4", 0), ("raid5", 1), ("raid5", 2), ("raid0", 0), ("raid1", 1), ("rdp", 2)),
    "rdp": (("evenodd", 0), ("rdp", 1), ("raid5", 0)),
    "evenodd": (("rdp", 0), ("evenodd", 1)),
    "pcode": (("upc", 0), ("raid5", 1)),
    "upc": (("pcode", 0), ("raid5", 1)),
}
OF_PACKAGES = ("raid5", 0), ("raid5", 1)


def targets_of(layout: str) -> tuple[tuple[str, int], ...]:
    """Return to what arrays of *layout*, which a package may have brought, are restriped."""
    return TARGETS.get(layout, OF_PACKAGES if LAYOUTS[layout].package else ())


async def theme_growth(player: Player) -> None:
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
    with player.doing(f"grow {parity}"):
        changing: Span | None = None
        if parity == PIGGYBACK and player.cell.journal == "none":
            # Parity changes in place, as in a write: this mode promises only a resync for it.
            stripes = frozenset(range(array.context.layout.stripes))
            changing = player.history.begin_write(
                "grow piggyback", player.event, stripes, frozenset()
            )
        joining = [player.disks[disk] for disk in disks]
        if surrogate is not None:
            await array.grow(joining, surrogate=player.disks[surrogate])
        else:
            await array.grow(joining, parity)
        await live_through(player, ("", "", "remount", "cancel", "lose", "lose"))
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
    await player.steps(0, 2)
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
    adds.
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
    if not layout.has_grown:
        return  # the growth was cancelled
    with player.doing("shrink"):
        await player.array.remove_disk(layout.width - 1)
        await live_through(player, ("", "remount", "lose"))


async def theme_restripe(player: Player) -> None:
    await player.step()
    targets = list(targets_of(player.cell.layout))
    player.rng.shuffle(targets)
    if player.at_changes:  # more losses tolerated at the end: what was logged before has few copies
        width = player.array.member_set.config.width
        targets.sort(key=lambda target: -LAYOUTS[target[0]].tolerance(width + target[1]))
    for name, added in targets:
        with suppress(UsageError):  # too little space, or the small members' log is too short
            await restripe(player, name, added)
            break
    await player.steps(1, 4)


async def restripe(player: Player, name: str, added: int) -> None:
    """Restripe the array to layout *name* with *added* more members; random steps go on.

    Raises UsageError if the array cannot be restriped so.
    """
    await player.jobs_end()  # a resync after an earlier cut
    width = player.array.member_set.config.width
    player.array.restripe_operation.plan(added, name, {})
    disks = [player.new_disk() for _ in range(added)]
    roles, begin = player.roles, player.event
    for number, disk in enumerate(disks):
        roles.holders.append((begin, width + number, disk))
    before, then = roles.tolerance(begin), LAYOUTS[name].tolerance(width + added)
    roles.limits.append((begin, min(before, then)))
    with player.doing("restripe"):
        await player.array.restripe([player.disks[disk] for disk in disks], name, {})
        turns = ["", "", "remount", "cancel"]
        if min(before, then):
            turns += ["lose", "lose"]
        await live_through(player, turns)
    config = player.array.member_set.config
    if (config.layout, config.width) == (name, width + added):
        shape = name, width + added
        since = durable_since(
            *(player.record, begin),
            lambda c: (c.layout, c.width) == shape and "restripe" not in c.jobs,
        )
        roles.limits.append((since, then))
    else:  # cancelled
        roles.limits.append((player.event, before))
    await write_beyond(player)


async def theme_leave(player: Player) -> None:
    """Grow perhaps, then let one member or two leave, one after the other.

    The image fits on one member less. Sometimes the array has grown before, and an old member
    leaves; sometimes the member is lost already.
    """
    await player.step()
    if player.rng.random() < 0.3:
        await grow(player)
    for _ in range(player.rng.choice((1, 1, 2))):
        with suppress(UsageError):  # the layout has no fewer members, or the log is too short
            await leave(player)
        await player.step()


async def leave(player: Player) -> None:
    """Let a member leave by a restripe; random steps go on. Raises UsageError if none can."""
    await player.jobs_end()  # a resync after an earlier cut
    rng, roles, member_set = player.rng, player.roles, player.array.member_set
    width = member_set.config.width
    role = rng.randrange(width)
    plan = player.array.removal.plan(member_set.config.record(Role(role)))
    if not isinstance(plan, PlannedRestripe):
        return  # the growth would be undone: that is the theme "shrink"
    turns = ["", "", "remount", "cancel", *(["lose", "lose"] if player.tolerance else [])]
    lost = player.tolerance > 0 and rng.random() < 0.3
    out = roles.take_out(role, player.event) if lost else None
    if lost:
        turns = ["", "remount"]
        await player.array.fail_disk(role)
    first, begin = len(roles.successors), player.event
    for behind in range(role + 1, width):  # it moves up when the removal ends
        roles.successors.append((begin, math.inf, behind, behind - 1))
    with player.doing("leave"):
        await player.array.remove_disk(role)
        await live_through(player, turns)
    now = player.event
    for number in range(first, len(roles.successors)):
        _, _, behind, up = roles.successors[number]
        roles.successors[number] = (begin, now, behind, up)
    if player.array.member_set.config.width == width:
        return  # cancelled
    if out is not None:
        roles.take_in(out, now)
    holders = [roles.holder(r, now) for r in range(width)]
    for behind in range(role + 1, width):
        roles.holders.append((now, behind - 1, holders[behind]))
    roles.holders.append((now, width - 1, NO_DISK))


async def theme_members(player: Player) -> None:
    await player.write(*player.place("many"))
    await player.step()
    for _ in range(player.rng.randint(1, 3)):
        await player.jobs_end()  # a resync after an earlier cut
        turn = player.rng.choice(_TURNS if player.tolerance else _TURNS[:2])
        await turn(player)
        if player.rng.random() < 0.6:
            await player.step()
    await write_beyond(player)


async def _through(player: Player) -> None:
    """Wait until the jobs have ended; some steps and perhaps a remount happen meanwhile."""
    steps = player.rng.randint(0, 3)
    remount = player.rng.random() < 0.3
    started_s = trio.current_time()
    while running := player.array.jobs.running():
        # A remount opens and closes nurseries, so it cannot run inside a cancel scope.
        assert trio.current_time() < started_s + LIMIT_S, [job.status() for job in running]
        for job in running:
            job.limit(None, SLOW_RESTRIPE_BYTES if steps else 0)
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
    assert player.array.rebundle is not None
    _counts, roles = player.array.rebundle.capacity.counts_with(sizes)
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
    await player.steps(0, 2)
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
