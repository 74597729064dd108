"""What of ranges of an array is written, and giving that back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.format.configuration.volumes import Extent

WIPE_BYTES = 64 << 20
CHUNKS_AT_ONCE = 1 << 16


async def wipe(array: Array, extent: Extent) -> None:
    """Discard what is written of *extent*, and flush: it reads as zeros. Raises RaidxError."""
    for at in range(extent.offset, extent.end, WIPE_BYTES):
        start_s = trio.current_time()
        await array.discard(at, min(WIPE_BYTES, extent.end - at))
        # Half of the time is left to users.
        await trio.sleep(trio.current_time() - start_s)
    await array.flush()


def written_bytes(array: Array, extents: Sequence[Extent]) -> int:
    """Return how much of *extents* is written, in whole chunks."""
    size = array.context.layout.chunk_bytes
    count = 0
    for extent in extents:
        end = -(-extent.end // size)
        for at in range(extent.offset // size, end, CHUNKS_AT_ONCE):
            chunks = np.arange(at, min(at + CHUNKS_AT_ONCE, end))
            count += int(array.context.written.is_written_many(chunks).sum())
    return count * size
