"""Members that were away and come back: caught up by what changed, if it is sure that they can be.

A member that was absent at a start comes back by itself when it is given again. One that failed is
taken back only if the user asks for it: `raidx replace-disk ARRAY ROLE MEMBER` with the member
itself. Everyone else is rebuilt whole.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from raidx_fuse.array.services import RunningArray
from raidx_fuse.errors import FormatError, MemberError, OtherVersionError, RaidxError
from raidx_fuse.format.configuration.config import MISSING, MemberRecord
from raidx_fuse.format.superblock import Superblock, newest, read_slots
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.base import Member
from raidx_fuse.store.table_recovery import TableScan

log = logging.getLogger(__name__)


async def problem(array: RunningArray, record: MemberRecord, member: Member) -> str | None:
    """Return why *member* cannot be caught up as the member of *record*; None if it can.

    Its superblock must be the one with which it left, and its pages no older. One with another
    event counter is an old copy, or was in use elsewhere; so is one whose configuration is not the
    past of ours.
    """
    left = array.context.changes.left(record.member_uuid)
    if left is None:
        return "what changed since it left is not known"
    try:
        superblock = newest(await read_slots(member), member.path)
    except (MemberError, FormatError) as error:
        return error.message
    if superblock is None:
        return "it has no superblock"
    if not is_past(array, record, superblock):
        return "it is another member, or was in use elsewhere"
    if member.size_bytes < record.size_bytes:
        return "it has become shorter"
    if not left[0] <= superblock.events <= left[1]:
        return "it is an old copy"
    try:
        if await array.context.changes.is_behind(record.member_uuid, member):
            return "it is an old copy"
        return await _table_problem(array, record, member)
    except OtherVersionError as error:
        return error.message


def is_past(array: RunningArray, record: MemberRecord, superblock: Superblock) -> bool:
    """Return whether *superblock* is one that the member of *record* has had in this array.

    It is not if the member was started without this array since it left: what was written to it
    then is nowhere else.
    """
    config, old = array.member_set.config, superblock.config
    own = superblock.array_uuid, superblock.member_uuid
    # In memory the lineage is that of the start: it may be behind a member that left since.
    past = old.extends(config) if old.starts == config.starts else config.extends(old)
    return past and own == (config.array_uuid, record.member_uuid)


async def _table_problem(array: RunningArray, record: MemberRecord, member: Member) -> str | None:
    """Return why the chunks of *member* are not where the look-up table has them, or None."""
    context = array.context
    layout = context.layout
    if not isinstance(layout, BundleLayout):
        return None
    scan = TableScan()
    table = context.journal.chunk_table
    await table.read_share(scan, record.role, member)
    if record.role in scan.lost or not table.agrees(record.role, scan):
        return "chunks of it have moved"
    return None


async def take_back(array: RunningArray, stale: Sequence[tuple[Member, str]]) -> None:
    """Give members of *stale* that were only absent their roles again, to be caught up."""
    config = array.member_set.config
    for member, reason in stale:
        for record in config.members:
            if record.role < 0 or record.state != MISSING:
                continue
            if member.read_only or await problem(array, record, member) is not None:
                continue
            try:
                await array.membership.take_back(record.role, member)
            except RaidxError as error:
                log.error("%s could not be taken back: %s", member.path, error)
                break
            old = f"{member.path} is not used: {reason}"
            array.warnings[:] = [text for text in array.warnings if text != old]
            log.warning("%s was away: it is caught up by what changed", member.path)
            break
