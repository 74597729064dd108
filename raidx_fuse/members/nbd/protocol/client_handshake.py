"""The client's side of the handshake: from the greeting to the transmission phase.

    handshake = ClientHandshake("export", tls=False)
    while handshake.export is None:
        send(handshake.output())        # may be empty
        if handshake.tls_due:           # start TLS on the socket, then:
            handshake.tls_started()
            continue
        handshake.receive(bytes of the server)

The order is that of proto.md: STARTTLS, extended headers or structured replies,
``base:allocation``, GO. Each option that the server does not know is left out. A server without GO
gets EXPORT_NAME, whose refusal is a closed connection.
"""

from __future__ import annotations

from collections.abc import Generator

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.members.nbd.protocol.wire import (
    ALLOCATION,
    BLOCK_BYTES_MAX,
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
    PAYLOAD_BYTES_MAX,
    REPLY_IS_ERROR,
    SIZE_BYTES_MAX,
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
    shown,
)

_NO_TLS = "switch it on there, or name the export as nbd://... without encryption"
_REPLIES_MAX = 1000  # to one option: a server cannot keep a client busy for ever

_Answers = Generator[int, bytes, tuple[int, list[tuple[int, bytes]]]]


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
