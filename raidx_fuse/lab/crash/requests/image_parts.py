"""The parts of an image that a workload works on, counted as if they lay end to end.

    image    | part 0 |        ...        | part 1 |      ...      | part 2 |
    workload | part 0 | part 1 | part 2 |

Workload, history and judge count in sectors of the workload. Of most images all is one part. Huge
ones have several, so far apart that what the array notes of them lies in different sectors of one
page: only then a torn page is worse than an old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from raidx_fuse.members.base import SECTOR_BYTES


class Parts:
    """*parts* as (first sector in the image, sectors), ascending; *sectors* of all of them."""

    def __init__(self, parts: Sequence[tuple[int, int]]) -> None:
        ends = [*accumulate(count for _, count in parts)]
        self.sectors = ends[-1]
        # (first sector of the workload, the one behind the last, how much further in the image)
        self._parts = [
            (end - count, end, first - (end - count))
            for (first, count), end in zip(parts, ends, strict=True)
        ]

    def place(self, offset: int, length: int) -> tuple[int, int]:
        """Return the image offset of byte *offset*, and *length* or less: it ends with the part."""
        _, end, further = self._part(offset // SECTOR_BYTES)
        return offset + further * SECTOR_BYTES, min(length, end * SECTOR_BYTES - offset)

    def in_image(self, sector: int) -> int:
        """Return the image sector of *sector*."""
        return sector + self._part(sector)[2]

    def sectors_of(self, first: int, count: int) -> Iterator[int]:
        """Yield the sectors of the workload among *count* of the image."""
        for begin, end, further in self._parts:
            yield from range(max(begin, first - further), min(end, first - further + count))

    def ranges(self, most_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield image offset and bytes of all of the parts in pieces of up to *most_bytes*."""
        for begin, end, further in self._parts:
            at, stop = (begin + further) * SECTOR_BYTES, (end + further) * SECTOR_BYTES
            while at < stop:
                yield at, min(most_bytes, stop - at)
                at += most_bytes

    def _part(self, sector: int) -> tuple[int, int, int]:
        return next(part for part in self._parts if sector < part[1])
