"""The written map: one bit for each logical chunk says whether it was ever written.

A chunk without its bit reads as zero, whatever lies on the members, and counts as zero in every
chain. The map is held whole in memory as flat *bits* (chunk c is bit c % 8 of byte c // 8) and kept
on every member by checksummed pages; a page is saved before the write that set its bits is
acknowledged, and durable after the next flush like the data itself.

A bit that a log record changed is saved by the checkpoint that follows, and not before: should a
crash drop the record, its chunk must count as before. Until then any other save of the page
contains the old bit. A write past the log saves the page on its own, perhaps while a checkpoint is
under way; the checkpoint must not write the page without that bit again:

    record sets bit 0      checkpoint begins ............. saves the page: bits 0 and 1
                               write past the log saves bit 1, without bit 0
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.numbers import Chunk, Stripe, cell_range, stripe_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.store.page_store import PageStore, put_bit, set_bits_in

SCAN_CHUNKS = 1 << 20  # how much of the map one step of a scan unpacks


class WrittenMap:
    """Bits of *chunks* logical chunks, saved through *pages*."""

    def __init__(self, chunks: int, pages: PageStore) -> None:
        self.chunks = chunks
        self.pages = pages
        self.bits = pages.payload
        pages.settle_by(self._without_logged)
        self._unsaved: set[int] = set()  # pages with bits that records changed
        self._logged: dict[int, bool] = {}  # chunk -> its bit before, no checkpoint has begun since
        self._taken: dict[int, bool] = {}  # the same of those that a checkpoint is about to save
        assert len(self.bits) * 8 >= chunks, "the map region holds the whole array"

    def is_written(self, chunk: Chunk) -> bool:
        return bool(self.bits[chunk >> 3] >> (chunk & 7) & 1)

    def unwritten_data(self, layout: Layout, stripe: Stripe) -> int:
        """Return the data cells of *stripe* that were never written, as a bit mask of cells."""
        count = layout.code.data_count
        bits = self.bits
        if layout.contiguous:
            first = stripe * count
            end = first + count
            window = int.from_bytes(bits[first >> 3 : (end + 7) >> 3], "little")
            return ~(window >> (first & 7)) & ((1 << count) - 1)
        unwritten = 0
        for cell in cell_range(0, count):
            chunk = layout.logical(stripe, cell)
            if not bits[chunk >> 3] >> (chunk & 7) & 1:
                unwritten |= 1 << cell
        return unwritten

    def extend(self, chunks: int) -> None:
        """Extend the map to *chunks* logical chunks, for which the pages have made room."""
        assert len(self.bits) * 8 >= chunks, "the map region holds the whole array"
        self.chunks = chunks

    def set_bits(self, chunks: Iterable[Chunk]) -> None:
        """Set the bits of *chunks* for a log record; a checkpoint saves their pages."""
        self._change(chunks, True)

    def clear_bits(self, chunks: Iterable[Chunk]) -> None:
        """Clear the bits of *chunks* for a log record; a checkpoint saves their pages."""
        self._change(chunks, False)

    def _change(self, chunks: Iterable[Chunk], written: bool) -> None:
        page_bits = self.pages.payload_bytes * 8
        for chunk in chunks:
            self._logged.setdefault(chunk, self.is_written(chunk))
            self._unsaved.add(chunk // page_bits)
            put_bit(self.bits, chunk, written)

    def forget_beyond(self) -> None:
        """Clear the bits of chunks that the image does not have; the next checkpoint saves it.

        A later growth would make such a chunk, and the old bytes at its place would be its content.
        """
        end = self.chunks
        beyond = np.frombuffer(self.bits, np.uint8)[end >> 3 :]
        if beyond.any():
            self.clear_bits(set_bits_in(self.bits, end, len(self.bits) * 8).tolist())

    async def mark(self, chunks: Sequence[int], unwritten: Sequence[int] = ()) -> None:
        """Set the bits of *chunks*, clear those of *unwritten*, and save their pages (not flushed).

        The bits change before the first suspension.
        """
        page_bits = self.pages.payload_bytes * 8
        for changed, written in ((chunks, True), (unwritten, False)):
            for chunk in changed:
                self._logged.pop(chunk, None)
                self._taken.pop(chunk, None)
                put_bit(self.bits, chunk, written)
        pages = sorted({chunk // page_bits for chunk in (*chunks, *unwritten)})
        await self.pages.save_as(pages, self._without_logged)

    def take_unsaved(self) -> set[int]:
        """Return the pages with bits that records changed, for `save_taken`, and forget them."""
        pages, self._unsaved = self._unsaved, set()
        self._taken = self._logged | self._taken
        self._logged = {}
        return pages

    async def save_taken(self, pages: Iterable[int]) -> None:
        """Save *pages* of `take_unsaved`, whose records are durable by now; not flushed."""

        def content(page: int) -> bytes:
            self._taken = {}  # from here on every save contains them
            return self._without_logged(page)

        await self.pages.save_as(sorted(pages), content)

    def _without_logged(self, page: int) -> bytes:
        """Return the payload of *page* without what only records say so far."""
        content = bytearray(self.pages.content(page))
        first = page * self.pages.payload_bytes * 8
        for before in (self._logged, self._taken):  # what was taken is older: its word is the last
            for chunk, written in before.items():
                if 0 <= chunk - first < len(content) * 8:
                    put_bit(content, chunk - first, written)
        return bytes(content)

    # -- scans ---------------------------------------------------------------------------------

    def runs(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of written chunks among first..end-1 as (first chunk, end)."""
        chunks = set_bits_in(self.bits, first, end)
        if len(chunks):
            cuts = np.flatnonzero(np.diff(chunks) != 1) + 1
            for run in np.split(chunks, cuts):
                yield int(run[0]), int(run[-1]) + 1

    def whole(self, layout: Layout, start: int, end: int) -> bool:
        """Return whether every chunk of stripes start..end-1 was written (contiguous layouts)."""
        count = layout.code.data_count
        return self.all_written(start * count, end * count)

    def all_written(self, first: int, end: int) -> bool:
        """Return whether all of the chunks first..end-1 were written."""
        return not ~self._window(first, end) & (1 << end - first) - 1

    def none_written(self, first: int, end: int) -> bool:
        return not self._window(first, end) & (1 << end - first) - 1

    def _window(self, first: int, end: int) -> int:
        """Return the bits of the chunks first..end-1 as an integer; higher bits may be set, too."""
        return int.from_bytes(self.bits[first >> 3 : (end + 7) >> 3], "little") >> (first & 7)

    def _live_in(self, layout: Layout, start: int, end: int) -> NDArray[np.int64]:
        """Return the stripes of start..end-1 that have a written chunk."""
        count = layout.code.data_count
        if not layout.contiguous:
            written = self.is_written_many(layout.logical_rows(start, end))
            return start + np.flatnonzero(written.any(axis=1))
        stripes = set_bits_in(self.bits, start * count, end * count) // count
        first_of_stripe = np.ones(len(stripes), np.bool_)
        np.not_equal(stripes[1:], stripes[:-1], out=first_of_stripe[1:])
        return stripes[first_of_stripe]

    def is_written_many(self, chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each of *chunks* (an array of any shape) whether it was ever written."""
        packed = np.frombuffer(self.bits, dtype=np.uint8)
        found: NDArray[np.bool_] = (packed[chunks >> 3] >> (chunks & 7).astype(np.uint8) & 1) > 0
        return found

    def written_stripes(
        self, layout: Layout, start: int, limit: int, end: int | None = None
    ) -> list[Stripe]:
        """Return up to *limit* stripes from *start* (before *end*) with a written chunk."""
        end = layout.stripes if end is None else min(end, layout.stripes)
        found: list[Stripe] = []
        alike = layout.contiguous and start + limit <= end
        if alike and self.whole(layout, start, start + limit):
            return list(stripe_range(start, start + limit))
        step = max(1, SCAN_CHUNKS // layout.code.data_count)
        # Small steps first: the next window is usually right here.
        size = min(step, max(64, 2 * limit))
        while start < end and len(found) < limit:
            stop = min(start + size, end)
            found.extend(self._live_in(layout, start, stop)[: limit - len(found)].tolist())
            start, size = stop, step
        return found

    def count_live(self, layout: Layout, start: int, end: int) -> int:
        """Return the number of stripes of start..end-1 that have a written chunk."""
        step = max(1, SCAN_CHUNKS // layout.code.data_count)
        return sum(
            len(self._live_in(layout, at, min(at + step, end))) for at in range(start, end, step)
        )

    def count_written(self) -> int:
        """Return the number of chunks that were ever written."""
        packed = np.frombuffer(self.bits, dtype=np.uint8)[: (self.chunks + 7) >> 3]
        total = 0
        for at in range(0, len(packed), SCAN_CHUNKS):
            block = packed[at : at + SCAN_CHUNKS]
            if block.any():
                total += int(np.bitwise_count(block).sum())
        return total
