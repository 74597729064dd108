"""A mount made to be broken, by the installed command.

The write hole with and without the log is tested by the lab sheet (tests/docs/test_labs.py).
"""

from __future__ import annotations

import os

import pytest

from raidx_fuse.daemon import control_client
from tests.mount.real_array import NAME, RealArray

pytestmark = [pytest.mark.mount]
CHUNK_BYTES = 64 << 10
TEXT = b"The quick brown fox\n" * (4 * CHUNK_BYTES // 20)


def filled(array: RealArray, journal: str) -> RealArray:
    """Return *array*, mounted to be broken, with content."""
    array.create("raid5", 3, "16MiB", "--chunk", "64KiB")
    array.mount("--lab")
    array.call("set", key="journal", value=journal)
    with array.image.open("r+b", buffering=0) as image:
        image.write(TEXT)
    return array


def test_a_mount_that_a_cut_forbids_is_refused_in_one_line(array: RealArray) -> None:
    words = ("crash", "ARRAY", "--writing", "0", "--seed", "8", "--lose", "1")
    done = filled(array, "none").raidx(*words, status=1)
    assert "the power was cut" in done.stdout
    (line,) = done.stderr.splitlines()
    assert "write hole" in line
    assert "--start-degraded" in line
    assert not array.is_mounted()
    left = [array.members[0], array.members[2]]
    array.raidx("mount", "--lab", "--start-degraded", *left, array.mnt)
    with array.image.open("rb", buffering=0) as image:
        assert image.read(4) == b"NEW8"
        image.seek(CHUNK_BYTES)
        assert image.read(CHUNK_BYTES) != TEXT[CHUNK_BYTES : 2 * CHUNK_BYTES]


def test_faults_bytes_steps_and_another_mount_after_a_cut(array: RealArray) -> None:
    filled(array, "none")
    seen = array.ask("peek", "ARRAY", "1")
    assert bytes.fromhex(seen["cells"][0]["content"]) == TEXT[2 * CHUNK_BYTES :][:16]
    disk, place = seen["cells"][1]["path"], str(seen["cells"][1]["member_offset"])
    assert array.ask("inject", "ARRAY", disk, "rot", "--at", place)["length"] == 1
    assert "outside" in array.refused("inject", "ARRAY", "0", "rot", "--at", "1G", status=2)
    assert "broken at byte 0" in array.raidx("peek", "ARRAY", "1", status=1).stdout

    pid = array.daemon_pid()
    told = array.ask("crash", "ARRAY", "--keep", "none")
    assert [cut["role"] for cut in told["crash"]["cut"]] == [0, 1, 2]
    assert array.daemon_pid() != pid
    array.wait_jobs()
    array.call("fail-disk", member="0")
    steps = array.ask("explain", "ARRAY", "0", "--step")["steps"]
    (solved,) = [step for step in steps if step["does"] == "xor"]
    assert len(bytes.fromhex(solved["bytes"]["D0"])) == 8

    array.unmount()
    rest = array.ask("peek", *reversed(array.members), "1")
    assert [cell["lost"] for cell in rest["cells"]].count(True) == 1
    assert "no array is mounted" in array.refused("peek", "ARRAY", "1")


def test_a_scratch_array_is_made_reset_and_removed(array: RealArray) -> None:
    lab, essay = array.folder / "scratch", array.folder / "scratch" / "essay"
    try:
        first = array.ask("lab", "reset", lab)
        assert first["mountpoint"] == f"{lab}/mnt"
        image = lab / "mnt" / "disk"
        with image.open("r+b", buffering=0) as file:
            file.write(TEXT)
        essay.write_text("mine")
        array.raidx("inject", lab / "mnt", "1", "hang")  # what waits for it must not be waited for
        with os.scandir(lab / "mnt"):
            assert "in use" in array.refused("lab", "reset", lab)
        second = array.ask("lab", "reset", lab, "--layout", "rdp", "--disks", "4", "--sums", "on")
        assert (second["array"]["layout"], second["left_alone"]) == ("rdp", ["essay"])
        assert first["array"]["uuid"] != second["array"]["uuid"]
        assert image.read_bytes()[: len(TEXT)] == bytes(len(TEXT))
        third = array.ask("lab", "reset", lab)  # as it was the last time
        assert (third["array"]["layout"], len(third["array"]["members"])) == ("rdp", 4)
        assert third["array"]["sums"]["state"] == "on"
    finally:
        ended = array.raidx("lab", "end", lab)
    assert "left alone: essay" in ended.stdout
    assert [path.name for path in lab.iterdir()] == ["essay"]
    assert essay.read_text() == "mine"
    array.raidx("lab", "end", lab)


@pytest.mark.parametrize("layout", ["raid0", "raid5"])
def test_umount_says_what_it_could_not_make_durable(layout: str, array: RealArray) -> None:
    """All members are pulled; what was flushed is there again when they are back."""
    array.create(layout, 3, "16MiB")
    array.mount("--lab")
    with array.image.open("r+b", buffering=0) as image:
        image.write(TEXT)
        os.fsync(image.fileno())
        image.write(TEXT)
    pid = array.daemon_pid()
    for role in "012":
        array.raidx("inject", "ARRAY", role, "vanish")
    line = array.refused("umount", "ARRAY")
    assert f"{array.mnt} is unmounted, but {NAME} could not be closed cleanly: " in line
    assert "what no flush (fsync, sync) covered may be lost: bring its members back" in line
    assert not array.is_mounted()
    assert control_client.wait_for_exit(pid, 5)
    array.mount("--start-degraded")
    with array.image.open("rb", buffering=0) as image:
        assert image.read(len(TEXT)) == TEXT
    array.unmount()
