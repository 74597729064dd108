"""Page-aligned scratch memory for cells, and shared zeros."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

ZERO_BYTES = 1 << 20

_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

_MAP = mmap.mmap(-1, ZERO_BYTES, prot=mmap.PROT_READ)

ZEROS = memoryview(_MAP)

LAZY_BYTES = 16 << 20


def zeroed(size_bytes: int) -> bytearray | mmap.mmap:
    """Return zeros to be changed; of many, memory is taken only where they are.

    A bytearray writes its zeros at once: 2 GiB for the map of 55 TiB in chunks of 4 KiB.
    """
    return (
        bytearray(size_bytes) if size_bytes < LAZY_BYTES else mmap.mmap(-1, size_bytes, flags=_OWN)
    )


def extend_zeroed(zeros: bytearray | mmap.mmap, size_bytes: int) -> None:
    """Make what `zeroed` returned *size_bytes* long; nothing else looks at it just now."""
    if isinstance(zeros, mmap.mmap):
        zeros.resize(size_bytes)
    else:
        zeros.extend(bytes(size_bytes - len(zeros)))


def zero_buffers(size_bytes: int) -> list[memoryview]:
    """Return buffers of zeros, *size_bytes* in all."""
    buffers = [ZEROS] * (size_bytes // ZERO_BYTES)
    if size_bytes % ZERO_BYTES:
        buffers.append(ZEROS[: size_bytes % ZERO_BYTES])
    return buffers


# XOR over page-aligned scratch memory.
#
# Measured (DATAPATH): one numpy XOR of 4 KiB costs 1.9 us, of 64 KiB 6.7 us, and making a view
# about as much as a small XOR. So scratch memory is reused and its views are kept; blocks above
# 256 KiB are cut, because XOR runs at three times the speed while its operands stay in the L2
# cache.

Bytes = NDArray[np.uint8]

BLOCK_BYTES = 256 * 1024

_VIEWS_KEPT = 16


class Arena:
    """A piece of page-aligned scratch memory, cut into equal slots on demand.

    `slots(n)` returns (memoryview, array) pairs of n bytes each; the same memory serves every n.
    """

    __slots__ = ("_array", "_map", "_view", "_views", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._map = mmap.mmap(-1, size_bytes)
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
        """Return the view and array of one range (not kept)."""
        end = start + size_bytes
        return self._view[start:end], self._array[start:end]


class ArenaPool:
    """Arenas by power-of-two size; `get` and `put` are a list pop and append when warm."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: dict[int, list[Arena]] = {}

    def get(self, size_bytes: int) -> Arena:
        """Return an arena of at least *size_bytes*."""
        order = max(16, (size_bytes - 1).bit_length())
        free = self._free.get(order)
        return free.pop() if free else Arena(1 << order)

    def put(self, arena: Arena) -> None:
        """Give an arena back; nobody may use its views any more."""
        free = self._free.setdefault(arena.size_bytes.bit_length() - 1, [])
        # Keep few large ones: idle memory of the daemon is a promise (150 MiB for 1 TiB).
        if len(free) < (32 if arena.size_bytes <= 1 << 20 else 4):
            free.append(arena)
