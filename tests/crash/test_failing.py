"""Power cuts while a member has failed, and not all superblocks of the others say so yet.

The next mount may take that member for whole. So until they do, the log must have no record that
lacks what the member should have got.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Shape
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.state import Cell, Cut, State
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.layouts.numbers import Stripe
from tests.support.cuts import (
    DECISIONS,
    Step,
    Verdicts,
    left_by,
    piece,
    place,
)

WIDTH = 4
SMALL, BESIDE = piece(0, 512), piece(CHUNK_BYTES + 256, 512)


def crashed(layout: str, failing: int, beside: Step) -> Iterator[str | None]:
    """Do *beside* while the member of cell *failing* fails; crash each moment, yield what broke."""
    begin = end = role = 0

    async def script(player: Player) -> None:
        nonlocal begin, end, role
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        await place(player)
        await trio.sleep(12)  # a resync at the mount would mend the parity
        assert not player.array.context.dirty_bitmap.is_marked(Stripe(0))
        for step in (SMALL, BESIDE):
            await step(player)
        await player.flush()
        begin, role = player.event, player.layout.roles(0)[failing]
        member_set = player.array.member_set
        async with trio.open_nursery() as nursery:
            nursery.start_soon(player.array.fail_disk, role)
            while not member_set.lost:
                await trio.lowlevel.checkpoint()
            assert member_set.unpublished
            await beside(player)
        end = player.event
        assert not member_set.unpublished
        await player.compare()

    shape = Shape(WIDTH, stripes=3, pace="uneven")
    recording = record_workload(Cell(layout, "partial", theme="checkpoints"), 0, script, shape)
    verdicts = Verdicts()
    for index, disks, _event in recording.record.moments():
        for decision in DECISIONS if begin <= index <= end else ():
            state = State(recording.cell, 0, Cut(index, decision))
            images = left_by(list(disks), state, range(WIDTH))
            left = Left(recording, index, images, frozenset({role}))
            yield verdicts.what_breaks(left, state)


@pytest.mark.parametrize(
    ("layout", "failing", "beside"),
    [
        pytest.param("raid5", WIDTH - 1, SMALL, id="write whose parity is lost"),
        pytest.param("raid1", 0, SMALL, id="write with a copy lost"),
        pytest.param("raid5", WIDTH - 1, place, id="checkpoint without a parity"),
    ],
)
def test_a_member_that_failed_may_be_there_at_the_next_mount(
    layout: str, failing: int, beside: Step
) -> None:
    found = list(crashed(layout, failing, beside))
    assert [what for what in found if what is not None] == []
    assert len(found) > 20
