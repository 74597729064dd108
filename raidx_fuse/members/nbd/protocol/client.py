"""The client's side of the protocol: the handshake, then requests out and replies in.

    link = Client(export)
    send(link.request(exchange))                   # a read, write, flush, ...
    for done in link.receive(data): ...            # exchanges that ended; see `Exchange`

Payloads are not gathered: bytes of a read go from the received piece straight into its buffers.
`target` lets the caller receive directly into them. What a server can make this side keep is
bounded by the requests under way and _SMALL_BYTES_MAX.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.members.nbd.protocol.wire import (
    BLOCK_BYTES_MAX,
    BLOCK_SIZES,
    CHUNK_IS_ERROR,
    CLIENT_FLAGS,
    EXPORT,
    EXPORT_NAME_ZEROS,
    EXTENDED_REPLY,
    EXTENDED_REPLY_MAGIC,
    GREETING,
    INIT_MAGIC,
    OFFSET_DATA,
    OPTION,
    OPTION_BYTES_MAX,
    OPTION_MAGIC,
    OPTION_REPLY,
    OPTION_REPLY_MAGIC,
    PAYLOAD_BYTES_MAX,
    REPLY_DONE,
    REPLY_IS_ERROR,
    SIMPLE_REPLY,
    SIMPLE_REPLY_MAGIC,
    SIZE_BYTES_MAX,
    STRING_BYTES_MAX,
    STRUCTURED_REPLY,
    STRUCTURED_REPLY_MAGIC,
    TLS,
    U16,
    U32,
    U64,
    Chunk,
    Command,
    CommandFlag,
    Errno,
    Export,
    Flag,
    HandshakeFlag,
    HandshakeSide,
    Info,
    Option,
    ProtocolError,
    Reply,
    Script,
    shown,
)

_NO_TLS = "switch it on there, or name the export as nbd://... without encryption"
_REPLIES_MAX = 1000  # to one option: a server cannot keep a client busy for ever

_Answers = Generator[int, bytes, tuple[int, list[tuple[int, bytes]]]]
FAILURES_MAX = 1000  # error chunks in one reply
_HEADS = {
    SIMPLE_REPLY_MAGIC: SIMPLE_REPLY,
    STRUCTURED_REPLY_MAGIC: STRUCTURED_REPLY,
    EXTENDED_REPLY_MAGIC: EXTENDED_REPLY,
}
_SMALL_BYTES_MAX = U32.size + U16.size + STRING_BYTES_MAX + U64.size  # of a payload but data
_DATA_BYTES = OFFSET_DATA.size
_HOLE = U64.size + U32.size
_TARGET_BYTES_MIN = 16384  # smaller remainders of a payload arrive together with other replies


class RefusedError(RaidxError):
    """The server refused an option or the export."""

    reason = Reason.SERVER_REFUSED


class ClientHandshake(HandshakeSide):
    """Opens the export *name*.

    With *tls* the connection is encrypted first, and a server that cannot is refused. *extended*
    and *structured* say what to ask for.

    The order is that of proto.md: STARTTLS, extended headers or structured replies, GO. Each option
    that the server does not know is left out. A server without GO gets EXPORT_NAME, whose refusal
    is a closed connection.
    """

    def __init__(
        self, name: str, *, tls: bool = False, structured: bool = True, extended: bool = True
    ) -> None:
        self.name = name
        self._tls = tls
        self._structured = structured
        self._extended = extended
        super().__init__()

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        super().receive(data)
        if self.ended and self.rest:
            raise ProtocolError("the server sent a reply before any request")

    def _script(self) -> Script:
        magic, style, offered = GREETING.unpack((yield GREETING.size))
        if magic != INIT_MAGIC:
            raise ProtocolError("what answers there is no NBD server")
        if style != OPTION_MAGIC:
            raise ProtocolError("the server speaks only the protocol from before 2010 (oldstyle)")
        fixed = bool(offered & HandshakeFlag.FIXED_NEWSTYLE)
        no_zeros = bool(offered & HandshakeFlag.NO_ZEROES)
        known = HandshakeFlag.FIXED_NEWSTYLE | HandshakeFlag.NO_ZEROES
        self._output += CLIENT_FLAGS.pack(offered & known)
        name = self.name.encode()
        if not fixed:
            if self._tls:
                raise RefusedError("the server cannot do TLS", action=_NO_TLS)
            yield from self._export_name(name, no_zeros)
            return
        if self._tls:
            reply, _ = yield from self._ask(Option.STARTTLS)
            if reply & REPLY_IS_ERROR:
                raise RefusedError("the server cannot do TLS", action=_NO_TLS)
            yield TLS
        extended = structured = False
        if self._extended:
            reply, _ = yield from self._ask(Option.EXTENDED_HEADERS)
            extended = structured = not reply & REPLY_IS_ERROR
        if self._structured and not structured:
            reply, _ = yield from self._ask(Option.STRUCTURED_REPLY)
            structured = not reply & REPLY_IS_ERROR
        request = U32.pack(len(name)) + name + U16.pack(1) + U16.pack(Info.BLOCK_SIZE)
        reply, answers = yield from self._ask(Option.GO, request)
        if reply == Reply.ERR_UNSUP:
            yield from self._export_name(name, no_zeros, structured, extended)
            return
        if reply & REPLY_IS_ERROR:
            raise _refusal(self.name, reply, answers)
        self.export = _described(self.name, answers, structured, extended)

    def _ask(self, option: Option, data: bytes = b"") -> _Answers:
        """Send *option*; return the type of the final reply and all replies as (type, data)."""
        self._output += OPTION.pack(OPTION_MAGIC, option, len(data)) + data
        answers: list[tuple[int, bytes]] = []
        size_bytes = 0
        while True:
            head = OPTION_REPLY.unpack((yield OPTION_REPLY.size))
            magic, about, reply, length = head
            size_bytes += length
            if magic != OPTION_REPLY_MAGIC or about != option:
                raise ProtocolError("the server answered something else than an option's reply")
            if size_bytes > OPTION_BYTES_MAX or len(answers) == _REPLIES_MAX:
                raise ProtocolError("the server's answer to an option is endless")
            answers.append((reply, (yield length) if length else b""))
            if reply & REPLY_IS_ERROR or reply == Reply.ACK:
                return reply, answers
            if option == Option.STARTTLS:
                raise ProtocolError("the server's answer to STARTTLS is neither yes nor no")

    def _export_name(
        self, name: bytes, no_zeros: bool, structured: bool = False, extended: bool = False
    ) -> Script:
        self._output += OPTION.pack(OPTION_MAGIC, Option.EXPORT_NAME, len(name)) + name
        size_bytes, flags = EXPORT.unpack((yield EXPORT.size))
        if not no_zeros:
            yield EXPORT_NAME_ZEROS
        self.export = Export(
            self.name, _checked(size_bytes), Flag(flags), structured=structured, extended=extended
        )


def _refusal(name: str, reply: int, answers: list[tuple[int, bytes]]) -> RefusedError:
    """Return the error for a refused GO, in the user's words."""
    said = shown(answers[-1][1])
    told = f" ({said})" if said else ""
    match reply:
        case Reply.ERR_UNKNOWN:
            why = f"the server has no export {name!r}{told}"
            return RefusedError(why, action="name one that 'nbdinfo --list' shows there")
        case Reply.ERR_TLS_REQD:
            return RefusedError(f"the server wants TLS{told}", action="name it as nbds://...")
        case Reply.ERR_SHUTDOWN:
            return RefusedError(f"the server is shutting down{told}")
        case _:
            number = reply & ~REPLY_IS_ERROR
            return RefusedError(f"the server refused the export {name!r}: {number}{told}")


def _described(
    name: str, answers: list[tuple[int, bytes]], structured: bool, extended: bool
) -> Export:
    """Return the export that the replies to GO describe. Raises ProtocolError."""
    size_flags: tuple[int, int] | None = None
    sizes = (1, 4096, PAYLOAD_BYTES_MAX)
    for reply, data in answers:
        if reply != Reply.INFO or len(data) < U16.size:
            continue
        (info,) = U16.unpack_from(data)
        content = data[U16.size :]
        if info == Info.EXPORT:
            if len(content) != EXPORT.size:
                raise ProtocolError("the server's description of the export has a wrong length")
            size_flags = EXPORT.unpack(content)
        elif info == Info.BLOCK_SIZE:
            if len(content) != BLOCK_SIZES.size:
                raise ProtocolError("the server's block sizes have a wrong length")
            sizes = BLOCK_SIZES.unpack(content)
    if size_flags is None:
        raise ProtocolError("the server did not describe the export")
    block, preferred, most = sizes
    powers = all(size and not size & (size - 1) for size in (block, preferred))
    if not powers or not block <= min(preferred, BLOCK_BYTES_MAX) or most < preferred:
        raise ProtocolError(
            f"the server's block sizes are impossible: {block}, {preferred}, {most}"
        )
    return Export(
        name,
        _checked(size_flags[0]),
        Flag(size_flags[1]),
        block,
        preferred,
        max(block, min(most, PAYLOAD_BYTES_MAX) // block * block),
        structured,
        extended,
    )


def _checked(size_bytes: int) -> int:
    if size_bytes > SIZE_BYTES_MAX:
        raise ProtocolError(f"the server claims an export of {size_bytes} bytes")
    return size_bytes


class Ranges:
    """A set of byte ranges, joined and in order."""

    __slots__ = ("begins", "ends")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def add(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Add a range; return the parts of it that are new."""
        first = bisect_left(self.ends, begin)
        last = bisect_right(self.begins, end)
        new, at = [], begin
        for number in range(first, last):
            if at < self.begins[number]:
                new.append((at, self.begins[number]))
            at = max(at, self.ends[number])
        if at < end:
            new.append((at, end))
        if first < last:
            begin = min(begin, self.begins[first])
            end = max(end, self.ends[last - 1])
        self.begins[first:last] = [begin]
        self.ends[first:last] = [end]
        return new


@dataclass(slots=True, eq=False)
class Exchange:
    """A request: *command*, *flags*, byte range; *buffers* take the data of a read, or hold that of
    a write, in order.

    Results: *error* (0, or a number of `wire.Errno`), *message* (what the server says about it).
    """

    command: Command
    offset_bytes: int = 0
    size_bytes: int = 0
    buffers: Sequence[bytearray | memoryview | bytes] = ()
    flags: int = 0
    cookie: int = field(default=0, init=False)
    error: int = field(default=0, init=False)
    message: str = field(default="", init=False)
    _failures: int = field(default=0, init=False)
    _arrived: Ranges | None = field(default=None, init=False)

    def begin(self, cookie: int) -> None:
        """Be requested as *cookie*; what was answered over an earlier connection is void."""
        self.cookie = cookie
        self.error = self._failures = 0
        self.message = ""
        self._arrived = None

    def fail(self, number: int, message: str = "") -> None:
        """Note an error; the first one counts. Raises ProtocolError: there is no end of them."""
        self._failures += 1
        if self._failures > FAILURES_MAX:
            raise ProtocolError("the server sent errors without end in one reply")
        if not self.error:
            self.error, self.message = number, message

    def claim(self, offset_bytes: int, size_bytes: int) -> None:
        """Note that the data of a range arrives. Raises ProtocolError: outside, or a second time.

        A server that sends pieces of one byte in a bad order still costs less memory than the data.
        """
        end = offset_bytes + size_bytes
        if not self.offset_bytes <= offset_bytes < end <= self.offset_bytes + self.size_bytes:
            raise ProtocolError("the server sent data outside of the range of the request")
        self._arrived = self._arrived or Ranges()
        if self._arrived.add(offset_bytes, end) != [(offset_bytes, end)]:
            raise ProtocolError("the server sent the same data twice")

    def is_whole_read(self, offset_bytes: int, size_bytes: int) -> bool:
        """Return whether that is the range of this read, of which nothing has arrived yet."""
        return (
            offset_bytes == self.offset_bytes
            and size_bytes == self.size_bytes
            and self.command == Command.READ
            and self._arrived is None
            and not self.error
        )

    def check_complete(self) -> None:
        """Raise ProtocolError if the reply claims success but lacks something."""
        if self.error or self.command != Command.READ or not self.size_bytes:
            return
        begin, end, arrived = self.offset_bytes, self.offset_bytes + self.size_bytes, self._arrived
        if arrived is None or (arrived.begins, arrived.ends) != ([begin], [end]):
            raise ProtocolError("the server sent less data than was asked for")

    def put(self, offset_bytes: int, data: memoryview | bytes) -> None:
        """Copy *data*, which belongs at *offset_bytes* of the export, into the buffers."""
        start, done = offset_bytes - self.offset_bytes, 0
        for buffer in self.buffers:
            size = len(buffer)
            if start >= size:
                start -= size
                continue
            part = min(size - start, len(data) - done)
            buffer[start : start + part] = data[done : done + part]  # type: ignore[index]
            done += part
            if done == len(data):
                return
            start = 0

    def room(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Return the memory for the beginning of a range: as far as one buffer reaches."""
        start = offset_bytes - self.offset_bytes
        for buffer in self.buffers:
            if start < len(buffer):
                return memoryview(buffer)[start : start + size_bytes]
            start -= len(buffer)
        raise AssertionError("the range is inside of the request")


Asked = TypeVar("Asked", bound=Exchange)


class Client(Generic[Asked]):
    """One connection to *export* in the transmission phase."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.exchanges: dict[int, Asked] = {}  # under way, by cookie
        self._form, self._magic = export.request_form
        self._cookie = 0
        self._kept = b""  # an incomplete head or small payload
        self._filling: Asked | None = None  # the read whose data is arriving
        self._fill_at = self._fill_bytes = 0  # where its next byte goes, how many are to come
        self._fill_ends = False  # the data ends its reply
        self._ended: list[Asked] = []

    def request(self, exchange: Asked) -> list[bytes | bytearray | memoryview]:
        """Begin *exchange*; return the buffers to send in order."""
        self._cookie = cookie = self._cookie + 1
        exchange.begin(cookie)
        self.exchanges[cookie] = exchange
        command, flags = exchange.command, exchange.flags
        if command == Command.WRITE and self.export.extended:
            flags |= CommandFlag.PAYLOAD_LEN
        at, size_bytes = exchange.offset_bytes, exchange.size_bytes
        head = self._form.pack(self._magic, flags, command, cookie, at, size_bytes)
        return [head, *exchange.buffers] if command == Command.WRITE else [head]

    def disconnect(self) -> bytes:
        """Return a good-bye; there is no reply, and no request may follow."""
        return self._form.pack(self._magic, 0, Command.DISC, 0, 0, 0)

    # -- replies -------------------------------------------------------------------------------

    def receive(self, data: bytes | bytearray | memoryview) -> list[Asked]:
        """Take bytes of the server; return the exchanges that ended. Raises ProtocolError."""
        if self._kept:
            data = b"".join((self._kept, data))
            self._kept = b""
        view = memoryview(data)
        at, end = 0, len(view)
        while at < end:
            if self._filling is not None:
                used = min(end - at, self._fill_bytes)
                self._filling.put(self._fill_at, view[at : at + used])
                self._filled(used)
            else:
                used = self._whole_read(view, at) or self._reply(view, at)
                if not used:
                    self._kept = bytes(view[at:])
                    break
            at += used
        ended, self._ended = self._ended, []
        return ended

    def target(self) -> memoryview | None:
        """Return where the next bytes of the server belong, None if they must go to `receive`."""
        if self._filling is None or self._fill_bytes < _TARGET_BYTES_MIN:
            return None
        return self._filling.room(self._fill_at, self._fill_bytes)

    def filled(self, size_bytes: int) -> list[Asked]:
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

    def _reply(self, view: memoryview, at: int) -> int:
        """Process one reply's head and small payload; return its length, 0 if it is incomplete."""
        have = len(view) - at
        if have < U32.size:
            return 0
        (magic,) = U32.unpack_from(view, at)
        head = _HEADS.get(magic)
        if head is None or (magic == EXTENDED_REPLY_MAGIC) != self.export.extended:
            raise ProtocolError(f"the server sent no reply but {magic:#010x}")
        if magic == STRUCTURED_REPLY_MAGIC and not self.export.structured:
            raise ProtocolError("the server sent a structured reply, which was not agreed")
        if have < head.size:
            return 0
        if magic == SIMPLE_REPLY_MAGIC:
            _, error, cookie = SIMPLE_REPLY.unpack_from(view, at)
            self._simple(cookie, error)
            return head.size
        _, flags, kind, cookie, *_, length = head.unpack_from(view, at)
        small = min(length, U64.size) if kind == Chunk.OFFSET_DATA else length
        if small > _SMALL_BYTES_MAX:
            raise ProtocolError(f"the server sent a chunk of type {kind} with {length} bytes")
        used: int = head.size + small
        if have < used:
            return 0
        self._structured(flags, kind, cookie, length, view[at + head.size : at + used])
        return used

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
        if reads and self.export.structured:
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
            exchange.put(offset_bytes, bytes(size_bytes))
        elif kind != Chunk.NONE or length or not ends:
            raise ProtocolError(f"the server sent a chunk of type {kind}")
        if ends:
            self._end(exchange)

    def _fill(self, exchange: Asked, offset_bytes: int, size_bytes: int, ends: bool) -> None:
        self._filling = exchange
        self._fill_at, self._fill_bytes, self._fill_ends = offset_bytes, size_bytes, ends

    def _of(self, cookie: int) -> Asked:
        exchange = self.exchanges.get(cookie)
        if exchange is None:
            raise ProtocolError("the server answered a request that was not made")
        return exchange

    def _end(self, exchange: Asked) -> None:
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
