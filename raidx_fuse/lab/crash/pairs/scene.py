"""The arrays and volumes on which two operations meet, and what they do to the volumes' content.

An array under test, *here*, and a small one, *there*, to which volumes can move. On *here*:

    v       the volume that most operations use, in several extents; the last one is unwritten
    u       a bystander between them, in the same dirty regions; nothing may change it
    filler  what is not to be free
    x       on *there*: what is swapped for v

One `History` (history.py) per volume says what every sector may hold.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache

from raidx_fuse.array.array import Array
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.format.configuration.volumes import Extent
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import Regions
from raidx_fuse.format.shapes import layout_of
from raidx_fuse.lab.crash.disks import PACES, SectorDisk
from raidx_fuse.lab.crash.hardware import (
    CHUNK_BYTES,
    MEMBER_BYTES_MIN,
    MEMBER_UNIT_BYTES,
    widths_of,
)
from raidx_fuse.lab.crash.history import History, Span, Timeline, WriteSpan
from raidx_fuse.lab.crash.mounting import mounted
from raidx_fuse.lab.crash.pairs.disks import PairDisk, Trigger
from raidx_fuse.lab.crash.recording import Recording, Roles
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.volumes import Stripes, VolumePlayer
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe, cell_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.powercut import CutRecord, Image
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.allocate import unit_bytes
from raidx_fuse.pool.volume import Volume, parts_of
from raidx_fuse.pool.volume_table import ArrayVolumes

STRIPES, STRIPES_OF_GRIDS = 128, 48  # of an array: eight and three in a dirty region
EXTENTS, EXTENTS_OF_GRIDS = 12, 5  # of v
THERE = {"raid1": ("raid5", 3)}  # the layout of the other array; else a mirror
MEMBER_BYTES_MAX = 16 << 20
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
def prepared(layout: str, journal: str, width: int, killed: bool) -> Prepared:
    """Return the arrays before a pair on *layout* with *width* members.

    *killed*: the mount before was killed while stripes were written past the log.
    """
    return run(_prepare, layout, journal, width, killed)


async def _prepare(layout: str, journal: str, width: int, killed: bool) -> Prepared:
    other, other_width = THERE.get(layout, ("raid1", 2))
    disks = [
        await _create("here", layout, range(width)),
        await _create("there", other, range(width, width + other_width)),
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
            await _write_again(v, filled[0][1], stripe_bytes)
            left = [tuple(disk.cut.state.image.copy() for disk in several) for several in disks]
        shapes = [
            (volumes.array.context.layout, volumes.array.member_set.config.regions)
            for volumes in pool.arrays
        ]
    left = left or [tuple(disk.cut.state.image for disk in several) for several in disks]
    arrays = tuple((*shape, images) for shape, images in zip(shapes, left, strict=True))
    return Prepared(arrays, tuple(filled), size)


async def _write_again(volume: Volume, history: History, stripe_bytes: int) -> None:
    """Write the first two stripes of *volume* in each half; all that reached the disks stays."""
    for stripe in (0, 1):
        at = stripe * volume.size_bytes // 2 // stripe_bytes * stripe_bytes
        span = history.begin_write("fill", -1, frozenset(), frozenset())
        await volume.write(at, history.add_bytes(span, at, stripe_bytes))
        history.end(span, -1)
    history.end(history.begin_flush("fill", -1), -1)


async def _create(name: str, layout: str, numbers: range) -> list[SectorDisk]:
    """Make an array on the smallest disks that hold its stripes; the disks have *numbers*."""
    rng = random.Random(0)
    for size in range(MEMBER_BYTES_MIN, MEMBER_BYTES_MAX, MEMBER_UNIT_BYTES):
        disks = [
            SectorDisk(bytearray(size), rng, name=f"disk{number}", reads_zero=True)
            for number in numbers
        ]
        with suppress(UsageError):  # too small for the metadata
            config = await create_array(
                disks, layout, chunk_bytes=CHUNK_BYTES, name=name, now_s=0, with_volume=False
            )
            built = layout_of(config)
            if built.stripes >= (STRIPES if built.code.rows == 1 else STRIPES_OF_GRIDS):
                return disks
    raise AssertionError(f"{layout} over {len(numbers)} members needs larger members")


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
        """Return the operations that run at *moment*."""
        return "+".join(span.verb for span in self.spans if span.runs(moment)) or "idle"

    def weights(self) -> list[int]:
        low, high = self.met
        moments = range(len(self.record.events) + 1)
        return [self._mounts(m) * (MET if low <= m <= high else 1) for m in moments]

    def _mounts(self, moment: int) -> bool:
        """Return whether the arrays must mount: no more members are out than they can spare.

        A layout without redundancy never takes a member out.
        """
        redundant = [one for one in self.arrays if one.tolerance(moment)]
        return all(one.spare(moment, pages=False) >= 0 for one in redundant)


def since(several: Sequence[Sectors], number: int, moment: int) -> set[int]:
    """Return the sectors of volume *number* that *several* name before *moment*."""
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
        """Show *volume*."""
        self.hidden.discard(volume)

    def hide(self, volume: Volume) -> None:
        """Show *volume* no longer."""
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
        *,
        with_there: bool,
        latent: bool,
        killed: bool,
        larger: bool,
    ) -> None:
        self.cell = cell
        self.rng = random.Random(f"{cell} {seed}")
        self.trigger = trigger
        self.bad_stripes: list[Stripe] = []  # with sectors that became unreadable
        self.record = CutRecord()
        self.disks: list[PairDisk] = []
        self.pace = self.rng.choice(PACES)
        width = self.rng.choice(widths_of(cell.layout))
        before = prepared(cell.layout, cell.journal, width, killed)
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
        """The volumes of the array under test."""
        return self.pool.arrays[0]

    @property
    def array(self) -> Array:
        """The array under test."""
        return self.here.array

    @property
    def roles(self) -> PairRoles:
        """What the array under test may lack."""
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
        """Mount the arrays; unmount them cleanly: all is durable then."""
        arrays: list[list[PairDisk]] = [[] for _ in self.recording.arrays]
        for disk, array in zip(self.disks, self.recording.array_of, strict=True):
            arrays[array].append(disk)
        async with mounted(arrays) as self.pool:
            self.hold_to_laws(self.disks)
            for volumes in self.pool.arrays:
                volumes.attach(self.front_end)
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
        """Return whether requests may end in errors."""
        return self.overburdened() or bool(self.recording.unreadable)

    def lose_sectors(self, stripe: Stripe, cells: Iterable[CellIndex]) -> None:
        """Note that what *cells* of *stripe* of the array under test hold may be unreadable."""
        for number, sectors in self._sectors_of(self.here, stripe, cells).items():
            self.recording.unreadable.append((self.event, number, sectors))

    # -- volumes -------------------------------------------------------------------------------

    def find(self, name: str) -> History:
        """Return the history of the volume of that name."""
        return next(history for history in self.volumes if history.volume == name)

    def _opened(self, name: str) -> Volume:
        """Open a volume. Raises UsageError if it is not shown."""
        volume = self.volume(self.find(name))
        if volume in self.front_end.hidden:
            raise UsageError(f"volume {name} is not shown")
        volume.note_opened()
        return volume

    def track(self, name: str) -> History:
        """Return the history of a volume that is to be created."""
        history = History(SEED, 0, self.timeline, number=len(self.volumes), name=name)
        self.volumes.append(history)
        return history

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
            self.recording.torn[token] = self._sectors_in(volumes, stripe, writer, at, length)
            every.add(token)
            if torn:
                full.add(token)
        return frozenset(every), frozenset(full)

    def _sectors_in(
        self, volumes: ArrayVolumes, stripe: Stripe, writer: History, at: int, length: int
    ) -> dict[int, frozenset[int]]:
        """Return the sectors of each volume in *stripe*, and all that the *writer* writes."""
        layout = volumes.array.context.layout
        found = self._sectors_of(volumes, stripe, cell_range(0, layout.code.data_count))
        if self.uuids[writer.volume] in self.pool.transfers:
            own = range(at // SECTOR_BYTES, (at + length) // SECTOR_BYTES)
            found[writer.number] = found.get(writer.number, frozenset()) | frozenset(own)
        return found

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
                if record is not None:
                    for begin in _inside(record.extents, offset):
                        first = begin // SECTOR_BYTES
                        found.setdefault(history.number, set()).update(
                            range(first, first + per_chunk)
                        )
        return {number: frozenset(sectors) for number, sectors in found.items()}

    async def flush(self, name: str) -> None:
        """Flush a volume, and note it."""
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


def _inside(extents: Sequence[Extent], offset: int) -> Iterator[int]:
    """Yield where byte *offset* of the array lies in a volume of *extents*, if it does."""
    begin = 0
    for extent in extents:
        if extent.offset <= offset < extent.end:
            yield begin + offset - extent.offset
        begin += extent.length
