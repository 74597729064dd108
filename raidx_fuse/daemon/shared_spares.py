"""Spares that the arrays of a mount share: one goes to the array that lacks one.

A spare holds no data, so it leaves its array as by `raidx remove-disk` and joins the other one as
by `raidx add-disk --as spare`. If the power goes in between, it is a spare of none, and both arrays
are as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.errors import RaidxError
from raidx_fuse.loop.tasks import rest
from raidx_fuse.settings import SPARES_SHARED

LOOK_S = 5.0

log = logging.getLogger(__name__)


class SharedSpares:
    """Gives spares of *arrays* to others of them; *tell* is told of which array, and what."""

    def __init__(
        self, arrays: Sequence[ArrayCommands], tell: Callable[[Array, str, str], object]
    ) -> None:
        self._arrays = arrays
        self._tell = tell
        self._refused: set[tuple[str, str]] = set()  # (array, spare) that did not join

    async def run(self) -> None:
        """Look now and then (a background task of the mount)."""
        while True:
            await rest(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Give one spare to each array that lacks one, if another array has one that fits."""
        for needy in self._arrays:
            if needy.array.read_only:
                continue
            found = min(self._fitting(needy.array), key=lambda one: one[0], default=None)
            if found is None:
                continue
            _, path, giver = found
            try:
                await giver.remove_disk(path)
            except RaidxError as error:
                log.warning("%s stays with %s: %s", path, giver.array.name, error)
                self._refused.add((needy.array.uuid, path))
                continue
            try:
                await needy.add_disk([path], role="spare")
            except RaidxError as error:
                log.warning("%s does not go to %s: %s", path, needy.array.name, error)
                self._refused.add((needy.array.uuid, path))
                await self._give_back(path, giver)
            else:
                self._tell(needy.array, path, f"spare {path} of {giver.array.name} has joined")

    async def _give_back(self, path: str, giver: ArrayCommands) -> None:
        """Let *path*, which has left *giver* and joined no other array, be its spare again."""
        try:
            await giver.add_disk([path], role="spare")
        except RaidxError as error:
            self._tell(giver.array, path, f"spare {path} has left, and joined no array: {error}")

    def _fitting(self, needy: Array) -> Iterator[tuple[int, str, ArrayCommands]]:
        """Yield size, path and array of the spares that *needy* lacks: the smallest is best."""
        for giver in self._arrays:
            member_set = giver.array.member_set
            is_shared = giver.array.get(SPARES_SHARED) == "on"
            if giver.array is needy or not is_shared or giver.array.read_only:
                continue
            if member_set.lost or giver.array.jobs.running():
                continue  # it may need the spare itself
            for spare in member_set.spares.values():
                is_new = (needy.uuid, spare.path) not in self._refused
                if is_new and needy.membership.lacks_spare_of(spare.size_bytes):
                    yield spare.size_bytes, spare.path, giver
