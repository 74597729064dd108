"""Parts of volumes that were written, and the changes of tables with which moves begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from raidx_fuse.format.configuration.volumes import Extent, VolumeRecord, VolumeTable
from raidx_fuse.pool.volume_table import ArrayVolumes
from raidx_fuse.pool.wipe import to_be_wiped


def runs_of(
    volumes: ArrayVolumes, places: Sequence[Extent], low: int, high: int, start: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield the written parts of bytes *low* .. *high* - 1 of a volume.

    Its bytes from *start* on lie in *places*.
    """
    for extent in places:
        at, last, shift = max(low, start), min(high, start + extent.length), extent.offset - start
        if at < last:
            for length, is_written in volumes.array.allocation(at + shift, last - at):
                if is_written:
                    yield at, at + length
                at += length
        start += extent.length


def merged(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of *runs*, ascending.

    >>> merged([(0, 4), (8, 12), (2, 6), (12, 16)])
    [(0, 6), (8, 16)]
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def with_record(table: VolumeTable, record: VolumeRecord) -> VolumeTable:
    """Return *table* with *record* instead of the one with its UUID."""
    return replace(
        table,
        volumes=tuple(record if one.uuid == record.uuid else one for one in table.volumes),
    )


async def give_up(volumes: ArrayVolumes, volume_uuid: str) -> None:
    """Take the volume out of the table, its places to be wiped. Does nothing if it is out."""

    def without(table: VolumeTable) -> VolumeTable:
        record = table.find(volume_uuid)
        assert record is not None
        return replace(
            table,
            volumes=tuple(one for one in table.volumes if one.uuid != volume_uuid),
            wiping=(*table.wiping, *to_be_wiped(volumes.array, record.extents)),
        )

    if volumes.table().find(volume_uuid) is not None:
        await volumes.change(without)
        volumes.wiper.ask()


async def forget_arrival(volumes: ArrayVolumes, move_uuid: str) -> None:
    """Take a move out of those that have ended here: the source does not name it any more."""
    if any(one.move == move_uuid for one in volumes.table().arrived):
        await volumes.change(
            lambda table: replace(
                table, arrived=tuple(one for one in table.arrived if one.move != move_uuid)
            )
        )
