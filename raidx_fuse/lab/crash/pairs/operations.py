"""The operations that meet: each is a coroutine on a `Scene` (scene.py), and what it needs before.

An operation raises what it may be refused with (`REFUSALS`): then nothing has happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import trio

from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import (
    ArrayFailedError,
    BusyError,
    NoSpaceError,
    RaidxError,
    UsageError,
)
from raidx_fuse.jobs.job import Job
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.mounting import Attendant, moves_of, waits
from raidx_fuse.lab.crash.pairs import disks
from raidx_fuse.lab.crash.pairs.scene import MODES, Scene
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.lab.crash.themes.restripe import restripes_of
from raidx_fuse.lab.crash.volumes import UNDONE
from raidx_fuse.layouts.numbers import Chunk, MemberChunk, Role, cell_range
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.registry import find_layout, grows_in_place
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.pool.move import start_move, start_swap

REFUSALS = (BusyError, NoSpaceError, UsageError, ArrayFailedError)
RESUMED_S = 10.0
PAGE = CHUNK_BYTES // SECTOR_BYTES

Act = Callable[[Scene], Awaitable[None]]
OPERATIONS: dict[str, Operation] = {}


@dataclass(slots=True)
class Operation:
    """What can meet another one: it is the decorator of its *act*.

    - *prepare*: what must be done before the two meet;
    - *suits*: whether a layout can have it;
    - *pool*: it needs a second array; *latent*: disks with sectors that cannot be read; *killed*: a
      mount that was killed before; *larger*: disks with space behind the data;
    - *away*: how many members it makes the array lack.
    """

    name: str
    act: Act = field(init=False)
    _: KW_ONLY
    prepare: Act | None = None
    suits: Callable[[str], bool] = lambda layout: True
    pool: bool = False
    latent: bool = False
    killed: bool = False
    larger: bool = False
    away: int = 0

    def __call__(self, act: Act) -> Act:
        self.act = act
        OPERATIONS[self.name] = self
        return act


def _redundant(layout: str) -> bool:
    return find_layout(layout).tolerance(3) > 0


def _bundled(layout: str) -> bool:
    return find_layout(layout).bundled


# -- requests of users ---------------------------------------------------------------------------


def _stripe_sectors(scene: Scene) -> int:
    context = scene.array.context
    return context.code.data_count * context.chunk_bytes // SECTOR_BYTES


def _hot(scene: Scene) -> int:
    """Return the first sector of an extent of v: often that where the other operation is, too.

    Or the one beside it, in the same region of the dirty bitmap and in another one of what changed.
    """
    beside = min(scene.hot ^ 1, scene.extents - 2)
    anywhere = scene.rng.randrange(scene.extents - 1)
    extent = scene.rng.choice((scene.hot, scene.hot, beside, beside, anywhere))
    return extent * scene.extent_bytes // SECTOR_BYTES


@Operation("small")
async def small(scene: Scene) -> None:
    """Write some sectors of one chunk."""
    first = _hot(scene) + scene.rng.randrange(2) * PAGE
    await scene.write("v", first + scene.rng.randrange(4), scene.rng.randint(1, 4))


@Operation("part")
async def part(scene: Scene) -> None:
    """Write across the border of two chunks."""
    await scene.write("v", _hot(scene) + scene.rng.randint(3, 7), scene.rng.randint(6, 10))


@Operation("most")
async def most(scene: Scene) -> None:
    """Write a stripe but for a sector: its parity goes into the log with it."""
    await scene.write("v", _hot(scene) + 1, _stripe_sectors(scene) - 1)


@Operation("stripe")
async def stripe(scene: Scene) -> None:
    """Write a whole stripe, past the log."""
    sectors = _stripe_sectors(scene)
    stripes = max(1, scene.extent_bytes // SECTOR_BYTES // sectors)  # wider ones after a growth
    await scene.write("v", _hot(scene) + scene.rng.randrange(stripes) * sectors, sectors)


@Operation("end")
async def end(scene: Scene) -> None:
    """Write a stripe from its front to its end, in several requests."""
    first, sectors = _hot(scene), _stripe_sectors(scene)
    half = sectors // 2 // PAGE * PAGE or sectors
    await scene.write("v", first, half)
    if half < sectors:
        await scene.write("v", first + half, sectors - half)


@Operation("first")
async def first_write(scene: Scene) -> None:
    """Write what was never written."""
    first = (scene.extents - 1) * scene.extent_bytes // SECTOR_BYTES
    await scene.write("v", first + scene.rng.randrange(PAGE), scene.rng.randint(1, 2 * PAGE))


@Operation("many")
async def many(scene: Scene) -> None:
    """Write all extents in one request."""
    sectors = scene.find("v").size // SECTOR_BYTES
    await scene.write("v", scene.rng.randrange(PAGE), sectors - PAGE)


@Operation("read")
async def read(scene: Scene) -> None:
    """Read all."""
    await scene.read("v")


@Operation("flush")
async def flush(scene: Scene) -> None:
    """Flush what one small write has left."""
    await scene.write("u", 0, 2)
    await scene.flush("v")
    await scene.flush("u")


@Operation("discard")
async def discard(scene: Scene) -> None:
    """Discard two extents, as an open file."""
    size = scene.extent_bytes // SECTOR_BYTES
    await scene.write("v", _hot(scene), scene.rng.randint(size // 2, 2 * size), discard=True)


@Operation("trim")
async def trim(scene: Scene) -> None:
    """Discard all and flush, as the command does: no file is open."""
    await scene.change("v", 0, scene.find("v").size // SECTOR_BYTES, discard=True)
    await scene.flush("v")


# -- volumes -------------------------------------------------------------------------------------


@Operation("create")
async def create(scene: Scene) -> None:
    """Create a volume, write to it and flush it."""
    await create_volume(scene, f"w{len(scene.volumes)}", scene.extent_bytes)


async def create_volume(scene: Scene, name: str, size: int) -> None:
    """Create volume *name* on the array under test, write all of it and flush it."""
    history = scene.track(name)
    try:
        await scene.create_volume(history, scene.here, size)
    except RaidxError as error:
        if not isinstance(error, UNDONE) and not scene.overburdened():
            raise
        return
    await scene.write(name, 0, size // SECTOR_BYTES)
    await scene.flush(name)


@Operation("shrink")
async def shrink(scene: Scene) -> None:
    """Make v smaller: what it gives up is wiped and free then."""
    await _resize(scene, scene.extents // 2 * scene.extent_bytes)


@Operation("enlarge")
async def enlarge(scene: Scene) -> None:
    """Make v larger."""
    await _resize(scene, (scene.extents + 1) * scene.extent_bytes)


async def _resize(scene: Scene, size: int) -> None:
    volumes, _ = scene.pool.find(scene.uuids["v"])
    history = scene.find("v")
    before = history.size
    await scene.resize_volume(history, size)
    if not size or size < before:
        await volumes.wiped()


@Operation("delete")
async def delete(scene: Scene) -> None:
    """Delete v: its places are wiped and free then."""
    await _resize(scene, 0)


@Operation("move", pool=True)
async def move(scene: Scene) -> None:
    """Move v to the other array."""
    source, _ = scene.pool.find(scene.uuids["v"])
    target = next(one for one in scene.pool.arrays if one is not source)
    await _moved(scene, partial(start_move, scene.pool, scene.uuids["v"], target.array.name))


@Operation("swap", pool=True)
async def swap(scene: Scene) -> None:
    """Let v and x change places."""
    await _moved(scene, partial(start_swap, scene.pool, scene.uuids["v"], scene.uuids["x"]))


async def _moved(scene: Scene, start: Callable[[], Awaitable[int]]) -> None:
    source, _ = scene.pool.find(scene.uuids["v"])
    await start()
    for job in moves_of(scene.pool):
        job.set_window(scene.rng.choice((1, 1 << 14)))
        await ended(scene, job)
    await source.wiped()


# -- the layout and the members ------------------------------------------------------------------


async def ended(scene: Scene, job: Job) -> None:
    """Return when *job* has ended. Raises ViolationError if it failed.

    One that waits for a lost member goes on when that is back.
    """
    attendant = Attendant(scene.pool)
    while not job.finished.is_set():
        if waits(job.status()):
            return
        with trio.move_on_after(RESUMED_S):
            await job.finished.wait()
        attendant.attend(job)
    if job.state not in ("done", "cancelled") and not scene.is_weak:
        raise ViolationError(f"{job.kind} ended as {job.state}: {job.error}")


async def _job_ended(scene: Scene, job_id: int) -> None:
    for job in scene.array.jobs.running():
        if job.job_id == job_id:
            window = getattr(job, "set_window", None)
            if window is not None and job.kind in ("rebuild", "replace"):
                window(scene.rng.choice((1, 4, 16)))
            await ended(scene, job)


@Operation("grow", suits=lambda layout: grows_in_place(layout) or _bundled(layout))
async def grow(scene: Scene) -> None:
    """Let a member join."""
    answer = await scene.array.grow([scene.add_disk(0)])
    await _job_ended(scene, answer["job"])


@Operation("restripe", suits=lambda layout: bool(restripes_of(layout)))
async def restripe(scene: Scene) -> None:
    """Rewrite all content in another layout."""
    name, added = scene.rng.choice(restripes_of(scene.cell.layout))
    width = scene.array.member_set.config.width + added
    tolerance = find_layout(name).tolerance(width)
    limits = scene.roles.limits
    before = scene.roles.tolerance(scene.event)
    limits.append((scene.event, min(before, tolerance)))
    answer = await scene.array.restripe([scene.add_disk(0) for _ in range(added)], name, {})
    await _job_ended(scene, answer["job"])
    config = scene.array.member_set.config
    if (config.layout, config.width) == (name, width):
        limits.append((scene.event, tolerance))


@Operation("remove", prepare=grow, suits=lambda layout: grows_in_place(layout))
async def remove(scene: Scene) -> None:
    """Let a member leave."""
    width = scene.array.member_set.config.width
    role = scene.rng.choice((width - 1, scene.rng.randrange(width)))
    job = (await scene.array.remove_disk(role)).get("job")
    if job is not None:
        await _job_ended(scene, job)


@Operation("larger", larger=True, suits=lambda layout: not _bundled(layout))
async def larger(scene: Scene) -> None:
    """Use what all members have behind the data, and write there."""
    await scene.array.larger_members.use()
    unit = scene.extent_bytes
    free = scene.here.free_bytes() // unit * unit
    await create_volume(scene, f"w{len(scene.volumes)}", min(free, scene.extents * unit))


@Operation("replace", suits=_redundant)
async def replace(scene: Scene) -> None:
    """Copy a member to another disk."""
    role = scene.rng.randrange(scene.array.member_set.config.width)
    weak = scene.weaken(0) if _bundled(scene.cell.layout) else None
    answer = await scene.array.replace_disk(role, scene.add_disk(0))
    await _job_ended(scene, answer["job"])
    if weak is not None:
        weak.end = scene.event


async def _without_a_member(scene: Scene) -> None:
    """Take a member out, and write without it."""
    role = scene.rng.randrange(scene.array.member_set.config.width)
    scene.weaken(0)
    await scene.array.fail_disk(role)
    scene.disk_of(0, role).pull()
    await part(scene)
    await stripe(scene)
    await scene.flush("v")


def _lost_role(scene: Scene) -> int:
    return min(scene.array.member_set.lost, default=0)


@Operation("rebuild", prepare=_without_a_member, suits=_redundant, away=1)
async def rebuild(scene: Scene) -> None:
    """Rebuild a role onto a new disk."""
    answer = await scene.array.replace_disk(_lost_role(scene), scene.add_disk(0))
    await _job_ended(scene, answer["job"])


@Operation("return", prepare=_without_a_member, suits=_redundant, away=1)
async def come_back(scene: Scene) -> None:
    """Take a member back: it is caught up."""
    role = _lost_role(scene)
    answer = await scene.array.replace_disk(role, scene.disk_of(0, role))
    await _job_ended(scene, answer["job"])


Operation("leave", suits=_redundant, away=1)(_without_a_member)


@Operation("scrub")
async def scrub(scene: Scene) -> None:
    """Compare parity with data."""
    job_id = await scene.array.start_scrub(repair=scene.rng.random() < 0.5)
    await _job_ended(scene, job_id)


@Operation("resync", killed=True, suits=_redundant)
async def resync(scene: Scene) -> None:
    """Make parity and data agree after a crash; the job has begun with the mount."""
    for job in scene.array.jobs.running():
        await ended(scene, job)


async def _unreadable(scene: Scene) -> None:
    """Let a sector of v become unreadable."""
    context, lost = scene.array.context, scene.array.member_set.lost
    await context.journal.drain()
    volumes, volume = scene.pool.find(scene.uuids["v"])
    others = [extent for extent in range(scene.extents - 1) if extent != scene.hot]
    extent = volumes.extents(volume)[scene.rng.choice(others)]  # where nothing was written
    stripe, _ = context.layout.locate(Chunk(extent.offset // CHUNK_BYTES))
    cells = cell_range(0, context.code.data_count)
    present = [c for c in cells if context.position(stripe, c)[0] not in lost]
    if not present:
        raise UsageError("the content of v lies on the lost member alone")
    cell = scene.rng.choice(present)
    role, start = context.position(stripe, cell)
    scene.weaken(0, page=True)
    scene.bad_stripes.append(stripe)
    if len(lost) == context.code.tolerance:
        gone = [c for c in cells if context.position(stripe, c)[0] in lost]
        scene.lose_sectors(stripe, [cell])
        scene.lose_sectors(stripe, gone)
    disk, event = scene.disk_of(0, role), scene.event
    at = start + scene.rng.randrange(PAGE) * SECTOR_BYTES
    content = await disk.poison(at)
    scene.recording.poisoned.append((event, scene.disks.index(disk), at, content))


@Operation("mend", prepare=_unreadable, suits=_redundant, latent=True, away=1)
async def mend(scene: Scene) -> None:
    """Read what cannot be read: it is mended."""
    await scene.read("v")


async def _unreadable_without_a_member(scene: Scene) -> None:
    await _without_a_member(scene)
    await _unreadable(scene)


@Operation("give-up", prepare=_unreadable_without_a_member, suits=_redundant, latent=True, away=2)
async def give_up(scene: Scene) -> None:
    """Write over what cannot be read or recovered."""
    await scene.read("v")
    for _, number, sectors in scene.recording.unreadable[:1]:
        assert scene.volumes[number].volume == "v"
        await scene.write("v", min(sectors), len(sectors))


@Operation("checkpoint")
async def checkpoint(scene: Scene) -> None:
    """Place what the log holds."""
    await part(scene)
    await small(scene)
    await scene.array.context.journal.place()


@Operation("clean")
async def clean(scene: Scene) -> None:
    """Clear the marks of regions that have had no write for a while."""
    await stripe(scene)
    await scene.array.context.dirty_bitmap.clean_quiet(all_regions=True)


@Operation("tune", suits=_bundled)
async def tune(scene: Scene) -> None:
    """Move some chunks of bundles."""
    layout = scene.array.context.layout
    assert isinstance(layout, BundleLayout)
    mover, rng = ChunkMover(scene.array.context, layout), scene.rng
    for _ in range(4):
        cell = rng.randrange(layout.cells)
        role = Role(rng.randrange(layout.width))
        moves = mover.exchange(cell, rng.randrange(layout.cells))
        if rng.random() < 0.5 and len(free := layout.free_chunks(role)):
            moves = [(cell, role, MemberChunk(int(rng.choice(free.tolist()))))]
        if mover.problem(moves) is None:
            await mover.move(moves)


@Operation("mode")
async def mode(scene: Scene) -> None:
    """Change the journal mode, and back."""
    other = scene.rng.choice([one for one in MODES if one != scene.cell.journal])
    scene.recording.modes.append((scene.event, other))
    await scene.array.set("journal", other)
    await scene.array.set("journal", scene.cell.journal)


@Operation("settings")
async def settings(scene: Scene) -> None:
    """Change settings that are kept in the superblocks."""
    await scene.array.set("cache.size", scene.rng.choice(("0", "65536", "1048576")))
    await scene.array.set("parity.policy", scene.rng.choice(("traditional", "rmw", "rcw", "bpu")))


# -- faults --------------------------------------------------------------------------------------


async def _under(
    fault: str, scene: Scene, *, loses_cache: bool = False, may_be_all: bool = False
) -> None:
    """Let a disk, or every one, have *fault*, and go on to write and flush."""
    every = may_be_all and scene.rng.random() < 0.5
    width = scene.array.member_set.config.width
    roles = range(width) if every else [scene.rng.randrange(width)]
    scene.weaken(0, len(roles))
    spared = scene.spares(0)  # else the cache may have the only copy
    for role in roles:
        scene.disk_of(0, role).fail(fault, loses_cache=loses_cache and spared)
    await part(scene)
    await small(scene)
    await scene.flush("v")


Operation("fails", suits=_redundant, away=1)(partial(_under, disks.DEAD))
Operation("hangs", suits=_redundant, away=1)(partial(_under, disks.HANGS))


@Operation("late")
async def late(scene: Scene) -> None:
    """A disk answers late, though not too late."""
    scene.disk_of(0, scene.rng.randrange(scene.array.member_set.config.width)).fail(disks.SLOW)
    await part(scene)
    await scene.flush("v")


# The host of a disk, or of all, is full; or a disk, or every one, refuses its superblocks.
Operation("full", away=1)(partial(_under, disks.FULL, may_be_all=True))
Operation("deaf", away=1)(partial(_under, disks.DEAF, may_be_all=True))
# A flush fails, and what it should have covered is lost.
Operation("unflushed", away=1)(partial(_under, disks.UNFLUSHED, loses_cache=True))
