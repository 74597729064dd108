"""Arrays mounted by the installed `raidx` command, and what users put on them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.daemon import control_client
from raidx_fuse.errors import RaidxError
from raidx_fuse.fuse import mountpoint as mountpoints
from tests.support.forks import Done, forked
from tests.support.waiting import await_that

NAME = f"test{os.getpid()}"
COMMAND_S = 120
SCALE = float(os.environ.get("RAIDX_TEST_SCALE", "1"))  # multiplies the work
CAP_SYS_RESOURCE = 24
FIO_JOBS = 8  # of one that is stopped and started again
os.environ["PATH"] += ":/usr/sbin:/sbin"

Completed = subprocess.CompletedProcess[str]


def run(*command: str | Path, timeout_s: float = COMMAND_S, check: bool = True) -> Completed:
    """Run *command*; with *check* fail with what it printed unless it exits with 0."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and done.returncode:
        raise AssertionError(
            f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done


def need(*programs: str) -> None:
    """Skip the test unless all *programs* are installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below *folder*, by its name there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and "lost+found" not in path.parts:
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def compare(expected: Path, found: Path) -> None:
    """Compare two folders by the checksums of their files."""
    before = checksums(expected)
    assert before
    assert checksums(found) == before


# ---- an array ----


class RealArray:
    """Member files in *folder*, an array of them, its mount on *mnt*, its image *image*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mnt = folder / "mnt"
        self.mnt.mkdir(parents=True)
        self.image = self.mnt / NAME
        self.members: list[Path] = []
        self._images: dict[str, Path] = {}  # by the loop device that is on it

    # -- commands --

    def raidx(self, *words: str | Path, status: int = 0, timeout_s: float = COMMAND_S) -> Done:
        """Run `raidx`, ARRAY standing for the mount point; the exit status must be *status*."""
        line = [str(self.mnt) if word == "ARRAY" else str(word) for word in words]
        done = forked(line, self.folder, timeout_s)
        assert done.status == status, f"{line}: {done.status}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def ask(self, *words: str | Path, status: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.raidx(*words, "--json", status=status).stdout)
        assert document["output_version"] == 1
        return document

    def refused(self, *words: str | Path, status: int = 1) -> str:
        """Return the one line that `raidx` refuses a command with."""
        done = self.raidx(*words, status=status)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("raidx: ")
        return line

    # -- life --

    def create(self, layout: str, width: int, size: str, *options: str) -> RealArray:
        """Make *width* member files of *size* and an array of them."""
        self.members = [self.folder / f"disk{role}.img" for role in range(width)]
        words = ["--layout", layout, "--size", size, "--name", NAME, *options]
        self.raidx("create", *words, *self.members)
        return self

    def mount(self, *options: str, status: int = 0) -> Done:
        """Mount the members as they are known."""
        return self.raidx("mount", *self.members, self.mnt, *options, status=status)

    def unmount(self) -> None:
        self.raidx("umount", self.mnt)
        assert not self.is_mounted()

    def is_mounted(self) -> bool:
        return mountpoints.find(self.mnt) is not None

    def daemon_pid(self) -> int:
        with control_client.Connection(self.mnt, timeout_s=10) as connection:
            return connection.daemon_pid

    def send(self, number: signal.Signals) -> None:
        """Send the daemon a signal and wait until it has ended."""
        pid = self.daemon_pid()
        os.kill(pid, number)
        self.await_end(pid)

    def await_end(self, pid: int) -> None:
        assert control_client.wait_for_exit(pid, 30), "the daemon does not end"

    def clear(self) -> None:
        """Clear the mount point that a killed daemon has left, when nobody looks at it."""
        words = ["umount" if os.geteuid() == 0 else "fusermount3", *_clear_options()]
        deadline_s = time.monotonic() + 30
        while run(*words, self.mnt, check=time.monotonic() > deadline_s).returncode:
            time.sleep(0.02)

    # -- members and jobs --

    def fail(self, role: int) -> None:
        self.raidx("fail-disk", "ARRAY", str(role))

    def replace(self, role: int, *options: str) -> Path:
        """Put a new member file in the place of *role*; return its path."""
        new = self.folder / f"disk{role}.new{len(list(self.folder.glob('*.img')))}.img"
        self.raidx("replace-disk", "ARRAY", str(role), new, "--create", *options)
        self.members[role] = new
        return new

    # These ask the daemon itself: tests look often.

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        return control_client.call(self.mnt, command, timeout_s=COMMAND_S, **arguments)

    def status(self) -> dict[str, Any]:
        return self.call("status")

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, ended ones too."""
        return list(self.call("job-list")["jobs"])

    def counters(self) -> dict[str, Any]:
        """Return the array's counters since it was mounted."""
        return dict(self.call("stats")["array"])

    def wait_jobs(self) -> None:
        while running := [job for job in self.jobs() if job["state"] in ("running", "paused")]:
            self.call("job-wait", job=running[0]["id"])

    def scrub(self) -> dict[str, Any]:
        """Scrub; everything must be right. Return the job."""
        job = self.call("job-wait", job=self.call("scrub")["job"])
        assert job["state"] == "done", job
        assert (job["mismatches"], job["unchecked_stripes"]) == (0, 0), job
        return job

    def await_written(self, amount_bytes: int, timeout_s: float = COMMAND_S) -> None:
        """Return when users have written *amount_bytes* since the mount."""
        what = f"{amount_bytes} bytes are written"
        await_that(lambda: self.counters()["write_bytes"] >= amount_bytes, what, timeout_s)

    # -- on the image --

    def read(self, length: int) -> bytes:
        with self.image.open("rb") as image:
            return image.read(length)

    def loop(self, *, direct_io: bool, read_only: bool = False, image: Path | None = None) -> str:
        """Put a loop device on the image, or another *image*; return its path."""
        options = [f"--direct-io={'on' if direct_io else 'off'}"]
        options += ["--read-only"] if read_only else []
        image = image or self.image
        device = run("losetup", "--find", "--show", *options, image).stdout.strip()
        self._images[device] = image
        return device

    def detach(self, device: str) -> None:
        """Take a loop device off; return when the kernel has let go of the image."""
        run("losetup", "-d", device)
        del self._images[device]
        loops = mountpoints.loop_devices
        await_that(lambda: device not in dict(loops(str(self.mnt))), f"{device} goes", 10)

    def mount_loop(self, device: str, *options: str) -> Path:
        """Mount the file system on *device*; return where: the same place for the same image."""
        where = self.folder / f"fs-{self._images[device].name}"
        where.mkdir(exist_ok=True)
        run("mount", *options, device, where)
        return where

    def file_system(self, image: Path | None = None) -> LoopFileSystem:
        """Return an ext4 on the image, or another *image*, yet to be made."""
        return LoopFileSystem(self, image or self.image)

    def fio(self, target: Path, size_bytes: int, *lines: str) -> RestartedFio:
        """Return fio on *target*, that can be stopped and asked what was acknowledged."""
        return RestartedFio(self, target, size_bytes, lines)

    # -- the end --

    def close(self) -> None:
        """Take everything down, whatever its state."""
        for device, _ in mountpoints.loop_devices(str(self.mnt)):
            take_down_loop(device)
        if self.is_mounted():
            with contextlib.suppress(Exception):
                self.raidx("umount", self.mnt, timeout_s=30)
        if self.is_mounted():
            take_down_mount(str(self.mnt))
        shutil.rmtree(self.folder, ignore_errors=True)


class LoopFileSystem:
    """ext4 on a loop device on *image* of *array*: on *device*, mounted on *where*."""

    def __init__(self, array: RealArray, image: Path) -> None:
        self.array = array
        self.image = image
        self.device = ""
        self.where = Path()

    def make(self, *options: str) -> None:
        self.device = self.array.loop(direct_io=True, image=self.image)
        run("mkfs.ext4", "-q", *options, self.device)
        self.where = self.array.mount_loop(self.device)

    def take_down(self) -> None:
        """Unmount it, be it that it has lost its disk, and detach the device."""
        run("umount", self.where)
        self.array.detach(self.device)

    def bring_up(self) -> None:
        """Mount again: ext4 replays its own journal. Then its checker must be content."""
        self.device = self.array.loop(direct_io=True, image=self.image)
        self.where = self.array.mount_loop(self.device)
        self.again()

    def check(self) -> None:
        """The checker finds nothing wrong; it is not mounted."""
        run("e2fsck", "-fn", self.device)

    def again(self) -> None:
        """Unmount, check, mount: nothing of it is in memory then."""
        run("umount", self.where)
        self.check()
        self.array.mount_loop(self.device)

    def enlarge(self) -> None:
        """Use all of an image that has grown; on-line where the kernel lets us."""
        run("losetup", "-c", self.device)
        if grows_ext4_online():
            run("resize2fs", self.device)
            return
        run("umount", self.where)
        run("fsck.ext4", "-fp", self.device)
        run("resize2fs", self.device)
        self.array.mount_loop(self.device)


class RestartedFio:
    """fio writing *target* once over at random, whose saved state says what was acknowledged.

    *lines* go into its job file. A file named trigger makes fio save its state and end. The state
    takes all but the last few writes for acknowledged, as many as may be under way at once; but
    one that waits for a growth or a rebuild is older than that. So there are as many jobs, with
    one write each.
    """

    def __init__(
        self, array: RealArray, target: Path, size_bytes: int, lines: Sequence[str]
    ) -> None:
        self.target = target
        self.folder = array.folder / f"fio{len(list(array.folder.glob('fio*')))}"
        self.folder.mkdir()
        self.trigger = self.folder / "trigger"
        self._array = array
        self._size_bytes = size_bytes
        self._lines = lines

    def _words(self, seed: int) -> list[str]:
        file = self.folder / "job.fio"
        share = self._size_bytes // FIO_JOBS
        lines = [
            *("[global]", f"filename={self.target}", f"size={share}", f"offset_increment={share}"),
            *("ioengine=libaio", "iodepth=1", f"numjobs={FIO_JOBS}", "thread=1", "direct=1"),
            *("verify=crc32c", "fallocate=none", "allow_file_create=0", "invalidate=0"),
            *(f"randseed={seed}",),
            *("[small]", "rw=randwrite", "bs=4k", *self._lines),
        ]
        file.write_text("\n".join(lines) + "\n")
        words = ["--output-format=json", f"--output={self.folder / 'out'}"]
        return ["env", "-C", str(self.folder), "fio", *words, str(file)]

    def begin(self, seed: int, *, kill: bool) -> subprocess.Popen[bytes]:
        """Start writing; the trigger saves the state and ends fio, with *kill* the daemon too."""
        self.trigger.unlink(missing_ok=True)
        for state in self.folder.glob("*.state"):
            state.unlink()
        command = f"kill -9 {self._array.daemon_pid()}" if kill else "true"
        words = [*self._words(seed), f"--trigger-file={self.trigger}", f"--trigger={command}"]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def check(self, seed: int) -> int:
        """Verify every block acknowledged before the state was saved; return their bytes."""
        assert len(list(self.folder.glob("*.state"))) == FIO_JOBS, "fio has not saved its state"
        words = ["--verify_state_load=1", "--verify_state_save=0", "--verify_only=1"]
        run(*self._words(seed), *words, timeout_s=60)
        text = (self.folder / "out").read_text()
        jobs = json.loads(text[text.index("{") :])["jobs"]
        assert [job["error"] for job in jobs] == [0] * FIO_JOBS
        return sum(job["read"]["io_bytes"] for job in jobs)


class FioLoad:
    """fio writing and verifying files in *where*, one run after the other, until it is stopped."""

    WORDS = (
        *("--ioengine=libaio", "--direct=1", "--iodepth=8", "--rw=randwrite", "--bsrange=4k-256k"),
        *("--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--rate=6m"),
        "--output-format=json",
    )

    def __init__(self, folder: Path, where: Path, size_bytes: int) -> None:
        self.runs = 0
        self.problems: list[BaseException] = []
        self._folder, self._where = folder, where
        self._size_bytes = size_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _run(self, number: int, *words: str) -> dict[str, Any]:
        words = (f"--name=load{number % 3}", f"--randseed={number}", *words)
        words = (f"--directory={self._where}", f"--size={self._size_bytes}", *words)
        done = run("env", "-C", self._folder, "fio", *self.WORDS, *words)
        (found,) = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
        assert not found["error"]
        return dict(found)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                found = self._run(self.runs)
                assert found["read"]["io_bytes"] >= found["write"]["io_bytes"] > 0
                self.runs += 1
        except BaseException as error:
            self.problems.append(error)

    def stop(self) -> None:
        """Let the last run end; it must have found every block as it was written."""
        self._stop.set()
        self._thread.join()
        assert not self.problems, self.problems
        assert self.runs

    def verify(self) -> None:
        """Read again what the last run has written."""
        assert self._run(self.runs - 1, "--verify_only=1")["read"]["io_bytes"] > 0


def grows_ext4_online() -> bool:
    """Return whether the kernel lets us enlarge an ext4 that is mounted."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "CapEff" in x)
    return bool(int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1)


def _clear_options() -> list[str]:
    return [] if os.geteuid() == 0 else ["-u"]


def take_down_loop(device: str) -> None:
    """Unmount what is on a loop device, at once if need be, and detach it."""
    for mount in list(mountpoints.mounts()):
        if mount.source == device:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if run("umount", mount.path, timeout_s=20, check=False).returncode == 0:
                    continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                run("umount", "-l", mount.path, timeout_s=20, check=False)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run("losetup", "-d", device, timeout_s=20, check=False)


def take_down_mount(path: str) -> None:
    """Kill the daemon of a mount, end the kernel's waiting for it, unmount."""
    with contextlib.suppress(RaidxError, ProcessLookupError):
        with control_client.Connection(path, timeout_s=5) as connection:
            pid = connection.daemon_pid
        os.kill(pid, signal.SIGKILL)
        control_client.wait_for_exit(pid, 10)
    mount = mountpoints.find(path)
    if mount is not None:
        with contextlib.suppress(OSError):
            Path(f"/sys/fs/fuse/connections/{mount.device[1]}/abort").write_text("1")
        lazily = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
        run(*lazily, path, check=False)
