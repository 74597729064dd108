"""What the tuner has done while nobody asks: scrubs that are due, flushes of members."""

from __future__ import annotations

from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.tuning import CHUNK, MIB, with_array


def test_a_scrub_runs_when_the_last_one_is_long_ago_over_several_mounts() -> None:
    async def scenario() -> None:
        members = [RamMember(16 * MIB, name=f"ram{number}") for number in range(3)]
        await create_array(members, "raidx-copy", chunk_bytes=CHUNK, name="scrubbed", now_s=0)

        def scrubs(array: Array) -> list[dict[str, Any]]:
            return [job for job in array.jobs.list() if job["kind"] == "scrub"]

        async with open_array(members) as array:
            await array.write(0, bytes(MIB))
            await array.set("tuner.scrub", "1000s")
            await trio.sleep(600)
            assert not scrubs(array)
        async with open_array(members) as array:
            tuner = array.tuner
            assert tuner is not None
            await trio.sleep(300)
            assert not scrubs(array)
            assert 890 <= tuner.status()["seconds_since_scrub"] <= 910
            await trio.sleep(200)
            (job,) = scrubs(array)
            assert (job["state"], job["mismatches"], job["repair"]) == ("done", 0, False)
            assert job["done"] == 2 * MIB
            assert tuner.status()["seconds_since_scrub"] <= 110
            await trio.sleep(500)
            await array.jobs.wait(await array.start_scrub(repair=False))
            await trio.sleep(900)
            assert len(scrubs(array)) == 2, "one by hand counts"
            await array.set("tuner.scrub", "0")
            await trio.sleep(5000)
            assert len(scrubs(array)) == 2

    run(scenario)


def test_no_scrub_begins_while_requests_come_or_where_nothing_can_be_compared() -> None:
    async def scenario(layout: str) -> None:
        members = [RamMember(16 * MIB, name=f"ram{number}") for number in range(3)]
        await create_array(members, layout, chunk_bytes=CHUNK, name="busy", now_s=0)
        async with open_array(members) as array:
            await array.set("tuner.scrub", "60s")
            for _ in range(300):
                await array.write(0, bytes(4096))
                await trio.sleep(0.5)
            assert not array.jobs.list()
            assert array.tuner is not None
            assert array.tuner.state == "waiting"
            await trio.sleep(5)
            assert bool(array.jobs.list()) == (layout == "raidx-copy")

    run(scenario, "raidx-copy")
    run(scenario, "raidx-zero")


def test_what_members_hold_in_caches_is_flushed_in_idle_time() -> None:
    """Overwriting where nothing protects it goes straight to the member; nobody else flushes."""

    async def scenario(array: Array, model: bytearray) -> None:
        await trio.sleep(30)
        queues = [queue for queue in array.member_set.queues if queue is not None]
        for enabled, rest_s, flushed in (("off", 60, False), ("on", 0.5, False), ("on", 3, True)):
            await array.set("tuner.enabled", enabled)
            await array.write(0, bytes(model[:4096]))
            await trio.sleep(rest_s)
            assert (not any(queue.unflushed for queue in queues)) == flushed

    run(with_array, [("hdd", 40), ("ssd", 16)], scenario)
