"""The parts of an image that a workload works on, counted as if they lay end to end.

    image    | part 0 |        ...        | part 1 |      ...      | part 2 |
    workload | part 0 | part 1 | part 2 |

Workload, history and oracle count in sectors of the workload. Small images are one part. Those with
large dirty regions have parts of some stripes, in and across regions. Huge images have several
parts, so far apart that their bits in written map and dirty bitmap lie in different sectors of one
page: only then is a torn page worse than an old one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from raidx_fuse.errors import RaidxError
from raidx_fuse.layouts.numbers import Role, Stripe, cell_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.pool.volume import Volume


class Readable(Protocol):
    """What holds the content: an array or a volume."""

    def read(self, offset: int, length: int, /) -> Awaitable[bytes | memoryview]:
        """Return *length* bytes at *offset*. Raises RaidxError."""


class Parts:
    """*parts* as (first sector in the image, sector count), ascending; *sectors*: their sum.

    *end*: the image's sector behind the last one.
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
        """Yield (first sector of the workload, sector count) of each part."""
        yield from ((begin, end - begin) for begin, end, _ in self._parts)

    def place(self, offset: int, length: int) -> tuple[int, int]:
        """Return the image offset of byte *offset*, and *length*, cut at the end of the part."""
        _, end, further = self._part(offset // SECTOR_BYTES)
        return offset + further * SECTOR_BYTES, min(length, end * SECTOR_BYTES - offset)

    def in_image(self, sector: int) -> int:
        """Return the image's number of the workload's *sector*."""
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


async def read_sectors(store: Readable, offset: int, length: int) -> list[bytes | None]:
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


async def read_all(store: Readable, ranges: Iterable[tuple[int, int]]) -> list[bytes | None]:
    """Return the sectors of all *ranges*, one after the other, None for an unreadable one."""
    sectors: list[bytes | None] = []
    for at, length in ranges:
        sectors += await read_sectors(store, at, length)
    return sectors


async def read_volume(volume: Volume, most_bytes: int) -> list[bytes | None]:
    """Return the sectors of *volume*, read at most *most_bytes* at a time."""
    sectors = Parts([(0, volume.size_bytes // SECTOR_BYTES)])
    return await read_all(volume, sectors.ranges(most_bytes))


def in_sectors(offset: int, length: int) -> tuple[int, int]:
    """Return the range extended to whole sectors: concurrent writes never share a sector's half."""
    low = offset // SECTOR_BYTES * SECTOR_BYTES
    return low, -(-(offset + length) // SECTOR_BYTES) * SECTOR_BYTES - low
