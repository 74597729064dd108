"""A round of superblocks: one configuration to all members, side by side; laws in superblock.py."""

from __future__ import annotations

import logging
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
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import (
    MINOR,
    Superblock,
    encode_superblock,
    read_slots,
    write_superblock,
)
from raidx_fuse.members.base import Member
from raidx_fuse.members.overdue import came_back, give_up, is_overdue
from raidx_fuse.tasks import Starter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a round of superblocks waits for a member: *timeout_s* for reading, and writing.

    What is given up goes on in *nursery*, which outlives the round: called back it might still
    land, and nobody would know.
    """

    timeout_s: float
    nursery: Starter


async def write_config(
    members: Mapping[str, Member], config: ArrayConfig, patience: Patience | None = None
) -> frozenset[str]:
    """Write *config* to *members* (by member UUID), flushed, all side by side; the commit point.

    Returns the UUIDs of members that failed, said why in the log, and may hold the old or the new
    configuration: the caller fails them by another round. Without *patience* it waits for ever.
    A member whose slot an overdue write may still reach fails. Members without a superblock get
    their first one; `prepare_member` cleared them. What is written differs from *config* in two
    ways: spares are spare if they are in *members* and missing if not; and the lineage goes on from
    the last round of this start, with an entry if *config* leaves out whom that round reached.
    Raises FormatError when the configuration is too large.
    """
    config = _with_spares_present(config, members)
    assert set(members) <= config.reached(), "a round never reaches the excluded"
    before: dict[str, Superblock | None] = {}

    async def look(uuid: str, member: Member) -> None:
        try:
            before[uuid] = await _superblock_to_replace(member, uuid, config)
        except (MemberError, FormatError) as error:
            log.error("superblock not written: %s", error.message)

    async with trio.open_nursery() as nursery:
        if patience is not None:
            nursery.cancel_scope.deadline = trio.current_time() + patience.timeout_s
        for uuid, member in members.items():
            nursery.start_soon(look, uuid, member)
    base = min((s.events for s in before.values() if s is not None), default=0)
    olds = [old for old in before.values() if old is not None]
    minor = max((old.minor for old in olds), default=MINOR)
    running = [old.config for old in olds if old.config.starts == config.starts]
    if running:
        config = config.parting_from(max(running, key=lambda older: older.events))
    new = {
        uuid: Superblock(uuid, old.sequence + 1 if old is not None else 0, base, config, minor)
        for uuid, old in before.items()
    }
    body = encode_config(config)
    # All before any write: what does not fit is refused before any member changes.
    contents = {uuid: encode_superblock(superblock, body) for uuid, superblock in new.items()}
    writes = [_Write(members[uuid], new[uuid], content) for uuid, content in contents.items()]
    if patience is None:
        async with trio.open_nursery() as nursery:
            for write in writes:
                nursery.start_soon(write.run)
    else:
        with trio.move_on_after(patience.timeout_s):
            for write in writes:
                patience.nursery.start_soon(write.run)
            for write in writes:
                await write.over.wait()
        for write in writes:
            write.give_up()
    done = {uuid for uuid, write in zip(contents, writes, strict=True) if write.done}
    return frozenset(set(members) - done)  # <- committed on every member that is not in here


class _Write:
    """One superblock on its way to *member*: *over* when it has ended, *done* if it ended well."""

    def __init__(self, member: Member, superblock: Superblock, content: bytes) -> None:
        self.over = trio.Event()
        self.done = False
        self._member = member
        self._superblock = superblock
        self._content = content
        self._place = superblock.slot * SUPERBLOCK_SLOT_BYTES, len(content)
        self._given_up = False

    async def run(self) -> None:
        """Write it, flushed."""
        try:
            if is_overdue(self._member, *self._place):
                why = "an earlier one got no answer and may still land"
                log.error("superblock not written: %s: %s", self._member.path, why)
            else:
                await write_superblock(self._member, self._superblock, self._content)
                self.done = True
        except MemberError as error:
            log.error("superblock not written: %s", error.message)
        finally:
            self.over.set()
            if self._given_up:
                came_back(self._member, *self._place)

    def give_up(self) -> None:
        """If it has not ended: nobody waits for it any more, but it may still land."""
        if not self.over.is_set():
            log.error("superblock not written: %s: no answer", self._member.path)
            self._given_up = True
            give_up(self._member, *self._place)


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
    """Return what *member* holds now; None if nothing valid (it is healed then).

    Raises FormatError for a superblock that is not ours to overwrite, MemberError.
    """
    slots = await read_slots(member)
    if any(slot.other_version for slot in slots):
        raise FormatError(f"{member.path}: a superblock of another version appeared on it")
    valid = [slot.superblock for slot in slots if slot.superblock is not None]
    for superblock in valid:
        if (superblock.array_uuid, superblock.member_uuid) != (config.array_uuid, member_uuid):
            raise FormatError(f"{member.path}: another member's superblock appeared on it")
        same_start = superblock.config.starts == config.starts
        ours = (
            superblock.config.extends(config) if same_start else config.extends(superblock.config)
        )
        if not ours and not _is_spare(config, member_uuid):
            raise FormatError(f"{member.path}: it went on without the others meanwhile")
    return max(valid, key=lambda superblock: superblock.sequence, default=None)
