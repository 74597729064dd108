"""What is in the journal and not yet in its place: newer than the members, laid over every read.

Content is kept by pages of 4 KiB of a member. A page that is known whole is one buffer; of others
the known pieces are kept in order. Two layers: *current* takes new commits, *frozen* is on its way
to its place. Reads see the member, then frozen, then current.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PAGE_SHIFT = 12
PAGE_BYTES = 1 << PAGE_SHIFT
_PAGE_MASK = PAGE_BYTES - 1
_ROLE_SHIFT = 56  # above the pages of any member, so that keys sort by role, then place
_PAGE_NUMBER = (1 << _ROLE_SHIFT) - 1

Pieces = list[tuple[int, Any]]
Pages = dict[int, Any]  # role << _ROLE_SHIFT | page -> whole buffer or Pieces


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
            pages[role << _ROLE_SHIFT | offset >> PAGE_SHIFT] = data
            return
        view = memoryview(data)
        at = 0
        while at < length:
            inner = offset + at & _PAGE_MASK
            size = min(PAGE_BYTES - inner, length - at)
            key = role << _ROLE_SHIFT | offset + at >> PAGE_SHIFT
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
        """Return the bytes if the newest page that is known holds all of the range, else None."""
        key = role << _ROLE_SHIFT | offset >> PAGE_SHIFT
        known = self.current.get(key)
        if known is None:
            known = self.frozen.get(key)
        if known is None or isinstance(known, list):
            return None
        inner = offset & _PAGE_MASK
        if length == PAGE_BYTES and not inner:
            return known
        if inner + length > PAGE_BYTES:
            return None
        return known[inner : inner + length]

    def patch(self, role: int, offset: int, buffers: Sequence[Any]) -> None:
        """Lay what is known over *buffers*, which were read from the member at *offset*."""
        if len(buffers) == 1 and (offset & _PAGE_MASK) + len(buffers[0]) <= PAGE_BYTES:
            page = offset >> PAGE_SHIFT
            key = role << _ROLE_SHIFT | page
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
                    known = pages.get(role << _ROLE_SHIFT | page)
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
                start = (key & _PAGE_NUMBER) << PAGE_SHIFT
                self.put(key >> _ROLE_SHIFT, start + inner, piece)

    def drop_frozen(self) -> None:
        """Forget the frozen layer: it is in its place."""
        self.frozen = {}

    def frozen_writes(self, present: Sequence[object]) -> list[tuple[int, int, list[Any], int]]:
        """Return the frozen layer as (role, byte offset, buffers, size); neighbours are joined.

        Ordered by role and offset; no two overlap. Only of roles whose item of *present* is not
        None: what the others miss lives on in their stripes.
        """
        writes: list[tuple[int, int, list[Any], int]] = []
        end = -1  # where the last one ends: role and byte offset in one number
        for key in sorted(self.frozen):
            known = self.frozen[key]
            if present[key >> _ROLE_SHIFT] is None:
                continue
            for inner, part in sorted(known) if isinstance(known, list) else ((0, known),):
                begin, length = (key << PAGE_SHIFT) + inner, len(part)
                if begin == end:
                    role, offset, buffers, size = writes[-1]
                    buffers.append(part)
                    writes[-1] = role, offset, buffers, size + length
                else:
                    offset = ((key & _PAGE_NUMBER) << PAGE_SHIFT) + inner
                    writes.append((key >> _ROLE_SHIFT, offset, [part], length))
                end = begin + length
        return writes
