"""The theme "pairs" of the campaign: every two operations meet, one held at any of its disk I/Os.

A state is named ``raid5:partial:pairs:trim:shrink:25/w8/m0/k/-``: layout, journal mode, the first
operation, the second one, the disk I/O of the first at which they meet, the seed, and a cut as in
all states (state.py). A meeting is a state, too, that no cut follows: all content is compared when
both operations have ended, when members that failed are back, and when others are lost.

An array under test, *here*, and a small one, *there*, to which volumes can move. On *here*:

    v       the volume that most operations use, in several extents; the last one is unwritten
    u       a bystander between them, in the same dirty regions; nothing may change it
    filler  what is not to be free
    x       on *there*: what is swapped for v

1. Mount, prepare both operations; the disks count from here on.
2. The k-th operation of a disk is held. The second operation runs; the space that it gives up goes
   to a new volume at once, which is written and flushed.
3. The held operation goes on when the second has ended, or after HOLD_S; perhaps it ends in an
   error then, with its disk or alone, or later than `io.timeout_s`. So each flush, superblock, home
   write and read inside a request, a job or a volume's move fails in some meeting.
4. Both end: what runs for more than LIMIT_S is a deadlock.
5. All that runs in the background ends, disks that failed are taken back; content and parity are
   compared with what was written, also when members are lost and have come back.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import (
    ArrayFailedError,
    BusyError,
    NoSpaceError,
    RaidxError,
    UsageError,
    ungrouped,
)
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import Regions
from raidx_fuse.jobs.job import Job
from raidx_fuse.lab.crash.disks import (
    DEAD,
    DEAF,
    DRAGS,
    FULL,
    HANGS,
    PACES,
    SLOW,
    UNFLUSHED,
    PairDisk,
    SectorDisk,
    Trigger,
)
from raidx_fuse.lab.crash.hardware import (
    CHUNK_BYTES,
    MEMBER_BYTES_MIN,
    create_smallest,
    widths_of,
)
from raidx_fuse.lab.crash.history import History, Span, Timeline, WriteSpan
from raidx_fuse.lab.crash.mounting import (
    UNDONE,
    Attendant,
    Stripes,
    VolumePlayer,
    check_parity,
    drawn_moves,
    mounted,
    moves_of,
    take_back,
    wait_for_jobs,
    waits,
)
from raidx_fuse.lab.crash.recording import Recording, Roles
from raidx_fuse.lab.crash.state import Cell, ViolationError, as_violations
from raidx_fuse.lab.crash.sums import check_calm
from raidx_fuse.lab.crash.themes.shapes import TARGETS
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe, cell_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.registry import find_layout, grows_in_place
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.powercut import CutRecord, Image
from raidx_fuse.members.simulated.virtual_time import run, sleep, waiting_places
from raidx_fuse.pool.allocate import unit_bytes
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.move import start_move, start_swap
from raidx_fuse.pool.volume import Volume, parts_of

STRIPES, STRIPES_OF_GRIDS = 128, 48  # of an array: eight and three in a dirty region
EXTENTS, EXTENTS_OF_GRIDS = 12, 5  # of v
THERE = {"raid1": ("raid5", 3)}  # the layout of the other array; else a mirror
SEED = 77  # of the first content: the same for all pairs
READ_BYTES = 32 << 10
MODES = ("none", "partial", "full")  # the weakest one first
MET = 6  # weight of the moments at which the operations meet; other moments have 1


@dataclass(frozen=True)
class Prepared:
    """Layout, regions and first images of each array; the (UUID, history) of the volumes."""

    arrays: tuple[tuple[Layout, Regions, tuple[Image, ...]], ...]
    volumes: tuple[tuple[str, History], ...]
    extent_bytes: int


@lru_cache(maxsize=16)
def prepared(layout: str, journal: str, width: int, killed: bool, sums: bool) -> Prepared:
    """Return the arrays before a pair on *layout* with *width* members.

    *killed*: the mount before was killed while stripes were written past the log. *sums*: they have
    checksums.
    """
    return run(_prepare, layout, journal, width, killed, sums)


async def _prepare(layout: str, journal: str, width: int, killed: bool, sums: bool) -> Prepared:
    other, other_width = THERE.get(layout, ("raid1", 2))
    disks = [
        await _create("here", layout, range(width), sums),
        await _create("there", other, range(width, width + other_width), sums),
    ]
    async with mounted(disks) as pool:
        here, there = pool.arrays
        for volumes in pool.arrays:
            await volumes.array.set("journal", journal)
        context = here.array.context
        grid = context.code.rows > 1
        stripe_bytes = context.code.data_count * context.chunk_bytes
        size = unit_bytes(stripe_bytes) * (1 if grid else 2)
        count = EXTENTS_OF_GRIDS if grid else EXTENTS
        parts = [await here.create(f"f{number}", size) for number in range(2 * count)]
        free = here.free_bytes()
        filler = await here.create("filler", free)
        for part in parts[::2]:
            await here.delete(part)
        v = await here.create("v", count * size)
        assert len(here.extents(v)) == count, "v is to lie in several extents"
        u = parts[1]
        await here.rename(u, "u")
        for part in parts[3::2]:
            await here.delete(part)
        await here.resize(filler, free - min(free // 2 // size, count) * size)
        x = await there.create("x", size)
        timeline, filled = Timeline(), []
        for number, volume in enumerate((v, u, x)):
            sectors = volume.size_bytes // SECTOR_BYTES
            history = History(SEED, sectors, timeline, number=number, name=volume.name)
            span = history.begin_write("fill", -1, frozenset(), frozenset())
            written = sectors - size * (volume is v) // SECTOR_BYTES
            await volume.write(0, history.add_bytes(span, 0, written * SECTOR_BYTES))
            history.end(span, -1)
            flush = history.begin_flush("fill", -1)
            await volume.flush()
            history.end(flush, -1)
            filled.append((volume.uuid, history))
        left: list[tuple[Image, ...]] = []
        if killed:
            # Two stripes of v in each half are written; all that reached the disks stays.
            history = filled[0][1]
            for stripe in (0, 1):
                at = stripe * v.size_bytes // 2 // stripe_bytes * stripe_bytes
                span = history.begin_write("fill", -1, frozenset(), frozenset())
                await v.write(at, history.add_bytes(span, at, stripe_bytes))
                history.end(span, -1)
            history.end(history.begin_flush("fill", -1), -1)
            left = [tuple(disk.cut.state.image.copy() for disk in several) for several in disks]
        shapes = [
            (volumes.array.context.layout, volumes.array.member_set.config.regions)
            for volumes in pool.arrays
        ]
    left = left or [tuple(disk.cut.state.image for disk in several) for several in disks]
    arrays = tuple((*shape, images) for shape, images in zip(shapes, left, strict=True))
    return Prepared(arrays, tuple(filled), size)


async def _create(name: str, layout: str, numbers: range, sums: bool) -> list[SectorDisk]:
    """Make an array on the smallest disks that hold its stripes; the disks have *numbers*."""
    rng = random.Random(0)
    disks: list[SectorDisk] = []

    async def create(size: int) -> ArrayConfig:
        names = [f"disk{number}" for number in numbers]
        disks[:] = [SectorDisk(bytearray(size), rng, name=n, reads_zero=True) for n in names]
        return await create_array(
            *(disks, layout),
            chunk_bytes=CHUNK_BYTES,
            name=name,
            now_s=0,
            with_volume=False,
            sums=sums,
        )

    build = find_layout(layout).build
    grid = build is not None and build(len(numbers)).rows > 1
    await create_smallest(create, MEMBER_BYTES_MIN, STRIPES_OF_GRIDS if grid else STRIPES)
    return disks


Sectors = tuple[int, int, frozenset[int]]  # event, number of the volume, sectors


@dataclass(slots=True)
class Weakness:
    """From event *begin* to *end* an array may lack the members of *count* roles.

    *page*: it lacks no more than a page of one.
    """

    begin: int
    count: int = 1
    page: bool = False
    end: float = math.inf


@dataclass
class PairRoles(Roles):
    """Of how many roles an array may lack the members: an operation decides of which ones."""

    weaknesses: list[Weakness] = field(default_factory=list)

    def lacking(self, moment: int, *, pages: bool = True) -> int:
        """Return how many roles may lack a whole member at *moment*.

        *pages*: those that lack a page count as well.
        """
        return sum(
            weak.count
            for weak in self.weaknesses
            if weak.begin < moment < weak.end and (pages or not weak.page)
        )

    def spare(self, moment: int, *, pages: bool = True) -> int:
        """Return how many more members may be lost at *moment*; below 0: too many are."""
        return self.tolerance(moment) - self.lacking(moment, pages=pages)

    def unexpected(
        self, roles: frozenset[Role], lost: Iterable[int], moment: int
    ) -> frozenset[Role]:
        allowed = len(list(lost)) + self.lacking(moment)
        return roles if len(roles) > allowed else frozenset()

    def losses(
        self, moment: int, generator: random.Random, least: int, disks: Iterable[int]
    ) -> frozenset[int]:
        count = generator.randint(0, max(0, self.spare(moment)))
        return frozenset(generator.sample(list(disks), count))


@dataclass
class PairRecording(Recording):
    """One pair that was run.

    - *uuids*: of the volumes, by name, once they are there;
    - *torn*: by token, the sectors of each volume that lie in a stripe which a write past the log
      may have torn (tokens are the *stripes* of the histories);
    - *unsure*: sectors that a refused write may have changed or made unreadable; *unreadable*:
      those that nothing gives back, which may be what they should, or unreadable;
    - *modes*: (event, journal mode) of the array under test;
    - *spans*: the two operations; *met*: the events at which they met; *steps*: how many disk
      operations the first one took;
    - *void*: the pair cannot be had; *burdened*: more members failed at once than the array can
      spare.
    """

    arrays: list[PairRoles]
    uuids: dict[str, str] = field(default_factory=dict)
    torn: dict[int, dict[int, frozenset[int]]] = field(default_factory=dict)
    unsure: list[Sectors] = field(default_factory=list)
    unreadable: list[Sectors] = field(default_factory=list)
    modes: list[tuple[int, str]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    met: tuple[int, int] = (0, 0)
    steps: int = 0
    void: bool = False
    burdened: bool = False

    @property
    def is_pool(self) -> bool:
        return True

    def weakest_mode(self, moment: int) -> str:
        """Return the weakest journal mode until *moment*.

        A request that is under way while the mode changes is carried out partly in each.
        """
        return min((mode for event, mode in self.modes if event <= moment), key=MODES.index)

    def verb_at(self, moment: int) -> str:
        return "+".join(span.verb for span in self.spans if span.runs(moment)) or "idle"

    def weights(self) -> list[int]:
        low, high = self.met
        weights = []
        for moment in range(len(self.record.events) + 1):
            # Arrays must mount while no more members are out than they can spare. A layout without
            # redundancy never takes a member out.
            redundant = [one for one in self.arrays if one.tolerance(moment)]
            mounts = all(one.spare(moment, pages=False) >= 0 for one in redundant)
            weights.append(mounts * (MET if low <= moment <= high else 1))
        return weights


def since(several: Sequence[Sectors], number: int, moment: int) -> set[int]:
    return {
        sector
        for begin, of, sectors in several
        if of == number and begin < moment
        for sector in sectors
    }


class Shown:
    """A front end: which volumes can be opened."""

    def __init__(self) -> None:
        self.hidden: set[Volume] = set()

    def show(self, volume: Volume) -> None:
        self.hidden.discard(volume)

    def hide(self, volume: Volume) -> None:
        self.hidden.add(volume)


class Scene(VolumePlayer):
    """The mounted arrays of one pair on *cell*, drawn from *seed*."""

    recording: PairRecording
    most_bytes = READ_BYTES

    def __init__(
        self,
        cell: Cell,
        seed: int,
        trigger: Trigger,
        operations: Sequence[Operation],
    ) -> None:
        with_there, latent, killed, larger = (
            any(getattr(one, what) for one in operations)
            for what in ("pool", "latent", "killed", "larger")
        )
        self.cell = cell
        self.rng = random.Random(f"{cell} {seed}")
        self.trigger = trigger
        self.bad_stripes: list[Stripe] = []  # with sectors that became unreadable
        self.record = CutRecord()
        self.disks: list[PairDisk] = []
        self.pace = self.rng.choice(PACES)
        width = self.rng.choice(widths_of(cell.layout))
        before = prepared(cell.layout, cell.journal, width, killed, cell.sums)
        self.extent_bytes = before.extent_bytes
        first = before.volumes[0][1]
        self.timeline = Timeline(first.timeline.known)
        self.uuids = {}
        self.volumes: list[History] = []
        self.recording = PairRecording(
            *(cell, seed, self.record, self.timeline, self.volumes, []),
            zeroed=True,
            has_poison=latent,
            uuids=self.uuids,
            modes=[(-1, cell.journal)],
        )
        for uuid, history in before.volumes:
            if with_there or history.volume != "x":
                self.uuids[history.volume] = uuid
                self.volumes.append(history.after(0, self.timeline))
        if killed and cell.journal == "none":  # the write hole: whoever fails before the resync
            for history in self.volumes:
                everything = frozenset(range(history.sectors))
                self.recording.unreadable.append((-1, history.number, everything))
        for array, (layout, regions, images) in enumerate(before.arrays[: 1 + with_there]):
            self.recording.arrays.append(PairRoles(layout, regions))
            for image in images:
                behind = len(image) // 2 if larger and not array else 0
                noise = random.Random(seed).randbytes(behind)
                self.add_disk(array, bytearray(bytes(image) + noise))
        self.front_end = Shown()
        extents = first.size // self.extent_bytes
        self.hot = self.rng.randrange(extents - 1)  # where both operations like to be
        self.extents = extents

    # -- arrays and disks ----------------------------------------------------------------------

    @property
    def here(self) -> ArrayVolumes:
        return self.pool.arrays[0]

    @property
    def array(self) -> Array:
        return self.here.array

    @property
    def roles(self) -> PairRoles:
        return self.recording.arrays[0]

    def add_disk(self, array: int, image: Image | None = None) -> PairDisk:
        """Make one more disk for *array*, as large as its first one unless it has *image*."""
        if image is None:
            image = bytearray(self.disks[self.recording.array_of.index(array)].size_bytes)
        disk = PairDisk(
            *(image, self.rng, self.trigger),
            name=f"disk{len(self.disks)}",
            record=self.record,
            pace=self.pace,
            under={} if self.recording.has_poison else None,
        )
        self.disks.append(disk)
        self.recording.array_of.append(array)
        return disk

    def disk_of(self, array: int, role: int) -> PairDisk:
        """Return the disk that has *role*, or had it last."""
        member_set = self.pool.arrays[array].array.member_set
        queue = member_set.queues[role]
        held = queue.member.path if queue is not None else None
        path = held or member_set.config.record(Role(role)).path_hint
        return next(disk for disk in self.disks if disk.path == path)

    @asynccontextmanager
    async def mounted(self) -> AsyncIterator[None]:
        arrays: list[list[PairDisk]] = [[] for _ in self.recording.arrays]
        for disk, array in zip(self.disks, self.recording.array_of, strict=True):
            arrays[array].append(disk)
        async with mounted(arrays) as self.pool:
            self.hold_to_laws(self.disks)
            for volumes in self.pool.arrays:
                volumes.front_ends.append(self.front_end)
            yield
            flushes = [(one, one.begin_flush("close", self.event)) for one in self.volumes]
        for history, flush in flushes:
            history.end(flush, self.event)

    def weaken(self, array: int, count: int = 1, *, page: bool = False) -> Weakness:
        """Note that *array* may lack the members of *count* more roles, or a *page*."""
        weak = Weakness(self.event, count, page)
        self.recording.arrays[array].weaknesses.append(weak)
        if array == 0 and not page and not self.spares(0):
            for stripe in self.bad_stripes:  # a page that is one loss too many for its stripe
                self.lose_sectors(stripe, cell_range(0, self.array.context.code.data_count))
        return weak

    @property
    def is_weak(self) -> bool:
        """Whether an array has lacked a member or a page."""
        return any(roles.weaknesses for roles in self.recording.arrays)

    def overburdened(self) -> bool:
        """Return whether an array may lack more members than it can spare."""
        return any(one.spare(self.event + 1, pages=False) < 0 for one in self.recording.arrays)

    def spares(self, array: int) -> bool:
        """Return whether *array* can do without all members that it may lack now."""
        return self.recording.arrays[array].spare(self.event + 1) >= 0

    def excused(self) -> bool:
        return self.overburdened() or bool(self.recording.unreadable)

    def lose_sectors(self, stripe: Stripe, cells: Iterable[CellIndex]) -> None:
        for number, sectors in self._sectors_of(self.here, stripe, cells).items():
            self.recording.unreadable.append((self.event, number, sectors))

    # -- volumes -------------------------------------------------------------------------------

    def find(self, name: str) -> History:
        return next(history for history in self.volumes if history.volume == name)

    def _opened(self, name: str) -> Volume:
        volume = self.volume(self.find(name))
        if volume in self.front_end.hidden:
            raise UsageError(f"volume {name} is not shown")
        volume.note_opened()
        return volume

    async def write(self, name: str, first: int, count: int, *, discard: bool = False) -> None:
        """Write or discard *count* sectors from *first* on, as a front end with an open file."""
        volume = self._opened(name)
        try:
            await self.change(name, first, count, discard=discard)
        finally:
            volume.note_closed()

    async def change(self, name: str, first: int, count: int, *, discard: bool = False) -> None:
        """Write or discard sectors, fewer where the volume ends, and note it."""
        history = self.find(name)
        count = min(count, self.volume(history).size_bytes // SECTOR_BYTES - first)
        if count > 0:
            where = first * SECTOR_BYTES, count * SECTOR_BYTES
            await self.write_volume(history, *where, discard=discard)

    def refuse(self, history: History, span: WriteSpan) -> None:
        """Note that a write ended in an error: what its stripes hold on lost members is gone."""
        super().refuse(history, span)
        if self.recording.weakest_mode(self.event) == "full":
            return
        for token in span.stripes:
            for number, sectors in self.recording.torn[token].items():
                self.recording.unsure.append((span.begin_event, number, sectors))

    def stripes_of(self, writer: History, at: int, length: int) -> tuple[Stripes, Stripes]:
        """Return numbers for the stripes of a write, and for those that it may tear past the log.

        A full stripe may be torn, and so may one whose end is written: earlier requests may have
        filled the rest of it (engine/write/full_stripe.py).
        """
        uuid = self.uuids[writer.volume]
        volumes, volume = self.pool.find(uuid)
        moving = uuid in self.pool.transfers
        layout = volumes.array.context.layout
        last = layout.code.data_count - 1
        stripes: dict[Stripe, bool] = {}
        for offset, size in parts_of(volumes.extents(volume), at, length):
            for chunk in range(offset // CHUNK_BYTES, -(-(offset + size) // CHUNK_BYTES)):
                stripe, cell = layout.locate(Chunk(chunk))
                whole = offset <= chunk * CHUNK_BYTES and (chunk + 1) * CHUNK_BYTES <= offset + size
                torn = moving or (cell == last and whole) or not layout.contiguous
                stripes[stripe] = stripes.get(stripe, False) or torn
        every, full = set(), set()
        for stripe, torn in stripes.items():
            token = len(self.recording.torn)
            cells = cell_range(0, layout.code.data_count)
            found = self._sectors_of(volumes, stripe, cells)
            if moving:  # all that it writes
                own = range(at // SECTOR_BYTES, (at + length) // SECTOR_BYTES)
                found[writer.number] = found.get(writer.number, frozenset()) | frozenset(own)
            self.recording.torn[token] = found
            every.add(token)
            if torn:
                full.add(token)
        return frozenset(every), frozenset(full)

    def _sectors_of(
        self, volumes: ArrayVolumes, stripe: Stripe, cells: Iterable[CellIndex]
    ) -> dict[int, frozenset[int]]:
        """Return the sectors of each volume in data *cells* of *stripe*."""
        layout, table = volumes.array.context.layout, volumes.table()
        found: dict[int, set[int]] = {}
        per_chunk = CHUNK_BYTES // SECTOR_BYTES
        for cell in cells:
            offset = layout.logical(stripe, cell) * CHUNK_BYTES
            for history in self.volumes:
                record = table.find(self.uuids.get(history.volume, ""))
                begin = 0
                for extent in record.extents if record is not None else ():
                    if extent.offset <= offset < extent.end:
                        first = (begin + offset - extent.offset) // SECTOR_BYTES
                        sectors = range(first, first + per_chunk)
                        found.setdefault(history.number, set()).update(sectors)
                    begin += extent.length
        return {number: frozenset(sectors) for number, sectors in found.items()}

    async def flush(self, name: str) -> None:
        await self.flush_volume(self.find(name))

    async def read(self, name: str) -> None:
        """Read a volume as a user does, without a look at its content: writes may be under way."""
        volume = self._opened(name)
        try:
            for at in range(0, volume.size_bytes, READ_BYTES):
                await volume.read(at, min(READ_BYTES, volume.size_bytes - at))
        except RaidxError:
            if not self.excused():
                raise
        finally:
            volume.note_closed()

    def is_excused(self, history: History, sector: int, content: bytes | None) -> bool:
        number, now = history.number, self.event + 1
        if sector in since(self.recording.unsure, number, now):
            return True
        unreadable = since(self.recording.unreadable, number, now)
        return content is None and (self.overburdened() or sector in unreadable)


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
    first = _hot(scene) + scene.rng.randrange(2) * PAGE
    await scene.write("v", first + scene.rng.randrange(4), scene.rng.randint(1, 4))


@Operation("part")
async def part(scene: Scene) -> None:
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
    first, sectors = _hot(scene), _stripe_sectors(scene)
    half = sectors // 2 // PAGE * PAGE or sectors
    await scene.write("v", first, half)
    if half < sectors:
        await scene.write("v", first + half, sectors - half)


@Operation("first")
async def first_write(scene: Scene) -> None:
    first = (scene.extents - 1) * scene.extent_bytes // SECTOR_BYTES
    await scene.write("v", first + scene.rng.randrange(PAGE), scene.rng.randint(1, 2 * PAGE))


@Operation("many")
async def many(scene: Scene) -> None:
    sectors = scene.find("v").size // SECTOR_BYTES
    await scene.write("v", scene.rng.randrange(PAGE), sectors - PAGE)


@Operation("read")
async def read(scene: Scene) -> None:
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
async def trim(scene: Scene) -> None:  # as the command does: no file is open
    await scene.change("v", 0, scene.find("v").size // SECTOR_BYTES, discard=True)
    await scene.flush("v")


# -- volumes -------------------------------------------------------------------------------------


@Operation("create")
async def create(scene: Scene) -> None:
    await create_volume(scene, f"w{len(scene.volumes)}", scene.extent_bytes)


async def create_volume(scene: Scene, name: str, size: int) -> None:
    """Create volume *name* on the array under test, write all of it and flush it."""
    history = History(SEED, 0, scene.timeline, number=len(scene.volumes), name=name)
    scene.volumes.append(history)
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
    await _resize(scene, scene.extents // 2 * scene.extent_bytes)


@Operation("enlarge")
async def enlarge(scene: Scene) -> None:
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
    await _resize(scene, 0)


@Operation("move", pool=True)
async def move(scene: Scene) -> None:
    source, _ = scene.pool.find(scene.uuids["v"])
    target = next(one for one in scene.pool.arrays if one is not source)
    await _moved(scene, partial(start_move, scene.pool, scene.uuids["v"], target.array.name))


@Operation("swap", pool=True)
async def swap(scene: Scene) -> None:
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
            if job.kind in ("rebuild", "replace"):
                job.set_window(scene.rng.choice((1, 4, 16)))
            await ended(scene, job)


@Operation("grow", suits=lambda layout: grows_in_place(layout) or _bundled(layout))
async def grow(scene: Scene) -> None:
    answer = await scene.array.grow([scene.add_disk(0)])
    await _job_ended(scene, answer["job"])


@Operation("restripe", suits=TARGETS.__contains__)
async def restripe(scene: Scene) -> None:
    name, added = scene.rng.choice(TARGETS[scene.cell.layout])
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
    role = scene.rng.randrange(scene.array.member_set.config.width)
    weak = scene.weaken(0) if _bundled(scene.cell.layout) else None
    answer = await scene.array.replace_disk(role, scene.add_disk(0))
    await _job_ended(scene, answer["job"])
    if weak is not None:
        weak.end = scene.event


async def _without_a_member(scene: Scene) -> None:
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
    job_id = await scene.array.start_scrub(repair=scene.rng.random() < 0.5)
    await _job_ended(scene, job_id)


@Operation("resync", killed=True, suits=_redundant)
async def resync(scene: Scene) -> None:
    """Make parity and data agree after a crash; the job has begun with the mount."""
    for job in scene.array.jobs.running():
        await ended(scene, job)


async def _unreadable(scene: Scene) -> None:
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
    layout = scene.array.context.journal.chunk_table.layout
    assert layout is not None
    mover, rng = ChunkMover(scene.array.context, layout), scene.rng
    for _ in range(4):
        moves = drawn_moves(mover, layout, rng, layout.cells)
        if mover.problem(moves) is None:
            await mover.move(moves)


@Operation("mode")
async def mode(scene: Scene) -> None:
    other = scene.rng.choice([one for one in MODES if one != scene.cell.journal])
    scene.recording.modes.append((scene.event, other))
    await scene.array.set("journal", other)
    await scene.array.set("journal", scene.cell.journal)


@Operation("settings")
async def settings(scene: Scene) -> None:
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


Operation("fails", suits=_redundant, away=1)(partial(_under, DEAD))
Operation("hangs", suits=_redundant, away=1)(partial(_under, HANGS))


@Operation("late")
async def late(scene: Scene) -> None:
    """A disk answers late, though not too late."""
    scene.disk_of(0, scene.rng.randrange(scene.array.member_set.config.width)).fail(SLOW)
    await part(scene)
    await scene.flush("v")


# The host of a disk, or of all, is full; or a disk, or every one, refuses its superblocks.
Operation("full", away=1)(partial(_under, FULL, may_be_all=True))
Operation("deaf", away=1)(partial(_under, DEAF, may_be_all=True))
# A flush fails, and what it should have covered is lost.
Operation("unflushed", away=1)(partial(_under, UNFLUSHED, loses_cache=True))


PAIRS = "pairs"
HOLD_S = 8.0  # less than io.timeout_s and what a twin is given: the held operation costs no member
LATE_S = 45.0  # more
FAULT_S = 90.0  # longest time that disks fail
LIMIT_S = 900.0  # of virtual time for both, and for what runs in the background
GOES_ON, AFTER, BREAKS, LATE = "goes on", "after its effect", "breaks", "late"
FATES = (GOES_ON, AFTER, DRAGS, BREAKS, LATE)
ERRS = "errs"
ERRS_SHARE = 0.3  # of the pairs: only the held operation fails
ERRORS = (1, 2, 2, 4)  # tries of it: one error may be transient
LOSE_SHARE = 0.4


def is_pair(cell: Cell) -> bool:
    """Return whether the workloads of *cell* are pairs."""
    return cell.theme.partition(":")[0] == PAIRS


class Meeting(NamedTuple):
    """Which operations meet, and at which disk operation of the first one; None: one by one."""

    first: str
    second: str
    at: int | None

    def __str__(self) -> str:
        return f"{PAIRS}:{self.first}:{self.second}:{'-' if self.at is None else self.at}"

    @staticmethod
    def of(cell: Cell, seed: int) -> Meeting:
        """Return the meeting of *cell*; where its theme leaves it open, *seed* decides."""
        _, *names = cell.theme.split(":")
        if len(names) == 3:
            return Meeting.parse(cell.theme)
        if len(names) == 2:
            return Meeting.parse(f"{cell.theme}:-")
        suited = [name for name, one in OPERATIONS.items() if one.suits(cell.layout)]
        pairs = [(first, second) for first in suited for second in suited]
        random.Random(f"{cell.layout}").shuffle(pairs)
        return Meeting(*pairs[seed % len(pairs)], None)

    @staticmethod
    def parse(theme: str) -> Meeting:
        """Return the meeting of a cell with *theme*. Raises UsageError."""
        try:
            _, first, second, at = theme.split(":")
            meeting = Meeting(first, second, None if at == "-" else int(at))
        except ValueError:
            meeting = Meeting("", "", None)
        if meeting.first not in OPERATIONS or meeting.second not in OPERATIONS:
            raise UsageError(f"{theme!r} is no pair", action=f"write it like {PAIRS}:trim:shrink:7")
        return meeting


class _Pair(Scene):
    """A scene in which two operations meet."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.meeting = meeting = Meeting.parse(cell.theme)
        self.first, self.second = OPERATIONS[meeting.first], OPERATIONS[meeting.second]
        # Apart from the place, a pair does not depend on it: all places of a seed are one run.
        theme = str(meeting._replace(at=0))
        base = Cell(cell.layout, cell.journal, cell.broken, theme, cell.sums)
        rng = random.Random(f"{base} {seed} fate")
        self.fate = rng.choice(FATES)
        self.loses = rng.random() < LOSE_SHARE
        errs = random.Random(f"{base} {seed} errors")  # the other choices stay as they were
        if errs.random() < ERRS_SHARE:
            self.fate = ERRS
        trigger = Trigger(
            meeting.at or None,
            after=self.fate == AFTER,
            breaks=self.fate in (BREAKS, ERRS),
            errors=errs.choice(ERRORS) if self.fate == ERRS else 0,
        )
        super().__init__(base, seed, trigger, (self.first, self.second))
        self.recording.cell = cell

    async def play(self) -> PairRecording:
        """Run the pair; return what happened. Raises ViolationError."""
        recording = self.recording
        suits = [operation.suits(self.cell.layout) for operation in (self.first, self.second)]
        lacking = self.first.away + self.second.away
        if not all(suits) or (lacking > 1 and self.first.prepare and self.second.prepare):
            recording.void = True
            return recording
        with ungrouped():
            async with self.mounted():
                for operation in (self.first, self.second):
                    if operation.prepare is not None:
                        try:
                            await operation.prepare(self)
                        except RaidxError as error:
                            if not isinstance(error, REFUSALS) and not self.is_weak:
                                raise
                            recording.void = True
                            return recording
                begin = self.event
                await self._meet()
                recording.met = begin, self.event
                await self._settle()
        return recording

    # -- both operations -----------------------------------------------------------------------

    async def _meet(self) -> None:
        trigger = self.trigger
        first, second, given = trio.Event(), trio.Event(), trio.Event()
        stuck: ViolationError | None = None
        async with trio.open_nursery() as nursery:
            trigger.armed = True
            nursery.start_soon(self._run, self.first, first)
            if self.meeting.at != 0:
                nursery.start_soon(self._note_first, first)
                await _either(trigger.reached, first)
                if trigger.reached.is_set():
                    self._note_held()
            nursery.start_soon(self._run, self.second, second)
            nursery.start_soon(self._give_away, second, given)
            with trio.move_on_after(LATE_S if self.fate == LATE else HOLD_S) as patience:
                await given.wait()
            if self.fate == LATE and not patience.cancelled_caught and trigger.reached.is_set():
                await sleep(LATE_S)
            if self.fate == DRAGS:
                with trio.move_on_after(LIMIT_S):
                    await given.wait()
                for disk in self.disks:
                    if disk.fault == DRAGS:
                        disk.revive()
            self._let_go()
            with trio.move_on_after(FAULT_S):
                for event in (first, second, given):
                    await event.wait()
            for disk in self.disks:  # else requests that no member can be spared for wait on
                disk.revive()
            with trio.move_on_after(LIMIT_S) as limit:
                for event in (first, second, given):
                    await event.wait()
            if limit.cancelled_caught:
                stuck = _stuck("the operations")
                nursery.cancel_scope.cancel()
        if stuck is not None:
            raise stuck

    async def _note_first(self, first: trio.Event) -> None:
        await first.wait()
        self.trigger.armed = False
        self.recording.steps = self.trigger.count

    def _note_held(self) -> None:
        holder = self.trigger.holder
        if self.fate == DRAGS:
            self.trigger.released.set()
            for disk, array in zip(self.disks, self.recording.array_of, strict=True):
                if array == 0:
                    disk.fail(DRAGS)
        if holder is not None and self.fate in (BREAKS, ERRS, LATE):
            array = self.recording.array_of[self.disks.index(holder)]
            self.weaken(array)
            holder.loses_cache = self.spares(array)

    def _let_go(self) -> None:
        """Let the held operation go on; a flush loses no cache that has the only copy by now."""
        holder = self.trigger.holder
        if holder is not None and holder.loses_cache:
            array = self.recording.array_of[self.disks.index(holder)]
            holder.loses_cache = self.spares(array)
        self.trigger.released.set()

    async def _run(self, operation: Operation, done: trio.Event) -> None:
        span = Span(operation.name, self.event, 0)
        self.recording.spans.append(span)
        try:
            await operation.act(self)
        except RaidxError as error:  # of users' requests Scene is stricter
            if not isinstance(error, REFUSALS) and not self.is_weak:
                raise
        span.end(self.event, 0)
        done.set()

    async def _give_away(self, second: trio.Event, given: trio.Event) -> None:
        """When the second operation has ended, give what is free to a new volume."""
        await second.wait()
        unit = self.extent_bytes
        size = min(self.here.free_bytes(), self.extents * unit) // unit * unit
        if size and self.trigger.reached.is_set():
            await create_volume(self, f"w{len(self.volumes)}", size)
        given.set()

    # -- afterwards ----------------------------------------------------------------------------

    async def _settle(self) -> None:
        recording = self.recording
        for disk in self.disks:
            disk.revive()
        await sleep(1.0)  # what hung reaches the disks
        await self._rest()
        await self.compare_volumes("after both")
        await self._take_back()
        if not recording.burdened:
            for volumes in self.pool.arrays:
                await check_parity(volumes.array)
            if self.loses:
                await self._lose()
        for history in self.volumes:
            if history.size and history.volume in self.uuids:
                await self.flush(history.volume)
        await self.compare_volumes("at the end")
        # A disk that breaks, errs or is late may have lost writes.
        keeps_writes = self.fate not in (BREAKS, ERRS, LATE) and not recording.has_poison
        if keeps_writes and not recording.burdened:
            check_calm([volumes.array for volumes in self.pool.arrays], "after both")

    async def _rest(self) -> None:
        """Wait until all jobs have ended and nothing is left to wipe."""
        with trio.move_on_after(LIMIT_S) as limit:
            await wait_for_jobs(self.pool)
        if limit.cancelled_caught:
            raise _stuck("jobs")

    async def _take_back(self) -> None:
        """Take the members back that are lost; they are caught up."""
        for number, volumes in enumerate(self.pool.arrays):
            array = volumes.array
            gone = [self.disk_of(number, role) for role in sorted(array.member_set.lost)]
            for disk in gone:
                await take_back(array, disk)
        await self._rest()
        lost = [sorted(v.array.member_set.lost) for v in self.pool.arrays]
        if self.overburdened():
            self.recording.burdened = True
        elif not any(lost):
            for volumes in self.pool.arrays:  # else a cut makes mended pages unreadable again
                await volumes.array.flush()
            for roles in self.recording.arrays:
                for weak in roles.weaknesses:
                    weak.end = min(weak.end, self.event)
        else:
            raise ViolationError(f"roles {lost} are lost after their members are back")
        await self.compare_volumes("after the return")

    async def _lose(self) -> None:
        """Lose as many members as the array tolerates; take them back."""
        rng, array = self.rng, self.array
        width = array.member_set.config.width
        roles = rng.sample(range(width), array.context.code.tolerance)
        if not roles:
            return
        weak = self.weaken(0, len(roles))
        for role in roles:
            await array.fail_disk(role)
        await self.compare_volumes("without members")
        if rng.random() < 0.5:
            await self.write("u", rng.randrange(8), rng.randint(1, 8))
        for role in roles:
            await take_back(array, self.disk_of(0, role))
            await self._rest()
        weak.end = self.event
        await self.compare_volumes("after the return of members")
        for volumes in self.pool.arrays:
            await check_parity(volumes.array)


def _stuck(what: str) -> ViolationError:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return ViolationError(f"{what} never end:\n" + "\n".join(waiting_places(root)))


async def _either(*events: trio.Event) -> None:
    """Wait until one of *events* has happened."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)


def record_pair(cell: Cell, seed: int) -> PairRecording:
    """Run pair *seed* on *cell*. Raises ViolationError, and whatever the arrays raise."""
    pair = _Pair(cell, seed)
    with as_violations("the pair never ends"):
        return run(pair.play, seed=seed)
