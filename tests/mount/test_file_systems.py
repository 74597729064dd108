"""ext4, xfs and btrfs on a loop device over the image: real files in, fsck, remount, checksums.

Each file system lives through two stories, with or without direct I/O of the loop device: one
member failed half-way through the copy; one member replaced under it.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray, compare, need, run

pytestmark = [pytest.mark.mount, pytest.mark.loop]

SYNC_EACH_FILES = 75  # of some 1500, from the middle of a copy on
MEANWHILE_S = 60
AFTERWARDS_BYTES = 1 << 20  # what must still be written after something happened half-way


@dataclass(frozen=True, slots=True)
class FileSystem:
    """How to make one and have it checked; a checker exits with 0 if all is well."""

    name: str
    make: tuple[str, ...]
    check: tuple[str, ...]


EXT4 = FileSystem("ext4", ("mkfs.ext4", "-q"), ("e2fsck", "-fn"))
XFS = FileSystem("xfs", ("mkfs.xfs", "-q"), ("xfs_repair", "-n"))
# Without --force it first looks at all loop devices, and fails if one of another test goes then.
BTRFS = FileSystem("btrfs", ("mkfs.btrfs", "-q"), ("btrfs", "check", "--force"))
ALTERNATING = pytest.mark.parametrize(
    ("kind", "direct_io"),
    [
        pytest.param(EXT4, True, id="ext4-direct"),
        pytest.param(XFS, False, id="xfs-cached"),
        pytest.param(BTRFS, True, id="btrfs-direct"),
    ],
)
OTHERWISE = pytest.mark.parametrize(
    ("kind", "direct_io"),
    [
        pytest.param(EXT4, False, id="ext4-cached"),
        pytest.param(XFS, True, id="xfs-direct"),
        pytest.param(BTRFS, False, id="btrfs-cached"),
    ],
)


class Story:
    """One file system on one array, from mkfs to the comparison at the end."""

    def __init__(self, array: RealArray, kind: FileSystem):
        self.array = array
        self.kind = kind
        self.device = ""
        self.where = Path()

    def begin(self, layout: str, *, direct_io: bool) -> None:
        """Create, mount, mkfs, mount the file system."""
        self.array.create(layout, 4, "128MiB").mount()
        self.device = self.array.loop(direct_io=direct_io)
        run(*self.kind.make, self.device)
        self.where = self.array.mount_loop(self.device)

    def copy(self, source: Path, to: str, meanwhile: Callable[[], object] | None = None) -> None:
        """Copy the folder *source* in as *to* and sync; half-way through begin *meanwhile*.

        The copy goes on while *meanwhile* has its way, syncing again and again so that it reaches
        the array, and keeps its last quarter for afterwards.
        """
        files = sum(path.is_file() for path in source.rglob("*"))
        half_way, happened = threading.Event(), threading.Event()
        problems: list[BaseException] = []
        copied = 0

        def copy_file(path: str, target: str) -> None:
            nonlocal copied
            shutil.copyfile(path, target)
            copied += 1
            if meanwhile is None or copied < files // 2:
                return
            if copied % SYNC_EACH_FILES == 0:
                run("sync", "-f", self.where)
                half_way.set()
            if copied == files * 3 // 4:
                assert happened.wait(MEANWHILE_S)

        def copy() -> None:
            try:
                shutil.copytree(source, self.where / to, symlinks=True, copy_function=copy_file)
                run("sync", "-f", self.where)
            except BaseException as error:
                problems.append(error)
            finally:
                half_way.set()

        copier = threading.Thread(target=copy)
        copier.start()
        try:
            if meanwhile is not None:
                half_way.wait()
                assert copier.is_alive(), problems
                meanwhile()
                then = self.written_bytes()
        finally:
            happened.set()
            copier.join()
        assert not problems, problems
        if meanwhile is not None:
            assert self.written_bytes() > then + AFTERWARDS_BYTES

    def written_bytes(self) -> int:
        return int(self.array.counters()["write_bytes"])

    def unmount_and_check(self) -> None:
        run("umount", self.where)
        checked = run(*self.kind.check, self.device, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr

    def remount(self, *, direct_io: bool) -> None:
        """Take everything off, down to the members, and bring it back."""
        self.array.detach(self.device)
        self.array.unmount()
        self.array.mount()
        self.device = self.array.loop(direct_io=direct_io)
        self.where = self.array.mount_loop(self.device)

    def end(self) -> None:
        self.unmount_and_check()
        self.array.detach(self.device)


@pytest.fixture
def story(array: RealArray, kind: FileSystem) -> Story:
    need(kind.make[0], kind.check[0])
    return Story(array, kind)


@ALTERNATING
def test_member_fails_half_way_through_the_copy(
    story: Story, direct_io: bool, source_tree: Path
) -> None:
    story.begin("raid5" if direct_io else "raid4", direct_io=direct_io)
    story.copy(source_tree, "first", meanwhile=lambda: story.array.fail(2))
    assert story.array.status()["state"] == "degraded"
    story.unmount_and_check()
    story.remount(direct_io=direct_io)
    compare(source_tree, story.where / "first")
    story.end()
    story.array.replace(2, "--wait")
    assert story.array.status()["state"] == "clean"
    story.array.scrub()
    story.array.unmount()


@OTHERWISE
def test_member_replaced_under_load(story: Story, direct_io: bool, source_tree: Path) -> None:
    array = story.array
    story.begin("raid4" if direct_io else "raid5", direct_io=direct_io)
    array.raidx("set", "ARRAY", "speed_max=256KiB")  # so that the copy lasts
    story.copy(source_tree, "first")
    story.copy(source_tree, "second", meanwhile=lambda: array.replace(1))
    (copy,) = array.status()["jobs"]
    assert 0 < copy["done"] < copy["total"]
    assert array.status()["state"] == "clean", "its member stays in use until then"
    array.raidx("set", "ARRAY", "speed_max=0")
    array.wait_jobs()
    (copy,) = [job for job in array.jobs() if job["kind"] == "replace"]
    assert (copy["state"], copy["done"]) == ("done", copy["total"]), copy
    assert array.status()["state"] == "clean"
    story.unmount_and_check()
    story.remount(direct_io=direct_io)
    compare(source_tree, story.where / "first")
    compare(source_tree, story.where / "second")
    story.end()
    array.scrub()
    array.unmount()
