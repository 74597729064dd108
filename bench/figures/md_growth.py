"""Growth of raidx and of Linux md: bytes read and written on each member, and time.

    python bench/figures/md_growth.py                         RAID-4 from 4 to 5 members of 128 MiB
    python bench/figures/md_growth.py --added 2 --size 256 --ways live,piggyback,surrogate,restripe
    python bench/figures/md_growth.py --layout rdp --width 6 --added 2     beside md's RAID-6

`mdadm --grow` runs in a guest of User-Mode Linux, a kernel that is an ordinary program. It needs no
root, no loop devices, and no md on this machine. Both arrays are full of random data before, and
are compared with it afterwards. The table shows the bytes that the guest's kernel counts on its
disks, superblocks included, beside those that reach our member files. Bytes are exact. The seconds
are those of a guest whose disk requests and page faults all go through this machine's kernel; they
say little about md on real disks. `paper_mcpod.py` compares both methods on modelled disks.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import trio
from paper_common import Cell, PaperTable, print_tables
from rich.console import Console

from raidx_fuse.array.open import open_array
from raidx_fuse.documents import Grown, Reshaping
from raidx_fuse.engine.growth_position import LIVE, SURROGATE
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.layouts.registry import PARITY_WAYS, prime_for
from raidx_fuse.members.base import ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.open import create_member

GUEST = Path(__file__).resolve().parents[1] / "peers" / "md_guest.sh"
PROGRAMS = ("linux.uml", "linux")  # Debian's name, and the one a kernel's own makefile gives
MODULES = Path("/usr/lib/uml/modules")
MEMBERS_MAX = 16  # a guest has ubda to ubdp
MEMORY = "256M"
SECTOR_BYTES = 512
STAT_READS, STAT_READ, STAT_WRITES, STAT_WRITTEN = 0, 2, 4, 6  # /sys/block/*/stat, in sectors
CHUNK_BYTES = 64 << 10
RESTRIPE = "restripe"
WAYS = (*PARITY_WAYS, RESTRIPE)
MD_LEVELS = {"raid4": 4, "raid5": 5, "rdp": 6, "evenodd": 6}
MIB = 1 << 20
os.environ["PATH"] += ":/usr/sbin:/sbin"


class PeerError(Exception):
    """The guest failed; the message says what and why."""


class CannotRunError(PeerError):
    """The guest's kernel cannot run on this machine."""


@dataclass(frozen=True)
class GrowthCost:
    """The cost of a growth: bytes (read, written) of each member, old members first.

    *old_bytes*: the size of the array before, all of it written; *size_bytes*: after;
    *each_bytes*: the mean size of md's reads and of its writes.
    """

    members: Sequence[tuple[int, int]]
    seconds: float
    old_bytes: int
    size_bytes: int
    each_bytes: Sequence[float] = ()

    @property
    def per_byte(self) -> float:
        """Bytes read and written for each byte of old data."""
        return sum(map(sum, self.members)) / self.old_bytes


# ---- md, in its guest ----


def missing() -> str | None:
    """Return what to install before md can run here, None if nothing."""
    there = {
        "user-mode-linux": kernel() is not None and MODULES.is_dir(),
        "mdadm": shutil.which("mdadm") is not None,
        "kmod": shutil.which("modprobe") is not None,  # the guest loads md from modules
    }
    wanted = " ".join(package for package, found in there.items() if not found)
    if not wanted:
        return None
    return f"md cannot run in User-Mode Linux here, type: apt-get install {wanted}"


def kernel() -> str | None:
    """Return the path of the guest's kernel, None without one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def parse_counters(text: str) -> dict[str, tuple[int, int]]:
    """Return bytes (read, written) by device, from lines "NAME fields of /sys/block/NAME/stat".

    Raises PeerError when a line is not like that.

    >>> parse_counters("ubda  5 0 40 2 3 1 16 9 0 2 11 0 0 0 0 0 0")
    {'ubda': (20480, 8192)}
    """
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        fields = rest.split()
        if len(fields) <= STAT_WRITTEN or not all(field.isdigit() for field in fields):
            raise PeerError(f"not the counters of a disk: {line!r}")
        sectors = int(fields[STAT_READ]), int(fields[STAT_WRITTEN])
        found[name] = sectors[0] * SECTOR_BYTES, sectors[1] * SECTOR_BYTES
    return found


def operations_of(text: str) -> tuple[int, int]:
    """Return how many reads and writes all devices of /sys/block/NAME/stat had."""
    rows = [list(map(int, line.split()[1:])) for line in text.splitlines()]
    return sum(row[STAT_READS] for row in rows), sum(row[STAT_WRITES] for row in rows)


def parse_growth(results: Path, members: int) -> GrowthCost:
    """Return what the guest wrote into the folder *results*. Raises PeerError."""
    with contextlib.suppress(FileNotFoundError):
        raise PeerError((results / "error").read_text().strip())
    try:
        before, after = (
            parse_counters((results / name).read_text()) for name in ("before", "after")
        )
        begun, ended = (operations_of((results / name).read_text()) for name in ("before", "after"))
        lines = (results / "numbers").read_text().splitlines()
        numbers = dict(line.split("=", 1) for line in lines)
        start_s, end_s = map(float, numbers["seconds"].split())
        sizes = int(numbers["size_before"]), int(numbers["size_after"])
        finished = numbers["done"] == "1"
    except (FileNotFoundError, KeyError, ValueError) as error:
        raise PeerError(f"the guest ended early: {error!r}") from None
    if not finished or len(after) != members or set(before) != set(after):
        raise PeerError(f"counters of {len(before)} and {len(after)} members, not {members}")
    moved = [
        (after[name][0] - before[name][0], after[name][1] - before[name][1])
        for name in sorted(after)
    ]
    each = [sum(m[n] for m in moved) / max(1, ended[n] - begun[n]) for n in (0, 1)]
    return GrowthCost(moved, end_s - start_s, *sizes, each)


def grow_md(
    level: int, width: int, added: int, member_bytes: int, folder: Path, limit_s: float
) -> GrowthCost:
    """Grow an array of md in a guest, with its members in *folder*. Raises PeerError."""
    program, results = kernel(), folder / "results"
    assert program is not None
    results.mkdir()
    words = [
        *(program, f"mem={MEMORY}", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"),
        *(f"init={GUEST}", f"uml_dir={folder}", "con=null", "con0=null,fd:1"),
        *(f"MD_OUT={results}", f"MD_MODULES={MODULES}", f"MD_CHUNK_KIB={CHUNK_BYTES >> 10}"),
        *(f"MD_LEVEL={level}", f"MD_WIDTH={width}", f"MD_ADDED={added}"),
    ]
    for number in range(width + added):
        member = folder / f"md{number}.img"
        with member.open("xb") as file:
            file.truncate(member_bytes)
        words.append(f"ubd{number}={member}")
    console = folder / "console"
    with console.open("wb") as out:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise PeerError(f"md: the guest has not ended within {limit_s:g} s") from None
        finally:  # its processes are a group of their own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    try:
        return parse_growth(results, width + added)
    except PeerError as error:
        said = last_words(console.read_text(errors="replace"))
        if process.returncode and not (results / "error").exists():  # else it has powered off
            raise CannotRunError(
                "md cannot run here: the kernel of User-Mode Linux ended with status "
                f"{process.returncode} (its last words: {said})"
            ) from None
        raise PeerError(f"md: {error} (its last words: {said})") from None


def last_words(console: str) -> str:
    """Return why a guest ended: the line of a panic, which a list of calls follows, or the last.

    >>> last_words("boot\\n[ 0.1] Kernel panic - not syncing: no FPU\\nCall Trace:\\n [<60>] f\\n")
    'Kernel panic - not syncing: no FPU'
    """
    lines = [line for line in map(str.strip, console.splitlines()) if line]
    panics = [line[line.index("Kernel panic") :] for line in lines if "Kernel panic" in line]
    said = (panics or lines or ["none"])[-1][:300]
    return "".join(c if c.isprintable() else "?" for c in said)


# ---- ours ----


class CountingMember(WrapperMember):
    """Counts the bytes that reach *inner*, maps and superblocks included."""

    read_bytes = 0
    write_bytes = 0

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        done = super().try_readv(offset_bytes, buffers)
        self.read_bytes += done * sum(map(len, buffers))
        return done

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        done = super().try_writev(offset_bytes, buffers)
        self.write_bytes += done * sum(map(len, buffers))
        return done

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        self.read_bytes += sum(map(len, buffers))
        await super().readv(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        self.write_bytes += sum(map(len, buffers))
        await super().writev(offset_bytes, buffers)


async def grow_ours(
    layout: str, way: str, width: int, added: int, member_bytes: int, folder: Path
) -> GrowthCost:
    """Grow an array of raidx in this process: *way* is a parity mode, or "restripe".

    Its members lie in *folder*. A surrogate is one more, the last. Raises PeerError, RaidxError.
    """
    members = [
        CountingMember(create_member(str(folder / f"disk{number}.img"), member_bytes))
        for number in range(width + added + (way == SURROGATE))
    ]
    joining = members[width : width + added]
    try:
        params = {"prime": prime_for(layout, width + added)} if MD_LEVELS[layout] == 6 else {}
        await create_array(
            members[:width],
            layout,
            params=params,
            chunk_bytes=CHUNK_BYTES,
            name="bench",
            now_s=0,
            both_ends=False,  # the places of the published figures
        )
        async with open_array(members[:width]) as array:
            old_bytes, noise = array.size_bytes, np.random.default_rng(5).bytes(7 * MIB)
            for at in range(0, old_bytes, len(noise)):
                await array.write(at, noise[: old_bytes - at])
            await array.flush()
            before = [(member.read_bytes, member.write_bytes) for member in members]
            start_s = perf_counter()
            job: Grown | Reshaping
            if way == RESTRIPE:
                job = await array.restripe(joining, None, {})
            elif way == SURROGATE:
                job = await array.grow(joining, surrogate=members[-1])
            else:
                job = await array.grow(joining, way)
            status = await array.jobs.wait(job["job"])
            seconds = perf_counter() - start_s
            after = [(member.read_bytes, member.write_bytes) for member in members]
            if status["state"] != "done":
                raise PeerError(f"our growth: {status['error']}")
            for at in range(0, old_bytes, len(noise)):
                if (
                    bytes(await array.read(at, min(len(noise), old_bytes - at)))
                    != noise[: old_bytes - at]
                ):
                    raise PeerError("our growth: the data is not what it was")
            moved = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]
            return GrowthCost(moved, seconds, old_bytes, array.size_bytes)
    finally:
        for member in members:
            member.close()


# ---- both ----


def table(
    layout: str, width: int, added: int, member_bytes: int, growths: dict[str, GrowthCost]
) -> PaperTable:
    """Return the growths side by side, in MiB."""
    rows: list[list[Cell]] = []
    parity = "parity" if layout == "raid4" else "data"  # the others rotate
    roles = ["data"] * (width - 1) + [parity] + ["new"] * added + ["surrogate"]
    columns = [f"{name} {what}" for name in growths for what in ("read", "written")]

    def line(title: str, cells: Callable[[GrowthCost], Sequence[Cell]]) -> None:
        found = [[*cells(growth), "", ""][:2] for growth in growths.values()]
        rows.append([title, *(cell for pair in found for cell in pair)])

    for number in range(max(len(growth.members) for growth in growths.values())):

        def of_member(growth: GrowthCost, n: int = number) -> list[Cell]:
            return [part / MIB for member in growth.members[n : n + 1] for part in member]

        line(f"{number} ({roles[number]})", of_member)
    line("all", lambda growth: [sum(m[part] for m in growth.members) / MIB for part in (0, 1)])
    line("bytes for each byte of old data", lambda growth: [growth.per_byte])
    line("old data, MiB", lambda growth: [growth.old_bytes / MIB])
    line("size afterwards, MiB", lambda growth: [growth.size_bytes / MIB])
    line("KiB of an operation", lambda growth: [size / 1024 for size in growth.each_bytes])
    line("seconds", lambda growth: [growth.seconds])
    return PaperTable(
        f"{width}+{added}",
        f"{layout}, md's level {MD_LEVELS[layout]}, grows by {added}, members of "
        f"{member_bytes // MIB} MiB, MiB of each member",
        ("member", *columns),
        rows,
        "md's seconds are those of a guest of User-Mode Linux and say little about md on disks.",
    )


def compare(
    layout: str,
    ways: Sequence[str],
    width: int,
    added: int,
    member_bytes: int,
    directory: str,
    limit_s: float,
) -> PaperTable:
    """Grow md and ours, one after the other, and return the table. Raises PeerError, RaidxError."""
    growths = {}
    for name in ("md", *ways):
        with tempfile.TemporaryDirectory(prefix="raidx-md-", dir=directory) as home:
            growths[name] = (
                grow_md(MD_LEVELS[layout], width, added, member_bytes, Path(home), limit_s)
                if name == "md"
                else trio.run(grow_ours, layout, name, width, added, member_bytes, Path(home))
            )
    return table(layout, width, added, member_bytes, growths)


def main() -> int:
    """Grow both and print the table; 2 when md cannot run here, 1 when something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layout", choices=sorted(MD_LEVELS), default="raid4", help="ours")
    parser.add_argument("--width", type=int, default=4, help="members before")
    parser.add_argument("--added", type=int, default=1, help="members to add")
    parser.add_argument(
        "--ways", default=f"{LIVE},{RESTRIPE}", help=f"methods of raidx: {', '.join(WAYS)}"
    )
    parser.add_argument("--size", type=int, default=128, help="size of each member, MiB")
    parser.add_argument("--directory", default="/dev/shm", help="folder for members and results")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="time limit of the guest, seconds"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.width < 3 or options.added < 1 or options.width + options.added > MEMBERS_MAX:
        parser.error(f"from 3 members on, by 1 or more, to {MEMBERS_MAX} at the most")
    if unknown := set(options.ways.split(",")) - set(WAYS):
        parser.error(f"{', '.join(sorted(unknown))}: ours are {', '.join(WAYS)}")
    if (needed := missing()) is not None:
        print(needed, file=sys.stderr)
        return 2
    logging.disable()  # our array says that it has grown
    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        made = compare(
            options.layout,
            options.ways.split(","),
            options.width,
            options.added,
            options.size * MIB,
            options.directory,
            options.timeout,
        )
    except (PeerError, RaidxError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, CannotRunError) else 1
    print_tables([made], options.json, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
