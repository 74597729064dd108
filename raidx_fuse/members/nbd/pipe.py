"""The connection of a member to its server as a pipe of bytes, and its two users.

A pipe is made, and used at first, outside of the event loop: members are opened synchronously, as
files are (`Pipe.ask`, with the timeout of the pipe). From the first `receive` or `send` on it
belongs to the event loop.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.members.nbd.protocol.client import Client, Exchange
from raidx_fuse.members.nbd.protocol.wire import Command, CommandFlag, Export, Flag

Piece = bytes | bytearray | memoryview

_RECEIVE_BYTES = 1 << 16


class Pipe(ABC):
    """A connection after the handshake; *export* says what was agreed.

    *real* is false for pipes in memory: their time is virtual. All methods raise OSError when the
    connection is cut.
    """

    export: Export
    real: bool = True

    def begin_now(self) -> None:  # noqa: B027  # pipes in memory wait for nobody
        """Begin something that blocks: its time is limited as a whole."""

    @abstractmethod
    def send_now(self, data: bytes) -> None:
        """Send *data*, blocking. Before the event loop uses the pipe."""

    @abstractmethod
    def receive_now(self, size_bytes: int) -> bytes:
        """Return at most *size_bytes*, b"" at the end, blocking."""

    @abstractmethod
    def try_send(self, pieces: Sequence[Piece]) -> bool:
        """Send what an earlier call left, then *pieces*, without blocking; False: a rest is left.

        A rest is sent by later calls only.
        """

    @abstractmethod
    async def wait_sendable(self) -> None:
        """Return when `try_send` may get rid of what it left."""

    @abstractmethod
    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the beginning of *buffer*; return how many bytes, 0 at the end."""

    @abstractmethod
    async def wait_received(self) -> None:
        """Return when `receive_into` may have something. It can be cancelled without a loss."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; what was sent still reaches the server. Idempotent."""

    def abort(self) -> None:
        """Close the connection; what the server has not received by now never leaves this machine.

        Idempotent.
        """
        self.close()

    @property
    def can_drop(self) -> bool:
        """Whether `abort` can keep anything from the server: not where sending means delivery."""
        return False

    def holds_back(self) -> bool:
        """Return whether something that was sent may still be on this machine."""
        return False

    def now_s(self) -> float:
        """Return the time by a clock that goes on while this machine is suspended."""
        return trio.current_time()

    @property
    def has_witness(self) -> bool:
        """Whether `wait_ended` can ever return."""
        return False

    def server_ended(self) -> bool:
        """Return whether the server's process certainly has ended: it carries out nothing more."""
        return False

    async def wait_ended(self) -> None:
        """Return when `server_ended` is true. Only with a witness."""
        raise NotImplementedError

    def forget(self) -> None:  # noqa: B027  # few pipes have a witness
        """Release what `server_ended` needs. Idempotent."""

    def ask(self, request: Callable[[Client], Exchange]) -> Exchange:
        """Make one request, blocking, before the event loop uses the pipe. Raises OSError too."""
        client = Client(self.export)
        exchange = request(client)
        self.begin_now()
        self.send_now(b"".join(client.output()))
        while client.exchanges:
            data = self.receive_now(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
            client.receive(data)
        return exchange

    def read_now(self, offset_bytes: int, size_bytes: int, path: str) -> bytes:
        """Return bytes of the export. Raises MemberError, OSError."""
        buffer = bytearray(size_bytes)
        done = self.ask(lambda client: client.read(offset_bytes, [buffer], size_bytes))
        if done.error:
            raise MemberError(path, "read", offset_bytes, done.error, done.message)
        return bytes(buffer)

    def write_now(self, offset_bytes: int, data: bytes, path: str) -> None:
        """Write *data* durably. Raises MemberError, OSError."""
        fua = CommandFlag.FUA if self.export.flags & Flag.FUA else CommandFlag(0)
        done = self.ask(lambda client: client.write(offset_bytes, [data], len(data), fua))
        if not done.error and not fua:
            done = self.ask(lambda client: client.command(Command.FLUSH))
        if done.error:
            raise MemberError(path, "write", offset_bytes, done.error, done.message)
