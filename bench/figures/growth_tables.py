"""Growth of every code beside a restripe, and grown arrays beside those made as wide.

Two tables of `paper_mcpod.py` for what is not in the paper: parity that moves with the columns, and
arrays that have grown. Both run in virtual time, on modelled disks, with default settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from growth_runs import CHUNK_BYTES, DISK, MIB, SEED, disk, grown, log_of, quiet
from paper_common import Cell, PaperTable
from restripe_runs import LARGE_WINDOWS, MD_FLUSHES, restriped

from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import Load, block_of
from raidx_fuse.layouts.elastic_params import next_rules
from raidx_fuse.layouts.registry import code_for, is_rotated
from raidx_fuse.members.simulated.service import make_model

PRIME = {"prime": 7}
CODES: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("raid5", 4, 1, {}),
    ("raid5", 4, 2, {}),
    ("rdp", 6, 2, PRIME),
    ("evenodd", 6, 2, PRIME),
)
MODELS = ("hdd", "ssd", "nvme")
READ, WRITE = "1 MiB sequential read", "1 MiB sequential write"
DEEP_READ = f"{READ}, 16 at a time"
LOADS = ("4 KiB random read", "4 KiB random write", READ, DEEP_READ, WRITE)
BYTES_S = make_model("hdd").read_mb_s * 1e6
PASS_S = (
    make_model("hdd").settle_ms + 30e3 / make_model("hdd").rpm
) / 1e3  # a short seek, half a turn
COPIES = 2  # of a record in the log of an array that tolerates one loss
SPANS, SPAN_BYTES = 8, 16 * MIB  # of sequential writes
TWO_LOSSES_BYTES = 512 * MIB  # of a member: a log in which a restripe of rdp has room
SMALL_BYTES, DEEP, LARGE_DEPTH = 4096, 16, 4


def least_bytes(width: int, added: int, parities: int) -> float:
    """Return the fewest bytes read and written for each byte of old data: n/w of all cells move.

    >>> round(least_bytes(4, 1, 1), 3), round(least_bytes(4, 2, 1), 3), least_bytes(6, 2, 2)
    (0.533, 0.889, 0.75)
    """
    return 2 * width * added / ((width + added) * (width - parities))


def least_seconds(width: int, added: int, parities: int, disk_s: float) -> tuple[float, float]:
    """Return the least time of a growth and of a restripe of full disks, by the busiest disk.

    *disk_s* is the time to pass over one disk. A growth writes width/w of it on each new disk. A
    restripe reads the data on each old one and writes data and parity of wider stripes there.

    >>> growth, restripe = least_seconds(4, 1, 1, 10.0)
    >>> growth, restripe, restripe / growth
    (8.0, 15.0, 1.875)
    """
    w, data = width + added, width - parities
    return disk_s * width / w, disk_s * (data / width + data / (w - parities))


def most_read(width: int, added: int, granule: float) -> float:
    """Return the most that rotating disks give of a grown raid5, as a share of one made as wide.

    A disk passes the granules of the other area in a seek and half a turn, which takes as long as
    *granule* runs, or reads over them; parity is read over.

    >>> round(most_read(4, 1, 0.25), 2), round(most_read(4, 1, 9), 2)
    (0.91, 0.5)
    """
    w, made = width + added, (width + added - 1) / (width + added)
    old = (width - 1) / (width + min(granule, added)) / made
    new = added / (added + min(granule, width)) / made
    share = (width - 1) / (w - 1)
    return 1 / (share / old + (1 - share) / new)


def most_written(width: int, added: int, copies: int) -> float:
    """Return the most of a rewrite of a grown raid5, by the cells that are read and written.

    It is a share of whole stripes in an array made as wide. A row of old data needs the new columns
    of its stripes, a new chunk its old content and parity; data and parity have *copies* in the
    log, because they share their stripe with what is not written.

    >>> round(most_written(4, 1, 2), 2), round(most_written(4, 1, 0), 2)
    (0.24, 0.56)
    """
    w = width + added
    made = w / (w - 1)
    old = (min(added, width) + (1 + copies) * width) / (width - 1)
    new = 2 + (1 + copies) * 2
    share = (width - 1) / (w - 1)
    return made / (share * old + (1 - share) * new)


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
            log_bytes=log_of(layout, width, params, size),
            load=quiet,
            seed=SEED,
        )
        ours = grown(width, added, size, layout=layout, params=params)
        kinds = (None, LARGE_WINDOWS, MD_FLUSHES)
        moved = [restriped(full, added, disk, habits) for habits in kinds]
        parities = code_for(layout, width, params).tolerance
        rate_s = size / (make_model(DISK).write_mb_s * 1e6)
        growth_s, restripe_s = least_seconds(width, added, parities, rate_s)
        rows.append(
            [
                *(layout, f"{width}+{added}"),
                least_bytes(width, added, parities),
                ours.bytes_each,
                moved[1].bytes / moved[1].old_bytes,
                *(growth_s, ours.seconds, restripe_s / growth_s),
                *(one.seconds / ours.seconds for one in moved),
            ]
        )
    return PaperTable(
        "All codes",
        "growing raid5, rdp and evenodd: bytes for each byte of old data, and time, no other load",
        (
            *("layout", "disks", "least bytes", "ours", "our restripe's"),
            *("least seconds", "seconds", "times faster, by arithmetic", "than our restripe"),
            *("than with large windows", "than with md's flushes"),
        ),
        rows,
        "Least bytes: 2mn / ((m + n)(m - parities)). Least seconds: a new disk writes m/w of an "
        "old one; a perfect restripe reads the data and writes wider stripes on the old disks at "
        "full speed. The ratio of the two is the most that a growth can be faster than it: about "
        "twice, and not the ratio of the bytes, because a growth writes on the new disks only. "
        "`md_growth.py` runs md itself: 3.0 (4+1) and 3.33 (4+2) with its levels 4 and 5, 3.5 "
        "(6+2) with its level 6. Published, on other "
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
    large = rewriting if load == WRITE else in_order
    result = simulate(
        Experiment(
            layout=layout,
            params=params,
            members=(model,) * width,
            member_bytes=member_bytes,
            log_bytes=log_of(layout, width, params, member_bytes),
            load=random_load(load == LOADS[1], requests) if small else large,
            depth=DEEP if small or load == DEEP_READ else LARGE_DEPTH,
            seed=SEED,
        )
    )
    return float((result["read_bytes"] + result["write_bytes"]) / result["seconds"])


def history_of(
    layout: str, width: int, added: int, params: dict[str, Any], size: int, rotates: bool
) -> Any:
    """Return the parameters that an array with members of *size* bytes has after a growth."""
    history = (width, width + added)
    rows = code_for(layout, width, params).rows
    stripes = size // CHUNK_BYTES // rows
    rotated = is_rotated(layout, params)
    rules = next_rules(layout, history, params, rotated, stripes, rows, rotates=rotates)
    return {**params, "history": list(history), "rules": [rule and list(rule) for rule in rules]}


def grown_beside_made(member_bytes: int) -> PaperTable:
    """Return the speed of grown arrays as a share of that of arrays made as wide."""
    rows: list[list[Cell]] = []
    for layout, width, added, params in CODES[:3]:
        for model in MODELS:
            rotates = bool(make_model(model).rpm)
            after = history_of(layout, width, added, params, member_bytes, rotates)
            shares = []
            for load in LOADS:
                made, has_grown = (
                    rate(load, model, layout, width + added, member_bytes, each)
                    for each in (params, after)
                )
                shares.append(has_grown / made)
            most: list[Cell] = ["", ""]
            if layout == "raid5":
                seek = PASS_S / (after["rules"][-1][0] * CHUNK_BYTES / BYTES_S)
                most = [most_read(width, added, seek) if rotates else 1.0]
                most.append(most_written(width, added, COPIES))
            rows.append([layout, f"{width}+{added}", model, *shares, *most])
    return PaperTable(
        "Grown arrays",
        "their speed as a share of that of an array made as wide, the whole image written",
        ("layout", "disks", "members", *LOADS, "most of reads", "most of writes"),
        rows,
        f"Small requests {DEEP} at a time, large ones {LARGE_DEPTH}. A large request in the old "
        "area meets all columns but the new ones, which lie on some members for a granule of rows, "
        "64 on rotating disks and 4 on others: the more requests at a time, or the fewer rows, the "
        "better they spread. Rotating disks also pass the granules of the other area, and parity. "
        "Most of reads and writes: what arithmetic leaves (`most_read`, `most_written`). "
        "A rewrite of a row of old data leaves the new columns of its stripes as they are, so data "
        f"and parity go through the log, on {COPIES} members; in an array made as wide, 1 MiB may "
        "be four whole stripes, which need none (4 data disks), or not (5 and 6). Without a log "
        f"the most is {most_written(4, 1, 0):.2f} (4+1) and {most_written(4, 2, 0):.2f} (4+2): a "
        "grown array rewrites 1 MiB at no more than half the speed.",
    )
