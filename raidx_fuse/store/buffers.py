"""Page-aligned scratch memory for cells, and a shared read-only buffer of zeros."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from raidx_fuse.members.unreadable import PAGE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZERO_BYTES = 1 << 20
LAZY_BYTES = 16 << 20
_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
ZEROS = memoryview(mmap.mmap(-1, ZERO_BYTES, prot=mmap.PROT_READ))

Zeroed = bytearray | mmap.mmap


def zeroed(size_bytes: int) -> Zeroed:
    """Return a writable buffer of *size_bytes* zeros.

    A large buffer is an anonymous mapping: the kernel allocates a page of it when the page is first
    written. A bytearray would allocate everything immediately: 2 GiB for the written map of 55 TiB
    in chunks of 4 KiB.
    """
    return (
        bytearray(size_bytes) if size_bytes < LAZY_BYTES else mmap.mmap(-1, size_bytes, flags=_OWN)
    )


def extend_zeroed(zeros: bytearray | mmap.mmap, size_bytes: int) -> None:
    """Extend a buffer that `zeroed` returned to *size_bytes*.

    No memoryview or array of the buffer may exist during the call.
    """
    if isinstance(zeros, mmap.mmap):
        zeros.resize(size_bytes)
    else:
        zeros.extend(bytes(size_bytes - len(zeros)))


def zero_buffers(size_bytes: int) -> list[memoryview]:
    """Return read-only buffers of zeros with a total size of *size_bytes*."""
    buffers = [ZEROS] * (size_bytes // ZERO_BYTES)
    if size_bytes % ZERO_BYTES:
        buffers.append(ZEROS[: size_bytes % ZERO_BYTES])
    return buffers


Bytes: TypeAlias = "NDArray[np.uint8]"

# Measured (DATAPATH): one numpy XOR costs 1.9 us for 4 KiB and 6.7 us for 64 KiB. Creating a view
# costs about as much as a small XOR. Therefore scratch memory is reused and its views are kept.
# Blocks above 256 KiB are split, because XOR is three times as fast while its operands stay in the
# L2 cache.
BLOCK_BYTES = 256 * 1024

_VIEWS_KEPT = 16


class Arena:
    """A block of page-aligned scratch memory that is divided into equal slots on demand.

    `slots(n, count)` returns (memoryview, array) pairs of n bytes each. Slots of different sizes
    share the same memory, so only one slot size may be in use at a time.
    """

    __slots__ = ("_array", "_map", "_view", "_views", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._map = mmap.mmap(-1, size_bytes, flags=_OWN)
        self._view = memoryview(self._map)
        self._array: Bytes = np.frombuffer(self._map, dtype=np.uint8)
        self._views: dict[int, list[tuple[memoryview, Bytes]]] = {}

    def slots(self, slot_bytes: int, count: int) -> list[tuple[memoryview, Bytes]]:
        """Return at least *count* slots of *slot_bytes*. Raises ValueError if they do not fit."""
        slots = self._views.get(slot_bytes)
        if slots is None:
            if len(self._views) >= _VIEWS_KEPT:
                self._views.clear()
            slots = self._views[slot_bytes] = []
        while len(slots) < count:
            start = len(slots) * slot_bytes
            end = start + slot_bytes
            if end > self.size_bytes:
                raise ValueError(f"{count} slots of {slot_bytes} bytes exceed the arena")
            slots.append((self._view[start:end], self._array[start:end]))
        return slots

    def take(self, start: int, size_bytes: int) -> tuple[memoryview, Bytes]:
        """Return a new view and array of one byte range; they are not cached."""
        end = start + size_bytes
        return self._view[start:end], self._array[start:end]


class ArenaPool:
    """Free arenas by power-of-two size; reusing one costs a list pop and an append."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: dict[int, list[Arena]] = {}

    def get(self, size_bytes: int) -> Arena:
        """Return an arena of at least *size_bytes*."""
        order = max(16, (size_bytes - 1).bit_length())
        free = self._free.get(order)
        return free.pop() if free else Arena(1 << order)

    def put(self, arena: Arena) -> None:
        """Return an arena to the pool; the caller must not use its views any more."""
        free = self._free.setdefault(arena.size_bytes.bit_length() - 1, [])
        # Keep few large arenas: the daemon's idle memory is limited to 150 MiB for 1 TiB.
        if len(free) < (32 if arena.size_bytes <= 1 << 20 else 4):
            free.append(arena)


class Scratch:
    """Memory for ranges that are read, in rows of equal size; it is used again after `clear`.

    Fresh memory costs a page fault for each page, and a view as much as a small read. So both are
    kept, for the first SIZES_MAX sizes.
    """

    SIZES_MAX = 4
    ROWS_MAX = 1024

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Bytes, list[list[memoryview]]]] = {}
        self._used: dict[int, int] = {}

    def clear(self) -> None:
        self._used.clear()

    def take(self, count: int, size_bytes: int) -> tuple[Bytes, list[list[memoryview]]]:
        """Return memory for *count* ranges in a row, and the buffers of each."""
        first = self._used.get(size_bytes, 0)
        end = first + count
        kept = self._rows.get(size_bytes)
        if kept is None or end * size_bytes > len(kept[0]):
            if size_bytes > PAGE_BYTES or count > self.ROWS_MAX or first or kept is not None:
                return _rows(count, size_bytes)
            if len(self._rows) == self.SIZES_MAX:
                return _rows(count, size_bytes)
            kept = self._rows[size_bytes] = _rows(self.ROWS_MAX, size_bytes)
        self._used[size_bytes] = end
        memory, buffers = kept
        return memory[first * size_bytes : end * size_bytes], buffers[first:end]


def _rows(count: int, size_bytes: int) -> tuple[Bytes, list[list[memoryview]]]:
    memory = np.empty(count * size_bytes, np.uint8)
    view = memory.data
    ends = range(size_bytes, count * size_bytes + 1, size_bytes)
    return memory, [[view[end - size_bytes : end]] for end in ends]
