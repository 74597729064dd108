"""What the store of members tells others of, and what it asks of their pages."""

from __future__ import annotations

from typing import Protocol


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
