"""Examine: the metadata of one member as JSON values, also if it is damaged. A dump of the format.

Reads superblocks, page headers and signatures of one member. It writes nothing, and does not decide
whether the member belongs to an array.
"""

from __future__ import annotations

from typing import Any

from raidx_fuse.errors import FormatError, MemberError, OtherVersionError, reason_of
from raidx_fuse.format.both_ends import end_slots, read_copies
from raidx_fuse.format.configuration.config import ArrayConfig, config_to_dict
from raidx_fuse.format.configuration.sums import are_on, room_for_sums
from raidx_fuse.format.pages import hint_behind, load_pages
from raidx_fuse.format.signature import describe, find_signatures
from raidx_fuse.format.superblock import MAJOR, Slot, read_slots
from raidx_fuse.format.table_page import bytes_needed_by, page_regions_of
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.heartbeat import HEARTBEAT_BYTES, HEARTBEAT_OFFSET, decode_heartbeat

DAMAGED_SHOWN = 1000
Document = dict[str, object]


async def examine(member: Member) -> dict[str, Any]:
    """Return a document about the metadata of *member*.

    Keys:

    * *path*, *kind*, *size*; *carries*: the signatures in words.
    * Only of a member behind NBD: *held_by*, the process that its heartbeat names, or None.
    * *slots*: both superblock slots with *state* (valid, damaged, other, empty) and *problem*;
      *end_slots*: those at its end, empty if it has none there.
    * *valid*: whether there is a usable superblock; *problem*: why not, that the one at one of its
      ends is lost, or that it is truncated.
    * Only with a superblock: *format*, *slot*, *sequence*, *base_events*, *member_uuid*, *role*,
      *state*; *pages*: for each kind the number of written pages and the damaged slots; and the
      configuration of the array, field by field.

    Raises MemberError if the member cannot be read at all.
    """
    try:
        copies = await read_copies(member)
    except FormatError as error:
        refused: FormatError | None = error
        front, end = await read_slots(member), await end_slots(member)
    else:
        refused, front, end = None, copies.front, list(copies.end)
    signatures = await find_signatures(member)
    document: Document = {
        "path": member.path,
        "kind": member.kind,
        "size": member.size_bytes,
        "carries": describe(signatures) if signatures else None,
        **(await _holder(member)),
        "slots": [_slot(slot) for slot in front],
        "end_slots": [_slot(slot) for slot in end],
        "valid": False,
        "problem": None,
    }
    if refused is not None:
        is_known = isinstance(refused, OtherVersionError)
        hint = "" if is_known else await hint_behind(member)
        return {**document, "problem": reason_of(refused, member.path) + hint}
    superblock = copies.superblock
    if superblock is None:
        return {**document, "problem": "no member of a raidx array" + await hint_behind(member)}
    if copies.contradict:
        document["problem"] = "its superblocks in front and at its end are of different members"
    elif copies.from_end and copies.foreign:
        document["problem"] = (
            f"its front carries {describe(copies.foreign)}: only its end has its superblock"
        )
    elif copies.from_end or copies.end_is_lost:
        document["problem"] = copies.problems()[0]
    config = superblock.config
    record = config.find(superblock.member_uuid)
    assert record is not None, "checked when it was decoded"
    needed = bytes_needed_by(config, record)
    if member.size_bytes < needed:
        document["problem"] = (
            f"it has {member.size_bytes} bytes, but the array needs {needed}: truncated"
        )
    return {
        **document,
        "valid": True,
        "format": f"{MAJOR}.{superblock.minor}",
        "slot": superblock.slot,
        "sequence": superblock.sequence,
        "base_events": superblock.base_events,
        "member_uuid": superblock.member_uuid,
        "role": record.role,
        "state": record.state,
        **({} if are_on(config) else {"sums_room_bytes": room_for_sums(config)}),
        "pages": await _pages(member, config, record.role),
        **config_to_dict(config),
    }


async def _holder(member: Member) -> Document:
    if member.kind != "nbd":
        return {}
    page = bytearray(HEARTBEAT_BYTES)
    await member.readv(HEARTBEAT_OFFSET, [page])
    heartbeat = decode_heartbeat(bytes(page))
    return {"held_by": heartbeat.text if heartbeat is not None and heartbeat.held else None}


def _slot(slot: Slot) -> Document:
    superblock = slot.superblock
    return {
        "slot": slot.number,
        "state": slot.state,
        "problem": slot.problem,
        "events": superblock.events if superblock else None,
        "sequence": superblock.sequence if superblock else None,
    }


async def _pages(member: Member, config: ArrayConfig, role: Role) -> list[Document]:
    """Return a report about each page region; one that cannot be read has a *problem*."""
    reports: list[Document] = []
    for region in page_regions_of(config, role):
        problem, written, damaged = None, 0, []
        end = region.offset + region.length
        if end > member.size_bytes:
            problem = f"it would end at byte {end}, beyond the member"
        else:
            try:
                loaded = await load_pages(member, region, config.array_uuid, payloads=False)
                written, damaged = len(loaded.present()), loaded.damaged[:DAMAGED_SHOWN]
                if len(damaged) < len(loaded.damaged):
                    problem = f"{len(loaded.damaged)} slots are damaged"
            except (MemberError, OtherVersionError) as error:
                problem = error.message
        reports.append(
            {
                "kind": region.kind,
                "room": region.pages,
                "problem": problem,
                "written": written,
                "damaged": [f"page {one.page} slot {one.slot}" for one in damaged],
            }
        )
    return reports
