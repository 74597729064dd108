"""Moving volumes to other arrays while they are used: `start_move`, `start_swap`, what they cost.

A swap is two moves through free space: first the volume that has room on the other array, then the
other one, into the room that the first has left. If neither has room, the smaller one goes through
a third array, which costs one more copy of it; or else both go in pieces, as large as what is free
on the two arrays together, and every byte is copied once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import (
    BusyError,
    JobRunningError,
    NoSpaceError,
    RaidxError,
    Reason,
    UsageError,
)
from raidx_fuse.format.configuration.config import NO_ROLE
from raidx_fuse.format.configuration.volumes import ALIGN_BYTES, VOLUMES_MAX
from raidx_fuse.format.create import new_uuid
from raidx_fuse.jobs.costs import ASSUMED_RATE_BYTES, job_time, redundancy_left
from raidx_fuse.jobs.job import BUSY_S, POLL_S, WINDOW_BYTES, Job, Position
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.pool.allocate import exchange_rounds
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.transfer import Transfer, begin_transfer
from raidx_fuse.pool.volume import Volume
from raidx_fuse.units import format_size

if TYPE_CHECKING:
    from raidx_fuse.documents import JobDetail, MovePlan

log = logging.getLogger(__name__)

BATCH_BYTES_MAX = 16 << 20
BATCHES_IDLE = 4  # of a window, if nothing slows the job
LEAP_BYTES = 1 << 30  # of a volume: at most so much that is mostly unwritten in one window

MOVE, SWAP = "move", "swap"
AGAIN_S = 1.0


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


class MoveVolumes(Job):
    """Moves volumes of *pool*, one leg after the other; *kind* is "move" or "swap".

    *window* is the size of a batch in bytes; 0: as the target's stripes suggest.

    A move is one leg. A swap is several, one after the other: each volume has room where it goes
    when its leg begins. Legs *in pieces* run together, where volumes change places and none has
    that room: each is copied as far as there are places, releases its copied range on the source,
    and so makes room for the others. They are handed over when all of them are copied.

    Only written chunks are copied, with the next batch read while one is written. Reads and writes
    go through the arrays like those of users, so that whatever happens to an array, a lost member,
    a growth, a rebuild, is its own business; the locks of the loop are not needed.

    While a host is full, the job waits; at any other error it pauses until the user resumes it. If
    it is cancelled, the volume of the present leg goes back; legs that have ended stay.
    """

    kind = "move"
    turns = pauses = True

    def __init__(
        self, context: ArrayContext, job_id: int, pool: Pool, legs: Sequence[Leg], kind: str
    ) -> None:
        super().__init__(context, job_id)
        self.kind = kind
        self._pool = pool
        self._legs = list(legs)
        transfers = [transfer for _, transfer in self._under_way()]
        self.back = bool(transfers) and all(transfer.back for transfer in transfers)
        self._went_back = False
        self._seen = 0
        self._asked_s = -1e9

    def names(self, volume_uuid: str) -> bool:
        """Return whether a leg that has not ended moves that volume."""
        return any(leg.volume.uuid == volume_uuid for leg in self._legs)

    def detail(self) -> JobDetail:
        """Return which volume moves where, and how far it is."""
        if not self._legs:
            return {"volume": None, "going_back": self._went_back, "legs_left": 0}
        leg = self._legs[0]
        return {
            "volume": leg.volume.name,
            "from": leg.source.array.name,
            "to": leg.target.array.name,
            "watermark": leg.transfer.saved if leg.transfer else 0,
            "going_back": self.back or self.turning or bool(leg.transfer and leg.transfer.back),
            "legs_left": len(self._legs),
        }

    def may_turn(self) -> bool:
        """Return whether a volume is on its way, or about to be."""
        leg = self._legs[0] if self._legs else None
        if leg is None or leg.in_pieces:
            return leg is not None and not self._are_settled()
        return leg.transfer is None or not leg.transfer.arrived

    def result(self, completed: bool) -> str:
        """Return the final state: "cancelled" if a volume went back."""
        return "done" if completed and not self._went_back else "cancelled"

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
        self.done_bytes = self.total_bytes = 0
        for leg in self._legs:
            if leg.transfer is not None:
                self.total_bytes += await leg.transfer.written_bytes()
            else:
                self.total_bytes += leg.source.written_bytes(leg.volume)
            await trio.lowlevel.checkpoint()
        self.busy()

    def blocked(self) -> Role | None:
        """Wait before a leg until its target has wiped what was there."""
        leg = self._legs[0] if self._legs else None
        if leg is None or leg.transfer is not None or self.was_cancelled:
            return None
        return NO_ROLE if leg.target.table().wiping else None

    async def turn_back(self) -> None:
        """Let what is on its way go back."""
        for _, transfer in self._under_way():
            if not transfer.back and not transfer.arrived:
                await transfer.turn()
        self._legs[1:] = [leg for leg in self._legs[1:] if leg.transfer is not None]

    def next_window(self) -> list[Stripe] | None:
        """Return no stripes (the arrays lock their own), or None if all volumes are there."""
        return [] if self._legs else None

    async def work(self, _stripes: list[Stripe]) -> int:
        """Do the next step of the present leg; return how many bytes it copied."""
        leg = self._legs[0]
        return await (self._step_together() if leg.in_pieces else self._step(leg))

    def where(self, stripes: Sequence[Stripe]) -> str:
        return f"volume {self._legs[0].volume.name}"

    async def _step(self, leg: Leg) -> int:
        transfer = leg.transfer
        if transfer is None:
            if self.was_cancelled or leg.volume not in leg.source.volumes:
                if not self.was_cancelled:
                    log.error("the %s ends: volume %s was deleted", self.kind, leg.volume.name)
                self._legs.clear()
                self._went_back = True
                return 0
            transfer = await leg.begin()
            self._pool.transfers[transfer.volume_uuid] = transfer
        low, high = transfer.rest
        if low < high:
            return await self._copy(transfer, low, high)
        if transfer.back:
            await transfer.give_back()
            self._went_back = True
        else:
            await transfer.hand_over()
        self._pool.transfers.pop(transfer.volume_uuid, None)
        del self._legs[0]
        return 0

    async def _step_together(self) -> int:
        """Do the next step of the legs in pieces; return how many bytes it copied."""
        legs = self._under_way()
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
            self._pool.transfers.pop(transfer.volume_uuid, None)
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

    def positions(self) -> Sequence[Position]:
        return [transfer for _, transfer in self._under_way()]

    async def finish(self, completed: bool) -> None:
        """Keep the position for the next mount, unless all legs have ended."""
        if not completed:
            await self._save()

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
                if transfer.awaited or self.turning or self.stopped:
                    break  # a user waits for the window, or the job is to do something else
        return copied

    def _size(self, transfer: Transfer) -> int:
        """Return the size of a batch: whole stripes of the array that is written."""
        layout = (transfer.source if transfer.back else transfer.target).array.context.layout
        stripe_bytes = layout.code.data_count * layout.chunk_bytes
        size = self.window or min(layout.code.data_count * WINDOW_BYTES, BATCH_BYTES_MAX)
        return max(1, size // stripe_bytes) * stripe_bytes

    def _window(self, transfer: Transfer, low: int, high: int) -> tuple[int, int]:
        """Return the next window: as many written bytes as the load permits."""
        size = self._size(transfer)
        if not self.window and not self.slowed:
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


class Planned(NamedTuple):
    """A move or a swap that is possible now; *does* says it in words."""

    kind: str
    legs: list[Leg]
    does: str


async def start_move(
    pool: Pool, volume_name: str, array_name: str, *, accept_degraded: bool = False
) -> int:
    """Start to move a volume to another array; return the job id, on the array that it leaves.

    Raises UsageError, BusyError, NoSpaceError; nothing has changed then. *accept_degraded*: the
    target may lack members.
    """
    planned = plan_move(pool, volume_name, array_name, accept_degraded=accept_degraded)
    return await start(pool, planned)


async def start_swap(
    pool: Pool, first_name: str, second_name: str, *, accept_degraded: bool = False
) -> int:
    """Start to let two volumes change places; return the job id, on the array that is left first.

    Raises as `start_move`.
    """
    planned = plan_swap(pool, first_name, second_name, accept_degraded=accept_degraded)
    return await start(pool, planned)


def job_of(pool: Pool, volume_uuid: str) -> MoveVolumes | None:
    """Return the running job that moves that volume, or is going to, if there is one."""
    for volumes in pool.arrays:
        for job in volumes.array.jobs.running():
            if isinstance(job, MoveVolumes) and job.names(volume_uuid):
                return job
    return None


# -- plans ---------------------------------------------------------------------------------------


def plan_move(
    pool: Pool, volume_name: str, array_name: str, *, accept_degraded: bool = False
) -> Planned:
    """Return the move of a volume. Raises as `start_move`."""
    source, volume = pool.find(volume_name)
    target = pool.array(array_name)
    if target is source:
        raise UsageError(
            f"volume {volume.name} is on array {target.array.name} already", reason=Reason.ALREADY
        )
    _require_movable(pool, source, volume)
    _require_target(target, volume, accept_degraded)
    target.places_for(volume.size_bytes)
    does = f"moves volume {volume.name} from {source.array.name} to {target.array.name}"
    return Planned(MOVE, [Leg(volume, source, target)], does)


def plan_swap(
    pool: Pool, first_name: str, second_name: str, *, accept_degraded: bool = False
) -> Planned:
    """Return the moves of a swap, in an order in which each has room. Raises as `start_move`."""
    (here, first), (there, second) = pool.find(first_name), pool.find(second_name)
    if here is there:
        raise UsageError(
            f"volumes {first.name} and {second.name} are both on {here.array.name}",
            reason=Reason.ALREADY,
        )
    for source, target, volume in ((here, there, first), (there, here, second)):
        _require_movable(pool, source, volume)
        _require_target(target, volume, accept_degraded)
    does = (
        f"swaps volumes {first.name} on {here.array.name} and {second.name} on {there.array.name}"
    )
    one, other = Leg(first, here, there), Leg(second, there, here)
    for legs in ([one, other], [other, one]):
        if _have_room(legs):
            return Planned(SWAP, legs, does)
    small, large = sorted((one, other), key=lambda leg: leg.volume.size_bytes)
    for scratch in pool.arrays:
        if scratch in (here, there) or redundancy_left(scratch.array) < min(
            redundancy_left(here.array), redundancy_left(there.array)
        ):
            continue
        legs = [
            Leg(small.volume, small.source, scratch),
            large,
            Leg(small.volume, scratch, small.target),
        ]
        if _have_room(legs):
            return Planned(SWAP, legs, f"{does}, by way of {scratch.array.name}")
    return plan_exchange(pool, [(one.volume.uuid, one.target.array.uuid) for one in (one, other)])


def plan_exchange(
    pool: Pool, moves: Sequence[tuple[str, str]], *, accept_degraded: bool = False
) -> Planned:
    """Return moves of (volume, array) in pieces, all together. Raises as `start_move`."""
    legs = []
    for volume_name, array_name in moves:
        source, volume = pool.find(volume_name)
        target = pool.array(array_name)
        _require_movable(pool, source, volume)
        _require_target(target, volume, accept_degraded)
        legs.append(Leg(volume, source, target, in_pieces=True))
    sides = {side.array.uuid: side for leg in legs for side in (leg.source, leg.target)}
    names = " and ".join(leg.volume.name for leg in legs)
    if any(transfer.in_pieces for transfer in pool.transfers.values()):
        raise JobRunningError(
            "other volumes are changing places", action="wait until they are there"
        )
    free = {uuid: side.free_bytes() + side.wiping_bytes() for uuid, side in sides.items()}
    flows = [(x.source.array.uuid, x.target.array.uuid, x.volume.size_bytes) for x in legs]
    rounds = exchange_rounds(free, flows)
    if rounds is None or any(side.table().is_whole for side in sides.values()):
        has = ", ".join(f"{free[u]} bytes on {s.array.name}" for u, s in sides.items())
        raise NoSpaceError(
            f"volumes {names} cannot change places: no array has room for one of them, and "
            f"too little is free to do it in pieces: {has}",
            action="delete or shrink a volume, or add disks",
            reason=Reason.ARRAY_FULL,
        )
    does = ", ".join(
        f"{leg.volume.name} on {leg.source.array.name} goes to {leg.target.array.name}"
        for leg in legs
    )
    through = format_size(sum(free.values()))
    return Planned(SWAP, legs, f"swaps volumes: {does}; in {rounds} rounds through {through}")


def _have_room(legs: Sequence[Leg]) -> bool:
    """Return whether each of *legs* has room when those before it have ended."""
    left: list[Leg] = []
    for leg in legs:
        more = [
            extent
            for one in left
            if one.source is leg.target
            for extent in one.source.extents(one.volume)
        ]
        try:
            leg.target.places_for(leg.volume.size_bytes, more)
        except (BusyError, NoSpaceError, UsageError):
            return False
        left.append(leg)
    return True


def _require_movable(pool: Pool, source: ArrayVolumes, volume: Volume) -> None:
    source.array.require_writable()
    if volume.size_bytes % ALIGN_BYTES:
        raise UsageError(
            f"volume {volume.name} has {volume.size_bytes} bytes, which only array "
            f"{source.array.name} can hold",
            action=f"resize it to a multiple of {ALIGN_BYTES}",
        )
    job = job_of(pool, volume.uuid)
    if job is not None:
        raise JobRunningError(
            f"volume {volume.name} is on its way already (job {job.job_id})",
            action="wait until it is there, or cancel the job",
        )
    if volume.uuid in pool.transfers:
        raise BusyError(
            f"volume {volume.name} is on its way already, but its job has ended",
            action="unmount and mount again: the move continues then",
            reason=Reason.REMOUNT,
        )


def _require_target(target: ArrayVolumes, volume: Volume, accept_degraded: bool) -> None:
    array = target.array
    if array.member_set.lost and not accept_degraded:
        raise UsageError(
            f"array {array.name} is degraded: role {min(array.member_set.lost)} is lost",
            action="replace its member first; --accept-degraded moves the volume all the same",
            reason=Reason.DEGRADED,
        )
    table = target.table()
    if table.find(volume.uuid) is not None:
        raise BusyError(
            f"array {array.name} has not given up yet what it had of volume {volume.name}",
            action="unmount and mount again",
            reason=Reason.REMOUNT,
        )
    if len(table.volumes) == VOLUMES_MAX:
        raise UsageError(f"an array has at most {VOLUMES_MAX} volumes", reason=Reason.LIMIT)


# -- jobs ----------------------------------------------------------------------------------------


async def start(pool: Pool, planned: Planned) -> int:
    """Start what is planned; return the job id. Raises as `start_move`."""
    first = planned.legs[0]
    for leg in planned.legs:  # a long discard, say: no other move has to wait for it
        await leg.volume.gate.passed()
    async with pool.starting:
        for leg in planned.legs:
            _require_movable(pool, leg.source, leg.volume)
        source = first.source.array
        for job in source.jobs.running():
            if job.kind in (MOVE, SWAP):
                raise JobRunningError(
                    f"a {job.kind} from array {source.name} is running already (job {job.job_id})",
                    action=f"wait for it or cancel it with `raidx job MOUNT:{source.name} cancel "
                    f"{job.job_id}`",
                )
        if source.jobs.closing or pool.closing:
            raise BusyError("the array is being unmounted", reason=Reason.CLOSING)
        await _begin([leg for leg in planned.legs if leg is first or leg.in_pieces], pool)
        return _start_job(pool, planned.legs, planned.kind).job_id


async def _begin(legs: Sequence[Leg], pool: Pool) -> None:
    """Enter all of *legs* into the tables, or none. Raises RaidxError."""
    begun: list[Transfer] = []
    try:
        for leg in legs:
            begun.append(await leg.begin())
            pool.transfers[leg.volume.uuid] = begun[-1]
    except RaidxError:
        for transfer in begun:
            while not transfer.is_over:
                try:
                    await transfer.give_back()
                except BusyError as error:  # no job will do it
                    log.warning("the end of a move that did not begin waits: %s", error)
                    await trio.sleep(AGAIN_S)
            pool.transfers.pop(transfer.volume_uuid, None)
        raise


def _start_job(pool: Pool, legs: Sequence[Leg], kind: str) -> MoveVolumes:
    job = legs[0].source.array.jobs.start(
        lambda context, job: MoveVolumes(context, job, pool, legs, kind)
    )
    assert isinstance(job, MoveVolumes)
    return job


@asynccontextmanager
async def open_pool(arrays: Sequence[ArrayVolumes]) -> AsyncIterator[Pool]:
    """Yield the pool of *arrays*; its moves run until the block ends. Raises RaidxError."""
    pool = Pool(arrays)
    await pool.settle()
    for volumes in arrays:
        here = [t for t in pool.transfers.values() if t.source is volumes and not t.in_pieces]
        if here and not volumes.array.read_only:
            _start_job(pool, [Leg(t.volume, t.source, t.target, t) for t in here], MOVE)
    _resume_exchange(pool)
    try:
        yield pool
    finally:
        pool.closing = True
        with trio.CancelScope(shield=True):
            for volumes in arrays:
                for job in volumes.array.jobs.running():
                    if isinstance(job, MoveVolumes):
                        job.stop()
                        await job.finished.wait()


def _resume_exchange(pool: Pool) -> None:
    """Resume an exchange of volumes in pieces, or move them back if not all have begun."""
    moving = [transfer for transfer in pool.transfers.values() if transfer.in_pieces]
    if not moving or any(t.source.array.read_only or t.target.array.read_only for t in moving):
        return
    free: dict[str, int] = {}
    for side in {id(s): s for t in moving for s in (t.source, t.target)}.values():
        unused = sum(extent.length for extent in side.free_in(side.table()))
        free[side.array.uuid] = unused + side.wiping_bytes()
    flows = []
    for t in moving:
        source, target = t.source.array.uuid, t.target.array.uuid
        free[source] += t.saved - t.first
        free[target] += t.limit - t.saved
        flows.append((source, target, t.size - t.saved))
    legs = [Leg(t.volume, t.source, t.target, t, in_pieces=True) for t in moving]
    job = _start_job(pool, legs, SWAP)
    if any(t.back for t in moving) or exchange_rounds(free, flows) is None:
        job.cancel()


# -- costs ---------------------------------------------------------------------------------------


def cost(planned: Planned) -> MovePlan:
    """Return what *planned* costs as JSON values, without doing it.

    *volume_bytes* is the cost of Eq. 3 of the Dswap paper, the sizes of the volumes that change
    their array. *bytes_moved* are the bytes that are copied: of their written chunks alone, twice
    for a volume that goes by way of a third array. *bytes_read* and *bytes_written* are those of
    members, parity included. *redundancy_lowest* is that of the volumes at the worst moment.
    """
    first = planned.legs[0].source.array
    sizes = {leg.volume.uuid: leg.volume.size_bytes for leg in planned.legs}
    moved = written = 0
    rates, redundancies = [], []
    for leg in planned.legs:
        home = next(one.source for one in planned.legs if one.volume is leg.volume)
        size = home.written_bytes(leg.volume)
        code = leg.target.array.context.code
        moved += size
        written += -(-size * len(code.cells) // code.data_count)
        for array in (leg.source.array, leg.target.array):
            code = array.context.code
            rates.append(round(ASSUMED_RATE_BYTES * code.data_count / code.rows))
            redundancies.append(redundancy_left(array))
    time = job_time(first, planned.kind, moved, min(rates))
    now, lowest = redundancy_left(first), min(redundancies)
    after = min(redundancy_left(leg.target.array) for leg in planned.legs)
    return {
        "dry_run": True,
        "does": planned.does,
        "volume_bytes": sum(sizes.values()),
        "bytes_read": moved,
        "bytes_written": written,
        "bytes_moved": moved,
        **time,
        "redundancy_left": now,
        "redundancy_lowest": lowest,
        "redundancy_after": after,
        "redundancy_reduced": lowest < now,
        "redundancy_reduced_seconds": time["seconds"] if lowest < now else 0.0,
        "redundancy": {"now": now, "worst": lowest, "end": after},
    }
