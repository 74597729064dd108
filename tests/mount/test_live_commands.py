"""The commands on a running array: what they say of it, and their exit statuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray

pytestmark = [pytest.mark.mount]

CHUNK_BYTES = 64 << 10
WRITTEN_BYTES = 4 << 20


@pytest.fixture
def raid5(array: RealArray) -> RealArray:
    array.create("raid5", 4, "32MiB").mount()
    with array.image.open("r+b") as image:
        image.write(os.urandom(WRITTEN_BYTES))
    return array


def test_status_and_its_exit_statuses(
    raid5: RealArray, make_array: Callable[..., RealArray]
) -> None:
    status = raid5.ask("status", "ARRAY")
    assert (status["state"], status["redundancy_left"], status["jobs"]) == ("clean", 1, [])
    assert status["size"] == raid5.image.stat().st_size
    assert Path(status["socket"]).is_socket()
    assert "raidx" in Path(f"/proc/{status['pid']}/cmdline").read_text()
    assert Path(status["log_path"]).read_text()
    assert status["chunk_size"] == CHUNK_BYTES
    assert [member["path"] for member in status["members"]] == [str(m) for m in raid5.members]
    assert status["volumes"][0]["path"] == str(raid5.image)
    raid5.raidx("status", "ARRAY", "--check", status=0)
    raid5.fail(1)
    status = raid5.ask("status", "ARRAY", "--check", status=1)
    assert (status["state"], status["redundancy_left"]) == ("degraded", 0)
    assert "raidx replace-disk" in status["action"]
    assert [member["state"] for member in status["members"]].count("failed") == 1
    assert "cannot be spared" in raid5.refused("fail-disk", "ARRAY", "2")
    raid5.raidx("status", make_array().mnt, "--check", status=4)
    space = os.statvfs(raid5.mnt)
    sizes = [blocks * space.f_frsize for blocks in (space.f_blocks, space.f_bavail)]
    assert sizes == [status["size"], status["size"] - WRITTEN_BYTES], "df: what is not written"
    page = raid5.raidx("status", "ARRAY").stdout
    assert "action:" in page
    brief = raid5.raidx("status", "ARRAY", "--brief").stdout
    assert "[4/3] [U_UU]" in brief


def test_a_spare_that_was_removed_is_free_at_once(raid5: RealArray) -> None:
    spare = raid5.members[0].parent / "spare"
    spare.touch()
    os.truncate(spare, 64 << 20)
    for _ in range(2):
        raid5.raidx("add-disk", "ARRAY", str(spare), "--as", "spare")
        raid5.raidx("remove-disk", "ARRAY", str(spare))
    raid5.raidx("wipe", str(spare))  # another program may have it
