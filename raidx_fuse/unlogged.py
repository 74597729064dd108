"""Which writes went to their places past the journal and are not durable yet.

A record that ends inside a sector keeps the rest of the sector as it lies in its place. If that
rest is itself on its way, a power cut may drop it and keep the record: the sector would hold half
of each, which nobody wrote. So such a record waits for a flush while anything unlogged is pending.
"""

from __future__ import annotations

from raidx_fuse.members.base import SECTOR_BYTES


class Unlogged:
    """Counts the writes past the journal, up to now (*count*) and those a flush covered."""

    __slots__ = ("_covered", "_flushing", "count")

    def __init__(self) -> None:
        self.count = self._flushing = self._covered = 0

    def flush_begins(self) -> None:
        """Note what is written so far."""
        self._flushing = self.count

    def flush_ends(self) -> None:
        """What was noted is durable."""
        self._covered = self._flushing

    def may_tear(self, offset: int, length: int) -> bool:
        """Say whether a record of these bytes could leave a sector of two halves after a cut."""
        return bool((offset | length) % SECTOR_BYTES) and self.count != self._covered
