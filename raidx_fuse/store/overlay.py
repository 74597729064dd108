"""The overlay: logged content that is not yet at its home place, laid over every read.

Content is kept in pages of 4 KiB of a member. A page that is known completely is a buffer of its
own or part of a *span*, one buffer of many pages. Of other pages the known pieces are kept.

There are two layers: *current* takes new commits, and the checkpoint is writing *frozen* to its
home places. A read takes the member's content, then frozen over it, then current over that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import ReadBuffer, WriteBuffer
from raidx_fuse.store.io_tuples import PAGE_BYTES, PAGE_MASK, PAGE_SHIFT

_ROLE_SHIFT = 56  # above any page number, so that keys sort by role, then offset
_PAGE_NUMBER = (1 << _ROLE_SHIFT) - 1
PLACED_AT_ONCE = 256  # writes without suspending: they delay others by 1 ms in a page cache
_RUN_PAGES_MAX = 256  # pages of one write: the kernel takes 1024 buffers

WHOLE = frozenset((bytes, bytearray, memoryview))  # types of a range that is known completely
Pieces = list[tuple[int, Any]]
Placed = tuple[int, list[ReadBuffer], int]  # byte offset on the member, buffers, size
Span = tuple[int, memoryview]  # the key of its first page, and the content
Numbers = NDArray[np.int64]
KEY = np.uint64
Pages = dict[int, Any]  # role << _ROLE_SHIFT | page -> whole buffer, Span or Pieces


class Overlay:
    """Logged content of all roles; *held_bytes* is an upper bound of the memory of *current*.

    *unverified* and *frozen_unverified* are the pages, (role, byte offset), that get no sum when
    the layer is placed.
    """

    __slots__ = ("current", "frozen", "frozen_unverified", "held_bytes", "unverified")

    def __init__(self) -> None:
        self.unverified: set[tuple[Role, int]] = set()
        self.frozen_unverified: set[tuple[Role, int]] = set()
        self.current: Pages = {}
        self.frozen: Pages = {}
        self.held_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.current or self.frozen)

    def put(self, role: Role, offset: int, data: ReadBuffer) -> None:
        """Put *data* over the role's bytes from *offset*; the buffer is kept, not copied."""
        if len(data) == PAGE_BYTES and not offset & PAGE_MASK:  # as in `_put`, without the call
            self.held_bytes += PAGE_BYTES
            self.current[role << _ROLE_SHIFT | offset >> PAGE_SHIFT] = data
        else:
            self._put(self.current, role, offset, data)

    def doubt(self, places: Iterable[tuple[Role, int]]) -> None:
        """Give the pages at *places* (role, byte offset) no sum when they are placed."""
        self.unverified.update(places)

    def doubt_in(self, is_frozen: bool, places: Iterable[tuple[Role, int]]) -> None:
        """Do so for pages of the frozen layer if *is_frozen*, else of the current one."""
        (self.frozen_unverified if is_frozen else self.unverified).update(places)

    def doubted(self) -> set[tuple[Role, int]]:
        """Return the pages (role, byte offset) that get no sum when they are placed."""
        return self.unverified | self.frozen_unverified

    def is_doubted(self, role: Role, offset: int) -> bool:
        """Return whether the page at byte *offset* of *role* gets no sum when it is placed."""
        place = role, offset
        return place in self.unverified or place in self.frozen_unverified

    def believe(self, role: Role, begin: int, end: int) -> None:
        """Let the pages in a range have sums when they are placed: they were checked."""
        if self.unverified or self.frozen_unverified:
            for offset in range(begin, end, PAGE_BYTES):
                self.unverified.discard((role, offset))
                self.frozen_unverified.discard((role, offset))

    def put_places(
        self, pages: Pages, roles: Numbers, offsets: Numbers, size: int, view: memoryview
    ) -> None:
        """Put *size* bytes at each place into the layer *pages*; they follow one another in *view*.

        The view is kept, not copied.
        """
        parts = [view[at : at + size] for at in range(0, len(view), size)]
        if size == PAGE_BYTES and not (offsets & PAGE_MASK).any():
            pages.update(zip(_keys(roles, offsets), parts, strict=True))
            self.held_bytes += len(view)
            return
        for role, offset, part in zip(roles.tolist(), offsets.tolist(), parts, strict=True):
            self._put(pages, role, offset, part)

    def _put(self, pages: Pages, role: Role, offset: int, data: Any) -> None:
        length = len(data)
        self.held_bytes += length
        if length == PAGE_BYTES and not offset & PAGE_MASK:
            pages[role << _ROLE_SHIFT | offset >> PAGE_SHIFT] = data
            return
        view = memoryview(data)
        first = -offset & PAGE_MASK  # start of the whole pages in *data*
        end = first + (length - first & ~PAGE_MASK)
        if first >= end:  # no whole page: at most two pieces
            end = min(first, length)
        elif first:
            self._put_piece(pages, _key(role, offset), offset & PAGE_MASK, view[:first])
        if first < end:
            key = _key(role, offset + first)
            span = key, view[first:end]
            pages.update(dict.fromkeys(range(key, key + (end - first >> PAGE_SHIFT)), span))
        elif end:
            self._put_piece(pages, _key(role, offset), offset & PAGE_MASK, view[:end])
        if end < length:
            self._put_piece(pages, _key(role, offset + end), offset + end & PAGE_MASK, view[end:])

    @staticmethod
    def _put_piece(pages: Pages, key: int, inner: int, piece: memoryview) -> None:
        known = pages.get(key)
        if known is None:
            pages[key] = [(inner, piece)]
        elif isinstance(known, list):
            end = inner + len(piece)
            kept: Pieces = [(inner, piece)]
            for at, old in known:  # pieces never overlap, so they can be written in any order
                if at < inner:
                    kept.append((at, old[: inner - at]))
                if at + len(old) > end:
                    start = max(at, end)
                    kept.append((start, old[start - at :]))
            pages[key] = kept
        else:
            page = bytearray(_page(known, key))
            page[inner : inner + len(piece)] = piece
            pages[key] = page

    def read(self, role: Role, offset: int, buffer: WriteBuffer) -> bool:
        """Fill *buffer* and return True if whole pages cover the range; else return False.

        The range must begin and end at page boundaries.
        """
        key = _key(role, offset)
        current, frozen = self.current, self.frozen
        keys = range(key, key + (len(buffer) >> PAGE_SHIFT))
        found = [current.get(key) or frozen.get(key) for key in keys]
        if None in found or list in map(type, found):
            return False
        at = 0
        for part in _parts(found, key):
            buffer[at : at + len(part)] = part
            at += len(part)
        return True

    def span(self, role: Role, offset: int, length: int) -> memoryview | None:
        """Return the bytes of a range of whole pages if *current* has them in one span, or None."""
        current = self.current
        key = _key(role, offset)
        known: Any = current.get(key)
        if known.__class__ is not tuple:
            return None
        for number in range(key + 1, key + (length >> PAGE_SHIFT)):
            if current.get(number) is not known:
                return None
        start = key - known[0] << PAGE_SHIFT
        piece: memoryview = known[1][start : start + length]
        return piece

    def newest(self, role: Role, offset: int, length: int) -> Any:
        """Return the newest known bytes of a range within one page.

        Returns a buffer (a type in WHOLE) if the page is known completely, None if nothing of the
        page is known, and an empty tuple if only parts may be known.
        """
        key = role << _ROLE_SHIFT | offset >> PAGE_SHIFT
        inner = offset & PAGE_MASK
        if inner + length > PAGE_BYTES:
            return ()
        known = self.current.get(key)
        if known is None:
            known = self.frozen.get(key)
            if known is None:
                return None
        if known.__class__ is list:
            return ()
        if known.__class__ is tuple:
            known = _page(known, key)
        if length == PAGE_BYTES:
            return known
        return memoryview(known)[inner : inner + length]

    def covers(self, role: Role, begin: int, end: int) -> bool:
        """Return whether all bytes from *begin* to *end* are known; True for an empty range."""
        return self._covers((self.frozen, self.current), role, begin, end)

    def covers_frozen(self, role: Role, begin: int, end: int) -> bool:
        """Return whether the frozen layer has all bytes from *begin* to *end*."""
        return self._covers((self.frozen,), role, begin, end)

    def has_frozen(self, role: Role, page: int) -> bool:
        """Return whether the frozen layer has bytes of page number *page* of *role*."""
        return role << _ROLE_SHIFT | page in self.frozen

    @staticmethod
    def _covers(layers: Sequence[Pages], role: Role, begin: int, end: int) -> bool:
        if begin >= end:
            return True
        for key in range(_key(role, begin), _key(role, end - 1) + 1):
            start = (key & _PAGE_NUMBER) << PAGE_SHIFT
            known = [pages[key] for pages in layers if key in pages]
            pieces = [piece for content in known for piece in _pieces(content, key)]
            low = max(begin - start, 0)
            for inner, piece in sorted(pieces, key=lambda piece: piece[0]):
                if inner <= low:
                    low = max(low, inner + len(piece))
            if low < min(end - start, PAGE_BYTES):
                return False
        return True

    def patch(self, role: Role, offset: int, buffers: Sequence[WriteBuffer]) -> None:
        """Copy known content over *buffers*, which were read from the member at *offset*."""
        if len(buffers) == 1 and (offset & PAGE_MASK) + len(buffers[0]) <= PAGE_BYTES:
            key = _key(role, offset)
            if key in self.frozen:
                self._lay(memoryview(buffers[0]), offset, key, self.frozen[key])
            if key in self.current:
                self._lay(memoryview(buffers[0]), offset, key, self.current[key])
            return
        for buffer in buffers:
            for pages in (self.frozen, self.current):
                self.patch_by(pages, role, offset, memoryview(buffer))
            offset += len(buffer)

    def patch_by(self, pages: Pages, role: Role, offset: int, buffer: memoryview) -> None:
        """Copy the content of the layer *pages* over *buffer*, read from the member at *offset*."""
        if pages:
            for key in range(_key(role, offset), _key(role, offset + len(buffer) - 1) + 1):
                known = pages.get(key)
                if known is not None:
                    self._lay(buffer, offset, key, known)

    @staticmethod
    def _lay(target: memoryview, offset: int, key: int, known: Any) -> None:
        page_offset = (key & _PAGE_NUMBER) << PAGE_SHIFT
        end = offset + len(target)
        for inner, piece in _pieces(known, key):
            start = page_offset + inner
            low = max(offset, start)
            high = min(end, start + len(piece))
            if low < high:
                target[low - offset : high - offset] = piece[low - start : high - start]

    def content(self, pages: Pages, role: Role, offset: int, length: int) -> Any:
        """Return the bytes of a range that the layer *pages* has completely."""
        key, inner = _key(role, offset), offset & PAGE_MASK
        known = pages[key]
        if inner + length <= PAGE_BYTES and known.__class__ is not list:
            page = _page(known, key)
            return page if length == PAGE_BYTES else memoryview(page)[inner : inner + length]
        content = memoryview(bytearray(length))
        for number in range(key, _key(role, offset + length - 1) + 1):
            self._lay(content, offset, number, pages[number])
        return content

    def contents(self, pages: Pages, roles: Numbers, offsets: Numbers, size: int) -> Sequence[Any]:
        """Return `content` of *size* bytes at each place."""
        if size == PAGE_BYTES and not (offsets & PAGE_MASK).any():
            found = [pages[key] for key in _keys(roles, offsets)]
            if WHOLE.issuperset(map(type, found)):
                return found
        places = zip(roles.tolist(), offsets.tolist(), strict=True)
        return [self.content(pages, role, offset, size) for role, offset in places]

    def drop(self, role: Role, offset: int, length: int) -> None:
        """Remove whole pages from *current*: newer content is at their home place."""
        key = _key(role, offset)
        pop = self.current.pop
        for number in range(key, key + (length >> PAGE_SHIFT)):
            if pop(number, None) is not None:
                self.held_bytes -= PAGE_BYTES

    def is_placing(self, role: Role, offset: int, length: int) -> bool:
        """Return whether the checkpoint may still write any of these whole pages (*frozen*)."""
        key = _key(role, offset)
        return not self.frozen.keys().isdisjoint(range(key, key + (length >> PAGE_SHIFT)))

    def freeze(self) -> None:
        """Make *current* the frozen layer; the former frozen layer must have been dropped."""
        self.frozen, self.current = self.current, {}
        self.frozen_unverified, self.unverified = self.unverified, set()
        self.held_bytes = 0

    def drop_frozen(self) -> None:
        """Forget the frozen layer: all of it is at its home places."""
        self.frozen = {}
        self.frozen_unverified = set()

    def frozen_pages(self) -> Iterator[tuple[Role, int]]:
        """Yield role and byte offset of each page of the frozen layer."""
        for key in self.frozen:
            yield Role(key >> _ROLE_SHIFT), (key & _PAGE_NUMBER) << PAGE_SHIFT

    def frozen_writes(self, roles: Collection[Role]) -> Iterator[dict[Role, list[Placed]]]:
        """Yield the writes of the frozen layer by role, in rounds with one portion of each role.

        *roles* are those that are wanted. The writes of a role come in order of their offsets and
        do not overlap; adjacent pages are joined. They come in portions, because thousands of them
        would trigger garbage collections that cost more than the writes.
        """
        frozen = self.frozen
        ordered = np.fromiter(frozen, KEY, len(frozen))
        ordered.sort()
        edges = np.array([(role << _ROLE_SHIFT, role + 1 << _ROLE_SHIFT) for role in roles], KEY)
        portions = [
            (role, self._portions(ordered[begin:end]))
            for role, (begin, end) in zip(roles, np.searchsorted(ordered, edges), strict=True)
            if begin < end
        ]
        while portions:
            found = {role: next(of_role, []) for role, of_role in portions}
            portions = [(role, of_role) for role, of_role in portions if found[role]]
            if portions:
                yield {role: found[role] for role, _ in portions}

    def _portions(self, ordered: NDArray[np.uint64]) -> Iterator[list[Placed]]:
        """Yield the writes of the pages *ordered*, all of one role, PLACED_AT_ONCE at a time."""
        frozen, keys = self.frozen, ordered.tolist()
        cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
        first = 0
        writes: list[Placed] = []
        for end in (*cuts.tolist(), len(keys)):
            if len(writes) >= PLACED_AT_ONCE:
                yield writes
                writes = []
            key = keys[first]
            known = frozen[key]
            if end == first + 1 and known.__class__ in WHOLE:
                # The common case after scattered small writes.
                writes.append(((key & _PAGE_NUMBER) << PAGE_SHIFT, [known], PAGE_BYTES))
            else:
                self._join(writes, keys[first:end])
            first = end
        if writes:
            yield writes

    def _join(self, writes: list[Placed], keys: Sequence[int]) -> None:
        """Append the writes of adjacent pages of one role to *writes*."""
        for at in range(0, len(keys), _RUN_PAGES_MAX):
            run = keys[at : at + _RUN_PAGES_MAX]
            found = [self.frozen[key] for key in run]
            if list in map(type, found):
                _join_pieces(writes, run[0], found)
            else:
                offset = (run[0] & _PAGE_NUMBER) << PAGE_SHIFT
                writes.append((offset, _parts(found, run[0]), len(run) << PAGE_SHIFT))


def _key(role: Role, offset: int) -> int:
    return role << _ROLE_SHIFT | offset >> PAGE_SHIFT


def _keys(roles: Numbers, offsets: Numbers) -> list[int]:
    high = roles.astype(np.uint64) << _ROLE_SHIFT
    keys: list[int] = (high | offsets.astype(np.uint64) >> PAGE_SHIFT).tolist()
    return keys


def _page(known: Any, key: int) -> Any:
    """Return the content of the page *key* from *known*, its whole buffer or span."""
    if known.__class__ is not tuple:
        return known
    start = key - known[0] << PAGE_SHIFT
    return known[1][start : start + PAGE_BYTES]


def _pieces(known: Any, key: int) -> Sequence[tuple[int, Any]]:
    """Return the known pieces of the page *key* as (offset in the page, content)."""
    return known if isinstance(known, list) else ((0, _page(known, key)),)


def _parts(found: Sequence[Any], key: int) -> list[Any]:
    """Return buffers of adjacent whole pages from *key* on; pages of one span share a buffer."""
    parts: list[Any] = []
    at, count = 0, len(found)
    while at < count:
        known = found[at]
        end = at + 1
        if known.__class__ is tuple:
            while end < count and found[end] is known:
                end += 1
            start = key + at - known[0] << PAGE_SHIFT
            parts.append(known[1][start : start + (end - at << PAGE_SHIFT)])
        else:
            parts.append(known)
        at = end
    return parts


def _join_pieces(writes: list[Placed], key: int, pages: Sequence[Any]) -> None:
    """Append the writes of adjacent *pages* from *key* on, some of which are known in part only."""
    end = -1
    for number, known in enumerate(pages, key):
        page_offset = (number & _PAGE_NUMBER) << PAGE_SHIFT
        for inner, part in sorted(_pieces(known, number)):
            offset, length = page_offset + inner, len(part)
            if offset == end:
                begin, buffers, size = writes[-1]
                buffers.append(part)
                writes[-1] = begin, buffers, size + length
            else:
                writes.append((offset, [part], length))
            end = offset + length
