"""The tours run as printed: each page's commands in order, in one empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.fuse import mountpoint
from tests.docs.pages import blocks, shell_environment
from tests.docs.pictures import run, transcript
from tests.support.forks import forked

pytestmark = pytest.mark.mount
LIMIT_S = 120.0
FOR_A_SHELL = re.compile(r"[|&;<>()$`*?{}~#\[]")
MOUNTS = ("mnt", "unlike", "grow", "shape", "writehole/mnt")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return an empty folder; what is mounted in it is unmounted at the end."""
    yield tmp_path
    for name in MOUNTS:
        if mountpoint.find(tmp_path / name):
            subprocess.run(["raidx", "umount", name], cwd=tmp_path, env=shell_environment())


def typed(line: str, folder: Path) -> str:
    """Run a line in *folder*, without a shell if it needs none; return what it prints."""
    if not line.startswith("raidx ") or FOR_A_SHELL.search(line):
        return run(line, folder)
    done = forked(shlex.split(line)[1:], folder, LIMIT_S)
    assert done.status == 0, f"{line}: {done.stderr}"
    return done.stdout


def test_the_tour_for_administrators(folder: Path) -> None:
    lines = [
        line
        for text in blocks("examples/administration.md", "sh")
        for line in text.splitlines()
        if line
    ]
    for line in lines:
        printed = typed(line, folder)
        if line.startswith("raidx explain"):
            assert "never written" not in printed, line
        if line.startswith("raidx mount") and line.endswith(" mnt"):
            assert (folder / "mnt" / "disk").stat().st_size >> 20 == 245
    assert len(lines) > 45


def test_the_transcript_of_the_readme(folder: Path) -> None:
    (shown,) = blocks("README.md", "console")
    assert len(re.findall(r"^\$ raidx ", shown, re.MULTILINE)) == 8
    assert transcript(shown, folder) == shown, "python -m tests.docs.pictures README.md"


def test_the_write_hole_in_five_minutes(folder: Path) -> None:
    """`run` fails on any command that does not end with 0: `cmp` judges before and after."""
    found = blocks("examples/teaching.md", "sh")
    lines = [line for text in found if " writehole" in text for line in text.splitlines() if line]
    assert len(lines) == 16
    printed = [run(line, folder) for line in lines]
    seen = "".join(printed)
    before, broken, whole = (text for text in printed if text.startswith("stripe 0 of raid5"))
    (row,) = re.findall(r"D1  member 1 .*", before)
    assert row.endswith("fox.The quick br")
    (row,) = re.findall(r"D1  member 1 .*", broken)
    assert re.search(r"chains +0  7c 42 4a ", row)
    (row,) = re.findall(r"D1  member 1 .*", whole)
    assert row.endswith("fox.The quick br")
    assert "(the write hole)" in seen  # `explain --step` names the moment
    assert not list(folder.iterdir())
