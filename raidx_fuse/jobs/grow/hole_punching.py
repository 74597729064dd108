"""Hole punching: the space that a growth vacates goes back to the host file system.

Punching is safe from the moment that the position past the blocks is durable until the growth ends:
a crash finds the new places, and no new block is written to the old ones yet. A read that looked
its place up before the block moved would find zeros: it is inside the gate, and is waited for.
"""

from __future__ import annotations

import logging

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import MemberError
from raidx_fuse.jobs.grow.copy import live_moves
from raidx_fuse.layouts.numbers import MemberChunk, Role, role_range
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
        self._not_asked: set[Role] = set()

    async def give_back(self, end: int) -> None:
        """Punch holes in the old disks below stripe *end*; the position has durably passed it."""
        roles = role_range(0, self.layout.members_before)
        if not any(map(self._may_ask, roles)):
            self._next = end
        while self._next < end:
            stop = min(end, self._next + SCAN_STRIPES)
            left: dict[Role, list[MemberChunk]] = {}
            moves = live_moves(self.context, self.layout, self._next, stop)
            for stripe, cell in zip(*moves, strict=True):
                role, chunk = self.layout.place_in(stripe, cell, after=False)
                left.setdefault(role, []).append(chunk)
            await self.context.gate.passed()
            for role in roles:
                rows = np.array(sorted(left.get(role, ())), np.int64)
                for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                    if len(run):
                        await self._punch(role, int(run[0]), len(run))
            self._next = stop

    def _may_ask(self, role: Role) -> bool:
        queue = self.context.member_set.queues[role]
        return queue is not None and role not in self._not_asked and queue.member.kind != "ram"

    async def _punch(self, role: Role, row: int, count: int) -> None:
        context = self.context
        if not self._may_ask(role):
            return
        done = False
        try:
            offset = context.member_set.data_offset + row * context.chunk_bytes
            done = await context.member_set.punch(role, offset, count * context.chunk_bytes)
        except MemberError as error:
            log.warning("%s; no more holes are punched there", error)
        if not done:
            self._not_asked.add(role)
