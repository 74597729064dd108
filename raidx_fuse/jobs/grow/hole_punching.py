"""Hole punching: the space that a growth vacates goes back to the host file system.

Punching is safe from the moment that the position past the blocks is durable until the growth ends:
a crash finds the new places, and no new block is written to the old ones yet. A read that looked
its place up before the block moved would find zeros; `ArrayContext.reuse_epoch` makes it repeat.
"""

from __future__ import annotations

import logging

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import MemberError
from raidx_fuse.layouts.numbers import CellIndex
from raidx_fuse.layouts.placements.elastic import ElasticLayout

log = logging.getLogger(__name__)

SCAN_STRIPES = 1 << 14


class HolePunching:
    """Punches the places that the growth of *layout* vacates, in rising stripes.

    RAM members are left out: punching would only cost the page faults to get the memory back. A
    member that cannot punch holes, or fails to, is not asked again.
    """

    def __init__(self, context: ArrayContext, layout: ElasticLayout) -> None:
        self.context = context
        self.layout = layout
        self._next = 0  # the first stripe that was not scanned
        self._not_asked: set[int] = set()

    async def give_back(self, end: int) -> None:
        """Punch holes in the old disks below stripe *end*; the position has durably passed it."""
        if not any(map(self._may_ask, range(self.layout.disks_before))):
            self._next = end
        while self._next < end:
            stop = min(end, self._next + SCAN_STRIPES)
            stripes, old, _, chunks = self.layout.moving(self._next, stop)
            live = self.context.written.is_written_many(chunks)
            self.context.note_reuse()
            for disk in range(self.layout.disks_before):
                rows = stripes[live & (old == disk)]
                for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                    if len(run):
                        await self._punch(disk, int(run[0]), len(run))
            self._next = stop

    def _may_ask(self, disk: int) -> bool:
        role = self.layout.role_of(CellIndex(disk), after=True)
        queue = self.context.member_set.queues[role]
        return queue is not None and role not in self._not_asked and queue.member.kind != "ram"

    async def _punch(self, disk: int, row: int, count: int) -> None:
        context = self.context
        role = self.layout.role_of(CellIndex(disk), after=True)
        if not self._may_ask(disk):
            return
        done = False
        try:
            offset = context.data_offset + (row << context.shift)
            done = await context.member_set.punch(role, offset, count << context.shift)
        except MemberError as error:
            log.warning("%s; no more holes are punched there", error)
        if not done:
            self._not_asked.add(role)
