"""A member on the array's own image is refused in one line, however it is reached.

The daemon would have to answer itself. Each command has a hard time limit; the fixture kills a
daemon that hangs and takes its mount down lazily.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray, run

pytestmark = [pytest.mark.mount]

ANSWER_S = 20
WAYS_IN = (
    ("replace-disk", "ARRAY", "0"),
    ("replace-disk", "ARRAY", "0", "--dry-run"),
    ("replace-disk", "ARRAY", "0", "--create"),
    ("add-disk", "ARRAY", "--as", "spare"),
    ("add-disk", "ARRAY", "--method", "restripe"),
    ("add-disk", "ARRAY", "--method", "restripe", "--dry-run"),
)


@pytest.fixture
def raid5(array: RealArray) -> RealArray:
    array.create("raid5", 4, "32MiB").mount()
    with array.image.open("r+b") as image:
        image.write(bytes(range(256)) * 4096)
    return array


def refuse(array: RealArray, path: str | Path, words: tuple[str, ...] = WAYS_IN[0]) -> str:
    """Give *path* to a command; return the one line that refuses it. The disk answers then."""
    begin_s = time.monotonic()
    done = array.raidx(*words, path, status=2, timeout_s=ANSWER_S)
    assert time.monotonic() - begin_s < ANSWER_S / 2
    (line,) = done.stderr.splitlines()
    assert "is on this array's own image" in line
    assert done.stdout == ""
    assert array.status()["state"] == "clean"
    with array.image.open("rb", buffering=0) as image:
        assert image.read(512) == bytes(range(256)) * 2
    return line


def test_the_image_is_no_member_of_itself(raid5: RealArray) -> None:
    for words in WAYS_IN:
        refuse(raid5, raid5.image, words)
        refuse(raid5, raid5.mnt / "new", words)


def test_by_a_symbolic_link_and_a_file_that_is_yet_to_be_made(raid5: RealArray) -> None:
    link, folder = raid5.folder / "link", raid5.folder / "link-to-mount"
    link.symlink_to(raid5.image)
    folder.symlink_to(raid5.mnt)
    refuse(raid5, link)
    refuse(raid5, folder / raid5.image.name)
    refuse(raid5, folder / "new", ("replace-disk", "ARRAY", "0", "--create"))


def _need_root() -> None:
    if os.geteuid():
        pytest.skip("mounting and loop devices need root")


def test_by_a_bind_mount(raid5: RealArray) -> None:
    _need_root()
    other, folder = raid5.folder / "other", raid5.folder / "folder"
    other.touch()
    folder.mkdir()
    try:
        run("mount", "--bind", raid5.image, other)
        run("mount", "--bind", raid5.mnt, folder)
        refuse(raid5, other)
        refuse(raid5, folder / raid5.image.name)
    finally:
        run("umount", "-l", other, check=False)
        run("umount", "-l", folder, check=False)


@pytest.fixture
def loop(raid5: RealArray) -> Iterator[str]:
    _need_root()
    device = raid5.loop(direct_io=False)
    yield device
    raid5.detach(device)


@pytest.mark.loop
def test_by_a_loop_device(raid5: RealArray, loop: str) -> None:
    for words in WAYS_IN:
        assert f"(through {loop})" in refuse(raid5, loop, words)


@pytest.mark.loop
def test_by_a_file_system_on_a_loop_device_and_loop_devices_on_that(
    raid5: RealArray, loop: str
) -> None:
    run("mkfs.ext4", "-q", loop)
    where = raid5.mount_loop(loop)
    second = ""
    try:
        member = where / "member.img"
        with member.open("wb") as file:
            file.truncate(32 << 20)
        assert f"(through {loop})" in refuse_file(raid5, member)
        assert f"(through {loop})" in refuse_file(
            raid5, where / "new", ("replace-disk", "ARRAY", "0", "--create")
        )
        second = run("losetup", "--find", "--show", member).stdout.strip()
        assert f"(through {second}, {loop})" in refuse_file(raid5, second)
    finally:
        if second:
            run("losetup", "-d", second)
        run("umount", where)


def refuse_file(array: RealArray, path: str | Path, words: tuple[str, ...] = WAYS_IN[0]) -> str:
    """As `refuse`, of an image that holds a file system by now."""
    done = array.raidx(*words, path, status=2, timeout_s=ANSWER_S)
    (line,) = done.stderr.splitlines()
    assert "is on this array's own image" in line
    assert array.status()["state"] == "clean"
    return line


def test_by_another_array_whose_member_lies_on_this_one(
    raid5: RealArray, make_array: Callable[..., RealArray]
) -> None:
    _need_root()
    upper = make_array()
    upper.members = [raid5.image, upper.folder / "more.img"]
    words = ["--layout", "raid1", "--size", "32MiB", "--name", upper.image.name]
    upper.raidx("create", *words, "--overwrite-signature", *upper.members)
    upper.mount()
    try:
        line = refuse_file(raid5, upper.image)
        assert f"(through {upper.mnt})" in line
        upper.raidx("status", upper.mnt, "--check")
    finally:
        upper.unmount()


def test_a_file_beside_the_mount_is_still_taken(raid5: RealArray) -> None:
    raid5.replace(0, "--wait")
    assert raid5.status()["state"] == "clean"
