"""What the tuner has done while nobody asks: scrubs that are due, flushes of members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.registry import LAYOUTS
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import ram_array
from tests.support.tuning import CHUNK, MIB, made

WIDTHS = {"raid1": 2, "raidx-zero": 3, "raidx-copy": 3, "xcode": 5, "pcode": 4, "upc": 4}


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"raid0", "raidx-zero", "mcpod"}))
async def test_a_scrub_runs_when_the_last_one_is_long_ago_over_several_mounts(layout: str) -> None:
    width = WIDTHS.get(layout, 5)
    members = await ram_array(layout, width, 16 * MIB, chunk_bytes=CHUNK)

    def scrubs(array: Array) -> list[Mapping[str, Any]]:
        return [job for job in array.jobs.list() if job["kind"] == "scrub"]

    async with open_array(members) as array:
        await array.write(0, bytes(MIB))
        assert array.get("scrub_each_s") == 7 * 86400
        name = "tuner.scrub" if layout == "raidx-copy" else "scrub_each_s"
        await array.set(name, "500s")  # the earlier name means the same
        assert array.member_set.config.settings["tuner.scrub"] == 500.0
        await trio.sleep(300)
        assert not scrubs(array)
    async with open_array(members) as array:
        assert array.get("tuner.scrub") == array.get("scrub_each_s") == 500.0
        await trio.sleep(150)
        assert not scrubs(array)
        assert 440 <= array.regular_scrub.since_scrub_s <= 460
        await trio.sleep(100)
        (job,) = scrubs(array)
        assert (job["state"], job["mismatches"], job["repair"]) == ("done", 0, False)
        assert job["done"] >= MIB
        assert array.regular_scrub.since_scrub_s <= 60
        assert array.status()["last_scrub"]["state"] == "done"
        await trio.sleep(250)
        await array.jobs.wait(await array.start_scrub(repair=False))
        await trio.sleep(450)
        assert len(scrubs(array)) == 2, "one by hand counts"
        await array.set("scrub_each_s", "0")
        await trio.sleep(1250)
        assert len(scrubs(array)) == 2


async def test_a_crash_costs_an_eighth_of_the_interval_at_most() -> None:
    members = await ram_array("raid5", 3, 16 * MIB, chunk_bytes=CHUNK)
    for _ in range(3):
        async with open_array(members) as array:
            await array.set("scrub_each_s", "1000s")
            await trio.sleep(500)
            ended = array.status()["last_scrub"]
            array.member_set.end_superblocks()  # nothing is saved from here on
    assert ended is not None


def test_a_setting_without_effect_is_not_accepted() -> None:
    async def scenario(layout: str, refused: dict[str, str]) -> None:
        members = await ram_array(layout, 3, 16 * MIB, chunk_bytes=CHUNK)
        async with open_array(members) as array:
            for name, text in refused.items():
                with pytest.raises(UsageError, match=layout):
                    await array.set(name, text)
            assert not set(refused) & set(array.member_set.config.settings)
            assert array.regular_scrub.each_s == 604800
            assert array.get("scrub_each_s") == (0 if layout in ("raid0", "raidx-zero") else 604800)

    tuning = {"tuner.enabled": "off", "tuner.idle_s": "2", "restore.after": "off"}
    scrubs = {"scrub_each_s": "3600", "tuner.scrub": "3600"}
    run(scenario, "raid5", tuning)
    run(scenario, "raid0", tuning | scrubs)
    run(scenario, "raidx-zero", scrubs)


def test_no_scrub_begins_while_requests_come_or_where_nothing_can_be_compared() -> None:
    async def scenario(layout: str) -> None:
        members = await ram_array(layout, 3, 16 * MIB, chunk_bytes=CHUNK)
        async with open_array(members) as array:
            if layout == "raidx-copy":
                await array.set("scrub_each_s", "60s")
            for _ in range(220):
                await array.write(0, bytes(4096))
                await trio.sleep(0.5)
            assert not array.jobs.list()
            assert array.tuner is not None
            assert array.tuner.state == "waiting"
            await trio.sleep(0.2)
            for _ in range(40):  # due for as long again: it waits no longer
                await array.write(0, bytes(4096))
                await trio.sleep(0.5)
            assert bool(array.jobs.list()) == (layout == "raidx-copy")

    run(scenario, "raidx-copy")
    run(scenario, "raidx-zero")


async def test_what_members_hold_in_caches_is_flushed_in_idle_time() -> None:
    """Overwriting where nothing protects it goes straight to the member; nobody else flushes."""
    array, model = await made([("hdd", 40), ("ssd", 16)])
    await trio.sleep(30)
    queues = [queue for queue in array.member_set.queues if queue is not None]
    for enabled, rest_s, flushed in (("off", 60, False), ("on", 0.5, False), ("on", 3, True)):
        await array.set("tuner.enabled", enabled)
        await array.write(0, bytes(model[:4096]))
        await trio.sleep(rest_s)
        assert (not any(queue.unflushed for queue in queues)) == flushed
