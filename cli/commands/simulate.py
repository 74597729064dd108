"""`raidx simulate`: experiments on modelled members in virtual time, compared in a table."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.output import Output, console, duration, plural
from raidx_fuse.cli.parameters import PATH
from raidx_fuse.errors import UsageError
from raidx_fuse.lab.experiments.plots import draw_results
from raidx_fuse.lab.experiments.pool import simulate_pool
from raidx_fuse.lab.experiments.pool_parts import PoolExperiment
from raidx_fuse.lab.experiments.results import comparison, csv_rows
from raidx_fuse.lab.experiments.simulate import simulate as run_experiment
from raidx_fuse.lab.experiments.spec import parse_experiment
from raidx_fuse.lab.loads.record import Recorder

EXIT_WRONG = 1  # a read returned wrong content: an error of the engine, or a faulty member


@verb()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True, type=PATH)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed for all experiments, instead of their own."
)
@click.option("--csv", "csv_path", type=PATH, help="Write all figures to a CSV file.")
@click.option("--plot", "plot_path", type=PATH, help="Draw a plot (needs raidx-fuse[plots]).")
def simulate(
    out: Output,
    specs: tuple[str, ...],
    seed: int | None,
    csv_path: str | None,
    plot_path: str | None,
) -> int:
    """Run experiments in virtual time.

    SPEC is a TOML file with members (models), layout, policy, load and events, or with several
    arrays, volumes on them and the loads of these; several experiments are compared in a table. The
    real engine runs, without a mount and without root, and equal seeds give equal results. For
    examples see examples/experiments/*.toml.
    """
    experiments = [
        parse_experiment(_text(path), path, str(Path(path).parent), seed) for path in specs
    ]
    results = []
    screen = console(stderr=True)
    for experiment in experiments:
        recorder = Recorder()
        progress = screen.status(SoFar(experiment.name, recorder))
        with quiet_engine(), progress if screen.is_terminal else nullcontext():
            if isinstance(experiment, PoolExperiment):
                results.append(simulate_pool(experiment, recorder))
            else:
                results.append(run_experiment(experiment, recorder))
    if csv_path is not None:
        _write_csv(csv_path, results)
    if plot_path is not None:
        draw_results(results, plot_path)
    out.emit({"experiments": results}, page(results))
    return EXIT_WRONG if any(result.get("wrong") for result in results) else 0


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


def _write_csv(path: str, results: list[dict[str, Any]]) -> None:
    rows = csv_rows(results)
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, names, restval="")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def page(results: list[dict[str, Any]]) -> RenderableType:
    """Return results as text and tables."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for result in results:
        table.add_column(Text(result["name"]), justify="right")
    for name, *values in comparison(results):
        table.add_row(name, *values)
    parts: list[RenderableType] = [table]
    for result in results:
        lines = [event_line(event) for event in result["events"]]
        lines += balance_lines(result.get("balance", {}))
        if lines or result["sections"]:
            parts += [Text(), Text(result["name"], style="bold")]
        parts += [Text(line) for line in lines]
        if result["sections"]:
            parts.append(sections_table(result["sections"]))
        parts += [Text(f"failed: {line}") for line in result["errors"][:3]]
        parts += [Text(f"wrong: {line}") for line in result.get("wrong", [])[:3]]
    return Group(*parts)


def event_line(event: dict[str, Any]) -> str:
    """Return the report of an event as one line."""
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


def sections_table(sections: list[dict[str, Any]]) -> Table:
    """Return response times over time."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("from s", "requests", "mean ms", "p95", "p99", "max"):
        table.add_column(title, justify="right")
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
