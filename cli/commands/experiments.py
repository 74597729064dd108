"""`raidx simulate`: experiments on modelled members in virtual time, compared in a table.

`raidx replay`: a trace, or a generated load, that is sent to a mounted array.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import floor, inf, log10
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
import trio
from rich.console import Console, Group, RenderableType
from rich.progress import Progress, TextColumn
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output, console, duration, percent, plural
from raidx_fuse.cli.parameters import PATH, array_argument
from raidx_fuse.cli.progress import redraws
from raidx_fuse.cli.status_text import BAR_COLUMNS, bar
from raidx_fuse.daemon.control_client import call
from raidx_fuse.errors import (
    AmbiguousError,
    InUseError,
    LosesDataError,
    Reason,
    UsageError,
    ungrouped,
)
from raidx_fuse.fuse import mountpoint
from raidx_fuse.lab.experiments.results import (
    check_path,
    comparison,
    csv_rows,
    draw_results,
    write_records,
    write_rows,
)
from raidx_fuse.lab.experiments.simulate import Experiment, PoolExperiment
from raidx_fuse.lab.experiments.spec import (
    Pairs,
    SweepRun,
    compute_run,
    differences,
    experiment_of,
    parse_axis,
    parse_baseline,
    points,
    runs_of,
    with_baseline,
)
from raidx_fuse.lab.loads.drive import (
    THREADS,
    Content,
    Figures,
    Image,
    Recorder,
    drive,
    read_back,
)
from raidx_fuse.lab.loads.request import FITS
from raidx_fuse.lab.loads.workloads import Source
from raidx_fuse.lab.workers import compute

if TYPE_CHECKING:
    from raidx_fuse.answers import SimulatedSection

BASELINE_RUNS = 8
SWEEP_SHOWN = ("response mean, ms", "p95", "p99", "requests/s", "busiest member, %")
LOOK_S = 0.2
LINE_S = 10.0  # without a terminal: a line each time
SECTIONS = 10
COUNTERS = ("pre_reads", "rmw", "rcw", "full_stripe", "degraded_reads")
EXIT_INTERRUPTED = 130
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
    "--baseline",
    "baselines",
    multiple=True,
    metavar="KEY=VALUE",
    help="Compare with SPEC where KEY has this value (repeat).",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    help="Runs of each, with further seeds (1; 8 with --baseline).",
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
    baselines: tuple[str, ...],
    repeat: int | None,
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

    --sweep runs every combination of values; with --repeat, means are given with half of their 95 %
    intervals. Results do not depend on the number of workers, and lost workers' runs are done
    again.

    --baseline runs everything twice, also with KEY=VALUE, and prints the differences: taken within
    pairs of runs with one seed, which have the same requests, with their 95 % intervals. Seeds vary
    a generated load and the disks. Of a trace with `requests`, each repetition uses the next part;
    a whole trace is the same each time, and only the disks vary.

    --out and --requests write Parquet if the file ends in .parquet, which needs the extra: pip
    install 'raidx-fuse[parquet]'. Each row of figures has the version, the file, its hash and the
    seed; a table of requests has them once, in lines before it that begin with #.

    ^C ends the experiments: the runs that have ended are shown and written, with exit status 130.
    """
    for path in (out_path, requests_path):
        if path is not None:
            check_path(path)
    files = [SweepRun(_text(path), path, str(Path(path).parent)) for path in specs]
    base = [parse_baseline(text) for text in baselines]
    repeat = repeat or (BASELINE_RUNS if base else 1)
    runs = runs_of(files, [parse_axis(text) for text in sweeps], repeat, seed)
    pairs: Pairs = ()
    if base:
        runs, pairs = with_baseline(runs, base)
    runs = [replace(run, records=requests_path is not None) for run in runs]
    screen = console(stderr=True)
    is_sweep = bool(sweeps or base) or repeat > 1
    results: list[Figures] = []
    here = SoFar("", Recorder())
    is_interrupted = False
    try:
        if is_sweep or workers > 1 or scheduler is not None:
            progress = screen.status(RunsSoFar(results, len(runs)))
            with quiet_engine(), progress if redraws(screen) else nullcontext():
                for result in compute(compute_quietly, runs, workers=workers, scheduler=scheduler):
                    results.append(result)
        else:
            for run in runs:
                here = SoFar.of(experiment_of(run))
                results.append(_run_here(run, here, screen))
                here = SoFar("", Recorder())
    except KeyboardInterrupt:
        is_interrupted = True
    if not results:
        answer: Figures = {"experiments": [], "interrupted": True, **here.unfinished()}
        out.emit(answer, here.line())
        return EXIT_INTERRUPTED
    if requests_path is not None:
        write_records(requests_path, results)
        for result in results:
            del result["records"]
    if out_path is not None:
        write_rows(out_path, csv_rows(results), results)
    if plot_path is not None:
        draw_results(results, plot_path)
    answer = {"experiments": results}
    if is_sweep:
        answer["points"] = points(results)
    page = sweep_page(answer["points"]) if is_sweep else _comparison_page(results)
    if base:
        answer["differences"] = differences(results, pairs)
        page = differences_page(answer["differences"])
    if is_interrupted:
        answer |= {"interrupted": True, **here.unfinished()}
        done = f"interrupted: {len(results)} of {plural(len(runs), 'run')} had ended"
        page = Group(page, Text(done), *([Text(here.line())] if len(here.recorder) else []))
    out.emit(answer, page)
    if is_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_WRONG if any(result.get("wrong") for result in results) else 0


def compute_quietly(run: SweepRun) -> Figures:
    """Carry out *run* in a worker, which logs nothing."""
    with quiet_engine():
        return compute_run(run)


def _run_here(run: SweepRun, here: SoFar, screen: Console) -> Figures:
    """Carry out *run* in this process, with a progress line. Raises KeyboardInterrupt."""
    progress = screen.status(here)
    with quiet_engine(), progress if redraws(screen) else nullcontext():
        try:
            return compute_run(run, here.recorder)
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt) is None:
                raise
            raise KeyboardInterrupt from None


def differences_page(made: list[Figures]) -> RenderableType:
    """Return what differs from the baseline as a table: a row for each measure of each point."""
    swept = list(made[0]["sweep"]) if made else []
    table = Table("", "baseline", *swept, "measure", left=("", "baseline", "measure"))
    for title in ("baseline's mean", "mean", "difference", "%", "95 % interval, %", "runs"):
        table.add_column(title)
    for point in made:
        values = ", ".join(f"{key}={value}" for key, value in point["baseline"].items())
        first = [point["name"], values or "the same", *map(str, point["sweep"].values())]
        for name in SWEEP_SHOWN:
            found = point["measures"].get(name)
            if found is None:
                continue
            percents = found["percent"]
            share = percents[0] if percents else None
            if share is None and found["baseline"]:
                share = 100 * found["difference"] / found["baseline"]
            table.add_row(
                *(*first, name),
                *(f"{found[key]:.4g}" for key in ("baseline", "ours")),
                f"{found['difference']:+.3g}",
                f"{share:+z.1f}" if share is not None else "",
                f"{percents[1]:+z.1f} to {percents[2]:+z.1f}" if percents else "",
                str(point["runs"]),
            )
            first = [""] * len(first)
    return table


def sweep_page(made: list[Figures]) -> RenderableType:
    """Return the points of a sweep as a table: mean, and half the interval where runs repeat."""
    table = Table("", left=("",))
    for key in made[0]["sweep"]:
        table.add_column(key)
    for title in ("runs", *SWEEP_SHOWN):
        table.add_column(title)
    for point in made:
        cells = []
        for name in SWEEP_SHOWN:
            measure = point["measures"][name]
            error = "" if measure["half"] is None else f" \u00b1 {measure['half']:.3g}"
            cells.append(f"{measure['mean']:.4g}{error}")
        values = map(str, point["sweep"].values())
        table.add_row(point["name"], *values, str(point["runs"]), *cells)
    return table


@dataclass(frozen=True)
class SoFar:
    """A progress line for an experiment, computed at each redraw."""

    name: str
    recorder: Recorder
    requests: int | None = None
    seconds: float | None = None
    begin_s: float = field(default_factory=monotonic)

    @classmethod
    def of(cls, experiment: Experiment | PoolExperiment) -> SoFar:
        """Return the line of *experiment*, which is about to begin."""
        if isinstance(experiment, PoolExperiment):
            return cls(experiment.name, Recorder())
        return cls(experiment.name, Recorder(), experiment.requests, experiment.seconds)

    def __rich__(self) -> Text:
        count, end_s = plural(len(self.recorder), "request"), self.recorder.end_s
        share = max(len(self.recorder) / (self.requests or inf), end_s / (self.seconds or inf))
        return Text(
            f"{self.name}: {count}, {duration(end_s)} of its own time{to_go(share, self.begin_s)}"
        )

    def unfinished(self) -> Figures:
        """Return what is known of an experiment that was interrupted, for the document."""
        if not len(self.recorder):
            return {}
        return {"unfinished": {"name": self.name, **self.recorder.summary()}}

    def line(self) -> str:
        """Return the same as a line."""
        if not len(self.recorder):
            return "interrupted before the first request had ended"
        figures = self.recorder.summary()
        response = figures["response_ms"]
        shown = ", ".join(f"{name} {response[name]:.3f}" for name in ("mean", "p95", "p99"))
        return f"{self.name}, interrupted after {figures['requests']} requests: {shown} ms"


@dataclass(frozen=True)
class RunsSoFar:
    """A progress line for a sweep, computed at each redraw."""

    results: list[Figures]
    runs: int
    begin_s: float = field(default_factory=monotonic)

    def __rich__(self) -> Text:
        done = len(self.results)
        return Text(f"{done} of {plural(self.runs, 'run')}{to_go(done / self.runs, self.begin_s)}")


def to_go(share: float, begin_s: float) -> str:
    """Return how long it takes from now, if *share* was done since *begin_s*; "" if unknown.

    >>> to_go(0.0, monotonic()), to_go(0.5, monotonic() - 59.5)
    ('', ', 00:01:00 to go')
    """
    if share <= 0:
        return ""
    return f", {duration((monotonic() - begin_s) * (1 - min(share, 1.0)) / share)} to go"


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


def _comparison_page(results: list[Figures]) -> RenderableType:
    table = Table("", left=("",))
    for result in results:
        table.add_column(result["name"])
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


def _event_line(event: Figures) -> str:
    what = event["do"] + (f" disk {event['disk']}" if "disk" in event else "")
    what += f" {event['set']}" if "set" in event else ""
    what += f" of array {event['array']}" if "array" in event else ""
    line = f"at {event['at_s']:g} s: {what}"
    if "refused" in event:
        line += f"; refused: {event['refused']}"
    if "job" in event:
        line += f"; {event['job']} {event['job_state']} at {event['job_ended_s']:z.1f} s"
    return line


def balance_lines(balance: Figures) -> list[str]:
    """Return the hotspots and moves of a pool, in order."""
    found: list[tuple[float, str]] = []
    for one in balance.get("hotspots", ()):
        until = "" if one["end_s"] is None else f" until {one['end_s']:g} s"
        found.append((one["begin_s"], f"array {one['array']} is a hotspot{until}"))
    for one in balance.get("moves", ()):
        end = f"ended at {one['end_s']:z.1f} s" if "end_s" in one else one.get("error", "under way")
        words = f"volume {one['volume']} moves from {one['from']} to {one['to']}; {end}"
        found.append((one["begin_s"], words))
    return [f"at {at_s:z.1f} s: {words}" for at_s, words in sorted(found, key=lambda one: one[0])]


def sections_table(sections: list[SimulatedSection]) -> Table:
    table = Table("from s", "requests", "mean ms", "p95", "p99", "max")
    arrays = sections[0].get("utilisation", {})
    for name in arrays:
        table.add_column(f"{name}, %")
    queues = not arrays and any("member_queues" in section for section in sections)
    if queues:
        table.add_column("queue of each member", left=True)
    for section in sections:
        response = section["response_ms"]
        table.add_row(
            f"{section['from_s']:g}",
            str(section["requests"]),
            *(f"{response[name]:z.2f}" for name in ("mean", "p95", "p99", "max")),
            *(f"{100 * section['utilisation'][name]:z.0f}" for name in arrays),
            *([" ".join(f"{q:z.2f}" for q in section.get("member_queues", []))] if queues else []),
        )
    return table


# -- raidx replay --------------------------------------------------------------------------------


@verb()
@click.argument("trace", metavar="TRACE")
@array_argument
@click.option("--as-fast-as-possible", "flat_out", is_flag=True, help="Ignore the time stamps.")
@click.option(
    "--depth",
    type=click.IntRange(1, 1024),
    default=THREADS,
    show_default=True,
    help="Most requests under way at a time.",
)
@click.option("--requests", type=click.IntRange(min=1), help="Use only so many requests.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Use only the first seconds."
)
@click.option(
    "--speed", type=float, default=1.0, show_default=True, help="Replay so many times as fast."
)
@click.option("--rate", type=float, help="Mean requests a second, instead of --speed.")
@click.option(
    "--fit", type=click.Choice(FITS), default="fold", show_default=True, help="Address mapping."
)
@click.option("--section", type=float, default=0.0, help="Seconds per section (default: a tenth).")
@click.option("--verify", is_flag=True, help="Compare reads with what was written.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of a generated load.")
@click.option(
    "--number",
    "numbers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a number of a generated load, such as read_share=0.8.",
)
@click.option("--overwrite-signature", is_flag=True, help="Destroy the file system on the image.")
@click.option("--lose-data", is_flag=True, help="Overwrite what was written to the image.")
@click.option("--volume", metavar="NAME", help="The volume, where the mount has several.")
def replay(
    out: Output,
    trace: str,
    array: str,
    flat_out: bool,
    depth: int,
    section: float,
    verify: bool,
    overwrite_signature: bool,
    lose_data: bool,
    volume: str | None,
    numbers: tuple[str, ...],
    **shape: Any,
) -> int:
    """Replay a trace on a mounted array.

    TRACE is an SPC or MSR Cambridge file (also .xz, .gz, .bz2, .zst), or the name of a
    generated load such as financial1 (see raidx_fuse/lab/loads/published.py). THE IMAGE IS
    OVERWRITTEN: if anything was written to it, this needs --lose-data. Each request is sent at its
    time stamp and does not wait for earlier answers.
    """
    source = Source(name=trace, rate_s=shape.pop("rate"), numbers=_numbers(numbers), **shape)
    source.check()
    before = call(array, "stats")["array"]
    path, written_bytes = _image_of(array, volume)
    recorder = Recorder()
    if not overwrite_signature:
        with closing(Image(path, threads=1)) as image:
            trio.run(image.check_unused)
    if written_bytes and not (overwrite_signature or lose_data):
        raise LosesDataError(
            f"{path} has {out.size(written_bytes)} that were written, which a load overwrites",
            action="--lose-data accepts it",
        )
    content, size_bytes = trio.run(_run, source, path, recorder, depth, flat_out, verify)
    after = call(array, "stats")["array"]
    section = section or round_section(recorder.end_s)
    document = {
        "trace": trace,
        "image": path,
        "image_size": size_bytes,
        **recorder.figures(),
        "array": {name: after[name] - before[name] for name in COUNTERS},
        "sections": recorder.sections(section),
    }
    if content is not None:
        document |= {"verified_bytes": content.checked_bytes, "wrong": content.wrong}
    out.emit(document, replay_page(document, out))
    return EXIT_WRONG if recorder.failed or document.get("wrong") else 0


def _numbers(words: tuple[str, ...]) -> dict[str, float]:
    """Return NAME=VALUE words as numbers by name. Raises UsageError."""
    numbers: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            numbers[name] = int(text) if text.isdigit() else float(text)
        except ValueError:
            raise UsageError(f"--number {word}: write NAME=VALUE, a number") from None
    return numbers


def round_section(seconds: float) -> float:
    """Return a round number of seconds, about a tenth of *seconds*.

    >>> round_section(2.9), round_section(604800.0), round_section(0.0)
    (0.5, 100000.0, 0.0)
    """
    if seconds <= 0:
        return 0.0
    unit = 10.0 ** floor(log10(seconds / SECTIONS))
    return next(unit * n for n in (1, 2, 5, 10) if unit * n * SECTIONS >= seconds)


def _image_of(array: str, volume: str | None) -> tuple[str, int]:
    """Return the path of *volume*, None: of the only one; and how many bytes of it were written.

    Raises UsageError, BusyError.
    """
    paths = {str(one["name"]): str(one["path"]) for one in call(array, "status")["volumes"]}
    if volume is None and len(paths) == 1:
        volume = next(iter(paths))
    if volume not in paths:
        names = ", ".join(paths) or "none: make one with raidx volume create"
        if volume is None:
            raise AmbiguousError(f"{array} has {len(paths)} volumes", action=f"--volume: {names}")
        raise UsageError(
            f"{array} has no volume {volume}",
            action=f"there is {names}",
            reason=Reason.NO_SUCH_VOLUME,
        )
    for device, image in mountpoint.loop_devices(os.path.dirname(paths[volume])):
        if image == paths[volume]:
            raise InUseError(
                f"{device} is on the image: a load would destroy what is there",
                action=f"detach it first: losetup -d {device}",
            )
    listed = {one["path"]: int(one["written"]) for one in call(array, "volume-list")["volumes"]}
    return paths[volume], listed.get(paths[volume], 0)


async def _run(
    source: Source,
    path: str,
    recorder: Recorder,
    depth: int,
    flat_out: bool,
    verify: bool,
) -> tuple[Content | None, int]:
    with closing(Image(path, threads=depth)) as image:
        content = Content(image.size_bytes, source.seed) if verify else None
        load = source.load(image.size_bytes)
        with ungrouped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, recorder, source.requests)
                at_once = depth if flat_out else None
                await drive(image, load, recorder, depth=at_once, content=content)
                nursery.cancel_scope.cancel()
        if content is not None:
            await read_back(image, content)
    return content, image.size_bytes


async def _watch(recorder: Recorder, requests: int | None) -> None:
    """Show the progress until cancelled: a bar on a terminal, otherwise a line every LINE_S."""
    screen = console(stderr=True, live=True)
    if not redraws(screen):
        while True:
            await trio.sleep(LINE_S)
            screen.print(_so_far(recorder), markup=False, soft_wrap=True)
    columns = (TextColumn("replay {task.fields[bar]} {task.fields[words]}"),)
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("replay", total=requests, bar="", words="")
        while True:
            await trio.sleep(LOOK_S)
            share = percent(len(recorder), requests) if requests else 0.0
            drawn = bar(share, BAR_COLUMNS).plain if requests else ""
            progress.update(task, completed=len(recorder), bar=drawn, words=_so_far(recorder))


def _so_far(recorder: Recorder) -> str:
    return (
        f"{plural(len(recorder), 'request')} in {recorder.end_s:z.1f} s, {recorder.failed} failed"
    )


def replay_page(document: Mapping[str, Any], out: Output) -> RenderableType:
    rate = f"{document['rate']:z.1f} requests/s"
    amount = f"{out.size(document['read_bytes'])} read, {out.size(document['write_bytes'])} written"
    parts: list[RenderableType] = [
        Text(f"{plural(document['requests'], 'request')} in {document['seconds']:z.1f} s: {rate}"),
        Text(amount),
    ]
    names = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
    table = Table("ms", *names)
    for title, kind in (("all", "response_ms"), ("reads", "read_ms"), ("writes", "write_ms")):
        table.add_row(title, *(f"{document[kind][name]:z.3f}" for name in names))
    parts += [table, Text(), sections_table(document["sections"])]
    counts = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in document["array"].items())
    parts += [Text(), Text(counts)]
    if document["held_back"]:
        parts.append(Text(f"{plural(document['held_back'], 'request')} held back: too many waited"))
    if document["failed"]:
        parts.append(Text(f"{document['failed']} failed: {document['errors'][0]}"))
    if "verified_bytes" in document:
        wrong = document["wrong"]
        verdict = f"{len(wrong)} reads were WRONG: {wrong[0]}" if wrong else "all as written"
        parts.append(Text(f"verified {out.size(document['verified_bytes'])}: {verdict}"))
    return Group(*parts)
