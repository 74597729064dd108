"""A write that is done without suspending passes none that waits in its member's queue."""

from __future__ import annotations

import trio

from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.store.queue import WRITE, CountdownLatch, MemberQueue, Operation

SIZE_BYTES = 512


async def test_neither_a_write_nor_a_batch_overtakes_a_write_that_waits() -> None:
    ram = RamMember(1 << 16, name="ram")
    member = FaultMember(ram)
    member.slow(1.0, ("write",), count=1)
    async with trio.open_nursery() as nursery:
        queue = MemberQueue(member, nursery, trio.current_time)
        older, newer = [b"a" * SIZE_BYTES], [b"b" * SIZE_BYTES]
        latch = CountdownLatch(1)
        queue.submit(Operation(queue, WRITE, 0, older, SIZE_BYTES), latch)
        await trio.sleep(0.1)  # it is on its way to the member
        assert not queue.try_writev(0, newer, SIZE_BYTES)
        assert queue.try_writes([(0, newer, SIZE_BYTES)]) == 0
        await latch.wait()
        assert queue.try_writev(0, newer, SIZE_BYTES)
        assert ram.memory[:SIZE_BYTES] == newer[0]
        queue.close()
