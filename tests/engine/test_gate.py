"""The gate: nobody is inside while places change, and nobody waits for ever."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.engine.gate import Gate, enter, leave
from raidx_fuse.errors import BusyError
from raidx_fuse.jobs.scrub import Scrub
from raidx_fuse.laws import LawError
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.spy import spied

PAGE = 4096
LIMIT_S = 30.0


def test_requests_and_changes_in_any_order_never_meet() -> None:
    """Requests, changes, and either of them cancelled at any point; some changes time out."""

    async def play(seed: int) -> None:
        rng = random.Random(seed)
        gate = Gate("the rig")
        inside, changes, refused = 0, 0, 0

        async def request() -> None:
            nonlocal inside
            await trio.sleep(rng.uniform(0, 100))
            with trio.move_on_after(rng.choice((1, 50, 1000))):
                entry = await gate.enter()
                inside += 1
                try:
                    await trio.sleep(rng.choice((0, 1, 10, 60)))
                finally:
                    inside -= 1
                    entry.leave()

        async def drain() -> None:
            assert not gate.is_closed
            await trio.sleep(rng.choice((0, 5)))

        async def change() -> None:
            nonlocal changes, refused
            await trio.sleep(rng.uniform(0, 100))
            with trio.move_on_after(rng.choice((1, 20, 1000))):
                try:
                    async with gate.closed(LIMIT_S, drain=drain):
                        for _ in range(3):
                            assert not inside
                            gate.require_empty("a change")
                            await trio.sleep(rng.choice((0, 1)))
                        changes += 1
                except BusyError:
                    refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(request)
            for _ in range(8):
                nursery.start_soon(change)
        assert not inside
        assert not gate.inside
        assert not gate.is_closed
        async with gate.closed(1):  # it is as at the beginning
            pass
        totals.append((changes, refused))

    totals: list[tuple[int, int]] = []
    for seed in range(40):
        run(play, seed, seed=seed)
    assert all(sum(column) for column in zip(*totals, strict=True))


async def test_a_change_that_cannot_wait_any_more_lets_the_others_go_on() -> None:
    gate = Gate("the rig")
    first = await gate.enter()
    order: list[str] = []

    async def change(name: str) -> None:
        try:
            async with gate.closed(LIMIT_S):
                order.append(f"{name} {trio.current_time() - start_s:.0f}")
        except BusyError as error:
            order.append(f"{name}: {error}")

    async def request(name: str) -> None:
        entry = await gate.enter()
        order.append(f"{name} {trio.current_time() - start_s:.0f}")
        entry.leave()

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(change, "first change")
        await trio.sleep(1)
        await request("while it waits for those before")
        second = await gate.enter()  # it comes when the gate is open, and stays
        await trio.sleep(1)
        first.leave()
        await trio.sleep(1)
        assert gate.is_closed
        nursery.start_soon(request, "meanwhile")
        nursery.start_soon(change, "second change")
        await trio.sleep(40)
        second.leave()
    assert order == [
        "while it waits for those before 1",
        "first change: requests of the rig did not end within 30 s; "
        "try again when less is under way",
        "meanwhile 32",
        "second change 43",
    ]


async def test_a_change_waits_for_all_who_came_before_it_however_many_looked_before() -> None:
    """Each look begins a new generation; somebody of the first one stays longest."""
    gate = Gate("the rig")
    left: list[str] = []

    async def request(name: str, from_s: float, until_s: float) -> None:
        await trio.sleep_until(start_s + from_s)
        entry = await gate.enter()
        await trio.sleep_until(start_s + until_s)
        left.append(name)
        entry.leave()

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(request, "first", 0, 20)
        nursery.start_soon(request, "second", 3, 10)
        nursery.start_soon(request, "third", 5, 12)  # before it closes
        await trio.sleep(1)
        with trio.move_on_after(1):
            await gate.passed()
        await trio.sleep(2)
        async with gate.closed(LIMIT_S):
            assert left == ["second", "third", "first"]
            assert not gate.inside


async def test_who_passes_by_a_gate_is_refused() -> None:
    volume, layout = Gate("volume v"), Gate("the array")
    async with volume.closed(LIMIT_S):
        with pytest.raises(LawError, match="entered the closed gate of volume v"):
            await enter(volume, layout)
    passage = await enter(volume, layout)
    for gate in (volume, layout):
        with pytest.raises(LawError, match="a change of extents under 1 requests of"):
            gate.require_empty("a change of extents")
    leave(passage)
    async with layout.closed(LIMIT_S), trio.open_nursery() as nursery:  # cancelled in front
        nursery.start_soon(enter, volume, layout)
        await trio.sleep(1)
        assert volume.inside == 1
        nursery.cancel_scope.cancel()
    assert not volume.inside
    rig = await spied("raid5", 4, chunk_bytes=PAGE)
    context = rig.array.context
    with pytest.raises(LawError, match="a change of the layout while requests may come"):
        context.take_layout(context.layout)
    async with context.closed():
        context.take_layout(context.layout)
        await context.locks.acquire(Stripe(0))
        with pytest.raises(LawError):
            context.take_layout(context.layout)
        context.locks.release(Stripe(0))


async def test_what_a_request_waits_for_goes_on_while_the_gate_is_closed() -> None:
    """Checkpoints, parity of logged data, mends, flushes and superblocks pass a closed gate.

    A request in front of it has no lock, so that none of them can wait for it.
    """
    rig = await spied("raid5", 4, chunk_bytes=PAGE, slow=True)
    array, context = rig.array, rig.array.context
    await rig.put(0, bytes(range(256)) * 300)
    await rig.put(100, b"logged")
    assert context.journal.ring.open
    async with trio.open_nursery() as nursery, context.closed(drained=False):
        nursery.start_soon(array.write, 0, b"later" * 100)
        nursery.start_soon(array.read, 0, 12 * PAGE)
        nursery.start_soon(array.discard, 0, 3 * PAGE)
        await trio.sleep(1)
        assert not context.locks.held
        await context.journal.drain()
        assert not context.journal.ring.open
        await array.flush()
        await array.member_set.update(lambda config: config)
        assert not context.gate.inside
    after = bytes(await array.read(0, PAGE))
    assert after in (bytes(PAGE), b"later" * 100 + bytes(PAGE - 500))


async def test_no_window_of_a_job_and_no_fast_write_is_under_way_while_the_gate_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, windows, writes = Scrub.work, [0], [0]

    async def slow_work(job: Scrub, stripes: list[Stripe]) -> int:
        windows.append(len(stripes))
        await trio.sleep(2)
        progress = await work(job, stripes)
        windows.append(0)
        return progress

    monkeypatch.setattr(Scrub, "work", slow_work)
    rig = await spied("raid5", 4, chunk_bytes=PAGE)
    array, context = rig.array, rig.array.context
    await rig.put(0, bytes(range(256)) * 16 * 60)
    await rig.in_place()
    number = await array.start_scrub(repair=False)
    (job,) = array.jobs.running()
    job.window = 1

    async def write() -> None:
        while not job.finished.is_set():
            await array.write(PAGE, b"small, which does not suspend")
            writes[0] += 1
            await trio.sleep(0.5)

    closed = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(1)
        while not job.finished.is_set():
            async with context.closed(drained=False):
                before = len(windows), writes[0]
                assert windows[-1] == 0
                await trio.sleep(5)
                assert (len(windows), writes[0]) == before
                closed += 1
            await trio.sleep(0.7)
    assert (await array.jobs.wait(number))["state"] == "done"
    assert closed > 3
    assert len(windows) > 9


@pytest.mark.parametrize("mode", ["none", "full"])
async def test_a_lock_that_is_kept_lets_no_change_begin_and_holds_requests_up_for_a_while(
    mode: str,
) -> None:
    rig = await spied("raid5", 4, chunk_bytes=PAGE)
    array, context = rig.array, rig.array.context
    await rig.put(0, bytes(PAGE))
    await context.locks.acquire(Stripe(0))  # a mend, say

    async def change() -> None:
        with pytest.raises(BusyError, match="requests of the array did not end within 30"):
            await array.set("journal", mode)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await trio.sleep(1)
        start_s = trio.current_time()
        await array.write(9 * PAGE, b"another stripe")  # waits in front of the gate
        assert 28 < trio.current_time() - start_s < 31
    context.locks.release(Stripe(0))
    assert context.journal.mode == "partial"
    await array.set("journal", mode)
    assert context.journal.mode == mode
