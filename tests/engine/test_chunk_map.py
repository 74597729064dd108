"""The map of the members' chunks: against a slow look at every place, and while chunks move."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.engine import chunk_map as module
from raidx_fuse.engine.access_stats import NOTED_MAX
from raidx_fuse.engine.chunk_map import WATCHED_S, ChunkMap, heat_of
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.numbers import MemberChunk, Role
from raidx_fuse.layouts.placements.bundled import BundleLayout
from tests.support.arrays import Rig
from tests.support.load import opened

CHUNK = 4096
Scene = Callable[[Rig, Array], Awaitable[None]]


async def rig_of(layout: str = "raid5", width: int = 4, **options: Any) -> tuple[Rig, Array]:
    rig = await opened(Rig(layout, width, **options))
    return rig, rig.array


async def write_some(array: Array) -> None:
    """Write the first third of the image and, of the rest, one chunk in five."""
    chance = random.Random(1)
    size = array.context.chunk_bytes
    chunks = array.size_bytes // size
    for chunk in range(chunks):
        if chunk < chunks // 3 or chance.random() < 0.2:
            await array.write(chunk * size, chance.randbytes(size))


def slowly(array: Array, parts: int) -> list[list[tuple[float, float]]]:
    """Return (written, lost) of every part by looking at each place of each role."""
    context, layout = array.context, array.context.layout
    found = []
    for role in range(layout.width):
        chunks = layout.counts[role] if isinstance(layout, BundleLayout) else layout.member_chunks
        rows: list[list[tuple[bool, bool]]] = [[] for _ in range(min(parts, chunks))]
        for place in range(chunks):
            at = layout.inverse(Role(role), MemberChunk(place))
            used = at is not None and not context.unwritten_cells(at[0]) >> at[1] & 1
            lost = used and at is not None and role in context.member_set.lost_at(at[0])
            rows[place * len(rows) // chunks].append((used and not lost, lost))
        found.append(
            [(sum(a for a, _ in row) / len(row), sum(b for _, b in row) / len(row)) for row in rows]
        )
    return found


def assert_is(told: dict[str, Any], expected: list[list[tuple[float, float]]]) -> None:
    assert [member["role"] for member in told["members"]] == list(range(len(expected)))
    for member, rows in zip(told["members"], expected, strict=True):
        assert len(member["written_percent"]) == len(member["lost_percent"]) == len(rows)
        for number, (written, lost) in enumerate(rows):
            assert abs(member["written_percent"][number] - 100 * written) < 1, member
            assert abs(member["lost_percent"][number] - 100 * lost) < 1, member


@pytest.mark.parametrize(
    ("layout", "width"),
    [
        *(("raid0", 3), ("raid1", 3), ("raid5", 4), ("rdp", 6), ("upc", 6)),
        *(("raidx-zero", 3), ("raidx-copy", 3), ("raidx-parity", 5)),
    ],
)
async def test_every_part_is_what_a_look_at_each_place_says(layout: str, width: int) -> None:
    _, array = await rig_of(layout, width)
    await write_some(array)
    for parts in (1, 7, 256):
        told = await ChunkMap(array.context).chunk_map(parts)
        assert told["sampled_ratio"] == 1
        assert_is(told, slowly(array, parts))


async def test_a_loss_and_its_rebuild_are_seen_place_by_place() -> None:
    rig, array = await rig_of(stripes=1500)
    await write_some(array)
    chunk_map = ChunkMap(array.context)
    whole = (await chunk_map.chunk_map(24))["members"][1]
    await array.fail_disk(1)
    told = await chunk_map.chunk_map(24)
    assert told["members"][1]["lost_percent"] == whole["written_percent"]
    assert set(told["members"][1]["written_percent"]) == {0}
    job = (await array.replace_disk(1, rig.new_member()))["job"]
    array.jobs.limit(job, 4 << 20, 4 << 20)
    sums = []
    while array.jobs.running():
        told = await chunk_map.chunk_map(24)
        assert_is(told, slowly(array, 24))
        sums.append(sum(told["members"][1]["written_percent"]))
        await trio.sleep(0.2)
    assert sums == sorted(sums)
    assert len(set(sums)) > 3, "the rebuild was seen on its way"
    assert (await chunk_map.chunk_map(24))["members"][1] == whole


async def test_a_growth_is_seen_place_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_UP_CELLS", 1 << 14)
    rig, array = await rig_of(stripes=400, chunk_bytes=8 * CHUNK)
    await write_some(array)
    chunk_map = ChunkMap(array.context)
    before = await chunk_map.chunk_map(16)
    job = (await array.grow([rig.new_member()]))["job"]
    array.jobs.limit(job, 4 << 20, 4 << 20)
    sums = []
    while array.jobs.running():
        told = await chunk_map.chunk_map(16)
        assert_is(told, slowly(array, 16))
        sums.append(sum(told["members"][4]["written_percent"]))
        await trio.sleep(0.1)
    assert len(set(sums)) > 2, "the growth was seen on its way"
    after = await chunk_map.chunk_map(16)
    old = [sum(member["written_percent"]) for member in before["members"]]
    new = [sum(member["written_percent"]) for member in after["members"]]
    assert sum(new) == pytest.approx(sum(old), rel=0.05)
    assert new[4] > 0


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raidx-parity", 5), ("rdp", 6)])
async def test_a_sample_is_near_the_truth(
    layout: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLED_CELLS", 400)
    _, array = await rig_of(layout, width, stripes=600)
    await array.write(0, random.Random(3).randbytes(array.size_bytes // 2))
    told = await ChunkMap(array.context).chunk_map(4)
    assert 0.01 < told["sampled_ratio"] < 0.5
    for member, rows in zip(told["members"], slowly(array, 4), strict=True):
        for percent, (written, _) in zip(member["written_percent"], rows, strict=True):
            assert abs(percent - 100 * written) < 25


async def test_who_watches_sees_which_places_requests_use() -> None:
    _, array = await rig_of()
    await write_some(array)
    chunk_map, layout = ChunkMap(array.context), array.context.layout
    cold = await chunk_map.chunk_map(24)
    assert not any(any(member["accesses_per_s"]) for member in cold["members"])
    for _ in range(100):
        await array.read(5 * CHUNK + 10, 20)
    await trio.sleep(0.5)
    role, place = layout.place(*layout.locate(5))
    told = await chunk_map.chunk_map(24)
    hot = {
        (member["role"], part)
        for member in told["members"]
        for part, rate in enumerate(member["accesses_per_s"])
        if rate
    }
    part = place * 24 // layout.member_chunks
    assert hot == {(role, part)}
    assert told["members"][role]["accesses_per_s"][part] == 50  # 100, by the time constant
    await array.write(5 * CHUNK, bytes(CHUNK))
    told = await chunk_map.chunk_map(24)
    assert sum(any(member["accesses_per_s"]) for member in told["members"]) == 2, "and parity"
    await trio.sleep(5)
    told = await chunk_map.chunk_map(24)
    assert 0 < told["members"][role]["accesses_per_s"][part] < 5, "it fades"


async def test_many_requests_are_counted_and_a_look_after_a_while_begins_anew() -> None:
    _, array = await rig_of()
    await write_some(array)
    chunk_map = ChunkMap(array.context)

    async def total() -> float:
        told = await chunk_map.chunk_map(24)
        return float(sum(sum(member["accesses_per_s"]) for member in told["members"]))

    assert await total() == 0
    for number in range(3 * NOTED_MAX):
        await array.read(number % 4 * CHUNK, 512)
    await array.read(0, 8 * CHUNK)
    await trio.sleep(0.5)
    assert await total() == pytest.approx((3 * NOTED_MAX + 8) / 2, rel=0.01)
    heat = heat_of(array.context)
    assert heat.reads.sum() == pytest.approx(3 * NOTED_MAX, rel=0.01)
    await trio.sleep(WATCHED_S + 1)
    await array.read(0, 512)
    assert await total() == 0


async def test_the_heat_of_a_raidx_array_moves_with_the_chunk() -> None:
    _, array = await rig_of("raidx-zero", 3)
    await write_some(array)
    layout, chunk_map = array.context.layout, ChunkMap(array.context)
    assert isinstance(layout, BundleLayout)
    for _ in range(64):
        await array.read(0, 512)
        await trio.sleep(0.05)

    async def hottest() -> tuple[int, int]:
        told = await chunk_map.chunk_map(256)
        rates = [
            (rate, member["role"], part)
            for member in told["members"]
            for part, rate in enumerate(member["accesses_per_s"])
        ]
        return max(rates)[1:]

    first, start = layout.place(*layout.locate(0))
    assert await hottest() == (first, start * 256 // layout.counts[first])
    role = next(r for r in range(3) if r not in layout.roles(layout.locate(0)[0]))
    place = int(layout.free_chunks(Role(role))[0])
    layout.move([(0, role, place)])
    assert await hottest() == (role, place * 256 // layout.counts[role])


async def test_the_answer_and_the_work_are_bounded() -> None:
    _, array = await rig_of("raid5", 40, stripes=400)
    chunk_map = ChunkMap(array.context)
    told = await chunk_map.chunk_map(256)
    counts = [len(member["written_percent"]) for member in told["members"]]
    assert sum(counts) <= module.PARTS_ALL_MAX
    assert counts[0] == module.PARTS_ALL_MAX // 40
    for parts in (0, -1, 257):
        with pytest.raises(UsageError, match="out of range"):
            await chunk_map.chunk_map(parts)


async def test_a_map_that_took_long_is_not_made_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    _, array = await rig_of()
    now = [0.0]
    made = []

    def survey(_context: object, _recent: object, parts: int) -> dict[str, Any]:
        made.append(parts)
        now[0] += 0.03
        return {"number": len(made)}

    monkeypatch.setattr(array.member_set, "clock", lambda: now[0])
    monkeypatch.setattr(module, "_survey", survey)
    chunk_map = ChunkMap(array.context)
    for at_s, number in ((0.0, 1), (1.0, 1), (3.0, 1), (3.1, 2), (6.0, 2)):
        now[0] = at_s
        assert (await chunk_map.chunk_map(8))["number"] == number
    assert (await chunk_map.chunk_map(9))["number"] == 3, "another size is another map"
