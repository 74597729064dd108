"""Names and paths with spaces, commas and letters beyond ASCII, as a user would copy them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.command import RAIDX

NAME = "ünïcödé 磁盘, neu"


@pytest.mark.mount
def test_a_mount_line_can_be_copied_and_an_array_can_have_any_name(tmp_path: Path) -> None:
    def shell(line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line.replace("raidx ", f"{RAIDX} ", 1)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    (tmp_path / "mönt point").mkdir()
    made = shell(f"raidx create --layout raid1 --size 8MiB --name '{NAME}' 'd 1' \"d'2\" d,3")
    (told,) = (line for line in made.splitlines() if line.startswith("mount it: "))
    (scanned,) = (x for x in shell("raidx scan .").splitlines() if ": mount it: raidx" in x)
    assert all(f"'{tmp_path}/d 1'" in line or "'d 1'" in line for line in (told, scanned))
    shell(scanned.partition(": mount it: ")[2].replace("MOUNTPOINT", "'mönt point'"))
    try:
        assert (tmp_path / "mönt point" / NAME).stat().st_size > 0
        assert NAME in shell(f"raidx status '{NAME}' --brief")
    finally:
        shell("raidx umount 'mönt point'")
