"""Scrub: every rotten byte is found, and named as exactly as the chains allow."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Mapping
from typing import Any

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import JobRunningError, ReadOnlyError
from raidx_fuse.jobs.job import WINDOW_BYTES
from raidx_fuse.jobs.scrub import _without
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.layouts.registry import make_code
from raidx_fuse.store.written_map import WrittenMap
from tests.support.arrays import parity_holds, ram_array
from tests.support.spy import READ, WRITE, SpyRig, noise, placed, restarted, spied, spying

CHUNK = 4096


async def scrub(rig: SpyRig, repair: bool = False) -> Mapping[str, Any]:
    """Run a scrub to its end."""
    job = await rig.array.start_scrub(repair=repair)
    result = await rig.array.jobs.wait(job)
    assert result["state"] == "done", result
    return result


async def rot(rig: SpyRig, chunk: int, copy: int | None = None) -> tuple[int, int, int]:
    """Rot bytes 100, 101 of a chunk (or of another column); return stripe, role, byte."""
    await rig.in_place()
    layout = rig.array.context.layout
    stripe, cell = layout.locate(chunk)
    role, member_chunk = layout.place(stripe, cell if copy is None else copy)
    offset = rig.data.offset + member_chunk * CHUNK + 100
    await rig.members[role].rot(offset, 2, mask=0x40)
    return stripe, role, offset


async def test_a_healthy_array_has_no_mismatch_and_only_written_stripes_are_read() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=3000)
    await rig.put(0, noise(30 * CHUNK))
    rig.log.clear()
    result = await scrub(rig)
    assert result["mismatches"] == 0
    assert result["done"] == result["total"] == 10 * 4 * CHUNK
    assert rig.log.bytes_of(READ, rig.data) == 10 * 4 * CHUNK
    assert not rig.log.of(WRITE, rig.data)


@pytest.mark.parametrize("slow", [False, True])
async def test_rot_in_raid5_is_found_but_not_located(slow: bool) -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, slow=slow)
    await rig.put(0, noise(len(rig.model)))
    stripe, _role, _ = await rot(rig, 31)
    before = rig.images()
    result = await scrub(rig)
    assert (result["mismatches"], result["repaired"], result["uncorrected"]) == (1, 0, 1)
    (finding,) = result["findings"]
    assert finding["stripe"] == stripe
    assert finding["located"] is False, "one parity cannot tell who lies"
    assert [member["role"] for member in finding["members"]] == [0, 1, 2, 3]
    assert 31 * CHUNK + 100 in finding["image_offsets"]
    assert len(finding["image_offsets"]) == 3
    assert (finding["byte_in_chunk"], finding["bytes"]) == (100, 2)
    assert finding["repaired"] is False
    data = rig.data
    for old, new in zip(before, rig.images(), strict=True):
        assert old[data.offset :] == new[data.offset :], "--check writes nothing"


@pytest.mark.parametrize("copy", [0, 1, 2])
async def test_rot_in_one_of_three_copies_is_located_and_repaired(copy: int) -> None:
    rig = await spied("raid1", 3, chunk_bytes=CHUNK)
    await rig.put(0, noise(len(rig.model)))
    stripe, role, offset = await rot(rig, 5, copy)
    found = await scrub(rig)
    (finding,) = found["findings"]
    assert finding["located"] is True
    assert [each["role"] for each in finding["members"]] == [role]
    assert finding["members"][0]["path"] == rig.members[role].path
    assert finding["stripe"] == stripe
    assert found["uncorrected"] == 1
    repaired = await scrub(rig, repair=True)
    assert (repaired["repaired"], repaired["assumed"]) == (1, 0)
    assert repaired["uncorrected"] == 0
    await rig.in_place()
    at = 5 * CHUNK + 100
    assert bytes(rig.rams[role].memory[offset : offset + 2]) == rig.model[at : at + 2]
    assert (await scrub(rig))["mismatches"] == 0
    await rig.array.fail_disk((role + 1) % 3)
    await rig.array.fail_disk((role + 2) % 3)
    await rig.compare()  # only the healed copy is left


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid4", 3), ("raid1", 2)])
async def test_a_repair_that_had_to_assume_says_so(layout: str, width: int) -> None:
    """Data is taken for right, as md does; the report never claims to know the liar."""
    rig = await spied(layout, width, chunk_bytes=CHUNK)
    await rig.put(0, noise(len(rig.model)))
    data_count = rig.array.context.code.data_count
    await rot(rig, 3, copy=data_count)  # the parity, or the second copy
    await rot(rig, 4 * data_count)  # a data chunk
    result = await scrub(rig, repair=True)
    assert (result["mismatches"], result["assumed"]) == (2, 2)
    for finding in result["findings"]:
        assert finding["located"] is False
        assert finding["assumed_data_right"] is True
        assert len(finding["members"]) == width
    assert (await scrub(rig))["mismatches"] == 0
    # Where parity rotted the data is as it was; where data rotted, the rot became data.
    at = 4 * data_count * CHUNK + 100
    rotten = bytes(byte ^ 0x40 for byte in rig.model[at : at + 2])
    assert await rig.get(at, 2) == rotten
    rig.model[at : at + 2] = rotten
    await rig.compare()
    await rig.array.fail_disk(0)
    await rig.compare()


async def test_stripes_without_chains_are_checked_by_the_checksums_of_all_their_pages() -> None:
    members = await ram_array("raid0", 3, chunk_bytes=CHUNK, sums=True)
    async with open_array(members) as array:
        await array.write(0, noise(12 * CHUNK))  # the newest of it is in the log
        for _ in range(2):
            result = await array.jobs.wait(await array.start_scrub(repair=False))
            assert result["unchecked_stripes"] == 0
            await array.context.journal.drain()
        sums = array.member_set.sums
        assert sums is not None
        sums.tables.memory.views[0][0] = 0  # of the first page, as if it had been lost
        result = await array.jobs.wait(await array.start_scrub(repair=False))
        assert result["unchecked_stripes"] == 1


async def test_two_rotten_copies_of_three_do_not_outvote_the_third() -> None:
    """Two liars that tell different lies: nobody is located, nobody is 'known' to be right."""
    rig = await placed("raid1", 3, chunk_bytes=CHUNK)
    layout = rig.array.context.layout
    for column, mask in ((1, 0x40), (2, 0x20)):
        role, _ = layout.place(0, column)
        await rig.members[role].rot(rig.data.offset + 100, 2, mask=mask)
    (finding,) = (await scrub(rig))["findings"]
    assert finding["located"] is False


async def test_a_degraded_scrub_counts_what_it_could_not_check() -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK)
    await rig.put(0, noise(12 * CHUNK))
    await rig.array.fail_disk(1)
    result = await scrub(rig, repair=True)
    assert result["unchecked_stripes"] == 6
    assert (result["mismatches"], result["repaired"]) == (0, 0)
    await rig.compare()


async def test_a_scrub_beside_users_finds_nothing_that_is_not_there() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, slow=True, stripes=400)
    await rig.put(0, noise(len(rig.model)))
    await rig.array.set("speed_min", "32MiB")
    job = await rig.array.start_scrub(repair=True)
    rng = random.Random(4)
    written = 0
    while rig.array.jobs.running():
        start = rng.randrange(0, len(rig.model) - CHUNK)
        await rig.put(start, rng.randbytes(rng.randint(1, CHUNK)))
        written += 1
    assert written > 10
    result = await rig.array.jobs.wait(job)
    assert result["mismatches"] == 0, result["findings"]
    await rig.compare()


async def test_one_scrub_at_a_time_and_no_repair_of_what_may_not_be_written() -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        await rig.array.set("speed_max", "64KiB")
        await rig.array.start_scrub(repair=False)
        with pytest.raises(JobRunningError):
            await rig.array.start_scrub(repair=True)
        images = rig.images()
    async with restarted(images, read_only=True) as array:
        with pytest.raises(ReadOnlyError):
            await array.start_scrub(repair=True)
        await parity_holds(array)


def test_two_chains_through_a_lost_cell_are_checked_together() -> None:
    """RDP without its row parity: a diagonal through it is known only with the row it sums up."""
    code = make_code("rdp", 6)
    lost = sum(1 << cell for cell in code.column_cells[4])
    sums = _without(lost, list(code.chain_masks))
    assert not any(mask & lost for mask in sums)
    assert len(sums) == len(code.chain_masks) - code.rows  # one equation pays for each lost cell
    generator = random.Random(1)
    for _ in range(20):
        cells = [generator.getrandbits(8) for _ in range(code.data_count)]
        for support in code.support:
            own = [cells[cell] for cell in cells_of(support)]
            cells.append(functools.reduce(operator.xor, own))
        for mask in sums:
            assert functools.reduce(operator.xor, (cells[c] for c in cells_of(mask))) == 0


async def test_a_repair_of_what_the_log_still_holds_goes_through_the_log() -> None:
    """The log is off, but not empty yet: its older parity would lie over the repaired one."""
    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        stripe, _role, _ = await rot(rig, 30)
        journal = rig.array.context.journal
        # else the parity would agree with what is rotten
        rig.array.context.policies.use("rmw")
        await rig.put(31 * CHUNK + 512, noise(2 * CHUNK - 512, 1))  # most: with the parity
        journal.set_mode("none")
        assert journal.holds(stripe)
        assert (await scrub(rig, repair=True))["repaired"] == 1
        assert (await scrub(rig))["mismatches"] == 0
        await rig.in_place()
        assert (await scrub(rig))["mismatches"] == 0
        images = rig.images()
    async with restarted(images) as array:
        await parity_holds(array)


async def test_a_scrub_of_a_sparse_image_looks_at_no_more_of_the_map_than_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Far-apart stripes are not neighbours: between them lie gigabits of the map (55 TiB)."""
    asked = 0
    window = WrittenMap._window

    def counted(written: WrittenMap, first: int, end: int) -> int:
        nonlocal asked
        asked = max(asked, end - first)
        return window(written, first, end)

    rig = await spied("raid5", 4, chunk_bytes=4096, stripes=6000)
    for at in (0, len(rig.model) // 2, len(rig.model) - 4096):
        await rig.put(at, b"x" * 4096)
    await rig.in_place()
    monkeypatch.setattr(WrittenMap, "_window", counted)
    job = await rig.array.start_scrub(repair=False)
    result = await rig.array.jobs.wait(job)
    assert result["done"] == 3 * 4 * 4096
    assert result["mismatches"] == 0
    assert 0 < asked <= 3 * WINDOW_BYTES // 4096
