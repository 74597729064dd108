"""The connection of a member to its server as a pipe of bytes: TCP or Unix, TLS, the handshake.

A pipe is made, and used at first, outside of the event loop: members are opened synchronously, as
files are, by commands that need no trio and by threads of a daemon. The same functions serve both:
without an event loop (`run_without_loop`) they wait in poll, for at most the timeout of the pipe.
Afterwards the pipe belongs to the event loop.

The witness: over a Unix socket the kernel says which process sends (SO_PASSCRED). Once that process
has ended, nothing that it received will be carried out any more. The end of a TCP connection may
come from the network, while the server still holds requests. Where a proxy stands behind a Unix
socket, its end proves nothing about the server: name such servers by TCP.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import trio
from trio import lowlevel

from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.members import syscalls
from raidx_fuse.members.base import host_error
from raidx_fuse.members.nbd.heartbeat import FENCE_S, STALE_S
from raidx_fuse.members.nbd.protocol.client import ClientHandshake
from raidx_fuse.members.nbd.protocol.wire import Export, HandshakeSide
from raidx_fuse.members.nbd.uri import NbdUri
from raidx_fuse.members.threads import has_no_loop, run_without_loop

Piece = bytes | bytearray | memoryview

_RECEIVE_BYTES = 1 << 16


DIAL_S = 10.0  # timeout of connecting, the handshake, each request without an event loop
SOCKET_PATH_BYTES_MAX = 107
TURN_S = 0.001  # of one peer that sends on and on; then the event loop runs once

_UCRED = struct.Struct("=iII")  # pid, uid, gid
_TLS_PIECE_BYTES = 1 << 16
_LINGER = struct.Struct("ii")  # on, seconds
_DROP, _DELIVER = _LINGER.pack(1, 0), _LINGER.pack(0, 0)
# What is sent in the last moment of the fence is dropped before a takeover, even if this process is
# stopped meanwhile: by the kernel, unless the server has acknowledged it.
UNACKNOWLEDGED_S = STALE_S - FENCE_S
# The kernel would take megabytes, and a heartbeat behind them come too late over a slow link.
_UNSENT_BYTES = 256 << 10
_OPTIONS: tuple[tuple[int, int, int | bytes], ...] = (
    # A dead host is found out within 15 s also when nothing is requested.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1000)),
    (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES),
    (socket.SOL_SOCKET, socket.SO_LINGER, _DROP),  # also if this process is killed
)


def dial(uri: NbdUri, timeout_s: float = DIAL_S) -> Pipe:
    """Connect to *uri* and carry out the handshake.

    Raises MemberError (refused, no answer), and with the server's reason UsageError, RaidxError.
    """
    path = str(uri)
    try:
        sock = _connected(uri, timeout_s)
    except OSError as error:
        raise host_error(path, "open", error, detail=_told(uri, error)) from None
    pipe = Pipe(sock, timeout_s)
    try:
        run_without_loop(pipe.negotiate, uri)
    except OSError as error:
        pipe.close()
        told = "no answer to the handshake" if isinstance(error, TimeoutError) else str(error)
        raise host_error(path, "open", error, detail=told) from None
    except RaidxError as error:
        pipe.close()
        raise UsageError(
            f"{path}: {error.message}", action=error.action, reason=error.reason
        ) from None
    return pipe


def _connected(uri: NbdUri, timeout_s: float) -> socket.socket:
    if uri.socket:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(timeout_s)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before anything is sent
            sock.connect(uri.socket)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection((uri.host, uri.port), timeout_s)
    for level, option, value in _OPTIONS:
        sock.setsockopt(level, option, value)
    return sock


def _told(uri: NbdUri, error: OSError) -> str:
    """Return in words why no connection was made."""
    place = uri.socket or f"{uri.host}:{uri.port}"
    if len(os.fsencode(uri.socket)) > SOCKET_PATH_BYTES_MAX:
        return f"the path of its socket is longer than {SOCKET_PATH_BYTES_MAX} bytes: make a link"
    if isinstance(error, ConnectionRefusedError):
        return f"no server listens on {place}: start it"
    if isinstance(error, TimeoutError):
        return f"{place} does not answer"
    if isinstance(error, FileNotFoundError):
        return f"there is no socket {place}: start its server"
    if isinstance(error, socket.gaierror):
        return f"the host {uri.host!r} is not known"
    return error.strerror or str(error)


class Pipe:
    """A connected socket, with TLS or without; *export* says what the handshake agreed.

    *timeout_s* is for the handshake and for each request without an event loop, as a whole. *real*
    is false for pipes in memory: their time is virtual. All methods raise OSError when the
    connection is cut.
    """

    export: Export
    real = True

    def __init__(self, sock: socket.socket, timeout_s: float = DIAL_S) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._timeout_s = timeout_s
        self._end_s = 0.0  # of what blocks now, by the monotonic clock
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._rest: list[Piece] = []  # accepted for sending, not sent yet
        self._pidfd = -1
        self._drained = False  # whether the last read took all that there was
        self._left_loop_s = 0.0

    # -- the handshake -------------------------------------------------------------------------

    async def negotiate(self, uri: NbdUri) -> None:
        """Carry out the handshake of a client. Raises OSError, RaidxError."""
        self.begin_now()
        handshake = ClientHandshake(uri.export, tls=uri.tls)
        handshake.receive(await self._greeting())
        export = await self.shake_hands(handshake, lambda: self._start_tls(uri))
        if export is None:
            raise ConnectionResetError(
                errno.ECONNRESET,
                "the server closed the connection during the handshake: "
                "it may not have that export, or serve one client at a time",
            )
        self.export = export

    async def shake_hands(
        self, handshake: HandshakeSide, start_tls: Callable[[], Awaitable[bool]]
    ) -> Export | None:
        """Return the export of *handshake*, None if the other side leaves or opens none.

        Raises OSError, RaidxError.
        """
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        while True:
            if output := handshake.output():
                self.try_send([output])
                await self.drain()
            if handshake.ended:
                return handshake.export
            if handshake.tls_due:
                if not await start_tls():
                    return None
                handshake.tls_started()
                continue
            count = await self.receive_into(buffer)
            if not count:
                return None
            handshake.receive(buffer[:count])

    async def _greeting(self) -> bytes:
        """Return the first bytes of the server, and learn its process if there is a witness."""
        await self._wait(select.POLLIN)
        data, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(_UCRED.size))
        if self._socket.family == socket.AF_UNIX:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid = _UCRED.unpack_from(content)[0]
                if pid > 0 and pid != os.getpid():
                    with suppress(OSError):  # it is not visible here, or ended: no witness
                        self._pidfd = os.pidfd_open(pid)
        return data

    async def _start_tls(self, uri: NbdUri) -> bool:
        context = _context(uri)
        name = uri.tls_hostname or uri.host or None
        context.check_hostname = name is not None
        try:
            if await self.start_tls(context, name):
                return True
        except ssl.SSLCertVerificationError as error:
            raise UsageError(
                f"the server's certificate is refused: {error.verify_message}",
                action="give tls-certificates=DIR with its ca-cert.pem, or tls-hostname=NAME",
                reason=Reason.SERVER_REFUSED,
            ) from None
        except ssl.SSLError as error:
            raise UsageError(f"TLS failed: {error.reason}") from None
        raise UsageError(
            "the server closed the connection during the TLS handshake",
            action="give tls-certificates=DIR with client-cert.pem that it accepts",
            reason=Reason.SERVER_REFUSED,
        )

    async def start_tls(
        self, context: ssl.SSLContext, name: str | None = None, *, server_side: bool = False
    ) -> bool:
        """Encrypt from now on; return False if the other side leaves. Raises OSError, SSLError."""
        tls = context.wrap_bio(self._incoming, self._outgoing, server_side, name)
        while True:
            done = False
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                self._rest.append(self._outgoing.read())  # the alert tells the other side why
                with suppress(OSError):
                    self._send_some()
                raise
            self._rest.append(self._outgoing.read())
            await self.drain()
            if done:
                self._tls = tls
                return True
            if not await self._receive_encrypted():
                return False

    # -- bytes ---------------------------------------------------------------------------------

    def begin_now(self) -> None:
        """Begin something without an event loop: its time is limited as a whole."""
        self._end_s = time.monotonic() + self._timeout_s

    async def _wait(self, event: int) -> None:
        """Return when the socket can be read or written. Raises TimeoutError without a loop."""
        if has_no_loop():
            poll = select.poll()
            poll.register(self._socket, event)
            left_s = self._end_s - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                raise TimeoutError
        elif event == select.POLLIN:
            await lowlevel.wait_readable(self._socket)
        else:
            await lowlevel.wait_writable(self._socket)

    def try_send(self, pieces: Sequence[Piece]) -> bool:
        """Send what an earlier call left, then *pieces*, without blocking; False: a rest is left.

        A rest is sent by later calls only.
        """
        self._rest += [self._encrypted(pieces)] if self._tls is not None else pieces
        if self._rest:
            with suppress(BlockingIOError):
                self._send_some()
        return not self._rest

    async def wait_sendable(self) -> None:
        """Return when `try_send` may get rid of what it left."""
        await self._wait(select.POLLOUT)

    async def drain(self) -> None:
        """Send what `try_send` left. Raises OSError."""
        while self._rest:
            await self.drain_some()

    async def drain_some(self) -> None:
        """Send a part of what `try_send` left, when the other side takes it. Raises OSError."""
        try:
            self._send_some()
        except BlockingIOError:
            await self._wait(select.POLLOUT)

    def _send_some(self) -> None:
        done = self._socket.sendmsg(self._rest[: syscalls.IOV_MAX])
        self._rest = syscalls.after(self._rest, done)

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the beginning of *buffer*; return how many bytes, 0 at the end."""
        blocks = has_no_loop()
        if not (blocks or self._drained) and trio.current_time() - self._left_loop_s > TURN_S:
            await lowlevel.checkpoint()  # else a fast sender would stop all others
            self._left_loop_s = trio.current_time()
        if self._tls is None:
            while True:
                # A try would only cost a system call; or the time that is left must be looked at.
                if self._drained or blocks:
                    await self._wait(select.POLLIN)
                try:
                    done = self._socket.recv_into(buffer)
                except BlockingIOError:
                    self._drained = True
                    continue
                self._drained = done < len(buffer)
                return done
        while True:
            try:
                return _read_into(self._tls, buffer)
            except ssl.SSLWantReadError:
                await self._receive_encrypted()
            except ssl.SSLZeroReturnError:
                return 0
            except ssl.SSLError as error:
                raise _tls_broken(error) from None

    async def wait_received(self) -> None:
        """Return when `receive_into` may have something. It can be cancelled without a loss."""
        if self._tls is None or not self._tls.pending():
            await self._wait(select.POLLIN)

    async def _receive_encrypted(self) -> bool:
        """Take encrypted bytes; return False at the end of the connection."""
        if has_no_loop():
            await self._wait(select.POLLIN)
        while True:
            try:
                data = self._socket.recv(_TLS_PIECE_BYTES)
            except BlockingIOError:
                await self._wait(select.POLLIN)
                continue
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()
            return bool(data)

    def _encrypted(self, pieces: Sequence[Piece]) -> bytes:
        assert self._tls is not None
        try:
            for piece in pieces:
                view = memoryview(piece)
                for at in range(0, len(view), _TLS_PIECE_BYTES):
                    self._tls.write(view[at : at + _TLS_PIECE_BYTES])
        except ssl.SSLError as error:
            raise _tls_broken(error) from None
        return self._outgoing.read()

    def close(self) -> None:
        """Close the connection; what was sent still reaches the server. Idempotent."""
        if self._socket.fileno() >= 0 and self.can_drop:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DELIVER)
        self.abort()
        self.forget()

    def abort(self) -> None:
        """Close the connection; what the server has not received by now never leaves this machine.

        The witness stays. Idempotent.
        """
        if self._socket.fileno() < 0:
            return
        with suppress(RuntimeError):  # no event loop, or none any more
            lowlevel.notify_closing(self._socket)
        self._socket.close()

    @property
    def can_drop(self) -> bool:
        """Whether `abort` can keep anything from the server: not where sending means delivery."""
        return self._socket.family != socket.AF_UNIX

    def holds_back(self) -> bool:
        """Return whether something that was sent may still be on this machine."""
        try:
            return bool(self._rest) or syscalls.unacknowledged_bytes(self._socket.fileno()) > 0
        except OSError:
            return True

    def now_s(self) -> float:
        """Return the time by a clock that goes on while this machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    # -- the witness ---------------------------------------------------------------------------

    @property
    def has_witness(self) -> bool:
        """Whether `wait_ended` can ever return."""
        return self._pidfd >= 0

    def server_ended(self) -> bool:
        """Return whether the server's process certainly has ended: it carries out nothing more."""
        if self._pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def wait_ended(self) -> None:
        """Return when `server_ended` is true. Only with a witness."""
        await lowlevel.wait_readable(self._pidfd)

    def forget(self) -> None:
        """Release the witness. Idempotent."""
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)


def _read_into(tls: ssl.SSLObject, buffer: memoryview) -> int:
    read: Any = tls.read  # its type lacks that it takes a buffer, and returns a length then
    return int(read(len(buffer), buffer))


def _context(uri: NbdUri) -> ssl.SSLContext:
    """Return the settings of TLS: the server is verified always."""
    folder = uri.certificates
    try:
        authority = f"{folder}/ca-cert.pem" if folder else None
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
        if folder and os.path.exists(f"{folder}/client-cert.pem"):
            context.load_cert_chain(f"{folder}/client-cert.pem", f"{folder}/client-key.pem")
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the certificates in {folder} cannot be used: {error.strerror or error}",
            action="it needs ca-cert.pem, and client-cert.pem with client-key.pem",
            reason=Reason.FILE,
        ) from None
    return context


def _tls_broken(error: ssl.SSLError) -> OSError:
    return ConnectionResetError(errno.ECONNRESET, f"TLS failed: {error.reason}")
