"""The crash campaign as a program: ``python -m raidx_fuse.lab.crash --states 10000 --seed 1``.

Prints the matrix layout x journal x verb x fault. For every broken promise it prints the command
line that replays exactly that state. The exit status is 1 if a promise was broken.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.lab.crash import campaign
from raidx_fuse.lab.crash.campaign import FAULTS, Tally, replay
from raidx_fuse.lab.crash.pairs import Meeting, is_pair
from raidx_fuse.lab.crash.state import PROGRAM, Cell, State
from raidx_fuse.lab.crash.workload import themes_of
from raidx_fuse.lab.workers import compute
from raidx_fuse.layouts.registry import LAYOUTS, LayoutError, find_layout
from raidx_fuse.settings import MODES


@click.command()
@click.option("--states", default=10_000, show_default=True, help="Crashed states to check.")
@click.option("--seed", default=1, show_default=True, help="Seed of every random choice.")
@click.option("--layout", "layouts", multiple=True, metavar="L", help="Only this layout (repeat).")
@click.option("--journal", "journals", multiple=True, metavar="M", help="Only this mode (repeat).")
@click.option(
    "--theme", "themes", multiple=True, metavar="T", help="Only this theme (repeat): growth, ..."
)
@click.option(
    "--sums",
    type=click.Choice(["on", "off"]),
    help="Only arrays with checksums, or without; else both.",
)
@click.option(
    "--workers", "--processes", "workers", default=2, show_default=True, help="Worker processes."
)
@click.option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, instead of processes.")
@click.option("--broken", is_flag=True, help="Break the log's ordering: violations must appear.")
@click.option("--stop-after", default=20, show_default=True, help="Stop after so many violations.")
@click.option(
    "--minimum", default=0, metavar="N", help="Then more of each row of the matrix below N states."
)
@click.option(
    "--every-place",
    is_flag=True,
    help="Let the operations of the theme pairs meet at every place, not at some.",
)
@click.option("--page", type=click.Path(path_type=Path), help="Also write the matrix as Markdown.")
@click.option("--replay", "state", metavar="STATE", help="Check one state, by its printed name.")
def main(
    states: int,
    seed: int,
    layouts: tuple[str, ...],
    journals: tuple[str, ...],
    themes: tuple[str, ...],
    sums: str | None,
    workers: int,
    scheduler: str | None,
    broken: bool,
    stop_after: int,
    minimum: int,
    every_place: bool,
    page: Path | None,
    state: str | None,
) -> None:
    """Cut the power of arrays at every write boundary, with and without the loss of members, and
    check that each array keeps the promises of its journal mode."""
    console = Console()
    try:
        if state is not None:
            verb, what = replay(replayed := State.parse(state))
            console.print(f"{replayed}: {verb}: {what or 'keeps its promises'}", markup=False)
            sys.exit(1 if what is not None else 0)
        cells = _cells(layouts, journals, broken, themes, sums)
    except (RaidxError, LayoutError) as error:
        raise click.UsageError(str(error)) from None
    started_s = time.monotonic()
    tally, interrupted = Tally(), False
    coverage = campaign.Coverage(cells, minimum, seed)
    further = coverage.rounds() if minimum and not themes else iter(())
    first = campaign.tasks_of(cells, states, seed, every_place=every_place)
    for tasks in chain([first], further):
        parts = compute(campaign.run_task, tasks, workers=workers, scheduler=scheduler)
        try:
            for part in parts:
                for violation in part.violations:  # now: a run of hours may be interrupted
                    console.print(f"\n{violation}", markup=False, soft_wrap=True)
                tally.add(part)
                coverage.note(part)
                if console.is_terminal:
                    console.print(f"\r{tally.total:,} states", end="")
                if len(tally.violations) >= stop_after:
                    break
        except RaidxError as error:
            raise click.UsageError(str(error)) from None
        except KeyboardInterrupt:
            console.print("\ninterrupted: the parts that had ended count", style="yellow")
            interrupted = True
        finally:
            parts.close()
        if interrupted or len(tally.violations) >= stop_after:
            break
    if minimum and (few := coverage.missing()):
        console.print(f"{len(few)} rows have fewer than {minimum} states", style="yellow")
    elapsed_s = time.monotonic() - started_s
    _print(console, tally, elapsed_s)
    if page is not None:
        # The page names no file of the machine on which it was made.
        command = shlex.join(word for word in sys.argv[1:] if word not in ("--page", str(page)))
        date = time.strftime("%Y-%m-%d")
        page.write_text(campaign.markdown(tally, f"{PROGRAM} {command}", date, elapsed_s))
    sys.exit(1 if tally.violations or interrupted else 0)


def _cells(
    layouts: Sequence[str],
    journals: Sequence[str],
    broken: bool,
    themes: Sequence[str],
    sums: str | None = None,
) -> list[Cell]:
    """Return the cells of the campaign. Raises LayoutError, UsageError."""
    mountable = [name for name, layout in LAYOUTS.items() if layout.build or layout.bundled]
    names = [find_layout(name).name for name in layouts] or mountable
    for name in names:
        if name not in mountable:
            raise LayoutError(f"{name} is not a layout for arrays: see `raidx layout list`")
    for journal in journals:
        if journal not in MODES:
            raise UsageError(f"unknown journal mode {journal!r}: use one of {', '.join(MODES)}")
    cells: list[Cell] = []
    for theme in themes or ("",):
        themed = [
            Cell(name, mode, broken, theme, has_sums)
            for name in names
            for has_sums in (False, True)
            if sums in (None, "on" if has_sums else "off")
            for mode in journals or MODES
        ]
        for cell in filter(is_pair, themed):
            Meeting.of(cell, 0)  # are there such operations?
        themed = [c for c in themed if not theme or is_pair(c) or theme in themes_of(c)]
        if not themed:
            raise UsageError(f"none of the layouts {', '.join(names)} has the theme {theme!r}")
        cells += themed
    return cells


def _print(console: Console, tally: Tally, elapsed_s: float) -> None:
    table = Table(title="states / violations", title_justify="left")
    table.add_column("array")
    table.add_column("when")
    for fault in FAULTS:
        table.add_column(fault, justify="right")
    last = None
    for cell, verb, counts in campaign.rows_of(tally):
        texts = [
            f"[red]{campaign.shown(pair)}[/red]" if pair[1] else campaign.shown(pair)
            for pair in counts
        ]
        table.add_row(cell if cell != last else "", verb, *texts, end_section=verb == "all")
        last = cell
    console.print(table)
    rate = tally.total / elapsed_s if elapsed_s else 0.0
    console.print(
        f"{tally.total:,} states of {tally.workloads:,} workloads in {elapsed_s:.0f} s "
        f"({rate:.0f} a second), {sum(tally.failures.values()):,} violations"
    )


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # a script's background programs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    main()
