"""McPod paper, section 5.3: the speed of grown arrays, and the loads of section 5.

`paper_mcpod.py` makes its tables of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

from growth_runs import DISK, MIB, SEED
from growth_tables import history_of
from paper_common import Cell, PaperTable, estimated, log_bytes, marked

from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import Block, Load, block_of, faster, fit
from raidx_fuse.lab.loads.workloads import generate

TRACES = ("websearch2", "financial1", "tpcc")
# Of the traces' own speed: disks without a write cache, and one parity disk for all, take no more.
PACE = {"websearch2": 0.5, "financial1": 0.2, "tpcc": 0.2}
PAPER_LATENCY_MS = {"one": {"websearch2": (1.18, 1.16)}, "two": {"websearch2": (1.13, 1.05)}}


def load_of(trace: str, requests: int, times: float = 1.0) -> Callable[[int], Load]:
    """Return what makes the load of a trace for an image, so many *times* as fast as the others."""

    def make(size_bytes: int) -> Load:
        pace = PACE[trace] * times
        return fit(faster(generate(trace, seed=SEED, requests=requests), pace), size_bytes)

    return make


def of_the_new_area(is_write: bool, data_disks: int) -> Callable[[int], Load]:
    """Return what makes a load of 1 MiB requests, in order, to the area of the last new disk."""

    def make(size_bytes: int) -> Load:
        first = size_bytes * (data_disks - 1) // data_disks // MIB * MIB
        return [block_of((0.0, is_write, at, MIB) for at in range(first, size_bytes - MIB, MIB))]

    return make


def after_growth(requests: int, member_bytes: int) -> PaperTable:
    """Return the response of grown arrays beside arrays made as wide: Figs. 14 to 17."""
    rows: list[list[Cell]] = []
    for words, history in (("one", [4, 5]), ("two", [4, 5, 6])):
        loads: dict[str, tuple[Callable[[int], Load], int | None]] = {
            trace: (load_of(trace, requests), None) for trace in TRACES
        }
        for is_write, title in ((False, "reads"), (True, "writes")):
            load = of_the_new_area(is_write, history[-1] - 1)
            loads[f"sequential {title} of the new area"] = load, 1
        for name, (load, depth) in loads.items():
            shapes: list[dict[str, Any]] = [{}, {"history": history}]
            if len(history) == 2:
                shapes.append(history_of("raid4", 4, 1, {}, member_bytes, rotates=True))
            found = [after(load, depth, history[-1], params, member_bytes) for params in shapes]
            paper = PAPER_LATENCY_MS[words].get(name)
            told = f"{paper[1] / paper[0]:.3g}" if paper else "almost equal" if not depth else ""
            ours: Cell = found[2] / found[0] if len(found) > 2 else ""
            rows.append([words, name, told, found[1] / found[0], ours, *found[:2]])
    idle = [
        after(load_of("websearch2", requests // 3, 0.01), None, 5, params, member_bytes)
        for params in ({}, {"history": [4, 5]})
    ]
    rows.append(["one", "websearch2, disks idle", "", idle[1] / idle[0], "", *idle])
    return PaperTable(
        "Figs. 14 to 17",
        "mean response after one and two growths by one disk, by that of round robin as wide",
        (
            *("growths", "load", "paper", "as in the paper", "ours"),
            *("round robin, ms", "McPod, ms"),
        ),
        rows,
        "As in the paper: chunks placed by the paper's rule for single chunks. Ours: in granules "
        "of several regions, as `add-disk` chooses by itself, which the next tables say more of. "
        "Almost equal, as in the paper, for its loads, which are random. Not for sequential ones, "
        "which the paper does not have: the new chunks fill what moved chunks have left, on few "
        "disks at a time, so that a run of them keeps few disks busy. The paper's milliseconds "
        "(websearch2: 1.18 and 1.16 after one growth, 1.13 and 1.05 after two) are no times of "
        "disks of 7200 turns a minute, which take 4.2 ms for half a turn: even with disks that are "
        "idle (last row) ours take many times as long. A cache must have answered most of the "
        "paper's reads ('Why, 2'); ours have none, so the ratios are what can be compared.",
    )


CACHED = (0.0, 0.5, 0.75, 0.8, 0.9, 1.0)  # shares of the image that a controller's cache holds
WARM_UP_S = 60.0
CACHE_SEEDS = 4


def cached(requests: int, member_bytes: int) -> PaperTable:
    """Return websearch2 on grown arrays behind a controller whose cache holds part of the image."""
    rows: list[list[Cell]] = []
    for share in CACHED:
        sides: list[list[float]] = []
        hits: list[float] = []
        for params in ({}, {"history": [4, 5]}):
            results = [
                behind_cache(share, params, member_bytes, requests, seed)
                for seed in range(1, CACHE_SEEDS + 1)
            ]
            sides.append([float(result["response_ms"]["mean"]) for result in results])
            if share:
                hits += [result["controller"]["hits"] / result["reads"] for result in results]
        ratios = [ours / theirs for theirs, ours in zip(*sides, strict=True)]
        told = "1.16 by 1.18: 0.983" if share == CACHED[0] else ""
        part = f"{fmean(hits):.0%}" if hits else "0%"
        rows.append(
            [f"{share:.0%}", told, estimated(ratios), part] + [fmean(side) for side in sides]
        )
    return PaperTable(
        "Why, 2",
        "websearch2 after one growth, behind a cache of a controller that was filled beforehand",
        (
            *("of the image in the cache", "paper", "McPod by round robin", "hits"),
            *("round robin, ms", "McPod, ms"),
        ),
        rows,
        "The paper's milliseconds are those of a cache that answers most reads: with no cache the "
        "mean is that of the disks, and between 80 and 90 % of the image in the cache it passes "
        "the paper's 1.18. The cache is of the size of its row, least recently used first, and all "
        "of the image was read beforehand, in random order. Hits are a little more than that "
        "share, as the image is a little smaller than the disks. The ratio of McPod to round robin "
        "stays near 1 whatever the cache answers: so the ratios can be compared, the "
        "milliseconds cannot. The paper does not tell the size of its controller's cache.",
    )


def behind_cache(
    share: float, params: dict[str, Any], member_bytes: int, requests: int, seed: int
) -> dict[str, Any]:
    """Return the result of websearch2 when the cache holds a *share* of the image, read before."""

    def make(size_bytes: int) -> Iterator[Block]:
        last_s = WARM_UP_S * 0.9
        starts = list(range(0, size_bytes, MIB))
        random.Random(seed).shuffle(starts)  # what is left to the disks is spread, too
        yield block_of(
            (number * last_s / len(starts), False, at, min(MIB, size_bytes - at))
            for number, at in enumerate(starts)
        )
        load = generate("websearch2", seed=seed, requests=requests)
        for block in fit(faster(load, PACE["websearch2"]), size_bytes):
            yield replace(block, at_s=block.at_s + WARM_UP_S)

    return simulate(
        Experiment(
            layout="raid4",
            members=(DISK,) * 5,
            member_bytes=member_bytes,
            log_bytes=log_bytes(member_bytes),
            params=params,
            load=make,
            settings={"journal": "none"},
            prepare=marked,
            controller_bytes=int(share * 4 * member_bytes),
            warm_up_s=WARM_UP_S,
            seed=seed,
        )
    )


def after(
    load: Callable[[int], Load],
    depth: int | None,
    width: int,
    params: dict[str, Any],
    member_bytes: int,
) -> float:
    """Return the mean response, ms, of *load* on *width* disks under *params* of raid4."""
    result = simulate(
        Experiment(
            layout="raid4",
            members=(DISK,) * width,
            member_bytes=member_bytes,
            log_bytes=log_bytes(member_bytes),
            params=params,
            load=load,
            depth=depth,
            settings={"journal": "none"},
            prepare=marked,
            seed=SEED,
        )
    )
    return float(result["response_ms"]["mean"])
