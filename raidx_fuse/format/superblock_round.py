"""A round of superblocks: write one configuration to all members. Laws: superblock.py."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import trio

from raidx_fuse.errors import FormatError, MemberError
from raidx_fuse.format.configuration.config import (
    MISSING,
    NO_ROLE,
    SPARE,
    ArrayConfig,
    encode_config,
)
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_SLOTS
from raidx_fuse.format.superblock import (
    MINOR,
    Superblock,
    encode_superblock,
    read_slots,
    valid_ones,
    write_superblock,
)
from raidx_fuse.laws import Law, LawError
from raidx_fuse.members.base import Member
from raidx_fuse.tasks import Starter, ends_within, was_stopped

log = logging.getLogger(__name__)


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

    async def look(uuid: str, member: Member) -> None:
        try:
            before[uuid] = await _superblock_to_replace(member, uuid, config)
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
    contents = {uuid: encode_superblock(superblock, body) for uuid, superblock in new.items()}
    writes = [_Write(members[uuid], new[uuid], content) for uuid, content in contents.items()]
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
    done = {uuid for uuid, write in zip(contents, writes, strict=True) if write.done}
    return frozenset(set(members) - done)  # <- committed on every member that is not in here


class _Write:
    """The write of one superblock: *over* is set when it has ended, *done* if it succeeded."""

    def __init__(self, member: Member, superblock: Superblock, content: bytes) -> None:
        self.over = trio.Event()
        self.done = False
        self._member = member
        self._superblock = superblock
        self._content = content
        self._place = superblock.slot * SUPERBLOCK_SLOT_BYTES, len(content)
        self._given_up = False

    async def run(self) -> None:
        """Write the superblock and flush."""
        try:
            if self._member.is_overdue(*self._place):
                why = "an earlier one got no answer and may still land"
                log.error("superblock not written: %s: %s", self._member.path, why)
            else:
                await self._member.check_whole()
                await write_superblock(self._member, self._superblock, self._content)
                self.done = True
        except MemberError as error:
            log.error("superblock not written: %s", error.message)
        finally:
            self.over.set()
            if self._given_up:
                self._member.end_overdue(*self._place)

    def give_up(self) -> None:
        """Mark the write as overdue if it has not ended: it may still take effect."""
        if not self.over.is_set():
            log.error("superblock not written: %s: no answer", self._member.path)
            self._given_up = True
            self._member.note_overdue(*self._place)


def _next_sequence(old: Superblock | None, taken_events: int | None) -> int:
    """Return the sequence number of the superblock after *old*; its parity is that of the slot."""
    if old is None:
        return 0
    is_loose = taken_events is not None and old.events > taken_events
    return old.sequence + (SUPERBLOCK_SLOTS if is_loose else 1)


def _is_spare(config: ArrayConfig, member_uuid: str) -> bool:
    record = config.find(member_uuid)
    return record is not None and record.role == NO_ROLE


def _with_spares_present(config: ArrayConfig, members: Mapping[str, Member]) -> ArrayConfig:
    for record in config.members:
        if record.role == NO_ROLE and record.state in (SPARE, MISSING):
            state = SPARE if record.member_uuid in members else MISSING
            config = config.with_record(replace(record, state=state))
    return config


async def _superblock_to_replace(
    member: Member, member_uuid: str, config: ArrayConfig
) -> Superblock | None:
    """Return the superblock that *member* holds now, None if none is valid (it is then rewritten).

    Raises FormatError for a superblock that must not be overwritten, MemberError.
    """
    slots = await read_slots(member)
    if any(slot.other is not None for slot in slots):
        raise FormatError(f"{member.path}: a superblock of another version appeared on it")
    valid = valid_ones(slots)
    for superblock in valid:
        if (superblock.array_uuid, superblock.member_uuid) != (config.array_uuid, member_uuid):
            raise FormatError(f"{member.path}: another member's superblock appeared on it")
        same_start = superblock.config.starts == config.starts
        ours = (
            superblock.config.extends(config) if same_start else config.extends(superblock.config)
        )
        if not ours and not _is_spare(config, member_uuid):
            raise FormatError(f"{member.path}: it was started without the others meanwhile")
    return max(valid, key=lambda superblock: superblock.sequence, default=None)
