"""The list of lost chunks (bad blocks): in memory, and as stored in the superblocks.

A superblock holds the differences between their numbers, compressed. Losses form patterns (one role
of many neighbouring stripes), so that a hundred thousand lost chunks fit where a plain list would
hold a few thousand. If they do not fit, they are rounded to ranges of 2 ** shift chunks. More
chunks then count as lost than are lost, never fewer:

    lost        . x . x . . . . . . x .
    shift 1     [ x x x x ] . . . . [ x x ]

In memory they are single numbers and ranges, because ranges from a superblock may contain far more
chunks than memory could hold as single numbers.

Of a chunk perhaps only some pages are lost: then a mask says which. A superblock without room for
the masks counts these chunks as lost whole.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from raidx_fuse.errors import FormatError
from raidx_fuse.format.regions import PAGE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = "bad_chunks"
"""The key of the list in the `jobs` of a configuration."""
ENCODED_BYTES_MAX = 40_000  # of the 64 KiB that a superblock has
FRAME_BYTES = 100  # of JSON around the compressed text
UNPACKED_BYTES_MAX = 32 << 20  # limit of a decompressed list, and so of its memory
_NUMBERS_MAX = UNPACKED_BYTES_MAX // 8
_CHUNK_MAX = 1 << 62
_PART = np.dtype([("step", "<u8"), ("pages", "V32")])  # of 256 pages at most, bit 0: the first
SHIFT_MAX = 61
Numbers: TypeAlias = "NDArray[np.uint64]"


class LostChunks(set[int]):
    """The set of lost chunks, kept as single numbers and ranges.

    It is empty, as a set, only if no chunk is lost: the check at every request is that of a set.
    *changes* increases with every change. *parts*: chunks of which only some pages are lost, with a
    mask of these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.parts: dict[int, int] = {}
        self._starts = array("Q")  # of ranges, ascending, neither adjacent nor overlapping
        self._ends = array("Q")

    @classmethod
    def of_ranges(cls, starts: Iterable[int], ends: Iterable[int]) -> LostChunks:
        """Return the chunks of the ranges *starts* .. *ends* - 1, ascending and not adjacent."""
        lost = cls()
        lost._starts, lost._ends = array("Q", starts), array("Q", ends)
        lost._show()
        return lost

    def _show(self) -> None:
        """Keep the set itself from being empty while there are ranges: put a number into it."""
        if self._starts and not self:
            super().add(self._starts[0])

    def _range_of(self, chunk: int) -> int:
        """Return the index of the range that holds *chunk*, -1 if none does."""
        at = bisect_right(self._starts, chunk) - 1
        return at if at >= 0 and chunk < self._ends[at] else -1

    def __contains__(self, chunk: object) -> bool:
        if super().__contains__(chunk):
            return True
        return bool(self._starts) and isinstance(chunk, int) and self._range_of(chunk) >= 0

    def add(self, chunk: int) -> None:
        self.update((chunk,))

    def update(self, *others: Iterable[int]) -> None:
        self.changes += 1
        for chunks in map(list, others):
            super().update(chunks)
            for chunk in chunks:
                self.parts.pop(chunk, None)

    def pages_of(self, chunk: int) -> int:
        """Return the mask of the pages of *chunk* that are lost; -1: all."""
        if chunk not in self:
            return 0
        return self.parts.get(chunk, -1)

    def take_pages(self, every: int) -> None:
        """Note that a chunk has *every* page: of one without any of these all are lost."""
        parts = {chunk: pages & every for chunk, pages in self.parts.items()}
        self.parts = {chunk: pages for chunk, pages in parts.items() if pages not in (0, every)}

    def add_pages(self, chunk: int, pages: int, every: int) -> None:
        """Note that the *pages* of *chunk* (a mask) are lost; it has *every* page."""
        before = self.pages_of(chunk) & every
        lost = before | pages & every
        if lost == before:
            return
        if lost == every:
            self.add(chunk)
        else:
            self.changes += 1
            super().add(chunk)
            self.parts[chunk] = lost

    def discard_pages(self, chunk: int, pages: int, every: int) -> None:
        """Note that the *pages* of *chunk* were written again; it has *every* page."""
        lost = self.pages_of(chunk) & every
        left = lost & ~pages
        if lost and not left:
            self.discard(chunk)
        elif left != lost:
            self.changes += 1
            self.parts[chunk] = left

    def discard(self, chunk: object) -> None:
        """Note that *chunk* was written again, so that it is no longer lost."""
        if not isinstance(chunk, int) or chunk not in self:
            return
        self.changes += 1
        super().discard(chunk)
        self.parts.pop(chunk, None)
        at = self._range_of(chunk) if self._starts else -1
        if at >= 0:
            start, end = self._starts[at], self._ends[at]
            parts = [part for part in ((start, chunk), (chunk + 1, end)) if part[0] < part[1]]
            self._starts[at : at + 1] = array("Q", [part[0] for part in parts])
            self._ends[at : at + 1] = array("Q", [part[1] for part in parts])
        self._show()

    def count(self) -> int:
        starts, ends = self.ranges()
        return int((ends - starts).sum())

    def first(self, count: int) -> list[int]:
        """Return the first *count* lost chunks, ascending."""
        starts, ends = self.ranges()
        return list(islice(chain.from_iterable(map(range, starts.tolist(), ends.tolist())), count))

    def byte_ranges(self, chunk_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the lost bytes (first, end) of an image of such chunks, ascending."""
        parts, at = sorted(self.parts), 0
        for start, end in zip(*(edges.tolist() for edges in self.ranges()), strict=True):
            while at < len(parts) and parts[at] < end:
                if start < parts[at]:
                    yield start * chunk_bytes, parts[at] * chunk_bytes
                yield from _page_runs(parts[at] * chunk_bytes, self.parts[parts[at]])
                start = parts[at] + 1
                at += 1
            if start < end:
                yield start * chunk_bytes, end * chunk_bytes

    def ranges(self) -> tuple[Numbers, Numbers]:
        """Return starts and ends of all ranges of lost chunks, ascending and not adjacent."""
        alone = np.fromiter(self, np.uint64, len(self))
        starts = np.concatenate([np.frombuffer(self._starts, np.uint64), alone])
        ends = np.concatenate([np.frombuffer(self._ends, np.uint64), alone + np.uint64(1)])
        order = np.argsort(starts, kind="stable")
        return _joined(starts[order], ends[order])


def _page_runs(begin: int, pages: int) -> Iterator[tuple[int, int]]:
    """Yield the bytes (first, end) of the runs of the mask *pages* of what begins at *begin*."""
    while pages:
        first = (pages & -pages).bit_length() - 1
        count = (~(pages >> first) & (pages >> first) + 1).bit_length() - 1
        yield begin + first * PAGE_BYTES, begin + (first + count) * PAGE_BYTES
        pages = pages >> first + count << first + count


def _joined(starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Return the ranges, ascending by *starts*, with adjacent and overlapping ones joined."""
    if not len(starts):
        return starts, ends
    reached = np.maximum.accumulate(ends)
    first = np.ones(len(starts), np.bool_)
    first[1:] = starts[1:] > reached[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, len(starts) - 1)
    return starts[first], reached[last]


def packed(content: bytes) -> str:
    """Return *content*, compressed, as text for a configuration."""
    return base64.b64encode(zlib.compress(content)).decode("ascii")


def unpacked(text: object, most_bytes: int) -> bytes:
    """Return the content of `packed`. Raises ValueError, zlib.error; also above *most_bytes*."""
    if not isinstance(text, str):
        raise ValueError("no text")
    stream = zlib.decompressobj()
    content = stream.decompress(base64.b64decode(text, validate=True), most_bytes)
    if not stream.eof:
        raise ValueError("too long, or cut")
    return content


def _numbers(text: object, *, in_planes: bool = False) -> Numbers:
    content = unpacked(text, UNPACKED_BYTES_MAX)
    if len(content) % 8:
        raise ValueError("too long, or cut")
    if in_planes:
        content = np.frombuffer(content, np.uint8).reshape(8, -1).T.tobytes()
    return np.frombuffer(content, "<u8").astype(np.uint64, copy=False)


def _in_planes(numbers: Numbers) -> bytes:
    """Return the first bytes of all *numbers*, then the second bytes, ...: compresses better."""
    return numbers.astype("<u8").view(np.uint8).reshape(-1, 8).T.tobytes()


def _rounded(starts: Numbers, ends: Numbers, shift: int) -> tuple[int, str]:
    """Return the ranges rounded up to 2 ** *shift* chunks: (number of chunks, packed text)."""
    by, one = np.uint64(shift), np.uint64(1)
    lows, highs = _joined(starts >> by, ((ends - one) >> by) + one)
    if 2 * len(lows) > _NUMBERS_MAX:
        return 0, " " * ENCODED_BYTES_MAX
    gaps = lows - np.concatenate([np.zeros(1, np.uint64), highs[:-1]])
    text = packed(_in_planes(np.stack([gaps, highs - lows], axis=1).reshape(-1)))
    return int((highs - lows).sum()) << shift, text


def encode_chunks(chunks: LostChunks, room_bytes: int = ENCODED_BYTES_MAX) -> dict[str, Any]:
    """Return *chunks* as JSON values of at most *room_bytes*, rounded up if necessary.

    A little more than FRAME_BYTES is always enough.
    """
    room_bytes = min(room_bytes, ENCODED_BYTES_MAX) - FRAME_BYTES
    starts, ends = chunks.ranges()
    count = int((ends - starts).sum())
    if count <= _NUMBERS_MAX:
        lengths = (ends - starts).astype(np.int64)
        behind = np.cumsum(lengths)
        numbers = np.arange(count, dtype=np.uint64) + np.repeat(
            starts - (behind - lengths).astype(np.uint64), lengths
        )
        text = packed(np.diff(numbers, prepend=np.uint64(0)).astype("<u8").tobytes())
        parts = packed(_packed_parts(chunks.parts)) if chunks.parts else ""
        if parts and len(text) + len(parts) <= room_bytes:
            return {"count": count, "steps": text, "pages": parts}
        if len(text) <= room_bytes:
            return {"count": count, "steps": text}
    fine, coarse = 0, SHIFT_MAX  # the coarsest is one range, or two
    while fine < coarse:
        shift = (fine + coarse) // 2
        if len(_rounded(starts, ends, shift)[1]) <= room_bytes:
            coarse = shift
        else:
            fine = shift + 1
    count, text = _rounded(starts, ends, coarse)
    return {"count": count, "shift": coarse, "ranges": text}


def _packed_parts(parts: Mapping[int, int]) -> bytes:
    """Return the chunks of *parts*, ascending, as steps, each with its mask of pages."""
    table = np.zeros(len(parts), _PART)
    chunks = sorted(parts)
    table["step"] = np.diff(np.array(chunks, np.uint64), prepend=np.uint64(0))
    masks = b"".join(parts[chunk].to_bytes(_PART["pages"].itemsize, "little") for chunk in chunks)
    table["pages"] = np.frombuffer(masks, _PART["pages"])
    return table.tobytes()


def _parts(text: object, lost: LostChunks, limit: int) -> dict[int, int]:
    """Return the masks of pages of *lost* chunks below *limit*. Raises ValueError."""
    content = unpacked(text, UNPACKED_BYTES_MAX)
    if not content or len(content) % _PART.itemsize:
        raise ValueError("no whole masks")
    table = np.frombuffer(content, _PART)
    steps = table["step"].astype(np.uint64)
    if not steps[1:].all():
        raise ValueError("a chunk twice")
    masks = (int.from_bytes(mask, "little") for mask in table["pages"].tolist())
    parts = dict(zip(_risen(steps).tolist(), masks, strict=True))
    parts = {chunk: mask for chunk, mask in parts.items() if chunk < limit}
    if not all(parts.values()):
        raise ValueError("a chunk without a lost page")
    if not all(chunk in lost for chunk in parts):
        raise ValueError("pages of a chunk that is not lost")
    return parts


def decode_chunks(values: object, limit: int = _CHUNK_MAX) -> LostChunks:
    """Return the lost chunks below *limit* from the values of `encode_chunks`.

    Raises FormatError if *values* are not valid.
    """
    try:
        lost = _decode(values, limit)
        if isinstance(values, dict) and "pages" in values:
            lost.parts.update(_parts(values["pages"], lost, limit))
        return lost
    except (ValueError, KeyError, TypeError, binascii.Error, zlib.error) as error:
        raise FormatError(f"the list of lost chunks cannot be read ({error})") from error


def _decode(values: object, limit: int) -> LostChunks:
    if not isinstance(values, dict):
        raise TypeError("not an object")
    if not values:
        return LostChunks()
    if "steps" in values:
        steps = _numbers(values["steps"])
        starts = _risen(steps)
        ends = starts + np.uint64(1)
        if len(steps) > 1 and not steps[1:].all():
            raise ValueError("a chunk twice")
        starts, ends = _joined(starts, ends)
    else:
        shift = values["shift"]
        if type(shift) is not int or not 0 <= shift <= SHIFT_MAX:
            raise ValueError("an impossible shift")
        edges = _numbers(values["ranges"], in_planes=True)
        if len(edges) % 2 or not edges[1:].all():
            raise ValueError("an empty range, or one that touches the next")
        edges = _risen(edges)
        if len(edges) and int(edges[-1]) << shift > _CHUNK_MAX:
            raise ValueError("a number too large")
        starts, ends = edges[::2] << np.uint64(shift), edges[1::2] << np.uint64(shift)
    inside = starts < limit  # rounding may have gone beyond the end of the image
    ends = np.minimum(ends[inside], np.uint64(limit))
    return LostChunks.of_ranges(starts[inside].tolist(), ends.tolist())


def _risen(steps: Numbers) -> Numbers:
    """Return the sums of *steps*; raise ValueError beyond any chunk's number."""
    if float(steps.sum(dtype=np.float64)) > _CHUNK_MAX / 2:
        raise ValueError("a number too large")
    return np.cumsum(steps, dtype=np.uint64)
