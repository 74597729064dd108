"""Requests of a load, in blocks of numpy columns, in the order of arrival.

A load is any iterable of `Block`s. Blocks are made while the load is used, so that a week of
requests is never in memory as a whole. The other modules take and return such iterables.

A load is fitted to an array and to an experiment, addresses, length and speed, all as streams:

    load = first(faster(fit(Trace(path), array.size_bytes), 336), requests=100_000)

BPU compresses a week into half an hour (`faster` by 336, section VI-A); UPC multiplies addresses
"without changing the size of each request" (section 4.2): `scale`; a trace from a larger disk is
folded: addresses modulo the image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.errors import UsageError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

SECTOR_BYTES = 512
BLOCK_REQUESTS = 16384


class Request(NamedTuple):
    """One request: arrival time in seconds from the load's start, direction, and byte range."""

    at_s: float
    is_write: bool
    offset_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive requests as four columns of equal length; *at_s* is ascending."""

    at_s: Floats
    is_write: Bools
    offset_bytes: Ints
    length_bytes: Ints

    def __len__(self) -> int:
        return len(self.at_s)

    def take(self, which: slice | Bools) -> Block:
        return Block(
            self.at_s[which],
            self.is_write[which],
            self.offset_bytes[which],
            self.length_bytes[which],
        )


Load = Iterable[Block]


def requests_of(load: Load) -> Iterator[Request]:
    """Yield the requests of *load* one by one, as plain Python numbers."""
    for block in load:
        times, writes = block.at_s.tolist(), block.is_write.tolist()
        places, lengths = block.offset_bytes.tolist(), block.length_bytes.tolist()
        yield from map(Request, times, writes, places, lengths)


def block_of(requests: Iterable[tuple[float, bool, int, int]]) -> Block:
    rows = list(requests)
    at_s, is_write, offset, length = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Block(
        np.array(at_s, dtype=np.float64),
        np.array(is_write, dtype=np.bool_),
        np.array(offset, dtype=np.int64),
        np.array(length, dtype=np.int64),
    )


FITS = ("fold", "scale", "none")


def _whole_sectors(block: Block, size_bytes: int) -> Block:
    """Return the requests extended to whole sectors, none empty or longer than the image."""
    start = block.offset_bytes // SECTOR_BYTES * SECTOR_BYTES
    end = -(-(block.offset_bytes + block.length_bytes) // SECTOR_BYTES) * SECTOR_BYTES
    length = np.minimum(np.maximum(end - start, SECTOR_BYTES), size_bytes)
    return replace(block, offset_bytes=start, length_bytes=length)


def fold(load: Load, size_bytes: int) -> Iterator[Block]:
    """Yield *load* with addresses modulo *size_bytes*.

    A request that reaches beyond the end is moved before it. Requests are extended to whole
    sectors, here and in `scale`.
    """
    size_bytes = size_bytes // SECTOR_BYTES * SECTOR_BYTES
    for block in load:
        block = _whole_sectors(block, size_bytes)
        offset = np.minimum(block.offset_bytes % size_bytes, size_bytes - block.length_bytes)
        yield replace(block, offset_bytes=offset)


def scale(load: Load, size_bytes: int, span_bytes: int) -> Iterator[Block]:
    """Yield *load* with addresses multiplied by size / span and rounded down to whole sectors.

    Request sizes do not change. *span_bytes* is the end of the load's own address space.
    """
    size_bytes = size_bytes // SECTOR_BYTES * SECTOR_BYTES
    factor = size_bytes / span_bytes
    for block in load:
        offset = (block.offset_bytes * factor).astype(np.int64) // SECTOR_BYTES * SECTOR_BYTES
        block = _whole_sectors(replace(block, offset_bytes=offset), size_bytes)
        last = size_bytes - block.length_bytes
        yield replace(block, offset_bytes=np.minimum(block.offset_bytes, last))


def times(load: Load, factor: int) -> Iterator[Block]:
    """Yield *load* with all addresses multiplied by *factor*, as UPC does; sizes do not change."""
    return (replace(block, offset_bytes=block.offset_bytes * factor) for block in load)


def fit(load: Load, size_bytes: int, how: str = "fold", span_bytes: int = 0) -> Iterator[Block]:
    """Fit *load* to an image of *size_bytes*: "fold", "scale" (needs *span_bytes*) or "none".

    Raises UsageError for an unknown *how*. With "none", raises UsageError while the load is used if
    an address lies beyond the image.
    """
    if how not in FITS:
        raise UsageError(f"no way to fit addresses {how!r}", action=f"choose {', '.join(FITS)}")
    if how == "scale":
        return scale(load, size_bytes, span_bytes)
    return fold(load, size_bytes) if how == "fold" else _checked(load, size_bytes)


def _checked(load: Load, size_bytes: int) -> Iterator[Block]:
    for block in load:
        end = int((block.offset_bytes + block.length_bytes).max(initial=0))
        if end > size_bytes:
            raise UsageError(
                f"the load reaches to byte {end}, the image has {size_bytes}",
                action="fold or scale its addresses",
            )
        yield block


def faster(load: Load, factor: float) -> Iterator[Block]:
    """Yield *load* with all times divided by *factor*. Raises UsageError unless it is above 0."""
    if not factor > 0:
        raise UsageError(f"the speed factor of a load must be above 0, not {factor}")
    return (replace(block, at_s=block.at_s / factor) for block in load)


def mean_rate_s(load: Load) -> float:
    """Return the mean arrivals a second of *load*; 0 if all have the same time. Uses it up."""
    count, begin_s, end_s = 0, 0.0, 0.0
    for block in load:
        if len(block):
            begin_s = begin_s if count else float(block.at_s[0])
            count, end_s = count + len(block), float(block.at_s[-1])
    return (count - 1) / (end_s - begin_s) if end_s > begin_s else 0.0


def after(load: Load, requests: int) -> Iterator[Block]:
    """Yield *load* without its first *requests* requests; its times begin at 0 again."""
    if not requests:
        yield from load
        return
    begin_s: float | None = None
    for block in load:
        rest = block.take(slice(requests, None))
        requests -= min(requests, len(block))
        if len(rest):
            begin_s = float(rest.at_s[0]) if begin_s is None else begin_s
            yield replace(rest, at_s=rest.at_s - begin_s)


def first(load: Load, requests: int | None = None, seconds: float | None = None) -> Iterator[Block]:
    """Yield at most the first *requests* requests of *load*, from its first *seconds* only."""
    left = -1 if requests is None else requests
    for block in load:
        if seconds is not None and len(block) and block.at_s[-1] > seconds:
            block = block.take(slice(int(np.searchsorted(block.at_s, seconds, side="right"))))
            left = min(left, len(block)) if left >= 0 else len(block)
        if 0 <= left <= len(block):
            if left:
                yield block.take(slice(left))
            return
        left -= len(block) if left >= 0 else 0
        yield block
