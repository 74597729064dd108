"""Members in use, split mirrors and full hosts, on real mounts."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.fuse import mountpoint
from tests.support.command import FAILED, PATH, USAGE, checked, checksums, raidx

pytestmark = pytest.mark.mount


@contextlib.contextmanager
def mounted(folder: Path, members: str) -> Iterator[Path]:
    """Mount *members* on the folder's mnt; leave nothing mounted."""
    (folder / "mnt").mkdir(exist_ok=True)
    try:
        checked(folder, f"mount {members} mnt")
        yield folder / "mnt" / "disk"
    finally:
        raidx(folder, "umount mnt")
        assert mountpoint.find(folder / "mnt") is None


def test_what_cannot_be_used_is_left_out_and_named(tmp_path: Path) -> None:
    """One disk that is gone must not keep an array from starting that can do without it."""
    checked(tmp_path, "create --layout raid5 --size 4MiB a b c")
    whole = (tmp_path / "c").read_bytes()
    (tmp_path / "c").rename(tmp_path / "old-c")
    (tmp_path / "empty").touch()
    (tmp_path / "zeros").write_bytes(bytes(4 << 20))
    (tmp_path / "cut").write_bytes(whole[: 3 << 20])
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "folder").mkdir()
    words = {
        "c": "No such file",
        "empty": "0 bytes are too few",
        "zeros": "no superblock",
        "cut": "truncated",
        "fifo": "neither a file nor a block device",
        "dangling": "No such file",
        "ring": "symbolic link",
        "folder": "neither a file nor",
        "a/b": "Not a directory",
        "nbd+unix:///x?socket=none": "there is no socket",
    }
    (tmp_path / "mnt").mkdir()
    for name, word in words.items():
        done = raidx(tmp_path, f"mount a b {name} mnt")
        try:
            assert done.status == 0, done.stderr
            named = [line for line in done.stderr.splitlines() if word in line]
            assert len(named) == 1, done.stderr
            assert "is degraded" in done.stderr
            assert word in checked(tmp_path, "status mnt")
            assert raidx(tmp_path, f"mount --if-missing a b {name} mnt").status == 0
            if name == "zeros":  # nobody holds what is not a member
                checked(tmp_path, "create --layout raid1 --size 4MiB zeros other")
        finally:
            checked(tmp_path, "umount mnt")
    (tmp_path / "old-c").rename(tmp_path / "c")
    with mounted(tmp_path, "a b c"):
        assert "clean" in checked(tmp_path, "wait mnt --state clean --timeout 60 --json")


def test_a_folder_of_a_scan_that_is_gone_is_named_and_several_names_are_one_mount(
    tmp_path: Path,
) -> None:
    checked(tmp_path, "create --layout raid5 --size 4MiB --name first a b c")
    checked(tmp_path, "create --layout raid1 --size 4MiB --name second x y")
    (tmp_path / "mnt").mkdir()
    done = raidx(tmp_path, "mount --name first --name second --scan . --scan gone mnt")
    try:
        assert done.status == 0, done.stderr
        assert "gone: it is no folder" in done.stderr
        assert {path.name for path in (tmp_path / "mnt").iterdir()} == {"first", "second"}
    finally:
        raidx(tmp_path, "umount mnt")
    assert raidx(tmp_path, "mount --name first --scan gone mnt").status == USAGE
    assert raidx(tmp_path, "mount --name first --name third --scan . mnt").status == USAGE


MBR = [(446, b"\x80\0\0\0\x83" + bytes(59)), (510, b"\x55\xaa")]
GPT = [*MBR, (512, b"EFI PART")]
PVCREATE = [(0, bytes(2048)), (512, b"LABELONE")]


@pytest.mark.parametrize("made", [MBR, GPT, PVCREATE, "mkswap"], ids=["mbr", "gpt", "lvm", "swap"])
def test_a_disk_that_somebody_else_uses_now_is_left_alone_until_it_is_accepted(
    tmp_path: Path, made: list[tuple[int, bytes]] | str
) -> None:
    checked(tmp_path, "create --layout raid5 --size 4MiB --name disk a b c d")
    with mounted(tmp_path, "a b c d") as image:
        image.write_bytes(b"content" * 1000)
    if isinstance(made, str):
        subprocess.run([made, tmp_path / "b"], check=True, capture_output=True, env={"PATH": PATH})
    else:
        with (tmp_path / "b").open("r+b") as file:
            for offset, piece in made:
                os.pwrite(file.fileno(), piece, offset)
    before = (tmp_path / "b").read_bytes()
    for line in ("--name disk --scan .", "a b c d"):
        done = raidx(tmp_path, f"mount {line} mnt")
        try:
            assert done.status == 0, done.stderr
            assert "/b carries" in done.stderr
            assert "--accept-member" in done.stderr
            checked(tmp_path, "create --layout raid1 --size 4MiB x y --if-missing")
            refused = raidx(tmp_path, "replace-disk mnt 1 b")
            assert "carries" in refused.stderr, refused
            with (tmp_path / "mnt" / "disk").open("r+b") as file:
                file.write(b"CONTENT")
        finally:
            checked(tmp_path, "umount mnt")
    assert (tmp_path / "b").read_bytes() == before
    assert raidx(tmp_path, "mount a b c d mnt --accept-member x").status == USAGE
    assert raidx(tmp_path, "mount a b c d mnt --accept-member b --read-only").status == USAGE
    with mounted(tmp_path, "a b c d --accept-member b"):
        checked(tmp_path, "wait mnt --state clean --timeout 60")
        assert "scrub" in checked(tmp_path, "status mnt")
    with mounted(tmp_path, "a b c") as image, image.open("rb") as file:
        assert file.read(7000) == b"CONTENT" + b"content" * 999
    with mounted(tmp_path, "a b c d"):
        checked(tmp_path, "wait mnt --state clean --timeout 60")


@pytest.mark.parametrize("front", ["noise", "zeros", "GPT"])
def test_a_front_that_is_lost_is_named_and_written_again_when_the_user_says_so(
    tmp_path: Path, front: str
) -> None:
    """From the superblocks at the end; a signature in front outweighs these."""
    checked(tmp_path, "create --layout raid5 --size 64MiB --name disk a b c")
    with mounted(tmp_path, "a b c") as image:
        image.write_bytes(b"content" * 1000)
    with (tmp_path / "b").open("r+b") as file:
        file.write(bytes(128 << 10) if front != "noise" else os.urandom(128 << 10))
        if front == "GPT":
            for offset, piece in GPT:
                os.pwrite(file.fileno(), piece, offset)
    lost = "carries" if front == "GPT" else "its front has no superblock"
    for line in ("check a b c", "mount a b c mnt", "mount --name disk --scan . mnt"):
        done = raidx(tmp_path, line)
        assert "/b" in done.stdout + done.stderr, line
        assert lost in done.stdout + done.stderr, line
        if line.startswith("mount"):
            assert done.status == 0, done.stderr
            state = "degraded" if front == "GPT" else "clean"
            assert state in checked(tmp_path, "wait mnt --state degraded --state clean")
            with (tmp_path / "mnt" / "disk").open("rb") as file:
                assert file.read(7000) == b"content" * 1000
            assert raidx(tmp_path, "check --repair-superblocks b --yes").status == FAILED
            checked(tmp_path, "umount mnt")
    assert raidx(tmp_path, "examine b").status == FAILED
    assert lost in raidx(tmp_path, "scan .").stderr
    refused = raidx(tmp_path, "check --repair-superblocks a b c")
    assert refused.status == USAGE, "nobody can be asked"
    before = (tmp_path / "b").read_bytes()
    told = checked(tmp_path, "check --repair-superblocks a b c --dry-run")
    assert "b: slot 0, slot 1 would be written again" in told
    assert (tmp_path / "b").read_bytes() == before
    checked(tmp_path, "check --repair-superblocks a b c --yes")
    checked(tmp_path, "examine b")
    assert "no superblock is lost" in checked(tmp_path, "check --repair-superblocks b --yes")
    with mounted(tmp_path, "a b c") as image, image.open("rb") as file:
        checked(tmp_path, "wait mnt --state clean --timeout 60")
        assert file.read(7000) == b"content" * 1000
    checked(tmp_path, "wipe b --lose-data")
    assert raidx(tmp_path, "check --repair-superblocks b --yes").status == FAILED


def test_two_halves_of_a_split_array(tmp_path: Path) -> None:
    """Halves of a mirror: one that was only absent is caught up, two that ran are refused."""
    checked(tmp_path, "create --layout raid1 --size 4MiB a b")
    with mounted(tmp_path, "a b") as image:
        image.write_bytes(b"both")
    shutil.copy(tmp_path / "b", tmp_path / "b-before")
    with mounted(tmp_path, "a") as image, image.open("r+b") as file:
        file.write(b"by a")
        os.fsync(file.fileno())
    shutil.copy(tmp_path / "a", tmp_path / "a-alone")
    before = checksums(tmp_path)
    status = checked(tmp_path, "status a b")
    assert "degraded" in status
    assert "not used" in status
    assert "behind" in status, "an older event counter is said to be one"
    assert checksums(tmp_path) == before
    with mounted(tmp_path, "a b") as image:  # b must not rule, and gets what it lacks
        assert image.read_bytes()[:4] == b"by a"
        checked(tmp_path, "wait mnt --state clean --timeout 60")
    with mounted(tmp_path, "b --read-only") as image:
        assert image.read_bytes()[:4] == b"by a"
    for name in ("a", "b"):  # as they were before they met
        shutil.copy(tmp_path / f"{name}-{'alone' if name == 'a' else 'before'}", tmp_path / name)
    with mounted(tmp_path, "b") as image, image.open("r+b") as file:
        file.write(b"by b")
        os.fsync(file.fileno())
    before = checksums(tmp_path)
    for line in ("mount a b mnt", "mount b a mnt", "status a b", "check a b"):
        done = raidx(tmp_path, line)
        assert done.status == FAILED, line
        (complaint,) = done.stderr.splitlines()
        assert "split" in complaint
        assert "a" in complaint
        assert "start with one side alone" in complaint
    assert checksums(tmp_path) == before
    with mounted(tmp_path, "a"):
        refused = raidx(tmp_path, "replace-disk mnt 1 b")
        assert refused.status == FAILED
        assert "--overwrite-signature" in refused.stderr
    assert checksums(tmp_path)["b"] == before["b"], "what b alone has is not lost without a word"


@pytest.fixture
def small_host(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB on which sparse members promise more than there is."""
    if os.geteuid():
        pytest.skip("a small tmpfs needs root")
    host = tmp_path / "host"
    host.mkdir()
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", host], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {tried.stderr.strip()}")
    yield host
    subprocess.run(["umount", host], check=True)


@pytest.mark.parametrize("layout", ["raid0", "raid5"])
def test_a_full_host_under_sparse_members(small_host: Path, layout: str) -> None:
    """Writes get ENOSPC or go on without a member; what was acknowledged is there, to the byte."""
    checked(small_host, f"create --layout {layout} --size 32MiB a b c")
    step = 256 << 10
    done = 0
    error = 0
    with mounted(small_host, "a b c") as image:
        with image.open("r+b", buffering=0) as file:
            for number in range(256):
                try:
                    file.write(bytes([number]) * step)
                    os.fsync(file.fileno())
                except OSError as caught:
                    error = caught.errno or 0
                    break
                done += 1
        assert error in (errno.ENOSPC, errno.EIO), "the host was never full?"
        assert done >= 24
        status = raidx(small_host, "status mnt")
        assert status.status == 0, "the mount has survived"
        with image.open("rb", buffering=0) as file:
            for number in range(done):
                assert file.read(step) == bytes([number]) * step
    os.sync()
    with mounted(small_host, "a b c") as image, image.open("rb", buffering=0) as file:
        for number in range(done):
            assert file.read(step) == bytes([number]) * step, f"step {number} after a remount"
    assert "no problem found" in checked(small_host, "check a b c"), "a full host breaks no disk"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("resize 2MiB mnt", ["ARRAY comes first", "raidx resize mnt 2MiB"]),
        ("fail b mnt", ["ARRAY comes first", "raidx fail mnt b"]),
        ("job list mnt", ["ARRAY comes first", "raidx job mnt list"]),
        ("volume create v mnt 1MiB", ["MOUNT comes first", "raidx volume create mnt v 1MiB"]),
        ("set mnt speed_max 5MiB", ["speed_max 5MiB is one word", "raidx set mnt speed_max=5MiB"]),
        ("set mnt scrub_each_s=7days", ["'7days' is not a time", "7d"]),
        ("scrub --repair --check mnt", ["--check only reports"]),
        ("fail mnt 1 MB", ["1 MB is one word", "1MB"]),
        ("resize mnt 2GiB", ["is the whole array", "add a disk"]),
    ],
)
def test_a_slip_is_answered_with_what_to_type(shared: Path, line: str, words: list[str]) -> None:
    before = checked(shared, "status mnt --json")
    done = raidx(shared, line)
    assert done.status == USAGE, done
    (said,) = done.stderr.splitlines()
    assert all(word in said for word in words), said
    assert checked(shared, "status mnt --json") == before


def test_a_disk_may_have_the_name_of_a_unit(tmp_path: Path) -> None:
    checked(tmp_path, "create --layout raid5 --size 4MiB a b c")
    with mounted(tmp_path, "a b c"):
        checked(tmp_path, "fail-disk mnt 2")
        checked(tmp_path, "replace-disk mnt 2 e --create --wait")
        assert "clean" in checked(tmp_path, "status mnt")
        text = checked(tmp_path, "scan .")
        assert "3 of 3" in text, "a disk that was replaced is no member"
        line = f"{tmp_path}/c: was role 2 of disk, and was replaced by {tmp_path}/e"
        assert line in text.splitlines()
        (array,) = json.loads(checked(tmp_path, "scan . --json"))["arrays"]
        names = [os.path.basename(path) for path in array["members"]]
        assert (names, array["wanted"], array["awaited"]) == (["a", "b", "e"], 3, 0)
    with mounted(tmp_path, "--name disk --scan ."):  # the disk that was replaced does no harm
        assert "clean" in checked(tmp_path, "status mnt")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("shared")
    checked(folder, "create --layout raid5 --size 4MiB a b c")
    with mounted(folder, "a b c"):
        yield folder


def test_who_uses_a_member_is_named(shared: Path) -> None:
    done = raidx(shared, "mount a b c other")
    assert done.status == USAGE  # no such folder
    (shared / "other").mkdir()
    done = raidx(shared, "mount a b c other")
    assert done.status == FAILED
    assert re.search(
        rf"/a: in use by process \d+ \(.*raidx.*\): array disk at {shared}/mnt$",
        done.stderr.rstrip(),
    )
