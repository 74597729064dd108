"""Making members an array, and making them forget it: first check everything, then write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raidx_fuse.daemon.events.event import unix_s
from raidx_fuse.daemon.member_files import Disks, check_distinct, is_there
from raidx_fuse.errors import FormatError, LosesDataError, Reason, TooSmallError, UsageError
from raidx_fuse.format.both_ends import end_slots, erase_superblocks, read_superblock
from raidx_fuse.format.configuration.config import NO_ROLE
from raidx_fuse.format.create import check_array_name, create_array, shape
from raidx_fuse.format.regions import NO_REGION, SECTOR_BYTES, has_room_for_sums, usable_bytes
from raidx_fuse.format.superblock import read_slots
from raidx_fuse.format.table_page import share_bytes
from raidx_fuse.layouts.numbers import by_role
from raidx_fuse.layouts.placements.bundled import SPARE_CHUNKS
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.load import reading_members, small_write_operations
from raidx_fuse.layouts.registry import (
    LAYOUTS,
    LayoutError,
    LayoutInfo,
    check_chunk_bytes,
    code_for,
    grows_in_place,
    in_place_max,
)
from raidx_fuse.members.base import Member
from raidx_fuse.members.spec import parse_spec
from raidx_fuse.store.host_space import HostSpaces

if TYPE_CHECKING:
    from raidx_fuse.documents import CreationPlan, LayoutChoice, Renamed, SpaceUse, WipedMember


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """The arguments of `raidx create`.

    *members* are specs as given. *member_bytes* is the size of missing member files (None: no file
    may be missing). *image_bytes* limits the image. *log_bytes*: of the log region.
    *params* belong to the layout. *with_volume*: the whole image is a volume from the start.
    *sums*: each page of the members' data has a checksum.
    """

    members: tuple[str, ...]
    layout: str
    chunk_bytes: int
    name: str
    params: dict[str, object]
    member_bytes: int | None = None
    image_bytes: int | None = None
    log_bytes: int | None = None
    overwrite_signature: bool = False
    with_volume: bool = True
    sums: bool = False


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """What creating does: *missing* files are created; *sizes* are the members' bytes by role.

    Of the metadata of each member, *sums_bytes* are for checksums, now or later.
    """

    layout: Layout
    missing: tuple[str, ...]
    sizes: tuple[int, ...]
    metadata_bytes: int
    sums_bytes: int = 0

    def as_dict(self, request: CreateRequest) -> CreationPlan:
        """Return the plan as JSON values, with the keys of other dry runs."""
        size = self.layout.size_bytes
        return {
            "dry_run": True,
            "does": f"makes {request.layout} of {len(request.members)} members",
            "layout": request.layout,
            "chunk_size": request.chunk_bytes,
            "size": min(size, request.image_bytes or size),
            "member_size": min(self.sizes),
            "members": [
                {"path": path, **use}
                for path, use in zip(request.members, member_use(self), strict=True)
            ],
            "layouts": alternatives(self.sizes, request),
            "metadata": self.metadata_bytes,
            "sums_bytes": self.sums_bytes,
            "redundancy_left": self.layout.code.tolerance,
            "creates": list(self.missing),
            "bytes_moved": 0,
            "seconds": 0.0,
            "redundancy_reduced": False,
        }


def member_use(plan: CreatePlan) -> list[SpaceUse]:
    """Return for each member its *size*, and what of it is *used* by chunks or *wasted*, in bytes.

    Wasted is the space, metadata aside, where no chunk can ever be placed because the other members
    are too small. The chunk that each member of a raidx layout keeps free for moves counts as used.
    """
    layout, chunk_bytes = plan.layout, plan.layout.chunk_bytes
    uses: list[SpaceUse] = []
    for (role, size), count in zip(by_role(plan.sizes), layout.used_chunks(), strict=True):
        used, metadata = count * chunk_bytes, plan.metadata_bytes
        if layout.has_table:
            used += SPARE_CHUNKS * chunk_bytes
            metadata += share_bytes(layout.chunks_of(role))
        metadata += size - usable_bytes(size)
        uses.append({"size": size, "used": used, "wasted": max(0, size - metadata - used)})
    return uses


def alternatives(sizes: Sequence[int], request: CreateRequest) -> list[LayoutChoice]:
    """Return what each possible layout would make of these members, the largest image first.

    raidx layouts are listed with their shortest bundles and with the length that was asked for.
    """
    shown: list[LayoutChoice] = []
    for name, info in LAYOUTS.items():
        lengths: list[dict[str, object]] = [{}]
        if info.bundled and "length" in request.params:
            lengths.append({"length": request.params["length"]})
        for params in lengths:
            try:
                regions, layout = shape(
                    name,
                    sizes,
                    request.chunk_bytes,
                    params,
                    log_bytes=request.log_bytes,
                    sums=request.sums,
                )
            except (LayoutError, UsageError):
                continue
            uses = member_use(CreatePlan(layout, (), tuple(sizes), regions.data.offset))
            most = in_place_max(name, len(sizes), None)
            entry: LayoutChoice = {
                "layout": name,
                "length": layout.code.columns if layout.has_table else None,
                "size": layout.size_bytes,
                "redundancy_left": layout.code.tolerance,
                "wasted": [use["wasted"] for use in uses],
                "write_operations": small_write_operations(layout.code),
                "reading_members": reading_members(layout),
                "grows": _grows(info, most == len(sizes)),
                "members_max": most,
            }
            if entry not in shown:
                shown.append(entry)
    return sorted(shown, key=lambda entry: -entry["size"])


def _grows(info: LayoutInfo, is_full: bool) -> str:
    if info.members_by != "migration":
        return info.members_by
    return "in_place" if grows_in_place(info.name) and not is_full else "restripe"


async def choices(request: CreateRequest) -> tuple[dict[str, int], list[LayoutChoice]]:
    """Return the members' sizes, and what each layout would make of them; nothing is written.

    The layout of *request* counts for nothing. Raises UsageError, BusyError, MemberError.
    """
    check_chunk_bytes(request.chunk_bytes)
    sizes, _ = await _looked_at(replace(request, overwrite_signature=True))
    found = alternatives(tuple(sizes.values()), request)
    if not found:
        shape("raid0", tuple(sizes.values()), request.chunk_bytes, {}, log_bytes=request.log_bytes)
    return sizes, found


async def plan(request: CreateRequest) -> CreatePlan:
    """Return what *request* will do; check all that can be checked without writing.

    Raises UsageError, LayoutError, SignatureFoundError, BusyError, MemberError.
    """
    code_for(request.layout, len(request.members), request.params)
    check_chunk_bytes(request.chunk_bytes)
    check_array_name(request.name)
    found, missing = await _looked_at(request)
    sizes = tuple(found.values())
    regions, layout = shape(
        request.layout,
        sizes,
        request.chunk_bytes,
        request.params,
        request.image_bytes,
        request.log_bytes,
        sums=request.sums,
    )
    if request.image_bytes is not None and request.image_bytes > layout.size_bytes:
        raise TooSmallError(f"these members make an image of at most {layout.size_bytes} bytes")
    room = regions.sums
    if not request.sums and has_room_for_sums(sizes):
        place = regions.place_for_sums(layout.code.tolerance + 1, regions.end, regions.end)
        room = NO_REGION if place is None else place
    return CreatePlan(layout, missing, sizes, regions.data.offset, room.length)


async def _looked_at(request: CreateRequest) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the bytes of each member, now or when it is made, and which are to be made.

    Raises UsageError, SignatureFoundError, BusyError, MemberError.
    """
    check_distinct(request.members)
    missing = tuple(m for m in request.members if not is_there(m))
    found = {member: _size_to_make(member, request) for member in missing}
    with Disks(read_only=True) as disks:
        given = [m for m in request.members if m not in missing]
        present = disks.attach(given)
        found |= {name: member.size_bytes for name, member in zip(given, present, strict=True)}
    for member in request.members:
        await Disks().check(
            member, overwrite_signature=request.overwrite_signature, may_create=True
        )
    return {member: found[member] for member in request.members}, missing


def _size_to_make(member: str, request: CreateRequest) -> int:
    size_bytes = parse_spec(member).size_bytes or request.member_bytes
    if size_bytes is None:
        raise UsageError(
            f"{member} does not exist",
            action="--size S creates missing member files",
            reason=Reason.FILE,
        )
    if not size_bytes or size_bytes % SECTOR_BYTES:
        raise UsageError(f"a member's size is a multiple of {SECTOR_BYTES} bytes")
    return size_bytes


async def create(request: CreateRequest) -> list[str]:
    """Create the array; return a warning for each host that cannot hold what members promise.

    If that fails, files created for it are removed. Raises as `plan`.
    """
    await plan(request)
    with Disks() as disks:
        members: list[Member] = []
        try:
            for member in request.members:
                opened = await disks.open(
                    member,
                    overwrite_signature=request.overwrite_signature,
                    create_bytes=request.member_bytes,
                )
                members.append(opened)
            await create_array(
                members,
                layout=request.layout,
                params=request.params,
                chunk_bytes=request.chunk_bytes,
                name=request.name,
                size_bytes=request.image_bytes,
                log_bytes=request.log_bytes,
                overwrite_signature=request.overwrite_signature,
                with_volume=request.with_volume,
                sums=request.sums,
                now_s=unix_s(),
            )
        except BaseException:
            for opened in members:
                await disks.release(opened)
            raise
        hosts = HostSpaces(lambda: members)
        await hosts.look()
        return hosts.warnings()


async def wipe(specs: Sequence[str], *, lose_data: bool) -> list[WipedMember]:
    """Overwrite the superblocks of members with zeros; return a document about each of them.

    Nothing else is written: content, log and maps stay, but no array finds them. *lose_data* allows
    members that have a role in their array, or whose superblocks are damaged. All members are
    checked before the first one is written. Raises UsageError, BusyError, MemberError.
    """
    with Disks() as disks:
        members = disks.attach(specs)
        await disks.claim(members)
        found = [await _look(member, lose_data=lose_data) for member in members]
        for member, document in zip(members, found, strict=True):
            if document["wiped"]:
                await erase_superblocks(member)
        return found


async def _look(member: Member, *, lose_data: bool) -> WipedMember:
    """Return what is on *member*. Raises UsageError if it is of use and *lose_data* is false."""
    slots = [*(await read_slots(member)), *(await end_slots(member))]
    document: WipedMember = {
        "path": member.path,
        "wiped": any(slot.ours for slot in slots),
        "array": None,
        "array_uuid": None,
        "role": None,
    }
    if not document["wiped"]:
        return document
    try:
        superblock = await read_superblock(member)
    except FormatError:
        superblock = None
    if superblock is None:
        what = "has superblocks that are damaged or of another version"
    else:
        record = superblock.config.find(superblock.member_uuid)
        role = record.role if record is not None else NO_ROLE
        document |= {
            "array": superblock.config.name,
            "array_uuid": superblock.array_uuid,
            "role": role if role >= 0 else None,
        }
        if role < 0:
            return document
        what = f"has role {role} of array {superblock.config.name}"
    if not lose_data:
        raise LosesDataError(
            f"{member.path} {what}", action="to wipe it all the same, add --lose-data"
        )
    return document


async def give_new_uuid(specs: Sequence[str]) -> Renamed:
    """Give the array of the members *specs*, and its members and volumes, new UUIDs.

    For a copy: its original may run meanwhile. A change that was cut is completed. Returns a
    document. Raises UsageError, AssemblyError, BusyError if a member is in use, MemberError.
    """
    from raidx_fuse.array.new_identity import give_new_identity  # late, as in `rename`

    with Disks() as disks:
        members = disks.attach(specs)
        if any(parse_spec(spec).is_remote for spec in specs):
            await disks.claim(members)  # a server may export the very disks of the original
        former, config = await give_new_identity(members)
    name = config.name
    return {"uuid": config.array_uuid, "old_uuid": former, "name": name, "old": name}


async def rename(specs: Sequence[str], name: str) -> tuple[str, str]:
    """Name the array of the members *specs* *name*; return its old name and its UUID.

    Raises UsageError, AssemblyError, BusyError if it is in use, MemberError.
    """
    # late: the engine would double the time that `raidx create` takes to start
    from raidx_fuse.array.open import open_array
    from raidx_fuse.format.assemble import assemble

    check_array_name(name)
    with Disks() as disks:
        members = disks.attach(specs)
        await disks.claim(members)
        assembly = await assemble(members)
        if assembly.missing_roles:
            raise UsageError(
                f"the member of role {min(assembly.missing_roles)} is missing: it would keep the "
                "old name",
                action="give all members",
                reason=Reason.MEMBERS_MISSING,
            )
        async with open_array(members) as array:
            old = array.name
            await array.member_set.update(lambda config: replace(config, name=name), asked=True)
            return old, array.uuid
