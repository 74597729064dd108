"""The lifecycle of mounts: commands, signals, kernel, refusals, crashes, degraded and failed."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from raidx_fuse.fuse import mountpoint as mountpoints
from tests.mount.real_array import RealArray, need, run
from tests.support.command import RAIDX

pytestmark = [pytest.mark.mount]

CONTENT = os.urandom(3 << 20)


def store(array: RealArray, content: bytes = CONTENT, offset: int = 0) -> None:
    """Write *content* to the image, durably."""
    with array.image.open("r+b") as image:
        image.seek(offset)
        image.write(content)
        image.flush()
        os.fsync(image.fileno())


def load(array: RealArray, length: int = len(CONTENT), offset: int = 0) -> bytes:
    with array.image.open("rb") as image:
        image.seek(offset)
        return image.read(length)


def digests(array: RealArray) -> list[str]:
    return [hashlib.sha256(member.read_bytes()).hexdigest() for member in array.members]


@pytest.fixture
def raid5(array: RealArray) -> RealArray:
    array.create("raid5", 4, "16MiB")
    array.mount()
    store(array)
    return array


def remounts_clean(array: RealArray) -> None:
    """Assert that the array was closed cleanly and holds CONTENT."""
    assert not array.is_mounted()
    assert array.ask("status", *array.members)["clean"]
    array.mount()
    assert array.jobs() == []  # nothing to resync
    assert load(array) == CONTENT
    array.scrub()


# ---- ends ----


@pytest.mark.parametrize("how", ["umount", "fusermount3", "SIGTERM", "SIGINT"])
def test_a_mount_ends_cleanly_and_leaves_nothing_behind(raid5: RealArray, how: str) -> None:
    pid, log = raid5.daemon_pid(), Path(raid5.status()["log"])
    if how == "umount":
        raid5.unmount()
    elif how == "fusermount3":
        need(how)
        run(how, "-u", raid5.mnt)
    else:
        os.kill(pid, signal.Signals[how])
    raid5.await_end(pid)
    assert not log.with_suffix(".sock").exists()
    assert "Traceback" not in log.read_text()
    assert mountpoints.loop_devices(str(raid5.mnt)) == []
    remounts_clean(raid5)


def test_foreground_mount_tells_systemd_and_ends_with_control_c(
    raid5: RealArray, tmp_path: Path
) -> None:
    raid5.unmount()
    words = [RAIDX, "mount", *map(str, raid5.members), str(raid5.mnt), "--foreground"]
    environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(environment["NOTIFY_SOCKET"])
        manager.settimeout(60)
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        assert "raid5" in process.stdout.readline()
        assert manager.recv(100) == b"READY=1"
    assert load(raid5) == CONTENT
    process.send_signal(signal.SIGINT)
    _, logged = process.communicate(timeout=30)
    assert process.returncode == 0, logged
    assert "Traceback" not in logged
    remounts_clean(raid5)


def test_a_line_of_fstab_mounts_by_name(raid5: RealArray) -> None:
    raid5.unmount()
    helper = str(Path(RAIDX).with_name("mount.raidx"))
    folder = raid5.members[0].parent
    name = raid5.ask("status", *map(str, raid5.members))["name"]
    options = f"rw,nofail,x-systemd.requires=x.service,allow_other,mode=640,scan={folder}"
    subprocess.run([helper, name, str(raid5.mnt), "-o", options], check=True, timeout=60)
    assert load(raid5) == CONTENT
    assert raid5.image.stat().st_mode & 0o777 == 0o640
    raid5.unmount()
    failed = subprocess.run([helper, "none", str(raid5.mnt), "-o", f"scan={folder}"], check=False)
    assert failed.returncode == 32  # as mount(8) expects it
    remounts_clean(raid5)


@pytest.mark.loop
def test_umount_refuses_while_a_loop_device_is_on_the_image(raid5: RealArray) -> None:
    device = raid5.loop(direct_io=True)
    line = raid5.refused("umount", "ARRAY")
    assert device in line
    assert f"losetup -d {device}" in line
    assert run("fusermount3", "-u", raid5.mnt, check=False).returncode != 0
    assert load(raid5) == CONTENT
    raid5.detach(device)
    raid5.unmount()
    remounts_clean(raid5)


# ---- refusals ----


def test_second_mount_is_refused(raid5: RealArray, make_array: Callable[..., RealArray]) -> None:
    assert "already mounted" in raid5.refused("mount", *raid5.members, raid5.mnt)
    elsewhere = make_array()
    line = raid5.refused("mount", *raid5.members, elsewhere.mnt)
    assert str(raid5.members[0]) in line
    assert not elsewhere.is_mounted()
    assert load(raid5) == CONTENT


# ---- crashes ----


def test_killed_daemon_loses_nothing_that_was_synced(raid5: RealArray) -> None:
    far = 8 << 20
    killed = threading.Event()

    def scribble() -> None:
        """Write small pieces behind CONTENT until the disk goes away."""
        with raid5.image.open("r+b", buffering=0) as image:
            for number in range(1 << 20):
                if killed.is_set():
                    return
                try:
                    os.pwrite(image.fileno(), b"x" * 5000, far + number * 7919 % (16 << 20))
                except OSError:
                    return

    def scribbled() -> int:
        return int(raid5.counters()["writes"])

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    try:
        before = scribbled()
        while scribbled() < before + 100:
            pass
        raid5.send(signal.SIGKILL)
    finally:
        killed.set()
        scribbler.join()
    assert "daemon that died" in raid5.refused("mount", *raid5.members, raid5.mnt)
    told = raid5.raidx("status", status=1)
    assert f"raidx: {raid5.mnt}: the daemon of {raid5.mnt} is gone" in told.stderr
    raid5.unmount()  # clears what the daemon has left
    rest = raid5.ask("status", "--check", *raid5.members, status=1)
    assert (rest["state"], rest["clean"], rest["redundancy_left"]) == ("unclean", False, 1)
    assert "was not unmounted" in rest["warnings"][-1]
    raid5.mount()
    assert load(raid5) == CONTENT  # before the resync has ended, perhaps
    raid5.wait_jobs()
    resyncs = [job for job in raid5.jobs() if job["kind"] == "resync"]
    assert [job["state"] for job in resyncs] in ([], ["done"])
    assert raid5.status()["state"] == "clean"
    raid5.scrub()
    assert load(raid5) == CONTENT
    raid5.unmount()
    remounts_clean(raid5)


# ---- degraded, failed, read-only ----


def test_array_mounts_without_one_member_and_without_two_does_not(raid5: RealArray) -> None:
    raid5.unmount()
    before = digests(raid5)
    line = raid5.refused("mount", *raid5.members[:2], raid5.mnt)
    assert not raid5.is_mounted()
    assert digests(raid5) == before
    assert "role 2" in line
    assert "role 3" in line
    warned = raid5.raidx("mount", *raid5.members[:3], raid5.mnt).stderr
    assert "degraded" in warned
    assert load(raid5) == CONTENT
    assert raid5.status()["members"][3]["state"] == "missing"


def test_a_degraded_array_warns_and_an_old_member_brings_no_old_data_back(raid5: RealArray) -> None:
    raid5.fail(2)
    store(raid5, CONTENT[::-1])
    raid5.unmount()
    warned = raid5.mount().stderr  # the failed member is among those given
    assert "degraded" in warned
    assert "raidx replace-disk" in warned
    assert raid5.status()["state"] == "degraded"
    assert load(raid5) == CONTENT[::-1]


def test_read_only_mount_writes_nothing(raid5: RealArray) -> None:
    raid5.unmount()
    before = digests(raid5)
    raid5.mount("--read-only")
    assert raid5.status()["read_only"]
    assert load(raid5) == CONTENT
    with pytest.raises(OSError, match="Read-only"):
        raid5.image.open("r+b")
    assert "read-only" in raid5.refused("fail-disk", "ARRAY", "1")
    assert "read-only" in raid5.refused("set", "ARRAY", "speed_min=1M")
    job = raid5.scrub()
    assert job["done"] == job["total"] > 0
    raid5.unmount()
    assert digests(raid5) == before


@pytest.mark.loop
def test_read_only_mount_carries_a_read_only_file_system(array: RealArray) -> None:
    need("mkfs.ext4")
    array.create("raid5", 3, "32MiB")
    array.mount()
    device = array.loop(direct_io=False)
    run("mkfs.ext4", "-q", device)
    where = array.mount_loop(device)
    Path(where, "kept").write_bytes(CONTENT)
    run("umount", where)
    array.detach(device)
    array.unmount()
    array.mount("--read-only")
    device = array.loop(direct_io=False, read_only=True)
    where = array.mount_loop(device, "-o", "ro")
    assert Path(where, "kept").read_bytes() == CONTENT
    run("umount", where)
    array.detach(device)
    array.unmount()
