"""A RAID controller's cache in front of an array, for experiments: it holds times, no content.

Such controllers have some hundred megabytes of memory with a battery. A write ends when it is in
the cache; what it changed goes to the array in the background, *WRITERS* ranges at a time, upwards
in addresses, adjacent pages together. A read is served from the cache if all of its pages are
there; a page is there once a part of it is. Clean pages leave the cache in the order of their last
use. A write waits while nothing but pages that the array does not have yet fill the cache.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.members.simulated.virtual_time import sleep
from raidx_fuse.store.buffers import ZEROS

PAGE_BYTES = 4096
RANGE_BYTES = 256 << 10  # of adjacent pages that are written together
WRITERS = 16
HIT_S = 50e-6


class Behind(Protocol):
    """The array behind the cache."""

    @property
    def read(self) -> Callable[[int, int], Awaitable[Any]]:
        """Read (offset_bytes, length_bytes)."""
        ...

    @property
    def write(self) -> Callable[[int, Any], Awaitable[None]]:
        """Write (offset_bytes, data)."""
        ...


class ControllerCache:
    """A write-back cache of *size_bytes* in front of *array*; `serve` must run beside it.

    Reads return zeros. *hits* counts reads that the array did not see. If the array refuses what
    the cache holds, later writes raise its error.
    """

    def __init__(self, array: Behind, size_bytes: int) -> None:
        self._array = array
        self._pages_max = max(1, size_bytes // PAGE_BYTES)
        self._clean: OrderedDict[int, None] = OrderedDict()
        self._dirty: dict[int, tuple[int, int]] = {}  # page -> the bytes of it that are newer
        self._order: list[int] = []  # the dirty pages, sorted
        self._at = 0
        self._changed = trio.Event()
        self._under_way = 0
        self._leaving = 0  # pages that are under way to the array
        self._error: RaidxError | None = None
        self.hits = 0

    async def read(self, offset_bytes: int, length_bytes: int) -> memoryview:
        """Read from the cache or the array. Raises RaidxError."""
        pages = _pages(offset_bytes, length_bytes)
        if all(page in self._clean or page in self._dirty for page in pages):
            self.hits += 1
            await sleep(HIT_S)
        else:
            await self._array.read(offset_bytes, length_bytes)
        self._keep(pages)
        return memoryview(ZEROS)[:0]

    async def write(self, offset_bytes: int, data: Any) -> None:
        """Take a write. Raises RaidxError."""
        end = offset_bytes + len(data)
        for page in _pages(offset_bytes, len(data)):
            while page not in self._dirty and self._unwritten() >= self._pages_max:
                await self._changed.wait()
            if self._error is not None:
                raise self._error
            start = page * PAGE_BYTES
            low, high = max(offset_bytes, start), min(end, start + PAGE_BYTES)
            if page in self._dirty:
                before = self._dirty[page]
                low, high = min(low, before[0]), max(high, before[1])
            else:
                insort(self._order, page)
            self._dirty[page] = low, high
            self._clean.pop(page, None)
        self._keep(range(0))
        self._tell()
        await sleep(HIT_S)

    async def serve(self) -> None:
        """Write dirty pages to the array, until cancelled (a background task)."""
        async with trio.open_nursery() as nursery:
            while True:
                while not self._dirty or self._under_way >= WRITERS:
                    await self._changed.wait()
                low, high = self._take()
                pages = _pages(low, high - low)
                self._under_way += 1
                self._leaving += len(pages)
                self._keep(pages)
                nursery.start_soon(self._write_back, low, high)
                await trio.lowlevel.checkpoint()

    async def written(self) -> None:
        """Return when nothing is dirty."""
        while self._dirty or self._under_way:
            await self._changed.wait()

    async def _write_back(self, low: int, high: int) -> None:
        try:
            await self._array.write(low, ZEROS[: high - low])
        except RaidxError as error:
            self._error = error
        self._under_way -= 1
        self._leaving -= len(_pages(low, high - low))
        self._tell()

    def _take(self) -> tuple[int, int]:
        """Return the next dirty range upwards of the last one, which is not dirty any more."""
        at = bisect_left(self._order, self._at)
        at = 0 if at == len(self._order) else at
        first = end = at
        low, high = self._dirty.pop(self._order[at])
        for page in self._order[at + 1 :]:
            end += 1
            if self._dirty[page][0] != high or self._dirty[page][1] - low > RANGE_BYTES:
                end -= 1
                break
            high = self._dirty.pop(page)[1]
        del self._order[first : end + 1]
        self._at = -(-high // PAGE_BYTES)
        return low, high

    def _keep(self, pages: range) -> None:
        for page in pages:
            if page not in self._dirty:
                self._clean[page] = None
                self._clean.move_to_end(page)
        while self._clean and len(self._clean) + len(self._dirty) > self._pages_max:
            self._clean.popitem(last=False)

    def _unwritten(self) -> int:
        """Return how many pages the array does not have yet."""
        return len(self._dirty) + self._leaving

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _pages(offset_bytes: int, length_bytes: int) -> range:
    return range(offset_bytes // PAGE_BYTES, -(-(offset_bytes + length_bytes) // PAGE_BYTES))
