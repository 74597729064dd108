"""BPU in a running array: queues as they are, data as it should be, settings, reports."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from raidx_fuse.array import statistics
from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.documents import Bpu
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import MEMBER_OVERHEAD_BYTES, Rig
from tests.support.load import opened
from tests.support.spy import spied

CHUNK = 4096
STRIPES = 32
MS = 1e-3


@asynccontextmanager
async def modelled(
    layout: str, width: int, model: str = "ssd", **numbers: str
) -> AsyncIterator[Array]:
    """Run an array, whole and written, over modelled members; nothing is logged."""
    size_bytes = MEMBER_OVERHEAD_BYTES + STRIPES * CHUNK
    disks = [
        model_member(RamMember(size_bytes, name=f"disk{role}"), model, seed=role, **numbers)
        for role in range(width)
    ]
    await create_array(disks, layout, chunk_bytes=CHUNK, name="bpu", now_s=0)
    async with open_array(disks) as array:
        await array.write(0, bytes(array.size_bytes))
        await array.set("journal", "none")
        await array.flush()
        yield array


def bpu_stats(array: Array) -> Bpu:
    """Return what `stats` says of the policy."""
    result = array.stats()["array"]["bpu"]
    assert result is not None
    return result


async def burst(array: Array, seed: int, count: int = 150) -> list[float]:
    """Write and read at random, much of it at once; return when each write was done."""
    rng = random.Random(seed)
    ends: list[float] = []

    async def write(offset: int, size: int) -> None:
        await array.write(offset, rng.randbytes(size))
        ends.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            size = rng.choice((512, CHUNK, 2 * CHUNK, 3 * CHUNK))
            offset = rng.randrange(array.size_bytes - size)
            nursery.start_soon(write, offset, size)
            nursery.start_soon(array.read, rng.randrange(array.size_bytes - CHUNK), CHUNK)
            await trio.sleep(rng.expovariate(20_000))
    return ends


def test_overloaded_it_is_traditional_to_the_microsecond() -> None:
    """With T_heavy 0 every load is heavy; then nothing but the counting may differ."""

    async def main(policy: str) -> tuple[list[float], int, int]:
        async with modelled("raid5", 8) as array:
            await array.set("bpu.t_heavy", "0")
            await array.set("parity.policy", policy)
            ends = await burst(array, seed=3)
            counters = array.context.traffic
            if policy == "bpu":
                bpu = bpu_stats(array)
                assert bpu["decisions"]["heavy"] == bpu["rmw"] + bpu["rcw"] > 100
                assert bpu["extra_pre_reads"] == 0
                assert bpu["touched_longest"] > 0
            return ends, counters.rmw, counters.rcw

    assert run(main, "traditional") == run(main, "bpu")


async def test_the_time_in_each_state_is_exact() -> None:
    """Four reads of one member, 10 ms each one after the other: queues of 4, 3, 2, 1 reads.

    At 4 ms a read by hand, over four members, that is a mean queue of 4, 3, 2, 1 ms.
    """
    numbers = {"read_access_ms": "10", "channels": "1", "read_mb_s": "0", "write_mb_s": "0"}
    async with modelled("raid4", 4, **numbers) as array:
        for key, value in (("t_light", "2ms"), ("t_heavy", "4ms"), ("a_read", "4ms")):
            await array.set(f"bpu.{key}", value)
        await array.set("parity.policy", "bpu")
        start_s = trio.current_time()
        before = statistics.snapshot(array)
        async with trio.open_nursery() as nursery:
            for stripe in range(4):
                nursery.start_soon(array.read, 3 * stripe * 2 * CHUNK, CHUNK)
        assert trio.current_time() - start_s == pytest.approx(40 * MS)
        await trio.sleep(60 * MS)
        bpu = statistics.difference(before, statistics.snapshot(array))["array"]["bpu"]
        assert bpu["seconds"] == {
            "light": pytest.approx(70 * MS),
            "normal": pytest.approx(20 * MS),
            "heavy": pytest.approx(10 * MS),
        }
        assert bpu["of_time"]["normal"] == pytest.approx(0.2)
        assert bpu["state"] == "light"


async def test_explain_shows_the_decision_that_a_write_then_takes() -> None:
    async with modelled("raid5", 6, channels="1") as array:
        await array.set("parity.policy", "bpu")
        await array.set("bpu.a_read", "1ms")
        plan = array.explain(0, 512, True)
        (band,) = plan["stripes"][0]["bands"]
        assert band["kind"] == "rmw"
        assert band["decision"]["delta_pre"] == 2
        data_role = band["writes"][0]["role"]
        where = next(  # another chunk on the same member
            chunk * CHUNK
            for chunk in range(5, 30)
            if array.explain(chunk * CHUNK, 1, False)["stripes"][0]["bands"][0]["reads"][0]["role"]
            == data_role
        )
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(array.read, where, CHUNK)
            await trio.sleep(1e-6)
            before = bpu_stats(array)["decisions"]
            (band,) = array.explain(0, 512, True)["stripes"][0]["bands"]
            assert bpu_stats(array)["decisions"] == before, "looking is not deciding"
            decision = band["decision"]
            assert band["kind"] == decision["chosen"] == "rcw"
            assert decision["rmw"] == {"pre_reads": 2, "longest_s": pytest.approx(3 * MS)}
            assert decision["rcw"] == {"pre_reads": 4, "longest_s": 0.0}
            assert decision["mean_queue_s"] == pytest.approx(0.5 * MS)
            assert len(band["reads"]) == 4
            for word in ("policy bpu", "3.000 ms", "T_skew", "T_pre 3", "rcw"):
                assert word in band["why"]
            await array.write(0, b"x" * 512)
        bpu = bpu_stats(array)
        assert (bpu["rcw"], bpu["against_pre_reads"], bpu["extra_pre_reads"]) == (1, 1, 2)
        assert array.explain(0, 5 * CHUNK, True)["stripes"][0]["bands"][0]["decision"] is None


async def test_thresholds_are_derived_until_they_are_set_by_hand() -> None:
    rig = await spied("raid5", 6, chunk_bytes=CHUNK, slow=True)
    array = rig.array
    await array.set("parity.policy", "bpu")
    assert array.get("bpu.t_pre") == 3
    await burst(array, seed=5)
    light_s = array.get("bpu.t_light")
    assert 4e-6 < light_s < 1e-3, "about what an operation of this SSD takes, of 8 at once"
    assert array.get("bpu.t_heavy") > 10 * light_s
    assert array.get("bpu.t_skew") > 0
    assert await array.set("bpu.t_light", "250us") == 250e-6
    assert await array.set("bpu.t_pre", "1") == 1
    for _ in range(2):
        assert array.get("bpu.t_light") == 250e-6
        assert array.get("bpu.t_pre") == 1
        assert array.context.policies.current is array.context.policies.bpu
        array = await rig.reopen()
    assert await array.set("bpu.t_pre", "auto") == 3
    assert await array.set("bpu.t_light", "auto") != 250e-6
    array = await rig.reopen()
    await array.set("parity.policy", "bpu")
    await burst(array, seed=7)
    assert array.get("bpu.t_light") != 250e-6


async def test_memory_answers_at_once_under_bpu_and_not_past_a_queue() -> None:
    rig = await opened(Rig("raid5", 4))
    array = rig.array
    await array.set("journal", "none")
    await array.write(0, bytes(array.size_bytes))
    await array.set("parity.policy", "bpu")
    before = array.context.traffic.synchronous
    await array.write(0, b"x" * 512)
    assert array.context.traffic.synchronous == before + 1
    assert sum(bpu_stats(array)["decisions"].values()) == 0, "nothing to weigh"
    queue = array.member_set.queues[0]
    assert queue is not None
    await array.set("bpu.a_read", "1ms")
    queue.reads_waiting = 2  # as if it were slow
    array.context.policies.bpu.monitor.refresh()
    await array.write(0, b"y" * 512)
    assert array.context.traffic.synchronous == before + 1
    assert bpu_stats(array)["queued"] == 1
    queue.reads_waiting = 0


async def test_a_queue_is_as_long_as_its_member_takes_for_it_at_so_many_at_a_time() -> None:
    """Three reads of 1 ms each: 3 ms on a member that serves one at a time, 3/8 ms of eight."""
    for channels, expected_s in (("1", 3 * MS), ("8", 3 * MS / 8)):
        async with modelled("raid4", 4, channels=channels) as array:
            await array.set("bpu.a_read", "1ms")
            await array.set("parity.policy", "bpu")
            async with trio.open_nursery() as nursery:
                for stripe in range(3):
                    nursery.start_soon(array.read, 3 * stripe * CHUNK, CHUNK)
                await trio.sleep(1e-6)
                lengths_s = array.context.policies.bpu.monitor.lengths_s
                assert max(lengths_s) == pytest.approx(expected_s)
                nursery.cancel_scope.cancel()


async def test_a_service_time_by_hand_is_of_all_members() -> None:
    """One read waits at each member: its queue is as long as the service time by hand, if any."""
    async with modelled("raid0", 4, channels="1") as array:
        await array.set("parity.policy", "bpu")
        monitor = array.context.policies.bpu.monitor
        for text, by_hand_s in (("2ms", 2 * MS), ("auto", None)):
            await array.set("bpu.a_read", text)
            measured = [q.read_service_s for q in array.member_set.queues if q is not None]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(array.read, 0, 4 * CHUNK)
                await trio.sleep(1e-6)
                assert monitor.lengths_s == [
                    pytest.approx(by_hand_s or service_s) for service_s in measured
                ]
                nursery.cancel_scope.cancel()
        assert array.get("bpu.a_read") == "auto"


async def test_members_that_go_and_come_are_followed() -> None:
    rig = await opened(Rig("raid5", 4, slow=True))
    array = rig.array
    await array.set("parity.policy", "bpu")
    await array.write(0, bytes(array.size_bytes))
    monitor = array.context.policies.bpu.monitor
    gone = array.member_set.queues[2]
    assert gone is not None
    await array.fail_disk(2)
    assert gone.on_change is None
    await burst(array, seed=1, count=30)
    assert monitor.lengths_s[2] == 0
    member = rig.new_member()
    rig.members.append(member)
    job = await array.replace_disk(2, member)
    await array.jobs.wait(job["job"])
    seated = array.member_set.queues[2]
    assert seated is not None
    assert seated.on_change is not None
    await burst(array, seed=2, count=30)
    await array.context.journal.drain()  # what it places lazily waits in the queues, too
    await array.flush()
    assert monitor.lengths_s == [0.0] * 4
    assert monitor.mean_s == 0.0
    await array.set("parity.policy", "traditional")
    assert seated.on_change is None
    assert array.stats()["array"]["bpu"] is None
