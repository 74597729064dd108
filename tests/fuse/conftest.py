"""Real mounts for the tests of the FUSE front end: started, reported, unmounted, swept."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.daemon import control_client, paths
from raidx_fuse.errors import RaidxError
from raidx_fuse.fuse import mountpoint as mountpoints

FAKE_MOUNT = Path(__file__).with_name("fake_mount.py")
SOURCE = "raidx:fake"
END_S = 20


@pytest.fixture(scope="session", autouse=True)
def sweep_stale_mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unmount what aborted runs have left: mounts of the fake whose daemon is gone."""
    ours = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        ours = ours.parent  # of all workers: their daemons may be going away on purpose
    for mount in list(mountpoints.mounts()):
        stale = mount.source == SOURCE and not Path(mount.path).is_relative_to(ours)
        if stale and not _alive(mount.path):
            detach(mount.path)


def _alive(path: str) -> bool:
    try:
        control_client.Connection(path).close()
    except RaidxError:
        return False
    return True


def detach(path: str) -> None:
    """Unmount whether busy or not."""
    command = ["umount", "-l", path] if os.geteuid() == 0 else ["fusermount3", "-uz", path]
    subprocess.run(command, capture_output=True, check=False)


class FakeMount:
    """A running fake mount: its directory *path*, its image *image*, its *report*."""

    def __init__(self, path: Path, *options: str) -> None:
        self.path = path
        self.image = path / "disk"
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE_MOUNT), str(path), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.end())
        self.report: dict[str, Any] = json.loads(line)

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        return control_client.call(self.path, command, timeout_s=END_S, **arguments)

    def unmount(self) -> str:
        """Unmount, wait for the end, return what the daemon logged."""
        mountpoints.unmount(self.path)
        return self.end()

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Send a signal, wait for the end, return what the daemon logged."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> str:
        """Wait for the daemon's end; return what it logged."""
        _, logged = self.process.communicate(timeout=END_S)
        return logged

    def close(self) -> None:
        """End it whatever its state."""
        if self.process.poll() is None:
            with contextlib.suppress(RaidxError):
                mountpoints.unmount(self.path)
            try:
                self.process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()
        if mountpoints.find(self.path) is not None:
            detach(str(self.path))


@pytest.fixture
def fake_mount(tmp_path: Path) -> Iterator[Callable[..., FakeMount]]:
    """Return a function that mounts a fake in a new directory, with options of fake_mount.py."""
    mounts: list[FakeMount] = []

    def make(*options: str) -> FakeMount:
        path = tmp_path / f"mount{len(mounts)}"
        path.mkdir()
        mounts.append(FakeMount(path, *options))
        return mounts[-1]

    try:
        yield make
    finally:
        for mount in mounts:
            mount.close()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The directory of sockets and logs; tmp_path may be too long for a socket."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(paths, "directory_of", lambda user: Path(directory) / "raidx")
        yield
