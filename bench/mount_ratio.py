"""How fast is a mounted array, as a multiple of a plain pass-through of one file?

    python bench/mount_ratio.py                         raid0 and raid5 against their bars
    python bench/mount_ratio.py --only stock,fast,c     the FUSE door alone
    python bench/mount_ratio.py --candidate 'mine=mounter {mountpoint} {directory}'

Every candidate is mounted at once, on memory (/dev/shm), each image written in full before. Each
round then runs each row of the table on each candidate in turn (fio, direct I/O), and a ratio is
taken within the round; the table shows the median of the rounds and the spread. Absolute figures
move with the machine and its load, ratios hardly; CPU time per request moves least.

A ratio below 1 would mean slower than `peers/passthrough_stock.py`, which is pyfuse3 with its own
main loop. `fast` is raidx's FUSE door over one file, the most an array can reach; `c` is libfuse.

A candidate of your own is a command that stays in the foreground, shows an image named ``disk`` in
{mountpoint}, may use {directory}, makes it of {size} bytes, and unmounts on SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "peers"
RAIDX = [sys.executable, "-c", "from raidx_fuse.cli.main import main; main()"]
MEMBERS = 4
CHUNK = "64KiB"
MIB = 1 << 20
START_S = 30


@dataclass(frozen=True)
class Row:
    """One line of the table; *bars* are the least ratios to stock by candidate."""

    title: str
    mode: str
    block: str
    depth: int
    bars: dict[str, float]

    @property
    def streams(self) -> bool:
        return self.block == "1m"


ROWS = (
    Row("4 KiB random read, 1 deep", "randread", "4k", 1, {"raid0": 2.5, "raid5": 2.5}),
    Row("4 KiB random read, 16 deep", "randread", "4k", 16, {"raid0": 2.5, "raid5": 2.5}),
    Row("4 KiB random write, 1 deep", "randwrite", "4k", 1, {"raid0": 2.0}),
    Row("4 KiB random write, 16 deep", "randwrite", "4k", 16, {"raid0": 2.0, "raid5": 1.2}),
    Row("1 MiB sequential read", "read", "1m", 1, {"raid0": 0.95, "raid5": 0.75}),
    Row("1 MiB sequential write", "write", "1m", 1, {"raid0": 1.0, "raid5": 0.7}),
)


@dataclass(frozen=True)
class Result:
    """One run of fio: operations and bytes per second, CPU of the daemon per operation."""

    iops: float
    rate_bytes: float
    cpu_us: float


class Candidate:
    """A mounted image: the command that serves it runs as *process*."""

    def __init__(self, name: str, command: list[str], mountpoint: Path) -> None:
        self.name = name
        self.image = mountpoint / "disk"
        self.log = mountpoint.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_mounted(self) -> None:
        """Wait for the image; raise RuntimeError with the command's last words."""
        end_s = time.monotonic() + START_S
        while not self.image.exists():
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"{self.name} did not mount: {self.log.read_text().strip()}")
            time.sleep(0.05)

    def cpu_s(self) -> float:
        """CPU time of the daemon so far, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Unmount and wait."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def built_in_command(name: str, directory: Path, mountpoint: Path, size: int) -> list[str] | None:
    """Return the command that serves candidate *name*; None if this machine cannot."""
    backing = directory / "backing"
    if name in {"stock", "fast", "c"}:
        with backing.open("ab") as file:
            file.truncate(size)
    if name in {"stock", "fast"}:
        script = PEERS / f"passthrough_{name}.py"
        return [sys.executable, str(script), str(mountpoint), str(backing)]
    if name == "c":
        program = compiled_peer(directory)
        return [str(program), str(mountpoint), str(backing)] if program else None
    members = [str(directory / f"{name}-{role}.img") for role in range(MEMBERS)]
    data_members = MEMBERS - (name in {"raid4", "raid5"})
    # Room for the superblock, maps and log beside the data.
    member_bytes = size // data_members + 64 * MIB
    create = ["create", "--layout", name, "--chunk", CHUNK, "--size", str(member_bytes)]
    subprocess.run([*RAIDX, *create, *members], check=True, stdout=subprocess.DEVNULL)
    return [*RAIDX, "mount", "--foreground", *members, str(mountpoint)]


def compiled_peer(directory: Path) -> Path | None:
    """Compile the C pass-through; None without a compiler or libfuse's headers."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or shutil.which("pkg-config") is None:
        return None
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=False
    )
    if flags.returncode:
        return None
    program = directory / "passthrough"
    command = [compiler, "-O2", "-o", str(program), str(PEERS / "passthrough.c")]
    subprocess.run([*command, *flags.stdout.split()], check=True)
    return program


@contextlib.contextmanager
def mounted(
    names: list[str], own: dict[str, str], size: int, directory: Path
) -> Iterator[list[Candidate]]:
    """Mount all candidates; unmount them whatever happens."""
    candidates: list[Candidate] = []
    try:
        for name in names:
            home, mountpoint = directory / name, directory / f"{name}.mnt"
            home.mkdir()
            mountpoint.mkdir()
            if name in own:
                places = {"mountpoint": mountpoint, "directory": home, "size": size}
                command: list[str] | None = shlex.split(own[name].format(**places))
            else:
                command = built_in_command(name, home, mountpoint, size)
            if command is None:
                print(f"{name}: no C compiler with libfuse here, left out", file=sys.stderr)
                continue
            candidates.append(Candidate(name, command, mountpoint))
            candidates[-1].wait_until_mounted()
            fill(candidates[-1].image, size)
        yield candidates
    finally:
        for candidate in candidates:
            candidate.stop()


def fill(image: Path, size: int) -> None:
    """Write all that will be measured, so that nothing is read or written for the first time."""
    block = os.urandom(MIB)
    with image.open("r+b", buffering=0) as disk:
        for _ in range(size // MIB):
            disk.write(block)
        os.fsync(disk.fileno())


def depth_options(depth: int) -> list[str]:
    """Return fio's options for *depth* requests at once: io_uring where it is permitted."""
    if depth == 1:
        return ["--ioengine=psync"]
    if has_io_uring():
        return ["--ioengine=io_uring", f"--iodepth={depth}"]
    return ["--ioengine=psync", f"--numjobs={depth}", "--group_reporting"]


def has_io_uring() -> bool:
    """Say whether fio and the kernel can do io_uring."""
    try:
        disabled = Path("/proc/sys/kernel/io_uring_disabled").read_text().strip()
    except FileNotFoundError:
        disabled = "0"
    engines = subprocess.run(["fio", "--enghelp"], capture_output=True, text=True, check=True)
    return "io_uring" in engines.stdout and disabled == "0"


def run_fio(candidate: Candidate, row: Row, size: int, seconds: float) -> Result:
    """Run one row on one candidate."""
    command = ["fio", "--name=row", f"--filename={candidate.image}", f"--rw={row.mode}"]
    command += [f"--bs={row.block}", f"--size={size}", "--direct=1", "--time_based"]
    command += [f"--runtime={seconds}", "--randrepeat=1", "--norandommap", "--thread"]
    command += [*depth_options(row.depth), "--output-format=json"]
    before_s = candidate.cpu_s()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    cpu_s = candidate.cpu_s() - before_s
    if done.returncode:
        raise RuntimeError(f"fio failed on {candidate.name}: {done.stderr.strip()}")
    side = json.loads(done.stdout)["jobs"][0]["read" if "read" in row.mode else "write"]
    operations = max(1, side["total_ios"])
    return Result(side["iops"], side["bw_bytes"], cpu_s / operations * 1e6)


def measure(
    candidates: list[Candidate], rows: list[Row], size: int, rounds: int, seconds: float
) -> dict[tuple[str, str], list[Result]]:
    """Run all rows on all candidates, *rounds* times; keyed by (row's title, candidate)."""
    results: dict[tuple[str, str], list[Result]] = {}
    for number in range(rounds):
        for row in rows:
            # The order turns from round to round: none is always the one after a heavy neighbour.
            turn = number % len(candidates)
            for candidate in candidates[turn:] + candidates[:turn]:
                result = run_fio(candidate, row, size, seconds)
                results.setdefault((row.title, candidate.name), []).append(result)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    return results


def summarise(
    results: dict[tuple[str, str], list[Result]], rows: list[Row], names: list[str]
) -> list[dict[str, Any]]:
    """Return one record for each row and candidate: medians, ratio to stock, bar, verdict."""
    records = []
    for row in rows:
        stock = results[row.title, "stock"]
        for name in names:
            own = results[row.title, name]
            ratios = [a.iops / b.iops for a, b in zip(own, stock, strict=True)]
            ratio, bar = statistics.median(ratios), row.bars.get(name)
            records.append(
                {
                    "row": row.title,
                    "candidate": name,
                    "iops": round(statistics.median(result.iops for result in own)),
                    "bytes_per_second": round(statistics.median(r.rate_bytes for r in own)),
                    "cpu_us_per_request": round(statistics.median(r.cpu_us for r in own), 1),
                    "ratio": round(ratio, 3),
                    "ratio_min": round(min(ratios), 3),
                    "ratio_max": round(max(ratios), 3),
                    "bar": bar,
                    "passed": None if bar is None else ratio >= bar,
                }
            )
    return records


def print_table(records: list[dict[str, Any]], rows: list[Row]) -> None:
    """Print the records for people."""
    streams = {row.title for row in rows if row.streams}
    print(f"{'row':<28}{'candidate':<11}{'speed':>12}{'CPU us':>9}{'ratio':>8}  spread", end="")
    print(f"{'bar':>14}")
    for record in records:
        if record["row"] in streams:
            speed = f"{record['bytes_per_second'] / MIB:.0f} MiB/s"
        else:
            speed = f"{record['iops']:,} /s"
        spread = f"{record['ratio_min']:.2f}-{record['ratio_max']:.2f}"
        verdict = {None: "", True: "passed", False: "MISSED"}[record["passed"]]
        bar = "" if record["bar"] is None else f"{record['bar']:.2f}"
        print(
            f"{record['row']:<28}{record['candidate']:<11}{speed:>12}"
            f"{record['cpu_us_per_request']:>9.1f}{record['ratio']:>8.2f}  {spread:<11}"
            f"{bar:>9} {verdict}"
        )


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="stock,fast,c,raid0,raid5", metavar="NAMES")
    parser.add_argument("--candidate", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--rows", default="", metavar="TEXT", help="rows whose title holds TEXT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--size", type=int, default=128, help="of each image, MiB")
    parser.add_argument("--directory", default="/dev/shm", help="where members and files go")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("fio") is None:
        print("fio is missing; install it: apt install fio", file=sys.stderr)
        return 2
    own = dict(candidate.split("=", 1) for candidate in options.candidate)
    names = [name for name in options.only.split(",") if name] + list(own)
    if "stock" not in names:
        names.insert(0, "stock")  # what the ratios are to
    rows = [row for row in ROWS if options.rows in row.title]
    size = options.size * MIB
    # SIGTERM unmounts as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (
        tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=options.directory) as directory,
        mounted(names, own, size, Path(directory)) as candidates,
    ):
        results = measure(candidates, rows, size, options.rounds, options.seconds)
    records = summarise(results, rows, [candidate.name for candidate in candidates])
    if options.json:
        print(json.dumps({"output_version": 1, "records": records}, indent=1))
    else:
        print_table(records, rows)
    return 1 if any(record["passed"] is False for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
