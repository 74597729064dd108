"""The process is stopped for longer than ``io.timeout_s``: no member has failed when it goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raidx_fuse.members.simulated.virtual_time import VirtualClock
from tests.support.hanging import CHUNK, OVER_S, TIMEOUT_S, hanging
from tests.support.spy import SpyRig, noise

ANSWER_S = 0.3  # of each read and write of a round of superblocks
STOPPED_S = 50 * TIMEOUT_S
Operation = Callable[[SpyRig], Awaitable[Any]]

OPERATIONS: dict[str, Operation] = {
    "read": lambda rig: rig.array.read(0, CHUNK),
    "write": lambda rig: rig.array.write(0, noise(6 * CHUNK)),
    "flush": lambda rig: rig.array.flush(),
    "superblocks": lambda rig: rig.array.set("speed_max", "1MiB"),
}


def stop(seconds: float) -> None:
    """Stop the process for *seconds*."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, VirtualClock)
    clock.stop(seconds)


@pytest.mark.parametrize("after_s", [0.1, 0.7])
@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("layout", ["raid0", "raid5"])
async def test_a_member_that_answers_when_it_goes_on_has_not_failed(
    layout: str, kind: str, after_s: float
) -> None:
    rig = await hanging(layout, 4)
    await rig.array.write(0, noise(CHUNK))  # else there is nothing to flush
    for member in rig.members:
        member.slow(ANSWER_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(OPERATIONS[kind], rig)
        await trio.sleep(after_s)
        stop(STOPPED_S)
    await trio.sleep(OVER_S)
    assert not rig.array.member_set.lost
    assert not rig.array.member_set.unpublished
    for member in rig.members:
        assert not member.overdue
        member.clear()


async def test_one_that_does_not_answer_then_is_failed_after_one_limit_more() -> None:
    rig = await hanging("raid5", 4)
    rig.members[1].hang(count=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.array.write, 0, noise(6 * CHUNK))
        await trio.sleep(0.1)
        stop(STOPPED_S)
        await trio.sleep(TIMEOUT_S / 2)
        assert not rig.array.member_set.lost
        await trio.sleep(OVER_S)
        assert rig.array.member_set.lost == {1}
    rig.members[1].clear()
