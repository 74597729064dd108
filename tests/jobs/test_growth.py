"""Growth in virtual time: what every read gives back, before, during and after; what it costs."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.growing import SmallRig, grow, small_spies
from tests.support.load import CHUNK, enlarge, opened, scrubbed, under_load
from tests.support.spy import SpyRig


@pytest.mark.parametrize(
    ("layout", "slow", "reads_zero"),
    [
        ("raid4", False, True),
        ("raid0", True, True),
        ("raid5", True, False),
        ("rdp", False, False),
        ("evenodd", True, False),
    ],
)
async def test_two_growths_under_writes_keep_every_byte(
    layout: str, slow: bool, reads_zero: bool
) -> None:
    parities = {"raid0": 0, "raid4": 1, "raid5": 1}.get(layout, 2)
    params = {"prime": 7, "rotate": True} if parities == 2 else {}
    rig = SmallRig(layout, slow=slow, reads_zero=reads_zero, params=params)
    if parities == 2:
        rig.member_bytes = 1800 << 10
    await opened(rig, 0.7)
    array = rig.array
    for added in (1, 2):
        size = array.size_bytes
        job = await grow(rig, added)
        job.speed_max_bytes = job.speed_min_bytes = rig.member_bytes  # a second or two
        async with under_load(rig):
            while not job.finished.is_set():
                if array.size_bytes != size:  # nothing new before all is moved
                    assert job.done_bytes == job.total_bytes
                    # No request meets the new end before the superblocks have it.
                    assert array.context.gate.is_closed or not array.member_set.unpublished
                await trio.sleep(0.003)
        assert job.state == "done", job.error
        disks = rig.width - parities
        assert array.size_bytes * (disks - added) == size * disks
        enlarge(rig)
        await rig.compare()
        await rig.fill(seed=added, share=0.4)  # also where blocks have left
        await rig.compare()
        if parities:
            await scrubbed(rig)
        array = await rig.reopen()
        await rig.compare()


@pytest.mark.parametrize(
    ("layout", "width", "added", "prime"),
    [("raid5", 4, 1, 0), ("raid5", 4, 2, 0), ("rdp", 6, 2, 7), ("evenodd", 6, 2, 7)],
)
async def test_cells_of_data_and_parity_move_and_none_is_computed(
    layout: str, width: int, added: int, prime: int
) -> None:
    """Bytes read and written for each byte of old data: 2mn / ((m + n)(m - parities))."""
    parities = 2 if prime else 1
    rig = SpyRig(layout, width, chunk_bytes=CHUNK, params={"prime": prime} if prime else None)
    rig.member_bytes = (3072 if prime else 1100) << 10
    await opened(rig, 1.0)
    array = rig.array
    await array.context.journal.drain()
    data = array.size_bytes
    region = array.member_set.config.regions.data
    rig.log.clear()
    job = await grow(rig, added, windows=10**6)
    await job.finished.wait()
    read = [rig.log.bytes_of("read", region, f"ram{role}") for role in range(width)]
    written = [rig.log.bytes_of("write", region, f"ram{width + number}") for number in range(added)]
    for role in range(width):
        assert not rig.log.bytes_of("write", region, f"ram{role}")
    stripes, _ = job.layout.moving(0, job.layout.stripes)
    moved = len(stripes) * array.context.code.rows * CHUNK
    assert sum(read) == sum(written) == job.done_bytes == moved
    bound = 2 * width * added / ((width + added) * (width - parities))
    assert abs((sum(read) + sum(written)) / data / bound - 1) < 0.03
    assert max(written) - min(written) <= 0.1 * max(written)


@pytest.mark.parametrize(("added", "most"), [(1, 0.5), (2, 0.8)])
async def test_only_the_blocks_that_must_move_are_read_and_written(added: int, most: float) -> None:
    """Bytes read and written in the data region for each byte of old data."""
    rig = await opened(small_spies(), 1.0)
    array = rig.array
    await array.context.journal.drain()
    old, parity = range(3), 3
    rows = array.context.layout.stripes
    region = array.member_set.config.regions.data
    rig.log.clear()
    job = await grow(rig, added, windows=10**6)
    await job.finished.wait()
    moved = [rig.log.bytes_of("read", region, f"ram{role}") for role in old]
    landed = [rig.log.bytes_of("write", region, f"ram{4 + number}") for number in range(added)]
    assert sum(moved) + sum(landed) <= (most + 0.01) * rows * 3 * CHUNK
    for role in old:
        assert not rig.log.bytes_of("write", region, f"ram{role}")  # no old disk is written
    assert not rig.log.of("read", region, f"ram{parity}")  # and no parity touched
    assert not rig.log.of("write", region, f"ram{parity}")
    whole = rows // (3 + added) * (3 + added)
    share = added / (3 + added)
    assert sum(moved) >= whole * 3 * CHUNK * share
    assert job.done_bytes == job.total_bytes == sum(moved) == sum(landed)
    # One read a run of neighbours: each old disk one a region, joined across regions.
    reads = [rig.log.of("read", region, f"ram{role}") for role in old]
    assert sum(map(len, reads)) <= 3 * -(-rows // (3 + added))


async def test_places_that_blocks_left_go_back_to_the_host_once_that_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    punched: list[tuple[str, int]] = []
    ahead: list[int] = []  # stripes that are still to move
    punch = FaultMember.punch
    rig = await opened(SmallRig(slow=True), 1.0)
    array = rig.array
    await array.context.journal.drain()
    start = array.member_set.data_offset

    async def noting(member: FaultMember, offset: int, length: int) -> bool:
        growth = array.context.growth
        if growth is None:  # a newcomer's metadata
            return await punch(member, offset, length)
        rows = range((offset - start) // CHUNK, (offset - start + length) // CHUNK)
        assert rows.stop <= growth.saved  # durable before a byte goes
        assert array.member_set.config.params["migrated"] >= rows.stop
        punched.extend((member.path, row) for row in rows)
        ahead.append(growth.layout.stripes - growth.saved)
        await trio.sleep(0.001)  # a user reads and writes meanwhile
        return await punch(member, offset, length)

    monkeypatch.setattr(FaultMember, "punch", noting)
    job = await grow(rig, 2)
    job.speed_max_bytes = job.speed_min_bytes = 4 * CHUNK  # some checkpoints on the way
    async with under_load(rig, pause_s=0.2):
        await job.finished.wait()
    monkeypatch.setattr(FaultMember, "punch", punch)
    assert job.state == "done", job.error
    assert job.growth.checkpoints > 2
    assert max(ahead) > 0, "nothing was given back before the end"
    layout = job.layout
    moves = zip(*layout.moving(0, layout.stripes), strict=True)
    before = layout._roles_before(np.arange(layout.stripes))
    left = {(f"ram{before[row, column]}", int(row)) for row, column in moves}
    assert set(punched) == left
    assert len(punched) == len(left)
    enlarge(rig)
    await scrubbed(rig)
    await rig.fill(seed=3, share=0.3)
    await rig.compare()


@pytest.mark.parametrize("rotates", [True, None])
async def test_a_new_member_of_another_kind_gives_the_superblocks_no_other_rules(
    rotates: bool | None,
) -> None:
    """Those of the growth were found without it; after a remount, chunks were looked for anew."""
    rig = SmallRig("raid5", 4)
    rig.member_bytes = 8 << 20
    await opened(rig, 0.9)
    for member in rig.members:
        member.rotates = False
    new = rig.new_member()
    new.rotates = rotates
    await rig.array.grow([new])
    rig.members.append(new)
    (job,) = rig.array.jobs.running()
    await job.finished.wait()
    enlarge(rig)
    await rig.compare()
    await rig.reopen()
    await rig.compare()
