"""What a change will cost, told before it is made: the numbers behind ``--dry-run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raidx_fuse.layouts.code import bits

if TYPE_CHECKING:
    from raidx_fuse.array import Array

ASSUMED_RATE_BYTES = 200 << 20
"""Bytes a second for a member nobody has measured yet: a disk of today, read from end to end."""


def rebuild_estimate(array: Array, role: int) -> dict[str, Any]:
    """Return what rebuilding *role* moves and how long it takes, as JSON values.

    Only written stripes are visited, each recovered with the fewest reads. *seconds* holds while
    nobody works on the array, *seconds_busy* at `speed_min`; *rate* is what the last job on this
    array reached, else an assumption, as *rate_source* says.
    """
    core = array.core
    layout, code = core.layout, core.code
    stripes = core.written.count_live(layout, 0, layout.stripes)
    strip_bytes = code.rows << core.shift
    # Every column comes to lie on the role in turn when the layout rotates: take the mean.
    phases = min(layout.stripes, layout.width)
    columns = [layout.roles(stripe).index(role) for stripe in range(phases)]
    cells = sum(_reads(array, column) for column in columns) / phases
    written = stripes * strip_bytes
    rate, source = _rate(array)
    speed_min = array.jobs.speed_min_bytes
    return {
        "bytes_read": round(stripes * cells * core.chunk_bytes),
        "bytes_written": written,
        "bytes_moved": round(stripes * cells * core.chunk_bytes) + written,
        "rate": rate,
        "rate_source": source,
        "seconds": round(written / rate, 3),
        "seconds_busy": round(written / min(rate, speed_min or rate), 3),
    }


def _reads(array: Array, column: int) -> int:
    union = 0
    for _, sources in array.core.code.recover(column):
        union |= sources
    return len(list(bits(union)))


def _rate(array: Array) -> tuple[int, str]:
    """Return (bytes a second that a rebuild writes, where the number comes from)."""
    limit = array.jobs.speed_max_bytes or None
    rebuilds = [job for job in array.jobs.list() if job["kind"] == "rebuild"]
    reached = [job["rate"] for job in rebuilds if job["rate"]]
    rate, source = (reached[-1], "measured") if reached else (ASSUMED_RATE_BYTES, "assumed")
    return (limit, "speed_max") if limit and limit < rate else (rate, source)
