"""Attaching members to a running array, and detaching them: first as spares, then with a role.

An update of the superblocks that assigns roles may be interrupted by a crash. Assembly must then
find every member that the update names. New members are therefore recorded as spares, without a
role, until each of them has a superblock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.format.both_ends import erase_ends
from raidx_fuse.format.configuration.config import NO_ROLE, ArrayConfig, MemberRecord
from raidx_fuse.format.configuration.names import cleaned
from raidx_fuse.format.create import new_uuid, prepare_member, reserve_metadata
from raidx_fuse.format.pages import forget_maps
from raidx_fuse.format.regions import SUPERBLOCK_BYTES
from raidx_fuse.layouts.numbers import Role, role_range
from raidx_fuse.members.base import Member
from raidx_fuse.store.member_set import MemberSet

log = logging.getLogger(__name__)


def record_of(member: Member, role: Role, state: str) -> MemberRecord:
    """Return a new record for *member*, with a fresh member UUID."""
    return MemberRecord(
        role=role,
        member_uuid=new_uuid(),
        state=state,
        size_bytes=member.size_bytes,
        path_hint=cleaned(member.path),
        reads_zero=member.reads_zero,
    )


async def join(member_set: MemberSet, members: Sequence[Member], chunks: int) -> list[MemberRecord]:
    """Make *members* spares of an array of *chunks* logical chunks; return their records.

    Raises NoSpaceError or MemberError if a member cannot be prepared, and RaidxError if the
    superblock of one could not be written. In each case none of them belongs to the array.
    """
    regions = member_set.config.regions
    for member in members:
        await prepare_member(member, regions)
    records = [record_of(member, NO_ROLE, "spare") for member in members]
    for record, member in zip(records, members, strict=True):
        reserve_metadata(member, regions, chunks, member_set.config.end_of(record))
    for member in member_set.present().values():
        reserve_metadata(member, regions, chunks)
    for record, member in zip(records, members, strict=True):
        member_set.spares[record.member_uuid] = member
    try:
        await member_set.update(
            lambda config: replace(config, members=(*config.members, *records)), asked=True
        )
    except BaseException:  # no space for so many records, not written, or cancelled
        for record in records:
            forget_spare(member_set, record)
        raise
    for record, member in zip(records, members, strict=True):
        if record.member_uuid not in member_set.spares:
            await leave(member_set, records)
            raise RaidxError(f"{member.path} could not be written", reason=Reason.MEMBER_FAILED)
    return records


def forget_spare(member_set: MemberSet, record: MemberRecord) -> None:
    """Remove the spare of *record*, which could not be added, in memory; superblocks follow."""
    member_set.spares.pop(record.member_uuid, None)
    if member_set.config.find(record.member_uuid) is not None:
        member_set.change(lambda config: config.without_members(record.member_uuid))
        member_set.publish_soon()


async def leave(member_set: MemberSet, records: Sequence[MemberRecord]) -> None:
    """Remove members that got no role from the configuration."""
    gone = [record.member_uuid for record in records]
    for uuid in gone:
        member_set.spares.pop(uuid, None)
    await member_set.update(lambda config: config.without_members(*gone))


def require_joined(member_set: MemberSet, records: Sequence[MemberRecord]) -> None:
    """Raise RaidxError if one of *records* has left since `join`: it was removed, or failed."""
    for record in records:
        if record.member_uuid not in member_set.spares:
            raise RaidxError(
                f"{record.path_hint} failed or was removed before it got its role",
                reason=Reason.MEMBER_FAILED,
            )


def assign_role(
    member_set: MemberSet,
    config: ArrayConfig,
    records: Sequence[MemberRecord],
    roles: Sequence[Role] | None = None,
) -> ArrayConfig:
    """Attach the spares *records* in *roles* (None: after those of *config*); return the config.

    Only memory changes: the caller publishes the configuration. Raises RaidxError, with nothing
    changed, if one of them has left meanwhile.
    """
    require_joined(member_set, records)
    if roles is None:
        roles = role_range(config.width, config.width + len(records))
    for role, record in zip(roles, records, strict=True):
        member = member_set.spares.pop(record.member_uuid)
        member_set.give_role(role, member)
        config = config.with_record(replace(record, role=role, state="active"))
    return config


async def release(members: Iterable[Member], hooks: Sequence[Callable[[Member], None]]) -> None:
    """Make members that left the array forget it, then call *hooks* with each of them."""
    for member in members:
        try:
            await erase_ends(member)
            await member.writev(0, [bytes(SUPERBLOCK_BYTES)])
            await forget_maps(member)
        except RaidxError as error:
            log.warning("%s", error)
        for hook in hooks:
            hook(member)
