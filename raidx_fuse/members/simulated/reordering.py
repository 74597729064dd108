"""A device that chooses which of the waiting operations it serves next: NCQ and C-SCAN.

Operations that arrive while all channels are busy wait here. When one ends, "ncq" takes the waiting
one with the shortest positioning (seek and rotation: what a disk knows of its own platters), and
"cscan" the nearest one upwards of the head, then the lowest. Rotation is drawn anew at each choice,
because the angle between the head and a sector is another one after each operation.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from raidx_fuse.members.simulated.service import ServiceQueue


class Waiting:
    """An operation that waits, until *chosen* is set; *position_s* was drawn when it was chosen."""

    __slots__ = ("chosen", "is_write", "offset_bytes", "position_s")

    def __init__(self, is_write: bool, offset_bytes: int) -> None:
        self.is_write = is_write
        self.offset_bytes = offset_bytes
        self.chosen = trio.Event()
        self.position_s: float | None = None

    def draw(self, position_s: float) -> float:
        """Note what positioning would take now, and return it."""
        self.position_s = position_s
        return position_s


class Reordering:
    """The operations that wait at the device of *queue*, whose model says in which order."""

    def __init__(self, queue: ServiceQueue) -> None:
        self._queue = queue
        self._waiting: list[Waiting] = []
        self._serving = 0
        self._choose: Callable[[], Waiting] = (
            self._nearest if queue.model.order == "ncq" else self._upwards
        )

    async def turn(self, is_write: bool, offset_bytes: int) -> float | None:
        """Return when the device begins with this operation, with its positioning if it is known.

        `ended` must be called after it, however it ends.
        """
        if self._serving < self._queue.model.channels:
            self._serving += 1
            return None
        mine = Waiting(is_write, offset_bytes)
        self._waiting.append(mine)
        try:
            await mine.chosen.wait()
        except trio.Cancelled:
            if mine in self._waiting:
                self._waiting.remove(mine)
            else:
                self.ended()
            raise
        return mine.position_s

    def ended(self) -> None:
        """Let the next operation begin."""
        if not self._waiting:
            self._serving -= 1
            return
        chosen = self._choose()
        self._waiting.remove(chosen)
        chosen.chosen.set()

    def _nearest(self) -> Waiting:
        device = self._queue
        return min(
            self._waiting,
            key=lambda one: one.draw(device.positioning_s(one.is_write, one.offset_bytes)),
        )

    def _upwards(self) -> Waiting:
        head = self._queue.head_bytes
        return min(self._waiting, key=lambda one: (one.offset_bytes < head, one.offset_bytes))
