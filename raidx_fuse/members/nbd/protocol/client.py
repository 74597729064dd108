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

from bisect import bisect
from collections.abc import Generator, Sequence

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.members.nbd.protocol.wire import (
    ALLOCATION,
    BLOCK_BYTES_MAX,
    BLOCK_SIZES,
    CHUNK_IS_ERROR,
    CLIENT_FLAGS,
    EXPORT,
    EXPORT_NAME_ZEROS,
    EXTENDED_REPLY,
    EXTENDED_REPLY_MAGIC,
    EXTENDED_REQUEST,
    EXTENDED_REQUEST_MAGIC,
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
    REQUEST,
    REQUEST_MAGIC,
    SIMPLE_REPLY,
    SIMPLE_REPLY_MAGIC,
    SIZE_BYTES_MAX,
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
    Flag,
    Handshake,
    Incremental,
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
_ZEROS = bytes(1 << 16)
_HEADS = {
    SIMPLE_REPLY_MAGIC: SIMPLE_REPLY.size,
    STRUCTURED_REPLY_MAGIC: STRUCTURED_REPLY.size,
    EXTENDED_REPLY_MAGIC: EXTENDED_REPLY.size,
}
_SMALL_BYTES_MAX = 4 + 8 + 16 * STATUS_EXTENTS_MAX  # of a payload other than data
_DATA_BYTES = OFFSET_DATA.size
_HOLE = U64.size + U32.size
_TARGET_BYTES_MIN = 16384  # smaller remainders of a payload arrive together with other replies


class RefusedError(RaidxError):
    """The server refused an option or the export; *reply* is the type of its reply."""

    reason = Reason.SERVER_REFUSED

    def __init__(self, reply: int, message: str, action: str | None = None) -> None:
        super().__init__(message, action=action)
        self.reply = reply


class ClientHandshake:
    """Negotiates *name*; *export* is the result, None until then.

    With *tls* the connection is encrypted first, and a server that cannot is refused. *extended*,
    *structured* and *allocation* say what to ask for.

        handshake = ClientHandshake("export", tls=False)
        while not handshake.ended:
            send(handshake.output())        # may be empty
            if handshake.tls_due:           # start TLS on the socket, then:
                handshake.tls_started()
                continue
            handshake.receive(bytes of the server)

    The order is that of proto.md: STARTTLS, extended headers or structured replies,
    ``base:allocation``, GO. Each option that the server does not know is left out. A server without
    GO gets EXPORT_NAME, whose refusal is a closed connection.
    """

    def __init__(
        self,
        name: str,
        *,
        tls: bool = False,
        structured: bool = True,
        extended: bool = True,
        allocation: bool = False,
    ) -> None:
        self.name = name
        self.export: Export | None = None
        self._tls = tls
        self._structured = structured
        self._extended = extended
        self._allocation = allocation
        self._output = bytearray()
        self._reader = Incremental(self._script())

    @property
    def ended(self) -> bool:
        """Whether the server has described the export."""
        return self.export is not None

    @property
    def tls_due(self) -> bool:
        """Whether the caller must start TLS and then call `tls_started`."""
        return self._reader.paused

    def tls_started(self) -> None:
        """Continue over the encrypted connection. Raises ProtocolError for bytes in between."""
        self._reader.resume()

    def output(self) -> bytes:
        """Return the bytes to send, once."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes of the server. Raises ProtocolError, RefusedError."""
        self._reader.receive(data)
        if self.export is not None and self._reader.rest:
            raise ProtocolError("the server sent a reply before any request")

    def _script(self) -> Script:
        magic, style, offered = GREETING.unpack((yield GREETING.size))
        if magic != INIT_MAGIC:
            raise ProtocolError("what answers there is no NBD server")
        if style != OPTION_MAGIC:
            raise ProtocolError("the server speaks only the protocol from before 2010 (oldstyle)")
        fixed = bool(offered & Handshake.FIXED_NEWSTYLE)
        no_zeros = bool(offered & Handshake.NO_ZEROES)
        self._output += CLIENT_FLAGS.pack(
            offered & (Handshake.FIXED_NEWSTYLE | Handshake.NO_ZEROES)
        )
        name = self.name.encode()
        if not fixed:
            if self._tls:
                raise RefusedError(Reply.ERR_UNSUP, "the server cannot do TLS", _NO_TLS)
            yield from self._export_name(name, no_zeros)
            return
        if self._tls:
            reply, _ = yield from self._ask(Option.STARTTLS)
            if reply & REPLY_IS_ERROR:
                raise RefusedError(reply, "the server cannot do TLS", _NO_TLS)
            yield Incremental.PAUSE
        extended = structured = False
        if self._extended:
            reply, _ = yield from self._ask(Option.EXTENDED_HEADERS)
            extended = structured = not reply & REPLY_IS_ERROR
        if self._structured and not structured:
            reply, _ = yield from self._ask(Option.STRUCTURED_REPLY)
            structured = not reply & REPLY_IS_ERROR
        allocation_id = None
        if self._allocation and structured:
            allocation_id = yield from self._ask_allocation(name)
        request = U32.pack(len(name)) + name + U16.pack(1) + U16.pack(Info.BLOCK_SIZE)
        reply, answers = yield from self._ask(Option.GO, request)
        if reply == Reply.ERR_UNSUP:
            yield from self._export_name(name, no_zeros, structured, extended, allocation_id)
            return
        if reply & REPLY_IS_ERROR:
            raise _refusal(self.name, reply, answers)
        self.export = _described(self.name, answers, structured, extended, allocation_id)

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

    def _ask_allocation(self, name: bytes) -> Generator[int, bytes, int | None]:
        query = ALLOCATION.encode()
        data = U32.pack(len(name)) + name + U32.pack(1) + U32.pack(len(query)) + query
        reply, answers = yield from self._ask(Option.SET_META_CONTEXT, data)
        if reply & REPLY_IS_ERROR:
            return None
        for kind, content in answers:
            if kind == Reply.META_CONTEXT and content[4:] == query:
                return int(U32.unpack_from(content)[0])
        return None

    def _export_name(
        self,
        name: bytes,
        no_zeros: bool,
        structured: bool = False,
        extended: bool = False,
        allocation_id: int | None = None,
    ) -> Script:
        self._output += OPTION.pack(OPTION_MAGIC, Option.EXPORT_NAME, len(name)) + name
        size_bytes, flags = EXPORT.unpack((yield EXPORT.size))
        if not no_zeros:
            yield EXPORT_NAME_ZEROS
        self.export = Export(
            self.name,
            _checked(size_bytes),
            Flag(flags),
            structured=structured,
            extended=extended,
            allocation_id=allocation_id,
        )


def _refusal(name: str, reply: int, answers: list[tuple[int, bytes]]) -> RefusedError:
    """Return the error for a refused GO, in the user's words."""
    said = shown(answers[-1][1])
    told = f" ({said})" if said else ""
    match reply:
        case Reply.ERR_UNKNOWN:
            why = f"the server has no export {name!r}{told}"
            return RefusedError(reply, why, "name one that 'nbdinfo --list' shows there")
        case Reply.ERR_TLS_REQD:
            return RefusedError(reply, f"the server wants TLS{told}", "name it as nbds://...")
        case Reply.ERR_SHUTDOWN:
            return RefusedError(reply, f"the server is shutting down{told}")
        case _:
            number = reply & ~REPLY_IS_ERROR
            return RefusedError(reply, f"the server refused the export {name!r}: {number}{told}")


def _described(
    name: str,
    answers: list[tuple[int, bytes]],
    structured: bool,
    extended: bool,
    allocation_id: int | None,
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
        allocation_id,
    )


def _checked(size_bytes: int) -> int:
    if size_bytes > SIZE_BYTES_MAX:
        raise ProtocolError(f"the server claims an export of {size_bytes} bytes")
    return size_bytes


class Exchange:
    """A request: *command*, *flags*, byte range; *buffers* take the data of a read in order.

    Results: *error* (0, or a number of `wire.Errno`), *message* (what the server says about it),
    *extents* (of a block status: length in bytes and flags, from the offset of the request on).
    *owner* is for the caller.
    """

    __slots__ = (
        "_failures",
        "_starts",
        "_stops",
        "buffers",
        "command",
        "cookie",
        "error",
        "extents",
        "flags",
        "message",
        "offset_bytes",
        "owner",
        "size_bytes",
    )

    def __init__(
        self,
        command: int,
        flags: int,
        offset_bytes: int,
        size_bytes: int,
        buffers: Sequence[bytearray | memoryview],
    ) -> None:
        self.command = command
        self.flags = flags
        self.offset_bytes = offset_bytes
        self.size_bytes = size_bytes
        self.buffers = buffers
        self.cookie = 0
        self.error = self._failures = 0
        self.message = ""
        self.extents: list[tuple[int, int]] = []
        self.owner: object = None
        self._starts: list[int] = []  # the ranges that arrived, in order, joined
        self._stops: list[int] = []

    def belong_to(self, owner: object) -> None:
        """Take *owner*, for the caller."""
        self.owner = owner

    def fail(self, number: int, message: str = "") -> None:
        """Note an error; the first one counts. Raises ProtocolError: there is no end of them."""
        self._failures += 1
        if self._failures > FAILURES_MAX:
            raise ProtocolError("the server sent errors without end in one reply")
        if not self.error:
            self.error, self.message = number, message

    def claim(self, offset_bytes: int, size_bytes: int) -> None:
        """Note that the data of a range arrives. Raises ProtocolError: outside, or a second time.

        Joined ranges keep this short; a server that sends pieces of one byte in a bad order still
        costs less memory than the data.
        """
        end = offset_bytes + size_bytes
        if not self.offset_bytes <= offset_bytes < end <= self.offset_bytes + self.size_bytes:
            raise ProtocolError("the server sent data outside of the range of the request")
        starts, stops = self._starts, self._stops
        at = bisect(starts, offset_bytes)
        if (at and stops[at - 1] > offset_bytes) or (at < len(starts) and starts[at] < end):
            raise ProtocolError("the server sent the same data twice")
        joins_before = bool(at) and stops[at - 1] == offset_bytes
        joins_behind = at < len(starts) and starts[at] == end
        if joins_before and joins_behind:
            stops[at - 1] = stops[at]
            del starts[at], stops[at]
        elif joins_before:
            stops[at - 1] = end
        elif joins_behind:
            starts[at] = offset_bytes
        else:
            starts.insert(at, offset_bytes)
            stops.insert(at, end)

    def is_whole_read(self, offset_bytes: int, size_bytes: int) -> bool:
        """Return whether that is the range of this read, of which nothing has arrived yet."""
        return (
            offset_bytes == self.offset_bytes
            and size_bytes == self.size_bytes
            and self.command == Command.READ
            and not self._starts
            and not self.error
        )

    def check_complete(self) -> None:
        """Raise ProtocolError if the reply claims success but lacks something."""
        if self.error:
            return
        if self.command == Command.READ and self.size_bytes:
            if (self._starts, self._stops) != (
                [self.offset_bytes],
                [self.offset_bytes + self.size_bytes],
            ):
                raise ProtocolError("the server sent less data than was asked for")
        elif self.command == Command.BLOCK_STATUS and not self.extents:
            raise ProtocolError("the server sent no block status")

    def put(self, offset_bytes: int, data: memoryview | bytes) -> None:
        """Copy *data*, which belongs at *offset_bytes* of the export, into the buffers."""
        start, done = offset_bytes - self.offset_bytes, 0
        for buffer in self.buffers:
            size = len(buffer)
            if start >= size:
                start -= size
                continue
            part = min(size - start, len(data) - done)
            buffer[start : start + part] = data[done : done + part]
            done += part
            if done == len(data):
                return
            start = 0

    def put_zeros(self, offset_bytes: int, size_bytes: int) -> None:
        """Fill a range with zeros."""
        while size_bytes:
            part = min(size_bytes, len(_ZEROS))
            self.put(offset_bytes, _ZEROS[:part])
            offset_bytes += part
            size_bytes -= part

    def room(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Return the memory for the beginning of a range: as far as one buffer reaches."""
        start = offset_bytes - self.offset_bytes
        for buffer in self.buffers:
            if start < len(buffer):
                return memoryview(buffer)[start : start + size_bytes]
            start -= len(buffer)
        raise AssertionError("the range is inside of the request")

    def status(self, kind: int, payload: memoryview, export: Export) -> None:
        """Take a chunk of block status. Raises ProtocolError."""
        wide = kind == Chunk.BLOCK_STATUS_EXT
        head, form = (U32.size * 2, U64) if wide else (U32.size, U32)
        length = len(payload) - head
        each = 2 * form.size
        fits = length > 0 and not length % each and wide == export.extended
        if self.command != Command.BLOCK_STATUS or not fits or self.extents:
            raise ProtocolError("the server sent a block status that nobody asked for")
        count = length // each
        if U32.unpack_from(payload)[0] != export.allocation_id or count > STATUS_EXTENTS_MAX:
            raise ProtocolError("the server sent a block status of another kind or without end")
        if wide and U32.unpack_from(payload, U32.size)[0] != count:
            raise ProtocolError("the server sent a block status of another length")
        for number in range(count):
            (extent_bytes,) = form.unpack_from(payload, head + number * each)
            (flags,) = form.unpack_from(payload, head + number * each + form.size)
            if not extent_bytes:
                raise ProtocolError("the server sent an empty extent")
            self.extents.append((extent_bytes, flags))


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
        exchange.cookie = self._cookie
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
