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
    The caller has checked that the volume may move. Requests that are in flight still go to the
    source: nothing may be copied before `ArrayContext.writes_drained`.
    """
    places = () if in_pieces else target.places_for(volume.size_bytes)
    mark = MoveMark(move_uuid, TARGET, source.array.uuid, source.array.name)
    there = VolumeRecord(volume.uuid, volume.name, volume.size_bytes, places, mark)
    first = 0 if in_pieces else None
    mark = MoveMark(move_uuid, SOURCE, target.array.uuid, target.array.name, first=first)
    # One of the whole image, too, has its size and its place from now on.
    here = VolumeRecord(volume.uuid, volume.name, volume.size_bytes, source.extents(volume), mark)
    before = source.table().find(volume.uuid)

    def marked(table: VolumeTable) -> VolumeTable:
        if before is None or table.find(volume.uuid) != before:
            raise BusyError(f"volume {volume.name} has changed meanwhile", action="try again")
        return with_record(table, here)

    with trio.CancelScope(shield=True):
        try:
            await target.change(
                lambda table: replace(table, volumes=(*table.volumes, there)), asked=True
            )
            await source.change(marked, asked=True)
        except RaidxError:
            if before is not None and source.table().find(volume.uuid) == here:
                # it may yet become durable
                await source.change(lambda table: with_record(table, before))
            await give_up(target, volume.uuid)
            raise
    transfer = Transfer(source, target, here, there)
    transfer.take_over(volume)
    return transfer
