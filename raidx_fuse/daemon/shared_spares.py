"""Spares that the arrays of a mount share: one goes to the array that lacks one.

A spare holds no data. It leaves its array, and joins the other one; the mount keeps it open and
locked meanwhile. If the power goes in between, it is a spare of none, and both arrays are as they
were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from raidx_fuse.array.array import Array
from raidx_fuse.errors import RaidxError
from raidx_fuse.jobs.replace import successors
from raidx_fuse.loop.tasks import rest
from raidx_fuse.members.base import Member
from raidx_fuse.settings import SPARES_SHARED

LOOK_S = 5.0

log = logging.getLogger(__name__)


class _Found(NamedTuple):
    """A spare that an array lacks: the smallest is the best."""

    size_bytes: int
    path: str
    member_uuid: str
    giver: Array


class SharedSpares:
    """Gives spares of *arrays* to others of them; *tell* is told of which array, and what."""

    def __init__(self, arrays: Sequence[Array], tell: Callable[[Array, str, str], object]) -> None:
        self._arrays = arrays
        self._tell = tell
        self._refused: set[tuple[str, str]] = set()  # (array, path of a spare) that did not join

    async def run(self) -> None:
        """Look now and then (a background task of the mount)."""
        while True:
            await rest(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Give one spare to each array that lacks one, if another array has one that fits."""
        for needy in self._arrays:
            found = None if needy.read_only else min(self._fitting(needy), default=None)
            if found is not None:
                await self._give(found, needy)

    async def _give(self, found: _Found, needy: Array) -> None:
        giver, path = found.giver, found.path
        try:
            # Who joins for a role is a spare for a moment, while this is held.
            async with giver.membership.attaching:
                if found not in self._fitting(needy):
                    return
                member = await giver.membership.release_spare(found.member_uuid)
        except RaidxError as error:
            log.warning("%s stays with %s: %s", path, giver.name, error)
            self._refused.add((needy.uuid, path))
            return
        if member is None:
            return  # it has failed, or was removed, meanwhile
        try:
            await needy.add_spare(member)
        except RaidxError as error:
            log.warning("%s does not go to %s: %s", path, needy.name, error)
            self._refused.add((needy.uuid, path))
            await self._give_back(member, giver)
        else:
            self._tell(needy, path, f"spare {path} of {giver.name} has joined")

    async def _give_back(self, member: Member, giver: Array) -> None:
        """Let *member*, which has left *giver* and joined no other array, be its spare again."""
        try:
            await giver.add_spare(member)
        except RaidxError as error:
            self._tell(giver, member.path, f"spare {member.path} has left, and is lost: {error}")
            for hook in giver.on_release:
                hook(member)

    def _fitting(self, needy: Array) -> Iterator[_Found]:
        """Yield the spares that *needy* lacks."""
        for giver in self._arrays:
            member_set = giver.member_set
            is_shared = giver.get(SPARES_SHARED) == "on"
            if giver is needy or not is_shared or giver.read_only:
                continue
            if member_set.lost or giver.jobs.running():
                continue  # it may need the spare itself
            taken = successors(member_set.config)
            for uuid, spare in member_set.spares.items():
                is_free = uuid not in taken and (needy.uuid, spare.path) not in self._refused
                if is_free and needy.membership.lacks_spare_of(spare.size_bytes):
                    yield _Found(spare.size_bytes, spare.path, uuid, giver)
