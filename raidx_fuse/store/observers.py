"""The protocols that a member set calls: newer content, flush observers, page stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

PAGE_SHIFT = 12  # newer content is kept in pages of 4 KiB
PAGE_BYTES = 1 << PAGE_SHIFT
PAGE_MASK = PAGE_BYTES - 1


class NewerContent(Protocol):
    """Content newer than that of the members, laid over every read: the overlay of the log."""

    def __bool__(self) -> bool:
        """Return whether there is any newer content."""
        ...

    def read(self, role: int, offset: int, buffer: Any) -> bool:
        """Fill *buffer* and return True if whole pages cover the range; else return False."""
        ...

    def covers(self, role: int, begin: int, end: int) -> bool:
        """Return whether all bytes from *begin* to *end* are known."""
        ...

    def patch(self, role: int, offset: int, buffers: Sequence[Any]) -> None:
        """Copy newer content over *buffers*, which were read from the member at *offset*."""


class FlushObserver(Protocol):
    """Is called when a flush of all members begins and when it has succeeded."""

    def flush_begins(self) -> None:
        """Note which writes have completed: this flush covers them."""

    def flush_ends(self) -> None:
        """Count the writes noted by `flush_begins` as durable."""


class PagesOfMembers(FlushObserver, Protocol):
    """Pages that every member holds; *damaged* describes the damaged ones found at the start."""

    damaged: list[str]

    async def save_all(self) -> None:
        """Write every page to every present member."""

    async def heal(self) -> None:
        """Make every present member hold the newest copy of every page, durably."""
