"""Superblocks: two slots on every member, written alternately; the newest valid one counts.

    0 ... 128 KiB: both slots    ...    both slots again (`ArrayConfig.end_of`) | 1 to 2 MiB free

Members of 64 MiB and more have the slots a second time, at their end. What finds them is in
both_ends.py: the end counts where the front has no superblock.

Laws (FORMAT.md, "Superblock" and "Update protocol"):
 1. A write goes to the slot that does not hold the newest valid superblock: sequence s is in slot
    s mod 2. So a torn write leaves the old configuration readable.
 2. `write_config` reads before it writes. It never overwrites the superblock of another array or of
    another member: a disk that was exchanged while the array runs fails instead.
 3. The commit point of a change is the return of `write_config`, a round. A round is complete, or
    the next round fails the members that missed it, before anything that depends on the round is
    acknowledged. `base_events` is the lowest event counter that a member is sure to have had
    durably when the round began.
 4. A round writes the slot at the end, then the same slot in front, and one flush covers both. The
    other slot of either end is not touched, and holds the round before, flushed. So a power cut
    before the flush, whatever it keeps or tears, leaves the newest or the one before at either end;
    and after it, when the round counts as written, both ends have it: an end alone never
    says less than what was committed. No flush between the two is needed: which of them a cut keeps
    is of no use to know, as neither counts before the flush. The order is for a process that dies
    between them.
 5. A front without a valid superblock is not written while the end has one of a later round than
    the first: what lies there may be somebody's, and `check --repair-superblocks` writes it when
    the user says so. The end alone then follows law 1.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import crc32c
import trio

from raidx_fuse.errors import FormatError, MemberError, OtherVersionError, Reason
from raidx_fuse.format.configuration.config import (
    MISSING,
    NO_ROLE,
    SPARE,
    ArrayConfig,
    decode_config,
    encode_config,
    uuid_bytes,
    uuid_text,
)
from raidx_fuse.format.configuration.saved_jobs import renamed
from raidx_fuse.format.regions import (
    COUNTER_MAX,
    PAGE_BYTES,
    SUPERBLOCK_BYTES,
    SUPERBLOCK_SLOT_BYTES,
    SUPERBLOCK_SLOTS,
)
from raidx_fuse.laws import Law, LawError
from raidx_fuse.layouts.numbers import Offset
from raidx_fuse.loop.tasks import Starter, ends_within, was_stopped
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.heartbeat import HEARTBEAT_BYTES
from raidx_fuse.members.threads import read_promptly

MAGIC = b"RAIDX-SB"
MAJOR = 1
"""Increases when older programs must not use the member at all."""
MINOR = 0
"""Increases when fields are added; a program refuses a member of a higher one than it knows."""

HEADER = struct.Struct("<8sHHIIIQQQ16s16sQQ32s")
"""magic, major, minor, crc, length, slot, events, base events, sequence, array, member, offset,
size, zeros."""
HEADER_BYTES = 128
CRC_OFFSET = 12
LENGTH_FIELD, OFFSET_FIELD = 4, 11
FIRST_SEQUENCE = 0
HEAD_BYTES = 8 << 10  # the part of a slot that is read first: enough for a dozen members
SEARCHED_BYTES = (40 << 10, HEAD_BYTES)
"""What is searched for signatures of others in an intact slot: JFS and UDF begin at 32 KiB, and no
format that is known leaves both superblocks intact and has its magic number elsewhere."""
BODY_BYTES_MAX = SUPERBLOCK_SLOT_BYTES - HEADER_BYTES - HEARTBEAT_BYTES
assert HEADER.size == HEADER_BYTES
log = logging.getLogger(__name__)


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
        return self.sequence % SUPERBLOCK_SLOTS

    @property
    def array_uuid(self) -> str:
        return self.config.array_uuid

    @property
    def events(self) -> int:
        return self.config.events


@dataclass(frozen=True, slots=True)
class Slot:
    """The content of a slot: a *superblock*, or a *problem* in words, or neither (empty).

    *offset* is where it lies on the member, in bytes; 0 and 64 KiB are in front.
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
    offset: int = 0

    @property
    def name(self) -> str:
        return (
            f"slot {self.number}" if self.offset < SUPERBLOCK_BYTES else f"end slot {self.number}"
        )

    @property
    def state(self) -> str:
        """Return one word: valid, damaged, other (not a superblock) or empty (zeros first)."""
        if self.superblock is not None:
            return "valid"
        if self.ours:
            return "damaged"
        return "empty" if self.problem is None else "other"


def encode_superblock(
    superblock: Superblock,
    body: bytes | None = None,
    end: Offset | None = None,
    size_bytes: int | None = None,
) -> bytes:
    """Return the bytes of a slot, whole pages. Raises FormatError if they do not fit.

    *body* is the encoded configuration, if the caller has it already. *end*: where the slots at the
    end of the member begin, if it is for the one there; *size_bytes*: the size of the member that
    this follows from, if it is not that of its record.
    """
    if body is None:
        body = encode_config(superblock.config)
    if len(body) > BODY_BYTES_MAX:
        raise FormatError(
            f"the configuration of {len(body)} bytes does not fit into a superblock "
            f"({BODY_BYTES_MAX} bytes)",
            reason=Reason.METADATA_FULL,
        )
    counters = superblock.events, superblock.base_events, superblock.sequence
    uuids = uuid_bytes(superblock.array_uuid), uuid_bytes(superblock.member_uuid)
    fields = [MAGIC, MAJOR, superblock.minor, 0, len(body), superblock.slot, *counters, *uuids]
    fields += (0, 0, b"") if end is None else _end_fields(superblock, end, size_bytes)
    fields[3] = crc32c.crc32c(body, crc32c.crc32c(HEADER.pack(*fields)))
    content = HEADER.pack(*fields) + body
    content += bytes(-len(content) % PAGE_BYTES)
    assert decode_superblock(content, superblock.slot, end) == superblock
    return content


def _end_fields(
    superblock: Superblock, end: Offset, size_bytes: int | None
) -> tuple[int, int, bytes]:
    record = superblock.config.find(superblock.member_uuid)
    assert record is not None
    size = record.size_bytes if size_bytes is None else size_bytes
    return end + superblock.slot * SUPERBLOCK_SLOT_BYTES, size, b""


def decode_superblock(
    content: bytes | bytearray, slot: int, end: Offset | None = None
) -> Superblock:
    """Return the superblock that *content*, the bytes of *slot*, holds.

    *end*: where the slots at the end of the member begin, if it is the one there; None: in front.
    Raises FormatError naming the first condition of FORMAT.md that does not hold.
    """
    if not content.startswith(MAGIC):
        raise FormatError("no magic", reason=Reason.NOT_A_MEMBER)
    if len(content) < HEADER_BYTES:
        raise FormatError("no room for a header")
    length = HEADER.unpack_from(content)[LENGTH_FIELD]
    if length > len(content) - HEADER_BYTES:
        raise FormatError(f"length {length} is beyond the slot")
    return _decode(bytes(content[: HEADER_BYTES + length]), slot, end)


@lru_cache(maxsize=128)  # every round reads the superblocks of the round before it
def _decode(content: bytes, slot: int, end: Offset | None) -> Superblock:
    header = HEADER.unpack_from(content)
    _magic, major, minor, crc, _length, in_slot, events, base, sequence, array, member = header[:11]
    offset, size, zeros = header[11:]
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
    if offset != (0 if end is None else end + slot * SUPERBLOCK_SLOT_BYTES):
        raise FormatError(f"belongs to byte {offset} of its member (misdirected write)")
    if max(events, base, sequence) > COUNTER_MAX:
        raise FormatError("its event or sequence counter is out of range")
    try:
        config = decode_config(body)
    except FormatError as error:
        raise OtherVersionError(error.message, array_uuid=uuid) from error
    if config.events != events or uuid_bytes(config.array_uuid) != array:
        raise FormatError("header and configuration differ")
    superblock = Superblock(uuid_text(member), sequence, base, config, minor)
    record = config.find(superblock.member_uuid)
    if record is None:
        raise FormatError("the configuration does not name this member")
    expected = None if end is None else config.end_of(replace(record, size_bytes=size))
    if expected != end or (end is None and size):
        raise FormatError("its place is not at the end of this member, or inside the data")
    return superblock


# -- reading -------------------------------------------------------------------------------------


async def read_slots(
    member: Member, *, searched: bool = False, end: Offset | None = None
) -> tuple[Slot, Slot]:
    """Read both slots in front, or those that begin at *end*.

    If *searched* with the *content* in which others leave signatures. One unreadable slot counts as
    damaged; raises MemberError if both are.
    """
    slots: list[Slot] = []
    errors: list[MemberError] = []
    for number in range(SUPERBLOCK_SLOTS):
        offset = (end or 0) + number * SUPERBLOCK_SLOT_BYTES
        if offset + SUPERBLOCK_SLOT_BYTES > member.size_bytes:
            slots.append(Slot(number, problem="beyond the member's end", offset=offset))
            continue
        try:
            buffer = await _read_slot(member, offset, SEARCHED_BYTES[number] if searched else 0)
        except MemberError as error:
            errors.append(error)
            slots.append(Slot(number, problem=error.message, ours=True, offset=offset))
            continue
        slot = replace(_judge(number, buffer, end), offset=offset)
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
    content = bytearray(max(searched_bytes, HEAD_BYTES))
    try:
        await read_promptly(member, offset, [content])
    except MemberError:
        if len(content) == HEAD_BYTES:
            raise
        content = bytearray(HEAD_BYTES)
        await read_promptly(member, offset, [content])
    if content.startswith(MAGIC):
        needed = HEADER_BYTES + HEADER.unpack_from(content)[LENGTH_FIELD]
        if len(content) < needed <= SUPERBLOCK_SLOT_BYTES:
            rest = bytearray(SUPERBLOCK_SLOT_BYTES - len(content))
            await read_promptly(member, offset + len(content), [rest])
            content += rest
    return content


def _judge(number: int, content: bytearray, end: Offset | None) -> Slot:
    ours = content.startswith(MAGIC)
    if ours and end is not None:  # at the end, what has our magic may be content of a user
        ours = HEADER.unpack_from(content)[OFFSET_FIELD] == end + number * SUPERBLOCK_SLOT_BYTES
    if not ours and content.count(0) == len(content):
        return Slot(number)
    try:
        superblock = decode_superblock(content, number, end)
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


def newest(slots: Sequence[Slot], path: str) -> Superblock | None:
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
        raise FormatError(f"{path}: its superblocks belong to different members")
    if valid:
        return max(valid, key=lambda superblock: superblock.sequence)
    damaged = [f"{slot.name}: {slot.problem}" for slot in slots if slot.ours]
    if damaged:
        raise FormatError(f"{path}: no superblock is valid ({', '.join(damaged)})")
    return None


# -- writing -------------------------------------------------------------------------------------


Places = Sequence[tuple[Offset, bytes]]


def places_of(
    member: Member, superblock: Superblock, body: bytes | None = None, *, in_front: bool = True
) -> Places:
    """Return (offset, content) of the slots that *superblock* goes to, in the order of writing.

    Those are the slot at the end of *member*, if it has one, then the slot in front, unless it is
    to stay as it is (*in_front*). *body* as for `encode_superblock`. Raises FormatError.
    """
    places: list[tuple[Offset, bytes]] = []
    end = end_on(member, superblock)
    at = superblock.slot * SUPERBLOCK_SLOT_BYTES
    if end is not None:
        places.append((Offset(end + at), encode_superblock(superblock, body, end)))
    if in_front:
        places.append((Offset(at), encode_superblock(superblock, body)))
    return places


def end_on(member: Member, superblock: Superblock) -> Offset | None:
    """Return where the slots at the end of *member* begin that *superblock* names, None if nowhere.

    A member that is shorter now may have lost them.
    """
    record = superblock.config.find(superblock.member_uuid)
    end = None if record is None else superblock.config.end_of(record)
    return None if end is None or end + SUPERBLOCK_BYTES > member.size_bytes else end


async def write_superblock(
    member: Member, superblock: Superblock, places: Places | None = None
) -> None:
    """Write *superblock* to its *places* (`places_of`), and flush.

    Raises MemberError, FormatError.
    """
    for offset, content in places_of(member, superblock) if places is None else places:
        await member.writev(offset, [content])
    await member.flush()


@dataclass(frozen=True, slots=True)
class Patience:
    """The timeout of a round of superblocks: *timeout_s* for reading, and again for writing.

    A write that times out continues in *nursery*, which outlives the round. It is not cancelled,
    because a cancelled write may still take effect without a trace (members/base.py).
    """

    timeout_s: float
    nursery: Starter


async def write_config(
    members: Mapping[str, Member],
    config: ArrayConfig,
    patience: Patience | None = None,
    reached_events: int | None = None,
    taken_events: int | None = None,
) -> frozenset[str]:
    """Write *config* to *members* (by member UUID) concurrently and flush: the commit point.

    Returns the UUIDs of the members that failed. They may hold the old or the new configuration, so
    the caller must exclude them by another round. The reasons are in the program's log. A member
    also fails if an overdue write may still change its slot. Members without a superblock get their
    first one (`prepare_member` cleared them). Without *patience* there is no timeout.

    *reached_events* is the event counter of the last round that all members took, None if that is
    not known. A member that stays may have no newer superblock, or none that a power cut leaves:
    `base_events` is not above it.

    *taken_events* is the event counter of the last round that ended without an error, or of the
    start. A newer superblock of a member may not be durable there: it is replaced, in its slot,
    because a power cut may leave only the one in the other slot.

    The configuration that is written differs from *config* in two points:

    * A spare has the state "spare" if it is in *members*, otherwise "missing".
    * The lineage continues that of the last round of this start, with a new entry if *config*
      excludes a member that this round reached.

    Raises FormatError, before any write, if the configuration is too large, and LawError.
    """
    config = _with_spares_present(config, members)
    if not set(members) <= config.reached():
        raise LawError(Law.REACHED, f"the round {config.events}")
    before: dict[str, Superblock | None] = {}
    without_front: set[str] = set()

    async def look(uuid: str, member: Member) -> None:
        try:
            old, is_lost = await _superblock_to_replace(member, uuid, config)
            before[uuid] = old
            without_front.update([uuid] if is_lost else ())
        except (MemberError, FormatError) as error:
            log.error("superblock not written: %s", error.message)

    timeout_s = math.inf if patience is None else patience.timeout_s
    while True:
        with trio.move_on_after(timeout_s) as looking:
            async with trio.open_nursery() as nursery:
                for uuid, member in members.items():
                    if uuid not in before:
                        nursery.start_soon(look, uuid, member)
        if not (looking.cancelled_caught and was_stopped(looking.deadline)):
            break
    base = min((s.events for s in before.values() if s is not None), default=0)
    if reached_events is not None:
        base = min(base, reached_events)
    olds = [old for old in before.values() if old is not None]
    minor = max((old.minor for old in olds), default=MINOR)
    running = [old.config for old in olds if old.config.starts == config.starts]
    if running:
        newest = max(running, key=lambda older: older.events)
        if newest.events > config.events:
            raise LawError(Law.EVENTS, f"the round {config.events} after {newest.events}")
        config = config.parting_from(newest)
    new = {
        uuid: Superblock(uuid, _next_sequence(old, taken_events), base, config, minor)
        for uuid, old in before.items()
    }
    body = encode_config(config)
    # Encoded before any write: a configuration that does not fit changes no member.
    places = {
        uuid: places_of(members[uuid], superblock, body, in_front=uuid not in without_front)
        for uuid, superblock in new.items()
    }
    writes = [_Write(members[uuid], new[uuid], of_member) for uuid, of_member in places.items()]
    if patience is None:
        async with trio.open_nursery() as nursery:
            for write in writes:
                nursery.start_soon(write.run)
    else:
        for write in writes:
            patience.nursery.start_soon(write.run)

        async def all_over() -> None:
            for write in writes:
                await write.over.wait()

        await ends_within(patience.timeout_s, all_over)
        for write in writes:
            write.give_up()
    done = {uuid for uuid, write in zip(places, writes, strict=True) if write.done}
    return frozenset(set(members) - done)  # <- committed on every member that is not in here


class _Write:
    """The write of one superblock: *over* is set when it has ended, *done* if it succeeded."""

    def __init__(self, member: Member, superblock: Superblock, places: Places) -> None:
        self.over = trio.Event()
        self.done = False
        self._member = member
        self._superblock = superblock
        self._places = places
        self._given_up = False

    async def run(self) -> None:
        """Write the superblock to its places and flush."""
        member = self._member
        try:
            if any(member.is_overdue(offset, len(content)) for offset, content in self._places):
                why = "an earlier one got no answer and may still land"
                log.error("superblock not written: %s: %s", member.path, why)
            else:
                await member.check_whole()
                await write_superblock(member, self._superblock, self._places)
                self.done = True
        except MemberError as error:
            log.error("superblock not written: %s", error.message)
        finally:
            self.over.set()
            for offset, content in self._places if self._given_up else ():
                member.end_overdue(offset, len(content))

    def give_up(self) -> None:
        """Mark the write as overdue if it has not ended: it may still take effect."""
        if not self.over.is_set():
            log.error("superblock not written: %s: no answer", self._member.path)
            self._given_up = True
            for offset, content in self._places:
                self._member.note_overdue(offset, len(content))


def _next_sequence(old: Superblock | None, taken_events: int | None) -> int:
    """Return the sequence number of the superblock after *old*; its parity is that of the slot."""
    if old is None:
        return FIRST_SEQUENCE
    is_loose = taken_events is not None and old.events > taken_events
    return old.sequence + (SUPERBLOCK_SLOTS if is_loose else 1)


def _with_spares_present(config: ArrayConfig, members: Mapping[str, Member]) -> ArrayConfig:
    for record in config.members:
        if record.role == NO_ROLE and record.state in (SPARE, MISSING):
            state = SPARE if record.member_uuid in members else MISSING
            config = config.with_record(replace(record, state=state))
    return config


async def _superblock_to_replace(
    member: Member, member_uuid: str, config: ArrayConfig
) -> tuple[Superblock | None, bool]:
    """Return the superblock that *member* holds now, and whether its front is lost (law 5).

    None if none is valid: it is then rewritten. Raises FormatError for a superblock that must not
    be overwritten, MemberError.
    """
    valid, record, unread = [], config.find(member_uuid), None
    end = None if record is None else config.end_of(record)
    try:
        valid = _ours(await read_slots(member), member.path)
    except MemberError as error:
        unread = error
    is_lost = not valid
    if is_lost and end is not None:
        valid = _ours(await read_slots(member, end=end), member.path)
    if unread is not None and not valid:
        raise unread
    is_spare = record is not None and record.role == NO_ROLE
    for superblock in valid:
        if (superblock.array_uuid, superblock.member_uuid) != (config.array_uuid, member_uuid):
            raise FormatError(f"{member.path}: another member's superblock appeared on it")
        same_start = superblock.config.starts == config.starts
        ours = (
            superblock.config.extends(config) if same_start else config.extends(superblock.config)
        )
        if not ours and not is_spare:
            raise FormatError(f"{member.path}: it was started without the others meanwhile")
    old = max(valid, key=lambda superblock: superblock.sequence, default=None)
    return old, is_lost and old is not None and old.sequence > FIRST_SEQUENCE


def _ours(slots: Sequence[Slot], path: str) -> list[Superblock]:
    """Return the valid superblocks of *slots*. Raises FormatError if one is of another version."""
    if any(slot.other is not None for slot in slots):
        raise FormatError(f"{path}: a superblock of another version appeared on it")
    return valid_ones(slots)
