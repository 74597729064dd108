"""The server's side of the handshake: options of the client until one of them opens an export.

    handshake = ServerHandshake(exports)
    while not handshake.ended:
        send(handshake.output())
        if handshake.tls_due:           # start TLS on the socket, then handshake.tls_started()
        handshake.receive(bytes of the client)
    handshake.export                    # None: the client gave up

Memory is bounded: an option longer than OPTION_BYTES_MAX ends the connection.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace

from raidx_fuse.members.nbd.protocol.wire import (
    ALLOCATION,
    BLOCK_SIZES,
    CLIENT_FLAGS,
    EXPORT,
    EXPORT_NAME_ZEROS,
    GREETING,
    INIT_MAGIC,
    OPTION,
    OPTION_BYTES_MAX,
    OPTION_MAGIC,
    OPTION_REPLY,
    OPTION_REPLY_MAGIC,
    STRING_BYTES_MAX,
    U16,
    U32,
    Export,
    Flag,
    Handshake,
    Incremental,
    Info,
    Option,
    ProtocolError,
    Reply,
    Script,
)

ALLOCATION_ID = 1
_OPTIONS_MAX = 1000  # of one client: it cannot keep a connection in the handshake for ever
_EMPTY_OPTIONS = (Option.LIST, Option.STARTTLS, Option.STRUCTURED_REPLY, Option.EXTENDED_HEADERS)


class ServerHandshake:
    """Serves *exports* (by name; "" is the default one) to one client.

    *tls* is "off", "optional" (a client may start it) or "required". *extended* offers extended
    headers. *export* is what the client opened; it is set when *ended* is true, or the client left.
    """

    def __init__(
        self, exports: Mapping[str, Export], *, tls: str = "off", extended: bool = True
    ) -> None:
        self.export: Export | None = None
        self._exports = exports
        self._tls = tls
        self._encrypted = False
        self._extended_offered = extended
        self._no_zeros = False
        self._forget()
        self._output = bytearray(
            GREETING.pack(INIT_MAGIC, OPTION_MAGIC, Handshake.FIXED_NEWSTYLE | Handshake.NO_ZEROES)
        )
        self._reader = Incremental(self._script())

    @property
    def ended(self) -> bool:
        """Whether no more options come: the client opened *export*, or left (None)."""
        return self._reader.ended

    @property
    def rest(self) -> bytes:
        """What arrived behind the handshake: the first requests."""
        return self._reader.rest

    @property
    def tls_due(self) -> bool:
        """Whether the caller must send `output`, start TLS and then call `tls_started`."""
        return self._reader.paused

    def tls_started(self) -> None:
        """Continue over the encrypted connection. Raises ProtocolError for bytes in between."""
        self._encrypted = True
        self._forget()
        self._reader.resume()

    def output(self) -> bytes:
        """Return the bytes to send, once."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes of the client. Raises ProtocolError: close the connection."""
        self._reader.receive(data)

    def _forget(self) -> None:
        """Forget what was agreed, as the protocol demands when TLS starts."""
        self._structured = self._extended = False
        self._allocation_of: str | None = None

    def _script(self) -> Script:
        (flags,) = CLIENT_FLAGS.unpack((yield CLIENT_FLAGS.size))
        if flags & ~(Handshake.FIXED_NEWSTYLE | Handshake.NO_ZEROES):
            raise ProtocolError(f"the client sent unknown flags: {flags:#x}")
        self._no_zeros = bool(flags & Handshake.NO_ZEROES)
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
        if self._tls == "required" and not self._encrypted and option != Option.STARTTLS:
            self._reply(option, Reply.ERR_TLS_REQD, b"this server wants TLS")
        elif data and option in _EMPTY_OPTIONS:
            self._reply(option, Reply.ERR_INVALID, b"this option has no data")
        elif option == Option.STARTTLS:
            if self._tls == "off":
                self._reply(option, Reply.ERR_POLICY, b"this server has no TLS")
            elif self._encrypted:
                self._reply(option, Reply.ERR_INVALID, b"TLS is on already")
            else:
                self._reply(option, Reply.ACK)
                yield Incremental.PAUSE
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
        if self._tls == "required" and not self._encrypted:
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
