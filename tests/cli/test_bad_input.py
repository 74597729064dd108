"""Bad input, case by case, as a user types it.

Mounts run as the installed command, other lines in this process. For each: one clear line on
standard error, the documented exit status, not one byte changed (checksums before and after).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from raidx_fuse.fuse import mountpoint
from tests.support.command import FAILED, MIB, PATH, USAGE, checked, checksums, raidx


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with arrays a b c (raid5), d e f (raid5), and everything that is no member of them.

    m0 and m1 are a mirror; m0a, m1a the same after each was started alone; m0b after m0 replaced.
    """
    folder = tmp_path_factory.mktemp("disks")
    checked(folder, "create --layout raid5 --size 4MiB --name first a b c")
    checked(folder, "create --layout raid5 --size 4MiB --name second d e f")
    shutil.copy(folder / "a", folder / "copy-of-a")
    os.link(folder / "b", folder / "other-name-of-b")
    whole = (folder / "a").read_bytes()
    (folder / "cut-in-data").write_bytes(whole[: 3 * MIB])
    (folder / "cut-in-head").write_bytes(whole[:70000])
    (folder / "empty").write_bytes(b"")
    (folder / "zeros").write_bytes(bytes(4 * MIB))
    noise = hashlib.shake_256(b"noise").digest(4 * MIB)
    (folder / "noise").write_bytes(noise)
    scratched = bytearray(whole)
    for slot in (0, 64 << 10):
        scratched[slot + 64 : slot + 4064] = noise[:4000]
    (folder / "scratched").write_bytes(scratched)
    (folder / "odd").write_bytes(bytes(4 * MIB + 100))
    (folder / "tiny").write_bytes(bytes(64 << 10))
    (folder / "swap").write_bytes(bytes(4086) + b"SWAPSPACE2" + bytes(4 * MIB - 4096))
    table = bytearray(4 * MIB)
    table[446:462] = bytes([0x80, 0, 2, 0, 0x83, 0, 2, 0, 1, 0, 0, 0, 0, 16, 0, 0])
    table[510:512] = b"\x55\xaa"
    (folder / "partitioned").write_bytes(table)
    (folder / "folder").mkdir()
    (folder / "full-mount-point").mkdir()
    (folder / "full-mount-point" / "file").write_text("someone's")
    (folder / "mnt").mkdir()
    return folder


CASES = [
    # the line; exit status; words that must be in the one line of complaint
    # -- wrong
    # (with one member more these arrays start without them: test_bad_input_mounted.py)
    ("mount zeros noise mnt", FAILED, ["zeros", "noise", "no member of an array"]),
    ("mount a noise mnt", FAILED, ["'first' has failed", "noise", "no member of an array"]),
    ("mount a swap mnt", FAILED, ["swap", "no member of an array", "swap space"]),
    ("mount mnt a b c", USAGE, ["MOUNTPOINT comes last", "raidx mount a b c mnt"]),
    ("create --level=5 x y z --size 4MiB", USAGE, ["--level is --layout", "--layout raid5"]),
    ("create --level 6 x y z w --size 4MiB", USAGE, ["--layout rdp"]),
    ("create --raid-level ten x y --size 4MiB", USAGE, ["see raidx layout list"]),
    ("create --layout raid5 x y z --size 4 MiB", USAGE, ["4 MiB is one word", "4MiB"]),
    ("resize 2GiB", USAGE, ["2GiB is no running array", "raidx resize ARRAY SIZE"]),
    ("mount folder mnt", FAILED, ["folder", "neither a file nor a block device"]),
    ("mount a /dev/null mnt", FAILED, ["/dev/null", "neither a file nor a block device"]),
    ("create --layout raid5 folder x y --size 4MiB", FAILED, ["folder", "neither a file"]),
    ("create --layout raid5 a x y --size 4MiB", FAILED, ["raidx member", "--overwrite-signature"]),
    ("create --layout raid5 swap x y --size 4MiB", FAILED, ["swap space", "--overwrite-signature"]),
    (
        "create --layout raid5 x partitioned y --size 4MiB",
        FAILED,
        ["partitioned", "MBR partition table", "--overwrite-signature"],
    ),
    # -- missing
    ("mount a nowhere mnt", FAILED, ["'first' has failed", "nowhere", "No such file"]),
    ("mount a mnt", FAILED, ["'first' has failed", "role 1", "role 2", "is missing"]),
    ("mount a b c nowhere", USAGE, ["nowhere", "does not exist", "mkdir"]),
    ("mount a b c full-mount-point", USAGE, ["full-mount-point", "not empty"]),
    ("mount a b c zeros", USAGE, ["zeros", "not a directory"]),
    ("create --layout raid5 nowhere x y", USAGE, ["nowhere does not exist", "--size"]),
    ("status a nowhere", FAILED, ["nowhere", "No such file"]),
    ("check a", FAILED, ["'first' has failed"]),
    # -- truncated
    ("mount cut-in-data b mnt", FAILED, ["cut-in-data", "3145728", "truncated"]),
    ("mount cut-in-head b mnt", FAILED, ["cut-in-head", "70000", "truncated"]),
    ("mount empty b mnt", FAILED, ["empty", "0 bytes", "truncated"]),
    ("status cut-in-data b", FAILED, ["cut-in-data", "truncated"]),
    ("check cut-in-data b", FAILED, ["cut-in-data", "truncated"]),
    # -- foreign: a member of another array
    ("mount a b f mnt", FAILED, ["2 arrays", "'first'", "'second'", "/f "]),
    ("mount a b c f mnt", FAILED, ["2 arrays", "'first'", "'second'"]),
    ("status a b c f", FAILED, ["2 arrays"]),
    ("check a b f", FAILED, ["2 arrays"]),
    # -- duplicate
    ("mount a b a mnt", USAGE, ["/a is given twice"]),
    ("mount a b other-name-of-b mnt", USAGE, ["other-name-of-b is given twice", "/b as well"]),
    ("mount a copy-of-a b c mnt", FAILED, ["copy-of-a", "the same member", "a copy"]),
    ("status a copy-of-a b", FAILED, ["copy-of-a", "the same member"]),
    ("create --layout raid5 x y x --size 4MiB", USAGE, ["/x is given twice"]),
    # -- too small, sizes
    ("create --layout raid5 zeros tiny x --size 4MiB", USAGE, ["65536 bytes is too small"]),
    ("create --layout raid5 x y z --size 64KiB", USAGE, ["65536 bytes is too small"]),
    ("create --layout raid5 x y z --size 4MiB --image-size 9MiB", USAGE, ["at most"]),
    ("create --layout raid5 x y z --size 0", USAGE, ["512"]),
    # -- not a multiple of a sector
    ("create --layout raid5 x y z --size 4000001", USAGE, ["multiple of 512"]),
    ("create --layout raid5 odd x y --size 4MiB", USAGE, ["odd", "4194404", "multiple of 512"]),
    (
        "create --layout raid5 x,size=1000 y z --size 4MiB",
        USAGE,
        ["x,size=1000", "multiple of 512"],
    ),
    # -- chunks
    ("create --layout raid5 --chunk 48KiB x y z --size 4MiB", USAGE, ["49152", "powers of two"]),
    ("create --layout raid5 --chunk 2KiB x y z --size 4MiB", USAGE, ["2048", "powers of two"]),
    ("create --layout raid5 --chunk 2MiB x y z --size 4MiB", USAGE, ["2097152", "powers of two"]),
    ("create --layout raid5 --chunk 0 x y z --size 4MiB", USAGE, ["powers of two"]),
    ("create --layout raid5 --chunk 64KB x y z --size 4MiB", USAGE, ["64000", "powers of two"]),
    # -- layouts and widths
    ("create --layout raid55 x y z --size 4MiB", USAGE, ["raid55", "did you mean raid5"]),
    ("create --layout evenod x y z --size 4MiB", USAGE, ["evenod", "did you mean evenodd"]),
    ("create --layout qqq x y z --size 4MiB", USAGE, ["unknown layout 'qqq'"]),
    ("layout show raid6 --disks 5", USAGE, ["raid6", "did you mean rdp or evenodd or upc"]),
    ("create --layout raid10 x y z q --size 4MiB", USAGE, ["raid10", "did you mean raidx-copy?"]),
    ("create --layout raid5 x y --size 4MiB", USAGE, ["2 members", "nearest: 3"]),
    ("create --layout xcode x y z w --size 4MiB", USAGE, ["xcode", "4 members", "nearest"]),
    ("create --layout raid5 --name a/b x y z --size 4MiB", USAGE, ["name"]),
    # -- models and specs
    ("create --layout raid5 x,model=hdx y z --size 4MiB", USAGE, ["hdx", "hdd"]),
    ("create --layout raid5 x,seek_ms=4 y z --size 4MiB", USAGE, ["needs model="]),
    # -- what a layout has, and folders
    ("create --layout raid0 --rotate x y --size 4MiB", USAGE, ["no parameter 'rotate'"]),
    ("create --layout raid5 --length 3 x y z --size 4MiB", USAGE, ["no parameter"]),
    ("create --layout raidx-copy x --size 4MiB", USAGE, ["does not exist for 1 members"]),
    ("create --layout raidx-copy --length 1 x y --size 4MiB", USAGE, ["bundles of 2"]),
    ("create --layout raidx-copy --length 3 x y --size 4MiB", USAGE, ["need 3 members"]),
    ("create --layout raid0 x no/such/folder/y --size 4MiB", USAGE, ["cannot be created"]),
    ("create --layout raid5 ram:4MiB y z --size 4MiB", USAGE, ["ram:4MiB", "memory"]),
]


@pytest.mark.parametrize(("line", "status", "words"), CASES, ids=[case[0] for case in CASES])
def test_one_line_its_status_and_nothing_written(
    disks: Path, line: str, status: int, words: Sequence[str]
) -> None:
    before = checksums(disks)
    done = raidx(disks, line)
    complaints = done.stderr.splitlines()
    assert len(complaints) == 1, done.stderr
    assert complaints[0].startswith("raidx: ")
    for word in words:
        assert word in complaints[0]
    assert done.status == status
    assert done.stdout == ""
    assert checksums(disks) == before
    assert mountpoint.find(disks / "mnt") is None


def test_a_dry_run_refuses_the_same_and_makes_no_file(disks: Path) -> None:
    before = checksums(disks)
    for line in ("a x y", "swap x y", "odd x y", "x y", "tiny x y"):
        done = raidx(disks, f"create --dry-run --layout raid5 --size 4MiB {line}")
        assert done.status in (FAILED, USAGE), line
        assert len(done.stderr.splitlines()) == 1
    assert raidx(disks, "create -n --layout raid5 --size 4MiB x y z").status == 0
    assert checksums(disks) == before


def test_scratched_superblocks_are_named_and_cost_one_member(disks: Path) -> None:
    """Both slots damaged: the member is left out, the array shows up degraded."""
    before = checksums(disks)
    done = raidx(disks, "status scratched b c")
    assert done.status == 0, done.stderr
    assert "degraded" in done.stdout
    assert "scratched" in done.stdout
    assert "damaged" in done.stdout or "not used" in done.stdout
    done = raidx(disks, "examine scratched")
    assert done.status == FAILED
    assert len(done.stderr.splitlines()) == 1
    assert checksums(disks) == before


def test_unequal_members_are_used_as_far_as_the_smallest_reaches(tmp_path: Path) -> None:
    for name, size in (("large", 9), ("small", 4), ("middle", 6)):
        (tmp_path / name).write_bytes(bytes(size * MIB))
    checked(tmp_path, "create --layout raid5 large small middle")
    before = checksums(tmp_path)
    text = checked(tmp_path, "status large small middle --json")
    size = json.loads(text)["size"]
    assert 6 * MIB < size < 8 * MIB, "two data chunks a stripe, of what 4 MiB leave"
    assert checksums(tmp_path) == before
    (tmp_path / "mnt").mkdir()
    # The larger ones may shrink to the smallest later, but not below.
    os.truncate(tmp_path / "large", 4 * MIB)
    checked(tmp_path, "status large small middle")
    os.truncate(tmp_path / "large", 4 * MIB - 4096)
    done = raidx(tmp_path, "mount large small mnt")
    assert done.status == FAILED
    assert "truncated" in done.stderr


def test_creating_leaves_no_file_behind_when_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "swap").write_bytes(bytes(4086) + b"SWAPSPACE2" + bytes(4 * MIB - 4096))
    done = raidx(tmp_path, "create --layout raid5 --size 4MiB x y swap")
    assert done.status == FAILED
    assert [path.name for path in tmp_path.iterdir()] == ["swap"]
    checked(tmp_path, "create --layout raid5 --size 4MiB x y swap --overwrite-signature")
    assert "carries a raidx member" in checked(tmp_path, "examine swap")


# -- read-only members ---------------------------------------------------------------------------


@pytest.fixture
def read_only_a(disks: Path) -> Iterator[str]:
    """Member a in a way that cannot be written: by its mode, or for root by a read-only loop."""
    if os.geteuid():
        os.chmod(disks / "a", 0o400)
        yield "a"
        os.chmod(disks / "a", 0o600)
        return
    losetup = shutil.which("losetup", path=PATH)
    if losetup is None:
        pytest.skip("losetup is missing, and modes do not bind root")
    tried = subprocess.run(
        [losetup, "--read-only", "--find", "--show", disks / "a"], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.skip(f"no loop devices here, and modes do not bind root: {tried.stderr.strip()}")
    device = tried.stdout.strip()
    yield device
    subprocess.run([losetup, "-d", device], check=True)


def test_a_read_only_member_is_refused_for_writing_and_good_for_looking(
    disks: Path, read_only_a: str
) -> None:
    before = checksums(disks)
    for line in (
        f"mount {read_only_a} b c mnt",
        f"create --layout raid5 --size 4MiB --overwrite-signature {read_only_a} x y",
    ):
        done = raidx(disks, line)
        assert done.status in (FAILED, USAGE), line
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("raidx: ")
        assert read_only_a in done.stderr
    assert "clean" in checked(disks, f"status {read_only_a} b c")
    assert "no problem found" in checked(disks, f"check {read_only_a} b c")
    assert checksums(disks) == before
