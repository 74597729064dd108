"""Dswap paper, section 6.2: the prototype's hotspots, found and dissolved by the whole engine.

    python bench/figures/paper_dswap_prototype.py                 a few minutes
    python bench/figures/paper_dswap_prototype.py --quick         Fig. 8 with fewer points

dswap_pool.py says what runs and what the paper leaves open. The paper gives its curves as pictures;
quoted is what its text says of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from statistics import fmean

from dswap_pool import (
    CHECK_S,
    FIG_6A,
    FIG_6B,
    FIG_7,
    OBSERVED_S,
    UNIT,
    Scene,
    Seen,
    saturated,
    shown,
)
from paper_common import Cell, Chart, PaperTable, Runs, main

TITLE = "Dswap: the prototype (monitor, detection, moves)"

WHY = (
    "Sizes are 1/64 of the paper's, so moves take seconds. Requests are writes to mirrored pairs, "
    "because with reads array 0 would be 37 % busy under the loads given, and no hotspot. "
)


def span(values: Sequence[float], begin_s: float, end_s: float) -> float:
    """Return the mean of one value for each interval over the intervals inside a time."""
    first, last = math.ceil(begin_s / OBSERVED_S), math.floor(end_s / OBSERVED_S)
    inside = values[first:last]
    return fmean(inside) if inside else math.nan


def hotspot(
    runs: Runs[Scene, Seen], ident: str, title: str, scene: Scene, paper: str, remark: str
) -> PaperTable:
    """Return a figure of utilisation over time, and what was done at which time."""
    (seen,) = runs.of([scene])
    rows: list[list[Cell]] = []
    for number, array in enumerate(scene.arrays):
        if not array.sizes:
            continue
        values = seen.estimated[number]
        times = ((0.0, CHECK_S), (CHECK_S, seen.found_s), (seen.gone_s, scene.seconds))
        shares = [f"{span(values, *time):.0%}" for time in times]
        busy = f"{span(seen.busy[number], *times[2]):.0%}"
        iops = [f"{span(seen.iops[number], *time):.0f}" for time in times]
        rows.append(
            [
                f"array {number}",
                "below 50 %" if number else f"above 50 %, then {paper}",
                *shares,
                busy,
                *iops,
            ]
        )
    before, hot, moving, after = seen.response_ms
    found = (
        f"Found at {seen.found_s:.0f} s (paper: 200 s), gone {seen.gone_s - seen.found_s:.1f} s "
        f"later; {len(seen.steps)} moves: {'; '.join(seen.steps)}. Volumes moved: "
        f"{seen.copied / UNIT:g} times 4 GB by Eq. 3. Mean response: {before:.0f} ms before, "
        f"{hot:.0f} ms in the hotspot, {moving:.0f} ms while volumes move, {after:.0f} ms after. "
    )
    x = [OBSERVED_S * (number + 1) for number in range(len(seen.estimated[0]))]
    series = {
        f"array {number}": [100 * value for value in values]
        for number, values in enumerate(seen.estimated)
        if scene.arrays[number].sizes
    }
    labels = ("before 100 s", "hotspot", "after the moves")
    return PaperTable(
        ident,
        title,
        (
            *("array", "paper"),
            *(f"Eq. 5, {label}" for label in labels),
            "busy, after",
            *(f"I/Os a second, {label}" for label in labels),
        ),
        rows,
        found + WHY + remark,
        [Chart("seconds", "utilisation by Eq. 5, %", x, series)],
    )


def fig_8(runs: Runs[Scene, Seen], counts: Sequence[int]) -> PaperTable:
    """Return the requests a second with and without statistics."""
    on = runs.of([saturated(count, monitored=True) for count in counts])
    off = runs.of([saturated(count, monitored=False) for count in counts])
    rows: list[list[Cell]] = []
    series: dict[str, list[float]] = {"with statistics": [], "without": []}
    for count, with_it, without in zip(counts, on, off, strict=True):
        values = [fmean(fmean(one) for one in seen.iops) for seen in (with_it, without)]
        rows.append([4 * count, "nearly identical", *values, f"{values[0] / values[1]:.3f}"])
        for name, value in zip(series, values, strict=True):
            series[name].append(value)
    return PaperTable(
        "Fig. 8",
        "requests a second of an array, with and without statistics",
        ("volumes in all", "paper", *series, "ratio"),
        rows,
        "In virtual time the processor costs nothing, so equal rates only say that no request "
        "waits for the monitor. What it costs the processor: nothing for a request beyond the "
        "counters that `raidx stats` has anyway, and 0.34 ms for an observation of four arrays "
        "with 56 volumes, every 10 s.",
        [Chart("volumes", "I/Os a second", [4 * count for count in counts], series)],
    )


def tables(quick: bool) -> list[PaperTable]:
    """Regenerate section 6.2."""
    runs = Runs(shown)
    counts = (2, 14) if quick else (2, 8, 14)
    return runs.tables(
        partial(
            hotspot,
            runs,
            "Fig. 6(a)",
            "uniform volumes, array 3 half empty",
            FIG_6A,
            "two volumes to array 3",
            "The paper needs two volumes; here a request takes more of the array's time, so a "
            "third has to go.",
        ),
        partial(
            hotspot,
            runs,
            "Fig. 6(b)",
            "uniform volumes, no free space",
            FIG_6B,
            "swaps with array 3",
            "As in the paper a fifth, empty array serves as scratch (balance.target=off): the "
            "first volume waits there while the others change places, which Eq. 3 does not count. "
            "Partners come from arrays 1 and 2: by the think times given these are the least "
            "loaded, the paper's text says array 3. Clients wait for their answers, so they ask "
            "more of an array that has become faster than the plan expected: about half of the "
            "observations exceed 50 %, fewer than the 70 % of a hotspot, and no later check finds "
            "one.",
        ),
        partial(
            hotspot,
            runs,
            "Fig. 7",
            "unlike volumes, no free space",
            FIG_7,
            "two volumes of 4 GB with two of array 3",
            "One swap suffices here: array 0 is 54 % busy in the mean of its window, each of its "
            "six volumes takes 9 % of it, and 47 % are left. What may make it two in the paper is "
            "its gamma (Eq. 4), the least share of the load that a swap has to take off, which it "
            "does not tell. One volume is a sixth of the load: with gamma from 0.16 to 0.30 two "
            "volumes of 4 GB change places here as well and leave 39 %. Ours is 0.01, which copies "
            "half as much. Again the least loaded array by the think times given is array 1. As in "
            "the paper the smallest volumes of the array go.",
        ),
        partial(fig_8, runs, counts),
    )


if __name__ == "__main__":
    sys.exit(main(tables, __doc__))
