"""Space on the host for the metadata of a member, reserved when the member joins.

If the host of a sparse member is full later, log and maps can still be written. So a write is then
refused as a whole (`NoSpaceError`) instead of failing members one after the other.
"""

from __future__ import annotations

from raidx_fuse.errors import MemberError, no_space
from raidx_fuse.format.regions import PAGE_BYTES, PAGE_SLOTS, Regions, page_count
from raidx_fuse.members.base import Member


def reserve_metadata(member: Member, regions: Regions, chunks: int) -> None:
    """Reserve superblocks, dirty bitmap, log, and the written map of *chunks* logical chunks.

    Raises NoSpaceError, MemberError.
    """
    written = page_count(chunks) * PAGE_SLOTS * PAGE_BYTES
    ranges = [
        (regions.superblock.offset, regions.bitmap.end - regions.superblock.offset),
        (regions.written.offset, min(written, regions.written.length)),
        (regions.log.offset, regions.log.length),
    ]
    for offset, length in ranges:
        try:
            member.reserve(offset, length)
        except MemberError as error:
            message = f"{member.path}: its host has no room for the metadata"
            raise (no_space(error, message) or error) from None
