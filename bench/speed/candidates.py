"""Mounted images to measure: raidx arrays, the pass-through baselines, and commands of your own.

Each is a command that stays in the foreground, shows an image named ``disk`` in its mount point,
and unmounts on SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PEERS = Path(__file__).resolve().parents[1] / "peers"
RAIDX = [sys.executable, "-c", "from raidx_fuse.cli.main import main; main()"]
MEMBERS = 4
TWO_LOSS_WIDTHS = {"rdp": 8, "evenodd": 9, "xcode": 7, "pcode": 6, "upc": 6}  # all of p = 7
MEMBER_BYTES_MIN = 2 << 30
CHUNK = "64KiB"
MIB = 1 << 20
START_S = 30
RAIDX_LAYOUTS = {"raidx-zero", "raidx-copy"}
WIDE = "raid5x5"  # of one member more: a stripe divides 1 MiB
# Measured without a journal.
ARRAYS = {"raid0", "raid4", "raid5", WIDE, *TWO_LOSS_WIDTHS, *RAIDX_LAYOUTS}
LOGGED = "+log"  # ends the name of a candidate that keeps its journal, as arrays do by default


class Candidate:
    """A mounted image: the command that serves it runs as *process*.

    With *uri* it is used as that export instead, by fio's engine nbd.
    """

    uri = ""

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
        """CPU time of the daemon so far, all threads that still run, exact to the nanosecond."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return (
            sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
        )

    def resident_mib(self, name: str = "VmRSS") -> float:
        """Memory that the daemon holds now, or the most it held so far ("VmHWM")."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(name + ":"))
        return int(line.split()[1]) / 1024

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
    layout = name.removesuffix(LOGGED)
    width = TWO_LOSS_WIDTHS.get(layout, MEMBERS)
    if layout == WIDE:
        layout, width = "raid5", MEMBERS + 1
    members = [str(directory / f"{name}-{role}.img") for role in range(width)]
    data_members = width - (2 if layout in TWO_LOSS_WIDTHS else layout in {"raid4", "raid5"})
    if layout == "raidx-copy":
        data_members = width // 2
    # Sparse, and large enough for what follows from their size: the journal has its full length.
    member_bytes = max(-(-size // data_members // MIB) * MIB + 96 * MIB, MEMBER_BYTES_MIN)
    create = ["create", "--layout", layout, "--chunk", CHUNK, "--size", str(member_bytes)]
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
    names: Sequence[str], own: dict[str, str], size: int, directory: Path
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
            if name in ARRAYS:
                subprocess.run(
                    [*RAIDX, "set", str(mountpoint), "journal=none"],
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
            fill(candidates[-1].image, size)
        yield candidates
    finally:
        for candidate in candidates:
            candidate.stop()


def fill(image: Path, size: int) -> None:
    """Write everything that will be measured, so that no measured chunk is unwritten."""
    block = os.urandom(MIB)
    with image.open("r+b", buffering=0) as disk:
        for _ in range(size // MIB):
            disk.write(block)
        os.fsync(disk.fileno())
