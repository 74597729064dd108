"""The client's side of the transmission phase: requests out, replies in.

    link = Client(export)
    exchange = link.read(offset_bytes, buffers)    # or write, flush, ...: appends to the output
    send(link.output())
    for done in link.receive(data): ...            # exchanges that ended; see `Exchange`

Payloads are not gathered: bytes of a read go from the received piece straight into its buffers.
`target` lets the caller receive directly into them. What a server can make this side keep is
bounded by the requests under way and STATUS_EXTENTS_MAX.
"""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.members.nbd.protocol.exchange import Exchange
from raidx_fuse.members.nbd.protocol.wire import (
    CHUNK_IS_ERROR,
    EXTENDED_REPLY,
    EXTENDED_REPLY_MAGIC,
    EXTENDED_REQUEST,
    EXTENDED_REQUEST_MAGIC,
    OFFSET_DATA,
    REPLY_DONE,
    REQUEST,
    REQUEST_MAGIC,
    SIMPLE_REPLY,
    SIMPLE_REPLY_MAGIC,
    STATUS_EXTENTS_MAX,
    STRING_BYTES_MAX,
    STRUCTURED_REPLY,
    STRUCTURED_REPLY_MAGIC,
    U16,
    U32,
    U64,
    Chunk,
    Command,
    CommandFlag,
    Errno,
    Export,
    ProtocolError,
    shown,
)

_HEADS = {
    SIMPLE_REPLY_MAGIC: SIMPLE_REPLY.size,
    STRUCTURED_REPLY_MAGIC: STRUCTURED_REPLY.size,
    EXTENDED_REPLY_MAGIC: EXTENDED_REPLY.size,
}
_SMALL_BYTES_MAX = 4 + 8 + 16 * STATUS_EXTENTS_MAX  # of a payload other than data
_DATA_BYTES = OFFSET_DATA.size
_HOLE = U64.size + U32.size
_TARGET_BYTES_MIN = 16384  # smaller remainders of a payload arrive together with other replies


class Client:
    """One connection to *export* in the transmission phase."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.exchanges: dict[int, Exchange] = {}  # under way, by cookie
        self._cookie = 0
        self._output: list[bytes | bytearray | memoryview] = []
        self._kept = bytearray()  # an incomplete head or small payload
        self._filling: Exchange | None = None  # the read whose data is arriving
        self._fill_at = self._fill_bytes = 0  # where its next byte goes, how many are to come
        self._fill_ends = False  # the data ends its reply
        self._ended: list[Exchange] = []

    # -- requests ------------------------------------------------------------------------------

    def read(
        self, offset_bytes: int, buffers: Sequence[bytearray | memoryview], size_bytes: int
    ) -> Exchange:
        """Request *size_bytes*, which *buffers* take in order."""
        exchange = Exchange(Command.READ, 0, offset_bytes, size_bytes, buffers)
        self._request(exchange)
        return exchange

    def write(
        self,
        offset_bytes: int,
        buffers: Sequence[bytes | bytearray | memoryview],
        size_bytes: int,
        flags: int = 0,
    ) -> Exchange:
        """Write *buffers*, *size_bytes* in all."""
        if self.export.extended:
            flags |= CommandFlag.PAYLOAD_LEN
        exchange = Exchange(Command.WRITE, flags, offset_bytes, size_bytes, ())
        self._request(exchange)
        self._output += buffers
        return exchange

    def command(
        self, command: Command, offset_bytes: int = 0, size_bytes: int = 0, flags: int = 0
    ) -> Exchange:
        """Request anything without payload: flush, trim, write zeroes, cache, block status."""
        exchange = Exchange(command, flags, offset_bytes, size_bytes, ())
        self._request(exchange)
        return exchange

    def disconnect(self) -> None:
        """Say good-bye; there is no reply, and no request may follow."""
        form = EXTENDED_REQUEST if self.export.extended else REQUEST
        magic = EXTENDED_REQUEST_MAGIC if self.export.extended else REQUEST_MAGIC
        self._output.append(form.pack(magic, 0, Command.DISC, 0, 0, 0))

    def output(self) -> list[bytes | bytearray | memoryview]:
        """Return the buffers to send in order, once."""
        output, self._output = self._output, []
        return output

    def _request(self, exchange: Exchange) -> None:
        self._cookie += 1
        exchange.number(self._cookie)
        self.exchanges[self._cookie] = exchange
        size_bytes = exchange.size_bytes
        form, magic = REQUEST, REQUEST_MAGIC
        if self.export.extended:
            form, magic = EXTENDED_REQUEST, EXTENDED_REQUEST_MAGIC
        self._output.append(
            form.pack(
                magic,
                exchange.flags,
                exchange.command,
                self._cookie,
                exchange.offset_bytes,
                size_bytes,
            )
        )

    # -- replies -------------------------------------------------------------------------------

    def receive(self, data: bytes | bytearray | memoryview) -> list[Exchange]:
        """Take bytes of the server; return the exchanges that ended. Raises ProtocolError."""
        view = memoryview(data)
        at, end = 0, len(view)
        while True:
            if self._filling is not None:
                if at == end:
                    break
                part = min(end - at, self._fill_bytes)
                self._filling.put(self._fill_at, view[at : at + part])
                at += part
                self._filled(part)
                continue
            if self._kept:
                at = self._complete(view, at)
                if self._kept:
                    break
                continue
            used = self._whole_read(view, at) or self._reply(view, at)
            if used < 0:
                self._kept += view[at:]
                break
            at += used
            if not used:
                break
        ended, self._ended = self._ended, []
        return ended

    def target(self) -> memoryview | None:
        """Return where the next bytes of the server belong, None if they must go to `receive`."""
        if self._filling is None or self._fill_bytes < _TARGET_BYTES_MIN:
            return None
        return self._filling.room(self._fill_at, self._fill_bytes)

    def filled(self, size_bytes: int) -> list[Exchange]:
        """Count bytes that were received into `target`; return as `receive`."""
        self._filled(size_bytes)
        ended, self._ended = self._ended, []
        return ended

    def _filled(self, size_bytes: int) -> None:
        self._fill_at += size_bytes
        self._fill_bytes -= size_bytes
        if not self._fill_bytes:
            exchange, self._filling = self._filling, None
            assert exchange is not None
            if self._fill_ends:
                self._end(exchange)

    def _complete(self, view: memoryview, at: int) -> int:
        """Add bytes to an incomplete reply until it is processed; return the new position.

        The reply is processed without the bytes behind it: they stay in *view*.
        """
        kept = self._kept
        while at < len(view):
            missing = self._missing(kept)
            if missing:
                part = min(missing, len(view) - at)
                kept += view[at : at + part]
                at += part
                if part < missing or self._missing(kept):
                    continue
            used = self._reply(memoryview(bytes(kept)), 0)
            assert used == len(kept), "a reply is kept without what follows it"
            self._kept = bytearray()
            return at
        if not self._missing(kept):
            self._reply(memoryview(bytes(kept)), 0)
            self._kept = bytearray()
        return at

    def _missing(self, kept: bytearray) -> int:
        """Return how many bytes *kept* lacks to be a head, or a head with its small payload."""
        if len(kept) < U32.size:
            return U32.size - len(kept)
        (magic,) = U32.unpack_from(kept)
        head_bytes = self._head_bytes(magic)
        if len(kept) < head_bytes:
            return head_bytes - len(kept)
        return max(0, head_bytes + self._small_bytes(kept, 0, magic) - len(kept))

    def _head_bytes(self, magic: int) -> int:
        size = _HEADS.get(magic)
        extended = magic == EXTENDED_REPLY_MAGIC
        if size is None or extended != self.export.extended:
            raise ProtocolError(f"the server sent no reply but {magic:#010x}")
        if magic == STRUCTURED_REPLY_MAGIC and not self.export.structured:
            raise ProtocolError("the server sent a structured reply, which was not agreed")
        return size

    def _small_bytes(self, view: bytearray | memoryview, at: int, magic: int) -> int:
        """Return how many bytes behind the head at *at* must be there to process it."""
        if magic == SIMPLE_REPLY_MAGIC:
            return 0
        kind, length = self._chunk(view, at, magic)[1::2]
        if kind == Chunk.OFFSET_DATA:
            return min(length, U64.size)
        if length > _SMALL_BYTES_MAX:
            raise ProtocolError(f"the server sent a chunk of type {kind} with {length} bytes")
        return length

    def _chunk(
        self, view: bytearray | memoryview, at: int, magic: int
    ) -> tuple[int, int, int, int]:
        """Return (flags, type, cookie, payload length) of a structured head."""
        if magic == EXTENDED_REPLY_MAGIC:
            _, flags, kind, cookie, _, length = EXTENDED_REPLY.unpack_from(view, at)
        else:
            _, flags, kind, cookie, length = STRUCTURED_REPLY.unpack_from(view, at)
        return flags, kind, cookie, length

    def _reply(self, view: memoryview, at: int) -> int:
        """Process one reply's head and small payload; return its length, -1 if it is incomplete."""
        have = len(view) - at
        if have < U32.size:
            return -1 if have else 0
        (magic,) = U32.unpack_from(view, at)
        head_bytes = self._head_bytes(magic)
        if have < head_bytes:
            return -1
        if magic == SIMPLE_REPLY_MAGIC:
            _, error, cookie = SIMPLE_REPLY.unpack_from(view, at)
            self._simple(cookie, error)
            return head_bytes
        small = self._small_bytes(view, at, magic)
        if have < head_bytes + small:
            return -1
        flags, kind, cookie, length = self._chunk(view, at, magic)
        at += head_bytes
        self._structured(flags, kind, cookie, length, view[at : at + small])
        return head_bytes + small

    def _whole_read(self, view: memoryview, at: int) -> int:
        """Process the reply to a read if all of it is there in one chunk, else return 0.

        This is what nearly every small read gets; `_reply` takes any other answer, and all wrong
        ones. Returns the length of the reply.
        """
        data_at = at + _DATA_BYTES
        if data_at > len(view) or self.export.extended:
            return 0
        magic, flags, kind, cookie, length, offset_bytes = OFFSET_DATA.unpack_from(view, at)
        exchange = self.exchanges.get(cookie)
        size_bytes: int = length - U64.size
        if (
            magic != STRUCTURED_REPLY_MAGIC
            or kind != Chunk.OFFSET_DATA
            or exchange is None
            or not flags & REPLY_DONE
            or data_at + size_bytes > len(view)
            or not exchange.is_whole_read(offset_bytes, size_bytes)
            or not (size_bytes and self.export.structured)
        ):
            return 0
        exchange.put(offset_bytes, view[data_at : data_at + size_bytes])
        del self.exchanges[cookie]
        self._ended.append(exchange)
        return _DATA_BYTES + size_bytes

    def _simple(self, cookie: int, error: int) -> None:
        exchange = self._of(cookie)
        reads = exchange.command == Command.READ
        if (reads or exchange.command == Command.BLOCK_STATUS) and self.export.structured:
            raise ProtocolError("the server sent a simple reply where a structured one is due")
        if error:
            exchange.fail(error)
        elif reads and exchange.size_bytes:
            exchange.claim(exchange.offset_bytes, exchange.size_bytes)
            self._fill(exchange, exchange.offset_bytes, exchange.size_bytes, ends=True)
            return
        self._end(exchange)

    def _structured(
        self, flags: int, kind: int, cookie: int, length: int, payload: memoryview
    ) -> None:
        exchange = self._of(cookie)
        ends = bool(flags & REPLY_DONE)
        if kind == Chunk.OFFSET_DATA:
            if exchange.command != Command.READ or length <= U64.size:
                raise ProtocolError("the server sent data that nobody asked for")
            (offset_bytes,) = U64.unpack(payload)
            exchange.claim(offset_bytes, length - U64.size)
            self._fill(exchange, offset_bytes, length - U64.size, ends)
            return
        if kind & CHUNK_IS_ERROR:
            exchange.fail(*_error(payload))
        elif kind == Chunk.OFFSET_HOLE:
            if exchange.command != Command.READ or len(payload) != _HOLE:
                raise ProtocolError("the server sent a hole that nobody asked for")
            (offset_bytes,) = U64.unpack_from(payload)
            (size_bytes,) = U32.unpack_from(payload, U64.size)
            exchange.claim(offset_bytes, size_bytes)
            exchange.put_zeros(offset_bytes, size_bytes)
        elif kind in (Chunk.BLOCK_STATUS, Chunk.BLOCK_STATUS_EXT):
            exchange.status(kind, payload, self.export)
        elif kind != Chunk.NONE or length or not ends:
            raise ProtocolError(f"the server sent a chunk of type {kind}")
        if ends:
            self._end(exchange)

    def _fill(self, exchange: Exchange, offset_bytes: int, size_bytes: int, ends: bool) -> None:
        self._filling = exchange
        self._fill_at, self._fill_bytes, self._fill_ends = offset_bytes, size_bytes, ends

    def _of(self, cookie: int) -> Exchange:
        exchange = self.exchanges.get(cookie)
        if exchange is None:
            raise ProtocolError("the server answered a request that was not made")
        return exchange

    def _end(self, exchange: Exchange) -> None:
        exchange.check_complete()
        del self.exchanges[exchange.cookie]
        self._ended.append(exchange)


def _error(payload: memoryview) -> tuple[int, str]:
    """Return (number, message) of an error chunk. Raises ProtocolError."""
    if len(payload) < U32.size + U16.size:
        raise ProtocolError("the server sent an error without a number")
    (number,) = U32.unpack_from(payload)
    (length,) = U16.unpack_from(payload, U32.size)
    message = payload[U32.size + U16.size :]
    if length > min(len(message), STRING_BYTES_MAX):
        raise ProtocolError("the server sent an error whose message does not fit")
    return number or Errno.EINVAL, shown(bytes(message[:length]))
