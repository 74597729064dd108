"""A power cut after the first write to a stripe that a rebuild skipped as unwritten.

The write's first record lacks the member that is being rebuilt; the write notices and commits
again. Should the superblocks call the member whole in between, a cut there would replay the first
record alone, and leave the member without its part.
"""

from __future__ import annotations

import math

import pytest
import trio

from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Shape
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.state import Cell, Cut, State
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.settings import MODES
from tests.support.cuts import Verdicts

ROLE = 1
SEEDS = 1
DECISIONS = ("d", "k", "s1")


async def first_write_while_rebuilt(player: Player) -> None:
    """Replace a member of an array that holds nothing; meanwhile write for the first time."""
    begin = player.event
    player.roles.out.append((ROLE, begin, math.inf))
    await player.array.fail_disk(ROLE)
    disk = player.new_disk()
    async with trio.open_nursery() as nursery:
        job = (await player.array.replace_disk(ROLE, player.disks[disk]))["job"]
        nursery.start_soon(player.write, player.stripe_bytes, CHUNK_BYTES)
        nursery.start_soon(player.write, 2 * player.stripe_bytes + 512, 1024)
    assert (await player.array.jobs.wait(job))["state"] == "done"
    player.roles.out[:] = [(ROLE, begin, player.event)]
    player.roles.holders.append((player.event, ROLE, disk))
    await player.flush()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("layout", "width"), [("raid5", 3), ("rdp", 4)])
def test_a_member_is_called_whole_only_when_no_record_lacks_it(
    layout: str, width: int, mode: str
) -> None:
    cell = Cell(layout, mode)
    crashed = 0
    for seed in range(SEEDS):
        shape = Shape(width, pace="uneven")
        recording = record_workload(cell, seed, first_write_while_rebuilt, shape)
        (_, begin, end) = recording.roles.out[0]
        verdicts = Verdicts()
        for index, disks, _event in recording.record.moments():
            if not begin < index <= end:
                continue
            for decision in DECISIONS:
                state = State(cell, seed, Cut(index, decision))
                cuts = zip(disks, state.cut.decisions(disks), strict=True)
                images = {number: disk.crash(cut) for number, (disk, cut) in enumerate(cuts)}
                images = {n: image for n, image in images.items() if is_member(image)}
                assert verdicts.what_breaks(Left(recording, index, images), state) is None
                crashed += 1
    assert crashed >= SEEDS * 20 * len(DECISIONS)
