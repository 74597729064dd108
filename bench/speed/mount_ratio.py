"""How fast is a mounted array, as a multiple of a plain pass-through of one file?

    python bench/speed/mount_ratio.py                         raid0 and raid5 against their bars
    python bench/speed/mount_ratio.py --only stock,fast,c     the FUSE front end alone
    python bench/speed/mount_ratio.py --directory /var/tmp    members in files, not in memory
    python bench/speed/mount_ratio.py --candidate 'mine=mounter {mountpoint} {directory}'

All candidates are mounted at the same time, and every image is written in full before. Each round
runs each row of the table on each candidate in turn (fio, direct I/O), and the ratio is taken
within the round; the table shows the median of the rounds and the spread. Absolute figures vary
with the machine and its load, ratios much less, CPU time per request least. A run during which
other programs took more than a tenth of the processors is repeated up to three times, and the least
disturbed one counts. A daemon that polls for the next request spends CPU time on polling, too: see
the rows of depth 1.

A ratio below 1 means slower than `bench/peers/passthrough_stock.py`, which is pyfuse3 with its own
main loop. `fast` is raidx's FUSE front end over one file, the upper limit of an array; `c` is
libfuse; `+log` is an array with its journal, as arrays are by default; the others have none.
`raid5x5` has five members instead of four (``--only raid5x5,raid5x5+log``): its stripes divide
1 MiB.

A candidate of your own is a command that stays in the foreground, shows an image named ``disk`` in
{mountpoint}, may use {directory}, makes it of {size} bytes, and unmounts on SIGTERM.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from candidates import LOGGED, MIB, Candidate, mounted
from lines import Line, print_lines

TRIES = 4
DISTURBED_MAX = 0.1
NAMES = ("stock", "fast", "c", "raid0", "raid5", "raid5+log")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    *bars* are the least ratios to stock by candidate, *log_bar* that of an array with its journal
    to the same array without.
    """

    title: str
    mode: str
    block: str
    depth: int
    bars: dict[str, float]
    log_bar: float | None = None

    @property
    def streams(self) -> bool:
        """Whether people want bytes a second rather than requests a second."""
        return self.block == "1m"


ROWS = (
    Row("4 KiB random read, 1 deep", "randread", "4k", 1, {"raid0": 2.5, "raid5": 2.5}),
    Row("4 KiB random read, 16 deep", "randread", "4k", 16, {"raid0": 2.5, "raid5": 2.5}),
    Row("4 KiB random write, 1 deep", "randwrite", "4k", 1, {"raid0": 2.0}),
    Row("4 KiB random write, 16 deep", "randwrite", "4k", 16, {"raid0": 2.0, "raid5": 1.2}, 0.6),
    Row("1 MiB sequential read", "read", "1m", 1, {"raid0": 0.95, "raid5": 0.75}),
    Row("1 MiB sequential write", "write", "1m", 1, {"raid0": 1.0, "raid5": 0.7}, 0.9),
)
WIDE_ROWS = [row for row in ROWS if row.streams and row.mode == "write"]


@dataclass(frozen=True)
class Result:
    """One run of fio: operations and bytes per second, CPU of the daemon per operation.

    *disturbed* is the share of all processors that others took meanwhile.
    """

    iops: float
    rate_bytes: float
    cpu_us: float
    disturbed: float


def target_options(candidate: Candidate, depth: int) -> list[str]:
    """Return fio's options for *depth* requests at once to the image, or to the export."""
    if candidate.uri:
        return ["--ioengine=nbd", f"--uri={candidate.uri}", f"--iodepth={depth}"]
    return [f"--filename={candidate.image}", "--direct=1", *depth_options(depth)]


def depth_options(depth: int) -> list[str]:
    """Return fio's options for *depth* requests at once: io_uring where it is permitted."""
    if depth == 1:
        return ["--ioengine=psync"]
    if has_io_uring():
        return ["--ioengine=io_uring", f"--iodepth={depth}"]
    return ["--ioengine=psync", f"--numjobs={depth}", "--group_reporting"]


@functools.cache
def has_io_uring() -> bool:
    """Return whether fio and the kernel can do io_uring."""
    try:
        disabled = Path("/proc/sys/kernel/io_uring_disabled").read_text().strip()
    except FileNotFoundError:
        disabled = "0"
    engines = subprocess.run(["fio", "--enghelp"], capture_output=True, text=True, check=True)
    return "io_uring" in engines.stdout and disabled == "0"


def run_fio(
    candidate: Candidate, row: Row, size: int, seconds: float, operations: int = 0
) -> Result:
    """Run one row on one candidate, for *seconds*, or until so many *operations* are done."""
    command = ["fio", "--name=row", *target_options(candidate, row.depth), f"--rw={row.mode}"]
    command += [f"--bs={row.block}", f"--size={size}"]
    command += [
        f"--runtime={round(seconds * 1000)}ms",
        "--randrepeat=1",
        "--norandommap",
        "--thread",
        "--output-format=json",
    ]
    # A run that is time based begins anew after so many operations.
    command.append(f"--number_ios={operations}" if operations else "--time_based")
    before_s, busy_s, own_s, start_s = (
        candidate.cpu_s(),
        all_busy_s(),
        own_children_s(),
        monotonic(),
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = done.stdout[done.stdout.find("{") :]  # the engine nbd says a line before
    cpu_s = candidate.cpu_s() - before_s
    others_s = all_busy_s() - busy_s - (own_children_s() - own_s) - cpu_s
    disturbed = max(0.0, others_s) / (monotonic() - start_s) / (os.cpu_count() or 1)
    if done.returncode:
        raise RuntimeError(f"fio failed on {candidate.name}: {done.stderr.strip()}")
    side = json.loads(report)["jobs"][0]["read" if "read" in row.mode else "write"]
    cpu_us = cpu_s / max(1, side["total_ios"]) * 1e6
    return Result(side["iops"], side["bw_bytes"], cpu_us, disturbed)


def all_busy_s() -> float:
    """Return the processor time that all programs together have had."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # but idle, waiting


def own_children_s() -> float:
    """Return the processor time of the programs that this one has run to their end."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_undisturbed(candidate: Candidate, row: Row, size: int, seconds: float) -> Result:
    """Run one row on one candidate, again while others take the processors; the calmest counts."""
    results = []
    for _ in range(TRIES):
        results.append(run_fio(candidate, row, size, seconds))
        if results[-1].disturbed <= DISTURBED_MAX:
            break
    return min(results, key=lambda result: result.disturbed)


def measure(
    candidates: list[Candidate], rows: Sequence[Row], size: int, rounds: int, seconds: float
) -> dict[tuple[str, str], list[Result]]:
    """Run all rows on all candidates, *rounds* times; keyed by (row's title, candidate)."""
    results: dict[tuple[str, str], list[Result]] = {}
    for number in range(rounds):
        for row in rows:
            # The order turns from round to round: none is always the one after a heavy neighbour.
            turn = number % len(candidates)
            for candidate in candidates[turn:] + candidates[:turn]:
                result = run_undisturbed(candidate, row, size, seconds)
                results.setdefault((row.title, candidate.name), []).append(result)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    return results


def summarise(
    results: dict[tuple[str, str], list[Result]], rows: Sequence[Row], names: Sequence[str]
) -> list[Line]:
    """Return one line for each row and candidate: medians, ratio to stock, bar."""
    lines = []
    for row in rows:
        for name in names:
            lines.append(line_of(row, name, "stock", row.bars.get(name), results))
        for name in names:
            plain = name.removesuffix(LOGGED)
            if name != plain and plain in names and row.log_bar is not None:
                lines.append(line_of(row, name, plain, row.log_bar, results))
    return lines


def line_of(
    row: Row,
    name: str,
    to: str,
    bar: float | None,
    results: dict[tuple[str, str], list[Result]],
) -> Line:
    """Return the line of candidate *name* as a multiple of candidate *to*."""
    own = results[row.title, name]
    ratios = [a.iops / b.iops for a, b in zip(own, results[row.title, to], strict=True)]
    iops = statistics.median(result.iops for result in own)
    rate = statistics.median(result.rate_bytes for result in own)
    return Line(
        row=row.title if to == "stock" else f"  against {to}",
        subject=name,
        figure=f"{rate / MIB:,.0f} MiB/s" if row.streams else f"{iops:,.0f} /s",
        value=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        bar=bar,
        unit="x",
        cpu_us=round(statistics.median(result.cpu_us for result in own), 1),
        detail={
            "iops": round(iops),
            "bytes_per_second": round(rate),
            "disturbed": round(statistics.median(result.disturbed for result in own), 2),
        },
    )


def run(
    names: Sequence[str] = NAMES,
    own: dict[str, str] | None = None,
    rows: Sequence[Row] = ROWS,
    *,
    size: int = 128 * MIB,
    rounds: int = 5,
    seconds: float = 1.0,
    directory: str = "/dev/shm",
) -> list[Line]:
    """Mount the candidates, measure and return the lines; all is unmounted and removed again."""
    with (
        tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=directory) as home,
        mounted(names, own or {}, size, Path(home)) as candidates,
    ):
        results = measure(candidates, rows, size, rounds, seconds)
        return summarise(results, rows, [candidate.name for candidate in candidates])


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(NAMES), metavar="NAMES")
    parser.add_argument("--candidate", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument(
        "--rows", default="", metavar="TEXT", help="only rows whose title contains TEXT"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each run")
    parser.add_argument("--size", type=int, default=128, help="size of each image, MiB")
    parser.add_argument("--directory", default="/dev/shm", help="folder for members and files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("fio") is None:
        print("fio is missing; install it: apt install fio", file=sys.stderr)
        return 2
    own = dict(candidate.split("=", 1) for candidate in options.candidate)
    names = [name for name in options.only.split(",") if name] + list(own)
    if "stock" not in names:
        names.insert(0, "stock")  # what the ratios are to
    # SIGTERM unmounts as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    lines = run(
        names,
        own,
        [row for row in ROWS if options.rows in row.title],
        size=options.size * MIB,
        rounds=options.rounds,
        seconds=options.seconds,
        directory=options.directory,
    )
    return print_lines(lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
