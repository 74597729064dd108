"""Servers of members killed in turn under fio that verifies: healthy, degraded, being rebuilt."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.nbd.test_serve import run
from tests.support.command import checked, raidx
from tests.support.nbd_real import running, server_command
from tests.support.waiting import await_that

WAIT_S = 60.0
SERVERS = 4


class Machines:
    """Four nbdkit servers on files, each in a folder of its own, and the array that they hold."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.uris: list[str] = []
        for number in range(SERVERS):
            (folder / f"m{number}").mkdir()
            self.uris.append(self._command(number)[1])
            self.start(number)

    def _command(self, number: int) -> tuple[list[str], str]:
        return server_command("nbdkit", self.folder / f"m{number}", 32 << 20)

    def start(self, number: int) -> None:
        place = self.folder / f"m{number}" / "nbdkit.sock"
        server = running(self._command(number)[0], place)
        self._processes[number] = self._stack.enter_context(server)

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def status(self) -> dict[str, Any]:
        answer = json.loads(checked(self.folder, f"status {self.folder}/s --json"))
        found: dict[str, Any] = answer["arrays"][0] if "arrays" in answer else answer
        return found

    def states(self) -> list[str]:
        return [member["state"] for member in self.status()["members"]]

    def await_states(self, *wanted: str) -> None:
        await_that(lambda: self.states() == list(wanted))

    def await_whole(self) -> None:
        """Return when every member is whole, and the superblocks say so: no job is left."""
        self.await_states(*["active"] * SERVERS)
        line = f"job {self.folder}/s list --json"
        await_that(
            lambda: all(
                job["state"] == "done" for job in json.loads(checked(self.folder, line))["jobs"]
            )
        )

    def set(self, setting: str) -> None:
        checked(self.folder, f"set {self.folder}/s {setting}")


def accepted(folder: Path, line: str) -> str:
    """Return what a command says as soon as it is accepted.

    A member whose server is back has writes to end first.
    """
    deadline_s = time.monotonic() + WAIT_S
    while (done := raidx(folder, line)).status:
        assert "may still arrive" in done.stderr, done.stderr
        assert time.monotonic() < deadline_s, done.stderr
        time.sleep(0.2)
    return done.stdout


class Load:
    """fio at the export of *folder* until `stop`; it reads again what it wrote and compares."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "fio.json"
        uri = f"nbd+unix:///disk?socket={folder}/s"
        self._process = subprocess.Popen(
            [
                *("fio", "--name=v", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite"),
                *("--bs=4k-64k", "--size=40M", "--iodepth=16", "--randseed=5", "--fsync=40"),
                *("--verify=crc32c", "--verify_backlog=64", "--time_based", "--runtime=600"),
                *("--rate_iops=600", "--verify_fatal=1"),
                *("--output-format=json", f"--output={self._output}"),
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def stop(self) -> int:
        """End fio, which must have found nothing wrong; return how many bytes it compared."""
        assert self._process.poll() is None, self._process.communicate()[1]
        self._process.send_signal(signal.SIGINT)
        errors = self._process.communicate(timeout=WAIT_S)[1]
        text = self._output.read_text()
        (job,) = json.loads(text[text.index("{") :])["jobs"]
        assert not job["error"], errors
        assert b"verify" not in errors, errors
        return int(job["read"]["io_bytes"])


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


def test_fio_finds_every_byte_whatever_server_is_killed(machines: Machines) -> None:
    run("qemu-io", "--version")  # skips before any daemon runs
    if "\tnbd" not in run("fio", "--enghelp"):
        pytest.skip("this fio has no nbd engine")
    folder, uris = machines.folder, " ".join(machines.uris)
    checked(folder, f"create --layout raid5 --name disk {uris}")
    checked(folder, f"serve {uris} --nbd unix:s")
    load = Load(folder)
    try:
        for number in range(SERVERS):  # healthy
            kill_under_load(machines, number)
        assert machines.states() == ["active"] * SERVERS
        machines.kill(1)
        machines.set("io.timeout_s=3s")
        machines.await_states("active", "failed", "active", "active")
        machines.set("io.timeout_s=30s")
        for number in (0, 2, 3):  # degraded
            kill_under_load(machines, number)
        machines.start(1)
        told = accepted(folder, f"replace-disk {folder}/s 1 {machines.uris[1]}")
        assert "caught up" in told
        machines.kill(2)  # while it is caught up
        machines.start(2)
        machines.await_whole()
        machines.kill(3)
        checked(folder, f"fail-disk {folder}/s 3")
        machines.start(3)
        erased = f"replace-disk {folder}/s 3 {machines.uris[3]} --overwrite-signature"
        accepted(folder, erased)
        machines.kill(3)  # the one that is rebuilt, and another one
        machines.kill(0)
        machines.start(0)
        machines.start(3)
        machines.await_whole()
        written = machines.status()
        assert load.stop() > 1 << 20, written
        assert json.loads(checked(folder, f"scrub {folder}/s --wait --json"))["mismatches"] == 0
    finally:
        checked(folder, f"umount {folder}/s")
    checked(folder, f"check {uris}")


def kill_under_load(machines: Machines, number: int) -> None:
    """Kill a server, start it again, and return when requests are answered again."""
    machines.kill(number)
    machines.start(number)
    uri = f"nbd+unix:///disk?socket={machines.folder}/s"
    run("qemu-io", "-f", "raw", "-c", "flush", uri)
