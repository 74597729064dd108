"""Superblocks that are lost at one end of a member: what a repair would write, and the repair.

The user says which members; all given ones together say where the end of one is that has become
larger, or it is searched (*deep*). Nothing of a member is written but slots without a superblock,
and only from the other end of the same member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raidx_fuse.daemon.member_files import Disks
from raidx_fuse.errors import reason_of
from raidx_fuse.format.both_ends import Copies, Unreadable, copies_of, lost_slots
from raidx_fuse.format.both_ends import repair as repair_member
from raidx_fuse.format.signature import describe
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import RepairedMember


async def plan(specs: Sequence[str], *, deep: bool = False) -> list[RepairedMember]:
    """Return what `repair` would do to each of *specs*. Writes nothing.

    Raises UsageError, BusyError if a member is in use, OtherVersionError, MemberError.
    """
    with Disks(read_only=True) as disks:
        members = disks.attach(specs)
        await disks.claim(members)
        found = await copies_of(members, searched=deep)
        return [_document(*each) for each in zip(members, found, strict=True)]


async def repair(specs: Sequence[str], *, deep: bool = False) -> list[RepairedMember]:
    """Write the superblocks that are lost at one end of each of *specs*; return what was done.

    Raises as `plan`.
    """
    with Disks() as disks:
        members = disks.attach(specs)
        await disks.claim(members)
        documents: list[RepairedMember] = []
        found = await copies_of(members, searched=deep)
        for member, copies in zip(members, found, strict=True):
            document = _document(member, copies)
            if isinstance(copies, Copies) and document["problem"] is None and document["lost"]:
                await repair_member(member, copies)
                document["repaired"] = True
            documents.append(document)
        return documents


def _document(member: Member, copies: Copies | Unreadable) -> RepairedMember:
    document: RepairedMember = {
        "path": member.path,
        "array": None,
        "array_uuid": None,
        "carries": None,
        "lost": [],
        "repaired": False,
        "problem": None,
    }
    if not isinstance(copies, Copies):
        return {**document, "problem": reason_of(copies, member.path)}
    if copies.foreign:
        document["carries"] = describe(copies.foreign)
    if copies.superblock is None:
        what = "it has no superblock at either end; --deep searches for one of a smaller size"
        return {**document, "problem": what}
    document["array"] = copies.superblock.config.name
    document["array_uuid"] = copies.superblock.array_uuid
    if copies.contradict:
        what = "its superblocks in front and at its end are of different members"
        return {**document, "problem": what}
    return {**document, "lost": [slot.name for slot in lost_slots(copies)]}
