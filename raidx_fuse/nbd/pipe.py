"""The connection of a client: its socket, with TLS or without, used by the event loop only."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Sequence
from contextlib import suppress

import trio

from raidx_fuse.members.nbd.dial import SocketPipe
from raidx_fuse.members.nbd.pipe import Piece
from raidx_fuse.members.nbd.protocol.wire import Export
from raidx_fuse.nbd.peer import owner_of_peer

_TLS_PIECE_BYTES = 1 << 16


class ClientPipe(SocketPipe):
    """A socket that was accepted.

    Only one task reads. Any task may `put` replies: what the socket does not take now, the task of
    `drain` sends later.
    """

    def opened(self, export: Export) -> None:
        """Note the export that the client has opened."""
        self.export = export

    @property
    def fd(self) -> int:
        """The file descriptor of the socket."""
        return self._socket.fileno()

    async def owner_of_peer(self) -> int | None:
        """Return the uid of the client on loopback, None if nobody knows it.

        Raises OSError, RaidxError.
        """
        return await owner_of_peer(self._socket)

    def try_receive(self, buffer: memoryview) -> int:
        """Fill the beginning of *buffer* without blocking; return how many bytes, -1 for none yet.

        0 is the end. Raises OSError.
        """
        self._adopt()
        if self._tls is not None:
            return -1  # `receive_into` decrypts
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return -1

    def put(self, pieces: Sequence[Piece]) -> bool:
        """Send *pieces* in order, or keep what does not go without blocking; return if all went.

        What is kept is copied. Raises OSError.
        """
        if self._rest:  # `drain` is at it
            self._rest += [bytes(piece) for piece in self._coded(pieces)]
            return False
        if self.try_send(pieces):
            return True
        self._rest = [bytes(piece) for piece in self._rest]
        return False

    def _coded(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        return [self._encrypted(pieces)] if self._tls is not None else pieces

    @property
    def waiting_bytes(self) -> int:
        """How much the client has not taken yet."""
        return sum(map(len, self._rest))

    async def drain(self) -> None:
        """Send what `put` kept. Raises OSError."""
        while self._rest:
            await self.drain_some()

    async def drain_some(self) -> None:
        """Send a part of what `put` kept, when the client takes it. Raises OSError."""
        try:
            self._send_some()
        except BlockingIOError:
            await trio.lowlevel.wait_writable(self._socket)

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Carry out the server's side of the TLS handshake. Raises OSError."""
        self._adopt()
        tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        while True:
            done = False
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self._rest.append(self._outgoing.read())  # the alert tells the client why
                with suppress(OSError):
                    self._send_some()
                raise ConnectionResetError(errno.ECONNRESET, f"TLS: {error.reason}") from None
            self._rest.append(self._outgoing.read())
            await self.drain()
            if done:
                self._tls = tls
                return
            self._received(await self._encrypted_bytes())

    async def _encrypted_bytes(self) -> bytes:
        while True:
            try:
                data = self._socket.recv(_TLS_PIECE_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
                continue
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "the client left")
            return data
