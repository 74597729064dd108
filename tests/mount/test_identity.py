"""One array, one process: under whatever names its disks are given, and copies of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raidx_fuse.daemon import control_client
from raidx_fuse.fuse import mountpoint
from tests.mount.real_array import run
from tests.support.command import FAILED, checked, checksums, raidx

pytestmark = pytest.mark.mount
Loop = Callable[[Path], str]
LINES = (
    "destroy {} --lose-data",
    "wipe {} --lose-data",
    "rename {} other",
    "check {}",
    "create --layout raid5 --overwrite-signature {}",
)


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Return a function that puts a loop device on a file; all are taken off at the end."""
    devices: list[str] = []

    def attach(file: Path) -> str:
        devices.append(run("losetup", "--find", "--show", file).stdout.strip())
        return devices[-1]

    try:
        yield attach
    finally:
        for device in devices:
            run("losetup", "-d", device, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with two mount points, unmounted at the end."""
    for name in ("m", "m2"):
        (tmp_path / name).mkdir()
    try:
        yield tmp_path
    finally:
        for name in ("m", "m2"):
            if mountpoint.find(tmp_path / name) is not None:
                raidx(tmp_path, f"umount {name}")


def write(image: Path, content: bytes) -> None:
    with image.open("r+b") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def snapshot(folder: Path, pid: int) -> None:
    """Copy the members a b c as they are at one moment: their daemon *pid* stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        for name in "abc":
            shutil.copy(folder / name, folder / f"copy-{name}")
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.loop
@pytest.mark.parametrize("devices_first", [True, False])
def test_a_disk_under_two_names_is_in_use_under_both(
    folder: Path, loop: Loop, devices_first: bool
) -> None:
    checked(folder, "create --layout raid5 --size 16M --name v a b c")
    files, devices = "a b c", " ".join(loop(folder / name) for name in "abc")
    first, second = (devices, files) if devices_first else (files, devices)
    checked(folder, f"mount {first} m")
    write(folder / "m" / "v", b"acknowledged" * 1000)
    for line in (f"mount {second} m2", "mount --name v --scan . m2", "mount --read-only a b c m2"):
        done = raidx(folder, line)
        assert done.status == FAILED, line
        assert "in use" in done.stderr
    for line in LINES:
        done = raidx(folder, line.format(second))
        assert done.status == FAILED, done
        assert "in use" in done.stderr
    assert "unclean" not in checked(folder, f"status {second}"), "of what runs, or in use"
    mixed = f"{second.split()[0]} x y"
    done = raidx(folder, f"create --layout raid5 --size 16M --overwrite-signature {mixed}")
    assert done.status == FAILED
    checked(folder, "umount m")
    checked(folder, f"mount {second} m")
    assert (folder / "m" / "v").read_bytes()[:12000] == b"acknowledged" * 1000
    checked(folder, "umount m")
    checked(folder, f"check {first}")


@pytest.mark.loop
def test_what_a_used_loop_device_lies_on_is_not_overwritten(folder: Path, loop: Loop) -> None:
    disk, where = folder / "disk", folder / "fs"
    disk.write_bytes(bytes(16 << 20))
    device = loop(disk)
    run("mkfs.ext4", "-q", device)
    where.mkdir()
    checked(folder, "create --layout raid1 --size 16M a b")
    run("mount", device, where)
    try:
        before = checksums(folder)
        (folder / "other-name").symlink_to(disk)
        for line in (
            "create --layout raid1 --size 16M --overwrite-signature disk x",
            "create --layout raid1 --size 16M --overwrite-signature other-name x",
            "create -n --layout raid1 --size 16M --overwrite-signature disk x",
        ):
            done = raidx(folder, line)
            assert done.status == FAILED
            assert f"{device} is on it and in use" in done.stderr
        checked(folder, "mount a b m")
        for line in (
            "replace-disk m 0 disk",
            "add-disk m disk --as spare",
            "replace-disk m 0 disk -n",
        ):
            done = raidx(folder, f"{line} --overwrite-signature")
            assert done.status == FAILED, line
            assert f"{device} is on it and in use" in done.stderr
        checked(folder, "umount m")
        assert checksums(folder)["disk"] == before["disk"]
    finally:
        run("umount", where)
    # A device that nobody uses keeps nobody from its file.
    checked(folder, "create --layout raid1 --size 16M --overwrite-signature disk x")


def test_a_copy_of_a_running_array_is_refused_with_the_way_out(folder: Path) -> None:
    checked(folder, "create --layout raid5 --size 16M --name v a b c")
    checked(folder, "mount a b c m")
    write(folder / "m" / "v", b"original" * 1000)
    with control_client.Connection(folder / "m", timeout_s=10) as connection:
        pid = connection.daemon_pid
    snapshot(folder, pid)
    copies = "copy-a copy-b copy-c"
    before = checksums(folder)
    for line in (f"mount {copies} m2", f"serve {copies} --nbd unix:s", f"rename {copies} w"):
        done = raidx(folder, line)
        assert done.status == FAILED, line
        assert "'v' is in use on this machine, by process" in done.stderr
        assert f"at {folder}/m" in done.stderr or line.startswith("rename")
        assert "raidx rename --new-uuid MEMBER..." in done.stderr
    after = checksums(folder)
    assert [after[f"copy-{name}"] for name in "abc"] == [before[f"copy-{name}"] for name in "abc"]
    document = json.loads(checked(folder, f"rename --new-uuid {copies} --json"))
    assert document["uuid"] != document["old_uuid"]
    checked(folder, f"mount {copies} m2")
    assert (folder / "m2" / "v").read_bytes() == (folder / "m" / "v").read_bytes()
    write(folder / "m2" / "v", b"the copy")
    assert (folder / "m" / "v").read_bytes()[:8] == b"original"
    checked(folder, "umount m2")
    snapshot(folder, pid)
    # The lock of a process ends with it, however it ends.
    os.kill(pid, signal.SIGKILL)
    assert control_client.wait_for_exit(pid, 30)
    run(*mountpoint.unmount_argv(str(folder / "m")))
    checked(folder, f"mount {copies} m2")
