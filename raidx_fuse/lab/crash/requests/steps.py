"""The steps that every workload is made of: writes of all kinds, flushes, pauses, settings."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.lab.crash.history import History
from raidx_fuse.lab.crash.requests.discards import discard_some
from raidx_fuse.lab.crash.requests.moving import move_some
from raidx_fuse.lab.crash.requests.places import Places
from raidx_fuse.lab.crash.requests.stagger import stagger
from raidx_fuse.lab.crash.requests.together import come_together, in_sectors
from raidx_fuse.members.base import SECTOR_BYTES

STEPS: tuple[str, ...] = ("write", "again", "burst", "stagger", "flush", "tidy", "policy")
STEP_WEIGHTS: tuple[int, ...] = (9, 3, 4, 3, 5, 3, 1)
MOVES_WEIGHT = 8
DOOR_WEIGHT = 14
DISCARD_WEIGHT = 7
# After either pause the log is checkpointed; after the longer one, quiet dirty regions are clean.
TIDY_S = (3.0, 12.0)


class Steps(Places):
    """Does random steps on *array*, and notes them in *history*.

    *bundled*: chunks can move. *has_door*: some requests share commit batches. *discards*: some
    ranges are discarded.
    """

    array: Array
    history: History
    stripes: int
    bundled: bool
    has_door: bool
    discards: bool

    @property
    def event(self) -> int:
        """Number of the next event of the record."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Flush the array, and note it in the history."""
        raise NotImplementedError

    async def write(self, offset: int, length: int, *, discard: bool = False) -> None:
        """Write *length* bytes at *offset*, and note the write; a *discard* writes zeros."""
        raise NotImplementedError

    async def observe(self, sector: int) -> None:
        """Read *sector*, and note which of several writes to it came last."""
        raise NotImplementedError

    async def step(self) -> None:
        """Do one random step."""
        kinds, weights = STEPS, STEP_WEIGHTS
        if self.bundled:
            kinds, weights = (*STEPS, "moves"), (*STEP_WEIGHTS, MOVES_WEIGHT)
        if self.has_door:
            kinds, weights = (*kinds, "door"), (*weights, DOOR_WEIGHT)
        if self.discards:
            kinds, weights = (*kinds, "discard"), (*weights, DISCARD_WEIGHT)
        kind = self.rng.choices(kinds, weights)[0]
        if kind == "moves":
            await move_some(self)
        elif kind == "write":
            await self.write(*self.place())
        elif kind == "again":
            where = self.place()
            for _ in range(self.rng.randint(2, 3)):
                await self.write(*self.near(where))
        elif kind == "burst":
            await self.burst()
        elif kind == "door":
            await come_together(self)
        elif kind == "discard":
            await discard_some(self)
        elif kind == "stagger":
            await stagger(self)
        elif kind == "flush":
            await self.flush()
        elif kind == "tidy":
            await self.tidy()
        else:
            span = self.history.begin("setting", self.event)
            await self.array.set("parity.policy", self.rng.choice(("traditional", "rmw", "rcw")))
            self.history.end(span, self.event)

    async def tidy(self) -> None:
        """Wait until the log is checkpointed, and perhaps until quiet dirty regions are clean."""
        await trio.sleep(self.rng.choice(TIDY_S))

    async def burst(self) -> None:
        """Run several writes concurrently, apart or overlapping, and perhaps a flush."""
        where = self.place()
        together = self.rng.random() < 0.5
        ranges = []
        for _ in range(self.rng.randint(2, 4)):
            offset, length = self.near(where) if together else self.place()
            ranges.append(in_sectors(offset, length))
        async with trio.open_nursery() as nursery:
            for offset, length in ranges:
                nursery.start_soon(self.write, offset, length)
            if self.rng.random() < 0.5:
                nursery.start_soon(self.flush)
        await self.observe_met(ranges)

    async def observe_met(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read the sectors where *ranges*, written concurrently, overlap: which write was last?"""
        seen: set[int] = set()
        for offset, length in ranges:
            sectors = set(range(offset // SECTOR_BYTES, (offset + length) // SECTOR_BYTES))
            for sector in sorted(sectors & seen):
                await self.observe(sector)
            seen |= sectors
