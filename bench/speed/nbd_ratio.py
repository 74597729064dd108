"""How fast are arrays over NBD exports, and exports of arrays, by ratios?

    python bench/speed/nbd_ratio.py                     both tables, with their bars
    python bench/speed/nbd_ratio.py --only door         members, or door
    python bench/speed/nbd_ratio.py --directory /var/tmp

*members*: arrays over four exports of nbdkit, mounted, beside nbdfuse on one such export.
*door*: exports of arrays over local files, with fio's engine nbd, beside `nbdkit file` on one file,
and beside the mount of the same array. Everything goes over Unix sockets, and files are in memory
or in the page cache. Each round runs each row on each candidate in turn, and the ratio is taken
within the round, as in `mount_ratio.py`; the arrays have no journal, but for `+log`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from candidates import (
    CHUNK,
    LOGGED,
    MEMBER_BYTES_MIN,
    MEMBERS,
    MIB,
    RAIDX,
    START_S,
    Candidate,
    fill,
)
from lines import Line, print_lines
from mount_ratio import Result, Row, line_of, measure

# The bars are to "nbdfuse" and "nbdkit"; "own": to the mount of the same array.
MEMBER_ROWS = (
    Row("4 KiB random read, 16 deep", "randread", "4k", 16, {"nbdfuse": 0.6}),
    Row("4 KiB random write, 16 deep", "randwrite", "4k", 16, {"nbdfuse": 0.6}),
    Row("1 MiB sequential read", "read", "1m", 1, {"nbdfuse": 1.0}),
    Row("1 MiB sequential write", "write", "1m", 1, {"nbdfuse": 0.6}),
)
DOOR_ROWS = (
    Row("4 KiB random read, 1 deep", "randread", "4k", 1, {"nbdkit": 0.6}),
    Row("4 KiB random read, 16 deep", "randread", "4k", 16, {"nbdkit": 0.35, "own": 0.6}),
    Row("4 KiB random write, 1 deep", "randwrite", "4k", 1, {"nbdkit": 0.6}),
    Row("4 KiB random write, 16 deep", "randwrite", "4k", 16, {"nbdkit": 0.35, "own": 0.6}),
    Row("1 MiB sequential read", "read", "1m", 1, {"nbdkit": 0.7}),
    Row("1 MiB sequential write", "write", "1m", 1, {"nbdkit": 0.7}),
)
ARRAYS = ("raid0", "raid5", "raid5" + LOGGED)
Results = dict[tuple[str, str], list[Result]]  # by the row's title and the candidate
Start = Callable[[Path, int], AbstractContextManager[list[Candidate]]]
Table = tuple[Start, Sequence[Row], Callable[[Results, Sequence[Row]], list[Line]]]
MOUNT, EXPORT = "-fuse", "-nbd"  # end the names of two ways to one array


class Export(Candidate):
    """An export: of a server of its own, or of *daemon*, a candidate that runs already."""

    def __init__(
        self, name: str, command: list[str], place: Path, daemon: Candidate | None = None
    ) -> None:
        if daemon is None:
            super().__init__(name, command, place)
        else:
            self.name, self.process, self.log = name, daemon.process, daemon.log
        self.image = place
        self.uri = f"nbd+unix:///disk?socket={place}"


def nbdkit(disk: Path, place: Path) -> list[str]:
    """Return the command that serves the file *disk* at the socket *place*."""
    return ["nbdkit", "-f", "-U", str(place), "file", str(disk)]


def await_listener(candidate: Candidate) -> None:
    """Return when connections to the export are accepted. Raises RuntimeError."""
    end_s = time.monotonic() + START_S
    with socket.socket(socket.AF_UNIX) as tried:
        while tried.connect_ex(str(candidate.image)):
            if candidate.process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"{candidate.name} did not start: {candidate.log.read_text()}")
            time.sleep(0.02)


def files(home: Path, count: int, size: int) -> list[Path]:
    """Make sparse files."""
    made = [home / f"member{number}" for number in range(count)]
    for path in made:
        with path.open("wb") as file:
            file.truncate(size)
    return made


def created(name: str, members: Sequence[str]) -> None:
    """Make the array *name*."""
    words = ["create", "--layout", name.removesuffix(LOGGED), "--chunk", CHUNK, "--name", "disk"]
    subprocess.run([*RAIDX, *words, *members], check=True, stdout=subprocess.DEVNULL)


def started(name: str, command: list[str], mountpoint: Path, size: int) -> Candidate:
    """Start a mounted candidate, and write all of its image."""
    mountpoint.mkdir()
    candidate = Candidate(name, command, mountpoint)
    try:
        candidate.wait_until_mounted()
        if name.removesuffix(MOUNT) in ARRAYS and LOGGED not in name:
            setting = ["set", str(mountpoint), "journal=none"]
            subprocess.run([*RAIDX, *setting], check=True, stdout=subprocess.DEVNULL)
        fill(candidate.image, size)
    except BaseException:
        candidate.stop()
        raise
    return candidate


def stop_all(candidates: Sequence[Candidate]) -> None:
    """Stop them, the last one first."""
    for candidate in reversed(candidates):
        candidate.stop()


@contextlib.contextmanager
def over_exports(home: Path, size: int) -> Iterator[list[Candidate]]:
    """Mount arrays over four exports each, and nbdfuse over one."""
    running: list[Candidate] = []
    found: list[Candidate] = []
    try:
        for name in ("nbdfuse", *ARRAYS):
            own = home / name
            own.mkdir()
            count = MEMBERS if name in ARRAYS else 1
            member_bytes = MEMBER_BYTES_MIN if name in ARRAYS else size
            uris = []
            for number, path in enumerate(files(own, count, member_bytes)):
                place = own / f"s{number}"
                running.append(Export(f"{name}-s{number}", nbdkit(path, place), place))
                await_listener(running[-1])
                uris.append(running[-1].uri)
            mountpoint = home / f"{name}.mnt"
            if name in ARRAYS:
                created(name, uris)
                command = [*RAIDX, "mount", "--foreground", *uris, str(mountpoint)]
            else:
                command = ["nbdfuse", str(mountpoint / "disk"), *uris]
            running.append(started(name, command, mountpoint, size))
            found.append(running[-1])
        yield found
    finally:
        stop_all(running)


@contextlib.contextmanager
def doors(home: Path, size: int) -> Iterator[list[Candidate]]:
    """Serve a file by nbdkit, and arrays by a mount and an export each."""
    running: list[Candidate] = []
    found: list[Candidate] = []
    try:
        (path,) = files(home, 1, size)
        with path.open("r+b") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
        running.append(Export("nbdkit", nbdkit(path, home / "s"), home / "s"))
        await_listener(running[-1])
        found.append(running[-1])
        for name in ARRAYS:
            own = home / name
            own.mkdir()
            members = [str(each) for each in files(own, MEMBERS, MEMBER_BYTES_MIN)]
            created(name, members)
            place, mountpoint = own / "s", home / f"{name}.mnt"
            command = [*RAIDX, "mount", "--foreground", *members, str(mountpoint)]
            command += ["--nbd", f"unix:{place}"]
            running.append(started(name + MOUNT, command, mountpoint, size))
            found += [running[-1], Export(name + EXPORT, [], place, running[-1])]
        yield found
    finally:
        stop_all(running)


def line(row: Row, name: str, to: str, bar: float | None, results: Results) -> Line:
    """Return the line of candidate *name* as a multiple of candidate *to*."""
    found = line_of(row, name, to, bar, results)
    first = to in (name, "nbdfuse", "nbdkit")
    return replace(found, row=row.title if first else f"  against {to}", unit=f"x of {to}")


def member_lines(results: Results, rows: Sequence[Row]) -> list[Line]:
    """Return the lines of arrays over exports, beside nbdfuse."""
    return [
        line(row, name, "nbdfuse", row.bars["nbdfuse"] if name == "raid5" else None, results)
        for row in rows
        for name in ("nbdfuse", *ARRAYS)
    ]


def door_lines(results: Results, rows: Sequence[Row]) -> list[Line]:
    """Return the lines of exports of arrays, beside nbdkit and beside their mounts."""
    lines = []
    for row in rows:
        lines.append(line(row, "nbdkit", "nbdkit", None, results))
        for name in ARRAYS:
            bar = row.bars["nbdkit"] if name == "raid0" or "read" in row.mode else None
            lines.append(line(row, name + EXPORT, "nbdkit", bar, results))
            own = row.bars.get("own")
            lines.append(line(row, name + EXPORT, name + MOUNT, own, results))
    return lines


def run(only: Sequence[str], *, size: int, rounds: int, seconds: float, home: str) -> list[Line]:
    """Measure the tables *only*; everything is stopped and removed again."""
    lines: list[Line] = []
    tables: dict[str, Table] = {
        "members": (over_exports, MEMBER_ROWS, member_lines),
        "door": (doors, DOOR_ROWS, door_lines),
    }
    for name in only:
        start, rows, told = tables[name]
        with (
            tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=home) as folder,
            start(Path(folder), size) as candidates,
        ):
            lines += told(measure(candidates, rows, size, rounds, seconds), rows)
    return lines


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="members,door", metavar="TABLES")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of each run")
    parser.add_argument("--size", type=int, default=128, help="size of each image, MiB")
    parser.add_argument("--directory", default="/dev/shm", help="folder for all files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for program in ("fio", "nbdkit", "nbdfuse"):
        if shutil.which(program) is None:
            print(f"{program} is missing: examples/setup.sh --dev installs it", file=sys.stderr)
            return 2
    only = options.only.split(",")
    if set(only) - {"members", "door"}:
        parser.error("the tables are members,door")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops everything, as Ctrl-C does
    lines = run(
        only,
        size=options.size * MIB,
        rounds=options.rounds,
        seconds=options.seconds,
        home=options.directory,
    )
    return print_lines(lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
