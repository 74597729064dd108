"""Tables of checksums follow the roles when an array gets other members (jobs/reshape.py).

    before     slots become free that others will get; the copies that will have other places are
               made there, while requests go on
    gate       what changed since is copied, too, and flushed, until nothing is left
    swap       roles, and where their tables lie, in memory
    publish    the superblocks, which say where the tables lie

A copy is made where nothing counts by the superblocks of before: on a new member, or in the slot of
a member that leaves, whose pages hold nothing any more. A new table has its slots from the swap on;
what a former one has left there does not fit its number, and counts as never written. So whichever
superblocks a crash leaves, each table has all its copies; only what was saved between swap and
publish may have overwritten one of them, and the others are there still.

Where the data become longer, so do the tables, and where the layout tolerates more, there are more
of them: all are copied to another region, which is emptied before, and holds nothing that counts by
the superblocks of before. If the former one lies before the data, it is room for them again, and
emptied: an old configuration that is restored would believe it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from raidx_fuse.errors import MemberError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.sums import (
    VACANT,
    StoredSums,
    reassigned,
    sums_of,
    with_room,
    with_tables,
)
from raidx_fuse.format.pages import zero_range
from raidx_fuse.format.regions import NO_REGION, Region, Regions
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.numbers import Role, role_range
from raidx_fuse.members.base import Member
from raidx_fuse.store.io_tuples import PAGE_BYTES
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.sum_memory import Hold
from raidx_fuse.store.sum_tables import TableCopy

log = logging.getLogger(__name__)


class SumsRoom(NamedTuple):
    """The *regions* of each member, with room for *copies* of each table of checksums."""

    regions: Regions
    copies: int


CameFrom = Sequence[int | None]
"""By new role, the role that its member had; None for a new member, VACANT without a member."""


def came_from_roles(config: ArrayConfig, width: int = 0, joined: Collection[Role] = ()) -> CameFrom:
    """Return whence the members of *width* roles (those of *config*, if it has more) come.

    Roles keep their numbers. *joined* get new members; others without a member are vacant.
    """
    held = config.roles()
    return [
        None if role in joined else role if role in held else VACANT
        for role in role_range(0, max(width, config.width))
    ]


def _kept(came_from: CameFrom) -> list[int | None]:
    """Return by new role whose table it keeps; None: its table is empty."""
    return [None if old == VACANT else old for old in came_from]


class MovedSums:
    """The checksums of the array of *member_set*, whose roles will be those of *came_from*.

    None: they stay. The *newcomers* are new members, in the order of their roles. *room*: what the
    members will have, None: it stays.
    """

    def __init__(
        self,
        member_set: MemberSet,
        came_from: CameFrom | None,
        newcomers: Sequence[Member],
        room: SumsRoom | None = None,
    ) -> None:
        self.member_set = member_set
        if room is not None and came_from is None:
            came_from = came_from_roles(member_set.config)
        self.came_from = came_from
        self._regions = member_set.config.regions if room is None else room.regions
        self._is_elsewhere = self._regions.sums != member_set.config.regions.sums
        self._newcomers = newcomers
        self._stored: StoredSums | None = None
        self._first: StoredSums | None = None
        self._copies: list[TableCopy] = []
        self._leaving: list[Role] = []
        self._kept: list[Hold] = []
        before = sums_of(member_set.config)
        if before is None or came_from is None or member_set.sums is None:
            return
        copies = before.copies if room is None else room.copies
        tail = min(before.tail, self._regions.sum_tail_bytes(copies))
        self._stored = reassigned(replace(before, copies=copies, tail=tail), came_from)
        if self._is_elsewhere:
            self._copies = self._new_copies(before, self._stored, came_from)
        else:
            self._first = with_room(before, self._stored, came_from)
            self._copies = self._new_copies(self._first, self._stored, came_from)
            self._leaving = [
                role for role in role_range(0, member_set.config.width) if role not in came_from
            ]

    def _new_copies(
        self, before: StoredSums, after: StoredSums, came_from: CameFrom
    ) -> list[TableCopy]:
        joined = [role for role, old in enumerate(came_from) if old is None]
        newcomers = dict(zip(joined, self._newcomers, strict=True))
        copies = []
        for role, old in enumerate(_kept(came_from)):
            if old is None:
                continue
            kept = set(before.tables[old].slots)
            for holder, slot in after.tables[role].slots:
                was = came_from[holder]  # no table lies on a vacant role
                if was is None:
                    write = _writer(newcomers[holder])
                elif (was, slot) in kept and not self._is_elsewhere:
                    continue
                else:
                    write = self._writer_of(Role(was))
                copies.append(TableCopy(Role(old), self._regions.sum_table_offset(slot), write))
        return copies

    def _writer_of(self, role: Role) -> Callable[[int, list[bytes]], Awaitable[None]]:
        async def write(offset: int, content: list[bytes]) -> None:
            size = len(content) * PAGE_BYTES
            await self.member_set.write([(role, offset, content, size)], background=True)

        return write

    async def prepare(self) -> None:
        """Make the copies, while requests go on. Raises RaidxError."""
        member_set, sums = self.member_set, self.member_set.sums
        if sums is None or not self._copies:
            return
        if self._is_elsewhere:
            for member in member_set.present().values():
                await zero_range(member, *self._regions.sums)
                await member.flush()
        for role in self._leaving:
            self._kept.append(await sums.tables.keep(role))  # for `undo`: others take its places
        first, before, roles = self._first, sums.tables.stored, came_from_roles(member_set.config)
        if first is not None and first != before:
            copies = self._new_copies(before, first, roles)
            await sums.tables.copy_tables(copies)
            async with sums.tables.resting():
                await sums.tables.copy_tables(copies)
                await member_set.flush()
                sums.adopt(first, _kept(roles))
                member_set.change(lambda config: with_tables(config, first))
            await member_set.update(lambda config: config)
        await sums.tables.copy_tables(self._copies)

    def undo(self) -> None:
        """Have the tables of roles that do not leave after all lie on all their members again."""
        member_set, sums = self.member_set, self.member_set.sums
        if sums is not None and self._leaving:
            roles = came_from_roles(member_set.config)
            whole = reassigned(sums.tables.stored, roles)
            sums.adopt(whole, _kept(roles))
            member_set.change(lambda config: with_tables(config, whole))
            for role in self._leaving:
                sums.tables.save_again(role)
            self._release()
            member_set.publish_soon()

    def _release(self) -> None:
        for hold in self._kept:
            if self.member_set.sums is not None:
                self.member_set.sums.tables.memory.release(hold)
        self._kept = []

    def due(self) -> bool:
        """Return whether, with the gate closed, `catch_up` has to come before the swap."""
        sums = self.member_set.sums
        return sums is not None and bool(self._copies) and not sums.tables.are_copied(self._copies)

    async def catch_up(self) -> None:
        """Copy what changed since, durably. Raises RaidxError."""
        sums = self.member_set.sums
        if sums is not None:
            async with sums.tables.resting():
                await sums.tables.copy_tables(self._copies)
                for member in self._newcomers:
                    await member.flush()
                await self.member_set.flush()

    def take(self) -> None:
        """Have the tables where they are by now, in memory, after the swap, without an await."""
        member_set, stored = self.member_set, self._stored
        if stored is not None and self.came_from is not None:
            if member_set.sums is not None:
                member_set.sums.adopt(stored, _kept(self.came_from), self._regions)
                self._release()
            member_set.change(lambda config: with_tables(config, stored))


async def empty_former(array: ArrayServices, former: Region) -> None:
    """Let the region *former*, where tables were, read as zeros, if no data are there, nor tables.

    Where that fails, it is left.
    """
    member_set = array.member_set
    if former == NO_REGION or former.end > member_set.data_offset:
        return
    async with array.membership.attaching:  # sums=on may take it
        if member_set.config.regions.sums.offset == former.offset:
            return
        for member in member_set.present().values():
            try:
                await zero_range(member, *former)
            except MemberError as error:
                log.warning("%s", error)


def _writer(member: Member) -> Callable[[int, list[bytes]], Awaitable[None]]:
    async def write(offset: int, content: list[bytes]) -> None:
        await member.writev(offset, content)

    return write
