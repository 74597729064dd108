"""The session loop polls first: fast, and without its three traps (see fuse/session_loop.py)."""

from __future__ import annotations

import os
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing

from raidx_fuse.fuse import session_loop
from raidx_fuse.fuse import workers as workers
from tests.fuse.pipe_model import model, run_model, until

pytestmark = pytest.mark.real_time


async def test_handlers_that_suspend_hand_the_queue_over() -> None:
    release = trio.Event()
    started: list[int] = []

    async def handle(request: int) -> None:
        started.append(request)
        await release.wait()
        await trio.lowlevel.checkpoint()  # a second suspension in the same handler

    async with run_model(handle, workers=20) as made:
        await trio.testing.wait_all_tasks_blocked()  # one worker watches, nineteen are parked
        made.ask(*range(16))
        await until(lambda: len(started) == 16)
        assert made.readers.suspended == 16
        assert not made.done
        release.set()
        await until(lambda: len(made.done) == 16)
    assert started == list(range(16))
    assert made.readers.suspended == 0


async def test_workers_are_started_as_handlers_suspend() -> None:
    release = trio.Event()

    async def handle(request: int) -> None:
        if request:
            await release.wait()

    async with run_model(handle, workers=1) as made:
        made.ask(*[0] * 100)
        await until(lambda: len(made.done) == 100)
        assert made.readers.workers == 1
        made.ask(1, 1, 1, 0, 0)
        await until(lambda: len(made.done) == 102)
        assert made.readers.workers == 4
        made.ask(*[1] * (2 * workers.WORKERS_MAX))
        await until(lambda: made.readers.suspended == workers.WORKERS_MAX)
        await trio.testing.wait_all_tasks_blocked()
        assert made.readers.workers == workers.WORKERS_MAX
        release.set()
        await until(lambda: len(made.done) == 105 + 2 * workers.WORKERS_MAX)


@pytest.mark.parametrize("workers_max", [5, workers.WORKERS_MAX])
async def test_more_requests_than_workers_all_get_done(
    workers_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKERS_MAX", workers_max)

    async def handle(request: int) -> None:
        await trio.sleep(0.001 * (request % 3))

    async with run_model(handle, workers=5) as made:
        await trio.testing.wait_all_tasks_blocked()
        made.ask(*range(200))
        await until(lambda: len(made.done) == 200)
        made.ask(7)  # and the queue is still watched
        await until(lambda: len(made.done) == 201)


async def test_handlers_that_never_suspend_let_trio_run() -> None:
    passes = 0
    per_pass: list[int] = []

    async def handle(request: int) -> None:
        pass

    async with run_model(handle, workers=9) as made:
        made.ask(*[1] * 4000)
        done = 0
        while len(made.done) < 4000:
            await trio.lowlevel.checkpoint()
            passes += 1
            per_pass.append(len(made.done) - done)
            done = len(made.done)
    # Within a pass trio runs its tasks in any order, and a watcher may join; but not all nine.
    assert max(per_pass) <= 4 * workers.TURNS_MAX
    assert passes >= 4000 // (4 * workers.TURNS_MAX)


async def test_slow_handlers_that_never_suspend_let_trio_run_by_time() -> None:
    gaps_s: list[float] = []

    async def handle(request: int) -> None:
        end_s = trio.current_time() + 0.002
        while trio.current_time() < end_s:
            pass

    async with run_model(handle, workers=1) as made:
        made.ask(*[1] * 60)
        last_s = trio.current_time()
        while len(made.done) < 60:
            await trio.lowlevel.checkpoint()
            gaps_s.append(trio.current_time() - last_s)
            last_s = trio.current_time()
    # 48 requests of 2 ms would be 96 ms; the clock is asked after each fourth.
    assert sorted(gaps_s)[len(gaps_s) // 2] < 0.06
    assert len(gaps_s) >= 60 // 4


async def test_suspended_handlers_get_passes_sooner() -> None:
    release = trio.Event()

    async def handle(request: int) -> None:
        if request == 255:
            await release.wait()

    async with run_model(handle, workers=4) as made:
        made.ask(255)
        await until(lambda: made.readers.suspended == 1)
        passes = made.readers.passes
        made.ask(*[1] * 800)
        await until(lambda: len(made.done) == 800)
        assert made.readers.passes - passes >= 800 // (4 * workers.TURNS_MAX_IN_COMPANY)
        release.set()
        await until(lambda: len(made.done) == 801)


async def test_the_end_wakes_parked_workers_and_the_watcher() -> None:
    async def handle(request: int) -> None:
        pass

    async with run_model(handle, workers=9) as made:
        await trio.testing.wait_all_tasks_blocked()
    assert made.ended == 9


async def test_one_worker_that_ends_ends_all() -> None:
    async def handle(request: int) -> None:
        raise RuntimeError("the session is over")

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="session is over")):
        async with run_model(handle, workers=9) as made:
            await trio.testing.wait_all_tasks_blocked()
            made.ask(1)
            await trio.sleep_forever()


async def test_cancelled_workers_leave_in_order() -> None:
    async def handle(request: int) -> None:
        await trio.sleep_forever()

    with model(handle) as made, trio.move_on_after(0.05):
        async with trio.open_nursery() as nursery:
            made.nursery = nursery
            for _ in range(6):
                nursery.start_soon(made.work)
            made.ask(1, 2)
    assert made.readers.suspended == 0
    assert made.ended == made.readers.workers >= 6


async def test_a_request_withdrawn_after_the_look_does_no_harm() -> None:
    async def handle(request: int) -> None:
        await trio.lowlevel.checkpoint()

    async with run_model(handle, workers=3) as made:
        look = made.readers._look
        lies = iter([True, False, True, True, False])
        made.readers._look = lambda *a: look(*a) or ([(0, 1)] if next(lies, False) else [])
        made.ask(1, 2, 3)
        await until(lambda: len(made.done) == 3)


async def test_another_error_of_the_device_is_not_swallowed() -> None:
    async def handle(request: int) -> None:
        raise OSError(11, "a handler's own EAGAIN")

    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="handler's own")):
        async with run_model(handle, workers=2) as made:
            made.ask(1)
            await trio.sleep_forever()


async def test_an_unknown_pyfuse3_gets_its_own_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stock = (pyfuse3._wait_fuse_readable, pyfuse3._session_loop, pyfuse3.terminate)  # type: ignore[attr-defined]

    def names() -> tuple[Any, ...]:
        return (pyfuse3._wait_fuse_readable, pyfuse3._session_loop, pyfuse3.terminate)  # type: ignore[attr-defined]

    monkeypatch.setattr(pyfuse3, "__version__", "9.1.0")
    with session_loop.installed(0) as workers:
        assert workers is None
        assert names() == stock
    assert "stock loop" in caplog.text
    assert "9.1.0" in caplog.text
    monkeypatch.setattr(pyfuse3, "__version__", "3.5.0")
    monkeypatch.delattr(pyfuse3, "_wait_fuse_readable")
    assert "_wait_fuse_readable" in (session_loop.reason_against() or "")


async def test_the_replacement_is_taken_back() -> None:
    stock = (pyfuse3._wait_fuse_readable, pyfuse3._session_loop, pyfuse3.terminate)  # type: ignore[attr-defined]
    reading, writing = os.pipe()
    with session_loop.installed(reading) as workers:
        assert workers is not None
        assert pyfuse3._wait_fuse_readable == workers.wait  # type: ignore[attr-defined]
    os.close(reading)
    os.close(writing)
    assert stock == (
        pyfuse3._wait_fuse_readable,  # type: ignore[attr-defined]
        pyfuse3._session_loop,  # type: ignore[attr-defined]
        pyfuse3.terminate,
    )
