"""The job that moves volumes: it copies window by window, as all jobs do (jobs/job.py).

A move is one leg. A swap is several, one after the other: each volume has room where it goes when
its leg begins. Legs *in pieces* go on together, where volumes change places and none has that room:
each is copied as far as there are places, gives up what it has left, and so makes room for the
others. They are handed over when all of them are copied.

Only written chunks are copied, with the next batch read while one is written. Reads and writes go
through the arrays like those of users, so that whatever happens to an array, a lost member, a
growth, a rebuild, is its own business; the locks of the loop are not needed.

While a host is full, the job waits; at any other error it pauses until the user resumes it. If it
is cancelled, the volume of the present leg goes back; legs that have ended stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError, NoSpaceError, RaidxError, Reason
from raidx_fuse.format.create import new_uuid
from raidx_fuse.jobs.job import BUSY_S, WINDOW_BYTES, StallableJob
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.pool.begin import begin_transfer
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.transfer import Transfer
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes

log = logging.getLogger(__name__)

BATCH_BYTES_MAX = 16 << 20
BATCHES_IDLE = 4  # of a window, if nothing slows the job
LEAP_BYTES = 1 << 30  # of a volume: at most so much that is mostly unwritten in one window
POLL_S = 0.25


@dataclass(slots=True)
class Leg:
    """*volume* goes from *source* to *target*; *transfer* as soon as the tables say so."""

    volume: Volume
    source: ArrayVolumes
    target: ArrayVolumes
    transfer: Transfer | None = None
    in_pieces: bool = False

    async def begin(self) -> Transfer:
        """Enter the move into the tables and return it; see `begin_transfer`."""
        self.transfer = await begin_transfer(
            *(self.source, self.target, self.volume, new_uuid()), in_pieces=self.in_pieces
        )
        return self.transfer


class MoveVolumes(StallableJob):
    """Moves volumes of *pool*, one leg after the other; *kind* is "move" or "swap"."""

    kind = "move"

    def __init__(
        self, context: ArrayContext, job_id: int, pool: Pool, legs: Sequence[Leg], kind: str
    ) -> None:
        super().__init__(context, job_id)
        self.kind = kind
        self._pool = pool
        self._legs = list(legs)
        self._turn = False
        self._went_back = False
        self._batch = 0
        self._seen = 0
        self._asked_s = -1e9
        self._again_s = 0.0

    def set_window(self, size_bytes: int) -> None:
        """Copy *size_bytes* in one batch; 0: as the target's stripes suggest."""
        self._batch = size_bytes

    def names(self, volume_uuid: str) -> bool:
        """Return whether a leg that has not ended moves that volume."""
        return any(leg.volume.uuid == volume_uuid for leg in self._legs)

    def detail(self) -> dict[str, Any]:
        """Return which volume moves where, and how far it is."""
        if not self._legs:
            return {"volume": None, "going_back": self._went_back, "legs_left": 0}
        leg = self._legs[0]
        return {
            "volume": leg.volume.name,
            "from": leg.source.array.name,
            "to": leg.target.array.name,
            "watermark": leg.transfer.saved if leg.transfer else 0,
            "going_back": self._turn or (leg.transfer is not None and leg.transfer.back),
            "legs_left": len(self._legs),
        }

    def cancel(self) -> None:
        """Turn round: what is on its way goes back, and no further leg begins."""
        leg = self._legs[0] if self._legs else None
        if leg is not None and not (
            self._are_settled() if leg.in_pieces else leg.transfer and leg.transfer.arrived
        ):
            self._turn = True
            self._again_s = 0.0
        self._legs[1:] = [leg for leg in self._legs[1:] if leg.transfer is not None]
        self.resume()

    def result(self, completed: bool) -> str:
        """Return the final state: "cancelled" if a volume went back."""
        return "cancelled" if self._went_back else super().result(completed)

    def busy(self) -> bool:
        """Return whether users have asked for a volume of the arrays lately."""
        seen = sum(transfer.requests for transfer in self._pool.transfers.values())
        for volumes in self._pool.arrays:
            seen += sum(volume.reads + volume.writes for volume in volumes.volumes)
        now = self.context.member_set.clock()
        if seen != self._seen:
            self._seen, self._asked_s = seen, now
        return now - self._asked_s < BUSY_S

    # -- the loop --------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Count the written bytes of all legs."""
        for leg in self._legs:
            if leg.transfer is not None:
                self.total_bytes += await leg.transfer.written_bytes()
            else:
                self.total_bytes += leg.source.written_bytes(leg.volume)
            await trio.lowlevel.checkpoint()
        self.busy()

    async def ready(self) -> None:
        """Wait after an error, and before a leg until its target has wiped what was there."""
        while not self._cancelled and self._legs:
            leg = self._legs[0]
            wiping = leg.transfer is None and bool(leg.target.table().wiping) and not self._turn
            if not wiping and self.context.member_set.clock() >= self._again_s:
                return
            await trio.sleep(POLL_S)

    def next_window(self) -> list[Stripe] | None:
        """Return no stripes (the arrays lock their own), or None if all volumes are there."""
        return [] if self._legs else None

    async def work(self, _stripes: list[Stripe]) -> int:
        """Do the next step of the present leg; return how many bytes it copied."""
        leg = self._legs[0]
        try:
            copied = await (self._step_together() if leg.in_pieces else self._step(leg))
        except (BusyError, NoSpaceError) as error:
            self.note_wait(error)
            self._again_s = self.retry_s()
            return 0
        except RaidxError as error:
            self.stall(f"volume {leg.volume.name}", error)
            return 0
        self.error = None
        return copied

    async def _step(self, leg: Leg) -> int:
        transfer = leg.transfer
        if transfer is None:
            if self._turn or leg.volume not in leg.source.volumes:
                if not self._turn:
                    log.error("the %s ends: volume %s was deleted", self.kind, leg.volume.name)
                self._legs.clear()
                self._went_back = True
                return 0
            transfer = await leg.begin()
            self._pool.add(transfer)
        if self._turn and not transfer.back and not transfer.arrived:
            await transfer.turn()
            self.done_bytes = 0
            self.total_bytes = await transfer.written_bytes()
        low, high = transfer.rest
        if low < high:
            return await self._copy(transfer, low, high)
        if transfer.back:
            await transfer.give_back()
            self._went_back = True
        else:
            await transfer.hand_over()
        self._pool.remove(transfer)
        del self._legs[0]
        return 0

    async def _step_together(self) -> int:
        """Do the next step of the legs in pieces; return how many bytes it copied."""
        legs = self._under_way()
        if self._turn and not (all(one.back for _, one in legs) or self._are_settled()):
            for _, transfer in legs:
                if not transfer.back:
                    await transfer.turn()
            self.done_bytes = 0
            self.total_bytes = sum([await one.written_bytes() for _, one in legs])
        for _, transfer in legs:
            low, high = transfer.reach
            if low < high:
                return await self._copy(transfer, low, high)
        left = [transfer for _, transfer in legs if transfer.rest[0] < transfer.rest[1]]
        if left:
            passed_on = [await transfer.pass_on() for _, transfer in legs]
            if not any(passed_on):
                await self._wait_for_room(legs)
            return 0
        for _, transfer in legs:
            await transfer.save()  # all of them, before one cannot go back any more
        for leg, transfer in legs:
            await (transfer.give_back() if transfer.back else transfer.hand_over())
            self._went_back |= transfer.back
            self._pool.remove(transfer)
            self._legs.remove(leg)
        return 0

    def _under_way(self) -> list[tuple[Leg, Transfer]]:
        return [(leg, leg.transfer) for leg in self._legs if leg.transfer is not None]

    def _are_settled(self) -> bool:
        """Return whether volumes that change places are where they go, for good."""
        return all(transfer.is_settled for _, transfer in self._under_way())

    async def _wait_for_room(self, legs: Sequence[tuple[Leg, Transfer]]) -> None:
        """Wait for the wiper. Raises NoSpaceError if it has nothing to do."""
        sides = [side for leg, _ in legs for side in (leg.source, leg.target)]
        if not any(side.table().wiping for side in sides):
            names = ", ".join(leg.volume.name for leg, _ in legs)
            raise NoSpaceError(
                f"volumes {names} change places, but nothing is free for it",
                reason=Reason.ARRAY_FULL,
            )
        await trio.sleep(POLL_S)

    async def checkpoint(self) -> None:
        """Make the watermarks durable."""
        for leg, transfer in self._under_way():
            try:
                await transfer.save()
            except RaidxError as error:
                self.stall(f"volume {leg.volume.name}", error)

    async def finish(self, completed: bool) -> None:
        """Keep the position for the next mount, unless all legs have ended."""
        if not completed:
            await self.checkpoint()

    # -- copying ---------------------------------------------------------------------------------

    async def _copy(self, transfer: Transfer, low: int, high: int) -> int:
        """Copy the next window of bytes *low* .. *high* - 1; return how many bytes it copied."""
        low, high = self._window(transfer, low, high)
        copied = 0
        async with transfer.window(low, high):
            batches = self._batches(transfer, low, high)
            if not batches:
                transfer.advance(low if transfer.back else high)
                return 0
            ends = [end for _, end in batches[:-1]] if not transfer.back else []
            if transfer.back:
                ends = [start for start, _ in batches[:-1]]
            ends.append(low if transfer.back else high)
            content = await transfer.fetch(*batches[0])
            for (start, end), following, position in zip(
                batches, [*batches[1:], None], ends, strict=True
            ):
                content = await self._store_and_fetch(transfer, start, content, following)
                copied += end - start
                transfer.advance(position)
                turn = self._turn and not transfer.back
                if transfer.awaited or turn or self._cancelled:
                    break  # a user waits for the window, or the job is to do something else
        return copied

    def _size(self, transfer: Transfer) -> int:
        """Return the size of a batch: whole stripes of the array that is written."""
        layout = (transfer.source if transfer.back else transfer.target).array.context.layout
        stripe_bytes = layout.code.data_count * layout.chunk_bytes
        size = self._batch or min(layout.code.data_count * WINDOW_BYTES, BATCH_BYTES_MAX)
        return max(1, size // stripe_bytes) * stripe_bytes

    def _window(self, transfer: Transfer, low: int, high: int) -> tuple[int, int]:
        """Return the next window: as many written bytes as the load permits."""
        size = self._size(transfer)
        if not self._batch and not self.busy() and not self.speed_max_bytes:
            size *= BATCHES_IDLE
        leap = max(size, LEAP_BYTES)
        if transfer.back:
            low = max(low, (high - leap + size - 1) // size * size)
            for start, end in reversed(transfer.written(low, high)):
                if end - start >= size:
                    return max(start, end - size), high
                size -= end - start
            return low, high
        high = min(high, (low + leap) // size * size) or high
        for start, end in transfer.written(low, high):
            if end - start >= size:
                return low, min(end, start + size)
            size -= end - start
        return low, high

    def _batches(self, transfer: Transfer, low: int, high: int) -> list[tuple[int, int]]:
        """Return the written parts of the window, cut at multiples of a batch, in order."""
        size = self._size(transfer)
        found = [piece for run in transfer.written(low, high) for piece in _pieces(*run, size)]
        return found[::-1] if transfer.back else found

    async def _store_and_fetch(
        self, transfer: Transfer, start: int, content: bytes, following: tuple[int, int] | None
    ) -> bytes:
        """Store *content* while the *following* part is fetched; return that. Raises any error."""
        fetched = b""
        errors: list[RaidxError] = []

        async def fetch_next(part: tuple[int, int]) -> None:
            nonlocal fetched
            try:
                fetched = await transfer.fetch(*part)
            except RaidxError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            if following is not None:
                nursery.start_soon(fetch_next, following)
            try:
                await transfer.store(start, content)
            except RaidxError as error:
                errors.insert(0, error)
        if errors:
            raise errors[0]
        return fetched


def _pieces(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    cuts = [start, *range((start // size + 1) * size, end, size), end]
    yield from pairwise(cuts)
