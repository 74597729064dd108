"""Create an array: check the members, clear old metadata, write the first superblocks.

Creation takes little time on members of any size: only signatures, superblock slots, old pages and
old log records are cleared. The data region stays as it is, because a chunk counts as zero until
the written map says that it was written.
"""

from __future__ import annotations

import uuid as _uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raidx_fuse.errors import (
    MemberError,
    RaidxError,
    Reason,
    SignatureFoundError,
    TooSmallError,
    UsageError,
    no_space,
)
from raidx_fuse.format.both_ends import erase_ends, readable_superblock
from raidx_fuse.format.configuration.config import ACTIVE, NAME_SHOWN, ArrayConfig, MemberRecord
from raidx_fuse.format.configuration.features import ENDS
from raidx_fuse.format.configuration.names import cleaned, name_problem
from raidx_fuse.format.configuration.sums import with_sums
from raidx_fuse.format.configuration.volumes import VolumeTable
from raidx_fuse.format.pages import erase_log, erase_pages, erase_region, zero_range
from raidx_fuse.format.regions import (
    PAGE_BYTES,
    PAGE_SLOTS,
    SECTOR_BYTES,
    SUPERBLOCK_BYTES,
    SUPERBLOCK_SLOTS,
    Regions,
    end_offset,
    has_room_for_sums,
    page_count,
    plan_regions,
    usable_bytes,
)
from raidx_fuse.format.signature import Signature, clear_signatures, describe, find_signatures
from raidx_fuse.format.superblock import write_config
from raidx_fuse.format.table_page import chunks_that_fit, shares_of
from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.numbers import Offset, Role, by_role
from raidx_fuse.layouts.placements.bundled import SPARE_CHUNKS, TURNS, check_table
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.allocate import maximum
from raidx_fuse.layouts.plugged import origin_params
from raidx_fuse.layouts.registry import (
    LAYOUTS,
    check_chunk_bytes,
    code_for,
    find_layout,
    make_layout,
    width_max,
)
from raidx_fuse.members.base import Member

CHUNK_BYTES_DEFAULT = 64 << 10

LARGER_MEMBERS = 2
"""So many times as large as the largest one of a raidx array may members be that join later, if
they are to be used as a whole: tables of checksums have room for no more."""

ROOM_MEMBERS = 4
"""So many times as large as the smallest one of a raidx array may the largest one be, if members
keep room for checksums that the array does not have: each keeps what the largest one needs."""

UuidSource = Callable[[], str]


def reserve_metadata(
    member: Member, regions: Regions, chunks: int, end: Offset | None = None
) -> None:
    """Reserve superblocks, dirty bitmap, log, and the written map of *chunks* logical chunks.

    *end*: where the superblocks at the end of the member begin, if it has them. Raises
    NoSpaceError, MemberError.

    If the host of a sparse member is full later, log and maps can still be written. So a write is
    then refused as a whole (`NoSpaceError`) instead of failing members one after the other.
    """
    written = page_count(chunks) * PAGE_SLOTS * PAGE_BYTES
    ranges = [
        (regions.superblock.offset, regions.bitmap.end - regions.superblock.offset),
        (regions.written.offset, min(written, regions.written.length)),
        (regions.log.offset, regions.log.length),
    ]
    if end is not None:
        ranges.append((end, SUPERBLOCK_BYTES))
    for offset, length in ranges:
        try:
            member.reserve(offset, length)
        except MemberError as error:
            message = f"{member.path}: its host has no room for the metadata"
            raise (no_space(error, message) or error) from None


def new_uuid() -> str:
    """Return a random UUID in canonical form. (Not seeded: it must be unique everywhere.)"""
    return str(_uuid.uuid4())


def check_member(member: Member) -> None:
    """Raise UsageError unless *member* is writable and consists of whole sectors."""
    if member.read_only:
        raise UsageError(
            f"{member.path} is read-only",
            action="it cannot become a member",
            reason=Reason.READ_ONLY,
        )
    if member.size_bytes % SECTOR_BYTES:
        raise UsageError(
            f"{member.path} has {member.size_bytes} bytes, not a multiple of {SECTOR_BYTES}",
            action="cut it to whole sectors",
        )


async def check_unsigned(member: Member) -> None:
    """Raise SignatureFoundError if *member* carries an array, file system or partition table."""
    found = await find_signatures(member)
    if found:
        superblock = await readable_superblock(member)
        owner = "" if superblock is None else f" of array {superblock.config.name!r}"
        raise SignatureFoundError(
            f"{member.path} carries {describe(found)}{owner}",
            action="--overwrite-signature destroys it",
        )


async def prepare_member(member: Member, regions: Regions, *, kept_bytes: int = 0) -> None:
    """Clear signatures, superblock slots, old pages and log records durably, before a member joins.

    *kept_bytes*: from the data region up to here it has content of the array, and nothing there is
    touched; else the checksums that it is to hold are all zero then: there are none. Raises
    MemberError.
    """
    await erase_ends(member, kept_bytes)
    await clear_signatures(member, regions.data.offset if kept_bytes else member.size_bytes)
    await member.writev(0, [bytes(SUPERBLOCK_BYTES)])
    await erase_pages(member, regions)
    await erase_log(member, regions)
    if not kept_bytes:
        await zero_range(member, *regions.sums)
    await member.flush()


async def create_array(
    members: Sequence[Member],
    layout: str,
    *,
    name: str,
    now_s: int,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
    params: Mapping[str, Any] | None = None,
    size_bytes: int | None = None,
    log_bytes: int | None = None,
    overwrite_signature: bool = False,
    with_volume: bool = True,
    sums: bool = False,
    both_ends: bool = True,
    uuid_source: UuidSource = new_uuid,
) -> ArrayConfig:
    """Create an array of *members*, in the order of their roles; return its configuration.

    Every member is used up to the last whole chunk of the smallest member; in a raidx layout, up to
    its own last whole chunk. With *both_ends*, members of 64 MiB and more have superblocks at their
    ends, too.
    *size_bytes* limits the image. *log_bytes*: of the log region, instead of the default.
    *now_s* is the Unix time of creation. *sums*: it has checksums.
    Without *with_volume* the whole image is free, else it is one volume.
    *uuid_source* is called for the UUID of the array, then for those of the members, then for the
    seed of the checksums, its first 4 bytes. Raises UsageError and SignatureFoundError before
    anything is written, MemberError, and RaidxError if a first superblock cannot be written.
    """
    regions, layout_made = plan_array(
        members,
        layout,
        name=name,
        chunk_bytes=chunk_bytes,
        params=params,
        size_bytes=size_bytes,
        log_bytes=log_bytes,
        sums=sums,
        both_ends=both_ends,
    )
    foreign: list[list[Signature]] = []
    for member in members:
        if not overwrite_signature:
            await check_unsigned(member)
        foreign.append(await find_signatures(member))
    array_uuid = uuid_source()
    records = tuple(
        MemberRecord(
            role=Role(role),
            member_uuid=uuid_source(),
            state=ACTIVE,
            size_bytes=member.size_bytes,
            path_hint=cleaned(member.path),
            reads_zero=member.reads_zero and not foreign[role],
        )
        for role, member in enumerate(members)
    )
    config = ArrayConfig(
        array_uuid=array_uuid,
        name=name,
        layout=layout,
        chunk_bytes=chunk_bytes,
        width=len(members),
        members=records,
        regions=regions,
        params=params_of(layout_made, params or {}),
        size_bytes=size_bytes,
        created_s=now_s,
        volumes=None if with_volume else VolumeTable(),
        needs=(ENDS,) if both_ends and any(end_offset(r.size_bytes) for r in records) else (),
    )
    if sums:
        config = with_sums(config, layout_made.code.tolerance + 1, uuid_source())
    shares = shares_of(config)
    for role, member in by_role(members):
        await prepare_member(member, regions)
        if role in shares:
            await erase_region(member, shares[role])
            await member.flush()
    for record, member in zip(records, members, strict=True):
        reserve_metadata(member, regions, layout_made.chunks, config.end_of(record))
    by_uuid = {record.member_uuid: members[record.role] for record in records}
    failed: frozenset[str] = frozenset()
    for _ in range(SUPERBLOCK_SLOTS):  # both slots have one from the start
        failed |= await write_config(by_uuid, config)
    if failed:
        paths = ", ".join(sorted(by_uuid[uuid].path for uuid in failed))
        raise RaidxError(
            f"the first superblock could not be written to {paths}", reason=Reason.MEMBER_FAILED
        )
    return config


def shape(
    layout: str,
    sizes: Sequence[int],
    chunk_bytes: int,
    params: Mapping[str, Any],
    image_bytes: int | None = None,
    log_bytes: int | None = None,
    *,
    sums: bool = False,
    both_ends: bool = True,
) -> tuple[Regions, Layout]:
    """Return the regions of members of *sizes* bytes, and the layout over them.

    raidx layouts use the whole of every member; all others use as much of each member as the
    smallest one has. In a raidx layout, an image of *image_bytes* leaves the other chunks free:
    they can later take the chunks of lost or leaving members. *log_bytes*: of the log region,
    instead of the default. *sums*: with checksums; without them, members of 64 MiB and more have
    room for them. *both_ends*: superblocks at the ends, too.
    Raises LayoutError, UsageError.
    """
    width = len(sizes)
    usable = [usable_bytes(size) if both_ends else size for size in sizes]
    check_chunk_bytes(chunk_bytes)
    info = find_layout(layout)
    code = code_for(layout, width, params)
    has_room = has_room_for_sums(sizes)
    if info.bundled:
        has_room &= max(sizes) <= ROOM_MEMBERS * min(sizes)
    copies = code.tolerance + 1 if sums or has_room else 0
    if not info.bundled:
        regions = plan_regions(
            min(sizes),
            chunk_bytes,
            width_max(layout, width, params),
            code.rows,
            log_bytes_wanted=log_bytes,
            data_end=min(usable),
            sums_copies=copies,
            has_sums=sums,
        )
        chunks = regions.data.length // chunk_bytes
        return regions, make_layout(layout, width, chunks, chunk_bytes, **params)
    # One log record must also have space for two chunks that exchange their places.
    regions = plan_regions(
        min(sizes),
        chunk_bytes,
        max(2, code.columns),
        total_bytes=sum(sizes),
        log_bytes_wanted=log_bytes,
        data_end=min(usable),
        sums_copies=copies,
        has_sums=sums,
        sums_end=LARGER_MEMBERS * max(usable),
    )
    offset = regions.data.offset
    counts = [chunks_that_fit(size, offset, chunk_bytes) for size in usable]
    if not min(counts):
        raise TooSmallError(
            f"a member of {min(sizes)} bytes has no room for a chunk",
            action="use larger members or a smaller chunk",
        )
    given = {**params, "length": code.columns, "chunk_counts": counts}
    if code.columns == 1:
        given["numbering"] = TURNS
    bundles = maximum([max(0, count - SPARE_CHUNKS) for count in counts], code.columns)
    if image_bytes is not None and 0 < image_bytes < bundles * code.data_count * chunk_bytes:
        bundles = -(-image_bytes // (code.data_count * chunk_bytes))
        given["bundles"] = bundles
    check_table(bundles * code.columns)
    return regions, make_layout(layout, width, 0, chunk_bytes, **given)


def params_of(layout: Layout, params: Mapping[str, Any]) -> dict[str, object]:
    """Return the parameters to store, from which *layout* can be built again."""
    origin = origin_params(LAYOUTS, layout.name, layout.width)
    return {**params, **layout.stored_params(), **origin}


def plan_array(
    members: Sequence[Member],
    layout: str,
    *,
    name: str,
    chunk_bytes: int,
    params: Mapping[str, Any] | None = None,
    size_bytes: int | None = None,
    log_bytes: int | None = None,
    sums: bool = False,
    both_ends: bool = True,
) -> tuple[Regions, Layout]:
    """Check that *members* can form such an array; return its regions and layout. Writes nothing.

    Raises UsageError, one line.
    """
    check_array_name(name)
    _check_members(members)
    try:
        sizes = [member.size_bytes for member in members]
        regions, made = shape(
            layout,
            sizes,
            chunk_bytes,
            params or {},
            size_bytes,
            log_bytes,
            sums=sums,
            both_ends=both_ends,
        )
    except LayoutError as error:
        raise UsageError(str(error), reason=Reason.IMPOSSIBLE_LAYOUT) from None
    if not made.size_bytes:
        smallest = min(members, key=lambda member: member.size_bytes)
        raise TooSmallError(
            f"{smallest.path} with {smallest.size_bytes} bytes is too small for one stripe of "
            f"{layout}: {made.code.rows} chunks of {chunk_bytes} bytes",
            action="use larger members or a smaller chunk",
        )
    if size_bytes is not None and not 0 < size_bytes <= made.size_bytes:
        raise TooSmallError(
            f"an image of {size_bytes} bytes is not possible: these members make one of at most "
            f"{made.size_bytes}"
        )
    if size_bytes is not None and size_bytes % SECTOR_BYTES:
        raise UsageError(f"an image of {size_bytes} bytes is not a multiple of {SECTOR_BYTES}")
    return regions, made


def check_array_name(name: str) -> None:
    """Raise UsageError unless *name* is a valid name of an array."""
    problem = name_problem(name)
    if problem is not None:
        raise UsageError(f"{name[:NAME_SHOWN]!r} cannot be an array's name: {problem}")


def _check_members(members: Sequence[Member]) -> None:
    if not members:
        raise UsageError("no members given", action="name the files or devices to use")
    seen: set[str] = set()
    for member in members:
        if member.path in seen:
            raise UsageError(f"{member.path} is given twice", action="give each member once")
        seen.add(member.path)
        check_member(member)
