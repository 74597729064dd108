"""The client's side of the NBD protocol with a call for each kind of request."""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.members.nbd.protocol import client
from raidx_fuse.members.nbd.protocol.client import Exchange
from raidx_fuse.members.nbd.protocol.server import Request
from raidx_fuse.members.nbd.protocol.wire import (
    EXTENDED_REPLY,
    EXTENDED_REPLY_MAGIC,
    REPLY_DONE,
    STRUCTURED_REPLY,
    STRUCTURED_REPLY_MAGIC,
    U32,
    U64,
    Chunk,
    Command,
    Export,
)


class Client(client.Client[Exchange]):
    def __init__(self, export: Export) -> None:
        super().__init__(export)
        self._output: list[bytes | bytearray | memoryview] = []

    def output(self) -> list[bytes | bytearray | memoryview]:
        """Return what to send for the requests so far, once."""
        output, self._output = self._output, []
        return output

    def leave(self) -> None:
        self._output.append(self.disconnect())

    def read(
        self, offset_bytes: int, buffers: Sequence[bytearray | memoryview], size_bytes: int
    ) -> Exchange:
        return self._made(Exchange(Command.READ, offset_bytes, size_bytes, buffers))

    def write(
        self, offset_bytes: int, buffers: Sequence[bytes | memoryview], size_bytes: int, *flags: int
    ) -> Exchange:
        return self._made(Exchange(Command.WRITE, offset_bytes, size_bytes, buffers, *flags))

    def command(self, command: Command, *range_and_flags: int) -> Exchange:
        """Make a request without payload."""
        offset_bytes, size_bytes, flags = (*range_and_flags, 0, 0, 0)[:3]
        return self._made(Exchange(command, offset_bytes, size_bytes, (), flags))

    def _made(self, exchange: Exchange) -> Exchange:
        self._output += self.request(exchange)
        return exchange


def chunk(export: Export, request: Request, flags: int, kind: int, body: bytes) -> bytes:
    """Return a chunk of a structured reply to *request*."""
    cookie, size_bytes = request.cookie, len(body)
    if export.extended:
        at = request.offset_bytes
        head = EXTENDED_REPLY.pack(EXTENDED_REPLY_MAGIC, flags, kind, cookie, at, size_bytes)
    else:
        head = STRUCTURED_REPLY.pack(STRUCTURED_REPLY_MAGIC, flags, kind, cookie, size_bytes)
    return head + body


def in_two_chunks(export: Export, request: Request, content: bytes) -> bytes:
    """Return the reply to a read: its first half as a hole, if it is zeros."""
    at, middle = request.offset_bytes, request.size_bytes // 2
    first = U64.pack(at) + U32.pack(middle)
    hole = middle and not any(content[:middle])
    out = chunk(export, request, 0, Chunk.OFFSET_HOLE, first) if hole else b""
    if middle and not hole:
        out += chunk(export, request, 0, Chunk.OFFSET_DATA, U64.pack(at) + content[:middle])
    last = U64.pack(at + middle) + content[middle:]
    return out + chunk(export, request, REPLY_DONE, Chunk.OFFSET_DATA, last)
