"""A volume: the byte-addressed disk that a front end (FUSE, a test, a simulation) reads and writes.

    one extent from the array's start   Volume.read is the array's own read: no call in between
    one extent elsewhere                a function that adds the offset and returns the array's own
                                        coroutine: 0.1 us of a 17 us request
    several extents                     a request inside one extent likewise, which a table of
                                        `SLOTS` parts of the volume finds; one that crosses its end
                                        is split

A further ``async def`` would cost 0.5 us.

Each of these knows the extents of one moment. So it is called and awaited at once, and the extents
change only while the volume's *gate* is closed (engine/gate.py). Then `Volume.read` and the others
are functions that wait until it opens, and look up the places after that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import NoReturn, Protocol, TypeVar

from raidx_fuse.engine.gate import Gate
from raidx_fuse.errors import NotFastError, Reason, UsageError
from raidx_fuse.format.configuration.volumes import ALIGN_BYTES, Extent, volume_name_problem
from raidx_fuse.members.base import ReadBuffer

Read = Callable[[int, int], Awaitable[bytes | memoryview]]
Write = Callable[[int, ReadBuffer], Awaitable[None]]
ReadFor = Callable[[Gate | None, int, int], Awaitable[bytes | memoryview]]
WriteFor = Callable[[Gate | None, int, ReadBuffer], Awaitable[None]]
Flush = Callable[[], Awaitable[None]]
Discard = Callable[[int, int, bool], Awaitable[None]]  # offset, length, only if it is fast
Allocation = Callable[[int, int], Iterable[tuple[int, bool]]]
Resizing = Callable[[], AbstractAsyncContextManager[None]]
Note = Callable[[bool, int, int], None]  # whether it writes, offset, bytes

ZEROS_BYTES = 1 << 20  # of one write
SLOTS = 1024

Ranged = TypeVar("Ranged")
T = TypeVar("T")


class Volume:
    """A named range of bytes.

    Attributes: *name* (the file's name in the mount); *size_bytes*; *read_only*; *read*
    ``(offset_bytes, length_bytes)`` returns exactly that many bytes, valid until the caller's next
    await; *write* ``(offset_bytes, data)`` writes all of *data*; *flush* returns when everything
    written before is durable. All three raise RaidxError, and may complete without suspending.
    They are awaited where they are called, not kept for later (see the module).
    Ranges must lie inside the volume: the front end clips or refuses others. *gate*: requests that
    suspend are inside; *read* and *write* enter it if they are made with it. *uuid* names it for
    good; *opened* counts the open handles of all front ends; *reads*, *writes*, *read_bytes* and
    *write_bytes* what they asked for since the volume was opened. The front ends count; FUSE notes
    a read by appending its size to *noted*, which takes a seventh of a call, and the pool's sampler
    has them counted every second. *size_bytes* changes only inside the contexts of *on_resize*.
    """

    __slots__ = (
        *("_allocation", "_discard", "_note", "_plain", "_read_bytes", "_reads", "on_resize"),
        *("flush", "gate", "name", "noted", "opened", "read", "read_only", "size_bytes", "uuid"),
        *("write", "write_bytes", "writes"),
    )

    def __init__(
        self,
        name: str,
        size_bytes: int,
        *,
        read: Read,
        write: Write,
        flush: Flush,
        read_only: bool = False,
        uuid: str = "",
        discard: Discard | None = None,
        allocation: Allocation | None = None,
        gate: Gate | None = None,
    ) -> None:
        check_name(name)
        self.name = name
        self.gate = gate or Gate(f"volume {name}")
        self.gate.on_turn(self._take_functions)
        self.uuid = uuid
        self.opened = 0
        self._reads = self.writes = self._read_bytes = self.write_bytes = 0
        self.noted: list[int] = []
        self.size_bytes = size_bytes
        self._note: Note | None = None
        self.bind(read, write, flush, discard, allocation)
        self.read_only = read_only
        self.on_resize: list[Resizing] = []

    def count_read(self, size_bytes: int) -> None:
        self._reads += 1
        self._read_bytes += size_bytes

    def count_noted(self) -> None:
        self._read_bytes += sum(self.noted)
        self._reads += len(self.noted)
        self.noted.clear()

    @property
    def reads(self) -> int:
        return self._reads + len(self.noted)

    @property
    def read_bytes(self) -> int:
        return self._read_bytes + sum(self.noted)

    def count_write(self, size_bytes: int) -> None:
        self.writes += 1
        self.write_bytes += size_bytes

    def note_opened(self) -> None:
        self.opened += 1

    def note_closed(self) -> None:
        self.opened -= 1

    def rename(self, name: str) -> None:
        """Take another name, which has been checked."""
        self.name = name
        self.gate.rename(f"volume {name}")

    def bind(
        self,
        read: Read,
        write: Write,
        flush: Flush,
        discard: Discard | None = None,
        allocation: Allocation | None = None,
    ) -> None:
        """Read, write, flush, discard and ask what is written by these functions from now on.

        Without *discard*, zeros are written; without *allocation* everything counts as written.
        Raises LawError if requests are inside.
        """
        self.gate.require_empty("a change of extents")
        self._plain = read, write
        self.flush = flush
        self._discard, self._allocation = discard, allocation
        self._take_functions()

    def end(self) -> None:
        """Refuse every request from now on: the volume was deleted. Raises as `bind`."""

        async def refuse(*_: object) -> NoReturn:
            raise UsageError(
                f"volume {self.name} was deleted",
                action="see raidx volume list",
                reason=Reason.NO_SUCH_VOLUME,
            )

        self.bind(refuse, refuse, self.flush, refuse)

    def _take_functions(self) -> None:
        """Let *read* and *write* be what is bound, or wait while the gate is closed."""
        read, write = self._plain
        if self.gate.is_closed:
            read, write = self.read_later, self.write_later
        if self._note is not None:
            read, write = _noted(read, write, self._note)
        self.read, self.write = read, write

    async def read_later(self, offset: int, size: int) -> bytes | memoryview:
        """Read when the gate is open, where the bytes lie then; UsageError behind the end."""
        await self.gate.opened()
        self.require_inside(offset, size)
        return await self._plain[0](offset, size)

    async def write_later(self, offset: int, data: ReadBuffer) -> None:
        """Write when the gate is open; as `read_later`."""
        await self.gate.opened()
        self.require_inside(offset, len(data))
        await self._plain[1](offset, data)

    def require_inside(self, offset: int, size: int) -> None:
        """Raise UsageError unless the volume has these bytes: its size may have changed."""
        if not 0 <= offset <= offset + size <= self.size_bytes:
            raise UsageError(
                f"bytes {offset} to {offset + size} are not inside volume {self.name}, "
                f"which has {self.size_bytes} bytes"
            )

    def watch(self, note: Note | None) -> None:
        """Call *note* with each request from now on, before it begins; None: no call."""
        self._note = note
        self._take_functions()

    async def discard(self, offset: int, length: int, *, fast_only: bool = False) -> None:
        """Let a range read as zeros and give its space back where possible. Raises as *write*.

        With *fast_only* raises NotFastError where that is no faster than writing zeros; of a volume
        in several parts some may read as zeros then. Raises UsageError for other bytes than the
        volume has.
        """
        inside = await self.gate.enter()
        try:
            self.require_inside(offset, length)
            if self._discard is not None:
                await self._discard(offset, length, fast_only)
                return
        finally:
            inside.leave()
        if fast_only:
            raise NotFastError("zeros are written to this volume")
        await self.write_zeros(offset, length)

    async def write_zeros(self, offset: int, length: int) -> None:
        """Write zeros, which keep their space, up to the end of the volume. Raises as *write*.

        Each part is a request of its own: a volume move may need the bytes in between.
        """
        at = offset
        while at < min(offset + length, self.size_bytes):
            size = min(ZEROS_BYTES, offset + length - at, self.size_bytes - at)
            await self.write(at, bytes(size))
            at += size

    def allocation(self, offset: int, length: int) -> Iterable[tuple[int, bool]]:
        """Return (length in bytes, whether it is written) of the parts of a range, in order."""
        return ((length, True),) if self._allocation is None else self._allocation(offset, length)

    async def resize(self, size_bytes: int) -> None:
        """Take another size; return when the kernel of every front end knows it.

        A volume must not be open when it takes a smaller one.
        """
        if size_bytes == self.size_bytes:
            return
        async with AsyncExitStack() as front_ends:
            for resizing in self.on_resize:
                await front_ends.enter_async_context(resizing())
            self.size_bytes = size_bytes


def _noted(read: Read, write: Write, note: Note) -> tuple[Read, Write]:
    def noted_read(offset: int, size: int) -> Awaitable[bytes | memoryview]:
        note(False, offset, size)
        return read(offset, size)

    def noted_write(offset: int, data: ReadBuffer) -> Awaitable[None]:
        note(True, offset, len(data))
        return write(offset, data)

    return noted_read, noted_write


def read_of(read: ReadFor, extents: Sequence[Extent], gate: Gate | None = None) -> Read:
    """Return the read of a volume that lies in *extents* of the array with *read*.

    *gate* is that of the volume, None if its requests are inside already.
    """
    if len(extents) == 1:
        base = extents[0].offset
        if not base:
            return partial(read, gate)
        return lambda offset, size: read(gate, offset + base, size)
    slots, bits = _slots(extents)

    def read_one_of(offset: int, size: int) -> Awaitable[bytes | memoryview]:
        end, shift = slots[offset >> bits]
        if offset + size <= end:
            return read(gate, offset + shift, size)
        return read_across(offset, size)

    async def read_across(offset: int, size: int) -> bytes:
        inside = None if gate is None else gate.enter_now()
        try:
            pieces = list(parts_of(extents, offset, size))
            return b"".join([bytes(await read(None, *piece)) for piece in pieces])
        finally:
            if inside is not None:
                inside.leave()

    return read_one_of


def shifted(call: Callable[[int, Ranged], T], first: int) -> Callable[[int, Ranged], T]:
    """Return *call*, a read or a write, for offsets that begin at *first* instead of 0."""
    return (lambda offset, what: call(offset - first, what)) if first else call


def write_of(write: WriteFor, extents: Sequence[Extent], gate: Gate | None = None) -> Write:
    """Return the write of a volume that lies in *extents* of the array with *write*.

    *gate* as for `read_of`.
    """
    if len(extents) == 1:
        base = extents[0].offset
        if not base:
            return partial(write, gate)
        return lambda offset, data: write(gate, offset + base, data)
    slots, bits = _slots(extents)

    def write_one_of(offset: int, data: ReadBuffer) -> Awaitable[None]:
        end, shift = slots[offset >> bits]
        if offset + len(data) <= end:
            return write(gate, offset + shift, data)
        return write_across(offset, data)

    async def write_across(offset: int, data: ReadBuffer) -> None:
        inside = None if gate is None else gate.enter_now()
        try:
            view, done = memoryview(data), 0
            for place, size in parts_of(extents, offset, len(data)):
                await write(None, place, bytes(view[done : done + size]))
                done += size
        finally:
            if inside is not None:
                inside.leave()

    return write_one_of


def discard_of(
    discard: Discard, extents: Sequence[Extent], require_place: Callable[[int, int], None]
) -> Discard:
    """Return the discard of a volume that lies in *extents* of the array with *discard*.

    `Volume.discard` is inside the volume's gate until all parts are done. *require_place* raises
    LawError for a part that is not the volume's.
    """

    async def discard_parts(offset: int, length: int, fast_only: bool) -> None:
        for start, size in parts_of(extents, offset, length):
            require_place(start, size)
            await discard(start, size, fast_only)

    return discard_parts


def allocation_of(allocation: Allocation, extents: Sequence[Extent]) -> Allocation:
    """Return the allocation of a volume that lies in *extents* of the array with *allocation*."""

    def allocation_parts(offset: int, length: int) -> Iterator[tuple[int, bool]]:
        for start, size in parts_of(extents, offset, length):
            yield from allocation(start, size)

    return allocation_parts


def parts_of(extents: Sequence[Extent], offset: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield the (offset in the array, length) that bytes *offset* .. of a volume consist of."""
    if len(extents) == 1:  # the whole image may have grown since
        yield extents[0].offset + offset, length
        return
    begin = 0
    for extent in extents:
        low, high = max(offset, begin), min(offset + length, begin + extent.length)
        if low < high:
            yield extent.offset + low - begin, high - low
        begin += extent.length


def _slots(extents: Sequence[Extent]) -> tuple[list[tuple[int, int]], int]:
    """Return a table by ``offset >> bits``, and *bits*.

    An entry has where the extent ends, in the volume, in which the slot begins, and what leads from
    the volume into the array there. A slot in which another extent begins has no entry for that
    one: its requests take the way of those that cross an end.
    """
    total = sum(extent.length for extent in extents)
    bits = max(ALIGN_BYTES.bit_length() - 1, (total // SLOTS).bit_length())
    slots: list[tuple[int, int]] = []
    begin = 0
    for extent in extents:
        end = begin + extent.length
        count = (end - 1 >> bits) + 1 - len(slots)
        slots += [(end, extent.offset - begin)] * count
        begin = end
    return slots, bits


def check_name(name: str) -> None:
    """Raise UsageError unless a volume can have *name*."""
    problem = volume_name_problem(name)
    if problem is not None:
        raise UsageError(f"{name[:80]!r} cannot be a volume's name: {problem}")


class FrontEnd(Protocol):
    """Shows volumes to users."""

    def show(self, volume: Volume) -> None: ...

    def hide(self, volume: Volume) -> None:
        """Show *volume* no longer; it cannot be opened any more."""
