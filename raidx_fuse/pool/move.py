"""Moving volumes to other arrays while they are used: `start_move`, `start_swap`, what they cost.

A swap is two moves through free space: first the volume that has room on the other array, then the
other one, into the room that the first has left. If neither has room, the smaller one goes through
a third array, which costs one more copy of it; or else both go in pieces, as large as what is free
on the two arrays together, and every byte is copied once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from raidx_fuse.array.estimate import ASSUMED_RATE_BYTES, copy_rate, redundancy_during
from raidx_fuse.array.status import redundancy_left
from raidx_fuse.errors import (
    BusyError,
    JobRunningError,
    NoSpaceError,
    RaidxError,
    Reason,
    UsageError,
)
from raidx_fuse.format.configuration.volumes import ALIGN_BYTES, VOLUMES_MAX
from raidx_fuse.pool.allocate import exchange_rounds
from raidx_fuse.pool.move_job import Leg, MoveVolumes
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.transfer import Transfer
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes
from raidx_fuse.units import format_size

log = logging.getLogger(__name__)

MOVE, SWAP = "move", "swap"
AGAIN_S = 1.0


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
        has = ", ".join(f"{format_size(free[u])} on {s.array.name}" for u, s in sides.items())
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
            action="unmount and mount again: the move goes on then",
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
                    action=f"wait for it or cancel it with `raidx job ... cancel {job.job_id}`",
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
            pool.add(begun[-1])
    except RaidxError:
        for transfer in begun:
            while not transfer.is_over:
                try:
                    await transfer.give_back()
                except BusyError as error:  # nobody else will do it
                    log.warning("the end of a move that did not begin waits: %s", error)
                    await trio.sleep(AGAIN_S)
            pool.remove(transfer)
        raise


def _start_job(pool: Pool, legs: Sequence[Leg], kind: str) -> MoveVolumes:
    job = legs[0].source.array.jobs.start(
        lambda context, job: MoveVolumes(context, job, pool, legs, kind)
    )
    assert isinstance(job, MoveVolumes)
    return job


@asynccontextmanager
async def open_pool(arrays: Sequence[ArrayVolumes]) -> AsyncIterator[Pool]:
    """Yield the pool of *arrays*; its moves go on until the block ends. Raises RaidxError."""
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
        pool.close()
        with trio.CancelScope(shield=True):
            for volumes in arrays:
                for job in volumes.array.jobs.running():
                    if isinstance(job, MoveVolumes):
                        job.stop()
                        await job.finished.wait()


def _resume_exchange(pool: Pool) -> None:
    """Let volumes that change places in pieces go on, or back if not all of them have begun."""
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


def cost(planned: Planned) -> dict[str, Any]:
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
    rate, source = copy_rate(first, planned.kind, min(rates))
    speed_min = first.jobs.speed_min_bytes
    seconds = round(moved / rate, 3)
    now, lowest = redundancy_left(first), min(redundancies)
    after = min(redundancy_left(leg.target.array) for leg in planned.legs)
    return {
        "dry_run": True,
        "does": planned.does,
        "volume_bytes": sum(sizes.values()),
        "bytes_read": moved,
        "bytes_written": written,
        "bytes_moved": moved,
        "rate": rate,
        "rate_source": source,
        "seconds": seconds,
        "seconds_busy": round(moved / min(rate, speed_min or rate), 3),
        "redundancy_left": now,
        "redundancy_lowest": lowest,
        "redundancy_after": after,
        "redundancy_reduced": lowest < now,
        "redundancy_reduced_seconds": seconds if lowest < now else 0.0,
        "redundancy": redundancy_during(now, lowest, after),
    }
