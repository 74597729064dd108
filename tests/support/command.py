"""The raidx command, run in a folder of member files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from raidx_fuse.cli.main import main

RAIDX = str(Path(sys.executable).with_name("raidx"))
MIB = 1 << 20
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
FAILED, USAGE = 1, 2


class Done(NamedTuple):
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


def raidx(folder: Path, line: str) -> Done:
    """Run a command line in *folder*."""
    if line.split()[0] in (
        "mount",
        "serve",
        "umount",
    ):  # they fork: not in the process of the tests
        done = subprocess.run(
            [RAIDX, *line.split()],
            cwd=folder,
            env={**os.environ, "PATH": PATH},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Done(done.returncode, done.stdout, done.stderr)
    with contextlib.chdir(folder):
        result = CliRunner().invoke(main, line.split())
    return Done(result.exit_code, result.stdout, result.stderr)


def checked(folder: Path, line: str) -> str:
    """Run a command line that must succeed; return what it printed."""
    done = raidx(folder, line)
    assert done.status == 0, done.stderr
    return done.stdout


def checksums(folder: Path) -> dict[str, str]:
    """Return every file below *folder* with its checksum."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
