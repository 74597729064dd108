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
from raidx_fuse.format.shapes import layout_of
from raidx_fuse.lab.crash.disks import PACES, SectorDisk
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, MEMBER_BYTES_MIN, MEMBER_UNIT_BYTES, WIDTHS
from raidx_fuse.lab.crash.history import History, Timeline, WriteSpan
from raidx_fuse.lab.crash.laws import DiskLaws, acknowledged, arrays_of, writer_of
from raidx_fuse.lab.crash.mounting import mounted
from raidx_fuse.lab.crash.pairs.disks import PairDisk, Trigger
from raidx_fuse.lab.crash.parts import read_sectors
from raidx_fuse.lab.crash.state import Cell, ViolationError
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe, cell_range
from raidx_fuse.layouts.registry import allowed_widths
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.powercut import CutRecord, Image
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.allocate import unit_bytes
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume, parts_of
from raidx_fuse.pool.volume_table import ArrayVolumes

STRIPES, STRIPES_OF_GRIDS = 128, 48  # of an array: eight and three in a dirty region
EXTENTS, EXTENTS_OF_GRIDS = 12, 5  # of v
THERE = {"raid1": ("raid5", 3)}  # the layout of the other array; else a mirror
MEMBER_BYTES_MAX = 16 << 20
SEED = 77  # of the first content: the same for all pairs
READ_BYTES = 32 << 10
MODES = ("none", "partial", "full")  # the weakest one first


@dataclass(frozen=True)
class Prepared:
    """The first content of all disks, by array, and the (UUID, history) of the volumes."""

    images: tuple[tuple[Image, ...], ...]
    tolerances: tuple[int, ...]
    volumes: tuple[tuple[str, History], ...]
    extent_bytes: int


@lru_cache(maxsize=16)
def prepared(layout: str, journal: str, width: int, killed: bool) -> Prepared:
    """Return the arrays before a pair on *layout* with *width* members.

    *killed*: the mount before was killed while stripes were written past the log.
    """
    return run(_prepare, layout, journal, width, killed)


def widths_of(layout: str) -> Sequence[int]:
    """Return the numbers of members that arrays of *layout* have here."""
    return (WIDTHS.get(layout) or allowed_widths(layout)[:2])[:2]


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
            data = [history.add_sector(span, s, 0, SECTOR_BYTES) for s in range(written)]
            await volume.write(0, b"".join(data))
            history.end(span, -1)
            flush = history.begin_flush("fill", -1)
            await volume.flush()
            history.end(flush, -1)
            filled.append((volume.uuid, history))
        left: list[tuple[Image, ...]] = []
        if killed:
            await _write_again(v, filled[0][1], stripe_bytes)
            left = [tuple(disk.cut.state.image.copy() for disk in several) for several in disks]
        tolerances = tuple(volumes.array.context.code.tolerance for volumes in pool.arrays)
    left = left or [tuple(disk.cut.state.image for disk in several) for several in disks]
    return Prepared(tuple(left), tolerances, tuple(filled), size)


async def _write_again(volume: Volume, history: History, stripe_bytes: int) -> None:
    """Write the first two stripes of *volume* in each half; all that reached the disks stays."""
    for stripe in (0, 1):
        at = stripe * volume.size_bytes // 2 // stripe_bytes * stripe_bytes
        span = history.begin_write("fill", -1, frozenset(), frozenset())
        sectors = range(at // SECTOR_BYTES, (at + stripe_bytes) // SECTOR_BYTES)
        data = [history.add_sector(span, sector, 0, SECTOR_BYTES) for sector in sectors]
        await volume.write(at, b"".join(data))
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


def since(several: Sequence[Sectors], number: int, moment: int) -> set[int]:
    """Return the sectors of volume *number* that *several* name before *moment*."""
    return {
        sector
        for begin, of, sectors in several
        if of == number and begin < moment
        for sector in sectors
    }


@dataclass(slots=True)
class Weakness:
    """From event *begin* to *end* an array may lack the members of *count* roles.

    *page*: it lacks no more than a page of one.
    """

    array: int
    begin: int
    count: int = 1
    page: bool = False
    end: float = math.inf

    def heal(self, event: int) -> None:
        """Note that all members are whole from *event* on."""
        self.end = event


@dataclass
class Events:
    """What happened to the arrays of one pair, by events of the disks' record.

    *array_of*: the array of each disk; *tolerances*: (event, most members that may be lost), by
    array; *weaknesses*; *torn*: by token, the sectors of each volume that lie in a stripe which a
    write past the log may have torn (tokens are the *stripes* of the histories); *unsure*: (event,
    volume, sectors) that a refused write may have changed or made unreadable; *unreadable*: the
    same for sectors that nothing gives back, which may be what they should, or unreadable; *modes*:
    (event, journal mode) of the array under test.
    """

    array_of: list[int] = field(default_factory=list)
    tolerances: list[list[tuple[int, int]]] = field(default_factory=list)
    weaknesses: list[Weakness] = field(default_factory=list)
    torn: dict[int, dict[int, frozenset[int]]] = field(default_factory=dict)
    unsure: list[Sectors] = field(default_factory=list)
    unreadable: list[Sectors] = field(default_factory=list)
    modes: list[tuple[int, str]] = field(default_factory=list)

    def weakest_mode(self, moment: int) -> str:
        """Return the weakest journal mode until *moment*.

        A request that is under way while the mode changes is carried out partly in each.
        """
        return min((mode for event, mode in self.modes if event <= moment), key=MODES.index)

    def lacking(self, array: int, moment: int, *, pages: bool = True) -> int:
        """Return how many roles of *array* may lack a whole member at *moment*.

        *pages*: those that lack a page count as well.
        """
        return sum(
            weak.count
            for weak in self.weaknesses
            if weak.array == array and weak.begin < moment < weak.end and (pages or not weak.page)
        )

    def tolerance(self, array: int, moment: int) -> int:
        """Return how many members of *array* may be lost at *moment*, those that it lacks too."""
        limits = [most for event, most in self.tolerances[array] if event <= moment]
        return limits[-1]


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


class Scene:
    """The mounted arrays of one pair on *cell*, drawn from *seed*."""

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
        self.latent = latent
        self.poisoned: dict[int, dict[int, bytes]] = {}
        self.bad_stripes: list[Stripe] = []  # with sectors that became unreadable
        self.record = CutRecord()
        self.events = Events(modes=[(-1, cell.journal)])
        self.disks: list[PairDisk] = []
        self.pace = self.rng.choice(PACES)
        width = self.rng.choice(widths_of(cell.layout))
        self.prepared = prepared(cell.layout, cell.journal, width, killed)
        self.extent_bytes = self.prepared.extent_bytes
        count = 2 if with_there else 1
        first = self.prepared.volumes[0][1]
        self.timeline = Timeline(first.timeline.known)
        self.uuids: dict[str, str] = {}
        self.volumes: list[History] = []
        for uuid, history in self.prepared.volumes:
            if with_there or history.volume != "x":
                self.uuids[history.volume] = uuid
                self.volumes.append(history.after(0, self.timeline))
        if killed and cell.journal == "none":  # the write hole: whoever fails before the resync
            for history in self.volumes:
                everything = frozenset(range(history.sectors))
                self.events.unreadable.append((-1, history.number, everything))
        for array, images in enumerate(self.prepared.images[:count]):
            self.events.tolerances.append([(-1, self.prepared.tolerances[array])])
            for image in images:
                behind = len(image) // 2 if larger and not array else 0
                noise = random.Random(seed).randbytes(behind)
                self.add_disk(array, bytearray(bytes(image) + noise))
        self.pool: Pool
        self.front_end = Shown()
        extents = first.size // self.extent_bytes
        self.hot = self.rng.randrange(extents - 1)  # where both operations like to be
        self.extents = extents

    @property
    def event(self) -> int:
        """Number of the next event of the record."""
        return len(self.record.events)

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
    def tolerance(self) -> int:
        """How many members the array under test may lose now."""
        return self.events.tolerance(0, self.event)

    def add_disk(self, array: int, image: Image | None = None) -> PairDisk:
        """Make one more disk for *array*, as large as its first one unless it has *image*."""
        if image is None:
            image = bytearray(self.disks[self.events.array_of.index(array)].size_bytes)
        disk = PairDisk(
            *(image, self.rng, self.trigger),
            name=f"disk{len(self.disks)}",
            record=self.record,
            pace=self.pace,
            under={} if self.latent else None,
        )
        self.disks.append(disk)
        self.events.array_of.append(array)
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
        arrays: list[list[PairDisk]] = [[] for _ in self.events.tolerances]
        for disk, array in zip(self.disks, self.events.array_of, strict=True):
            arrays[array].append(disk)
        async with mounted(arrays) as self.pool:
            laws = DiskLaws(volumes.array for volumes in self.pool.arrays)
            for disk in self.disks:
                disk.obey(laws.judge)
            for volumes in self.pool.arrays:
                volumes.attach(self.front_end)
            yield
            flushes = [(one, one.begin_flush("close", self.event)) for one in self.volumes]
        for history, flush in flushes:
            history.end(flush, self.event)

    def weaken(self, array: int, count: int = 1, *, page: bool = False) -> Weakness:
        """Note that *array* may lack the members of *count* more roles, or a *page*."""
        weak = Weakness(array, self.event, count, page)
        self.events.weaknesses.append(weak)
        lacking = self.events.lacking(array, self.event + 1)
        if array == 0 and not page and lacking > self.tolerance:
            for stripe in self.bad_stripes:  # a page that is one loss too many for its stripe
                self.lose_sectors(stripe, cell_range(0, self.array.context.code.data_count))
        return weak

    def overburdened(self) -> bool:
        """Return whether an array may lack more members than it can spare."""
        now = self.event + 1
        arrays = range(len(self.events.tolerances))
        events = self.events
        return any(events.lacking(a, now, pages=False) > events.tolerance(a, now) for a in arrays)

    def spares(self, array: int) -> bool:
        """Return whether *array* can do without all members that it may lack now."""
        now = self.event + 1
        return self.events.lacking(array, now) <= self.events.tolerance(array, now)

    def excused(self) -> bool:
        """Return whether requests may end in errors."""
        return self.overburdened() or bool(self.events.unreadable)

    def lose_sectors(self, stripe: Stripe, cells: Iterable[CellIndex]) -> None:
        """Note that what *cells* of *stripe* of the array under test hold may be unreadable."""
        for number, sectors in self._sectors_of(self.here, stripe, cells).items():
            self.events.unreadable.append((self.event, number, sectors))

    # -- volumes -------------------------------------------------------------------------------

    def find(self, name: str) -> History:
        """Return the history of the volume of that name."""
        return next(history for history in self.volumes if history.volume == name)

    def volume(self, name: str) -> Volume:
        """Return the mounted volume. Raises UsageError if it is not there."""
        return self.pool.find(self.uuids[name])[1]

    def _opened(self, name: str) -> Volume:
        """Open a volume. Raises UsageError if it is not shown."""
        volume = self.volume(name)
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
        history, volume = self.find(name), self.volume(name)
        count = min(count, volume.size_bytes // SECTOR_BYTES - first)
        if count <= 0:
            return
        at, length = first * SECTOR_BYTES, count * SECTOR_BYTES
        stripes, full = self._tokens(history, at, length)
        span = history.begin_write("discard" if discard else "write", self.event, stripes, full)
        sectors = range(first, first + count)
        data = [history.add_sector(span, s, 0, SECTOR_BYTES, zeros=discard) for s in sectors]
        before = history.size
        try:
            with acknowledged(writer_of(self.pool, volume)):
                if discard:
                    await volume.discard(at, length)
                else:
                    await volume.write(at, b"".join(data))
        except RaidxError:
            if not self.excused() and history.size >= before:
                raise
            self._refuse(history, span, stripes)
            return
        history.end(span, self.event)

    def _refuse(self, history: History, span: WriteSpan, stripes: frozenset[int]) -> None:
        """Note that a write ended in an error: what its stripes hold on lost members is gone."""
        history.refuse(span, self.event, frozenset())
        if self.events.weakest_mode(self.event) == "full":
            return
        for token in stripes:
            for number, sectors in self.events.torn[token].items():
                self.events.unsure.append((span.begin_event, number, sectors))

    def _tokens(
        self, writer: History, at: int, length: int
    ) -> tuple[frozenset[int], frozenset[int]]:
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
            token = len(self.events.torn)
            self.events.torn[token] = self._sectors_in(volumes, stripe, writer, at, length)
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
        history = self.find(name)
        flush = history.begin_flush("flush", self.event)
        try:
            volume = self.volume(name)
            with acknowledged(arrays_of(self.pool, volume)):
                await volume.flush()
        except RaidxError:
            if not self.excused() and history.size:
                raise
            history.fail_flush(flush, self.event)
            return
        history.end(flush, self.event)

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

    # -- looks ---------------------------------------------------------------------------------

    async def compare(self, when: str) -> None:
        """Read all volumes, and compare them with what was written; nothing may be under way."""
        shown = {one.uuid: one for volumes in self.pool.arrays for one in volumes.volumes}
        for history in self.volumes:
            if history.volume not in self.uuids:
                continue  # it could not be created
            volume = shown.get(self.uuids[history.volume])
            size = volume.size_bytes if volume is not None else 0
            sizes = history.at(self.event + 1).sizes
            if size not in sizes:
                raise ViolationError(
                    f"{when}: volume {history.volume} has {size} bytes, allowed: {sizes}"
                )
            wrong = [] if volume is None else await self._wrong(history, volume)
            if wrong:
                more = f" (and {len(wrong) - 2} more)" if len(wrong) > 2 else ""
                raise ViolationError(f"{when}: {'; '.join(wrong[:2])}{more}")

    async def _wrong(self, history: History, volume: Volume) -> list[str]:
        """Return what is wrong in *volume*, as text."""
        unsure = since(self.events.unsure, history.number, self.event + 1)
        unreadable = since(self.events.unreadable, history.number, self.event + 1)
        wrong: list[str] = []
        for sector, content in enumerate(await read_volume(volume)):
            if content == history.newest(sector) or sector in unsure:
                continue
            if content is None:
                if not self.overburdened() and sector not in unreadable:
                    wrong.append(f"volume {volume.name}, sector {sector} cannot be read")
                continue
            try:
                history.check(sector, content)
            except ViolationError as error:
                wrong.append(str(error))
        return wrong


def _inside(extents: Sequence[Extent], offset: int) -> Iterator[int]:
    """Yield where byte *offset* of the array lies in a volume of *extents*, if it does."""
    begin = 0
    for extent in extents:
        if extent.offset <= offset < extent.end:
            yield begin + offset - extent.offset
        begin += extent.length


async def read_volume(volume: Volume) -> list[bytes | None]:
    """Return the sectors of *volume*, None for one that cannot be read."""
    sectors: list[bytes | None] = []
    for at in range(0, volume.size_bytes, READ_BYTES):
        sectors += await read_sectors(volume, at, min(READ_BYTES, volume.size_bytes - at))
    return sectors
