"""A mount made to be broken, by the installed command: the write hole in five commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.mount.real_array import RealArray

pytestmark = [pytest.mark.mount]
CHUNK_BYTES = 64 << 10
TEXT = b"The quick brown fox\n" * (4 * CHUNK_BYTES // 20)


CUT = ("crash", "ARRAY", "--writing", "0", "--seed", "1", "--lose", "1")


def filled(array: RealArray, journal: str) -> RealArray:
    """Return *array*, mounted to be broken, with content."""
    array.create("raid5", 3, "16MiB", "--chunk", "64KiB")
    array.mount("--lab")
    array.raidx("set", "ARRAY", f"journal={journal}")
    with array.image.open("r+b", buffering=0) as image:
        image.write(TEXT)
    return array


def test_with_the_log_no_write_hole(array: RealArray) -> None:
    """Chunk 1, to which nobody writes, was on the member that is lost with the power."""
    told = filled(array, "partial").ask(*CUT)
    assert told["state"] == "degraded"
    assert [cut["role"] for cut in told["crash"]["cut"]] == [0, 1, 2]
    with array.image.open("rb", buffering=0) as image:
        image.seek(CHUNK_BYTES)
        assert image.read(CHUNK_BYTES) == TEXT[CHUNK_BYTES : 2 * CHUNK_BYTES]


def test_without_the_log_a_chunk_is_lost_that_nobody_wrote_to(array: RealArray) -> None:
    done = filled(array, "none").raidx(*CUT, status=1)
    assert "the power was cut" in done.stdout
    (line,) = done.stderr.splitlines()
    assert "write hole" in line
    assert "--start-degraded" in line
    left = [array.members[0], array.members[2]]
    array.raidx("mount", "--lab", "--start-degraded", *left, array.mnt)
    with array.image.open("rb", buffering=0) as image:
        assert image.read(4).startswith(b"NEW1")
        image.seek(CHUNK_BYTES)
        assert image.read(CHUNK_BYTES) != TEXT[CHUNK_BYTES : 2 * CHUNK_BYTES]


def test_an_ordinary_mount_refuses_to_be_broken(array: RealArray) -> None:
    array.create("raid5", 3, "16MiB")
    array.mount()
    assert "raidx mount --lab" in array.refused("inject", "ARRAY", "0", "vanish", status=2)
    assert "raidx mount --lab" in array.refused("crash", "ARRAY", status=2)
    assert array.status()["state"] == "clean"


def test_faults_by_the_command_and_another_mount_after_a_cut(array: RealArray) -> None:
    filled(array, "partial")
    assert array.ask("inject", "ARRAY", array.members[1], "rot", "--seed", "3")["length"] == 1
    job = array.call("job-wait", job=array.call("scrub", repair=True)["job"])
    assert job["mismatches"] == 1
    assert "outside" in array.refused("inject", "ARRAY", "0", "rot", "--at", "1G", status=2)
    pid = array.daemon_pid()
    array.raidx("crash", "ARRAY", "--keep", "none")
    assert array.daemon_pid() != pid
    array.raidx("inject", "ARRAY", "0", "slow", "--count", "1")
    array.wait_jobs()
    array.scrub()


def test_peek_shows_the_bytes_of_a_mount_and_of_its_members_at_rest(array: RealArray) -> None:
    filled(array, "none")
    mounted = array.ask("peek", "ARRAY", "1")
    assert bytes.fromhex(mounted["cells"][0]["content"]) == TEXT[2 * CHUNK_BYTES :][:16]
    assert "does not exist" in array.refused("peek", "ARRAY", "100000", status=2)
    array.ask("inject", "ARRAY", "0", "rot", "--at", str(mounted["cells"][0]["member_offset"]))
    done = array.raidx("peek", "ARRAY", "1", status=1)
    assert "broken at byte 0" in done.stdout
    array.unmount()
    rest = array.ask("peek", *reversed(array.members), "1", status=1)
    assert rest["chains"][0]["newest_differs_at"] == 0
    assert "no array is mounted" in array.refused("peek", "ARRAY", "1")


def test_a_request_step_by_step_with_the_bytes_of_the_array(array: RealArray) -> None:
    filled(array, "partial")
    array.raidx("fail-disk", "ARRAY", "0")
    steps = array.ask("explain", "ARRAY", "0", "--step")["steps"]
    (solved,) = [step for step in steps if step["does"] == "xor"]
    assert bytes.fromhex(solved["bytes"]["D0"]) == TEXT[:8]
    page = array.raidx("explain", "ARRAY", "0", "--step", "--write").stdout
    assert "if the power goes now: recovery redoes the record" in page
