"""The NBD server: accepts clients, carries out their handshakes, and serves them side by side.

The owner of a client on loopback: the kernel lists the TCP sockets of this network namespace with
their owners. The client's has the addresses of ours the other way round. One that its process has
closed already has no owner: it is listed with uid 0 and inode 0, and counts as unknown.

  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   3: 0100007F:A2C4 0100007F:2A39 01 00000000:00000000 00:00000000 00000000  1000        0 71236
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
from contextlib import suppress

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.journal.group_commit import Deferral
from raidx_fuse.loop.acceptor import Places, accept
from raidx_fuse.loop.busy_poll import BusyPoll, CpuLatencyRequest, Sources
from raidx_fuse.members.kernel_files import kernel_text
from raidx_fuse.members.nbd.protocol.server import ServerHandshake
from raidx_fuse.members.nbd.protocol.wire import ProtocolError
from raidx_fuse.members.threads import in_thread
from raidx_fuse.nbd.address import Address, listener, remove
from raidx_fuse.nbd.connection import Budget, Client, ClientPipe
from raidx_fuse.nbd.requests import exports_of
from raidx_fuse.pool.volume import Volume

log = logging.getLogger(__name__)

CLIENTS_MAX = 128
HANDSHAKES_MAX = 128  # beside them: one client may open that many connections at once
HANDSHAKE_S = 10.0
_SEND_BUFFER_BYTES = 2 << 20
_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_UID, _INODE = 7, 9  # columns
_SO_SNDBUFFORCE = 32  # beyond net.core.wmem_max, for root; Linux, not in the module socket


class Door:
    """Serves volumes on *address* until cancelled; with *tls*, only to clients that use it.

    A port of loopback without TLS is for clients of root and of this process's user only, unless
    *any_user*: a Unix socket has a mode, and TLS certificates, but a port is open to every user.

    It is a front end: `show` and `hide` say which volumes are exports. The constructor listens;
    `close` stops that. *deferral* is that of the volumes' journals, *sources* those of all front
    ends. *bugs* counts requests that met a bug (each got EIO and a traceback in the log), *clients*
    the clients that have opened a volume, *refused* those turned away.

    Clients in the handshake take no place of another: one too many there ends the oldest one.
    """

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        deferral: Deferral | None = None,
        sources: Sources | None = None,
        *,
        any_user: bool = False,
    ) -> None:
        self.address = address
        self._asks_for_owner = not (address.path or tls is not None or any_user)
        self._budget = Budget()
        self.refused = 0
        self._tls = tls
        self._deferral = deferral or Deferral()
        self._sources = sources or Sources()
        self._volumes: list[Volume] = []
        self._served: set[Client] = set()
        self.clients = 0
        self._handshakes = Places(HANDSHAKES_MAX)
        self._bugs = 0
        self._listener = listener(address, CLIENTS_MAX)

    @property
    def bugs(self) -> int:
        return self._bugs + sum(client.handler.bugs for client in self._served)

    def uris(self) -> dict[str, str]:
        tls = self._tls is not None
        return {volume.name: self.address.uri(volume.name, tls=tls) for volume in self._volumes}

    def show(self, volume: Volume) -> None:
        """Make *volume* an export under its present name."""
        if volume not in self._volumes:
            self._volumes.append(volume)

    def hide(self, volume: Volume) -> None:
        if volume in self._volumes:
            self._volumes.remove(volume)

    def close(self) -> None:
        self._listener.close()
        remove(self.address)

    async def run(self) -> None:
        """Serve clients until cancelled; what they began is carried out then."""
        sock = trio.socket.from_stdlib_socket(self._listener)
        async with trio.open_nursery() as nursery:
            busy_poll = BusyPoll(self._sources, CpuLatencyRequest(nursery.start_soon))
            try:
                while True:
                    client = await accept(sock, "an NBD client")
                    if self.clients >= CLIENTS_MAX:
                        self.refused += 1
                        client.close()
                        continue
                    nursery.start_soon(self._serve, _stdlib(client), busy_poll)
            finally:
                busy_poll.cpu_latency.close()
                for served in self._served:
                    served.stop()

    async def _serve(self, sock: socket.socket, busy_poll: BusyPoll) -> None:
        pipe = ClientPipe(sock)
        try:
            opened = await self._opened(pipe) if await self._is_welcome(sock) else None
            if opened is not None:
                await self._serve_volume(pipe, busy_poll, *opened)
        finally:
            pipe.close()

    async def _is_welcome(self, sock: socket.socket) -> bool:
        if not self._asks_for_owner:
            return True
        with suppress(OSError, RaidxError):
            owner = await _owner_of_peer(sock)
            if owner in {0, os.getuid()}:
                return True
            log.warning("%s: a client of uid %s was refused", self.address, owner)
        self.refused += 1
        return False

    async def _opened(self, pipe: ClientPipe) -> tuple[Volume, bytes] | None:
        """Return what `_handshake` does, None also if it fails or takes too long as a whole."""
        self.refused += self._handshakes.taken >= HANDSHAKES_MAX
        if not self._handshakes.take():
            return None
        try:
            with (
                suppress(OSError, ProtocolError),
                trio.move_on_after(HANDSHAKE_S) as handshake,
                self._handshakes.idle(handshake),
            ):
                return await self._handshake(pipe)
        finally:
            self._handshakes.leave()
        return None

    async def _serve_volume(
        self, pipe: ClientPipe, busy_poll: BusyPoll, volume: Volume, first: bytes
    ) -> None:
        if volume not in self._volumes:
            return  # deleted during the handshake: its places may be those of another one
        if self.clients >= CLIENTS_MAX:  # others were faster
            self.refused += 1
            return
        self.clients += 1
        self._sources.add(pipe.fd)
        client = Client(pipe, volume, self._deferral, busy_poll, self._budget)
        self._served.add(client)
        volume.note_opened()
        try:
            await client.serve(first)
        finally:
            self.clients -= 1
            volume.note_closed()
            self._served.remove(client)
            self._bugs += client.handler.bugs

    async def _handshake(self, pipe: ClientPipe) -> tuple[Volume, bytes] | None:
        """Return the volume that the client opens, and what came behind; None if it leaves.

        Raises OSError, ProtocolError.
        """
        volumes = {volume.name: volume for volume in self._volumes}
        handshake = ServerHandshake(exports_of(self._volumes), tls=self._tls is not None)

        async def start_tls() -> bool:
            return self._tls is not None and await pipe.start_tls(self._tls, server_side=True)

        export = await pipe.shake_hands(handshake, start_tls)
        if export is None:
            return None
        pipe.export = export
        return volumes[export.name], bytes(handshake.rest)


def _stdlib(client: trio.socket.SocketType) -> socket.socket:
    """Return the socket of *client* for use without trio's wrapper."""
    sock = socket.socket(fileno=client.detach())
    sock.setblocking(False)
    # A reply of 1 MiB that the socket takes at once is not copied.
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER_BYTES)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


async def _owner_of_peer(sock: socket.socket) -> int | None:
    """Return the uid of the client on loopback, None if it is not listed.

    Raises OSError, RaidxError.
    """
    ends = sock.getpeername(), sock.getsockname()
    peer, own = (_shown(sock.family, *end[:2]) for end in ends)
    file = _TABLES[socket.AddressFamily(sock.family)]
    table = await in_thread(file, lambda: kernel_text(file))
    at = table.find(f" {peer} {own} ")
    if at < 0:
        return None
    begin = table.rfind("\n", 0, at) + 1
    columns = table[begin : table.find("\n", at)].split()
    return int(columns[_UID]) if int(columns[_INODE]) else None


def _shown(family: int, host: str, port: int) -> str:
    """Return an address as the kernel shows it: words of 32 bits in the order of the machine."""
    packed = socket.inet_pton(family, host.partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
