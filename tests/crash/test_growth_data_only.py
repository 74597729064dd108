"""Power cuts while an array grows and the log gets data without its parity (growth_position.py).

A stripe is written as data alone before its blocks move and after their new places are durable. In
between, its parity goes with the data. Moments are crashed with members lost (test_streams.py).
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Shape
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.themes.shapes import change_of
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.cuts import crashed_moments, flush, place

WIDTH, STRIPES = 5, 6  # four data cells: two are no large piece
SLOW_BYTES = 1024  # a second, so that each window is looked at


class Growing:
    """Grows the array by a disk; writes a part of two chunks of each stripe whenever it moves.

    *alone*: how often data went to the log without its parity while the growth was under way, by
    what the stripe was: as before, moved, and moved durably.
    """

    def __init__(self, turns: bool) -> None:
        self.turns = turns
        self.begin = 0
        self.alone = {"before": 0, "unsaved": 0, "saved": 0}

    async def script(self, player: Player) -> None:
        """Fill the array and let it grow; with *turns* the growth is cancelled half way."""
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        await place(player)
        array = player.array
        array.grow_operation.set_granule(1)
        disk = player.new_disk()
        player.roles.holders.append((player.event, WIDTH, disk))
        self.begin = player.event
        span = player.timeline.begin("grow live", player.event)
        await array.grow([player.disks[disk]], "live")
        seen = -1
        while isinstance(job := change_of(player), Grow):
            job.window = 1
            job.limit(None, SLOW_BYTES)
            migrated = job.layout.migrated
            if migrated == seen:
                await trio.sleep(0.05)
                continue
            seen = migrated
            await place(player)  # else the log has parities of the stripes, and takes more
            await self._write_around(player, migrated)
            if migrated % 3 == 2:
                await job.growth.save()
                await self._write_around(player, migrated)
            if migrated % 2:
                await flush(player)
            if migrated == STRIPES // 2:
                await place(player)
                if self.turns:
                    job.cancel()
        player.history.end(span, player.event)
        await flush(player)
        await player.compare()

    async def _write_around(self, player: Player, migrated: int) -> None:
        """Write to both chunks of the stripes beside the position."""
        growth, unsettled = player.array.context.growth, player.array.context.journal.unsettled
        for stripe in map(Stripe, range(max(0, migrated - 2), min(STRIPES, migrated + 2))):
            if growth is None or player.array.context.growth is None:
                return
            await player.write(((WIDTH - 1) * stripe + 1) * CHUNK_BYTES - 700, 1400)
            if stripe in unsettled:
                is_saved = stripe < min(growth.saved, growth.layout.migrated)
                was = "unsaved" if stripe in growth.unsaved else "saved" if is_saved else "before"
                self.alone[was] += 1


def grown(layout: str, turns: bool) -> tuple[Recording, Growing]:
    """Return the record of a growth, and what was done meanwhile."""
    growing = Growing(turns)
    shape = Shape(WIDTH, stripes=STRIPES, pace="inline")
    cell = Cell(layout, "partial", theme="growth")
    return record_workload(cell, 0, growing.script, shape), growing


@pytest.mark.parametrize(
    ("layout", "turns"), [("raid4", False), ("raid5", True)], ids=["to its end", "cancelled"]
)
def test_data_alone_is_safe_before_blocks_move_and_once_that_is_durable(
    layout: str, turns: bool
) -> None:
    recording, growing = grown(layout, turns)
    found = list(crashed_moments(recording, growing.begin, WIDTH, each=7))
    assert [what for what in found if what is not None] == []
    assert growing.alone["before"]
    assert growing.alone["saved"]
    assert not growing.alone["unsaved"]
    assert len(found) > 50


def narrowed() -> tuple[Recording, int]:
    """Return the record of a growth that is cancelled while users write, and where that begins.

    The writes come after the log was emptied for the narrower shape, and before the locks are taken
    for it. In rdp the cells have other numbers in that shape.
    """
    begin = 0

    async def script(player: Player) -> None:
        nonlocal begin
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        await place(player)
        array = player.array
        disk = player.new_disk()
        player.roles.holders.append((player.event, array.member_set.config.width, disk))
        span = player.timeline.begin("grow live", player.event)
        await array.grow([player.disks[disk]], "live")
        job = change_of(player)
        assert job is not None
        job.cancel()
        journal = array.context.journal
        drain = journal.drain

        async def drain_and_write(*then: Any) -> None:
            nonlocal begin
            await drain(*then)
            if begin:  # with the gate closed, no user can write any more
                return
            begin = player.event
            for number in range(3):
                await player.write(number * player.stripe_bytes + 3 * CHUNK_BYTES, 1024)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journal, "drain", drain_and_write)
            await job.finished.wait()
        assert begin
        assert array.context.growth is None
        player.history.end(span, player.event)
        await player.write(4 * CHUNK_BYTES, 1024)  # the same stripes, in the narrower shape
        await flush(player)
        await place(player)
        await player.compare()

    player = Player(Cell("rdp", "partial", theme="growth"), 0, "growth", Shape(WIDTH, STRIPES))
    return run(player.play, script, 0, False, seed=0), begin


def test_data_that_comes_while_the_array_narrows_has_its_parity() -> None:
    found = list(crashed_moments(*narrowed(), WIDTH, each=5))
    assert [what for what in found if what is not None] == []
    assert len(found) > 50
