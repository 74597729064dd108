"""Serve one bytearray as a mounted image, in a process of its own: what the mount tests mount.

    fake_mount.py MOUNTPOINT [--size BYTES] [--delay SECONDS] [--daemon LOG] ...

Standard output: one JSON line when ready, then one line per event that a test asks about.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from raidx_fuse.daemon import daemonize, mount
from raidx_fuse.errors import NoSpaceError, RaidxError, UnrecoverableError, UsageError
from raidx_fuse.fuse import session_loop
from raidx_fuse.fuse.workers import SessionWorkers
from raidx_fuse.journal.group_commit import Deferral, Handler
from raidx_fuse.loop.busy_poll import BusyPoll
from raidx_fuse.pool.volume import Volume

KIB = 1024


class FakeDisk:
    """A bytearray with the volume's three calls, and counters.

    *delay_s* makes each request suspend that long. With *faults*, reads at *bad_offset* raise
    UnrecoverableError, at *bug_offset* ZeroDivisionError; writes at *full_offset* NoSpaceError.
    """

    bad_offset = 512 * KIB
    bug_offset = 576 * KIB
    full_offset = 640 * KIB

    def __init__(self, size_bytes: int, delay_s: float, faults: bool) -> None:
        self.data = bytearray(size_bytes)
        self.delay_s = delay_s
        self.faults = faults
        self.counts = {"reads": 0, "writes": 0, "flushes": 0, "in_flight": 0, "in_flight_max": 0}

    async def _wait(self) -> None:
        counts = self.counts
        counts["in_flight"] += 1
        counts["in_flight_max"] = max(counts["in_flight_max"], counts["in_flight"])
        try:
            await trio.sleep(self.delay_s)
        finally:
            counts["in_flight"] -= 1

    async def read(self, offset: int, size: int) -> memoryview:
        """Return a view: valid until the caller's next await."""
        self.counts["reads"] += 1
        assert 0 <= offset <= offset + size <= len(self.data)
        if self.delay_s:
            await self._wait()
        if self.faults and offset == self.bad_offset:
            raise UnrecoverableError("stripe 8 has lost two chunks")
        if self.faults and offset == self.bug_offset:
            raise ZeroDivisionError("a bug of the test's own")
        return memoryview(self.data)[offset : offset + size]

    async def write(self, offset: int, data: bytes) -> None:
        self.counts["writes"] += 1
        assert 0 <= offset <= offset + len(data) <= len(self.data)
        if self.delay_s:
            await self._wait()
        if self.faults and offset == self.full_offset:
            raise NoSpaceError("the host of a member is full")
        self.data[offset : offset + len(data)] = data

    async def flush(self) -> None:
        self.counts["flushes"] += 1
        if self.delay_s:
            await self._wait()


def see_phantoms(every: int) -> None:
    """Let each *every*th look into an empty queue see a request: one that its caller withdrew."""
    construct = SessionWorkers.__init__

    def construct_with_phantoms(
        self: SessionWorkers,
        device_fd: int,
        start_worker: Callable[[], None],
        finish: Callable[[Handler], None],
        busy_poll: BusyPoll,
        deferral: Deferral | None = None,
    ) -> None:
        construct(self, device_fd, start_worker, finish, busy_poll, deferral)
        looks = itertools.count(1)

        def with_phantoms(look: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *a: look(*a) or ([(device_fd, 1)] if next(looks) % every == 0 else [])

        self._look = with_phantoms(self._look)
        self.busy_poll._look = with_phantoms(self.busy_poll._look)

    SessionWorkers.__init__ = construct_with_phantoms  # type: ignore[method-assign]


def serve(options: argparse.Namespace, ready: Callable[[dict[str, Any]], None]) -> None:
    disk = FakeDisk(options.size, options.delay, options.faults)
    volume = Volume(
        "disk",
        options.size,
        read=disk.read,
        write=disk.write,
        flush=disk.flush,
        read_only=options.read_only,
    )
    if options.stock:
        session_loop.VERSIONS_KNOWN = ((0, 0), (0, 0))
    if options.phantom:
        see_phantoms(options.phantom)
    reports: list[mount.MountReport] = []

    async def control(command: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        if command == "counts":
            return dict(disk.counts)
        if command == "grow":
            disk.data.extend(bytes(arguments["by"]))
            await volume.resize(len(disk.data))
            return {"size": volume.size_bytes}
        if command == "report":
            return reports[0].as_dict()
        if command == "ticks":
            # How often a background task runs while the mount is busy.
            ticks = 0
            with trio.move_on_after(arguments["seconds"]):
                while True:
                    await trio.lowlevel.checkpoint()
                    ticks += 1
            return {"ticks": ticks}
        if command == "refuse":
            raise RaidxError("refused", action="ask for something else")
        if command == "status":  # `raidx array list` of a test beside this one asks every mount
            raise UsageError("this is no array")
        raise KeyError(command)

    def on_ready(report: mount.MountReport) -> None:
        reports.append(report)
        ready(report.as_dict())

    async def main() -> None:
        await mount.serve(
            [volume],
            options.mountpoint,
            control,
            on_ready,
            mount.MountOptions(
                source="raidx:fake",
                page_cache=options.page_cache,
                read_only=options.read_only,
            ),
        )

    trio.run(main)
    if options.keep:
        Path(options.keep).write_bytes(disk.data)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mountpoint")
    parser.add_argument("--size", type=int, default=1 << 20)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--page-cache", action="store_true")
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--phantom", type=int, metavar="N")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--daemon", metavar="LOG")
    parser.add_argument("--keep", metavar="FILE", help="write the disk there at the end")
    options = parser.parse_args()
    options.mountpoint = os.path.abspath(options.mountpoint)

    def ready(report: Mapping[str, Any]) -> None:
        print(json.dumps(report), flush=True)

    try:
        if options.daemon:
            ready(daemonize.start(lambda tell: serve(options, tell), Path(options.daemon)))
        else:
            daemonize.run_in_foreground(lambda tell: serve(options, tell), ready)
    except RaidxError as error:
        print(f"raidx: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
