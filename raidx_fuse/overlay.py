"""What is in the journal and not yet in its place: newer than the members, laid over every read.

Content is kept by pages of 4 KiB of a member. A page that is known whole is one buffer; of others
the known pieces are kept in order. Two layers: *current* takes new commits, *frozen* is on its way
to its place. Reads see the member, then frozen, then current.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

PAGE_SHIFT = 12
PAGE_BYTES = 1 << PAGE_SHIFT
_PAGE_MASK = PAGE_BYTES - 1
_ROLE_SHIFT = 8  # roles are below 256

Pieces = list[tuple[int, Any]]
Pages = dict[int, Any]  # page << _ROLE_SHIFT | role -> whole buffer or Pieces


class Overlay:
    """Unplaced content of all roles. *held_bytes* bounds the memory of *current*."""

    __slots__ = ("current", "frozen", "held_bytes")

    def __init__(self) -> None:
        self.current: Pages = {}
        self.frozen: Pages = {}
        self.held_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.current or self.frozen)

    def put(self, role: int, offset: int, data: Any) -> None:
        """Lay *data* (kept, not copied) over the role's bytes from *offset*."""
        pages = self.current
        length = len(data)
        self.held_bytes += length
        if length == PAGE_BYTES and not offset & _PAGE_MASK:
            pages[offset >> PAGE_SHIFT << _ROLE_SHIFT | role] = data
            return
        view = memoryview(data)
        at = 0
        while at < length:
            inner = offset + at & _PAGE_MASK
            size = min(PAGE_BYTES - inner, length - at)
            key = offset + at >> PAGE_SHIFT << _ROLE_SHIFT | role
            piece = view[at : at + size]
            if size == PAGE_BYTES:
                pages[key] = piece
            else:
                self._put_piece(key, inner, piece)
            at += size

    def _put_piece(self, key: int, inner: int, piece: memoryview) -> None:
        known = self.current.get(key)
        if known is None:
            self.current[key] = [(inner, piece)]
        elif isinstance(known, list):
            end = inner + len(piece)
            kept: Pieces = [(inner, piece)]
            for at, old in known:  # pieces never overlap: placing them needs no order then
                if at < inner:
                    kept.append((at, old[: inner - at]))
                if at + len(old) > end:
                    start = max(at, end)
                    kept.append((start, old[start - at :]))
            self.current[key] = kept
        else:
            page = bytearray(known)
            page[inner : inner + len(piece)] = piece
            self.current[key] = page

    def whole_page(self, role: int, offset: int, length: int) -> Any | None:
        """Return the bytes if one whole page of *current* holds the range, else None."""
        known = self.current.get(offset >> PAGE_SHIFT << _ROLE_SHIFT | role)
        if known is None or isinstance(known, list):
            return None
        inner = offset & _PAGE_MASK
        if inner + length > PAGE_BYTES:
            return None
        return known[inner : inner + length]

    def patch(self, role: int, offset: int, buffers: Sequence[Any]) -> None:
        """Lay what is known over *buffers*, which were read from the member at *offset*."""
        if len(buffers) == 1 and (offset & _PAGE_MASK) + len(buffers[0]) <= PAGE_BYTES:
            page = offset >> PAGE_SHIFT
            key = page << _ROLE_SHIFT | role
            if key in self.frozen:
                self._lay(memoryview(buffers[0]), offset, page << PAGE_SHIFT, self.frozen[key])
            if key in self.current:
                self._lay(memoryview(buffers[0]), offset, page << PAGE_SHIFT, self.current[key])
            return
        for buffer in buffers:
            length = len(buffer)
            first = offset >> PAGE_SHIFT
            last = offset + length - 1 >> PAGE_SHIFT
            for pages in (self.frozen, self.current):
                if not pages:
                    continue
                for page in range(first, last + 1):
                    known = pages.get(page << _ROLE_SHIFT | role)
                    if known is not None:
                        self._lay(memoryview(buffer), offset, page << PAGE_SHIFT, known)
            offset += length

    @staticmethod
    def _lay(target: memoryview, offset: int, page_offset: int, known: Any) -> None:
        pieces = known if isinstance(known, list) else ((0, known),)
        end = offset + len(target)
        for inner, piece in pieces:
            start = page_offset + inner
            low = max(offset, start)
            high = min(end, start + len(piece))
            if low < high:
                target[low - offset : high - offset] = piece[low - start : high - start]

    def touches(self, role: int, offset: int, length: int) -> bool:
        """Say whether anything of the range is known."""
        pages = range(offset >> PAGE_SHIFT, (offset + length - 1 >> PAGE_SHIFT) + 1)
        keys = [page << _ROLE_SHIFT | role for page in pages]
        return any(key in self.current or key in self.frozen for key in keys)

    def freeze(self) -> None:
        """Make *current* the frozen layer; the one before must have been dropped."""
        assert not self.frozen, "one placement at a time"
        self.frozen, self.current = self.current, {}
        self.held_bytes = 0

    def thaw(self) -> None:
        """After a placement that failed: put the frozen layer back under *current*."""
        newer, self.current, self.frozen = self.current, self.frozen, {}
        for key, known in newer.items():
            pieces = known if isinstance(known, list) else [(0, known)]
            for inner, piece in pieces:
                role = key & (1 << _ROLE_SHIFT) - 1
                self.put(role, (key >> _ROLE_SHIFT << PAGE_SHIFT) + inner, piece)

    def drop_frozen(self) -> None:
        """Forget the frozen layer: it is in its place."""
        self.frozen = {}

    def frozen_pieces(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (role, byte offset, bytes) of the frozen layer; no two overlap."""
        for key, known in self.frozen.items():
            role = key & (1 << _ROLE_SHIFT) - 1
            start = key >> _ROLE_SHIFT << PAGE_SHIFT
            for inner, piece in known if isinstance(known, list) else ((0, known),):
                yield role, start + inner, piece
