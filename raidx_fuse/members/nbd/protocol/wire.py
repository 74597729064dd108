"""Numbers and structures of the NBD protocol, and what both sides of the handshake share.

Source: doc/proto.md of the NetworkBlockDevice project (fixed newstyle), and its extension
"extended headers". Integers are big-endian.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from raidx_fuse.errors import RaidxError

INIT_MAGIC = 0x4E42444D41474943  # "NBDMAGIC"
OPTION_MAGIC = 0x49484156454F5054  # "IHAVEOPT"
OPTION_REPLY_MAGIC = 0x0003E889045565A9
REQUEST_MAGIC = 0x25609513
EXTENDED_REQUEST_MAGIC = 0x21E41C71
SIMPLE_REPLY_MAGIC = 0x67446698
STRUCTURED_REPLY_MAGIC = 0x668E33EF
EXTENDED_REPLY_MAGIC = 0x6E8A278C

GREETING = struct.Struct(">QQH")  # both magics, handshake flags
CLIENT_FLAGS = struct.Struct(">I")
OPTION = struct.Struct(">QII")  # magic, option, length
OPTION_REPLY = struct.Struct(">QIII")  # magic, option, reply type, length
EXPORT = struct.Struct(">QH")  # size, transmission flags
BLOCK_SIZES = struct.Struct(">III")  # minimum, preferred, maximum payload
REQUEST = struct.Struct(">IHHQQI")  # magic, flags, command, cookie, offset, length
EXTENDED_REQUEST = struct.Struct(">IHHQQQ")
SIMPLE_REPLY = struct.Struct(">IIQ")  # magic, error, cookie
STRUCTURED_REPLY = struct.Struct(">IHHQI")  # magic, flags, type, cookie, length
OFFSET_DATA = struct.Struct(">IHHQIQ")  # the same, with the offset of data
EXTENDED_REPLY = struct.Struct(">IHHQQQ")  # magic, flags, type, cookie, offset, length
U16, U32, U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")

EXPORT_NAME_ZEROS = 124
STRING_BYTES_MAX = 4096
OPTION_BYTES_MAX = 1 << 16  # of an option or its reply; longer ones are refused
PAYLOAD_BYTES_MAX = 1 << 25  # what every server and client takes if nothing else was agreed
BLOCK_BYTES_MAX = 1 << 16  # of the minimum block size
SIZE_BYTES_MAX = (1 << 63) - 1

ALLOCATION = "base:allocation"
STATE_HOLE, STATE_ZERO = 1, 2


class HandshakeFlag(IntFlag):
    """Flags that the server offers in its greeting; the client's flags have the same bits."""

    FIXED_NEWSTYLE = 1
    NO_ZEROES = 2


class Flag(IntFlag):
    """Transmission flags: what an export offers."""

    HAS_FLAGS = 1 << 0
    READ_ONLY = 1 << 1
    FLUSH = 1 << 2
    FUA = 1 << 3
    ROTATIONAL = 1 << 4
    TRIM = 1 << 5
    WRITE_ZEROES = 1 << 6
    DF = 1 << 7
    MULTI_CONN = 1 << 8
    RESIZE = 1 << 9
    CACHE = 1 << 10
    FAST_ZERO = 1 << 11
    BLOCK_STATUS_PAYLOAD = 1 << 12


class Option(IntEnum):
    """Options that a client may send in the handshake."""

    EXPORT_NAME = 1
    ABORT = 2
    LIST = 3
    STARTTLS = 5
    INFO = 6
    GO = 7
    STRUCTURED_REPLY = 8
    LIST_META_CONTEXT = 9
    SET_META_CONTEXT = 10
    EXTENDED_HEADERS = 11


class Reply(IntEnum):
    """Types of replies to options; errors have bit 31 set."""

    ACK = 1
    SERVER = 2
    INFO = 3
    META_CONTEXT = 4
    ERR_UNSUP = (1 << 31) + 1
    ERR_POLICY = (1 << 31) + 2
    ERR_INVALID = (1 << 31) + 3
    ERR_PLATFORM = (1 << 31) + 4
    ERR_TLS_REQD = (1 << 31) + 5
    ERR_UNKNOWN = (1 << 31) + 6
    ERR_SHUTDOWN = (1 << 31) + 7
    ERR_BLOCK_SIZE_REQD = (1 << 31) + 8
    ERR_TOO_BIG = (1 << 31) + 9
    ERR_EXT_HEADER_REQD = (1 << 31) + 10


REPLY_IS_ERROR = 1 << 31


class Info(IntEnum):
    """Types of information about an export."""

    EXPORT = 0
    NAME = 1
    DESCRIPTION = 2
    BLOCK_SIZE = 3


class Command(IntEnum):
    """Types of requests."""

    READ = 0
    WRITE = 1
    DISC = 2
    FLUSH = 3
    TRIM = 4
    CACHE = 5
    WRITE_ZEROES = 6
    BLOCK_STATUS = 7


class CommandFlag(IntFlag):
    """Flags of a request."""

    FUA = 1 << 0
    NO_HOLE = 1 << 1
    DF = 1 << 2
    REQ_ONE = 1 << 3
    FAST_ZERO = 1 << 4
    PAYLOAD_LEN = 1 << 5


REPLY_DONE = 1  # the flag of the last chunk of a structured reply
CHUNK_IS_ERROR = 1 << 15


class Chunk(IntEnum):
    """Types of chunks of a structured reply."""

    NONE = 0
    OFFSET_DATA = 1
    OFFSET_HOLE = 2
    BLOCK_STATUS = 5
    BLOCK_STATUS_EXT = 6
    ERROR = CHUNK_IS_ERROR + 1
    ERROR_OFFSET = CHUNK_IS_ERROR + 2


class Errno(IntEnum):
    """The errors that a reply may carry: the numbers that Linux uses."""

    EPERM = 1
    EIO = 5
    ENOMEM = 12
    EINVAL = 22
    ENOSPC = 28
    EOVERFLOW = 75
    ENOTSUP = 95
    ESHUTDOWN = 108


def shown(data: bytes) -> str:
    """Return text of the other side as one line that any terminal can show."""
    text = data[:STRING_BYTES_MAX].decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


class ProtocolError(RaidxError):
    """The other side broke the protocol: the connection must be closed."""


@dataclass(frozen=True, slots=True)
class Export:
    """What a server says about one export, and what was agreed for the connection.

    *block_bytes* is the minimum block size: offsets and lengths are multiples of it.
    *allocation_id* is the identifier of ``base:allocation`` in replies to block status, or None.
    """

    name: str
    size_bytes: int
    flags: Flag
    block_bytes: int = 1
    preferred_bytes: int = 4096
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    structured: bool = False
    extended: bool = False
    allocation_id: int | None = None

    @property
    def request_form(self) -> tuple[struct.Struct, int]:
        """The structure of a request, and its magic."""
        if self.extended:
            return EXTENDED_REQUEST, EXTENDED_REQUEST_MAGIC
        return REQUEST, REQUEST_MAGIC


Script = Generator[int, bytes, None]  # yields how many bytes it needs next, is sent these
TLS = -1  # what a script yields instead when TLS is due: it gets no bytes before `tls_started`


class HandshakeSide(ABC):
    """One side of the handshake, a script over bytes that arrive in any pieces.

        while not side.ended:
            send(side.output())            # may be empty
            if side.tls_due:               # start TLS on the socket, then:
                side.tls_started()
                continue
            side.receive(bytes of the other side)
        side.export                        # None: the client opened none

    Memory is bounded by what the script asks for and by the largest piece. *rest* is what arrived
    and was not used: after the end, the first bytes of the next phase.
    """

    def __init__(self) -> None:
        self.export: Export | None = None
        self.ended = False
        self.rest = bytearray()
        self._output = bytearray()
        self._steps = self._script()
        self._need = next(self._steps)

    @abstractmethod
    def _script(self) -> Script:
        """Append to `_output`, and set *export* before the end. May raise ProtocolError."""

    @property
    def tls_due(self) -> bool:
        return self._need == TLS

    def output(self) -> bytes:
        """Return the bytes to send, once."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes of the other side. Raises ProtocolError, and RefusedError at the client's."""
        self.rest += data
        while not self.ended and 0 <= self._need <= len(self.rest):
            part = bytes(self.rest[: self._need])
            del self.rest[: self._need]
            self._step(part)

    def tls_started(self) -> None:
        """Continue over the encrypted connection. Raises ProtocolError for bytes in between."""
        if self.rest:
            # Otherwise an attacker on the way could inject plain text into the encrypted part.
            raise ProtocolError("data between STARTTLS and the TLS handshake")
        self._step(b"")

    def _step(self, part: bytes) -> None:
        try:
            self._need = self._steps.send(part)
        except StopIteration:
            self.ended = True
