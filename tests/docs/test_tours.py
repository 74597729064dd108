"""The tours run as printed: each page's commands in order, in one empty folder."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.errors import RaidxError
from raidx_fuse.fuse import mountpoint
from tests.docs.pages import blocks, shell_environment

pytestmark = pytest.mark.mount
MOUNTS = ("mnt", "unlike", "grow", "shape")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return an empty folder; what is mounted in it is unmounted at the end."""
    try:
        mountpoint.check_fuse()
    except RaidxError as error:
        pytest.skip(f"no FUSE here: {error}")
    yield tmp_path
    for name in MOUNTS:
        if mountpoint.find(tmp_path / name):
            subprocess.run(["raidx", "umount", name], cwd=tmp_path, env=shell_environment())


def run(line: str, folder: Path) -> str:
    """Run a shell line in *folder*; return what it prints on standard output."""
    done = subprocess.run(
        line, shell=True, cwd=folder, env=shell_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def test_the_tour_for_administrators(folder: Path) -> None:
    lines = [
        line
        for text in blocks("examples/administration.md", "sh")
        for line in text.splitlines()
        if line
    ]
    for line in lines:
        printed = run(line, folder)
        if line.startswith("raidx explain"):
            assert "never written" not in printed, line
        if line.startswith("raidx mount") and line.endswith(" mnt"):
            assert (folder / "mnt" / "disk").stat().st_size >> 20 == 276
    assert len(lines) > 45


def test_the_transcript_of_the_readme(folder: Path) -> None:
    (transcript,) = blocks("README.md", "console")
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", transcript, re.MULTILINE)
    assert len([line for line, _ in steps if line.startswith("raidx ")]) == 8
    for line, printed in steps:
        output = run(line, folder).replace(str(folder), "...")
        assert [row.rstrip() for row in output.splitlines()] == printed.splitlines(), line
