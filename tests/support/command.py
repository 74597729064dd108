"""The raidx command, run in a folder of member files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

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


# -- in the process of the tests, in its folder ----------------------------------------------------


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def run(*words: str | Path, status: int = 0) -> str:
    """Return the standard output of a command that ends with *status*."""
    result = invoke(*words)
    assert result.exit_code == status, f"{result.stdout}{result.stderr}"
    return result.stdout


def run_json(*words: str | Path, status: int = 0) -> Any:
    """Return the JSON document of a command; nothing else may be on standard output."""
    document = json.loads(run(*words, "--json", status=status))
    assert document.pop("output_version") == 1
    return document


def fail(*words: str | Path, status: int = 2) -> str:
    """Return the one line of complaint of a command that ends with *status*."""
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (status, ""), (result.output, result.exception)
    (line,) = result.stderr.splitlines()
    assert line.startswith("raidx: ")
    return line
