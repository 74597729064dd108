"""Sparse content of large disks in memory: only written pages are kept, and copies share them."""

from __future__ import annotations

from collections.abc import Iterator

from raidx_fuse.members.base import ReadBuffer

_SHIFT = 12
_BYTES = 1 << _SHIFT
_MASK = _BYTES - 1
_ZEROS = bytes(_BYTES)


class SparseImage:
    """*size_bytes* of zeros, read and written like a bytearray by slices with begin and end.

    A copy costs one reference for each page of 4 KiB that was ever written. *blank* is the content
    of every other page: zeros, or what an old disk may hold.
    """

    __slots__ = ("_blank", "_pages", "_size_bytes")

    def __init__(
        self, size_bytes: int, pages: dict[int, bytes] | None = None, *, blank: bytes = _ZEROS
    ) -> None:
        assert len(blank) == _BYTES
        self._size_bytes = size_bytes
        self._pages = {} if pages is None else pages
        self._blank = blank

    def __len__(self) -> int:
        return self._size_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparseImage) and self._pages == other._pages

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __bytes__(self) -> bytes:
        return self[0 : self._size_bytes]

    def __getitem__(self, key: slice) -> bytes:
        start, end = key.start, key.stop
        page, inner = start >> _SHIFT, start & _MASK
        if inner + end - start <= _BYTES:
            return self._pages.get(page, self._blank)[inner : inner + end - start]
        found = [self._pages.get(at, self._blank) for at in range(page, (end + _MASK) >> _SHIFT)]
        return b"".join(found)[inner : inner + end - start]

    def __setitem__(self, key: slice, content: ReadBuffer) -> None:
        at, done = key.start, 0
        assert key.stop - at == len(content), "an image keeps its size"
        while done < len(content):
            page, inner = at >> _SHIFT, at & _MASK
            part = bytes(content[done : done + _BYTES - inner])
            if len(part) < _BYTES:
                old = self._pages.get(page, self._blank)
                part = b"".join((old[:inner], part, old[inner + len(part) :]))
            self._pages[page] = part
            at, done = page + 1 << _SHIFT, done + _BYTES - inner

    def copy(self) -> SparseImage:
        """Return an independent image with the same content."""
        return SparseImage(self._size_bytes, dict(self._pages), blank=self._blank)

    def __contains__(self, content: bytes) -> bool:
        """Return whether a page holds *content*; what crosses the end of a page is not found."""
        return content in self._blank or any(content in page for page in self._pages.values())

    def startswith(self, prefix: bytes, start: int = 0) -> bool:
        """Return whether the content at *start* begins with *prefix*."""
        return self[start : start + len(prefix)] == prefix

    def is_hole(self, offset: int, length: int) -> bool:
        """Return whether a range reads as zeros because nothing was ever written there."""
        pages = range(offset >> _SHIFT, offset + length + _MASK >> _SHIFT)
        return self._blank is _ZEROS and not any(page in self._pages for page in pages)

    def extents(self, offset: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of the parts of a range in pages that were written, in order."""
        end = offset + length
        if self._blank is not _ZEROS:
            yield offset, length
            return
        run = (offset, offset)
        within = range(offset >> _SHIFT, end + _MASK >> _SHIFT)
        for page in sorted(page for page in self._pages if page in within):
            low, high = max(page << _SHIFT, offset), min(page + 1 << _SHIFT, end)
            if low != run[1]:
                if run[0] < run[1]:
                    yield run[0], run[1] - run[0]
                run = (low, high)
            run = (run[0], high)
        if run[0] < run[1]:
            yield run[0], run[1] - run[0]


Image = bytearray | SparseImage
"""The content of a disk in memory."""
