"""The protocols that a member set calls: newer content, flush observers, page stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import WriteBuffer

PAGE_SHIFT = 12  # newer content is kept in pages of 4 KiB
PAGE_BYTES = 1 << PAGE_SHIFT
PAGE_MASK = PAGE_BYTES - 1


class NewerContent(Protocol):
    """Content newer than that of the members, laid over every read: the overlay of the log.

    *current* and *frozen* are its layers: both are empty if there is no newer content.
    """

    @property
    def current(self) -> Mapping[int, Any]:
        """The layer on top."""
        ...

    @property
    def frozen(self) -> Mapping[int, Any]:
        """The layer that is being written to the home places."""
        ...

    def newest(self, role: Role, offset: int, length: int) -> Any:
        """Return the bytes of a range within one page as a buffer, if all are known.

        Otherwise None if nothing of the page is known, and an empty tuple if parts may be known.
        """
        ...

    def __bool__(self) -> bool:
        """Return whether there is any newer content."""
        ...

    def read(self, role: Role, offset: int, buffer: WriteBuffer) -> bool:
        """Fill *buffer* and return True if whole pages cover the range; else return False."""
        ...

    def covers(self, role: Role, begin: int, end: int) -> bool:
        """Return whether all bytes from *begin* to *end* are known."""
        ...

    def patch(self, role: Role, offset: int, buffers: Sequence[WriteBuffer]) -> None:
        """Copy newer content over *buffers*, which were read from the member at *offset*."""

    def patch_frozen(self, role: Role, offset: int, buffer: Any) -> None:
        """Copy the content of the frozen layer over *buffer*, read from the member at *offset*."""


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
