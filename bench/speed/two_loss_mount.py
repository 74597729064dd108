"""Small random writes on mounted arrays of the two-loss codes, as a share of raid5's rate.

    python bench/speed/two_loss_mount.py

A write of 4 KiB to raid5 reads two chunks and writes two; to a code of two losses three and three
or more (RDP: most data cells change three parities, EVENODD's adjuster all of them). Members in
memory, one request after the other and 16 at once, direct I/O; two arrays mounted side by side,
measured in turns, both without a journal or (`+log`) both with it, as arrays are by default.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from candidates import LOGGED, MIB, TWO_LOSS_WIDTHS, mounted
from lines import Line, print_lines
from mount_ratio import Row, measure

BAR = 0.5
ROWS = (
    Row("4 KiB random write, 1 deep", "randwrite", "4k", 1, {}),
    Row("4 KiB random write, 16 deep", "randwrite", "4k", 16, {}),
)


def compare(
    name: str,
    base: str,
    rows: Sequence[Row] = ROWS,
    bar: float = BAR,
    *,
    size: int,
    rounds: int,
    seconds: float,
) -> list[Line]:
    """Mount the candidates *base* and *name*, measure *rows*, and return the lines of both.

    *bar* is the least share of *base* that *name* has to reach.
    """
    with (
        tempfile.TemporaryDirectory(prefix="raidx-bench-", dir="/dev/shm") as home,
        mounted([base, name], {}, size, Path(home)) as candidates,
    ):
        results = measure(candidates, rows, size, rounds, seconds)
    lines = []
    for row in rows:
        for each in (base, name):
            own, theirs = results[row.title, each], results[row.title, base]
            shares = [a.iops / b.iops for a, b in zip(own, theirs, strict=True)]
            iops = statistics.median(result.iops for result in own)
            lines.append(
                Line(
                    row=row.title,
                    subject=each,
                    figure=f"{iops:,.0f} /s",
                    value=statistics.median(shares),
                    low=min(shares),
                    high=max(shares),
                    bar=bar if each == name else None,
                    unit=f" of {base}",
                    cpu_us=round(statistics.median(result.cpu_us for result in own), 1),
                    detail={"iops": round(iops)},
                )
            )
    return lines


def run(names: Sequence[str], *, size: int, rounds: int, seconds: float) -> list[Line]:
    """Return the lines of *names*, without and with a journal."""
    lines = []
    for name in names:
        for suffix in ("", LOGGED):
            lines += compare(
                name + suffix, "raid5" + suffix, size=size, rounds=rounds, seconds=seconds
            )
    return lines


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(TWO_LOSS_WIDTHS), metavar="NAMES")
    parser.add_argument("--size", type=int, default=128, help="size of each image, MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = run(
        options.only.split(","),
        size=options.size * MIB,
        rounds=options.rounds,
        seconds=options.seconds,
    )
    return print_lines(lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
