"""Deferred replies when a session ends or breaks; and random sequences of everything."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from raidx_fuse.errors import RaidxError
from raidx_fuse.fuse import workers
from raidx_fuse.journal.group_commit import HELD_MAX
from tests.fuse.held_model import Log, run_watched
from tests.fuse.pipe_model import DEFERRAL, model, run_model, until

pytestmark = pytest.mark.real_time


async def test_the_session_ends_with_held_loops() -> None:
    log = Log()
    async with run_watched(log.write) as made:
        made.ask(*range(5))
        made.unmount()  # behind the five: the loop in front sees the end
        await until(lambda: made.ended == 1)
        await until(lambda: len(made.done) == 5)
    assert sorted(made.done) == [*range(5)]  # each by itself
    assert log.records == [[*range(5)]]


@pytest.mark.parametrize("ending", [0, 3, 7, 8, 12])
async def test_a_handler_sees_the_end_while_others_are_held(ending: int) -> None:
    log = Log()

    async def handle(request: int) -> None:
        await log.write(request)
        if request == ending:
            made.terminate()

    async with run_model(handle, workers=3) as made:
        made.ask(*range(20))
        await until(lambda: made.readers.ended)
        await until(lambda: made.ended == made.readers.workers)
    assert sorted(made.done) == [*range(len(made.done))]
    assert len(made.done) > ending
    assert sorted(sum(log.records, log.alone)) == sorted(made.done)
    assert made.buffers == 0
    assert made.readers.suspended == 0
    assert not DEFERRAL.holds


@pytest.mark.parametrize("held_count", [3, HELD_MAX])
async def test_a_spare_takes_nothing_after_the_end(held_count: int) -> None:
    log = Log()
    log.lates = [True]
    last: list[int] = []
    async with run_watched(log.write, workers=4) as made:
        await trio.testing.wait_all_tasks_blocked()
        made.ask(*range(held_count + 1))  # the loop in front stands where it asked for the release
        await until(lambda: made.readers.suspended == held_count)
        log.come()
        await until(lambda: len(made.done) == held_count + 1)
        made.ask(*range(100, 120))
        made.terminate()
        await until(lambda: made.ended == made.readers.workers)
        last.extend(made.done)
    assert made.done == last
    assert len(last) < held_count + 20


async def test_an_error_in_front_is_loud_and_those_held_are_answered() -> None:
    log = Log()

    async def handle(request: int) -> None:
        if request == 9:
            raise RuntimeError("the session is over")
        await log.write(request)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="session is over")):
        async with run_watched(handle, workers=3) as made:
            made.ask(1, 2, 3, 9, 4)
            await trio.sleep_forever()
    assert {1, 2, 3} <= set(made.done)  # another worker may have taken the last one
    assert log.records[0] == [1, 2, 3]


async def test_an_error_of_one_that_was_held_is_loud_and_the_others_are_answered() -> None:
    log = Log()

    async def handle(request: int) -> None:
        await log.write(request)
        if request == 2:
            raise RaidxError("the session is over")

    with pytest.RaisesGroup(pytest.RaisesExc(RaidxError, match="session is over")):
        async with run_watched(handle, workers=3) as made:
            made.ask(1, 2, 3, 4)
            await trio.sleep_forever()
    assert sorted(made.done) == [1, 3, 4]
    assert log.records == [[1, 2, 3, 4]]


async def test_what_no_record_holds_is_not_answered() -> None:
    log = Log()
    log.broken = True

    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError, match="cannot be made")):
        async with run_watched(log.write, workers=3) as made:
            made.ask(1, 2, 3)
            await trio.sleep_forever()
    assert not made.done


async def test_cancelled_while_a_record_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may stop us for longer than a turn: only the number of requests ends one here.
    monkeypatch.setattr(workers, "TURN_TIME_MAX_S", 20.0)
    log = Log()
    log.lates = [True]

    cancelled: list[int] = []

    async def handle(request: int) -> None:
        try:
            await log.write(request)
        except trio.Cancelled:
            cancelled.append(request)
            raise

    with model(handle) as made, trio.move_on_after(5) as scope:
        async with trio.open_nursery() as nursery:
            made.nursery = nursery
            for _ in range(2):
                nursery.start_soon(made.work)
            DEFERRAL.wrote = True
            made.ask(*range(6))
            await until(lambda: made.readers.suspended == 6)
            scope.cancel()
    assert made.readers.suspended == 0
    assert made.ended == made.readers.workers
    assert not made.done
    assert sorted(cancelled) == [*range(6)]
    assert not DEFERRAL.holds


# ---- everything at once ----


@pytest.mark.parametrize("seed", range(12))
async def test_none_is_lost_whatever_comes(seed: int) -> None:
    draw = random.Random(seed)
    logs = Log(), Log()
    for log in logs:
        log.lates = [draw.random() < 0.2 for _ in range(1000)]
    kinds = [draw.choice("wwwwwwwwrsdd") for _ in range(256)]

    async def handle(request: int) -> None:
        kind = kinds[request]
        if kind in "wd":
            await logs[request & 1].write(request)
        if kind == "s":
            await trio.sleep(0.0001 * (request % 4))
        if kind == "d" and request % 3 == 0:
            await trio.lowlevel.checkpoint()

    async with run_watched(handle, workers=draw.choice((1, 4))) as made:
        asked: list[int] = []

        async def come() -> None:
            while True:
                await trio.sleep(draw.random() * 0.002)
                for log in logs:
                    log.come()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come)
            for _ in range(60):
                burst = [draw.randrange(256) for _ in range(draw.choice((1, 2, 8, 9, 30)))]
                asked += burst
                made.ask(*burst)
                if draw.random() < 0.7:
                    await trio.sleep(draw.random() * 0.002)
            await until(lambda: len(made.done) == len(asked))
            nursery.cancel_scope.cancel()
        assert sorted(made.done) == sorted(asked)
        written = [request for log in logs for record in log.records for request in record]
        written += [request for log in logs for request in log.alone]
        assert sorted(written) == sorted(request for request in asked if kinds[request] in "wd")
        assert sum(len(log.records) for log in logs) < len(written)
