"""An idle array wakes its process at most once a second, whatever its tasks are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.loop.tasks import tick_after
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.member import Holder, NbdMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.array_volumes import open_volumes
from raidx_fuse.pool.hotspots.balancer import JobMover, watched
from raidx_fuse.pool.pool import Pool
from tests.support.nbd_server import MemoryServer

MIB = 1 << 20
IDLE_S = 60


class WakeUps(trio.abc.Instrument):
    """Notes the times at which tasks run: in virtual time, all of a wake-up have the same.

    *counts* says which tasks count.
    """

    def __init__(self, counts: Callable[[trio.lowlevel.Task], bool]) -> None:
        self.counts = counts
        self.at_s: set[float] = set()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.counts(task):
            self.at_s.add(trio.current_time())


async def wake_ups_of(
    members: Sequence[Member],
    layout: str,
    counts: Callable[[trio.lowlevel.Task], bool] = lambda task: True,
    then: Callable[[], None] = lambda: None,
) -> int:
    """Write to a new array of *members*; return how often it wakes in IDLE_S seconds after that.

    *then* is called before they begin.
    """
    await create_array(members, layout, name="disk", now_s=0)
    await trio.sleep(0.37)
    async with open_array(members) as array, open_volumes(array) as volumes:
        await trio.sleep(0.22)  # tasks begin at different times
        async with watched([volumes], JobMover(Pool([volumes]))):
            await trio.sleep(0.17)
            await array.write(5000, b"x" * 100_000)
            await trio.sleep(20)  # the log is placed, regions are cleaned
            then()
            await trio.sleep(5)
            seen = WakeUps(counts)
            trio.lowlevel.add_instrument(seen)
            await trio.sleep(IDLE_S)
            trio.lowlevel.remove_instrument(seen)
    return len(seen.at_s)


@pytest.mark.parametrize("layout", ["raid5", "raidx-parity"])
def test_an_idle_array_wakes_once_a_second(layout: str) -> None:
    members = [RamMember(16 * MIB, name=f"ram{number}") for number in range(5)]
    assert 5 < run(lambda: wake_ups_of(members, layout)) <= IDLE_S + 1


@pytest.mark.parametrize("all_there", [True, False])
def test_an_idle_array_over_exports_wakes_once_a_second(all_there: bool) -> None:
    """The answers to its heartbeats come a moment later; nothing wakes for them.

    While a server is gone, connecting again is tried when the process wakes anyway. What was under
    way is dropped once, after a wait of its own.
    """

    def process(seen: trio.lowlevel.Task) -> bool:
        return "MemoryPipe" not in seen.name  # the servers are other processes

    async def main() -> int:
        servers = [MemoryServer(16 * MIB, delay_s=0.001 * (1 + number)) for number in range(3)]
        holder = Holder(b"h" * 16, "process 1 on alpha")
        members = [
            NbdMember(f"nbd://rig/{number}", server.dial, holder=holder)
            for number, server in enumerate(servers)
        ]
        gone = (lambda: None) if all_there else servers[2].kill
        seen = await wake_ups_of(members, "raid5", process, gone)
        for member in members:
            member.close()
        return seen

    assert 5 < run(main) <= IDLE_S + 1 + (not all_there)


async def test_ticks_are_shared_and_short_delays_kept() -> None:
    await trio.sleep(2.3)
    assert tick_after(1.0) == 3.0
    assert tick_after(1.4) == 4.0
    assert tick_after(10.0) == 12.0
    assert tick_after(0.25) == pytest.approx(2.55)
