"""A mount made to be broken, by the installed command.

The write hole with and without the log is tested by the lab sheet (tests/docs/test_labs.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.mount.real_array import RealArray

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


def test_an_ordinary_mount_refuses_to_be_broken(array: RealArray) -> None:
    array.create("raid5", 3, "16MiB")
    array.mount()
    assert "raidx mount --lab" in array.refused("inject", "ARRAY", "0", "vanish", status=2)
    assert "raidx mount --lab" in array.refused("crash", "ARRAY", status=2)
    assert array.status()["state"] == "clean"


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
