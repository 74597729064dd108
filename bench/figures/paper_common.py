"""Tables, charts, parallel runs and printing: the common parts of the papers' programs.

Each ``bench/figures/paper_NAME.py`` regenerates the tables and figures of one paper in virtual
time:

    TITLE = "UPC: ..."                                   # heading of its section in the report

    def tables(quick: bool) -> list[PaperTable]: ...     # quick: fewer requests, wider spread

    if __name__ == "__main__":
        sys.exit(main(tables, __doc__))

`report.py` runs the program of every paper and makes one page of their tables.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import ClassVar, Generic, TypeVar

from rich.console import Console
from rich.table import Table

from raidx_fuse.array.array import Array
from raidx_fuse.errors import UsageError
from raidx_fuse.format.regions import log_bytes as log_region_bytes
from raidx_fuse.lab.experiments.intervals import estimate, percent
from raidx_fuse.lab.workers import executor
from raidx_fuse.layouts.numbers import stripe_range

Cell = str | int | float
R = TypeVar("R", bound=Hashable)
T = TypeVar("T")


def log_bytes(member_bytes: int, stripe_bytes: int = 128 << 10) -> int:
    """Return the size of the log in the arrays of the report, whatever `create` makes it.

    It is 1/32 of a member, at most 64 MiB, at least what stripes of *stripe_bytes* need.
    """
    return max(min(member_bytes // 32, 64 << 20), log_region_bytes(0, stripe_bytes))


@dataclass(frozen=True)
class Chart:
    """Lines over a common x: *series* is name to y values, one for each of *x*."""

    x_label: str
    y_label: str
    x: Sequence[float]
    series: Mapping[str, Sequence[float]]
    log_x: bool = False


@dataclass(frozen=True)
class PaperTable:
    """One table or figure of a paper, regenerated.

    *ident* is its name in the paper ("Fig. 5", "Table II"); the columns hold the setting, the
    paper's number and ours, in this order; *remark* says why they differ where they do.
    """

    ident: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    remark: str = ""
    charts: Sequence[Chart] = field(default=())

    def markdown(self) -> str:
        """Return heading, table and remark as Markdown."""
        lines = [f"### {self.ident}: {self.title}", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(map(cell_text, row)) + " |" for row in self.rows]
        return "\n".join([*lines, "", *([self.remark, ""] if self.remark else [])])

    def rich(self) -> Table:
        """Return the table for a terminal."""
        table = Table(title=f"{self.ident}: {self.title}", caption=self.remark or None)
        for column in self.columns:
            table.add_column(column)
        for row in self.rows:
            table.add_row(*map(cell_text, row))
        return table


def cell_text(cell: Cell) -> str:
    """Return the text of a cell, rounded to three digits.

    >>> cell_text(0.12345), cell_text(1234.6), cell_text("25.1 %"), cell_text(7)
    ('0.123', '1235', '25.1 %', '7')
    """
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return str(cell)


class Runs(Generic[R, T]):
    """Measures every run that a table asks for, each run once, on all processors or a scheduler's.

    *measure* is a function of a module, and its runs are plain values (a NamedTuple): both travel
    to other processes. Two tables that ask for one run share it.
    """

    scheduler: ClassVar[str | None] = None  # the address of a Dask scheduler, for `main` to set

    def __init__(self, measure: Callable[[R], T]) -> None:
        self._asked: dict[R, Future[T]] = {}
        self._lock = Lock()
        self._ends = ExitStack()
        self._submit = self._ends.enter_context(
            executor(measure, os.cpu_count() or 1, self.scheduler)
        )

    def of(self, runs: Iterable[R]) -> list[T]:
        """Return what *runs* gave, in their order; waits for them."""
        with self._lock:
            futures = [
                self._asked.get(run) or self._asked.setdefault(run, self._submit(run))
                for run in runs
            ]
        return [future.result() for future in futures]

    def tables(self, *makers: Callable[[], PaperTable]) -> list[PaperTable]:
        """Return the table of each maker.

        The tables are made concurrently, so no processor is idle while one waits for its last run.
        """
        with self._ends, ThreadPoolExecutor(len(makers)) as threads:
            return list(threads.map(lambda maker: maker(), makers))


def gain(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return by how much *ours*, times in pairs with *theirs*, is better; 95 % interval, and n.

    The mean is the geometric mean of the ratios. An arithmetic mean would favour the side that is
    in the numerator, because the spread is wide.

    >>> gain([1.0, 4.0], [0.5, 2.0]), gain([1.0], [1.1])
    ('+50.0 % (+50.0 to +50.0, n = 2)', '-10.0 % (n = 1)')
    """
    found = percent(theirs, ours)
    assert found is not None, "times are above 0"
    mean, low, high = (-value for value in found)
    spread = f"{high:+.1f} to {low:+.1f}, " if len(ours) > 1 else ""
    return f"{mean:+.1f} % ({spread}n = {len(ours)})"


def estimated(values: Sequence[float]) -> str:
    """Return the mean of *values* with half of its 95 % interval, and n.

    >>> estimated([1.0, 2.0, 3.0])
    '2 \u00b1 2.5 (n = 3)'
    """
    found = estimate(values)
    half = "" if found.half is None else f" \u00b1 {found.half:.2g}"
    return f"{found.mean:.3g}{half} (n = {found.n})"


async def marked(array: Array) -> None:
    """Mark every region dirty: in the papers, writes do not wait for a write-intent bitmap."""
    dirty = array.context.dirty_bitmap
    await dirty.enter(stripe_range(0, array.context.layout.stripes)[:: dirty.per_region])


def main(tables: Callable[..., list[PaperTable]], doc: str | None, *, trace: bool = False) -> int:
    """Print the tables of one paper: ``--quick``, ``--json``, ``--scheduler ADDRESS``; with *trace*
    also ``--trace FILE``.

    *tables* is called with quick and, if one was given, the keyword *trace*, the file's path. Only
    tables that are made of `Runs` are spread; what others run is too little for it.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests, wider spread")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the workers of this Dask scheduler"
    )
    if trace:
        parser.add_argument("--trace", metavar="FILE", help="a real trace, SPC or MSR")
    options = parser.parse_args()
    Runs.scheduler = options.scheduler
    more = {"trace": options.trace} if trace and options.trace else {}
    try:
        made = tables(options.quick, **more)
    except UsageError as error:
        parser.error(str(error))
    print_tables(made, options.json, Console())
    return 0


def print_tables(made: Sequence[PaperTable], as_json: bool, console: Console) -> None:
    """Print tables for people or, as one document, for programs."""
    if as_json:
        print(json.dumps([asdict(table) for table in made], indent=2))
        return
    for table in made:
        console.print(table.rich())
