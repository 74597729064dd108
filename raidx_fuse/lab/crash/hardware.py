"""The disks that a workload runs on: how many, how large, their first content, their pace."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

from raidx_fuse.array.array import Array
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.create import create_array
from raidx_fuse.format.log_record import ENTRY_BYTES, record_bytes
from raidx_fuse.format.regions import (
    END_MEMBER_BYTES_MIN,
    PAGE_BYTES,
    PAGE_HEADER_BYTES,
    PAYLOAD_BITS,
    SUMS_PER_PAGE,
    Regions,
    log_bytes,
)
from raidx_fuse.format.shapes import layout_of
from raidx_fuse.journal.ring import HEAD_BYTES
from raidx_fuse.journal.unsettled import RECORD_SHARE
from raidx_fuse.lab.crash.disks import PACES, QUEUED, SLOW_FLUSHES, SectorDisk
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.layouts.numbers import Role, Stripe, cell_range
from raidx_fuse.layouts.placements.bundled import bundle_code
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.registry import allowed_widths, code_for, find_layout
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.powercut import CutRecord, Image, SparseImage
from raidx_fuse.pool.volume import Volume
from raidx_fuse.store.dirty_bitmap import REGION_BYTES, REGIONS_MIN, DirtyBitmap

CHUNK_BYTES = 4096
MEMBER_BYTES_MIN = 256 << 10
MEMBER_BYTES_MAX = 64 << 20  # added at most to the smallest size that is tried
MEMBER_UNIT_BYTES = 64 << 10
POOL = "pool"
"""The name of the theme with volumes of two arrays."""
POOL_NAMES = ("here", "there")
POOL_OTHERS = ("raid1", "raid5", "raid0", "raid4")
POOL_STRIPES = 14
SCATTERED_STRIPES = 40  # of pools whose volumes have up to 16 extents, each in a stripe of its own
PATTERN_LOG_BYTES = 400 << 10
ENDS_LOG_BYTES = 512 << 10
LARGER_PAGES = SUMS_PER_PAGE + 100  # behind the data: tables of checksums need a page more
FREE_STRIPES = 12  # behind the image: room for tables of checksums
GROWTH_PRIME = 7  # of a code of two losses that grows: up to 8 members (rdp) or 9 (evenodd)

# Huge images: the first sector of a page of the written map holds the bits of 3,840 chunks; in the
# dirty bitmap it holds those of 3,840 regions of 16 MiB. The parts of the image lie so far apart
# that their bits lie in different sectors of one page: a power cut can tear that page between them.
HUGE_IMAGE_BYTES = 68 << 30
HUGE_METADATA_BYTES = 1 << 30
HUGE_CHUNK_BYTES = 64 << 10  # smaller chunks make large maps and regions of many stripes

# Images with large regions: the workload uses some stripes in a few of them.
PACES_OF = {"squeeze": SLOW_FLUSHES, "streams": SLOW_FLUSHES, "beside": QUEUED}  # else any
REGION_STRIPES = 64  # at least, that share a bit of the dirty bitmap
HUGE_PARTS, HUGE_PART = 15, 20  # number of parts; sectors of each, across the end of a chunk
FIRST_SECTOR_BITS = (SECTOR_BYTES - PAGE_HEADER_BYTES) * 8

WIDTHS = {
    **{"raid0": (2, 3), "raid1": (2, 3), "raid4": (3, 4), "raid5": (3, 4)},
    **{"raidx-zero": (2, 3), "raidx-copy": (3, 4), "raidx-parity": (4, 5)},
}


def widths_of(layout: str) -> Sequence[int]:
    return WIDTHS.get(layout) or allowed_widths(layout)[:2]


@dataclass(frozen=True, slots=True)
class Shape:
    """*width* members with at least *stripes* stripes, on disks of *pace* (disks.py).

    *zeroed*: the new disks hold zeros, otherwise random bytes. *regions*: the stripes that the
    workload uses lie in and across dirty regions of many stripes. *huge*: the image is sparse and
    large, and the workload uses a few small parts of it. *ends*: the disks are large enough for
    superblocks at their ends.
    """

    width: int
    stripes: int = 6
    pace: str = "inline"
    zeroed: bool = True
    huge: bool = False
    regions: bool = False
    ends: bool = False

    @staticmethod
    def drawn(cell: Cell, theme: str, rng: random.Random) -> Shape:
        huge = theme == "huge"
        width = rng.choice(widths_of(cell.layout))
        return Shape(
            width + (theme == "leave"),
            rng.randint(6, 12),
            rng.choice(PACES_OF.get(theme, PACES)),
            rng.random() < 0.5 and not huge,
            huge,
            ends=theme == "ends",
        )


@dataclass(frozen=True, slots=True)
class Hardware:
    """Makes the disks for one workload on *cell*, of *shape*; *rng* is its source of chance."""

    cell: Cell
    theme: str
    shape: Shape
    rng: random.Random

    def parts(self, stripe_bytes: int, dirty: DirtyBitmap) -> Parts:
        """Return the parts of the image that the workload uses; a stripe has *stripe_bytes*."""
        if self.shape.regions:
            per_region, stripes = dirty.per_region, self.shape.stripes
            assert per_region >= REGION_STRIPES, f"a region has {per_region} stripes"
            third = stripes // 3
            region = self.rng.randrange(2, dirty.stripes // per_region)
            last = region * per_region + self.rng.randrange(per_region - third)
            across = per_region - self.rng.randint(1, third)
            unit = stripe_bytes // SECTOR_BYTES
            counts = ((0, third), (across, stripes - 2 * third), (last, third))
            return Parts([(first * unit, count * unit) for first, count in counts])
        if not self.shape.huge:
            return Parts([(0, self.shape.stripes * stripe_bytes // SECTOR_BYTES)])
        first_sector = FIRST_SECTOR_BITS * HUGE_CHUNK_BYTES
        same_page = self.rng.randrange(first_sector, PAYLOAD_BITS * HUGE_CHUNK_BYTES)
        same_bitmap = self.rng.randrange(FIRST_SECTOR_BITS * REGION_BYTES, HUGE_IMAGE_BYTES)
        parts = []
        for place in (0, same_page, same_bitmap):
            for number in range(HUGE_PARTS // 3):
                end = (place // HUGE_CHUNK_BYTES + 1 + 2 * number) * HUGE_CHUNK_BYTES
                parts.append((end // SECTOR_BYTES - HUGE_PART // 2, HUGE_PART))
        return Parts(parts)

    def blank(self, size_bytes: int) -> Image:
        """Return the content of a disk that has never been a member."""
        if self.shape.huge:
            return SparseImage(size_bytes)
        if self.shape.regions or self.shape.ends or self.theme == "larger":
            if self.shape.zeroed:
                return SparseImage(size_bytes)
            return SparseImage(size_bytes, blank=self.rng.randbytes(4096))
        noise = bytes(4096) if self.shape.zeroed else self.rng.randbytes(4096)
        return bytearray((noise * (size_bytes // 4096 + 1))[:size_bytes])

    def disk(self, image: Image, number: int, record: CutRecord | None) -> SectorDisk:
        """Return disk *number* with *image*; without a *record* its pace is "inline"."""
        return SectorDisk(
            image,
            self.rng,
            name=f"disk{number}",
            record=record,
            pace=self.shape.pace if record is not None else "inline",
            reads_zero=self.shape.zeroed,
            under={} if self.theme == "latent" else None,
        )

    def _least_bytes(self) -> int:
        """Return the member size, in bytes, from which `create` starts to try.

        Members for the themes "streams" and "checkpoints" are larger: their log has room for the
        parity of one stripe that follows its data. So are those that are restriped from a pattern.
        """
        size = MEMBER_BYTES_MIN
        if self.shape.ends:
            return END_MEMBER_BYTES_MIN
        build = find_layout(self.cell.layout).build
        if build is None:
            return size
        code = build(self.shape.width)
        if self.shape.regions:
            data = REGIONS_MIN * REGION_STRIPES * code.rows * CHUNK_BYTES
            size += data // MEMBER_UNIT_BYTES * MEMBER_UNIT_BYTES
        if self.shape.huge:
            units = HUGE_IMAGE_BYTES * code.rows // code.data_count // MEMBER_UNIT_BYTES
            size = units * MEMBER_UNIT_BYTES + HUGE_METADATA_BYTES
        if self.theme in ("streams", "checkpoints"):
            stripe_bytes = len(code.cells) * CHUNK_BYTES
            parities = record_bytes(0, code.parity_count * (CHUNK_BYTES + 4 * ENTRY_BYTES))
            wanted = HEAD_BYTES + max(3 * stripe_bytes, RECORD_SHARE * parities)
            while log_bytes(size, stripe_bytes) < wanted:
                size += MEMBER_UNIT_BYTES
        if self.theme == "restripe" and find_layout(self.cell.layout).pattern(self.shape.width):
            while log_bytes(size, len(code.cells) * CHUNK_BYTES) < PATTERN_LOG_BYTES:
                size += MEMBER_UNIT_BYTES
        return size

    def _log_bytes(self, size: int) -> int | None:
        """Return the size of the log of members of *size* bytes, None: as `create` has it."""
        if self.theme == "log" and find_layout(self.cell.layout).bundled:  # it may get smaller only
            return 2 * log_bytes(size, widths_of(self.cell.layout)[-1] * CHUNK_BYTES)
        return ENDS_LOG_BYTES if self.shape.ends else None

    async def create(self) -> list[SectorDisk]:
        """Create the array on the smallest members that hold its stripes; return the disks."""
        cell, shape = self.cell, self.shape
        stripes = max(shape.stripes, REGIONS_MIN * REGION_STRIPES * shape.regions)
        extra = [0] * shape.width
        image_bytes = None
        if find_layout(cell.layout).bundled:  # unlike members
            extra = [self.rng.randrange(8) * CHUNK_BYTES for _ in extra]
            if self.theme in ("members", "disks") and self.rng.random() < 0.7:  # some are free
                data = bundle_code(cell.layout).data_count
                image_bytes = stripes * data * CHUNK_BYTES
        params: dict[str, object] = {}
        if (
            self.theme in ("growth", "shrink", "leave")
            and "prime" in find_layout(cell.layout).params
        ):
            params = {"prime": GROWTH_PRIME, "rotate": True}
        is_free = self.theme in ("room", "log") and not find_layout(cell.layout).bundled
        if is_free:  # the image ends before the last stripes
            code = code_for(cell.layout, shape.width, params)
            image_bytes = shape.stripes * code.data_count * CHUNK_BYTES
            stripes += FREE_STRIPES
        if self.theme in ("shrink", "leave"):  # the image must not need what a growth adds
            code = code_for(cell.layout, shape.width, params)
            image_bytes = shape.stripes * code.data_count * CHUNK_BYTES
            if self.theme == "leave":  # and it must fit on two members less
                fewer = max(code.rows, code.data_count - 2 * code.rows)
                stripes = -(-shape.stripes * code.data_count // fewer)
        least = self._least_bytes()
        disks: list[SectorDisk] = []

        async def create(size: int) -> ArrayConfig:
            images = [self.blank(size + more) for more in extra]
            disks[:] = [self.disk(image, number, None) for number, image in enumerate(images)]
            return await create_array(
                disks,
                cell.layout,
                chunk_bytes=HUGE_CHUNK_BYTES if shape.huge else CHUNK_BYTES,
                name="campaign",
                now_s=0,
                overwrite_signature=True,
                size_bytes=image_bytes,
                params=params,
                log_bytes=self._log_bytes(size),
                sums=cell.sums and self.theme != "room",
            )

        await create_smallest(create, least, stripes)
        for image in [disk.cut.state.image for disk in disks]:
            if is_free and self.rng.random() < (0.6 if self.theme == "log" else 1):
                assert isinstance(image, bytearray)
                image.extend(self.rng.randbytes(len(image) // 2))
            elif self.theme == "larger":
                assert isinstance(image, SparseImage)
                image.extend(self.rng.randbytes(PAGE_BYTES), LARGER_PAGES)
        return disks

    async def create_pool(self) -> list[tuple[Layout, Regions, list[Image]]]:
        layouts = [self.cell.layout, self.rng.choice(POOL_OTHERS)]
        if self.rng.random() < 0.5:
            layouts.reverse()
        return [await self._create_of_pool(number, name) for number, name in enumerate(layouts)]

    async def _create_of_pool(
        self, number: int, layout: str
    ) -> tuple[Layout, Regions, list[Image]]:
        width = self.rng.choice(widths_of(layout))
        images: list[Image] = []

        async def create(size: int) -> ArrayConfig:
            images[:] = [bytearray(size) for _ in range(width)]
            return await create_array(
                [self.disk(image, role, None) for role, image in enumerate(images)],
                layout,
                chunk_bytes=CHUNK_BYTES << self.rng.randrange(2) * number,
                name=POOL_NAMES[number],
                now_s=0,
                with_volume=False,
                sums=self.cell.sums,
            )

        config = await create_smallest(create, MEMBER_BYTES_MIN, self.shape.stripes)
        return layout_of(config), config.regions, images


async def create_smallest(
    create: Callable[[int], Awaitable[ArrayConfig]], least: int, stripes: int
) -> ArrayConfig:
    """Call *create* with larger and larger members, in bytes, until the array has *stripes*."""
    size = least
    while size < least + MEMBER_BYTES_MAX:
        with suppress(UsageError):  # too small for the metadata
            config = await create(size)
            if layout_of(config).stripes >= stripes:
                return config
        size += max(1, size >> 4 >> 16) * MEMBER_UNIT_BYTES
    raise AssertionError(f"{stripes} stripes need larger members")


class Fronts:
    """Finds the writes that complete a stripe which earlier writes filled from its front.

    The engine treats such a write like a full-stripe write (engine/write/full_stripe.py).
    """

    def __init__(self) -> None:
        self._filled: dict[int, int] = {}  # stripe -> bytes from its front, in whole chunks

    def note(self, offset: int, end: int, stripe_bytes: int) -> frozenset[int]:
        """Note a write of bytes *offset* to *end*; return the sectors of the stripes it completes.

        A write completes a stripe if it brings the stripe's last chunks, whole, and the writes
        before it brought all other chunks in order.
        """
        closed: set[int] = set()
        for stripe in range(offset // stripe_bytes, -(-end // stripe_bytes)):
            base = stripe * stripe_bytes
            low, high = max(offset - base, 0), min(end - base, stripe_bytes)
            filled = self._filled.pop(stripe, 0)
            if low % CHUNK_BYTES or high % CHUNK_BYTES or low not in (0, filled):
                continue
            if high < stripe_bytes:
                self._filled[stripe] = high
            elif low:
                closed.update(range(base // SECTOR_BYTES, (base + stripe_bytes) // SECTOR_BYTES))
        return frozenset(closed)


class Parts:
    """The parts of an image that a workload works on, counted as if they lay end to end.

        image    | part 0 |        ...        | part 1 |      ...      | part 2 |
        workload | part 0 | part 1 | part 2 |

    Workload, history and oracle count in sectors of the workload. *parts* are (first sector in the
    image, sector count), ascending; *sectors*: their sum; *end*: the image's sector behind the last
    one. Small images are one part. Those with large dirty regions have parts of some stripes, in
    and across regions. Huge images have several parts, so far apart that their bits in written map
    and dirty bitmap lie in different sectors of one page: only then is a torn page worse than an
    old one.
    """

    def __init__(self, parts: Sequence[tuple[int, int]]) -> None:
        ends = [*accumulate(count for _, count in parts)]
        self.sectors = ends[-1]
        self.end = sum(parts[-1])
        # (first sector of the workload, end sector, distance to the same sector of the image)
        self._parts = [
            (end - count, end, first - (end - count))
            for (first, count), end in zip(parts, ends, strict=True)
        ]

    def spans(self) -> Iterator[tuple[int, int]]:
        yield from ((begin, end - begin) for begin, end, _ in self._parts)

    def place(self, offset: int, length: int) -> tuple[int, int]:
        """Return the image offset of byte *offset*, and *length*, cut at the end of the part."""
        _, end, further = self._part(offset // SECTOR_BYTES)
        return offset + further * SECTOR_BYTES, min(length, end * SECTOR_BYTES - offset)

    def in_image(self, sector: int) -> int:
        return sector + self._part(sector)[2]

    def sectors_of(self, first: int, count: int) -> Iterator[int]:
        """Yield the workload's sectors among *count* image sectors from *first* on."""
        for begin, end, further in self._parts:
            yield from range(max(begin, first - further), min(end, first - further + count))

    def ranges(self, most_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield (image offset, length) in bytes over all parts, at most *most_bytes* each."""
        for begin, end, further in self._parts:
            at, stop = (begin + further) * SECTOR_BYTES, (end + further) * SECTOR_BYTES
            while at < stop:
                yield at, min(most_bytes, stop - at)
                at += most_bytes

    def _part(self, sector: int) -> tuple[int, int, int]:
        return next(part for part in self._parts if sector < part[1])


def sectors_on_lost(
    layout: Layout,
    parts: Parts,
    stripes: Iterable[int],
    lost_at: Callable[[Stripe], frozenset[Role]],
) -> frozenset[int]:
    """Return the sectors of *stripes* on lost members; *lost_at* says which are in a stripe."""
    per_chunk = layout.chunk_bytes // SECTOR_BYTES
    sectors: set[int] = set()
    for stripe in map(Stripe, stripes):
        if not (lost := lost_at(stripe)):
            continue
        for cell in cell_range(0, layout.code.data_count):
            if layout.place(stripe, cell)[0] in lost:
                first = layout.logical(stripe, cell) * per_chunk
                sectors.update(parts.sectors_of(first, per_chunk))
    return frozenset(sectors)


async def read_sectors(store: Array | Volume, offset: int, length: int) -> list[bytes | None]:
    """Return the sectors of a range, None for an unreadable one; a failing read is halved."""
    try:
        content = bytes(await store.read(offset, length))
    except RaidxError:
        if length <= SECTOR_BYTES:
            return [None]
        half = length // SECTOR_BYTES // 2 * SECTOR_BYTES
        return [
            *await read_sectors(store, offset, half),
            *await read_sectors(store, offset + half, length - half),
        ]
    return [content[at : at + SECTOR_BYTES] for at in range(0, length, SECTOR_BYTES)]


async def read_all(store: Array | Volume, ranges: Iterable[tuple[int, int]]) -> list[bytes | None]:
    """Return the sectors of all *ranges*, one after the other, None for an unreadable one."""
    sectors: list[bytes | None] = []
    for at, length in ranges:
        sectors += await read_sectors(store, at, length)
    return sectors


async def read_volume(volume: Volume, most_bytes: int) -> list[bytes | None]:
    sectors = Parts([(0, volume.size_bytes // SECTOR_BYTES)])
    return await read_all(volume, sectors.ranges(most_bytes))


def in_sectors(offset: int, length: int) -> tuple[int, int]:
    """Return the range extended to whole sectors: concurrent writes never share a sector's half."""
    low = offset // SECTOR_BYTES * SECTOR_BYTES
    return low, -(-(offset + length) // SECTOR_BYTES) * SECTOR_BYTES - low
