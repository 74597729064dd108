"""What the tuner knows of chunks and members: uses in order, access times, speeds."""

from __future__ import annotations

import random

import numpy as np
import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.access_stats import RUN_HALF, AccessStats
from raidx_fuse.format.create import create_array
from raidx_fuse.jobs.tuner.plan import grouped
from raidx_fuse.jobs.tuner.speeds import MemberLoad, Speed, use_of
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from tests.jobs.test_tuner import layout_of, load
from tests.support.tuning import CHUNK, MIB, made


async def test_streams_and_random_uses_are_told_apart() -> None:
    array, model = await made([("ssd", 16), ("ssd", 16)])
    access = array.context.traffic.heat
    assert isinstance(access, AccessStats)
    chunks = len(model) // CHUNK
    rng = random.Random(3)
    for _ in range(2):
        for at in range(0, len(model) // 2, 4096 * 4):
            await array.read(at, 4096 * 4)
    for _ in range(chunks * 4):  # a small set: most chunks have a neighbour that was just used
        await array.read(rng.randrange(chunks // 2, chunks // 2 + 24) * CHUNK, 4096)
    access.digest()
    assert (access.runs[1 : chunks // 2] >= RUN_HALF).all()
    # The last one of the set has nothing behind it, so it may look like the end of a stream.
    assert (access.runs[chunks // 2 : chunks // 2 + 23] < RUN_HALF).all()


async def test_hot_chunks_beside_each_other_are_no_stream() -> None:
    """They stayed on the disk: a neighbour had been used among the last 32 requests."""
    array, _ = await made([("ssd", 16), ("ssd", 16)])
    access = array.context.traffic.heat
    assert isinstance(access, AccessStats)
    rng = random.Random(3)
    hot = [chunk + beside for chunk in range(0, 160, 10) for beside in (0, 1)]
    for _ in range(500):
        await array.read(rng.choice(hot) * CHUNK, 4096)
    access.digest()
    assert (access.runs[hot] < RUN_HALF).all()


async def test_the_end_of_a_request_that_a_member_has_alone_is_no_run() -> None:
    """It is used in order in the image. On its disk, nothing beside it is: heads must find it."""
    array, model = await made([("ssd", 16)] * 3)
    assert array.tuner is not None
    planner, chunks = array.tuner.planner, len(model) // CHUNK
    apart, stream = range(0, chunks // 2 - 10, 10), range(chunks // 2, chunks // 2 + 32)
    for _ in range(2):
        for chunk in apart:
            await array.read(chunk * CHUNK + CHUNK // 2, CHUNK)
        for chunk in stream:
            await array.read(chunk * CHUNK, CHUNK)
    planner.access.digest()
    ends = np.array([chunk + 1 for chunk in apart])
    in_order = np.array(stream[1:])
    assert (planner.access.runs[np.append(ends, in_order)] >= RUN_HALF).all()
    used = np.array(sorted([*apart, *ends.tolist(), *stream]))
    in_runs = planner.in_runs(used)
    assert not in_runs[used < stream[0]].any()
    assert in_runs[np.isin(used, in_order)].all()


async def test_access_times_survive_in_the_table() -> None:
    members = [
        model_member(RamMember(size, name=kind), kind)
        for kind, size in (("hdd", 20 * MIB), ("ssd", 8 * MIB))
    ]
    await create_array(members, "raidx-zero", chunk_bytes=CHUNK, name="kept", now_s=0)
    async with open_array(members) as array:
        model = bytearray(16 * MIB)
        for at in range(0, len(model), MIB):
            await array.write(at, model[at : at + MIB])
        await load(array, model, 1)
        await trio.sleep(30)
        table = layout_of(array)
        hottest = int(table.interval.astype(int).argsort()[(table.interval == 0).sum()])
        interval, last = int(table.interval[hottest]), int(table.last[hottest])
        assert array.tuner is not None
        assert array.tuner.moved
    async with open_array(members) as array:
        table = layout_of(array)
        assert int(table.interval[hottest]) == interval
        assert int(table.last[hottest]) == last
        assert isinstance(array.context.traffic.heat, AccessStats)
        assert array.context.traffic.heat.ticks() > last, "time goes on from there"


async def test_a_copy_that_once_answered_late_is_asked_again() -> None:
    """Its moving average said so for ever: nobody read it, so nothing else was measured."""
    array, model = await made([("ssd", 16), ("ssd", 16)], "raidx-copy", 8 * MIB)
    await load(array, model, 1)
    await trio.sleep(100)
    late, other = array.member_set.queues[:2]
    assert late is not None
    assert other is not None
    late.read_service_s = 0.002
    before = late.reads
    await load(array, model, 2, 50, writes=0.0)
    assert late.reads == before, "copies are read where the answer comes first"
    await trio.sleep(100)
    await load(array, model, 3, 50, writes=0.0)
    await trio.sleep(100)
    assert late.read_service_s < 2 * other.read_service_s


def _load(role: int, latency_s: float, busy_s: float, depth: int = 8) -> MemberLoad:
    speed = Speed()
    for _ in range(16):
        speed.latency_s.add(latency_s)
        speed.busy_s.add(busy_s)
        speed.bytes.add(4096)
    return MemberLoad(role, speed, speed.copy(), 0.0, depth)


def test_members_of_like_speed_are_a_group_with_one_cost() -> None:
    """What two equal SSDs were asked for differed: 49 chunks went from one to the other (0.97)."""
    loads = [
        *(_load(0, 9e-3, 9e-3, 1), _load(1, 1.18e-4, 0.9e-5), _load(2, 1.08e-4, 1.5e-5)),
        *(_load(3, 6e-3, 6e-3, 1), _load(4, 1.1e-4, 1.1e-4, 1)),
    ]
    costs, groups = grouped(loads, use_of(loads, 0.0, CHUNK))
    assert groups == [[2, 1], [4], [3], [0]]
    assert costs[Role(1)] == costs[Role(2)]
    assert costs[Role(1)].busy_s == pytest.approx(1.2e-5)
    assert costs[Role(3)].latency_s == pytest.approx(6e-3)


async def test_a_dry_run_shows_the_groups() -> None:
    array, model = await made([("hdd", 24), ("ssd", 24), ("ssd", 24)])
    await load(array, model, 1, writes=0.0)
    assert array.tuner is not None
    assert [sorted(group) for group in (await array.tuner.dry_run())["groups"]] == [[1, 2], [0]]
