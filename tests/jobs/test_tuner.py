"""The tuner in virtual time: hot chunks go where they are served sooner; nobody waits for it."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import NotWithLayoutError
from raidx_fuse.jobs.tuner.plan import Plan, Step
from raidx_fuse.jobs.tuner.speeds import MemberLoad, Speed
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.placements.bundled import BundleLayout
from tests.support.arrays import parity_holds, ram_array
from tests.support.tuning import CHUNK, MIB, made


async def load(
    array: Array, model: bytearray, seed: int, requests: int = 400, writes: float = 0.1
) -> float:
    """90 % of the requests go to 10 % of the chunks; return the mean response time in seconds."""
    rng = random.Random(seed)
    chunks = len(model) // CHUNK
    hot = random.Random(77).sample(range(chunks), chunks // 10)
    started = trio.current_time()
    for _ in range(requests):
        chunk = rng.choice(hot) if rng.random() < 0.9 else rng.randrange(chunks)
        at = chunk * CHUNK + rng.randrange(CHUNK // 4096) * 4096
        if rng.random() < writes:
            data = rng.randbytes(4096)
            await array.write(at, data)
            model[at : at + 4096] = data
        else:
            assert await array.read(at, 4096) == model[at : at + 4096]
    return (trio.current_time() - started) / requests


def layout_of(array: Array) -> BundleLayout:
    layout = array.context.layout
    assert isinstance(layout, BundleLayout)
    return layout


async def test_an_ssd_and_a_disk_serve_a_hot_set_more_than_twice_as_fast_when_tuned() -> None:
    array, model = await made([("hdd", 40), ("ssd", 16)])
    before = await load(array, model, 1)
    hot = random.Random(77).sample(range(len(model) // CHUNK), len(model) // CHUNK // 10)
    hottest = array.stats()["array"]["hottest"]
    assert len(hottest) == 10
    assert sum(chunk["image_offset"] // CHUNK in hot for chunk in hottest) >= 9
    await trio.sleep(60)
    assert await load(array, model, 2) * 2.5 < before
    assert array.tuner is not None
    assert array.tuner.moved


async def test_a_full_fast_member_gives_its_least_used_chunks_away() -> None:
    """The SSD holds fewer chunks than were written, all of them taken: chunks change places."""
    array, model = await made([("hdd", 40), ("ssd", 6)], "raidx-zero", 36 * MIB)
    layout = layout_of(array)
    before = await load(array, model, 1)
    used = layout.used_chunks()
    assert used[1] == layout.counts[1] - 1
    await trio.sleep(120)
    assert await load(array, model, 2) * 2 < before
    assert layout.problem(range(layout.cells)) is None
    assert abs(layout.used_chunks()[1] - used[1]) <= 1


@pytest.mark.parametrize("layout", ["raidx-copy", "raidx-parity"])
async def test_two_chunks_of_a_bundle_never_meet(layout: str) -> None:
    kinds = [("hdd", 24), ("hdd", 20), ("ssd", 12), ("hdd", 16), ("nvme", 8)]
    array, model = await made(kinds, layout, 12 * MIB)
    table = layout_of(array)
    before = await load(array, model, 1, 300, writes=0.5)
    await trio.sleep(120)
    assert array.tuner is not None
    assert array.tuner.moved
    assert table.problem(range(table.cells)) is None
    assert await load(array, model, 2, 300, writes=0.5) < before
    await parity_holds(array)
    array.member_set.fail(2, "for the test")
    await array.read(0, 1 << 20)


@pytest.mark.parametrize("held_up", [False, True])
async def test_like_members_are_left_alone(held_up: bool) -> None:
    """Also after an answer that came late once: the moving average of the queue is far off then."""
    array, model = await made([("ssd", 16), ("ssd", 16), ("ssd", 16)])
    await load(array, model, 1)
    if held_up:
        queue = array.member_set.queues[0]
        assert queue is not None
        queue.read_service_s = 0.05
        await load(array, model, 2, 40)
    await trio.sleep(60)
    assert array.tuner is not None
    assert (array.tuner.moved, array.tuner.state) == (0, "balanced")


async def test_when_queues_build_up_the_under_used_member_is_taken() -> None:
    """All hot chunks lie on the fast one of two; so many requests at once are too much for it."""
    array, model = await made([("ssd", 20), ("ssd", 20)])
    table = layout_of(array)
    assert array.tuner is not None
    array.tuner.enabled = False
    on_fast = [int(cell) for cell in table.cells_of(0) if 0 <= cell < len(model) // CHUNK][:64]
    rng = random.Random(1)

    async def client() -> None:
        for _ in range(150):
            at = rng.choice(on_fast) * CHUNK
            assert await array.read(at, 4096) == model[at : at + 4096]

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(client)
    assert array.tuner.access.queue_means[0] > 4 > array.tuner.access.queue_means[1]
    await array.tuner.measure(patiently=True)
    plan = array.tuner.plan()
    assert plan.steps
    assert {(step.source, step.target) for step in plan.steps} == {(0, 1)}
    assert plan.chunks < 64, "not all: the other one would be the bottleneck then"


async def test_a_request_ends_the_round_and_waits_for_one_move_at_most() -> None:
    array, model = await made([("hdd", 40), ("ssd", 16)])
    tuner = array.tuner
    assert tuner is not None
    await load(array, model, 1)
    for _ in range(1000):
        if tuner.state == "moving":
            break
        await trio.sleep(0.01)
    moved = tuner.moved
    started = trio.current_time()
    await array.read(0, 4096)
    assert trio.current_time() - started < 0.15, "one move on a disk, and its own time"
    await trio.sleep(0.1)
    assert tuner.state == "waiting"
    assert tuner.moved <= moved + 4
    moved = tuner.moved
    await trio.sleep(0.7)
    assert tuner.moved == moved, "one second after the last request, not before"
    await trio.sleep(10)
    assert tuner.moved > moved


async def test_a_plan_that_a_request_interrupts_is_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of a run on another member costs both members positionings; it was left there."""
    array, model = await made([("hdd", 40), ("ssd", 16)])
    tuner = array.tuner
    assert tuner is not None
    plans: list[list[Step]] = []
    done: list[Step] = []
    plan, step = tuner.plan, tuner.step

    def noted_plan() -> Plan:
        made = plan()
        plans.append(list(made.steps))
        return made

    third = trio.Event()

    async def noted_step(which: Step) -> int:
        done.append(which)
        if len(done) == 3:
            third.set()
        return await step(which)

    monkeypatch.setattr(tuner, "plan", noted_plan)
    monkeypatch.setattr(tuner, "step", noted_step)
    await load(array, model, 1)
    await third.wait()
    await array.read(0, 4096)
    await trio.sleep(60)
    first = plans[0]
    assert len(first) > 10
    assert done[: len(first)] == first


async def test_tuning_at_the_users_word_and_its_dry_run() -> None:
    array, model = await made([("hdd", 40), ("ssd", 16)])
    await array.set("tuner.enabled", "off")
    assert array.tuner is not None
    before = await load(array, model, 1)
    await trio.sleep(30)
    assert array.tuner.moved == 0
    assert array.tuner.state == "off"
    plan = await array.tuner.dry_run()
    assert plan["bytes_moved"] > 0
    assert plan["expected_ms"] < plan["mean_ms"]
    assert array.tuner.moved == 0
    job = await array.jobs.wait(array.start_tuning())
    assert job["state"] == "done"
    assert job["chunks_moved"] == array.tuner.moved > 0
    assert (await array.tuner.dry_run())["bytes_moved"] == 0
    assert await load(array, model, 2) * 2 < before


async def test_a_hot_set_that_moves_is_followed() -> None:
    array, model = await made([("hdd", 60), ("ssd", 5)], "raidx-zero", 48 * MIB)
    half = len(model) // 2
    for part, seed in ((0, 1), (half, 2)):
        view = bytearray(model[part : part + half // 8])

        async def hot(seed: int, part: int = part, view: bytearray = view) -> float:
            rng = random.Random(seed)
            started = trio.current_time()
            for _ in range(300):
                at = rng.randrange(len(view) // 4096) * 4096
                assert await array.read(part + at, 4096) == view[at : at + 4096]
            return trio.current_time() - started

        before = await hot(seed)
        await trio.sleep(60)
        # 1.8 to 2.2 for the second part, over five seeds: the first one has the faster places.
        assert await hot(seed + 10) * 1.7 < before


async def test_moves_after_which_a_load_is_slower_are_undone() -> None:
    """A plan that is wrong, whatever the reason: half of the hot chunks go back to the disk."""
    array, model = await made([("hdd", 40), ("ssd", 16)])
    tuner, table = array.tuner, layout_of(array)
    assert tuner is not None
    await load(array, model, 1)
    await trio.sleep(60)
    fast = await load(array, model, 2)
    await trio.sleep(60)
    hot = random.Random(77).sample(range(len(model) // CHUNK), len(model) // CHUNK // 10)
    wrong = [cell for cell in hot if table.disk[cell] == 1][::2]
    cold = [cell for cell in range(len(model) // CHUNK) if table.disk[cell] == 0]
    for cell, other in zip(wrong, cold, strict=False):
        moves = tuple(tuner.mover.exchange(cell, other))
        assert await tuner.step(Step(moves, Role(1), Role(0)))
    margin = tuner.planner.margin
    assert await load(array, model, 3) > 2 * fast
    await trio.sleep(20)
    assert {int(table.disk[cell]) for cell in wrong} == {1}
    assert tuner.planner.margin > margin, "more is demanded of the next moves"
    assert await load(array, model, 4) < 1.5 * fast


async def test_all_that_is_used_may_go_to_a_member_that_answers_at_once() -> None:
    """No latency that could be measured was left, and the plan divided by it."""
    array, _ = await made([("hdd", 16), ("ssd", 16)], "raidx-zero", 4 * MIB)
    assert array.tuner is not None
    table, planner = layout_of(array), array.tuner.planner
    cells = range(4 * MIB // CHUNK)
    slow = next(cell for cell in cells if table.disk[cell] == 0)
    fast = [cell for cell in cells if table.disk[cell] == 1][::5]
    for _ in range(3):
        for cell in (slow, *fast, slow):
            await array.read(cell * CHUNK, 4096)
            await trio.sleep(1)
    measured, at_once = Speed(), Speed()
    measured.note(4096, 0.0009, 1, sequential=False)
    loads = [MemberLoad(0, measured, at_once, 0.0, 1), MemberLoad(1, at_once, at_once, 0.0, 1)]
    steps = planner.plan(loads, 0.0, 16).steps
    assert {step.moves[0][0] for step in steps} == {slow}


async def test_a_layout_with_fixed_places_has_no_tuner() -> None:
    async with open_array(await ram_array("raid5", 3, 4 * MIB, chunk_bytes=CHUNK)) as array:
        assert array.status()["tuner"] is None
        with pytest.raises(NotWithLayoutError):
            array.start_tuning()


async def test_a_balanced_array_moves_chunks_that_are_used_otherwise_than_before() -> None:
    array, model = await made([("hdd", 40), ("ssd", 16)])
    tuner = array.tuner
    assert tuner is not None
    await load(array, model, 1)
    await trio.sleep(120)
    assert tuner.state == "balanced"
    assert tuner.moved
    moved = tuner.moved
    await trio.sleep(60)
    cold = [c for c in range(len(model) // CHUNK) if layout_of(array).disk[c] == 0][:4]
    for _ in range(60):
        for chunk in cold:
            assert await array.read(chunk * CHUNK, 4096) == model[chunk * CHUNK :][:4096]
    await trio.sleep(60)
    assert tuner.moved > moved
    assert all(layout_of(array).disk[chunk] == 1 for chunk in cold)
