"""One request of a client and what its replies have said so far."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from raidx_fuse.members.nbd.protocol.wire import (
    STATUS_EXTENTS_MAX,
    U32,
    U64,
    Chunk,
    Command,
    Export,
    ProtocolError,
)

FAILURES_MAX = 1000  # error chunks in one reply

_ZEROS = bytes(1 << 16)


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

    def number(self, cookie: int) -> None:
        """Take the number by which the answer is recognized."""
        self.cookie = cookie

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
