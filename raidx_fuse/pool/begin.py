"""The begin of a move: entered into the tables of both arrays."""

from __future__ import annotations

from dataclasses import replace

import trio

from raidx_fuse.errors import BusyError, RaidxError
from raidx_fuse.format.configuration.volumes import (
    SOURCE,
    TARGET,
    MoveMark,
    VolumeRecord,
    VolumeTable,
)
from raidx_fuse.pool.marks import give_up, with_record
from raidx_fuse.pool.transfer import Transfer
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes


async def begin_transfer(
    source: ArrayVolumes,
    target: ArrayVolumes,
    volume: Volume,
    move_uuid: str,
    *,
    in_pieces: bool = False,
) -> Transfer:
    """Enter a move of *volume* into both tables; return it. Raises RaidxError, changing nothing.

    *in_pieces*: without places on the target yet (transfer.py).
    The caller has checked that the volume may move. Requests go to the source until both tables
    have the move; the volume changes hands while its gate is closed. Raises BusyError if requests
    of the volume do not end in time.
    """
    before = source.table().find(volume.uuid)
    size_bytes = volume.size_bytes if before is None else before.size_bytes or volume.size_bytes
    places = () if in_pieces else target.places_for(size_bytes)
    mark = MoveMark(move_uuid, TARGET, source.array.uuid, source.array.name)
    there = VolumeRecord(volume.uuid, volume.name, size_bytes, places, mark)
    first = 0 if in_pieces else None
    mark = MoveMark(move_uuid, SOURCE, target.array.uuid, target.array.name, first=first)
    # One of the whole image, too, has its size and its place from now on.
    here = VolumeRecord(volume.uuid, volume.name, size_bytes, source.extents(volume), mark)

    def marked(table: VolumeTable) -> VolumeTable:
        if before is None or table.find(volume.uuid) != before:
            raise BusyError(f"volume {volume.name} has changed meanwhile", action="try again")
        return with_record(table, here)

    async def undo() -> None:
        """Take the move out of the source's table, durably, then out of the target's (law 1).

        If that cannot be, the next mount does it.
        """
        if before is not None and source.table().find(volume.uuid) == here:
            # it may yet become durable
            await source.change(lambda table: with_record(table, before))
        else:  # some superblocks may name the move
            await source.array.member_set.published()
        await give_up(target, volume.uuid)

    with trio.CancelScope(shield=True):
        try:
            await target.change(
                lambda table: replace(table, volumes=(*table.volumes, there)), asked=True
            )
            await source.change(marked, asked=True)
        except RaidxError:
            await undo()  # its error, if it has one, says why as well
            raise
    transfer = Transfer(source, target, here, there)
    limit_s = max(side.array.member_set.io_timeout_s for side in (source, target))
    try:
        async with volume.gate.closed(limit_s):
            transfer.take_over(volume)
    except BaseException:
        with trio.CancelScope(shield=True):
            await undo()
        raise
    return transfer
