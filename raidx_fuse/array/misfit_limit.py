"""A member of which too many pages misfit their checksums: it is said, and perhaps it is failed.

What misfits is healed, and costs no member: a tenth of a member full of noise is written again,
and fits. A member is failed only if it does not keep what it was given: if pages that were healed
misfit again. `misfits.max` is a share of the pages read, not a count as `errors.max` is:

    of the pages read within an hour more than misfits.max misfit: an event, a warning
    the same, and AGAIN_MIN of them had been healed: it fails, if it can be spared

It can be spared if redundancy is left, no rebuild is under way, and no page of another member waits
to be healed. `Sums.judge` reads a page again before it counts, with no write in flight: what only a
transfer has changed is no misfit.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from raidx_fuse.layouts.numbers import Role, by_role
from raidx_fuse.loop.tasks import rest
from raidx_fuse.members.unreadable import PAGE_BYTES
from raidx_fuse.settings import SETTINGS
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.queue import MemberQueue

LOOK_EACH_S = 60.0
WITHIN_S = 3600.0
MISFITS_MIN = 8  # fewer say nothing about a share
AGAIN_MIN = 8


class _Sample(NamedTuple):
    """What a member's counters were at a time."""

    at_s: float
    pages_read: int
    misfits: int
    again: int


class MisfitLimit:
    """Looks at the members of *member_set* once a minute.

    *share_max* is the setting `misfits.max`. *exceeded*: by role, (misfits, pages read) within the
    last hour of members that are above it.
    """

    def __init__(self, member_set: MemberSet) -> None:
        self.member_set = member_set
        self.share_max: float = SETTINGS["misfits.max"].default
        self.exceeded: dict[Role, tuple[int, int]] = {}
        self._samples: dict[MemberQueue, deque[_Sample]] = {}

    def limit(self, share_max: float) -> None:
        self.share_max = share_max

    async def run(self) -> None:
        """Look now and then (a background task, until checksums are switched off)."""
        sums = self.member_set.sums
        while sums is self.member_set.sums:
            self.look()
            await rest(LOOK_EACH_S)
        self.look()

    def look(self) -> None:
        """Compare what has misfitted for an hour with the limit; fail what does not keep it."""
        member_set, sums = self.member_set, self.member_set.sums
        if sums is None:
            self.exceeded, self._samples = {}, {}
            return
        now_s, exceeded = member_set.clock(), dict[Role, tuple[int, int]]()
        samples, self._samples = self._samples, {}
        for role, queue in by_role(member_set.queues):
            if queue is None:
                continue
            of_member = self._samples[queue] = samples.get(queue, deque())
            found, again = sums.found_on(role)
            now = _Sample(now_s, queue.read_bytes // PAGE_BYTES, found, again)
            if of_member and found < of_member[-1].misfits:  # the roles have changed
                of_member.clear()
            of_member.append(now)
            while of_member[0].at_s < now_s - WITHIN_S:
                of_member.popleft()
            before = of_member[0]
            misfits, pages = found - before.misfits, now.pages_read - before.pages_read
            if misfits >= MISFITS_MIN and misfits > self.share_max * pages:
                exceeded[role] = misfits, pages
                if again - before.again >= AGAIN_MIN and self._may_fail(role):
                    reason = f"{again - before.again} pages that were healed misfit again"
                    member_set.fail(role, f"{queue.member.path}: {reason}")
        self.exceeded = exceeded

    def _may_fail(self, role: Role) -> bool:
        """Return whether all that the member in *role* holds can be had without it."""
        member_set, sums = self.member_set, self.member_set.sums
        assert sums is not None
        if not member_set.layout.tolerates(member_set.lost | {role}) or member_set.watermarks:
            return False
        if member_set.unreadable.leaving == role:
            return False
        others = {of_role for of_role, _ in (*member_set.unreadable, *sums.suspects)}
        return others <= {role}

    def warnings(self) -> list[str]:
        """Return what `raidx status` says of it."""
        return [f"{path}: {text}" for path, text in self.texts()]

    def texts(self) -> list[tuple[str, str]]:
        """Return path and what is wrong for each member above the limit."""
        found = []
        for role, (misfits, pages) in self.exceeded.items():
            queue = self.member_set.queues[role]
            if queue is not None:
                said = f"{misfits} of {pages} pages read within an hour did not fit their checksums"
                found.append((queue.member.path, said))
        return found
