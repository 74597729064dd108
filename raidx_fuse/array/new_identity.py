"""A new identity for an array at rest: other UUIDs for it, its members and its volumes.

A full copy of an array, made by dd or a snapshot, has the UUIDs of the original. They stand in the
superblocks, in the header of every page and in the head page of the log, which names members; those
of records do not matter, because the log of an array that was closed is empty. Three steps:

 1. Every page is written once more for the new UUID, into the slot that its newest one is not in,
    and flushed. The old array is as it was: pages of another array never count.
 2. Member by member, the new superblock is written into the slot that the newest one is not in, and
    flushed, then the old one is erased. While both are there, the new one counts (`newest`). The
    new configuration says in its job RENAMED what it was made from.
 3. Pages with two equal slots (the look-up table) get the second one again; a round of superblocks
    drops the job.

Interrupted before the first new superblock, it is the old array. Interrupted later, some members
are of the one and some of the other array: assembly refuses them and says that the change must be
repeated, which continues with step 2; only if neither array was started since: both have to be as
step 1 left them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import AssemblyError, Reason, UsageError
from raidx_fuse.format.assemble import Assembly, assemble
from raidx_fuse.format.both_ends import read_copies, read_superblock
from raidx_fuse.format.configuration.codec import encode
from raidx_fuse.format.configuration.config import (
    FAILED,
    MISSING,
    NO_ROLE,
    ArrayConfig,
    decode_config,
    encode_config,
)
from raidx_fuse.format.configuration.remembered import (
    KeptHealth,
    health_of,
    short_uuid,
    with_health,
)
from raidx_fuse.format.configuration.saved_jobs import RENAMED, Renamed, renamed
from raidx_fuse.format.create import UuidSource, new_uuid
from raidx_fuse.format.log_record import holder_of
from raidx_fuse.format.pages import encode_page, load_pages
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES, PageRegion
from raidx_fuse.format.superblock import Superblock, places_of, write_config, write_superblock
from raidx_fuse.format.table_page import KIND, page_regions_of
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.heartbeat import HEARTBEAT_BYTES


async def find_interrupted(members: Sequence[Member]) -> tuple[ArrayConfig, Renamed] | None:
    """Return the new configuration, and its job, if a change ended after the first superblock.

    Raises AssemblyError if it cannot be continued, FormatError, MemberError.
    """
    found = [await _superblock_of(member) for member in members]
    new = next((one.config for one in found if renamed(one.config) is not None), None)
    made = None if new is None else renamed(new)
    if new is None or made is None:
        return None
    as_made = new.events == made.events and all(one.config == new for one in found)
    if all(one.array_uuid == new.array_uuid for one in found) and not as_made:
        return None  # the last round was begun, or it was started since: an array by itself
    for member, one in zip(members, found, strict=True):
        if one.config == new:
            continue
        same = (one.array_uuid, one.events) == (made.array_uuid, made.events)
        if new.events != made.events or not same or one.member_uuid not in made.members:
            raise AssemblyError(
                f"{member.path} was left out of a change of the UUID of array {new.name!r}, which "
                "was started since",
                action=f"wipe it and let it replace the member: raidx wipe {member.path} "
                "--lose-data, raidx replace-disk",
                reason=Reason.OUTDATED,
            )
    return new, made


def require_whole(assembly: Assembly) -> list[Member]:
    """Return the members of *assembly*, all that the array counts on; raise UsageError if not."""
    config = assembly.config
    for record in config.members:
        here = record.role in assembly.by_role or record.member_uuid in assembly.spares
        if not here and record.state not in (FAILED, MISSING):
            raise UsageError(
                f"the member {record.path_hint or record.member_uuid} is missing: it would keep "
                "the old UUID",
                action="give all members",
                reason=Reason.MEMBERS_MISSING,
            )
    return [*assembly.by_role.values(), *assembly.spares.values()]


def with_new_identity(
    config: ArrayConfig, uuid_source: UuidSource = new_uuid
) -> tuple[ArrayConfig, Renamed]:
    """Return *config*, of an array that was closed, with other UUIDs, and its job RENAMED.

    Raises UsageError, AssemblyError.
    """
    if not config.clean:
        raise AssemblyError(
            f"array {config.name!r} could not be closed",
            action="see its log",
            reason=Reason.NOT_CLOSED,
        )
    config = config.without_job(RENAMED)
    volumes = () if config.volumes is None else config.volumes.volumes
    for volume in volumes:
        if volume.move is not None:
            raise UsageError(
                f"volume {volume.name} is moving between this array and another one",
                action="mount both and let the move end",
                reason=Reason.JOB_RUNNING,
            )
    uuids = [config.array_uuid, *(record.member_uuid for record in config.members)]
    uuids += [volume.uuid for volume in volumes]
    new = {old: uuid_source() for old in dict.fromkeys(uuids)}
    text = encode_config(config)  # jobs, settings and the volume table name them, too
    for old, uuid in new.items():
        text = text.replace(old.encode(), uuid.encode())
    made = decode_config(text)
    members = {record.member_uuid: new[record.member_uuid] for record in config.members}
    health = health_of(config)
    kept = {
        short_uuid(uuid): health.members[short_uuid(old)]
        for old, uuid in members.items()
        if short_uuid(old) in health.members
    }
    made = with_health(made, KeptHealth(kept, health.scrub, health.misfits))
    note = Renamed(config.array_uuid, config.events, members)
    return made.with_job(RENAMED, encode(note)), note


async def write_pages(members: Sequence[Member], new: ArrayConfig, made: Renamed) -> None:
    """Step 1: write the pages of *members*, which are still of the old array. Raises MemberError.

    The members are those that have a role or are spares; *made* is the job of *new*.
    """
    for member in members:
        superblock = await _superblock_of(member)
        for region in _regions(new, made.members[superblock.member_uuid]):
            await _rewrite(member, region, made.array_uuid, new.array_uuid, made.members)
        await member.flush()


def _regions(config: ArrayConfig, member_uuid: str) -> list[PageRegion]:
    record = config.find(member_uuid)
    return page_regions_of(config, NO_ROLE if record is None else record.role)


async def _rewrite(
    member: Member, region: PageRegion, old: str, new: str, members: Mapping[str, str]
) -> None:
    """Write the pages of *region* under the UUID *old* for *new*, where the newest ones are not.

    *members* are their UUIDs, old to new. If *old* is *new*, both slots become the same.
    """
    loaded = await load_pages(member, region, old)
    for page in loaded.present():
        payload = loaded.payload[page].tobytes()
        if region.kind == "journal":
            for before, after in members.items():
                payload = payload.replace(holder_of(before), holder_of(after))
        generation = int(loaded.generations[page]) + (old != new)
        content = encode_page(page, generation, region.kind, payload, new)
        slot = 1 - int(loaded.slots[page])
        await member.writev(region.slot_offset(page, slot), [content])


async def write_superblocks(members: Sequence[Member], new: ArrayConfig, made: Renamed) -> None:
    """Step 2: give each of *members* that is still of the old array its new superblock.

    Raises MemberError.
    """
    for member in members:
        copies = await read_copies(member)
        found = _known(member, copies.superblock)
        if found.array_uuid != new.array_uuid:
            uuid = made.members[found.member_uuid]
            found = Superblock(uuid, found.sequence + 1, found.base_events, new)
        # Also if it was cut after this one: perhaps only one end of the member has it.
        places = places_of(member, found, in_front=not copies.from_end)
        await write_superblock(member, found, places)  # <- this member is of the new array
        zeros = bytes(SUPERBLOCK_SLOT_BYTES - HEARTBEAT_BYTES)
        step = SUPERBLOCK_SLOT_BYTES * (1 - 2 * found.slot)
        for offset, _content in places:
            await member.writev(offset + step, [zeros])
        await member.flush()


async def finish(members: Sequence[Member], new: ArrayConfig) -> ArrayConfig:
    """Step 3: complete the pages, and drop the job. Returns the configuration.

    Raises MemberError, AssemblyError.
    """
    by_uuid: dict[str, Member] = {}
    for member in members:
        uuid = (await _superblock_of(member)).member_uuid
        by_uuid[uuid] = member
        for region in _regions(new, uuid):
            if region.kind == KIND:
                await _rewrite(member, region, new.array_uuid, new.array_uuid, {})
        await member.flush()
    config = new.without_job(RENAMED).bumped()
    if failed := await write_config(by_uuid, config):
        paths = ", ".join(sorted(by_uuid[uuid].path for uuid in failed))
        raise AssemblyError(
            f"the superblock of {paths} could not be written",
            action="repeat it",
            reason=Reason.MEMBER_FAILED,
        )
    return config


async def _superblock_of(member: Member) -> Superblock:
    return _known(member, await read_superblock(member))


def _known(member: Member, superblock: Superblock | None) -> Superblock:
    if superblock is None:
        raise AssemblyError(f"{member.path} is no member of an array", reason=Reason.NOT_A_MEMBER)
    return superblock


async def give_new_identity(
    members: Sequence[Member], uuid_source: UuidSource = new_uuid
) -> tuple[str, ArrayConfig]:
    """Give the array of *members* other UUIDs; return the former one and the new configuration.

    A change that was cut is completed. Raises UsageError, AssemblyError, MemberError.
    """
    found = await find_interrupted(members)
    if found is None:
        require_whole(await assemble(members))
        async with open_array(members):
            pass  # what was in the log is in its places now
        assembly = await assemble(members)
        used = require_whole(assembly)
        if left := [member.path for member in members if member not in used]:
            raise UsageError(f"{left[0]} is not used by the array", action="leave it out")
        new, made = with_new_identity(assembly.config, uuid_source)
        await write_pages(members, new, made)
    else:
        new, made = found
    await write_superblocks(members, new, made)
    return made.array_uuid, await finish(members, new)
