"""Zero bytes: shared ones, for what was never written; own ones, which take memory when touched."""

from __future__ import annotations

import mmap

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
