"""Records on their way: written, or about to be, and their effect not yet seen by readers."""

from __future__ import annotations

import trio


class InFlight:
    """*open*: sequence number -> position of each. False when there are none."""

    __slots__ = ("_landed", "_moved", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self._landed: set[int] = set()  # those of them that are written
        self._moved = trio.Event()  # renewed whenever one lands or is over

    def __bool__(self) -> bool:
        return bool(self.open)

    def add(self, sequence: int, position: int) -> None:
        """Note that a record is on its way."""
        self.open[sequence] = position

    def position(self, sequence: int) -> int:
        """Return where a record on its way lies."""
        return self.open[sequence]

    def first(self) -> tuple[int, int]:
        """Return sequence number and position of the earliest."""
        return min(self.open.items())

    async def wait_for_earlier(self, sequence: int) -> None:
        """Note that a record is written, and wait until all before it are (journal.py, law 1)."""
        if len(self.open) == 1:
            return
        self._landed.add(sequence)
        self._notify()
        while any(s < sequence and s not in self._landed for s in self.open):
            await self._moved.wait()

    async def wait_for_all(self) -> None:
        """Return when none is on its way."""
        while self.open:
            await self._moved.wait()

    def end(self, sequence: int) -> None:
        """Note that the effect of a record is seen, or that it has none: it may be placed."""
        self._landed.discard(sequence)
        del self.open[sequence]
        self._notify()

    def _notify(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()
