"""Serves one mount: opens its members, runs their arrays, serves volumes and commands.

    daemonize.start(body(request)) -> members -> arrays -> volumes -> pool -> commands
        -> mount.serve, or without a mount:
           listen -> make the control socket -> on_ready(report) -> clients ... -> SIGTERM

Everything is closed in reverse order: the mount and the door for NBD clients, the moves between
arrays, then the arrays (flushed, marked clean), then the members, whose locks are released last.
Without a mount point nothing of FUSE is imported.
"""

from __future__ import annotations

import logging
import os
import signal
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.daemon import control_client, control_server, daemonize, paths
from raidx_fuse.daemon.commands.balance import BalanceCommands
from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.commands.dispatch import Dispatcher
from raidx_fuse.daemon.commands.events import EventCommands
from raidx_fuse.daemon.commands.lab import LabCommands
from raidx_fuse.daemon.commands.volumes import VolumeCommands
from raidx_fuse.daemon.drives import Drives
from raidx_fuse.daemon.events.delivery import Delivery, delivering
from raidx_fuse.daemon.events.event import INFO, unix_s
from raidx_fuse.daemon.events.sources import Watch
from raidx_fuse.daemon.events.store import EventStore, state_directory
from raidx_fuse.daemon.member_files import Disks
from raidx_fuse.daemon.memory_protection import few_collections, protect
from raidx_fuse.daemon.metadata import METADATA, MetadataFiles, MetadataKeeper
from raidx_fuse.daemon.paths import own_directory
from raidx_fuse.daemon.shared_spares import SharedSpares
from raidx_fuse.errors import FormatError, RaidxError, Reason, single
from raidx_fuse.fuse.mountpoint import loop_devices
from raidx_fuse.journal.group_commit import Deferral
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.loop.busy_poll import Sources
from raidx_fuse.members.base import Member
from raidx_fuse.members.simulated.lab_member import LabMember
from raidx_fuse.pool.array_volumes import ArrayVolumes, open_volumes
from raidx_fuse.pool.hotspots.balancer import JobMover, watched
from raidx_fuse.pool.hotspots.sampler import Sampler
from raidx_fuse.pool.monitor import Monitor
from raidx_fuse.pool.move import open_pool
from raidx_fuse.pool.other_arrays import remembering
from raidx_fuse.pool.pool import by_array, check_names

if TYPE_CHECKING:
    from raidx_fuse.documents import DaemonReport, NbdServer
    from raidx_fuse.nbd.door import Door

log = logging.getLogger(__name__)

# For asking the daemon of another array, whose image a new member is on, for its members.
ASK_S = 5.0
# Of the files of histories.
SAVE_S = 300.0
FILES_KEPT = 64
BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class MountRequest:
    """The arguments of `raidx mount` and `raidx serve`; all paths are absolute.

    *mode* are the permissions of the images. Without a *mountpoint* there is only *nbd*, the
    address of the door for NBD clients; *tls* is the folder of its certificates, *any_user* lets
    all users of this machine in. With *lab* the members can be broken (daemon/commands/lab.py).
    *accepted* are members that are used although somebody else has made another format on them,
    whose signature is cleared.
    """

    members: tuple[str, ...]
    mountpoint: str = ""
    read_only: bool = False
    allow_other: bool = False
    start_degraded: bool = False
    mode: int = 0o600
    nbd: str = ""
    tls: str = ""
    any_user: bool = False
    lab: bool = False
    accepted: tuple[str, ...] = ()


def body(request: MountRequest) -> daemonize.Body:
    """Return the function that the daemon runs; it reports the array's status when ready."""
    return lambda ready: trio.run(_serve, request, ready)


async def _serve(request: MountRequest, ready: daemonize.Ready) -> None:
    """Serve until the end. Raises RaidxError also if an array could not be closed cleanly."""
    files = paths.files_in(paths.own_directory(), _place(request))
    served = False

    def note_ready(status: Mapping[str, object]) -> None:
        nonlocal served
        served = True
        files.end.unlink(missing_ok=True)
        ready(status)

    try:
        wrap = _breakable if request.lab else None
        with Disks(read_only=request.read_only, wrap=wrap) as disks:
            await _serve_disks(request, disks, note_ready)
    except BaseException as caught:
        error = single(caught)
        if served:  # who waits for this process to end learns why (`raidx umount`)
            why = error.message if isinstance(error, RaidxError) else f"a bug ended it: {error!r}"
            paths.note_end(files, why)
        raise error from None


def _place(request: MountRequest) -> str:
    """Return the path that commands about the mount or server are given."""
    if request.mountpoint:
        return request.mountpoint
    from raidx_fuse.nbd.address import parse_address  # late: most mounts have no door

    return parse_address(request.nbd, tls=bool(request.tls)).place


async def _serve_disks(request: MountRequest, disks: Disks, ready: daemonize.Ready) -> None:
    shown: list[ArrayVolumes] = []
    commands: list[ArrayCommands] = []
    watches: list[Watch] = []
    deferral, sources = Deferral(), Sources()
    async with AsyncExitStack() as stack:
        delivery = Delivery(EventStore(state_directory()))
        await stack.enter_async_context(delivering(delivery))
        opened, left_out = disks.attach_usable(request.members)
        await disks.claim(opened, request.mountpoint or request.nbd)
        cleared = [text for spec in request.accepted for text in await disks.accept(spec)]
        groups = await by_array(opened)
        for members in groups:
            place = request.mountpoint or request.nbd
            drives = Drives()
            watch = Watch(delivery.emit, place, unix_s, drives, beside_others=len(groups) > 1)
            stack.callback(watch.ended)
            keeper = MetadataKeeper(MetadataFiles(state_directory() / METADATA), unix_s)
            stack.push_async_callback(keeper.ended)
            array = await stack.enter_async_context(
                open_array(
                    members,
                    read_only=request.read_only,
                    start_degraded=request.start_degraded,
                    unix_s=unix_s,
                    left_out=() if shown else left_out,
                )
            )
            if not shown:
                array.warnings.extend(cleared)
            array.context.journal.share(deferral)
            present = list(array.member_set.present().values())
            out_of_date = [member for member, _ in array.stale]
            for member in members:
                if member in present:
                    continue
                if member in out_of_date:  # it may join again, in any role
                    disks.note_failed(member)
                else:
                    disks.let_go(member)  # it is no member, or cannot be used
            volumes = await stack.enter_async_context(open_volumes(array))
            array.on_size.append(volumes.note_size)
            array.on_release.append(disks.let_go)
            array.member_set.on_fail.append(partial(_note_failed, disks, array))
            array.replacement.on_failed.append(disks.note_failed)
            watch.begin(array)
            watches.append(watch)
            array.nursery.start_soon(watch.run)
            array.nursery.start_soon(drives.run, array)
            array.nursery.start_soon(delivery.digest, watch)
            if not request.read_only:
                keeper.begin(array)
                array.nursery.start_soon(keeper.run)
            events = EventCommands(array.uuid, delivery, watch)
            shown.append(volumes)
            commands.append(ArrayCommands(array, volumes.volumes, disks, events, drives))
        pool = await stack.enter_async_context(open_pool(shown))
        check_names(pool.arrays)
        await stack.enter_async_context(remembering(pool))
        histories = HistoryFiles(own_directory(), pool.arrays, trio.current_time())
        balancer = await stack.enter_async_context(
            watched(pool.arrays, JobMover(pool), histories.load())
        )
        balancer.on_sample.append(
            lambda: histories.save_now_and_then(balancer.monitor, trio.current_time())
        )
        balancer.on_sample.append(partial(_note_loads, watches, balancer.sampler))
        stack.callback(lambda: histories.save(balancer.monitor))
        dispatcher = Dispatcher(
            commands,
            VolumeCommands(pool, commands[0].path_of, _loop_devices),
            BalanceCommands(balancer),
            LabCommands([one.array for one in shown], lambda: disks.opened, asdict(request)),
        )

        by_uuid = {one.array.uuid: watch for one, watch in zip(shown, watches, strict=True)}

        def tell_of_spare(array: Array, path: str, text: str) -> None:
            delivery.emit(by_uuid[array.uuid].event("SpareShared", INFO, text, path))

        arrays = [volumes.array for volumes in shown]
        arrays[0].nursery.start_soon(SharedSpares(arrays, tell_of_spare).run)
        door = None
        if request.nbd:
            from raidx_fuse.nbd.address import parse_address, tls_context  # late: most have no door
            from raidx_fuse.nbd.door import Door

            context = tls_context(request.tls) if request.tls else None
            address = parse_address(request.nbd, tls=bool(request.tls))
            door = Door(address, context, deferral, sources, any_user=request.any_user)
            for volumes in shown:
                for volume in volumes.volumes:
                    door.show(volume)
                volumes.front_ends.append(door)
        serving = _Serving(request, disks, shown, commands, dispatcher, ready, deferral, sources)
        if request.mountpoint:
            await serving.mount(door)
        else:
            assert door is not None, "a mount point or an address is given"
            await serving.stand(door)
    for array in (volumes.array for volumes in shown):
        if array.not_closed is not None:
            raise RaidxError(
                f"{array.name} could not be closed cleanly: {array.not_closed.message}",
                action="what no flush covered may be lost; the next mount recovers the rest",
                reason=Reason.NOT_CLOSED,
            )


@dataclass(frozen=True, slots=True)
class _Serving:
    """What serves the volumes of *arrays*, each with its *commands*, with or without a mount."""

    request: MountRequest
    disks: Disks
    arrays: list[ArrayVolumes]
    commands: list[ArrayCommands]
    dispatcher: Dispatcher
    ready: daemonize.Ready
    deferral: Deferral
    sources: Sources

    def _announce(self, report: Callable[[], DaemonReport]) -> None:
        for commands in self.commands:
            commands.mount_report = report
        self.ready(self.dispatcher.report())

    async def stand(self, door: Door) -> None:
        """Serve the clients of *door* alone, and commands, until SIGTERM, SIGINT or SIGHUP."""
        files = paths.own_files(door.address.place)
        server = control_server.ControlServer(files.socket, self.dispatcher.handle)
        ends = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
        try:
            with few_collections(), trio.open_signal_receiver(*ends) as signals:
                async with _opened(door), trio.open_nursery() as nursery:
                    protections = protect().as_dict()
                    self._announce(
                        lambda: {
                            **files.as_dict(),
                            "nbd": _described(door),
                            "protections": protections,
                            "bugs": door.bugs,
                        }
                    )
                    nursery.start_soon(server.run)
                    async for number in signals:
                        log.info("%s: serving ends", signal.Signals(number).name)
                        break
                    nursery.cancel_scope.cancel()
        finally:
            server.close()

    async def mount(self, door: Door | None) -> None:
        """Serve the mount, and NBD clients if there is a *door*, until it is unmounted."""
        from raidx_fuse.daemon.mount import MountOptions, MountReport, serve  # late: needs FUSE

        def on_ready(report: MountReport) -> None:
            for volumes in self.arrays:
                volumes.front_ends.append(report.operations)
            self.disks.mounted(report.device, _members_of)
            self._announce(report.as_dict)

        request = self.request
        options = MountOptions(
            source="+".join(volumes.array.name for volumes in self.arrays),
            allow_other=request.allow_other,
            read_only=request.read_only,
            mode=request.mode,
            nbd=None if door is None else partial(_described, door),
            deferral=self.deferral,
            sources=self.sources,
            space=self._space,
        )
        shown = [volume for volumes in self.arrays for volume in volumes.volumes]
        async with _opened(door):
            await serve(shown, request.mountpoint, self.dispatcher.handle, on_ready, options)

    def _space(self) -> tuple[int, int]:
        """Return the bytes that the arrays have for volumes, and how many of them are written."""
        total = written = 0
        for volumes in self.arrays:
            array = volumes.array
            total += array.room_bytes
            context = array.context
            chunks = context.written.count_written()
            written += min(chunks * context.chunk_bytes, array.room_bytes)
        return total, written


def _note_loads(watches: Sequence[Watch], sampler: Sampler) -> None:
    """Let each watch see the newest load of its array."""
    for watch, load in zip(watches, sampler.arrays(), strict=True):
        watch.note_load(load)


def _breakable(member: Member, spec: str) -> Member:
    """Return *member* with faults to switch on. The seed is that of the specification."""
    return LabMember(member, spec=spec, seed=zlib.crc32(spec.encode()))


def _note_failed(disks: Disks, array: Array, role: Role) -> None:
    """Let the member of *role* of *array*, which has failed, join again under its path."""
    queue = array.member_set.queues[role]
    if queue is not None:
        disks.note_failed(queue.member)


def _loop_devices(path: str) -> list[str]:
    folder = path.rpartition("/")[0]
    return [device for device, image in loop_devices(folder) if image == path]


def _members_of(mountpoint: str) -> list[str]:
    """Return the members of the array mounted on *mountpoint*. Raises ControlError."""
    status = control_client.call(mountpoint, "status", timeout_s=ASK_S)
    arrays = status.get("arrays", [status])
    return [str(m["path"]) for array in arrays for m in array["members"] if m["path"]]


# -- the door for NBD clients ----------------------------------------------------------------------


def _described(door: Door) -> NbdServer:
    return {
        "address": str(door.address),
        "place": door.address.place,
        "exports": door.uris(),
        "clients": door.clients,
        "refused": door.refused,
    }


@asynccontextmanager
async def _opened(door: Door | None) -> AsyncIterator[None]:
    """Serve the clients of *door*, if there is one, inside the block."""
    if door is None:
        yield
        return
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.run)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise single(group) from None
    finally:
        door.close()


class HistoryFiles:
    """The files of the arrays of *pool* in *directory*; now is *now_s* of the pool's clock.

    They carry the histories of a pool from one mount to the next: one for each array, beside the
    sockets and logs (paths.py), named by the array's UUID, with what was seen of the array and of
    its volumes. So the history of an array follows it to another mount point or into another pool
    on this machine. It is a hint, not data: nothing of it is on the members, no request waits for
    it, and a history that is missing or cannot be read begins anew.

    They are written at the end of a mount and every `SAVE_S`, as a whole, and replace the old ones
    by a rename. Files of arrays that were not mounted for long are removed.
    """

    def __init__(self, directory: Path, pool: Sequence[ArrayVolumes], now_s: float) -> None:
        self._directory = directory
        self._pool = pool
        self._saved_s = now_s

    def load(self) -> Monitor:
        """Return the histories of the last mount, as far as there are any."""
        monitor = Monitor()
        for part in self._pool:
            path = self._path(part.array.uuid)
            try:
                if path.stat().st_size > BYTES_MAX:
                    raise FormatError("the pool's history is too long")
                kept = Monitor.from_bytes(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, RaidxError) as error:
                log.warning("the history of array %s begins anew: %s", part.array.name, error)
                continue
            kept.resume_at(self._saved_s)
            known = (volume.uuid for volume in part.volumes)
            monitor.take_over(kept.part(part.array.uuid, known))
        return monitor

    def save_now_and_then(self, monitor: Monitor, now_s: float) -> None:
        if now_s - self._saved_s >= SAVE_S:
            self._saved_s = now_s
            self.save(monitor)

    def save(self, monitor: Monitor) -> None:
        """Write the histories; what cannot be written is reported in the log only."""
        for part in self._pool:
            path = self._path(part.array.uuid)
            if part.array.uuid not in monitor.arrays:
                continue
            new = path.with_suffix(f".new{os.getpid()}")
            content = monitor.part(part.array.uuid, (v.uuid for v in part.volumes)).to_bytes()
            try:
                new.write_bytes(content)
                new.replace(path)
            except OSError as error:
                log.warning("the history of array %s is not kept: %s", part.array.name, error)
                with suppress(OSError):
                    new.unlink()
        self._sweep(self._path(part.array.uuid) for part in self._pool)

    def _path(self, uuid: str) -> Path:
        return self._directory / f"{uuid}.history"

    def _sweep(self, own: Iterable[Path]) -> None:
        kept, others = set(own), []
        for path in self._directory.glob("*.history"):
            if path not in kept:
                with suppress(OSError):
                    others.append((path.stat().st_mtime, path))
        for _, path in sorted(others, reverse=True)[FILES_KEPT:]:
            with suppress(OSError):
                path.unlink()
