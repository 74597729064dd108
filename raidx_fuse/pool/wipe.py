"""What of a range of an array was ever written, and overwriting that with zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.format.configuration.volumes import Extent

WIPE_BYTES = 1 << 20
CHUNKS_AT_ONCE = 1 << 16


async def wipe(array: Array, extent: Extent) -> None:
    """Write zeros over the written chunks of *extent*, and flush. Raises RaidxError."""
    for at in range(extent.offset, extent.end, WIPE_BYTES):
        start_s = trio.current_time()
        for start, end in written_runs(array, at, min(at + WIPE_BYTES, extent.end)):
            await array.write(start, bytes(end - start))
        # Half of the time is left to users.
        await trio.sleep(trio.current_time() - start_s)
    await array.flush()


def written_runs(array: Array, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of bytes *start* .. *end* - 1 that lie in written chunks, joined."""
    size = array.context.layout.chunk_bytes
    first, last = start // size, -(-end // size)
    written = array.context.written.is_written_many(np.arange(first, last))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], written.view(np.int8), [0])))) + first
    for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield max(low * size, start), min(high * size, end)


def written_bytes(array: Array, extents: Sequence[Extent]) -> int:
    """Return how much of *extents* was ever written, in whole chunks."""
    size = array.context.layout.chunk_bytes
    count = 0
    for extent in extents:
        end = -(-extent.end // size)
        for at in range(extent.offset // size, end, CHUNKS_AT_ONCE):
            chunks = np.arange(at, min(at + CHUNKS_AT_ONCE, end))
            count += int(array.context.written.is_written_many(chunks).sum())
    return count * size
