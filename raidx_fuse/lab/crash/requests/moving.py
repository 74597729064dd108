"""Moves of chunks of bundles (a rebundle), perhaps while a write runs."""

from __future__ import annotations

from typing import Protocol

import trio

from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.lab.crash.history import History
from raidx_fuse.lab.crash.requests.together import Requester
from raidx_fuse.layouts.numbers import MemberChunk, Role
from raidx_fuse.layouts.placements.bundled import BundleLayout


class Moving(Requester, Protocol):
    """What moves need of the workload."""

    stripes: int

    @property
    def history(self) -> History:
        """The history of the workload."""
        ...

    @property
    def event(self) -> int:
        """Number of the next event of the record."""
        ...


async def move_some(player: Moving) -> None:
    """Move some chunks of bundles, perhaps while a write runs."""
    rng, layout = player.rng, player.array.context.layout
    assert isinstance(layout, BundleLayout)
    mover = ChunkMover(player.array.context, layout)
    span = player.history.begin("move", player.event)
    async with trio.open_nursery() as nursery:
        if rng.random() < 0.4:
            nursery.start_soon(player.write, *player.place())
        for _ in range(rng.randint(1, 4)):
            cell = rng.randrange(player.stripes * layout.length)
            role = Role(rng.randrange(layout.width))
            moves = mover.exchange(cell, rng.randrange(layout.cells))
            if rng.random() < 0.5 and len(free := layout.free_chunks(role)):
                moves = [(cell, role, MemberChunk(int(rng.choice(free.tolist()))))]
            if mover.problem(moves) is None:
                await mover.move(moves)
    player.history.end(span, player.event)
