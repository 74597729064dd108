"""The parts of the bar table: programs of this folder, run in this tree or in an older one."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from candidates import LOGGED, WIDE
from lines import Line
from mount_ratio import WIDE_ROWS

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {field.name for field in fields(Line)}
LOAD_MAX = 0.5  # of an idle machine
MISSED = 1  # exit status of a program that printed its lines and missed a bar


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the table: *script* with *arguments*, or *quick* ones instead.

    *rounds_max* bounds the rounds of parts that take long; *turns* is how often the program repeats
    its measurement in one round of the table. *is_cpu_time*: it measures processor time, which
    other programs hardly disturb.
    """

    name: str
    script: str
    arguments: Sequence[str] = ()
    quick: Sequence[str] = ()
    rounds_max: int = 1 << 10
    turns: int = 1
    is_cpu_time: bool = False

    def command(self, tree: Path, rounds: int, *, quick: bool) -> list[str]:
        """Return the command that measures *rounds* rounds in *tree*."""
        folders = (tree / "bench" / "speed", tree / "bench")  # the second in older trees
        found = next((folder for folder in folders if (folder / self.script).is_file()), None)
        if found is None:
            raise FileNotFoundError(f"{tree} has no {self.script}: --only leaves {self.name} out")
        times = min(rounds, self.rounds_max) * self.turns
        more = self.quick if quick else self.arguments
        return [sys.executable, str(found / self.script), "--json", "--rounds", str(times), *more]


WIDE_ARGUMENTS = ("--only", f"stock,{WIDE},{WIDE}{LOGGED}", "--rows", WIDE_ROWS[0].title)
PARTS = (
    Part("mount", "mount_ratio.py", (), ("--size", "64", "--seconds", "0.4")),
    Part("wide", "mount_ratio.py", WIDE_ARGUMENTS, (*WIDE_ARGUMENTS, "--seconds", "0.4")),
    Part("log", "log_ratio.py", turns=3, is_cpu_time=True),
    Part("sums", "sums_ratio.py", ("--seconds", "1"), ("--seconds", "0.4"), 5),
    Part("rebuild", "rebuild_ratio.py", ("--size", "512"), ("--size", "256"), 5),
    Part("growth", "growth_ratio.py", ("--size", "256"), ("--size", "128"), 5),
    Part("codes", "code_ratio.py", ("--size", "1024"), ("--size", "512"), 5, is_cpu_time=True),
    Part(
        "two-losses",
        "two_loss_mount.py",
        ("--size", "64", "--seconds", "0.5"),
        ("--size", "64", "--seconds", "0.2", "--only", "upc"),
        3,
    ),
    Part("raidx", "raidx_mount.py", (), ("--seconds", "0.4"), 5),
    Part("large", "large_array.py", rounds_max=3),
    Part("simulation", "simulation_speed.py", rounds_max=3, is_cpu_time=True),
)


@lru_cache
def byte_code_folder() -> str:
    """Return a folder for compiled modules, which lasts as long as this process.

    A tree that is only unpacked has none, nor has one whose environment forbids them. Every start
    of a program would then compile all its modules, as no start of an installed raidx does.
    """
    folder = tempfile.TemporaryDirectory(prefix="raidx-byte-code-")
    atexit.register(folder.cleanup)
    return folder.name


def measure(part: Part, rounds: int, *, quick: bool, tree: Path = ROOT) -> list[Line]:
    """Run *part* of *tree* and return its lines.

    Raises RuntimeError with the program's last words if it fails. If this process is interrupted,
    the program unmounts what it has mounted before this function raises.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),  # before the tree that is installed
        "PYTHONPYCACHEPREFIX": byte_code_folder(),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = part.command(tree, rounds, quick=quick)
    # A session of its own, so that only this process interrupts the program; and SIGINT as usual,
    # also where a shell in the background ignores it.
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        out, words = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    if process.returncode not in (0, MISSED) or not out:
        last = words.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        raise RuntimeError(f"{part.script} failed: {last[0]}")
    records = json.loads(out)["lines"]
    return [Line(**{key: record[key] for key in FIELDS & set(record)}) for record in records]
