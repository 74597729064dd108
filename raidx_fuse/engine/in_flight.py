"""Requests in flight, so that one can wait for those that are, and not for those that come later.

Requests belong to generations. `drained` begins a new one and waits for the older ones to end.
"""

from __future__ import annotations

import trio


class Generation:
    """The requests that began between two calls of `drained`."""

    __slots__ = ("_count", "_ended")

    def __init__(self) -> None:
        self._count = 0
        self._ended: trio.Event | None = None

    def begin(self) -> None:
        """Note that a request begins."""
        self._count += 1

    def end(self) -> None:
        """Note that a request has ended."""
        self._count -= 1
        if not self._count and self._ended is not None:
            self._ended.set()

    async def over(self) -> None:
        """Return when all requests have ended; none begins any more."""
        if self._count:
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()


class InFlight:
    """The requests in flight."""

    __slots__ = ("_latest", "_older")

    def __init__(self) -> None:
        self._latest = Generation()
        self._older: list[Generation] = []

    def begin(self) -> Generation:
        """Note that a request begins; call `end` of what is returned when it has ended."""
        self._latest.begin()
        return self._latest

    async def drained(self) -> None:
        """Return when the requests that are in flight now have ended."""
        self._older.append(self._latest)
        self._latest = Generation()
        for generation in list(self._older):
            await generation.over()
            if generation in self._older:
                self._older.remove(generation)
