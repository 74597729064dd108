"""What the store of members tells others of, and what it asks of them: pages, newer content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

PAGE_SHIFT = 12  # newer content is kept by pages of a member
PAGE_BYTES = 1 << PAGE_SHIFT
PAGE_MASK = PAGE_BYTES - 1


class NewerContent(Protocol):
    """Content that is newer than the members', laid over every read: the overlay of the log."""

    def __bool__(self) -> bool:
        """Whether there is any."""

    def read(self, role: int, offset: int, buffer: Any) -> bool:
        """Fill *buffer* if all of the range is known by whole pages, else do nothing."""

    def covers(self, role: int, begin: int, end: int) -> bool:
        """Say whether anything is known of these bytes."""

    def patch(self, role: int, offset: int, buffers: Sequence[Any]) -> None:
        """Lay what is known over *buffers*, which were read from the member at *offset*."""


class FlushObserver(Protocol):
    """Hears when a flush of all members begins and when it has succeeded."""

    def flush_begins(self) -> None:
        """Note what is written so far."""

    def flush_ends(self) -> None:
        """What was noted is durable."""


class PagesOfMembers(FlushObserver, Protocol):
    """Pages that every member holds, and what was found damaged of them."""

    damaged: list[str]

    async def save_all(self) -> None:
        """Write every page to every present member."""

    async def heal(self) -> None:
        """Make every present member hold the newest copy of every page, durably."""
