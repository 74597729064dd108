"""Requests of a load, in blocks of numpy columns, in the order of arrival; their statistics.

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
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

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
        """Return the requests of an index range or a mask."""
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
        columns: list[list[Any]] = [
            block.at_s.tolist(),
            block.is_write.tolist(),
            block.offset_bytes.tolist(),
            block.length_bytes.tolist(),
        ]
        yield from map(Request._make, zip(*columns, strict=True))


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


def scale(
    load: Load, size_bytes: int, span_bytes: int, unit_bytes: int = SECTOR_BYTES
) -> Iterator[Block]:
    """Yield *load* with addresses multiplied by size / span and rounded down to whole units.

    Request sizes do not change. *span_bytes* is the end of the load's own address space.
    """
    size_bytes = size_bytes // SECTOR_BYTES * SECTOR_BYTES
    factor = size_bytes / span_bytes
    for block in load:
        offset = (block.offset_bytes * factor).astype(np.int64) // unit_bytes * unit_bytes
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


PAGE_BYTES = 4096
RECENT_WRITES = 16


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one load.

    - *seconds*: from the first to the last arrival; *cv*: coefficient of variation of the times
      between arrivals; *together_share*: arrivals at the same time as the one before.
    - *group_size*: mean size of the groups that share one time, single requests left out;
      *group_write_share*: share of writes in them; *twin_share*: requests that have time, direction
      and size of the one before; *rewrite_share*: writes that begin where one of the last 16 began.
    - *footprint_bytes*: distinct 4 KiB pages, in bytes; *top_share*: share of the page accesses
      that go to the most used fifth of these pages.
    - *sequential_share*: requests that begin where the one before ended; *distinct_share*: distinct
      start addresses over requests.
    """

    requests: int
    read_share: float
    mean_bytes: float
    read_mean_bytes: float
    write_mean_bytes: float
    seconds: float
    rate_s: float
    cv: float
    together_share: float
    group_size: float
    group_write_share: float
    twin_share: float
    rewrite_share: float
    span_bytes: int
    footprint_bytes: int
    top_share: float
    sequential_share: float
    distinct_share: float


def statistics_of(load: Load) -> Statistics:
    """Return the statistics of *load*. They need memory for one number per page access."""
    blocks = [block for block in load if len(block)]
    if not blocks:
        return Statistics(*(0,) * len(fields(Statistics)))
    at_s = np.concatenate([block.at_s for block in blocks])
    is_write = np.concatenate([block.is_write for block in blocks])
    offset = np.concatenate([block.offset_bytes for block in blocks])
    length = np.concatenate([block.length_bytes for block in blocks])
    count = len(at_s)
    gaps = np.diff(at_s)
    mean_gap = float(gaps.mean()) if count > 1 else 0.0
    first_page, last_page = offset // PAGE_BYTES, (offset + length - 1) // PAGE_BYTES
    touched = last_page - first_page + 1
    pages = np.repeat(first_page - (np.cumsum(touched) - touched), touched) + np.arange(
        int(touched.sum())
    )
    uses = np.sort(np.unique(pages, return_counts=True)[1])[::-1]
    reads = int(count - is_write.sum())
    ends = offset + length
    joins = gaps <= 0
    sizes = np.diff(np.flatnonzero(np.concatenate([[True], ~joins, [True]])))
    grouped = np.repeat(sizes > 1, sizes)
    twins = joins & (is_write[1:] == is_write[:-1]) & (length[1:] == length[:-1])
    written = offset[is_write]
    again = np.zeros(len(written), dtype=np.bool_)
    for back in range(1, min(RECENT_WRITES + 1, len(written))):
        again[back:] |= written[back:] == written[:-back]
    return Statistics(
        requests=count,
        read_share=reads / count,
        mean_bytes=float(length.mean()),
        read_mean_bytes=float(length[~is_write].mean()) if reads else 0.0,
        write_mean_bytes=float(length[is_write].mean()) if reads < count else 0.0,
        seconds=float(at_s[-1] - at_s[0]),
        rate_s=1 / mean_gap if mean_gap else 0.0,
        cv=float(gaps.std()) / mean_gap if mean_gap else 0.0,
        together_share=float(joins.mean()) if count > 1 else 0.0,
        group_size=float(sizes[sizes > 1].mean()) if grouped.any() else 0.0,
        group_write_share=float(is_write[grouped].mean()) if grouped.any() else 0.0,
        twin_share=float(twins.mean()) if count > 1 else 0.0,
        rewrite_share=float(again.mean()) if len(written) else 0.0,
        span_bytes=int(ends.max()),
        footprint_bytes=len(uses) * PAGE_BYTES,
        top_share=float(uses[: max(1, len(uses) // 5)].sum() / uses.sum()),
        sequential_share=float((offset[1:] == ends[:-1]).mean()) if count > 1 else 0.0,
        distinct_share=len(np.unique(offset)) / count,
    )
