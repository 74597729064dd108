"""Statistics of a load, by which generated loads are compared with real traces."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from raidx_fuse.lab.loads.request import Load

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
