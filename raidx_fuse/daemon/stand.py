"""The lifecycle of `raidx serve`: volumes by NBD without a mount.

    listen -> make the control socket -> on_ready(report) -> clients ... -> SIGTERM -> serve returns

The caller flushes and closes the array after `serve` has returned or raised. This module needs no
FUSE.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from raidx_fuse.daemon import control_server, paths
from raidx_fuse.daemon.memory_protection import Protections, few_collections, protect
from raidx_fuse.errors import single

if TYPE_CHECKING:
    from raidx_fuse.documents import DaemonReport, NbdServer
    from raidx_fuse.journal.group_commit import Deferral
    from raidx_fuse.loop.busy_poll import Sources
    from raidx_fuse.nbd.door import Door

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StandReport:
    """What is served where, for `status`."""

    door: Door
    files: paths.RuntimeFiles
    protections: Protections

    def as_dict(self) -> DaemonReport:
        return {
            **self.files.as_dict(),
            "nbd": described(self.door),
            "protections": self.protections.as_dict(),
            "bugs": self.door.bugs,
        }


def described(door: Door) -> NbdServer:
    return {
        "address": str(door.address),
        "place": door.address.place,
        "exports": door.uris(),
        "clients": door.clients,
        "refused": door.refused,
    }


def make_door(address: str, tls: str, any_user: bool, deferral: Deferral, sources: Sources) -> Door:
    """Listen on *address* (raidx_fuse/nbd/address.py), with the certificates in *tls* if given.

    With *any_user*, every user of this machine may connect to a port.

    *deferral* is that of the journals, *sources* those of all front ends.

    Raises UsageError, RaidxError.
    """
    from raidx_fuse.nbd.address import parse_address, tls_context  # late: most mounts have no door
    from raidx_fuse.nbd.door import Door

    context = tls_context(tls) if tls else None
    place = parse_address(address, tls=bool(tls))
    return Door(place, context, deferral, sources, any_user=any_user)


@contextlib.asynccontextmanager
async def opened(door: Door | None) -> AsyncIterator[None]:
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


async def serve(
    door: Door, control_handler: control_server.Handler, on_ready: Callable[[StandReport], None]
) -> None:
    """Serve the clients of *door*, and commands, until SIGTERM, SIGINT or SIGHUP."""
    files = paths.own_files(door.address.place)
    server = control_server.ControlServer(files.socket, control_handler)
    ends = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    try:
        with few_collections(), trio.open_signal_receiver(*ends) as signals:
            async with opened(door), trio.open_nursery() as nursery:
                on_ready(StandReport(door, files, protect()))
                nursery.start_soon(server.run)
                async for number in signals:
                    log.info("%s: serving ends", signal.Signals(number).name)
                    break
                nursery.cancel_scope.cancel()
    finally:
        server.close()
