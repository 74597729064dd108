"""Whether the members of a running array are still there, looked at once a minute.

I/O and flushes notice a member that has become shorter or is gone (`MemberSet.check_whole`). An
idle array would not: a member's file may be cut off or deleted for weeks. A member that has become
shorter, or a device that is gone, is failed. A path that does not lead to the member any more, or a
deleted file, is only reported: the open file has its content still, and renames are legitimate.
A member that returns is taken back by membership.py.
"""

from __future__ import annotations

import logging

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.loop.tasks import rest
from raidx_fuse.store.member_set import MemberSet

LOOK_EACH_S = 60.0

log = logging.getLogger(__name__)


class Presence:
    """Looks at the members of *member_set*; *problems* has one text for each path that is wrong."""

    def __init__(self, member_set: MemberSet) -> None:
        self.member_set = member_set
        self.problems: dict[str, str] = {}  # by path

    async def run(self) -> None:
        while True:
            await rest(LOOK_EACH_S)
            await self.look()

    async def look(self) -> None:
        """Look at every member now, each for at most ``io.timeout_s``."""
        try:
            await self.member_set.check_whole(wait=True)
        except RaidxError as error:  # it cannot be spared
            log.error("%s", error)
        found: dict[str, str] = {}
        for member in list(self.member_set.present().values()):
            problem = None
            with trio.move_on_after(self.member_set.io_timeout_s):
                try:
                    problem = await member.path_problem()
                except RaidxError as error:
                    problem = error.message
            if problem is not None:
                found[member.path] = problem
        for path in found.keys() - self.problems.keys():
            log.warning("%s: %s", path, found[path])
        self.problems = found
