"""Two daemons on one export: the second is refused, or takes over from one that stood still."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from raidx_fuse.daemon import control_client, paths
from tests.nbd.test_serve import run
from tests.support.command import checked, raidx
from tests.support.nbd_real import real_server


def io(place: Path, *script: str) -> None:
    """Have qemu-io carry out *script* on the only export at *place*."""
    words = [word for line in script for word in ("-c", line)]
    run("qemu-io", "-f", "raw", *words, f"nbd+unix:///?socket={place}")


def _uuid(folder: Path) -> str:
    """Return the UUID of the array that is served at the socket `first` in *folder*."""
    return str(json.loads(checked(folder, f"status {folder}/first --json"))["uuid"])


def test_a_daemon_that_was_taken_over_writes_nothing_more(tmp_path: Path) -> None:
    run("qemu-io", "--version")  # skips before any daemon runs
    with ExitStack() as stack:
        uris = []
        for number in range(2):
            folder = tmp_path / f"m{number}"
            folder.mkdir()
            uris.append(stack.enter_context(real_server("nbdkit", folder, 24 << 20)))
        members = " ".join(uris)
        checked(tmp_path, f"create --layout raid1 --name disk {members}")
        checked(tmp_path, f"serve {members} --nbd unix:first")
        (lock,) = paths.own_directory().glob(f"{_uuid(tmp_path)}.lock")
        lock.unlink()  # the second is on another machine, which does not see it
        io(tmp_path / "first", "write -P 1 0 1M", "flush")
        with control_client.Connection(tmp_path / "first", timeout_s=30) as connection:
            pid = connection.daemon_pid
        refused = raidx(tmp_path, f"serve {members} --nbd unix:second")
        assert refused.status
        holder = f"process {pid} on {os.uname().nodename}"
        assert f"in use by {holder}" in refused.stderr
        (examined,) = json.loads(checked(tmp_path, f"examine {uris[0]} --json"))["members"]
        assert examined["held_by"] == holder
        os.kill(pid, signal.SIGSTOP)
        try:
            checked(tmp_path, f"serve {members} --nbd unix:second")  # after STALE_S
            io(tmp_path / "second", "read -P 1 0 1M", "write -P 2 0 1M", "flush")
        finally:
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(AssertionError, match="write failed"):
            io(tmp_path / "first", "write -P 3 0 1M", "flush")
        io(tmp_path / "second", "read -P 2 0 1M")
        checked(tmp_path, f"umount {tmp_path}/second")
        raidx(tmp_path, f"umount {tmp_path}/first")
        assert control_client.wait_for_exit(pid, 60)
        checked(tmp_path, f"check {members}")


def test_the_files_of_a_server_are_in_use_if_a_daemon_has_the_array_by_them(tmp_path: Path) -> None:
    """No heartbeat and no lock of the files says so: only that of the array does."""
    with ExitStack() as stack:
        uris = []
        for number in range(2):
            folder = tmp_path / f"m{number}"
            folder.mkdir()
            uris.append(stack.enter_context(real_server("nbdkit", folder, 24 << 20)))
        remote, local = " ".join(uris), "m0/nbdkit.img m1/nbdkit.img"
        checked(tmp_path, f"create --layout raid1 --name disk {local}")
        for first, second in ((local, remote), (remote, local)):
            checked(tmp_path, f"serve {first} --nbd unix:first")
            try:
                for line in (f"serve {second} --nbd unix:second", f"wipe {second} --lose-data"):
                    refused = raidx(tmp_path, line)
                    assert refused.status
                    assert "array 'disk' is in use on this machine" in refused.stderr
            finally:
                checked(tmp_path, f"umount {tmp_path}/first")
