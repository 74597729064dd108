"""The table of habits in the manual: each line of raidx works, from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from raidx_fuse.cli.habits import HABITS
from raidx_fuse.fuse import mountpoint
from tests.mount.real_array import take_down_mount
from tests.support.command import raidx

pytestmark = [pytest.mark.mount]


def test_every_line_works_in_this_order(tmp_path: Path) -> None:
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    try:
        for what, _, line in HABITS:
            program, _, words = line.partition(" ")
            assert program == "raidx"
            done = raidx(tmp_path, words)
            assert done.status == 0, f"{what}: {line}: {done.stderr}"
            assert done.stdout or words.endswith(" wait"), f"{what}: {line} says nothing"
    finally:
        if mountpoint.find(mnt) is not None:
            take_down_mount(str(mnt))
