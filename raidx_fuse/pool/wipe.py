"""Written content in ranges of an array, and wiping it so that its space is freed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.configuration.volumes import ALIGN_BYTES, Extent, VolumeTable

log = logging.getLogger(__name__)

WIPE_BYTES = 64 << 20
CHUNKS_AT_ONCE = 1 << 16
AGAIN_S = 30.0  # after a wipe that failed

Change = Callable[[Callable[[VolumeTable], VolumeTable]], Awaitable[None]]


class Wiper:
    """Wipes the ranges that *table* names as to be wiped, then has *change* take them out of it."""

    def __init__(self, array: Array, table: Callable[[], VolumeTable], change: Change) -> None:
        self._array = array
        self._table = table
        self._change = change
        self._asked = trio.Event()
        self._range_wiped = trio.Event()

    def ask(self) -> None:
        """Note that the table names more ranges."""
        self._asked.set()

    async def wiped(self) -> None:
        """Return when nothing is left to be wiped."""
        while self._table().wiping:
            await self._range_wiped.wait()

    async def run(self) -> None:
        """Wipe the ranges of the table that are to be wiped, now and whenever there are some."""
        while not self._array.read_only:
            self._asked = trio.Event()
            try:
                while wiping := self._table().wiping:
                    await self._wipe(wiping[0])
            except RaidxError as error:
                log.error("a deleted volume's space cannot be wiped now: %s", error)
                await trio.sleep(AGAIN_S)
                continue
            await self._asked.wait()

    async def _wipe(self, extent: Extent) -> None:
        await wipe(self._array, extent)

        def without(table: VolumeTable) -> VolumeTable:
            return replace(table, wiping=tuple(one for one in table.wiping if one != extent))

        await self._change(without)
        self._range_wiped.set()
        self._range_wiped = trio.Event()


async def wipe(array: Array, extent: Extent) -> None:
    """Discard what is written of *extent*, and flush: it reads as zeros. Raises RaidxError."""
    for at in range(extent.offset, extent.end, WIPE_BYTES):
        start_s = trio.current_time()
        await array.discard(at, min(WIPE_BYTES, extent.end - at))
        # Half of the time is left to users.
        await trio.sleep(trio.current_time() - start_s)
    await array.flush()


def to_be_wiped(array: Array, extents: Sequence[Extent]) -> list[Extent]:
    """Return those of *extents* in which anything was written, in whole blocks.

    An image may end inside a block; no other volume can have that part.
    """
    return [
        Extent(extent.offset, extent.length // ALIGN_BYTES * ALIGN_BYTES)
        for extent in extents
        if extent.length >= ALIGN_BYTES and written_bytes(array, [extent])
    ]


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
