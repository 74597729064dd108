"""The raidx command, run in a folder of member files."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from pathlib import Path

from click.testing import CliRunner

from raidx_fuse.cli.main import main
from tests.support.forks import PATH as PATH
from tests.support.forks import Done, forked

RAIDX = str(Path(sys.executable).with_name("raidx"))
MIB = 1 << 20
FAILED, USAGE = 1, 2
DAEMONS = ("mount", "serve", "umount", "crash", "lab")  # what forks, not in the process of tests
LIMIT_S = 60


def raidx(folder: Path, line: str) -> Done:
    """Run a command line in *folder*."""
    if line.split()[0] in DAEMONS:
        return forked(line.split(), folder, LIMIT_S)
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
