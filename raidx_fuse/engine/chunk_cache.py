"""The chunk cache: content read or written last, kept in memory; least recently used goes first.

See the raidx paper, section V.C. The cache keeps pages of 4 KiB, not whole chunks, because only the
requested part of a chunk is ever read. A page is keyed by its *address*, which no move, loss or
rebuild changes: a byte of a data cell has its image offset as address; a byte of a parity cell has
a negative address that follows from its stripe. So a page stays valid whatever happens to the
members, but for parity in a growth, which is not cached then, and for another layout, with which
the cache is emptied (engine/context.py). Only a change of content must be reported:

* a write forgets the pages that it will change, under the stripe's lock and before its first byte
  is written, and caches the new content when it has succeeded (engine/write/);
* a repair forgets the stripe, and so does everything else that writes to cells past the write
  path: `forget_stripe` of engine/context.py, for a discard, a failed write, growth and restripe;
* a read caches what it found unless the stripe is locked or was written meanwhile (`stamp`).

A request larger than an eighth of the cache is not cached, so that one long read does not empty it.
"""

from __future__ import annotations

from collections import OrderedDict

from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.store.io_tuples import PAGE_BYTES, PAGE_MASK, PAGE_SHIFT

_STAMPS = 1024  # a power of two; chunks that share a stamp only miss a chance to be cached
_LARGEST_PART = 8  # one request may take 1/8 of the cache


def address_of(layout: Layout, stripe: Stripe, cell: CellIndex) -> int:
    """Return the cache address of the first byte of *cell* of *stripe*."""
    code = layout.code
    if cell < code.data_count:
        return layout.logical(stripe, cell) * layout.chunk_bytes
    return -(stripe * code.parity_count + cell - code.data_count + 1) * layout.chunk_bytes


class ChunkCache:
    """Up to *size_bytes* of content, keyed by address."""

    __slots__ = ("_limit", "_pages", "_shift", "_stamps", "size_bytes")

    def __init__(self, size_bytes: int, chunk_bytes: int) -> None:
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._shift = chunk_bytes.bit_length() - 1
        self._stamps = [0] * _STAMPS
        self.resize(size_bytes)

    def resize(self, size_bytes: int) -> None:
        """Keep at most *size_bytes* from now on; drop the least recently used pages beyond."""
        self.size_bytes = size_bytes
        self._limit = max(1, size_bytes >> PAGE_SHIFT)
        self._shrink()

    def _shrink(self) -> None:
        pages, limit = self._pages, self._limit
        while len(pages) > limit:
            pages.popitem(last=False)

    @property
    def used_bytes(self) -> int:
        return len(self._pages) << PAGE_SHIFT

    def items(self) -> list[tuple[int, bytes]]:
        """Return every cached page as (address, content), the least recently used first."""
        return [(page << PAGE_SHIFT, content) for page, content in self._pages.items()]

    # -- looking -------------------------------------------------------------------------------

    def holds(self, address: int, length: int) -> bool:
        wanted = range(address >> PAGE_SHIFT, (address + length - 1 >> PAGE_SHIFT) + 1)
        return all(map(self._pages.__contains__, wanted))

    def touches(self, address: int, length: int) -> bool:
        wanted = range(address >> PAGE_SHIFT, (address + length - 1 >> PAGE_SHIFT) + 1)
        return any(map(self._pages.__contains__, wanted))

    def fill(self, address: int, target: memoryview) -> bool:
        """Fill *target* from *address* on; return False, with nothing done, if any is missing."""
        pages = self._pages
        length = len(target)
        first = address >> PAGE_SHIFT
        inner = address & PAGE_MASK
        if inner + length <= PAGE_BYTES:
            known = pages.get(first)
            if known is None:
                return False
            pages.move_to_end(first)
            target[:] = known if length == PAGE_BYTES else known[inner : inner + length]
            return True
        if not self.holds(address, length):
            return False
        done = 0
        for page in range(first, (address + length - 1 >> PAGE_SHIFT) + 1):
            size = min(PAGE_BYTES - inner, length - done)
            target[done : done + size] = pages[page][inner : inner + size]
            pages.move_to_end(page)
            done += size
            inner = 0
        return True

    def stamp(self, address: int, length: int) -> int:
        """Return a number that changes with every write into the chunks of a range."""
        stamps, shift = self._stamps, self._shift
        chunks = range(address >> shift, (address + length - 1 >> shift) + 1)
        return sum(stamps[chunk % _STAMPS] for chunk in chunks)

    # -- changing ------------------------------------------------------------------------------

    def keep(self, address: int, data: ReadBuffer) -> None:
        """Cache the pages that *data*, the content from *address* on, covers completely."""
        length = len(data)
        first = -(-address >> PAGE_SHIFT)
        end = address + length >> PAGE_SHIFT
        if (end - first) * _LARGEST_PART > self._limit and end - first > 1:
            return
        pages = self._pages
        view = memoryview(data)
        at = (first << PAGE_SHIFT) - address
        for page in range(first, end):
            pages[page] = bytes(view[at : at + PAGE_BYTES])
            pages.move_to_end(page)
            at += PAGE_BYTES
        if len(pages) > self._limit:
            self._shrink()

    def wrote(self, address: int, data: ReadBuffer) -> None:
        """Cache *data*, which was written at *address*."""
        if len(data) == PAGE_BYTES and not address & PAGE_MASK:  # the usual case
            self._stamps[(address >> self._shift) % _STAMPS] += 1
            page = address >> PAGE_SHIFT
            self._pages[page] = bytes(data)
            self._pages.move_to_end(page)
            if len(self._pages) > self._limit:
                self._shrink()
            return
        self.forget(address, len(data))
        self.keep(address, data)

    def forget(self, address: int, length: int) -> None:
        """Drop every page that a range touches, because its content changes or has changed."""
        stamps, shift = self._stamps, self._shift
        for chunk in range(address >> shift, (address + length - 1 >> shift) + 1):
            stamps[chunk % _STAMPS] += 1
        pages = self._pages
        touched = range(address >> PAGE_SHIFT, (address + length - 1 >> PAGE_SHIFT) + 1)
        if len(touched) > len(pages):
            for page in [page for page in pages if page in touched]:
                del pages[page]
            return
        for page in touched:
            pages.pop(page, None)

    def clear(self) -> None:
        self._pages.clear()
        self._stamps = [stamp + 1 for stamp in self._stamps]
