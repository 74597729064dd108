"""Shared zero bytes, for reads of what was never written and for filling fresh chunks."""

from __future__ import annotations

import mmap

ZERO_BYTES = 1 << 20
_MAP = mmap.mmap(-1, ZERO_BYTES, prot=mmap.PROT_READ)
ZEROS = memoryview(_MAP)


def zero_buffers(size_bytes: int) -> list[memoryview]:
    """Return buffers of zeros, *size_bytes* in all."""
    buffers = [ZEROS] * (size_bytes // ZERO_BYTES)
    if size_bytes % ZERO_BYTES:
        buffers.append(ZEROS[: size_bytes % ZERO_BYTES])
    return buffers
