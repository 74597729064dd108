"""The arrays that were mounted together, remembered: a mount that lacks one of them names it.

Each array remembers in its superblocks which others were mounted with it, and their volumes. That
is brought up to date at the mount, every `LOOK_S` and at the unmount; an array that is absent stays
as it was last seen, until the user has it forgotten. Arrays without volumes are not remembered:
nothing is missing without them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.format.configuration.remembered import (
    RememberedArray,
    remembered_arrays,
    with_remembered_arrays,
)
from raidx_fuse.format.configuration.volumes import TARGET
from raidx_fuse.loop.tasks import rest
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.pool import Pool

log = logging.getLogger(__name__)

LOOK_S = 10.0


def find_absent(pool: Pool) -> None:
    """Note the arrays in *pool* that its arrays remember and that are not there, and warn."""
    here = {volumes.array.uuid for volumes in pool.arrays}
    for volumes in pool.arrays:
        for one in remembered_arrays(volumes.array.member_set.config):
            if one.uuid not in here and all(one.uuid != other.uuid for other in pool.absent):
                pool.absent.append(one)
                volumes.array.warnings.append(absent_text(one))


def absent_text(one: RememberedArray) -> str:
    """Say what is missing without that array, and what to do, in one line."""
    names = ", ".join(one.volumes) or "none of them is known by name"
    more = f" and {one.total - len(one.volumes)} more" if 0 < len(one.volumes) < one.total else ""
    return (
        f"array {one.name} ({one.uuid[:8]}), which was mounted with this one, is absent; "
        f"not shown: {names}{more}; give its members too, or raidx array forget MOUNT {one.name}"
    )


async def remember(pool: Pool) -> None:
    """Bring up to date what the arrays of *pool* remember of each other. Raises RaidxError."""
    present = [_seen(volumes) for volumes in pool.arrays]
    for volumes in pool.arrays:
        array = volumes.array
        absent = {one.uuid for one in pool.absent}
        old = [one for one in remembered_arrays(array.member_set.config) if one.uuid in absent]
        new = [one for one in present if one.uuid != array.uuid and one.total]
        config = array.member_set.config
        if not array.read_only and with_remembered_arrays(config, [*old, *new]) is not config:
            await array.member_set.update(
                partial(with_remembered_arrays, arrays=[*old, *new]),
                asked=True,
            )


async def forget(pool: Pool, ref: str) -> RememberedArray:
    """Forget the absent array with that name or UUID. Raises UsageError, ReadOnlyError."""
    for one in pool.absent:
        if ref in (one.name, one.uuid):
            break
    else:
        names = ", ".join(one.name for one in pool.absent) or "none"
        raise UsageError(
            f"no array {ref[:100]} is absent; absent: {names}", reason=Reason.NO_SUCH_ARRAY
        )
    for volumes in pool.arrays:
        volumes.array.require_writable()
    pool.absent.remove(one)
    for volumes in pool.arrays:
        texts = volumes.array.warnings
        if absent_text(one) in texts:
            texts.remove(absent_text(one))
    await remember(pool)
    return one


@asynccontextmanager
async def remembering(pool: Pool) -> AsyncIterator[None]:
    """Name the arrays that are absent; remember those of *pool* until the block ends."""
    find_absent(pool)

    async def run() -> None:
        tried = None
        while True:
            seen = [_seen(volumes) for volumes in pool.arrays]
            if seen != tried:  # not again if there was no room for it
                tried = seen
                await _try_to_remember(pool)
            await rest(LOOK_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield
        nursery.cancel_scope.cancel()
    await _try_to_remember(pool)


async def _try_to_remember(pool: Pool) -> None:
    try:
        await remember(pool)
    except RaidxError as error:  # an array without room, or that has failed: it is for people only
        log.debug("the arrays of the pool are not remembered: %s", error)


def _seen(volumes: ArrayVolumes) -> RememberedArray:
    names = sorted(
        record.name
        for record in volumes.table().volumes
        if record.move is None or record.move.role != TARGET
    )
    return RememberedArray(volumes.array.uuid, volumes.array.name, tuple(names), len(names))
