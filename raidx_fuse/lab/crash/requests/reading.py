"""Reading a range that may contain unreadable sectors."""

from __future__ import annotations

from raidx_fuse.array.array import Array
from raidx_fuse.errors import RaidxError
from raidx_fuse.members.base import SECTOR_BYTES


async def read_sectors(array: Array, offset: int, length: int) -> list[bytes | None]:
    """Return the sectors of a range, None for an unreadable one; a failing read is halved."""
    try:
        content = bytes(await array.read(offset, length))
    except RaidxError:
        if length <= SECTOR_BYTES:
            return [None]
        half = length // SECTOR_BYTES // 2 * SECTOR_BYTES
        return [
            *await read_sectors(array, offset, half),
            *await read_sectors(array, offset + half, length - half),
        ]
    return [content[at : at + SECTOR_BYTES] for at in range(0, length, SECTOR_BYTES)]
