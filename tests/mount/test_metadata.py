"""A mount keeps its configurations, and they bring members back whose front was overwritten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raidx_fuse.fuse import mountpoint
from tests.support.command import checked, raidx
from tests.support.waiting import await_that

pytestmark = pytest.mark.mount
CONTENT = os.urandom(3 << 20)


def test_all_members_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAIDX_STATE", str(tmp_path / "state"))
    kept = tmp_path / "state" / "metadata"
    (tmp_path / "m").mkdir()
    checked(tmp_path, "create --layout raid5 --size 16MiB a b c d")
    try:
        checked(tmp_path, "mount a b c d m")
        with (tmp_path / "m" / "disk").open("r+b") as image:
            image.write(CONTENT)
        await_that(lambda: list(kept.glob("*.json")), "kept")
        assert "event" in checked(tmp_path, "save-metadata m saved.json")
        assert raidx(tmp_path, "restore-metadata saved.json a b c d --yes").status
        checked(tmp_path, "umount m")
        (newest,) = kept.glob("*.json")
        for name in "abcd":
            with (tmp_path / name).open("r+b") as member:
                member.write(bytes(128 << 10))
        assert "file" in checked(tmp_path, f"restore-metadata {newest} d a b c --yes")
        checked(tmp_path, "mount a b c d m")
        assert (tmp_path / "m" / "disk").read_bytes()[: len(CONTENT)] == CONTENT
    finally:
        if mountpoint.find(tmp_path / "m") is not None:
            raidx(tmp_path, "umount m")
