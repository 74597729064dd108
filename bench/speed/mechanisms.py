"""What mechanisms pay that cost many lines: processor time with each and without it.

    python bench/speed/mechanisms.py                          all, 5 rounds
    python bench/speed/mechanisms.py --only closed --rounds 15

Both run in turn, and the ratio is taken within the round: above 1 is what the mechanism saves.
Where it is left out, a line of Python replaces it before the command runs; its other lines stay.

    late         `raidx scan` of an array at rest, with numpy and trio loaded at the start
    no-loop      the same with trio alone, which it would need
    threads      4 KiB reads of a local member in its threads, and in those of trio
    closed       sequential 128 KiB writes to a mounted raid5, which end inside stripes
    deferred     4 KiB writes to it, 16 deep
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from unittest.mock import patch

import trio
from candidates import MIB
from lines import Line, print_lines
from logged_writes import RAID5, SIZE_BYTES, raidx, start
from mount_ratio import Row, own_children_s, run_fio

from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.threads import Workers

READS = 3000
NUMPY_AND_TRIO, TRIO = "import numpy, trio", "import trio"
NO_DEFERRAL = (
    "from raidx_fuse.journal.group_commit import Deferral; Deferral.allow = lambda *_: None"
)
NO_CLOSING = (
    "from raidx_fuse.engine.write.full_stripe import StripeEnd; "
    "StripeEnd.completed = lambda *_: None"
)
SMALL = Row("4 KiB write, 16 deep", "randwrite", "4k", 16, {})
STREAM = Row("128 KiB sequential write", "write", "128k", 1, {})
Measure = Callable[[Path, int, float], Line]


def compare(title: str, rounds: int, cost_us: Callable[[bool], float]) -> Line:
    """Return the line of *cost_us*, which is asked with and without the mechanism in turn."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for with_it in (True, False) if number % 2 else (False, True):
            found[with_it].append(cost_us(with_it))
    ratios = [without / own for own, without in zip(found[True], found[False], strict=True)]
    figure = f"{median(found[True]):,.0f} / {median(found[False]):,.0f} us"
    return Line.over(ratios, title, "without", figure, unit="x")


def of_scan(before: str, home: Path, rounds: int, _: float) -> Line:
    """Compare a `raidx scan` with one that runs *before* first."""
    members = [str(home / f"{number}.img") for number in range(4)]
    create = [*raidx(None), "create", "--layout", "raid5", "--size", "32MiB", *members]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL)

    def cost_us(with_it: bool) -> float:
        began_s = own_children_s()
        command = [*raidx(None, "" if with_it else before), "scan", str(home)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return (own_children_s() - began_s) * 1e6

    return compare(f"scan, {before}", rounds, cost_us)


async def _by_trio(_: Workers, work: Callable[[], None]) -> None:
    await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def of_threads(home: Path, rounds: int, _: float) -> Line:
    """Compare reads in the threads of a member with those in trio's."""
    path = str(home / "member")
    create_file(path, MIB)

    async def read(member: LocalMember) -> None:
        for number in range(READS):
            await member.readv(number * 4096 % MIB, [bytearray(4096)])

    def cost_us(with_it: bool) -> float:
        with ExitStack() as stack:
            if not with_it:
                stack.enter_context(patch.object(Workers, "do", _by_trio))
            member = LocalMember(path)
            stack.callback(member.close)
            began_s = process_time()
            trio.run(read, member)
            return (process_time() - began_s) / READS * 1e6

    return compare("read in a thread", rounds, cost_us)


def of_mount(row: Row, before: str, home: Path, rounds: int, seconds: float) -> Line:
    """Compare *row* on an array with the same on one whose daemon ran *before* first."""
    with ExitStack() as stack:
        candidates = {}
        for with_it in (True, False):
            place = home / str(with_it)
            candidates[with_it] = start(RAID5, place, None, "" if with_it else before)
            stack.callback(candidates[with_it].stop)
        return compare(
            row.title,
            rounds,
            lambda with_it: run_fio(candidates[with_it], row, SIZE_BYTES, seconds).cpu_us,
        )


MEASURES: dict[str, Measure] = {
    "late": partial(of_scan, NUMPY_AND_TRIO),
    "no-loop": partial(of_scan, TRIO),
    "threads": of_threads,
    "closed": partial(of_mount, STREAM, NO_CLOSING),
    "deferred": partial(of_mount, SMALL, NO_DEFERRAL),
}


def run(names: Sequence[str], rounds: int, seconds: float, directory: str) -> list[Line]:
    """Measure the mechanisms *names* and return their lines."""
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=directory) as home:
            lines.append(MEASURES[name](Path(home), rounds, seconds))
    return lines


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=MEASURES, help="only these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each run of fio")
    parser.add_argument("--directory", default="/dev/shm", help="folder for members and files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = options.only or list(MEASURES)
    lines = run(names, options.rounds, options.seconds, options.directory)
    return print_lines(lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
