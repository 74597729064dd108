"""The superblocks of a member, wherever they are: in front, or at its end (superblock.py, law 4).

    what is in front                                  what counts
    a superblock that is valid                        the one in front
    damaged, zeros or noise; a valid one at the end   the one at the end
    the same, and a signature of somebody else        the one at the end; the member is left out
    a valid one, of another member than at the end    none: a copy was written over one of them

A front that is valid is never older than the end by a round that was committed, so its word is
enough. The end lies where the size of the member puts it. A member that was enlarged has it where
its size was before: the configurations of the other members say that size. If they do not, because
no other member has its front, the end is searched when the user asks (`searched_size`). While its
end moves (jobs/grow/larger_members.py) it has two: the newest superblock counts.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from raidx_fuse.errors import FormatError, MemberError, OtherVersionError
from raidx_fuse.format.regions import (
    END_GAP_BYTES,
    PAGE_BYTES,
    SUPERBLOCK_BYTES,
    SUPERBLOCK_SLOT_BYTES,
    SUPERBLOCK_SLOTS,
    end_offset,
)
from raidx_fuse.format.signature import Signature, clear_front, find_in_front
from raidx_fuse.format.superblock import (
    MAGIC,
    Slot,
    Superblock,
    encode_superblock,
    end_on,
    newest,
    read_slots,
    valid_ones,
)
from raidx_fuse.layouts.numbers import Offset
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.heartbeat import HEARTBEAT_BYTES
from raidx_fuse.members.threads import read_promptly


@dataclass(frozen=True, slots=True)
class Copies:
    """The slots of one member, and the *superblock* that counts, None if there is none.

    * *front*: both slots; *end*: both, empty if the member has none there, or none was found.
    * *from_end*: the superblock is the one at the end, because there is none in front.
    * *foreign*: the signatures of others in front.
    """

    front: tuple[Slot, Slot]
    end: tuple[Slot, ...]
    superblock: Superblock | None
    from_end: bool
    foreign: Sequence[Signature]

    @property
    def contradict(self) -> bool:
        """Whether front and end are of different members: a copy was written over one of them."""
        front, end = (
            {
                (slot.superblock.array_uuid, slot.superblock.member_uuid)
                for slot in slots
                if slot.superblock
            }
            for slots in (self.front, self.end)
        )
        return bool(front and end) and not front & end

    @property
    def end_is_lost(self) -> bool:
        """Whether the member has a place for superblocks at its end, and none is valid there."""
        if self.superblock is None:
            return False
        record = self.superblock.config.find(self.superblock.member_uuid)
        has_place = record is not None and self.superblock.config.end_of(record) is not None
        return has_place and all(slot.superblock is None for slot in self.end)

    def problems(self) -> list[str]:
        """Return in words which superblocks are lost, if there is one that counts."""
        if self.superblock is None:
            return []
        texts: list[str] = []
        if self.from_end:
            states = {slot.state for slot in self.front}
            what = "zeros" if states == {"empty"} else "other content or damage"
            texts.append(
                f"its front has no superblock but {what}, the one at its end is used; to write it "
                "again: raidx check --repair-superblocks; what else was overwritten: raidx scrub"
            )
        for slot in (*self.front, *self.end):
            if not (self.from_end if slot in self.front else self.end_is_lost):
                what = f"is damaged ({slot.problem})" if slot.ours else "has other content"
                if slot.state in ("damaged", "other"):
                    texts.append(f"superblock {slot.name} {what}, the other one is used")
        if self.end_is_lost:
            texts.append(
                "the superblocks at its end are lost, those in front are used; a mount writes them "
                "again, or: raidx check --repair-superblocks"
            )
        return texts


async def read_copies(member: Member, sizes: Collection[int] = ()) -> Copies:
    """Return the superblocks of *member*; *sizes* are those that it may have had, in bytes.

    Raises as `newest`, and MemberError if nothing can be read.
    """
    unread: MemberError | None = None
    try:
        front = await read_slots(member, searched=True)
    except MemberError as error:
        unread, front = error, _unread(error)
    foreign = find_in_front(front)
    if valid_ones(front) or any(slot.other is not None for slot in front):
        superblock = newest(front, member.path)
        assert superblock is not None
        end = end_on(member, superblock)
        return Copies(front, await _slots_at(member, end), superblock, False, foreign)
    best: tuple[Superblock, tuple[Slot, ...]] | None = None
    ends = ends_for(member, sizes)
    for end in ends:  # it grows
        slots = await _slots_at(member, end)
        if valid_ones(slots) or any(slot.other is not None for slot in slots):
            superblock = newest(slots, member.path)
            assert superblock is not None
            own = end_on(member, superblock)
            ends += [] if own is None or own in ends else [own]
            if best is None or superblock.sequence > best[0].sequence:
                best = superblock, slots
    if best is not None:
        return Copies(front, best[1], best[0], True, foreign)
    if unread is not None:
        raise unread
    return Copies(front, (), newest(front, member.path), False, foreign)


Unreadable = MemberError | FormatError


async def copies_of(
    members: Sequence[Member], *, searched: bool = False
) -> list[Copies | Unreadable]:
    """Return the superblocks of each of *members*, or why it has none that can be read.

    One that has become larger has its end where the size that others know says; if that is not so,
    it is *searched*. Raises OtherVersionError.
    """
    found = [await _look(member) for member in members]
    known = [one.superblock for one in found if isinstance(one, Copies) and one.superblock]
    sizes = {record.size_bytes for one in known for record in one.config.members}
    arrays = {one.array_uuid for one in known}
    for number, member in enumerate(members):
        if has_none(found[number]) and ends_for(member, sizes) != ends_for(member):
            found[number] = await _look(member, sizes)
        if searched and has_none(found[number]):
            size = await searched_size(member, arrays)
            found[number] = found[number] if size is None else await _look(member, {size})
    return found


def has_none(found: Copies | Unreadable) -> bool:
    """Return whether a member has no superblock, or none that can be read."""
    return not isinstance(found, Copies) or found.superblock is None


async def _look(member: Member, sizes: Collection[int] = ()) -> Copies | Unreadable:
    try:
        return await read_copies(member, sizes)
    except OtherVersionError:
        raise
    except (MemberError, FormatError) as error:
        return error


def ends_for(member: Member, sizes: Collection[int] = ()) -> list[Offset]:
    """Return where *member* may have superblocks at its end, by its size and by *sizes*."""
    found = [end_offset(size) for size in (member.size_bytes, *sizes)]
    fits = [end for end in found if end is not None and end + SUPERBLOCK_BYTES <= member.size_bytes]
    return list(dict.fromkeys(fits))


async def searched_size(member: Member, arrays: Collection[str] = ()) -> int | None:
    """Return the size that *member* had when the superblocks at its end were written, or None.

    The largest one: it is searched from the end backwards, in two pages of each MiB that holds
    anything. If *arrays* are given, only for a superblock of one of them; so is a member of another
    array that lies inside passed over, as the offset in its superblock is another one. Raises
    MemberError if the member does not answer.
    """
    unit, latest = END_GAP_BYTES, member.size_bytes // END_GAP_BYTES - 1
    for begin, length in reversed(list(member.data_extents(0, member.size_bytes))):
        last = min((begin + length - 1) // unit, latest - 1)
        for number in range(last, begin // unit - 1, -1):
            latest = number  # extents may share a MiB
            end = end_offset((number + 2) * unit)
            if end is None or not await _has_magic(member, end):
                continue
            found = valid_ones(await _slots_at(member, end))
            if any(not arrays or one.array_uuid in arrays for one in found):
                return (number + 2) * unit
    return None


async def _has_magic(member: Member, begin: Offset) -> bool:
    """Return whether a slot of those that begin at *begin* looks like one of ours."""
    for number in range(SUPERBLOCK_SLOTS):
        page = bytearray(PAGE_BYTES)
        try:
            await read_promptly(member, begin + number * SUPERBLOCK_SLOT_BYTES, [page])
        except MemberError as error:
            if error.errno == errno.EIO:  # one unreadable place of many
                continue
            raise
        if page.startswith(MAGIC):
            return True
    return False


async def _slots_at(member: Member, end: Offset | None) -> tuple[Slot, ...]:
    if end is None:
        return ()
    try:
        return await read_slots(member, end=end)
    except MemberError as error:
        return _unread(error, end)


def _unread(error: MemberError, begin: int = 0) -> tuple[Slot, Slot]:
    first, second = (
        Slot(n, problem=error.message, ours=True, offset=begin + n * SUPERBLOCK_SLOT_BYTES)
        for n in range(SUPERBLOCK_SLOTS)
    )
    return first, second


async def read_superblock(member: Member, sizes: Collection[int] = ()) -> Superblock | None:
    """Return the superblock of *member* that counts, None if it is not a member of any array.

    Raises as `read_copies`.
    """
    return (await read_copies(member, sizes)).superblock


async def readable_superblock(member: Member) -> Superblock | None:
    """Return the superblock of *member* that counts, None if none can be read."""
    with suppress(FormatError, MemberError):
        return await read_superblock(member)
    return None


# -- repairing -----------------------------------------------------------------------------------


def lost_slots(copies: Copies) -> list[Slot]:
    """Return the slots of a member that can be written again, as the other end has the same slot.

    And those of a front without any superblock of which the end has none either: what is there is
    not ours. A slot that has a superblock is never among them, so that a repair which is cut leaves
    at least what the damage left.
    """
    found: list[Slot] = []
    for slot in (*copies.front, *copies.end) if copies.superblock is not None else ():
        is_front = slot in copies.front
        has_other = _counterpart(copies, slot) is not None
        if slot.superblock is None and (has_other or (is_front and copies.from_end)):
            found.append(slot)
    return found


def _counterpart(copies: Copies, slot: Slot) -> Superblock | None:
    """Return the superblock of the member in the same slot at the other end, or None."""
    mine = copies.superblock
    other = copies.end if slot in copies.front else copies.front
    found = other[slot.number].superblock if other else None
    if mine is None or found is None:
        return None
    own = (found.array_uuid, found.member_uuid) == (mine.array_uuid, mine.member_uuid)
    return found if own else None


async def repair(member: Member, copies: Copies) -> None:
    """Write the `lost_slots` of *member* durably; in front, signatures of others go.

    Raises MemberError.
    """
    for slot in lost_slots(copies):
        begin = Offset(slot.offset - slot.number * SUPERBLOCK_SLOT_BYTES)
        found, content = _counterpart(copies, slot), b""
        if found is not None:
            content = encode_superblock(found, end=begin or None)
        # The rest of the slot was overwritten as well. Its last page may be a heartbeat.
        await member.writev(slot.offset, [content.ljust(SUPERBLOCK_SLOT_BYTES - PAGE_BYTES, b"\0")])
    await member.flush()
    if copies.foreign:
        await clear_front(member, find_in_front(await read_slots(member, searched=True)))


# -- erasing -------------------------------------------------------------------------------------


async def erase_superblocks(member: Member, *, whatever: bool = False) -> None:
    """Overwrite all slots of *member* with zeros, except the heartbeat, and flush.

    The end goes first: a power cut between the two leaves a member, not a front that is to be
    repaired. A front in which no slot is ours stays, as it may be somebody's, unless it is to go
    *whatever* it is. Raises MemberError.
    """
    await erase_ends(member)
    if not whatever and not any(slot.ours for slot in await read_slots(member)):
        return
    zeros = bytes(SUPERBLOCK_SLOT_BYTES - HEARTBEAT_BYTES)
    for number in range(SUPERBLOCK_SLOTS):
        await member.writev(number * SUPERBLOCK_SLOT_BYTES, [zeros])
    await member.flush()


async def erase_ends(member: Member, kept_bytes: int = 0) -> None:
    """Overwrite the superblocks at the end of *member* with zeros, and flush if there were any.

    Also those where its front says that its end was. What is below *kept_bytes* stays, whatever it
    is. Raises MemberError.
    """
    erased = False
    for slot in await end_slots(member):
        if slot.ours and slot.offset >= kept_bytes:
            await member.writev(slot.offset, [bytes(SUPERBLOCK_SLOT_BYTES)])
            erased = True
    if erased:
        await member.flush()


async def end_slots(member: Member) -> list[Slot]:
    """Return the slots at the end of *member*: by its size, and by what its front says."""
    sizes: list[int] = []
    with suppress(MemberError, OtherVersionError):
        for superblock in valid_ones(await read_slots(member)):
            record = superblock.config.find(superblock.member_uuid)
            sizes += [] if record is None else [record.size_bytes]
    return [slot for end in ends_for(member, sizes) for slot in await _slots_at(member, end)]
