"""`raidx simulate`: experiments on modelled members in virtual time, compared in a table."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.console import table_of
from raidx_fuse.cli.output import Output, console, duration, plural
from raidx_fuse.cli.parameters import PATH
from raidx_fuse.errors import UsageError
from raidx_fuse.lab.experiments.results import (
    check_path,
    comparison,
    csv_rows,
    draw_results,
    write_records,
    write_rows,
)
from raidx_fuse.lab.experiments.spec import (
    SweepRun,
    compute_run,
    experiment_of,
    parse_axis,
    points,
    runs_of,
)
from raidx_fuse.lab.loads.drive import Recorder
from raidx_fuse.lab.workers import compute

if TYPE_CHECKING:
    from raidx_fuse.answers import SimulatedSection

SWEEP_SHOWN = ("response mean, ms", "p95", "p99", "requests/s", "busiest member, %")
EXIT_WRONG = 1  # a read returned wrong content: an error of the engine, or a faulty member


@verb()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True, type=PATH)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed for all experiments, instead of their own."
)
@click.option(
    "--sweep", "sweeps", multiple=True, metavar="KEY=A,B,C", help="Vary a key of SPEC (repeat)."
)
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=1, help="Runs of each, with further seeds."
)
@click.option(
    "--workers", type=click.IntRange(1, 1024), default=1, help="Processes that share the runs."
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="A Dask scheduler whose workers share the runs."
)
@click.option(
    "--out", "--csv", "out_path", type=PATH, help="Write all figures to a CSV or .parquet file."
)
@click.option(
    "--requests", "requests_path", type=PATH, help="Write every request to a CSV or .parquet file."
)
@click.option("--plot", "plot_path", type=PATH, help="Draw a plot (needs raidx-fuse[plots]).")
def simulate(
    out: Output,
    specs: tuple[str, ...],
    seed: int | None,
    sweeps: tuple[str, ...],
    repeat: int,
    workers: int,
    scheduler: str | None,
    out_path: str | None,
    requests_path: str | None,
    plot_path: str | None,
) -> int:
    """Run experiments in virtual time.

    SPEC is a TOML file with members (models), layout, policy, load and events, or with several
    arrays, volumes on them and the loads of these; several experiments are compared in a table. The
    real engine runs, without a mount and without root, and equal seeds give equal results. For
    examples see examples/experiments/*.toml.

    --sweep runs every combination of values; with --repeat, means are given with their standard
    errors. Results do not depend on the number of workers, and lost workers' runs are done again.

    --out and --requests write Parquet if the file ends in .parquet, which needs the extra: pip
    install 'raidx-fuse[parquet]'. Each row has the version, the file, its hash and the seed.
    """
    for path in (out_path, requests_path):
        if path is not None:
            check_path(path)
    files = [SweepRun(_text(path), path, str(Path(path).parent)) for path in specs]
    runs = runs_of(files, [parse_axis(text) for text in sweeps], repeat, seed)
    runs = [replace(run, records=requests_path is not None) for run in runs]
    screen = console(stderr=True)
    is_sweep = bool(sweeps) or repeat > 1
    if is_sweep or workers > 1 or scheduler is not None:
        results = []
        counter = Text(f"0 of {plural(len(runs), 'run')}")
        with quiet_engine(), screen.status(counter) if screen.is_terminal else nullcontext():
            for result in compute(compute_quietly, runs, workers=workers, scheduler=scheduler):
                results.append(result)
                counter.plain = f"{len(results)} of {plural(len(runs), 'run')}"
    else:
        results = [_run_here(run, screen) for run in runs]
    if requests_path is not None:
        write_records(requests_path, results)
        for result in results:
            del result["records"]
    if out_path is not None:
        write_rows(out_path, csv_rows(results), results)
    if plot_path is not None:
        draw_results(results, plot_path)
    answer: dict[str, Any] = {"experiments": results}
    if is_sweep:
        answer["points"] = points(results)
    out.emit(answer, sweep_page(answer["points"]) if is_sweep else page(results))
    return EXIT_WRONG if any(result.get("wrong") for result in results) else 0


def compute_quietly(run: SweepRun) -> dict[str, Any]:
    """Carry out *run* in a worker, which logs nothing."""
    with quiet_engine():
        return compute_run(run)


def _run_here(run: SweepRun, screen: Console) -> dict[str, Any]:
    """Carry out *run* in this process, with a progress line."""
    recorder, experiment = Recorder(), experiment_of(run)
    progress = screen.status(SoFar(experiment.name, recorder))
    with quiet_engine(), progress if screen.is_terminal else nullcontext():
        return compute_run(run, recorder)


def sweep_page(made: list[dict[str, Any]]) -> RenderableType:
    """Return the points of a sweep as a table: mean, and standard error where runs repeat."""
    table = table_of("", left=("",))
    for key in made[0]["sweep"]:
        table.add_column(Text(key))
    for title in ("runs", *SWEEP_SHOWN):
        table.add_column(title, justify="right")
    for point in made:
        cells = []
        for name in SWEEP_SHOWN:
            measure = point["measures"][name]
            error = "" if measure["se"] is None else f" (s.e. {measure['se']:.3g})"
            cells.append(f"{measure['mean']:.4g}{error}")
        values = map(str, point["sweep"].values())
        table.add_row(Text(point["name"]), *map(Text, values), str(point["runs"]), *cells)
    return table


@dataclass(frozen=True)
class SoFar:
    """A progress line for an experiment, computed at each redraw."""

    name: str
    recorder: Recorder

    def __rich__(self) -> Text:
        count, end_s = plural(len(self.recorder), "request"), self.recorder.end_s
        return Text(f"{self.name}: {count}, {duration(end_s)} of its own time")


@contextmanager
def quiet_engine() -> Iterator[None]:
    """Silence the engine's log messages: failures are part of the experiment and its result."""
    log = logging.getLogger("raidx_fuse")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{path}: cannot be read: {reason}") from None


def page(results: list[dict[str, Any]]) -> RenderableType:
    table = table_of("", left=("",))
    for result in results:
        table.add_column(Text(result["name"]), justify="right")
    for name, *values in comparison(results):
        table.add_row(name, *values)
    parts: list[RenderableType] = [table]
    for result in results:
        lines = [_event_line(event) for event in result["events"]]
        lines += balance_lines(result.get("balance", {}))
        if lines or result["sections"]:
            parts += [Text(), Text(result["name"], style="bold")]
        parts += [Text(line) for line in lines]
        if result["sections"]:
            parts.append(sections_table(result["sections"]))
        parts += [Text(f"failed: {line}") for line in result["errors"][:3]]
        parts += [Text(f"wrong: {line}") for line in result.get("wrong", [])[:3]]
    return Group(*parts)


def _event_line(event: dict[str, Any]) -> str:
    what = event["do"] + (f" disk {event['disk']}" if "disk" in event else "")
    what += f" {event['set']}" if "set" in event else ""
    what += f" of array {event['array']}" if "array" in event else ""
    line = f"at {event['at_s']:g} s: {what}"
    if "refused" in event:
        line += f"; refused: {event['refused']}"
    if "job" in event:
        line += f"; {event['job']} {event['job_state']} at {event['job_ended_s']:.1f} s"
    return line


def balance_lines(balance: dict[str, Any]) -> list[str]:
    """Return the hotspots and moves of a pool, in order."""
    found: list[tuple[float, str]] = []
    for one in balance.get("hotspots", ()):
        until = "" if one["end_s"] is None else f" until {one['end_s']:g} s"
        found.append((one["begin_s"], f"array {one['array']} is a hotspot{until}"))
    for one in balance.get("moves", ()):
        end = f"ended at {one['end_s']:.1f} s" if "end_s" in one else one.get("error", "under way")
        words = f"volume {one['volume']} moves from {one['from']} to {one['to']}; {end}"
        found.append((one["begin_s"], words))
    return [f"at {at_s:.1f} s: {words}" for at_s, words in sorted(found, key=lambda one: one[0])]


def sections_table(sections: list[SimulatedSection]) -> Table:
    table = table_of("from s", "requests", "mean ms", "p95", "p99", "max")
    arrays = sections[0].get("utilisation", {})
    for name in arrays:
        table.add_column(f"{name}, %", justify="right")
    queues = not arrays and any("member_queues" in section for section in sections)
    if queues:
        table.add_column("queue of each member")
    for section in sections:
        response = section["response_ms"]
        table.add_row(
            f"{section['from_s']:g}",
            str(section["requests"]),
            *(f"{response[name]:.2f}" for name in ("mean", "p95", "p99", "max")),
            *(f"{100 * section['utilisation'][name]:.0f}" for name in arrays),
            *([" ".join(f"{q:.2f}" for q in section.get("member_queues", []))] if queues else []),
        )
    return table
