"""The lifecycle of a mount: readiness, daemon, ends, and one clear line for each refusal."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.daemon import control_client, memory_protection, paths
from raidx_fuse.errors import (
    BusyError,
    InUseError,
    NotInstalledError,
    RaidxError,
    Reason,
    UsageError,
)
from raidx_fuse.fuse import mountpoint as mountpoints
from raidx_fuse.pool.volume import Volume
from tests.support.reasons import because

FAKE_MOUNT = Path(__file__).with_name("fake_mount.py")
Make = Callable[..., Any]
mounted = pytest.mark.mount


def run_fake(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run fake_mount.py to its end."""
    return subprocess.run(
        [sys.executable, str(FAKE_MOUNT), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, **environment},
    )


# ---- names that strangers choose ----

STRANGE = [b"cr\rlf", b"ff\x0c", b"fs\x1c", "nel\x85 ls\u2028".encode(), b"latin-1 \xff", b"x - y"]


def test_no_name_on_the_machine_stops_a_reader_of_the_kernels_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, blocks = tmp_path / "mountinfo", tmp_path / "block"
    lines = [
        b"%d 1 0:%d / /mnt/%s rw - fuse.raidx disk rw,user_id=0"
        % (number, number, name.replace(b" ", b"\\040"))
        for number, name in enumerate(STRANGE)
    ]
    table.write_bytes(b"\n".join(lines) + b"\n")
    for number, name in enumerate([*STRANGE, b"two\nlines", b"ends\n"]):
        (blocks / f"loop{number}" / "loop").mkdir(parents=True)
        (blocks / f"loop{number}" / "loop" / "backing_file").write_bytes(b"/mnt/" + name + b"\n")
    monkeypatch.setattr(mountpoints, "_MOUNTINFO", str(table))
    monkeypatch.setattr(mountpoints, "_LOOPS", blocks)
    names = [os.fsencode(mount.path) for mount in mountpoints.mounts()]
    assert names == [b"/mnt/" + name for name in STRANGE]
    images = {os.fsencode(image) for _, image in mountpoints.loop_devices("/mnt")}
    assert images == {b"/mnt/" + name for name in [*STRANGE, b"two\nlines", b"ends\n"]}
    for name in STRANGE:
        found = mountpoints.find(os.fsdecode(b"/mnt/" + name))
        assert found is not None
        assert found.fs_type == "fuse.raidx"


@mounted
def test_directories_of_strange_names_that_are_mounted_stop_no_command(tmp_path: Path) -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare: other programs of the machine must not see the mounts")
    raidx = str(Path(sys.executable).with_name("raidx"))
    script = 'for each in "$@"; do mount -t tmpfs strange "$each" || exit 9; done; exec "$0" $ASK'
    folders = [os.fsencode(tmp_path) + b"/" + name for name in STRANGE]
    for folder in folders:
        os.mkdir(folder)
    env = {**os.environ, "ASK": "umount --if-exists /nowhere"}
    words = ["unshare", "--mount", "sh", "-c", script, raidx, *folders]
    done = subprocess.run(words, capture_output=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


# ---- refusals ----


def test_a_mount_point_must_be_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere", tmp_path / "file", tmp_path):
        with pytest.raises(UsageError, check=because(Reason.MOUNT_POINT)):
            mountpoints.check(path)


def test_a_mount_point_that_is_mounted_by_others() -> None:
    with pytest.raises(BusyError, check=because(Reason.MOUNTED)):
        mountpoints.check("/proc")


def test_a_missing_fuse_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoints, "_DEVICE", str(tmp_path / "fuse"))
    (tmp_path / "mnt").mkdir()
    with pytest.raises(RaidxError, match=r"fuse is missing; load it: modprobe fuse"):
        mountpoints.check(tmp_path / "mnt")


@pytest.mark.parametrize(("user", "action"), [(0, "--device /dev/fuse"), (1000, "chmod 666")])
def test_a_fuse_device_that_may_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, action: str
) -> None:
    (tmp_path / "mnt").mkdir()
    device = tmp_path / "device"
    device.mkdir()  # opening a directory for writing fails for root too
    monkeypatch.setattr(mountpoints, "_DEVICE", str(device))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(RaidxError, match=f"cannot be opened: .*{action}"):
        mountpoints.check(tmp_path / "mnt")


def test_a_user_without_fusermount3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoints, "_DEVICE", "/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NotInstalledError):
        mountpoints.check_fuse()


def test_a_user_who_may_not_allow_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoints, "_DEVICE", "/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(mountpoints, "_config_allows_other", lambda: False)
    mountpoints.check_fuse()
    with pytest.raises(RaidxError, check=because(Reason.FOREIGN)):
        mountpoints.check_fuse(allow_other=True)


@mounted
def test_a_second_mount_on_the_same_place(fake_mount: Make) -> None:
    fake = fake_mount()
    done = run_fake(fake.path)
    assert done.returncode == 1
    assert done.stderr == (
        f"raidx: raidx:fake is already mounted on {fake.path}; "
        f"unmount it first: raidx umount {fake.path}\n"
    )
    assert (fake.path / "disk").stat().st_size == 1 << 20


@mounted
def test_what_a_killed_daemon_leaves_is_named_with_the_command(fake_mount: Make) -> None:
    fake = fake_mount()
    fake.process.kill()
    fake.end()
    done = run_fake(fake.path)
    assert done.returncode == 1
    assert "left over from a daemon that died; clear it: fusermount3 -u" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    with pytest.raises(control_client.ControlError, match=r"is gone; clear the mount point: "):
        fake.call("counts")
    subprocess.run(mountpoints.unmount_argv(str(fake.path)), check=True)
    again = run_fake(fake.path, "--daemon", fake.path.parent / "log")
    assert again.returncode == 0, again.stderr
    mountpoints.unmount(fake.path)


@mounted
def test_libfuse_says_why_it_cannot_mount(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts without fusermount3")
    # A name longer than the kernel takes (a page of options) fails in mount(2) itself.
    script = (
        "import trio, pyfuse3; from raidx_fuse.daemon import mount; from raidx_fuse import errors\n"
        "async def main():\n"
        "    async def control(c, a): return {}\n"
        f"    await mount.serve([], {str(tmp_path)!r}, control, print,\n"
        "                      mount.MountOptions(source='x' * 5000))\n"
        "try:\n    trio.run(main)\n"
        "except errors.RaidxError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.startswith(f"{tmp_path} could not be mounted: ")
    assert "mount failed" in done.stdout
    assert mountpoints.find(tmp_path) is None


# ---- the daemon ----


@mounted
def test_the_daemon_is_ready_when_the_command_returns(tmp_path: Path) -> None:
    directory, kept, log = tmp_path / "mnt", tmp_path / "kept", tmp_path / "log"
    directory.mkdir()
    begin_s = time.monotonic()
    done = run_fake(directory, "--daemon", log, "--keep", kept)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin_s < 15
    image = directory / "disk"
    with image.open("r+b", buffering=0) as disk:
        disk.write(b"written")
    with control_client.Connection(directory) as connection:
        pid = connection.daemon_pid
        assert connection.call("counts")["writes"] == 1
        assert os.getsid(pid) == pid  # its own session: the terminal's end does not end it
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
    mountpoints.unmount(directory)
    assert control_client.wait_for_exit(pid, timeout_s=20)
    assert kept.read_bytes().startswith(b"written")  # what the caller does after serve() is done
    assert log.read_text() == ""


@mounted
def test_the_daemons_refusal_is_the_commands(tmp_path: Path) -> None:
    done = run_fake(tmp_path / "nowhere", "--daemon", tmp_path / "log")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("raidx: mount point ")
    assert len(done.stderr.splitlines()) == 1


@mounted
def test_a_daemon_that_crashes_early_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "mnt"
    directory.mkdir()
    done = run_fake(directory, "--daemon", tmp_path / "log", "--size", "-5")
    assert done.returncode == 1
    assert done.stderr == (
        f"raidx: the daemon died before it was ready (exit status 1); see {tmp_path / 'log'}\n"
    )
    assert "Traceback" in (tmp_path / "log").read_text()
    assert mountpoints.find(directory) is None


@mounted
def test_a_stack_dump_on_demand(fake_mount: Make) -> None:
    fake = fake_mount()
    fake.process.send_signal(signal.SIGUSR1)
    assert fake.image.stat().st_size == 1 << 20  # and it lives on
    assert "most recent call first" in fake.unmount()


# ---- the ends ----


@mounted
@pytest.mark.parametrize("way", ["SIGTERM", "unmounted from outside"])
def test_every_end_runs_the_callers_end(fake_mount: Make, tmp_path: Path, way: str) -> None:
    kept = tmp_path / "kept"
    fake = fake_mount("--keep", str(kept), "--page-cache")
    socket = paths.files_of_mount(fake.path).socket
    assert socket.exists()
    with fake.image.open("r+b", buffering=0) as disk:
        disk.write(b"kept")
    if way == "SIGTERM":
        logged = fake.stop(signal.SIGTERM)
        assert "SIGTERM: unmounting" in logged
        assert "in use" not in logged
    else:
        subprocess.run(mountpoints.unmount_argv(str(fake.path)), check=True)
        assert fake.end() == ""
    assert fake.process.returncode == 0
    assert kept.read_bytes().startswith(b"kept")
    assert mountpoints.find(fake.path) is None
    assert not socket.exists()


@mounted
def test_sigterm_ends_a_mount_in_use(fake_mount: Make) -> None:
    fake = fake_mount()
    disk = os.open(fake.image, os.O_RDONLY)
    logged = fake.stop(signal.SIGTERM)
    with pytest.raises(OSError, match="not connected"):
        os.pread(disk, 10, 0)
    with contextlib.suppress(OSError):  # closing sends a request that nobody answers
        os.close(disk)
    assert "is in use: detached" in logged
    assert fake.process.returncode == 0
    assert mountpoints.find(fake.path) is None


@mounted
def test_unmounting_a_mount_in_use_is_refused(fake_mount: Make) -> None:
    fake = fake_mount()
    with (
        fake.image.open("rb"),
        pytest.raises(InUseError),
    ):
        mountpoints.unmount(fake.path)
    assert fake.unmount() == ""


def test_unmounting_what_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=because(Reason.NOT_MOUNTED)):
        mountpoints.unmount(tmp_path)
    with pytest.raises(UsageError, check=because(Reason.NOT_MOUNTED)):
        mountpoints.unmount("/proc")


# ---- protections ----


def test_protections_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(memory_protection, "_call", lambda *arguments: called.append(arguments))
    monkeypatch.setattr(memory_protection, "_capable", lambda capability: False)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))
    found = memory_protection.protect().as_dict()
    assert found["io_flusher"] == {"active": False, "reason": "needs CAP_SYS_RESOURCE"}
    assert found["memory_locked"]["reason"] == (
        "needs CAP_IPC_LOCK, or no limit on locked memory (now 64 KiB)"
    )
    assert not called


def test_protections_in_force(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(memory_protection, "_call", lambda *arguments: called.append(arguments))
    monkeypatch.setattr(memory_protection, "_capable", lambda capability: True)
    monkeypatch.setattr(memory_protection, "_set_oom_score", lambda: None)
    found = memory_protection.protect()
    assert found.io_flusher.active
    assert found.memory_locked.active
    assert [name for name, *_ in called] == ["prctl", "mlockall"]
    assert called[1][1] == 1 | 2 | 4


def test_a_refused_protection_gives_the_kernels_word() -> None:
    def refuse() -> None:
        raise OSError(22, "x")

    assert memory_protection._attempt(refuse) == memory_protection.Protection(
        False, "invalid argument"
    )


# ---- names ----


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "x" * 256, "ä" * 128])
def test_a_volume_name_that_cannot_be_a_file(name: str) -> None:
    async def unused(*_: Any) -> Any:
        raise AssertionError

    with pytest.raises(UsageError):
        Volume(name, 1, read=unused, write=unused, flush=unused)


def test_a_mount_points_name_does_not_depend_on_the_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / "link").symlink_to("mnt")
    monkeypatch.chdir(tmp_path)
    names = {
        paths.files_in(tmp_path, path).socket
        for path in ("mnt", "./link", tmp_path / "mnt", tmp_path / "x" / ".." / "mnt")
    }
    assert len(names) == 1


def test_the_tables_escapes_are_undone() -> None:
    assert mountpoints._unescape(r"/a\040b\011c\134d") == "/a b\tc\\d"
