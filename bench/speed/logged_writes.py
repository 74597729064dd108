"""What writes through the log cost: mounted arrays in turn, with the log and without.

    python bench/speed/logged_writes.py                          all rows, 3 rounds of 3 s
    python bench/speed/logged_writes.py --rounds 5 --seconds 6
    python bench/speed/logged_writes.py --only burst --only fsync
    python bench/speed/logged_writes.py --tree ../before         a checkout of another commit, too

Each row mounts its two images, writes all of both, and runs fio on them in turn; the ratio is taken
within the round. Members are in the page cache: a flush costs little, processor time counts. A
*burst* is as many writes as the smallest log of the row takes before a checkpoint is urgent (when a
third of it is full), after a rest in which it was emptied. With ``--tree`` the arrays of that
checkout run in the same rounds, as ``before``. fsyncs are counted in virtual time, on modelled
disks.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import trio
from candidates import MIB, Candidate, built_in_command, fill
from lines import Line, print_lines
from mount_ratio import Result, Row, run_fio

from raidx_fuse.lab.experiments.modelled import Hardware, modelled_array
from raidx_fuse.members.simulated.virtual_time import run as run_virtual

ROOT = Path(__file__).parents[2]
SIZE_BYTES = 256 * MIB  # of each image
REST_S = 2.5  # a checkpoint comes a second after the last one
UNMARKED_S = 12.0  # in which no region stays marked in the dirty bitmap
BURST_BYTES = 11 << 10  # of the log for each write of a burst: its record, and the parity to come
FSYNC_S = 2.0  # virtual
CPU_BAR_US = 40.0
MAIN = "from raidx_fuse.cli.main import main; main()"


@dataclass(frozen=True)
class Setup:
    """A mounted array, perhaps with checksums; without a layout the pass-through of one file."""

    layout: str = ""
    width: int = 4
    journal: str = "partial"
    member_mib: int = 600
    sums: bool = False

    @property
    def name(self) -> str:
        """How the table calls it."""
        if not self.layout:
            return "stock"
        mode = {"none": "", "partial": "+log"}.get(self.journal, f"+{self.journal}")
        return f"{self.layout}x{self.width}{mode}{'+sums' if self.sums else ''}"


@dataclass(frozen=True)
class Pair:
    """One row: fio's *mode*, *block* and *depth* on *ours*, as a multiple of *other*.

    *burst*: as many writes as fit into the log, not a sustained load; after a rest of *rest_s*.
    """

    key: str
    title: str
    ours: Setup
    other: Setup
    bar: float
    mode: str = "randwrite"
    block: str = "4k"
    depth: int = 16
    burst: bool = False
    rest_s: float = REST_S


STOCK = Setup()
RAID5, PLAIN5 = Setup("raid5"), Setup("raid5", journal="none")
SMALL, SMALL_PLAIN = Setup("raid5", member_mib=96), Setup("raid5", journal="none", member_mib=96)
FULL0 = Setup("raid0", journal="full", member_mib=96)
PLAIN0 = Setup("raid0", journal="none", member_mib=96)
LARGE0 = Setup("raid0", journal="none")
WIDE, WIDE_PLAIN = Setup("raid5", 5), Setup("raid5", 5, "none")
PAIRS = (
    Pair("burst", "4 KiB write, burst", RAID5, PLAIN5, 1.3, burst=True),
    Pair("sustained", "4 KiB write, sustained", RAID5, PLAIN5, 0.8),
    Pair("small", "  members of 96 MiB", SMALL, SMALL_PLAIN, 0.6),
    Pair("full", "  journal=full, 96 MiB", FULL0, PLAIN0, 0.6),
    Pair("deep1", "  1 deep, burst", RAID5, PLAIN5, 1.0, depth=1, burst=True),
    Pair("deep1", "  1 deep, sustained", RAID5, PLAIN5, 0.75, depth=1),
    Pair("stock", "  against stock", RAID5, STOCK, 0.75),
    Pair("upc", "  upc against raid5", Setup("upc", 6), RAID5, 0.9),
    Pair("rdp", "  rdp against raid5", Setup("rdp", 6), RAID5, 0.9),
    Pair("raid0", "4 KiB write, no log", LARGE0, STOCK, 2.2),
    Pair("large", "1 MiB write", RAID5, PLAIN5, 0.95, "write", "1m", 1),
    Pair("large", "1 MiB write", WIDE, WIDE_PLAIN, 0.95, "write", "1m", 1),
    Pair("stream", "128 KiB write", RAID5, PLAIN5, 0.8, "write", "128k", 1, True, UNMARKED_S),
    Pair(
        "plain",
        "1 MiB write, no log",
        PLAIN5,
        Setup("raid0", journal="none"),
        0.8,
        "write",
        "1m",
        1,
    ),
    Pair("read", "4 KiB read", RAID5, STOCK, 2.5, "randread"),
)
KEYS = (*dict.fromkeys(pair.key for pair in PAIRS), "fsync")


def raidx(tree: Path | None, before: str = "") -> list[str]:
    """Return the command of *tree*, or of this one, wherever it is called.

    *before* is Python that it runs first.
    """
    path = f"PYTHONPATH={(tree or ROOT).resolve()}"
    return ["env", path, sys.executable, "-P", "-c", f"{before}\n{MAIN}"]


def start(setup: Setup, directory: Path, tree: Path | None, before: str = "") -> Candidate:
    """Mount *setup* in *directory*, written in full; *before* as for `raidx`."""
    mountpoint = directory / "mnt"
    mountpoint.mkdir(parents=True)
    if not setup.layout:
        command = built_in_command("stock", directory, mountpoint, SIZE_BYTES)
        assert command is not None
    else:
        members = [str(directory / f"{number}.img") for number in range(setup.width)]
        create = ["create", "--layout", setup.layout, "--size", f"{setup.member_mib}MiB"]
        create += ["--sums", "on"] if setup.sums else []
        create += ["--image-size", str(SIZE_BYTES)] if setup.member_mib > 96 else []
        subprocess.run([*raidx(tree), *create, *members], check=True, stdout=subprocess.DEVNULL)
        command = [*raidx(tree, before), "mount", "--foreground", *members, str(mountpoint)]
    candidate = Candidate(setup.name, command, mountpoint)
    try:
        candidate.wait_until_mounted()
        if setup.layout:
            change = [*raidx(tree), "set", str(mountpoint), f"journal={setup.journal}"]
            subprocess.run(change, check=True, stdout=subprocess.DEVNULL)
        fill(candidate.image, size_of(candidate))
    except BaseException:
        candidate.stop()
        raise
    return candidate


def size_of(candidate: Candidate) -> int:
    """Return how much of the image is used, in bytes."""
    return min(SIZE_BYTES, candidate.image.stat().st_size // MIB * MIB)


def log_bytes(member: Path, tree: Path | None) -> int:
    """Return the size of the log of the array of *member*."""
    command = [*raidx(tree), "examine", "--json", str(member)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    size: int = found["members"][0]["regions"]["log"][1]
    return size


def run_once(pair: Pair, candidate: Candidate, seconds: float, burst: int) -> Result:
    """Run the row of *pair* on *candidate*; a burst has *burst* writes."""
    row = Row(pair.title, pair.mode, pair.block, pair.depth, {})
    if not pair.burst:
        return run_fio(candidate, row, size_of(candidate), seconds)
    time.sleep(pair.rest_s)
    return run_fio(candidate, row, size_of(candidate), seconds, operations=burst)


def compare(pair: Pair, rounds: int, seconds: float, home: Path, tree: Path | None) -> list[Line]:
    """Return the lines of one row."""
    wanted: list[tuple[str, Setup, Path | None]] = [
        ("other", pair.other, None),
        ("ours", pair.ours, None),
    ]
    if tree is not None:
        wanted += [("other before", pair.other, tree), ("before", pair.ours, tree)]
    candidates: dict[str, Candidate] = {}
    logs: list[int] = []
    results: dict[str, list[Result]] = {name: [] for name, _, _ in wanted}
    try:
        for name, setup, of_tree in wanted:
            folder = home / name.replace(" ", "-")
            candidates[name] = start(setup, folder, of_tree)
            if pair.burst:
                logs.append(log_bytes(folder / "0.img", of_tree))
        burst = min(logs, default=0) // 3 // BURST_BYTES
        for number in range(rounds):
            turn = number % len(wanted)
            for name, _, _ in wanted[turn:] + wanted[:turn]:
                results[name].append(run_once(pair, candidates[name], seconds, burst))
    finally:
        for candidate in candidates.values():
            candidate.stop()
    lines = [_line(pair, pair.ours.name, results["ours"], results["other"], pair.bar)]
    if tree is not None:
        lines.append(_line(pair, "before", results["before"], results["other before"], None))
    return lines


def _line(
    pair: Pair, subject: str, ours: Sequence[Result], other: Sequence[Result], bar: float | None
) -> Line:
    rate = median(result.iops for result in ours)
    figure = f"{rate:,.0f} MiB/s" if pair.block == "1m" else f"{rate:,.0f} /s"
    return Line.over(
        [one.iops / two.iops for one, two in zip(ours, other, strict=True)],
        pair.title,
        subject,
        figure,
        bar=bar,
        unit="x",
        cpu_us=round(median(result.cpu_us for result in ours), 1),
        detail={"disturbed": round(median(result.disturbed for result in ours), 2)},
    )


async def _fsyncs(threads: int, seed: int) -> int:
    """Return how many fsync'd 4 KiB writes *threads* tasks do in FSYNC_S of virtual time."""
    done = 0
    hardware = Hardware(layout="raid5", members=("ssd",) * 4, member_bytes=SIZE_BYTES)
    async with modelled_array(hardware, random.Random(seed)) as (array, _):
        for at in range(0, 16 * MIB, MIB):
            await array.write(at, bytes(MIB))
        await array.flush()

        async def thread(number: int) -> None:
            nonlocal done
            rng = random.Random(number)
            while True:
                await array.write(rng.randrange(16 * MIB >> 12) << 12, rng.randbytes(4096))
                await array.flush()
                done += 1

        with trio.move_on_after(FSYNC_S):
            async with trio.open_nursery() as nursery:
                for number in range(threads):
                    nursery.start_soon(thread, number)
    return done


def fsyncs(rounds: int) -> list[Line]:
    """Return the line of fsyncs of 16 threads against one."""
    one = [run_virtual(_fsyncs, 1, seed, seed=seed) for seed in range(rounds)]
    many = [run_virtual(_fsyncs, 16, seed, seed=seed) for seed in range(rounds)]
    ratios = [b / a for a, b in zip(one, many, strict=True)]
    figure = f"{median(many) / FSYNC_S:,.0f} /s"
    return [Line.over(ratios, "fsyncs, 16 threads", "raid5, ssd", figure, bar=3.0, unit="x")]


def run(
    keys: Sequence[str], rounds: int, seconds: float, directory: str, tree: Path | None
) -> list[Line]:
    """Measure the rows *keys* and return their lines."""
    lines: list[Line] = []
    for number, pair in enumerate(pair for pair in PAIRS if pair.key in keys):
        with tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=directory) as home:
            lines += compare(pair, rounds, seconds, Path(home), tree)
        print(f"row {number + 1}: {pair.title.strip()}", file=sys.stderr)
    for line in [line for line in lines if line.row == "4 KiB write, sustained"][:1]:
        assert line.cpu_us is not None
        cost = line.cpu_us
        lines.append(
            Line.over(
                [cost],
                "  CPU of a write",
                line.subject,
                f"{cost:.1f} us",
                bar=CPU_BAR_US,
                unit=" us",
                at_most=True,
            )
        )
    return lines + (fsyncs(rounds) if "fsync" in keys else [])


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=KEYS, help="only these rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a sustained load")
    parser.add_argument("--directory", default="/dev/shm", help="folder for members and files")
    parser.add_argument("--tree", type=Path, help="a checkout to measure in the same rounds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    keys = options.only or KEYS
    lines = run(keys, options.rounds, options.seconds, options.directory, options.tree)
    return print_lines(lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
