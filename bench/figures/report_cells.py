"""Cheap cells of the report: one of each section, made again, for the test that compares them.

A figure of the report holds for the commit that its section names. Where the engine or a program
has changed so that today's run gives another figure, this shows it without a run of the whole
report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from paper_common import Cell


class Again(NamedTuple):
    """The cell in *column* of the first row that begins with *cells*, and what makes it again."""

    section: str
    ident: str
    cells: tuple[str | int, ...]
    column: str
    make: Callable[[], Cell]


def _dswap() -> Cell:
    from dswap_runs import Run, planned
    from paper_dswap import summary, text

    found = [planned(Run(("dswap",), seed, arrays=2))[0] for seed in range(1, 13)]
    return text(summary(found)[0])


def _loads() -> Cell:
    from load_statistics import statistics_of

    from raidx_fuse.lab.loads.request import first
    from raidx_fuse.lab.loads.workloads import generate

    return statistics_of(first(generate("financial1", seed=1), requests=20_000)).rate_s


def _mcpod() -> Cell:
    from growth_runs import MIB, grown

    return grown(4, 1, 96 * MIB).seconds


AGAIN = (
    Again("dswap", "Fig. 3(a)", ("2",), "Dswap, ours", _dswap),
    Again("generated_loads", "All", (), "per s", _loads),
    Again("mcpod", "Sections 3.2, 3.5", ("all of them",), "seconds", _mcpod),
)
# Not here: sections of earlier commits, whose engine served requests in another order.
OLDER = ("bpu", "dswap_prototype", "raidx", "raidx_disks", "upc")
