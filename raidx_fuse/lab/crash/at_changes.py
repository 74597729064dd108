"""Writes at the moments when the configuration changes: between superblocks and head of the log.

There, members join and leave and the log gets other holders: what is written and flushed in between
must be on enough members by the old configuration and by the new one. Steps of a workload seldom
hit these moments. This writer wakes when a superblock or the head of the log is written. It
has sectors of its own, so that the order of the workload's writes stays known.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from raidx_fuse.format.regions import Regions
from raidx_fuse.journal.ring import HEAD_BYTES
from raidx_fuse.lab.crash.durable import SLOTS_BYTES
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.powercut import Event

WAKES = (0.1, 0.5, 0.9)  # shares of the changes at which the writer wakes, one for each workload
WRITES_MAX = 80  # of a workload: a placement saves the head of the log, for each of these writes
SECTORS_MAX = 3


class ChangeWriter:
    """Writes to *sectors* while it may; *regions* says what lies where."""

    def __init__(
        self,
        write: Callable[[int, int], Awaitable[None]],
        flush: Callable[[], Awaitable[None]],
        rng: random.Random,
        sectors: range,
        regions: Regions,
    ) -> None:
        self._write = write
        self._flush = flush
        self._rng = rng
        self._sectors = sectors
        self._head = range(regions.log.offset, regions.log.offset + HEAD_BYTES)
        self._share = rng.choice(WAKES)
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._may = False
        self._left = WRITES_MAX

    def note(self, event: Event) -> None:
        """Wake at a write of a superblock or of the head of the log, by chance."""
        if self._may and self._left and event.operation == "write":
            is_change = event.offset_bytes < SLOTS_BYTES or event.offset_bytes in self._head
            if is_change and self._rng.random() < self._share:
                self._left -= 1
                self._wanted.set()

    def allow(self) -> None:
        """Let it write from now on: the array runs."""
        self._may = True

    async def pause(self) -> None:
        """Let it write no more; return when it does nothing."""
        self._may = False
        await self._idle.wait()

    async def run(self) -> None:
        """Write whenever something changes, until cancelled."""
        rng = self._rng
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if not self._may:
                continue
            self._idle = trio.Event()
            try:
                count = rng.randint(1, SECTORS_MAX)
                first = rng.choice(self._sectors[: len(self._sectors) - count + 1])
                await self._write(first * SECTOR_BYTES, count * SECTOR_BYTES)
                if rng.random() < 0.8:
                    await self._flush()
            finally:
                self._idle.set()
