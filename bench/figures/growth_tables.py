"""Growth of every code beside a restripe, and grown arrays beside those made as wide.

Two tables of `paper_mcpod.py` for what is not in the paper: parity that moves with the columns, and
arrays that have grown. Both run in virtual time, on modelled disks, with default settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from growth_runs import CHUNK_BYTES, DISK, MIB, SEED, disk, grown, quiet
from paper_common import Cell, PaperTable
from restripe_runs import LARGE_WINDOWS, MD_FLUSHES, restriped

from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import Load, block_of
from raidx_fuse.layouts.elastic_params import next_rules
from raidx_fuse.layouts.registry import code_for, is_rotated

PRIME = {"prime": 7}
CODES: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("raid5", 4, 1, {}),
    ("raid5", 4, 2, {}),
    ("rdp", 6, 2, PRIME),
    ("evenodd", 6, 2, PRIME),
)
MODELS = ("hdd", "ssd", "nvme")
LOADS = ("4 KiB random read", "4 KiB random write", "1 MiB sequential read", "and write")
SPANS, SPAN_BYTES = 8, 16 * MIB  # of sequential writes
TWO_LOSSES_BYTES = 512 * MIB  # of a member: a log in which a restripe of rdp has room
SMALL_BYTES, SMALL_DEPTH, LARGE_DEPTH = 4096, 16, 4


def least_bytes(width: int, added: int, parities: int) -> float:
    """Return the fewest bytes read and written for each byte of old data: n/w of all cells move.

    >>> round(least_bytes(4, 1, 1), 3), round(least_bytes(4, 2, 1), 3), least_bytes(6, 2, 2)
    (0.533, 0.889, 0.75)
    """
    return 2 * width * added / ((width + added) * (width - parities))


def every_code(member_bytes: int) -> PaperTable:
    """Return bytes and time of the growth of raid5, rdp and evenodd, beside restripes."""
    rows: list[list[Cell]] = []
    for layout, width, added, params in CODES:
        size = max(member_bytes, TWO_LOSSES_BYTES) if params else member_bytes
        full = partial(
            Experiment,
            layout=layout,
            params=params,
            members=(DISK,) * width,
            member_bytes=size,
            load=quiet,
            seed=SEED,
        )
        ours = grown(width, added, size, layout=layout, params=params)
        moved = [restriped(full, added, disk, habits) for habits in (LARGE_WINDOWS, MD_FLUSHES)]
        rows.append(
            [
                *(layout, f"{width}+{added}"),
                least_bytes(width, added, code_for(layout, width, params).tolerance),
                ours.bytes_each,
                moved[0].bytes / moved[0].old_bytes,
                ours.seconds,
                *(one.seconds / ours.seconds for one in moved),
            ]
        )
    return PaperTable(
        "All codes",
        "growing raid5, rdp and evenodd: bytes for each byte of old data, and time, no other load",
        (
            *("layout", "disks", "least bytes", "ours", "our restripe's", "seconds"),
            *("times as fast as with large windows", "as with md's flushes"),
        ),
        rows,
        "Least bytes: 2mn / ((m + n)(m - parities)). `md_growth.py` runs md itself: 3.0 (4+1) and "
        "3.33 (4+2) with its levels 4 and 5, 3.5 (6+2) with its level 6. Published, on other "
        "disks and under loads of their own: FastScale (FAST '11) takes up to 86.06 % less time "
        "than SLAS for RAID-0, which is 7.2 times as fast, moving as few blocks as McPod; CRAID "
        "(FAST '14) moves only a partition of hot data "
        "of less than 1.28 % of each disk, and leaves the rest where it was.",
    )


def random_load(is_write: bool, requests: int) -> Callable[[int], Load]:
    """Return what makes a load of small requests anywhere in the image."""

    def make(size_bytes: int) -> Load:
        chance = random.Random(SEED)
        places = (chance.randrange(size_bytes // SMALL_BYTES) for _ in range(requests))
        return [block_of((0.0, is_write, place * SMALL_BYTES, SMALL_BYTES) for place in places)]

    return make


def in_order(size_bytes: int) -> Load:
    """Return a load that reads the whole image in requests of 1 MiB."""
    return [block_of((0.0, False, at, MIB) for at in range(0, size_bytes - MIB + 1, MIB))]


def rewriting(size_bytes: int) -> Load:
    """Return a load that rewrites spans all over the image in requests of 1 MiB."""
    starts = range(0, size_bytes - SPAN_BYTES, size_bytes // SPANS // MIB * MIB)
    return [block_of((0.0, True, at + n, MIB) for at in starts for n in range(0, SPAN_BYTES, MIB))]


def rate(
    load: str,
    model: str,
    layout: str,
    width: int,
    member_bytes: int,
    params: dict[str, Any],
) -> float:
    """Return the bytes a second that *load* gets from a full array."""
    requests = member_bytes // (128 << 10)
    small = load in LOADS[:2]
    large = in_order if load == LOADS[2] else rewriting
    result = simulate(
        Experiment(
            layout=layout,
            params=params,
            members=(model,) * width,
            member_bytes=member_bytes,
            load=random_load(load == LOADS[1], requests) if small else large,
            depth=SMALL_DEPTH if small else LARGE_DEPTH,
            seed=SEED,
        )
    )
    return float((result["read_bytes"] + result["write_bytes"]) / result["seconds"])


def history_of(layout: str, width: int, added: int, params: dict[str, Any], size: int) -> Any:
    """Return the parameters that an array with members of *size* bytes has after a growth."""
    history = (width, width + added)
    rows = code_for(layout, width, params).rows
    stripes = size // CHUNK_BYTES // rows
    rules = next_rules(layout, history, params, is_rotated(layout, params), stripes, rows)
    return {**params, "history": list(history), "rules": [rule and list(rule) for rule in rules]}


def grown_beside_made(member_bytes: int) -> PaperTable:
    """Return the speed of grown arrays as a share of that of arrays made as wide."""
    rows: list[list[Cell]] = []
    for layout, width, added, params in CODES[:3]:
        after = history_of(layout, width, added, params, member_bytes)
        for model in MODELS:
            shares = []
            for load in LOADS:
                made, has_grown = (
                    rate(load, model, layout, width + added, member_bytes, each)
                    for each in (params, after)
                )
                shares.append(has_grown / made)
            rows.append([layout, f"{width}+{added}", model, *shares])
    return PaperTable(
        "Grown arrays",
        "their speed as a share of that of an array made as wide, the whole image written",
        ("layout", "disks", "members", *LOADS),
        rows,
        f"Small requests {SMALL_DEPTH} at a time, large ones {LARGE_DEPTH}. A large request in the "
        "old area meets all columns but the new ones, which lie on some members for 16 rows: the "
        "more requests at a time, or the fewer rows, the better they spread. Rotating disks also "
        "pass the rows of the others: one in w holds no old data, and one in m parity. A rewrite "
        "of a row of old data leaves the new columns of its stripes as they are, so data and "
        "parity go through the log; in an array made as wide, 1 MiB may be four whole stripes, "
        "which need none (4 data disks), or not (5 and 6).",
    )
