"""Self-healing: after a loss without a hot spare, restore lost chunks onto the others' free chunks.

It does not start immediately: a user may have another disk at hand, and a rebuild onto that disk
keeps the free chunks. The job `restore` starts `restore.after` seconds after the loss, and restores
written chunks first. If the free chunks do not suffice, the array stays degraded, and the check is
repeated each minute.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raidx_fuse.errors import RaidxError
from raidx_fuse.jobs.rebundle.job import EVACUATE, GROW, RESTORE
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.loop.tasks import rest
from raidx_fuse.settings import SETTINGS

if TYPE_CHECKING:
    from raidx_fuse.documents import Restore

log = logging.getLogger(__name__)

RETRY_S = 60.0
LOOK_S = 1.0


class SelfHeal:
    """Starts restorations of *array*, *after_s* seconds after a loss (None: never)."""

    def __init__(self, array: ArrayServices, rebundle: RebundleOperation) -> None:
        self.array = array
        self.rebundle = rebundle
        self.after_s: float | None = SETTINGS["restore.after"].default
        self._lost: frozenset[int] = frozenset()
        self._lost_s = 0.0
        self._looked_s = -RETRY_S
        self._in_vain: object = None
        self._counted: object = None  # for which losses and places *stuck* was counted
        self.stuck = 0  # chunks of lost members without a free chunk

    def set_delay(self, after_s: float | None) -> None:
        """Start restorations *after_s* seconds after a loss from now on; None: never."""
        self.after_s = after_s

    async def run(self) -> None:
        """Background task: restore roles that were lost long enough ago, as far as space allows."""
        while True:
            await rest(LOOK_S)
            try:
                self._begin_if_due()
            except RaidxError as error:
                log.error("redundancy cannot be restored: %s", error)

    def status(self) -> Restore | None:
        """Return what `status` shows while a member is lost, else None."""
        member_set = self.array.member_set
        if not member_set.lost:
            return None
        begins_in_s = None
        if self.after_s is not None and member_set.lost == self._lost:
            begins_in_s = max(0.0, self._lost_s + self.after_s - member_set.clock())
        self._count_stuck()
        return {
            "roles": sorted(member_set.lost),
            "begins_in_seconds": begins_in_s,
            "chunks_without_place": self.stuck,
        }

    def _places(self) -> object:
        """Return what a plan depends on: which roles are lost, and where chunks lie."""
        layout = self.rebundle.layout
        used = tuple(layout.used_chunks())
        return self.array.member_set.lost, layout.counts, used, layout.moves

    def _count_stuck(self) -> None:
        """Count the chunks without a free chunk, unless nothing has changed since."""
        basis = self._places()
        if basis != self._counted:
            self.stuck, self._counted = self.rebundle.plan_restoration().stuck, basis

    def _begin_if_due(self) -> None:
        member_set, jobs = self.array.member_set, self.array.jobs
        membership = self.array.membership
        now = member_set.clock()
        if member_set.lost != self._lost:
            self._lost, self._lost_s, self._looked_s = member_set.lost, now, -RETRY_S
        if not member_set.lost or self.after_s is None or now < self._lost_s + self.after_s:
            return
        if member_set.lost == self.rebundle.declined:
            return
        busy = {job.kind for job in jobs.running()} - {GROW, EVACUATE, "scrub"}
        if (
            busy
            or jobs.closing
            or member_set.watermarks
            or self.array.context.dirty_bitmap.pending_regions()
        ):
            return
        if membership.attaching.locked() or membership.spare_for() is not None:
            return
        if now < self._looked_s + RETRY_S:
            return
        self._looked_s = now
        basis = self._places()
        if basis == self._in_vain:
            return  # nothing has changed since space did not suffice
        moves = self.rebundle.plan_restoration()
        self.stuck, self._counted = moves.stuck, basis
        if len(moves) or not moves.stuck:
            self.rebundle.start(RESTORE)
        else:
            self._in_vain = basis
