"""The server's side of the transmission phase: requests in, replies out.

    link = Server(export)
    for request in link.receive(data):
        ...                                     # link.ended: the client said good-bye
        send(link.done(request))                # or data, extents, failed

Every request that `receive` returns is valid for the export: inside of it, on its blocks, with
flags that it may have, not a write to a read-only one. For others `receive` queues the error
itself; `output` returns it. `target` lets the caller receive a large payload where it stays. A
payload is at most ``export.payload_bytes_max`` long, which bounds
the memory of a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from raidx_fuse.members.nbd.protocol.wire import (
    ALLOCATION,
    BLOCK_SIZES,
    CLIENT_FLAGS,
    EXPORT,
    EXPORT_NAME_ZEROS,
    EXTENDED_REPLY,
    EXTENDED_REPLY_MAGIC,
    GREETING,
    INIT_MAGIC,
    OPTION,
    OPTION_BYTES_MAX,
    OPTION_MAGIC,
    OPTION_REPLY,
    OPTION_REPLY_MAGIC,
    REPLY_DONE,
    SIMPLE_REPLY,
    SIMPLE_REPLY_MAGIC,
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
)

ALLOCATION_ID = 1
_OPTIONS_MAX = 1000  # of one client: it cannot keep a connection in the handshake for ever
_EMPTY_OPTIONS = (Option.LIST, Option.STARTTLS, Option.STRUCTURED_REPLY, Option.EXTENDED_HEADERS)

TARGET_BYTES_MIN = 1 << 16  # of a payload that is received where it stays

Pieces = list[bytes | bytearray | memoryview]

_FLAGS = {  # that a command may have
    Command.READ: CommandFlag.DF,
    Command.WRITE: CommandFlag.FUA,
    Command.DISC: CommandFlag(0),
    Command.FLUSH: CommandFlag(0),
    Command.TRIM: CommandFlag.FUA,
    Command.CACHE: CommandFlag(0),
    Command.WRITE_ZEROES: CommandFlag.FUA | CommandFlag.NO_HOLE | CommandFlag.FAST_ZERO,
    Command.BLOCK_STATUS: CommandFlag.REQ_ONE,
}
_NEEDS = {  # transmission flags without which a command is unknown
    Command.FLUSH: Flag.FLUSH,
    Command.TRIM: Flag.TRIM,
    Command.CACHE: Flag.CACHE,
    Command.WRITE_ZEROES: Flag.WRITE_ZEROES,
}
_CHANGES = frozenset(map(int, (Command.WRITE, Command.TRIM, Command.WRITE_ZEROES)))

# Plain numbers and tables: an operation on members of an enumeration costs 1 us, and a request has
# a dozen of them.
_COMMANDS = {int(command): command for command in Command}
_OPTIONS = [CommandFlag(flags) for flags in range(1 << len(CommandFlag))]
_READ, _WRITE, _DISC, _FLUSH = map(int, (Command.READ, Command.WRITE, Command.DISC, Command.FLUSH))
_BLOCK_STATUS, _PAYLOAD_LEN = int(Command.BLOCK_STATUS), int(CommandFlag.PAYLOAD_LEN)


class ServerHandshake(HandshakeSide):
    """Serves *exports* (by name; "" is the default one) to one client.

    With *tls* a client must start it before anything else. *extended* offers extended headers.
    Memory is bounded: an option longer than OPTION_BYTES_MAX ends the connection.
    """

    def __init__(
        self, exports: Mapping[str, Export], *, tls: bool = False, extended: bool = True
    ) -> None:
        super().__init__()
        self._exports = exports
        self._tls = tls
        self._encrypted = False
        self._extended_offered = extended
        self._no_zeros = False
        self._forget()
        offered = HandshakeFlag.FIXED_NEWSTYLE | HandshakeFlag.NO_ZEROES
        self._output += GREETING.pack(INIT_MAGIC, OPTION_MAGIC, offered)

    def tls_started(self) -> None:
        self._encrypted = True
        self._forget()
        super().tls_started()

    def _forget(self) -> None:
        """Forget what was agreed, as the protocol demands when TLS starts."""
        self._structured = self._extended = False
        self._allocation_of: str | None = None

    def _script(self) -> Script:
        (flags,) = CLIENT_FLAGS.unpack((yield CLIENT_FLAGS.size))
        if flags & ~(HandshakeFlag.FIXED_NEWSTYLE | HandshakeFlag.NO_ZEROES):
            raise ProtocolError(f"the client sent unknown flags: {flags:#x}")
        self._no_zeros = bool(flags & HandshakeFlag.NO_ZEROES)
        for _ in range(_OPTIONS_MAX):
            magic, option, length = OPTION.unpack((yield OPTION.size))
            if magic != OPTION_MAGIC:
                raise ProtocolError("the client sent no option")
            if length > OPTION_BYTES_MAX:
                raise ProtocolError(f"the client sent an option of {length} bytes")
            data = (yield length) if length else b""
            if option == Option.EXPORT_NAME:
                self._export_name(data)
                return
            if option == Option.ABORT:
                self._reply(option, Reply.ACK)
                return
            if (yield from self._answer(option, data)):
                return
        raise ProtocolError("the client sends options without end")

    def _answer(self, option: int, data: bytes) -> Generator[int, bytes, bool]:
        """Answer *option*; return whether it opened an export."""
        if self._tls and not self._encrypted and option != Option.STARTTLS:
            self._reply(option, Reply.ERR_TLS_REQD, b"this server wants TLS")
        elif data and option in _EMPTY_OPTIONS:
            self._reply(option, Reply.ERR_INVALID, b"this option has no data")
        elif option == Option.STARTTLS:
            if not self._tls:
                self._reply(option, Reply.ERR_POLICY, b"this server has no TLS")
            elif self._encrypted:
                self._reply(option, Reply.ERR_INVALID, b"TLS is on already")
            else:
                self._reply(option, Reply.ACK)
                yield TLS
        elif option == Option.LIST:
            for name in self._exports:
                encoded = name.encode()
                self._reply(option, Reply.SERVER, U32.pack(len(encoded)) + encoded)
            self._reply(option, Reply.ACK)
        elif option == Option.STRUCTURED_REPLY:
            self._structured = True
            self._reply(option, Reply.ACK)
        elif option == Option.EXTENDED_HEADERS and self._extended_offered:
            self._structured = self._extended = True
            self._reply(option, Reply.ACK)
        elif option in (Option.INFO, Option.GO):
            return self._describe(option, data)
        elif option in (Option.LIST_META_CONTEXT, Option.SET_META_CONTEXT):
            self._contexts(option, data)
        else:
            self._reply(option, Reply.ERR_UNSUP)
        return False

    def _export_name(self, data: bytes) -> None:
        if self._tls and not self._encrypted:
            raise ProtocolError("the client opens an export without TLS")
        export = self._exports.get(data.decode(errors="replace"))
        if export is None:
            raise ProtocolError("the client opens an export that there is not")
        self._output += EXPORT.pack(export.size_bytes, self._flags(export))
        self._output += b"" if self._no_zeros else bytes(EXPORT_NAME_ZEROS)
        self._open(export)

    def _describe(self, option: int, data: bytes) -> bool:
        parsed = _name_and_rest(data)
        if parsed is None or len(parsed[1]) < U16.size:
            self._reply(option, Reply.ERR_INVALID, b"the option's lengths do not fit")
            return False
        name, wanted = parsed
        (count,) = U16.unpack_from(wanted)
        if len(wanted) != U16.size * (1 + count):
            self._reply(option, Reply.ERR_INVALID, b"the option's lengths do not fit")
            return False
        export = self._exports.get(name)
        if export is None:
            self._reply(option, Reply.ERR_UNKNOWN, b"there is no such export")
            return False
        sizes = BLOCK_SIZES.pack(
            export.block_bytes, export.preferred_bytes, export.payload_bytes_max
        )
        self._reply(option, Reply.INFO, U16.pack(Info.BLOCK_SIZE) + sizes)
        kinds = {U16.unpack_from(wanted, 2 * (1 + number))[0] for number in range(count)}
        if export.block_bytes > 1 and Info.BLOCK_SIZE not in kinds and option == Option.GO:
            self._reply(option, Reply.ERR_BLOCK_SIZE_REQD, b"ask for the block sizes first")
            return False
        described = EXPORT.pack(export.size_bytes, self._flags(export))
        self._reply(option, Reply.INFO, U16.pack(Info.EXPORT) + described)
        self._reply(option, Reply.ACK)
        if option == Option.GO:
            self._open(export)
        return option == Option.GO

    def _contexts(self, option: int, data: bytes) -> None:
        """Answer a query of metadata contexts: there is ``base:allocation`` only."""
        parsed = _name_and_rest(data)
        queries = None if parsed is None else _queries(parsed[1])
        if parsed is None or queries is None or not self._structured:
            self._reply(option, Reply.ERR_INVALID, b"this needs structured replies and a query")
            return
        setting = option == Option.SET_META_CONTEXT
        if setting:
            self._allocation_of = None
        if parsed[0] not in self._exports:
            self._reply(option, Reply.ERR_UNKNOWN, b"there is no such export")
            return
        everything = not setting and (not queries or "base:" in queries)
        if everything or ALLOCATION in queries:
            number = U32.pack(ALLOCATION_ID if setting else 0)
            self._reply(option, Reply.META_CONTEXT, number + ALLOCATION.encode())
            if setting:
                self._allocation_of = parsed[0]
        self._reply(option, Reply.ACK)

    def _flags(self, export: Export) -> int:
        flags = export.flags | Flag.HAS_FLAGS
        return int(flags | Flag.DF if self._structured else flags & ~Flag.DF)

    def _open(self, export: Export) -> None:
        chosen = self._allocation_of is not None and self._exports[self._allocation_of] is export
        self.export = replace(
            export,
            flags=Flag(self._flags(export)),
            structured=self._structured,
            extended=self._extended,
            allocation_id=ALLOCATION_ID if chosen else None,
        )

    def _reply(self, option: int, reply: Reply, data: bytes = b"") -> None:
        self._output += OPTION_REPLY.pack(OPTION_REPLY_MAGIC, option, reply, len(data)) + data


def _name_and_rest(data: bytes) -> tuple[str, bytes] | None:
    """Return the name at the beginning of *data* and what follows it, None if it does not fit."""
    if len(data) < U32.size:
        return None
    (length,) = U32.unpack_from(data)
    if length > min(len(data) - U32.size, STRING_BYTES_MAX):
        return None
    end = U32.size + length
    return data[U32.size : end].decode(errors="replace"), data[end:]


def _queries(data: bytes) -> list[str] | None:
    """Return the queries of metadata contexts in *data*, None if their lengths do not fit."""
    if len(data) < U32.size:
        return None
    (count,) = U32.unpack_from(data)
    rest, queries = data[U32.size :], []
    for _ in range(min(count, len(data))):
        parsed = _name_and_rest(rest)
        if parsed is None:
            return None
        query, rest = parsed
        queries.append(query)
    return None if rest or len(queries) != count else queries


class Request(NamedTuple):
    """A request of the client; *payload* is the content of a write."""

    command: Command
    flags: CommandFlag
    cookie: int
    offset_bytes: int
    size_bytes: int
    payload: bytes | memoryview = b""


class Server:
    """One connection of a client to *export* in the transmission phase.

    *allocate* returns memory for the payload of a large write, of which the client has only said
    that it will come: memory that costs nothing before it is filled.
    """

    def __init__(self, export: Export, allocate: Callable[[int], memoryview] | None = None) -> None:
        self.export = export
        self._allocate = allocate
        self._missing = memoryview(b"")  # the memory of the payload that is still received...
        self._expected_bytes = 0  # ...of so many bytes...
        self._incomplete: Request | None = None  # ...for this write, None if it was refused
        self.ended = False
        self._allowed = _allowed(export)
        self._is_read_only = bool(export.flags & Flag.READ_ONLY)
        self._form, self._magic = export.request_form
        self._kept = bytearray()
        self._output: Pieces = []

    def output(self) -> Pieces:
        """Return the replies to refused requests, once."""
        output, self._output = self._output, []
        return output

    def receive(self, data: bytes | bytearray | memoryview) -> list[Request]:
        """Take bytes of the client; return valid requests in order. Raises ProtocolError."""
        requests: list[Request] = []
        if self._missing:
            part = min(len(data), len(self._missing))
            self._missing[:part] = data[:part]
            requests += self.filled(part)
            data = memoryview(data)[part:]
            if not data:
                return requests
        kept, export, form = self._kept, self.export, self._form
        kept += data
        at, end, head_bytes = 0, len(kept), form.size
        with memoryview(kept).toreadonly() as view:
            while not self.ended and end - at >= head_bytes:
                magic, flags, command, cookie, offset, length = form.unpack_from(view, at)
                if magic != self._magic:
                    raise ProtocolError("the client sent no request")
                body = at + head_bytes
                payload_bytes = 0
                if command == _WRITE or (flags & _PAYLOAD_LEN and export.extended):
                    payload_bytes = length
                    if payload_bytes > export.payload_bytes_max:
                        raise ProtocolError(f"the client sent a payload of {length} bytes")
                at = body + payload_bytes
                payload: bytes | memoryview
                if at <= end:
                    payload = bytes(view[body:at])
                elif payload_bytes < TARGET_BYTES_MIN or self._allocate is None:
                    at = body - head_bytes
                    break
                else:
                    payload = self._allocate(payload_bytes)
                    payload[: end - body] = view[body:end]
                    self._missing, self._expected_bytes = payload[end - body :], payload_bytes
                    at = end
                refusal = self._refusal(command, flags, offset, length)
                if command == _DISC:
                    self.ended = True
                elif refusal:  # a payload that is missing is received all the same
                    known = _COMMANDS.get(command, Command.FLUSH)  # the reply does not repeat it
                    refused = Request(known, CommandFlag(0), cookie, offset, 0)
                    self._output += self.failed(refused, refusal)
                else:
                    options = _OPTIONS[flags & ~_PAYLOAD_LEN]
                    request = Request(_COMMANDS[command], options, cookie, offset, length, payload)
                    if self._missing:
                        self._incomplete = request
                    else:
                        requests.append(request)
        del kept[:at]
        return requests

    @property
    def is_amid(self) -> bool:
        """Whether a part of a request has come, and the rest has not."""
        return bool(self._missing or self._kept)

    @property
    def kept_bytes(self) -> int:
        """How much of the payload of an incomplete request has come."""
        return self._expected_bytes - len(self._missing) if self._missing else 0

    def target(self) -> memoryview | None:
        """Return the memory for the next bytes of the client, None: `receive` takes them.

        After it was filled, as far as bytes came, call `filled` instead of `receive`.
        """
        return self._missing or None

    def filled(self, count: int) -> list[Request]:
        """Note that *count* bytes of `target` were filled; return the request if it is whole."""
        self._missing = self._missing[count:]
        if self._missing:
            return []
        request, self._incomplete = self._incomplete, None
        return [] if request is None else [request]

    def _refusal(self, command: int, flags: int, offset_bytes: int, size_bytes: int) -> int:
        """Return the error for an impossible request, 0 for a valid one."""
        export = self.export
        allowed = self._allowed.get(command)
        if allowed is None or flags & ~allowed:
            return Errno.EINVAL
        if command == _WRITE and export.extended and not flags & _PAYLOAD_LEN:
            return Errno.EINVAL
        if command in (_DISC, _FLUSH):
            return Errno.EINVAL if offset_bytes or size_bytes else 0
        if command == _BLOCK_STATUS and export.allocation_id is None:
            return Errno.EINVAL
        if self._is_read_only and command in _CHANGES:
            return Errno.EPERM
        if offset_bytes + size_bytes > export.size_bytes:
            return Errno.ENOSPC if command in _CHANGES else Errno.EINVAL
        if (offset_bytes | size_bytes) & (export.block_bytes - 1):
            return Errno.EINVAL
        if command == _READ and size_bytes > export.payload_bytes_max:
            return Errno.EOVERFLOW
        if command == _BLOCK_STATUS and not size_bytes:
            return Errno.EINVAL
        return 0

    # -- replies -------------------------------------------------------------------------------

    def done(self, request: Request) -> Pieces:
        """Return the reply to a request without data that was carried out."""
        if self.export.structured:
            return [self._chunk(request, REPLY_DONE, Chunk.NONE, 0)]
        return [SIMPLE_REPLY.pack(SIMPLE_REPLY_MAGIC, 0, request.cookie)]

    def data(self, request: Request, content: bytes | bytearray | memoryview) -> Pieces:
        """Return the reply to a read."""
        if not content:
            return self.done(request)
        if not self.export.structured:
            return [SIMPLE_REPLY.pack(SIMPLE_REPLY_MAGIC, 0, request.cookie), content]
        head = self._chunk(request, REPLY_DONE, Chunk.OFFSET_DATA, U64.size + len(content))
        return [head + U64.pack(request.offset_bytes), content]

    def extents(self, request: Request, extents: Sequence[tuple[int, int]]) -> Pieces:
        """Return the reply to a block status: (length in bytes, state) from its offset on."""
        if request.flags & CommandFlag.REQ_ONE:
            extents = [(min(extents[0][0], request.size_bytes), extents[0][1])]
        form, kind, body = U32, Chunk.BLOCK_STATUS, U32.pack(self.export.allocation_id or 0)
        if self.export.extended:
            form, kind, body = U64, Chunk.BLOCK_STATUS_EXT, body + U32.pack(len(extents))
        body += b"".join(form.pack(size) + form.pack(state) for size, state in extents)
        return [self._chunk(request, REPLY_DONE, kind, len(body)), body]

    def failed(self, request: Request, number: int, message: str = "") -> Pieces:
        """Return the reply to a request that failed with the error *number*."""
        try:
            number = Errno(number)
        except ValueError:
            number = Errno.EIO
        if not self.export.structured:
            return [SIMPLE_REPLY.pack(SIMPLE_REPLY_MAGIC, number, request.cookie)]
        said = message.encode()[:STRING_BYTES_MAX]
        body = U32.pack(number) + U16.pack(len(said)) + said
        return [self._chunk(request, REPLY_DONE, Chunk.ERROR, len(body)), body]

    def _chunk(self, request: Request, flags: int, kind: Chunk, size_bytes: int) -> bytes:
        if self.export.extended:
            at = request.offset_bytes
            magic = EXTENDED_REPLY_MAGIC
            return EXTENDED_REPLY.pack(magic, flags, kind, request.cookie, at, size_bytes)
        magic = STRUCTURED_REPLY_MAGIC
        return STRUCTURED_REPLY.pack(magic, flags, kind, request.cookie, size_bytes)


def _allowed(export: Export) -> dict[int, int]:
    """Return command -> the flags that it may have on *export*; unknown commands are left out."""
    found = {}
    for command, flags in _FLAGS.items():
        if _NEEDS.get(command, 0) & ~export.flags:
            continue
        if command == Command.WRITE and export.extended:
            flags |= CommandFlag.PAYLOAD_LEN
        if export.flags & Flag.FUA:
            flags |= CommandFlag.FUA
        if not export.flags & Flag.FAST_ZERO:
            flags &= ~CommandFlag.FAST_ZERO
        found[int(command)] = int(flags)
    return found
