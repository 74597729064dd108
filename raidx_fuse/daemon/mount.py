"""The lifecycle of a mount: check, mount, report ready, serve, unmount.

    check the mount point -> make the control socket -> mount -> kernel's INIT -> protect, tune
        -> on_ready(report) -> requests ... -> the end -> control socket removed -> serve() returns

Three events end a mount:

- ``fusermount3 -u``: the kernel ends the session.
- SIGTERM, SIGINT or SIGHUP: the daemon unmounts in the same way, so that the kernel writes back its
  dirty pages. If the image is in use, the mount is detached and its users get errors.
- A bug in pyfuse3's loop: `serve` unmounts and raises.

The caller flushes and closes the array after `serve` has returned or raised.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3
import trio

from raidx_fuse.daemon import control_server, paths
from raidx_fuse.daemon.memory_protection import Protection, Protections, few_collections, protect
from raidx_fuse.errors import RaidxError, single
from raidx_fuse.fuse import mountpoint as mountpoints
from raidx_fuse.fuse import session_loop
from raidx_fuse.fuse.operations import VolumeOperations
from raidx_fuse.fuse.workers import WORKERS_MAX, SessionWorkers
from raidx_fuse.journal.group_commit import Deferral
from raidx_fuse.loop.busy_poll import Sources
from raidx_fuse.pool.volume import Volume

if TYPE_CHECKING:
    from raidx_fuse.documents import DaemonReport, NbdServer

log = logging.getLogger(__name__)

_MAX_BACKGROUND = 64
_CONGESTION_THRESHOLD = 48
_READ_AHEAD_KIB = 1024
_DEVICE = "/dev/fuse"


@dataclass(frozen=True, slots=True)
class MountOptions:
    """How to mount.

    *source* is shown in the kernel's mount table. *page_cache* lets the kernel cache file data;
    without it each read and write of the image reaches the array. *mode* are the permissions of the
    images. *nbd* describes the door for NBD clients beside the mount, if there is one. *deferral*
    is that of the volumes' journals, *sources* those of all front ends. *space* returns the bytes
    that the arrays have for volumes, and how many of them are written: df shows them.
    """

    source: str = "raidx"
    allow_other: bool = False
    read_only: bool = False
    page_cache: bool = False
    mode: int = 0o600
    nbd: Callable[[], NbdServer] | None = None
    deferral: Deferral = field(default_factory=Deferral)
    sources: Sources | None = None
    space: Callable[[], tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class MountReport:
    """The result of mounting, for `status`.

    *device* is the device number of all files of this mount. *tuning* tells whether the kernel's
    queue depth and read-ahead were raised, *cpu_latency* whether idle processors can be kept awake
    for a caller with one request at a time (loop/busy_poll.py).
    """

    mountpoint: str
    device: tuple[int, int]
    files: paths.RuntimeFiles
    poll_first: bool
    protections: Protections
    tuning: Protection
    cpu_latency: Protection
    operations: VolumeOperations
    nbd: Callable[[], NbdServer] | None = None

    def as_dict(self) -> DaemonReport:
        report: DaemonReport = {
            "mountpoint": self.mountpoint,
            **self.files.as_dict(),
            "poll_first": self.poll_first,
            "protections": self.protections.as_dict(),
            "tuning": {"active": self.tuning.active, "reason": self.tuning.reason},
            "awake": {"active": self.cpu_latency.active, "reason": self.cpu_latency.reason},
            "bugs": self.operations.bugs,
        }
        if self.nbd is not None:
            report["nbd"] = self.nbd()
        return report


async def serve(
    volumes: Sequence[Volume],
    mountpoint: str | os.PathLike[str],
    control_handler: control_server.Handler,
    on_ready: Callable[[MountReport], None],
    options: MountOptions | None = None,
) -> None:
    """Mount *volumes* on *mountpoint* and answer requests until the mount ends.

    *on_ready* is called once the mount can be used. Raises RaidxError if mounting fails. A process
    can serve one mount at a time.
    """
    options = options or MountOptions()
    path = mountpoints.check(mountpoint, allow_other=options.allow_other)
    files = paths.own_files(path)
    started = trio.Event()
    operations = VolumeOperations(
        volumes,
        started=started.set,
        mounted_ns=time.time_ns(),  # a time stamp for `ls`; no computation uses it
        page_cache=options.page_cache,
        mode=options.mode,
        deferral=options.deferral,
        space=options.space,
    )
    server = control_server.ControlServer(files.socket, control_handler)
    try:
        with few_collections(), _mounted(operations, path, options) as device_fd:
            async with trio.open_nursery() as nursery:
                with session_loop.installed(
                    device_fd, options.deferral, options.sources
                ) as readers:
                    nursery.start_soon(_end_on_signal, path)

                    async def announce() -> None:
                        await started.wait()
                        mount = mountpoints.find(path)
                        report = MountReport(
                            mountpoint=path,
                            device=mount.device if mount is not None else (0, 0),
                            files=files,
                            poll_first=readers is not None,
                            protections=protect(),
                            tuning=_tune(path),
                            cpu_latency=_cpu_latency(readers),
                            operations=operations,
                            nbd=options.nbd,
                        )
                        on_ready(report)
                        # Only now, because commands need this report. Clients that connect earlier
                        # wait on the socket, which exists already.
                        nursery.start_soon(server.run)

                    nursery.start_soon(announce)
                    await pyfuse3.main(min_tasks=1, max_tasks=WORKERS_MAX)
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise single(group) from None
    finally:
        server.close()


async def _end_on_signal(path: str) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            log.info("%s: unmounting %s", signal.Signals(number).name, path)
            with trio.move_on_after(10):
                done = await trio.run_process(
                    mountpoints.unmount_argv(path), capture_stderr=True, check=False
                )
                if done.returncode == 0:
                    return
            users = ", ".join(device for device, _ in mountpoints.loop_devices(path))
            log.warning(
                "%s is in use%s: detached; its users get errors from now on",
                path,
                f" by {users}" if users else "",
            )
            pyfuse3.terminate()
            return


# ---- the session ----


@contextlib.contextmanager
def _mounted(operations: VolumeOperations, path: str, options: MountOptions) -> Iterator[int]:
    """Mount; yield the file descriptor of the FUSE device; unmount."""
    before = _device_fds()
    with _printed_by_libfuse() as printed:
        try:
            pyfuse3.init(operations, path, _fuse_options(options))
        except RuntimeError:
            why = printed().splitlines()[-1:] or ["no reason given"]
            raise RaidxError(
                f"{path} could not be mounted: {why[0].removeprefix('fuse: ')}"
            ) from None
    try:
        (device_fd,) = _device_fds() - before
        yield device_fd
    finally:
        pyfuse3.close(unmount=True)


def _fuse_options(options: MountOptions) -> set[str]:
    # A comma would begin another mount option; pyfuse3 takes ASCII only.
    source = "".join("_" if c in "\\," or not c.isascii() else c for c in options.source)
    chosen = set(pyfuse3.default_options) | {f"fsname={source}", "subtype=raidx"}
    if options.allow_other:
        chosen.add("allow_other")
    if options.read_only:
        chosen.add("ro")
    return chosen


def _device_fds() -> set[int]:
    """Return this process's open FUSE devices; pyfuse3 does not expose the descriptor."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            if os.readlink(f"/proc/self/fd/{name}") == _DEVICE:
                found.add(int(name))
    return found


@contextlib.contextmanager
def _printed_by_libfuse() -> Iterator[Callable[[], str]]:
    """Capture what C code writes to standard error: libfuse gives its reasons only there."""
    caught = os.memfd_create("raidx-stderr")
    kept = os.dup(2)
    os.dup2(caught, 2)

    def printed() -> str:
        return os.pread(caught, 1 << 16, 0).decode(errors="replace").strip()

    try:
        yield printed
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(caught)


# ---- the kernel's side ----


def _cpu_latency(readers: SessionWorkers | None) -> Protection:
    if readers is None:
        return Protection(False, "needs the poll-first loop")
    reason = readers.busy_poll.cpu_latency.reason
    return Protection(reason is None, reason)


def _tune(path: str) -> Protection:
    """Deepen the kernel's queue for this mount: its default of 12 requests starves slow members."""
    mount = mountpoints.find(path)
    if mount is None:
        return Protection(False, "the mount is gone")
    major, minor = mount.device
    connection = Path(f"/sys/fs/fuse/connections/{minor}")
    try:
        (connection / "max_background").write_text(str(_MAX_BACKGROUND))
        (connection / "congestion_threshold").write_text(str(_CONGESTION_THRESHOLD))
        Path(f"/sys/class/bdi/{major}:{minor}/read_ahead_kb").write_text(str(_READ_AHEAD_KIB))
    except PermissionError:
        return Protection(False, "needs root")
    except FileNotFoundError:
        return Protection(False, "fusectl is not mounted on /sys/fs/fuse/connections")
    except OSError as error:
        return Protection(False, os.strerror(error.errno or 0).lower())
    return Protection(True)
