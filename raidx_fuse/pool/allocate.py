"""Where a volume lies on its array: free ranges, and extents for a size. Pure.

An extent begins at a multiple of the array's unit, the data of one stripe, so that a write of whole
stripes of the volume is one of the array. The first free range that is large enough is taken. If
none is, the largest ones are put together, up to `EXTENTS_MAX`.

    >>> free = free_ranges([Extent(0, 8192), Extent(16384, 4096)], 32768)
    >>> free
    [Extent(offset=8192, length=8192), Extent(offset=20480, length=12288)]
    >>> allocate(free, 12288, 4096)
    (Extent(offset=20480, length=12288),)
    >>> allocate(free, 16384, 4096)
    (Extent(offset=20480, length=12288), Extent(offset=8192, length=4096))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from raidx_fuse.errors import NoSpaceError, Reason
from raidx_fuse.format.configuration.volumes import ALIGN_BYTES, Extent
from raidx_fuse.units import format_size

EXTENTS_MAX = 16  # of a volume: each takes some bytes of the superblock
ROUNDS_MAX = 1000  # of an exchange in pieces: each costs some updates of superblocks
K = TypeVar("K")
PIECES_MAX = 2 * EXTENTS_MAX  # of one that moves in pieces, which cannot stop half way


def free_ranges(taken: Iterable[Extent], size_bytes: int) -> list[Extent]:
    """Return the ranges of an image of *size_bytes* that are not *taken*, ascending."""
    free, at = [], 0
    end = size_bytes // ALIGN_BYTES * ALIGN_BYTES
    for extent in sorted(taken):
        if extent.offset > at:
            free.append(Extent(at, extent.offset - at))
        at = max(at, extent.end)
    if end > at:
        free.append(Extent(at, end - at))
    return free


def unit_bytes(stripe_data_bytes: int) -> int:
    """Return the unit of places of an array with so much data in a stripe."""
    return -(-stripe_data_bytes // ALIGN_BYTES) * ALIGN_BYTES


def allocate(
    free: Iterable[Extent], size_bytes: int, unit: int, extents_max: int = EXTENTS_MAX
) -> tuple[Extent, ...]:
    """Return extents for *size_bytes* out of *free*. Raises NoSpaceError."""
    usable = _usable(free, unit)
    whole = next((extent for extent in usable if extent.length >= size_bytes), None)
    if whole is not None:
        return (Extent(whole.offset, size_bytes),)
    chosen, left = [], size_bytes
    for extent in sorted(usable, key=lambda one: (-one.length, one.offset))[:extents_max]:
        length = min(extent.length, left)
        chosen.append(Extent(extent.offset, length))
        left -= length
        if not left:
            return tuple(chosen)
    space = sum(extent.length for extent in usable)
    pieces = f" in {len(usable)} pieces" if space >= size_bytes else ""
    raise NoSpaceError(
        f"{size_bytes} bytes ({format_size(size_bytes)}) do not fit: {space} "
        f"({format_size(space)}) are free{pieces}",
        action="delete or shrink a volume, or add disks",
        reason=Reason.ARRAY_FULL,
    )


def _usable(free: Iterable[Extent], unit: int) -> list[Extent]:
    """Return the parts of *free* from a multiple of *unit* on."""
    starts = [(-(-extent.offset // unit) * unit, extent.end) for extent in free]
    return [Extent(start, end - start) for start, end in starts if start < end]


def most_more(extents: Sequence[Extent], free: Iterable[Extent], unit: int) -> int:
    """Return how much `extended` can put behind *extents*.

    >>> most_more([Extent(0, 8192)], [Extent(8192, 4096), Extent(28672, 12288)], 8192)
    12288
    """
    free = list(free)
    behind = next((one.length for one in free if one.offset == extents[-1].end), 0)
    lengths = sorted((one.length for one in _usable(free, unit)), reverse=True)
    return max(behind, sum(lengths[: EXTENTS_MAX - len(extents)]))


def extended(
    extents: Sequence[Extent], more_bytes: int, free: Iterable[Extent], unit: int
) -> tuple[Extent, ...]:
    """Return *extents* with *more_bytes* behind them, in place if there is room. NoSpaceError."""
    free = list(free)
    last = extents[-1]
    behind = next((one for one in free if one.offset == last.end), None)
    if behind is not None and behind.length >= more_bytes:
        return (*extents[:-1], Extent(last.offset, last.length + more_bytes))
    added = allocate(free, more_bytes, unit, EXTENTS_MAX - len(extents))
    if added[0].offset == last.end:
        return (*extents[:-1], Extent(last.offset, last.length + added[0].length), *added[1:])
    return (*extents, *added)


def cut(extents: Sequence[Extent], size_bytes: int) -> tuple[tuple[Extent, ...], list[Extent]]:
    """Return *extents* cut to *size_bytes*, and the ranges that are cut off."""
    kept: list[Extent] = []
    off: list[Extent] = []
    left = size_bytes
    for extent in extents:
        inside = min(left, extent.length)
        if inside:
            kept.append(Extent(extent.offset, inside))
        if inside < extent.length:
            off.append(Extent(extent.offset + inside, extent.length - inside))
        left -= inside
    return tuple(kept), off


def cut_front(
    extents: Sequence[Extent], size_bytes: int
) -> tuple[tuple[Extent, ...], list[Extent]]:
    """Return *extents* without their first *size_bytes*, and the ranges of these.

    >>> cut_front([Extent(0, 8192), Extent(16384, 8192)], 12288)
    ((Extent(offset=20480, length=4096),), [Extent(offset=0, length=8192), \
Extent(offset=16384, length=4096)])
    """
    off, _ = cut(extents, size_bytes)
    kept: list[Extent] = []
    for number, extent in enumerate(extents):
        gone = off[number].length if number < len(off) else 0
        if gone < extent.length:
            kept.append(Extent(extent.offset + gone, extent.length - gone))
    return tuple(kept), list(off)


def pieced(
    extents: tuple[Extent, ...], free: Sequence[Extent], most_bytes: int, *, in_front: bool = False
) -> tuple[tuple[Extent, ...], int]:
    """Return *extents* with up to *most_bytes* of *free* behind them, and how many these are.

    What lies next to them comes first, then the largest ranges. *in_front*: before them instead.
    Places need not begin at a unit of the array here: nothing free may stay unused.

    >>> pieced((Extent(0, 8192),), [Extent(8192, 4096), Extent(16384, 8192)], 8192)
    ((Extent(offset=0, length=12288), Extent(offset=16384, length=4096)), 8192)
    >>> pieced((Extent(8192, 4096),), [Extent(0, 8192)], 4096, in_front=True)
    ((Extent(offset=4096, length=8192),), 4096)
    """
    rest, taken = sorted(free, key=lambda one: (-one.length, one.offset)), 0
    while rest and taken < most_bytes:
        if in_front:
            next_to = [one for one in rest if extents and one.end == extents[0].offset]
        else:
            next_to = [one for one in rest if extents and one.offset == extents[-1].end]
        if not next_to and len(extents) >= PIECES_MAX:
            break
        one = (next_to or rest)[0]
        rest.remove(one)
        length = min(one.length, most_bytes - taken)
        taken += length
        if in_front and next_to:
            extents = (Extent(one.end - length, length + extents[0].length), *extents[1:])
        elif in_front:
            extents = (Extent(one.end - length, length), *extents)
        elif next_to:
            extents = (*extents[:-1], Extent(extents[-1].offset, extents[-1].length + length))
        else:
            extents = (*extents, Extent(one.offset, length))
    return extents, taken


def exchange_rounds(free: Mapping[K, int], legs: Sequence[tuple[K, K, int]]) -> int | None:
    """Return in how many rounds *legs* change places in pieces; None: they cannot.

    *free* are the bytes by array; a leg is (from, to, bytes). In a round each volume takes what is
    free where it goes, and frees as much where it was.

    >>> exchange_rounds({"a": 4096, "b": 0}, [("a", "b", 8192), ("b", "a", 8192)])
    3
    >>> exchange_rounds({"a": 0, "b": 4096}, [("a", "b", 16384), ("b", "a", 8192)]) is None
    True
    """
    room, left = dict(free), [length for _, _, length in legs]
    for number in range(ROUNDS_MAX):
        if not any(left):
            return number
        before = list(left)
        for i, (source, target, _) in enumerate(legs):
            length = min(left[i], room[target])
            left[i] -= length
            room[target] -= length
            room[source] += length
        if left == before:
            return None
    return None
