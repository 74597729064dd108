"""`raidx replay`: send a trace, or a generated load, to a mounted array."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from math import floor, log10
from typing import Any

import click
import trio
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.commands.simulate import sections_table
from raidx_fuse.cli.console import table_of
from raidx_fuse.cli.output import Output, console, plural
from raidx_fuse.cli.parameters import array_argument
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
from raidx_fuse.lab.loads.drive import THREADS, Content, Image, Recorder, drive, read_back
from raidx_fuse.lab.loads.request import FITS
from raidx_fuse.lab.loads.workloads import Source

LOOK_S = 0.2
LINE_S = 10.0  # without a terminal: a line each time
SECTIONS = 10
EXIT_WRONG = 1
COUNTERS = ("pre_reads", "rmw", "rcw", "full_stripe", "degraded_reads")


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
    out.emit(document, page(document, out))
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
    if not screen.is_terminal:
        while True:
            await trio.sleep(LINE_S)
            screen.print(_so_far(recorder), markup=False, soft_wrap=True)
    columns = (TextColumn("replay"), BarColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("replay", total=requests, words="")
        while True:
            await trio.sleep(LOOK_S)
            progress.update(task, completed=len(recorder), words=_so_far(recorder))


def _so_far(recorder: Recorder) -> str:
    return f"{plural(len(recorder), 'request')} in {recorder.end_s:.1f} s, {recorder.failed} failed"


def page(document: Mapping[str, Any], out: Output) -> RenderableType:
    rate = f"{document['rate']:.1f} requests/s"
    amount = f"{out.size(document['read_bytes'])} read, {out.size(document['write_bytes'])} written"
    parts: list[RenderableType] = [
        Text(f"{plural(document['requests'], 'request')} in {document['seconds']:.1f} s: {rate}"),
        Text(amount),
    ]
    names = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
    table = table_of("ms", *names)
    for title, kind in (("all", "response_ms"), ("reads", "read_ms"), ("writes", "write_ms")):
        table.add_row(title, *(f"{document[kind][name]:.3f}" for name in names))
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
