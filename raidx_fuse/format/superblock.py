"""Superblocks: two slots on every member, written alternately; the newest valid one counts.

Laws (FORMAT.md, "Superblock" and "Update protocol"):
 1. A write goes to the slot that does not hold the newest valid superblock: sequence s is in slot
    s mod 2. So a torn write leaves the old configuration readable.
 2. `write_config` reads before it writes. It never overwrites the superblock of another array or of
    another member: a disk that was exchanged while the array runs fails instead.
 3. The commit point of a change is the return of `write_config` (superblock_round.py). A round is
    complete, or the next round fails the members that missed it, before anything that depends on
    the round is acknowledged. `base_events` is the lowest event counter that a member is sure to
    have had durably when the round began.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import crc32c

from raidx_fuse.errors import FormatError, MemberError, OtherVersionError, Reason
from raidx_fuse.format.configuration.config import (
    ArrayConfig,
    decode_config,
    encode_config,
    uuid_bytes,
    uuid_text,
)
from raidx_fuse.format.configuration.renamed import renamed
from raidx_fuse.format.regions import (
    COUNTER_MAX,
    PAGE_BYTES,
    SUPERBLOCK_SLOT_BYTES,
    SUPERBLOCK_SLOTS,
)
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.beat import BEAT_BYTES
from raidx_fuse.members.prompt_read import read_promptly

MAGIC = b"RAIDX-SB"
MAJOR = 1
"""Increases when older programs must not use the member at all."""
MINOR = 0
"""Increases when fields are added; a program refuses a member of a higher one than it knows."""

HEADER = struct.Struct("<8sHHIIIQQQ16s16s48s")
"""magic, major, minor, crc, length, slot, events, base events, sequence, array, member, zeros."""
HEADER_BYTES = 128
CRC_OFFSET = 12
LENGTH_FIELD = 4
HEAD_BYTES = 8 << 10  # the part of a slot that is read first: enough for a dozen members
SEARCHED_BYTES = (40 << 10, HEAD_BYTES)
"""What is searched for signatures of others in an intact slot: JFS and UDF begin at 32 KiB, and no
format that is known leaves both superblocks intact and has its magic number elsewhere."""
BODY_BYTES_MAX = SUPERBLOCK_SLOT_BYTES - HEADER_BYTES - BEAT_BYTES
assert HEADER.size == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Superblock:
    """One superblock: the configuration *config* on the member *member_uuid*.

    * *sequence*: counts the superblock writes on this member, and determines the slot.
    * *base_events*: the lowest event counter that the members of its round had durably before; a
      member with a lower one is an old copy.
    * *minor*: the minor version of its fields.
    """

    member_uuid: str
    sequence: int
    base_events: int
    config: ArrayConfig
    minor: int = MINOR

    @property
    def slot(self) -> int:
        """The slot of this superblock, 0 or 1."""
        return self.sequence % SUPERBLOCK_SLOTS

    @property
    def array_uuid(self) -> str:
        """UUID of the array."""
        return self.config.array_uuid

    @property
    def events(self) -> int:
        """Event counter of the configuration."""
        return self.config.events


@dataclass(frozen=True, slots=True)
class Slot:
    """The content of a slot: a *superblock*, or a *problem* in words, or neither (empty).

    *ours* is true if the slot has the magic of raidx (a damaged superblock rather than other data).
    *other* is set if it is intact but nothing that this program can read. *length* is that of an
    intact superblock in bytes; *content* is what was read of it for a search of other formats.
    """

    number: int
    superblock: Superblock | None = None
    problem: str | None = None
    ours: bool = False
    other: OtherVersionError | None = None
    length: int = 0
    content: bytes | bytearray = b""

    @property
    def state(self) -> str:
        """Return one word: valid, damaged, other (not a superblock) or empty (zeros first)."""
        if self.superblock is not None:
            return "valid"
        if self.ours:
            return "damaged"
        return "empty" if self.problem is None else "other"


def encode_superblock(superblock: Superblock, body: bytes | None = None) -> bytes:
    """Return the bytes of a slot, whole pages. Raises FormatError if they do not fit.

    *body* is the encoded configuration, if the caller has it already.
    """
    if body is None:
        body = encode_config(superblock.config)
    if len(body) > BODY_BYTES_MAX:
        raise FormatError(
            f"the configuration of {len(body)} bytes does not fit into a superblock "
            f"({BODY_BYTES_MAX} bytes)",
            reason=Reason.METADATA_FULL,
        )
    fields = [
        MAGIC,
        MAJOR,
        superblock.minor,
        0,
        len(body),
        superblock.slot,
        superblock.events,
        superblock.base_events,
        superblock.sequence,
        uuid_bytes(superblock.array_uuid),
        uuid_bytes(superblock.member_uuid),
        bytes(48),
    ]
    fields[3] = crc32c.crc32c(body, crc32c.crc32c(HEADER.pack(*fields)))
    content = HEADER.pack(*fields) + body
    content += bytes(-len(content) % PAGE_BYTES)
    assert decode_superblock(content, superblock.slot) == superblock
    return content


def decode_superblock(content: bytes | bytearray, slot: int) -> Superblock:
    """Return the superblock that *content*, the bytes of *slot*, holds.

    Raises FormatError naming the first condition of FORMAT.md that does not hold.
    """
    if not content.startswith(MAGIC):
        raise FormatError("no magic", reason=Reason.NOT_A_MEMBER)
    if len(content) < HEADER_BYTES:
        raise FormatError("no room for a header")
    length = HEADER.unpack_from(content)[LENGTH_FIELD]
    if length > len(content) - HEADER_BYTES:
        raise FormatError(f"length {length} is beyond the slot")
    return _decode(bytes(content[: HEADER_BYTES + length]), slot)


@lru_cache(maxsize=64)  # every round reads the superblocks of the round before it
def _decode(content: bytes, slot: int) -> Superblock:
    header = HEADER.unpack_from(content)
    _magic, major, minor, crc, _length, in_slot, events, base, sequence, array, member, zeros = (
        header
    )
    body = content[HEADER_BYTES:]
    zeroed = content[:CRC_OFFSET] + bytes(4) + content[CRC_OFFSET + 4 : HEADER_BYTES]
    if crc32c.crc32c(body, crc32c.crc32c(zeroed)) != crc:
        raise FormatError("checksum mismatch (torn write or rot)")
    # After the checksum, which all versions share. What it covers is what was written: a slot that
    # is passed over in spite of it gives way to the configuration before it, which may count on
    # members that are excluded by now.
    uuid = uuid_text(array)
    if major != MAJOR or minor > MINOR or any(zeros):
        what = "another version" if major != MAJOR else "newer"
        what = f"format {major}.{minor} is {what}, this raidx knows {MAJOR}.{MINOR}"
        if (major, minor) <= (MAJOR, MINOR):
            what = "its header has fields that are unknown to this raidx"
        raise OtherVersionError(what, array_uuid=uuid)
    if in_slot != slot or sequence % SUPERBLOCK_SLOTS != slot:
        raise FormatError(f"belongs to slot {in_slot} (misdirected write)")
    if max(events, base, sequence) > COUNTER_MAX:
        raise FormatError("its counters are impossible")
    try:
        config = decode_config(body)
    except FormatError as error:
        raise OtherVersionError(error.message, array_uuid=uuid) from error
    if config.events != events or uuid_bytes(config.array_uuid) != array:
        raise FormatError("header and configuration differ")
    superblock = Superblock(uuid_text(member), sequence, base, config, minor)
    if config.find(superblock.member_uuid) is None:
        raise FormatError("the configuration does not name this member")
    return superblock


# -- reading -------------------------------------------------------------------------------------


async def read_slots(member: Member, *, searched: bool = False) -> tuple[Slot, Slot]:
    """Read both slots; if *searched* with the *content* in which others leave signatures.

    One unreadable slot counts as damaged; raises MemberError if both are.
    """
    slots: list[Slot] = []
    errors: list[MemberError] = []
    for number in range(SUPERBLOCK_SLOTS):
        offset = number * SUPERBLOCK_SLOT_BYTES
        if offset + SUPERBLOCK_SLOT_BYTES > member.size_bytes:
            slots.append(Slot(number, problem="beyond the member's end"))
            continue
        try:
            buffer = await _read_slot(member, offset, SEARCHED_BYTES[number] if searched else 0)
        except MemberError as error:
            errors.append(error)
            slots.append(Slot(number, problem=error.message, ours=True))
            continue
        slot = _judge(number, buffer)
        if searched and slot.superblock is None:  # overwritten by another tool, perhaps
            with suppress(MemberError):
                rest = bytearray(SUPERBLOCK_SLOT_BYTES - len(buffer))
                await read_promptly(member, offset + len(buffer), [rest])
                buffer += rest
        slots.append(replace(slot, content=buffer) if searched else slot)
    if len(errors) == SUPERBLOCK_SLOTS:
        raise errors[0]
    return slots[0], slots[1]


async def _read_slot(member: Member, offset: int, searched_bytes: int) -> bytearray:
    """Return the first HEAD_BYTES of the slot at *offset*; the whole slot for a longer superblock.

    Few superblocks are longer, and a start reads hundreds of slots. Or the first *searched_bytes*,
    if they are more and can be read. Raises MemberError.
    """
    if searched_bytes > HEAD_BYTES:
        content = bytearray(searched_bytes)
        try:
            await read_promptly(member, offset, [content])
        except MemberError:
            content = bytearray(HEAD_BYTES)
            await read_promptly(member, offset, [content])
    else:
        content = bytearray(HEAD_BYTES)
        await read_promptly(member, offset, [content])
    if content.startswith(MAGIC):
        needed = HEADER_BYTES + HEADER.unpack_from(content)[LENGTH_FIELD]
        if len(content) < needed <= SUPERBLOCK_SLOT_BYTES:
            rest = bytearray(SUPERBLOCK_SLOT_BYTES - len(content))
            await read_promptly(member, offset + len(content), [rest])
            content += rest
    return content


def _judge(number: int, content: bytearray) -> Slot:
    ours = content.startswith(MAGIC)
    if not ours and content.count(0) == len(content):
        return Slot(number)
    try:
        superblock = decode_superblock(content, number)
        length = HEADER_BYTES + HEADER.unpack_from(content)[LENGTH_FIELD]
        return Slot(number, superblock, ours=True, length=length)
    except OtherVersionError as error:
        return Slot(number, None, error.message, ours, error)
    except FormatError as error:
        return Slot(number, None, error.message, ours)


def valid_ones(slots: Sequence[Slot]) -> list[Superblock]:
    """Return the valid superblocks of *slots*.

    Of a change of the UUID that was cut between the two, the former one does not count any more.
    """
    valid = [slot.superblock for slot in slots if slot.superblock is not None]
    formers = {made.array_uuid for one in valid if (made := renamed(one.config)) is not None}
    return [one for one in valid if one.array_uuid not in formers]


def newest(slots: tuple[Slot, Slot], path: str) -> Superblock | None:
    """Return the newest valid superblock of *slots*, None if neither slot has a superblock.

    *path* names the member in errors. Raises OtherVersionError if one is intact and cannot be read
    here, FormatError if there are only damaged superblocks, or if the two belong to different
    members.
    """
    for slot in slots:
        if slot.other is not None:
            problem = f"{path}: {slot.other.message}"
            raise OtherVersionError(problem, array_uuid=slot.other.array_uuid)
    valid = valid_ones(slots)
    if len({(s.array_uuid, s.member_uuid) for s in valid}) > 1:
        raise FormatError(f"{path}: its two superblocks belong to different members")
    if valid:
        return max(valid, key=lambda superblock: superblock.sequence)
    damaged = [f"slot {slot.number}: {slot.problem}" for slot in slots if slot.ours]
    if damaged:
        raise FormatError(f"{path}: no superblock is valid ({', '.join(damaged)})")
    return None


async def read_superblock(member: Member) -> Superblock | None:
    """Return the newest valid superblock of *member*, None if it is not a member of any array.

    Raises FormatError as `newest` does, MemberError when neither slot can be read.
    """
    return newest(await read_slots(member), member.path)


# -- writing -------------------------------------------------------------------------------------


async def write_superblock(
    member: Member, superblock: Superblock, content: bytes | None = None
) -> None:
    """Write *superblock*, encoded as *content*, into its slot and flush.

    Raises MemberError, FormatError.
    """
    content = encode_superblock(superblock) if content is None else content
    await member.writev(superblock.slot * SUPERBLOCK_SLOT_BYTES, [content])
    await member.flush()


async def erase_superblocks(member: Member) -> None:
    """Overwrite both slots of *member* with zeros, except the beat, and flush.

    Raises MemberError.
    """
    zeros = bytes(SUPERBLOCK_SLOT_BYTES - BEAT_BYTES)
    for number in range(SUPERBLOCK_SLOTS):
        await member.writev(number * SUPERBLOCK_SLOT_BYTES, [zeros])
    await member.flush()
