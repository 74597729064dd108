"""The folder of control sockets and logs, and the client: daemons that hang, stopped ones, none."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from raidx_fuse.cli.main import main
from raidx_fuse.daemon import control_client, control_server, paths
from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.fuse import mountpoint
from raidx_fuse.fuse.mountpoint import FUSE_TYPE, Mount
from raidx_fuse.members.threads import in_thread
from tests.support.control import handler
from tests.support.reasons import because

# ---- the directory ----


def test_the_directory_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "directory_of", lambda user: tmp_path / "raidx")
    assert stat.S_IMODE(paths.own_directory().stat().st_mode) == 0o700
    (tmp_path / "raidx").chmod(0o755)
    with pytest.raises(RaidxError, check=because(Reason.FOREIGN)):
        paths.own_directory()


def test_a_directory_that_someone_prepared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "raidx").symlink_to("elsewhere")
    monkeypatch.setattr(paths, "directory_of", lambda user: tmp_path / "raidx")
    with pytest.raises(RaidxError, check=because(Reason.FOREIGN)):
        paths.own_directory()
    (tmp_path / "raidx").unlink()
    (tmp_path / "raidx").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    with pytest.raises(RaidxError, check=because(Reason.FOREIGN)):
        paths.own_directory()


def test_which_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.directory_of(4321) == tmp_path / "raidx"
    assert paths.directory_of(4322) == Path("/tmp/raidx-4322")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert paths.directory_of(4321) == Path("/tmp/raidx-4321")
    assert paths.directory_of(0) == Path("/run/raidx")


@pytest.mark.usefixtures("runtime")
def test_logs_of_mounts_that_have_ended_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "ENDED_LOGS_BYTES_MAX", 100_000)
    directory = paths.own_directory()
    own, mounted = paths.files_in(directory, "/own").log, paths.files_in(directory, "/proc").log
    served = paths.files_in(directory, "/unmounted-but-flushing")
    ended = [paths.files_in(directory, f"/gone{number}").log for number in range(20)]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(served.socket))
        listener.listen()
        for age, log in enumerate([own, mounted, served.log, *ended]):
            log.write_bytes(b"x" * 1000)
            os.utime(log, (10**9 - age, 10**9 - age))
        assert paths.own_files("/own").log == own
        left = set(directory.glob("*.log*"))
        assert left == {own, mounted, served.log, *ended[: paths.ENDED_LOGS_KEPT]}
        ended[1].write_bytes(b"x" * 99_500)
        os.utime(ended[1], (10**9 - 4, 10**9 - 4))
        paths.own_files("/own")
        assert set(directory.glob("*.log*")) == {own, mounted, served.log, ended[0]}


# ---- the client ----


@pytest.mark.usefixtures("runtime")
def test_a_daemon_that_hangs_is_told_from_one_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "PATIENCE_S", 0.1)
    files = paths.own_files(tmp_path)
    with socket.socket(socket.AF_UNIX) as stopped:  # its kernel takes connections, nobody answers
        stopped.bind(os.fspath(files.socket))
        stopped.listen()
        with pytest.raises(control_client.ControlError, match=r"does not answer: it hangs"):
            control_client.call(tmp_path, "add-disk")
        with pytest.raises(control_client.ControlError, match=r"did not answer in time"):
            control_client.call(tmp_path, "status", timeout_s=0.2)
        with (
            control_client.Connection(tmp_path) as connection,
            pytest.raises(control_client.ControlError, match=r"does not answer"),
        ):
            connection.call("set", value="x" * (8 << 20))  # more than the socket takes
        others = [socket.socket(socket.AF_UNIX) for _ in range(200)]
        for other in others:  # until the queue of those who wait is full
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(os.fspath(files.socket))
        with pytest.raises(control_client.ControlError, match=r"does not answer"):
            control_client.call(tmp_path, "status")
        for other in others:
            other.close()
    files.socket.unlink()
    server = control_server.ControlServer(files.socket, handler)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            call = partial(control_client.call, tmp_path, "wait", seconds=0.5)
            answer = await in_thread("the test", call)
            assert answer == {"waited": True}
            nursery.cancel_scope.cancel()

    trio.run(main)
    server.close()


def test_calling_where_nothing_is_mounted(tmp_path: Path) -> None:
    with pytest.raises(
        control_client.ControlError,
        match=r"no array is mounted on .*; mount it: raidx mount MEMBER",
    ):
        control_client.call(tmp_path, "status")
    with pytest.raises(control_client.ControlError, match="/proc is a mount of proc, not of raidx"):
        control_client.call("/proc", "status")


@pytest.mark.mount
def test_calling_a_mount(fake_mount: Callable[..., Any]) -> None:
    fake = fake_mount()
    with control_client.Connection(fake.path) as connection:
        assert connection.daemon_pid == fake.process.pid
        for _ in range(3):
            assert connection.call("counts")["writes"] == 0
        with pytest.raises(
            control_client.ControlError, match="refused; ask for something else"
        ) as caught:
            connection.call("refuse")
        assert caught.value.exit_status == 1
        with pytest.raises(control_client.ControlError, match="met a bug"):
            connection.call("nonsense")
        assert connection.call("report")["mountpoint"] == str(fake.path)
    with pytest.raises(control_client.ControlError, match="did not answer in time"):
        control_client.call(fake.path, "ticks", timeout_s=0.2, seconds=1)
    with socket.socket(socket.AF_UNIX) as idle:  # hangs on the socket while the mount ends
        idle.connect(os.fspath(paths.files_of_mount(fake.path).socket))
        assert "Traceback" in fake.unmount()  # of the nonsense above
    assert control_client.wait_for_exit(fake.process.pid)


@pytest.mark.mount
def test_a_daemon_stopped_by_a_signal_is_named(
    fake_mount: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "PATIENCE_S", 0.1)
    fake = fake_mount()
    pid = fake.process.pid
    said = f"process {pid}, which serves the mount, is stopped .*; continue it: kill -CONT {pid}"
    os.kill(pid, signal.SIGSTOP)
    try:
        while not any(" (stopped)" in line for line in state(pid)):
            time.sleep(0.01)
        with pytest.raises(control_client.ControlError, match=said):
            control_client.call(fake.path, "counts")
        with pytest.raises(control_client.ControlError, match=said):
            control_client.call(fake.path, "counts", timeout_s=0.05)
        with pytest.raises(control_client.ControlError, match=said):
            control_client.wait_for_exit(pid)
        done = CliRunner().invoke(main, ["umount", str(fake.path)])
        assert done.exit_code == 1
        assert "is stopped by a signal" in done.stderr
        # Nor does a command look at a path on the mount itself.
        done = CliRunner().invoke(main, ["replace-disk", str(fake.path), "0", f"{fake.path}/disk"])
        assert "is stopped by a signal" in done.stderr
    finally:
        os.kill(pid, signal.SIGCONT)
    fake.unmount()


def state(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text().splitlines()


def test_another_users_mount_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fusermount3 said that there is no entry for it in /etc/mtab."""
    mount = Mount(str(tmp_path), (0, 99), FUSE_TYPE, "disk", 4321, 1, "user_id=4321")
    monkeypatch.setattr(mountpoint, "mounts", lambda: iter([mount]))
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(mountpoint, "unmount_argv", lambda path: ["false"])
    for words in (["umount", str(tmp_path)], ["status", str(tmp_path)]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code != 0
        line = f"the mount on {tmp_path} belongs to another user (uid 4321)"
        assert line in result.output
