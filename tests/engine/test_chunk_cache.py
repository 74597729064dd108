"""The chunk cache: it changes no answer; only speed and `stats` show it.

Every page that it holds is compared with the array after each script of
tests/array/test_state_machine.py (`Rig.check_cache`).
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from raidx_fuse.engine.chunk_cache import ChunkCache
from raidx_fuse.errors import UsageError
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.store.io_tuples import PAGE_BYTES
from tests.support.arrays import Rig
from tests.support.load import opened
from tests.support.spy import READ, spied

CHUNK = 16384


def test_a_cache_that_is_not_told_of_writes_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check of every script can fail."""
    monkeypatch.setattr(ChunkCache, "forget", lambda *_: None)

    async def scenario() -> None:
        rig = Rig("raid5", 4, chunk_bytes=CHUNK, stripes=6)
        await rig.create()
        try:
            await rig._step_write(0.0, 1.0, 1)
            await rig._step_cache(1 << 20)
            await rig._step_read(0.0, 0.5)
            await rig._step_sectors(0.001, 0.03, 2)
            await rig.check_cache()
        finally:
            await rig.close()

    with pytest.raises(AssertionError, match="cached page"):
        run(scenario)


@pytest.mark.parametrize("deaf", [False, True])
def test_what_was_read_before_a_write_is_not_kept_after_it(
    deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read has its bytes, and waits; a write comes and goes. Shown to matter by not listening."""
    if deaf:
        monkeypatch.setattr(ChunkCache, "stamp", lambda *_: 0)

    async def scenario() -> bytes:
        rig = Rig("raid0", 2, chunk_bytes=CHUNK, slow=True)
        array = await rig.create()
        await array.write(0, b"old!" * 1024)
        await array.flush()
        await array.set("cache.size", "8KiB")
        read_members = array.member_set._read_members
        written = False

        async def read_then_write(requests: Any, background: bool) -> None:
            nonlocal written
            await read_members(requests, background)
            if not written:
                written = True
                await array.write(0, b"new!" * 1024)
                await array.read(CHUNK, 8192)  # so that the cache drops what the write left

        await array.write(CHUNK, bytes(8192))
        monkeypatch.setattr(array.member_set, "_read_members", read_then_write)
        await array.read(0, 4096)
        assert written
        got = bytes(await array.read(0, 4))
        await rig.close()
        return got

    assert run(scenario) == (b"old!" if deaf else b"new!")


async def test_a_hit_touches_no_member_and_is_counted() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    await rig.put(0, random.Random(1).randbytes(8 * CHUNK))
    await rig.in_place()
    await rig.array.set("cache.size", "1MiB")
    first = await rig.get(5000, 20000)
    rig.log.clear()
    assert await rig.get(8192, 12288) == first[3192 : 3192 + 12288]
    assert await rig.get(8192, 100) == first[3192:3292]
    assert not rig.log.of(READ)
    cache = rig.array.stats()["array"]["cache"]
    assert (cache["hits"], cache["misses"]) == (2, 1)
    assert cache["used"] == 4 * PAGE_BYTES, "whole pages only"
    assert cache["size"] == 1 << 20
    rig.array.member_set.fail(0, "for the test")
    assert await rig.get(8192, 12288) == first[3192 : 3192 + 12288]
    assert rig.array.context.traffic.degraded_reads == 0


async def test_what_is_cached_is_not_read_before_a_write() -> None:
    """Seven members: one chunk is written read-modify-write, until the cache has the others."""
    rig = await spied("raid5", 7, chunk_bytes=4096)
    await rig.put(0, random.Random(1).randbytes(6 * 4096))
    await rig.in_place()
    array = rig.array
    await array.set("cache.size", "1MiB")

    def planned() -> tuple[str, int, list[bool]]:
        plan = array.explain(0, 4096, True)
        (band,) = plan["stripes"][0]["bands"]
        return band["kind"], plan["reads"], [place["cached"] for place in band["reads"]]

    assert planned() == ("rmw", 2, [False, False])
    await rig.get(4096, 4 * 4096)
    kind, reads, cached = planned()
    assert (kind, reads) == ("rcw", 1)
    assert cached.count(True) == 4
    assert "cache" in array.explain(0, 4096, True)["stripes"][0]["bands"][0]["why"]
    before = array.context.traffic.pre_reads
    rig.log.clear()
    await rig.put(0, bytes(4096))
    assert len(rig.log.of(READ, rig.data)) == 1
    assert array.context.traffic.pre_reads == before + 1
    assert array.stats()["array"]["cache"]["pre_reads_spared"] == 4
    # Now data and parity are known: the next write of the page reads nothing at all.
    assert planned()[1] == 0
    rig.log.clear()
    await rig.put(0, b"\1" * 4096)
    assert not rig.log.of(READ, rig.data)
    await rig.compare()
    await array.set("cache.size", "0")
    await rig.compare()


async def test_bpu_weighs_only_what_must_be_read() -> None:
    """Where one plan finds all in memory there is nothing to weigh."""
    rig = await spied("raid5", 4, chunk_bytes=4096)
    await rig.put(0, random.Random(1).randbytes(3 * 4096))
    array = rig.array
    await array.set("parity.policy", "bpu")
    await array.set("cache.size", "1MiB")
    band = array.explain(0, 4096, True)["stripes"][0]["bands"][0]
    assert band["candidates"] == {"rmw": 2, "rcw": 2}
    assert band["decision"] is not None
    await rig.get(4096, 4096)
    band = array.explain(0, 4096, True)["stripes"][0]["bands"][0]
    assert band["candidates"] == {"rmw": 2, "rcw": 1}
    assert (band["kind"], band["decision"]["chosen"]) == ("rcw", "rcw")
    await rig.get(8192, 4096)
    band = array.explain(0, 4096, True)["stripes"][0]["bands"][0]
    assert band["candidates"] == {"rmw": 2, "rcw": 0}
    assert (band["kind"], band["decision"]) == ("rcw", None)


async def test_a_repair_is_read_not_what_was_cached_before() -> None:
    rig = await spied("raid1", 3, chunk_bytes=4096)
    await rig.put(0, b"\7" * 4096)
    await rig.in_place()
    rig.rams[0].memory[rig.data.offset] = 8  # rot
    await rig.array.set("cache.size", "64KiB")
    got = {bytes(await rig.array.read(0, 1)) for _ in range(3)}
    assert got == {b"\x08"}
    result = await rig.array.jobs.wait(await rig.array.start_scrub(repair=True))
    assert (result["mismatches"], result["repaired"]) == (1, 1)
    assert bytes(await rig.array.read(0, 1)) == b"\7"


def test_the_least_recently_used_page_goes_first() -> None:
    cache = ChunkCache(3 * PAGE_BYTES, CHUNK)
    pages = [bytes([number]) * PAGE_BYTES for number in range(5)]
    for number in (0, 1, 2):
        cache.keep(number * PAGE_BYTES, pages[number])
    target = memoryview(bytearray(PAGE_BYTES))
    assert cache.fill(0, target)
    assert target == pages[0]
    cache.keep(3 * PAGE_BYTES, pages[3])
    assert [at // PAGE_BYTES for at, _ in cache.items()] == [2, 0, 3]
    assert not cache.fill(PAGE_BYTES, target)
    cache.keep(0, b"".join(pages))
    assert cache.used_bytes == 3 * PAGE_BYTES, "a request larger than an eighth passes by"
    assert [at // PAGE_BYTES for at, _ in cache.items()] == [2, 0, 3]
    cache.resize(PAGE_BYTES)
    assert [at // PAGE_BYTES for at, _ in cache.items()] == [3]
    cache.wrote(3 * PAGE_BYTES + 10, b"x")
    assert cache.used_bytes == 0, "a page that is written in part is dropped"


async def test_the_setting_is_kept_and_refuses_what_makes_no_sense() -> None:
    rig = await spied("raid0", 2, chunk_bytes=4096)
    array = rig.array
    assert array.get("cache.size") == 0
    assert array.context.cache is None
    for text in ("1000", "2TiB"):
        with pytest.raises(UsageError, match="outside"):
            await array.set("cache.size", text)
    await array.set("cache.size", "1MiB")
    array = await rig.reopen()
    assert array.context.cache is not None
    assert array.context.cache.size_bytes == 1 << 20
    await array.set("cache.size", "0")
    assert array.context.cache is None
    assert array.stats()["array"]["cache"]["size"] == 0


@pytest.mark.parametrize("layout", ["raid0", "raid4"])
async def test_an_array_that_grows_is_read_right(layout: str) -> None:
    """Chunks change stripes under the cache; parities are kept again only when all is done."""
    rig = Rig(layout, 4, chunk_bytes=4096, slow=True)
    rig.member_bytes = 640 << 10
    await opened(rig)
    array = rig.array
    await rig._step_write(0.0, 1.0, 1)
    await rig._step_cache(256 << 10)
    added = [rig.new_member(), rig.new_member()]
    await array.grow(added)
    rig.members += added
    rng = random.Random(3)
    while array.jobs.running():
        await rig._step_parallel(rng.random() ** 2, rng.random(), rng.randrange(1 << 30))
        await rig._step_sectors(rng.random() ** 2, rng.random() / 4, rng.randrange(1 << 30))
        await rig._step_read(rng.random() ** 2, rng.random())
    await rig.check_cache()
    assert array.context.cache is not None
    for chunk in [*range(0, 60, 3)] * 2:  # parity goes with the data beside what is cached
        data = rng.randbytes(4096)
        await rig.put(chunk * 4096, data)
    if layout == "raid4":
        assert any(address < 0 for address, _ in array.context.cache.items())
    await rig.compare()
