"""Virtual time: exact jumps, determinism by seed, deadlocks, real work outside."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
import trio
import trio.testing
from trio._core import _run as _trio_run  # what `run` swaps there

from raidx_fuse.errors import RaidxError
from raidx_fuse.members.simulated import virtual_time
from raidx_fuse.members.simulated.virtual_time import (
    DeadlockError,
    VirtualClock,
    begin_anew,
    run,
    sleep,
    sleep_until,
)
from raidx_fuse.members.threads import Workers


def test_time_is_exact_and_stands_still_while_tasks_run() -> None:
    async def main() -> None:
        assert trio.current_time() == 0
        await trio.sleep(86400)
        assert trio.current_time() == 86400
        await sleep_until(2e9)
        assert trio.current_time() == 2e9
        await sleep_until(0)
        assert trio.current_time() == 2e9
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        assert trio.current_time() == 2e9

    run(main)


def test_a_trio_without_a_private_name_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(_trio_run, "_r")
    with pytest.raises(RaidxError, match=r"^virtual time does not fit trio [\d.]+, .*has no _r; "):
        run(trio.sleep, 1.0)


def test_a_trio_without_that_module_still_serves_product_code() -> None:
    # The model of a member, which a user may name, imports virtual time; only `run` needs the rest.
    program = """
import sys, trio, trio._core
sys.modules["trio._core._run"] = None
del trio._core._run
from raidx_fuse.errors import RaidxError
from raidx_fuse.members import open
from raidx_fuse.members.simulated import virtual_time
trio.run(virtual_time.sleep, 0.001)
try:
    virtual_time.run(trio.sleep, 1)
except RaidxError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    wanted = "virtual time does not fit trio .*, which has no GLOBAL_RUN_CONTEXT; install"
    assert re.match(wanted, done.stdout), done


async def test_both_kinds_of_sleep_wake_in_order_of_time() -> None:
    woken: list[float] = []

    async def sleeper(delay_s: float, plain: bool) -> None:
        pause = trio.sleep if plain else sleep
        await pause(delay_s)
        assert trio.current_time() == delay_s
        woken.append(delay_s)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(sleeper, float(number * 7 % 50), number % 3 == 0)
    assert woken == sorted(woken)


async def test_a_cancelled_sleeper_does_not_move_time() -> None:
    with trio.move_on_after(1):
        await sleep(100)
    assert trio.current_time() == 1
    with trio.move_on_after(5):
        await sleep(math.inf)
    assert trio.current_time() == 6


async def test_waiting_for_idle_tasks_takes_no_time() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 10)
        nursery.start_soon(sleep, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 0


def test_the_seed_decides_the_interleaving() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def worker(number: int) -> None:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
                order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(worker, number)
        return order

    orders = [tuple(run(main, seed=seed)) for seed in range(5)]
    assert orders == [tuple(run(main, seed=seed)) for seed in range(5)]
    assert len(set(orders)) > 1


def test_a_deadlock_is_reported_with_the_places() -> None:
    async def main() -> None:
        async def stuck_child() -> None:
            await trio.Event().wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stuck_child)
            await trio.sleep(1000)
            await trio.Event().wait()

    with pytest.raises(DeadlockError) as caught:
        run(main, stall_s=0.05)
    assert "in stuck_child" in str(caught.value)
    assert "in main" in str(caught.value)


def test_tasks_that_run_without_end_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "_TURNS_MAX", 1000)

    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            nursery.start_soon(spin)

    with pytest.raises(DeadlockError, match="run without end") as caught:
        run(main)
    assert "in spin" in str(caught.value)


def test_results_and_errors_come_through_and_the_scheduler_is_put_back() -> None:
    async def good(value: int) -> int:
        return value

    async def bad() -> None:
        raise LookupError("x")

    module = vars(trio._core._run)
    before = module["_r"], module["_ALLOW_DETERMINISTIC_SCHEDULING"]
    assert run(good, 7) == 7
    with pytest.raises(LookupError):
        run(bad)
    assert (module["_r"], module["_ALLOW_DETERMINISTIC_SCHEDULING"]) == before


def test_time_waits_for_work_in_threads_and_that_is_no_deadlock() -> None:
    gate = threading.Event()
    workers = Workers("worker", 1, lambda: None)

    def wait() -> None:
        gate.wait(10)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1000)
            threading.Timer(0.15, gate.set).start()
            await workers.do(wait)
            assert trio.current_time() == 0
            with trio.move_on_after(5):
                nursery.start_soon(workers.do, lambda: None)
                await sleep(20)
        assert trio.current_time() == 1000

    run(main, stall_s=0.05)
    workers.stop()


async def test_errors_in_threads_reach_the_caller() -> None:
    workers = Workers("worker", 2, lambda: None)

    def work() -> None:
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await workers.do(work)
    workers.stop()


def test_the_clock_alone_serves_trio_run_too() -> None:
    async def main() -> float:
        await trio.sleep(50)
        return trio.current_time()

    assert trio.run(main, clock=VirtualClock()) == 50


async def test_a_threads_answer_is_heard_while_tasks_keep_running() -> None:
    heard = trio.Event()
    token = trio.lowlevel.current_trio_token()
    thread = threading.Thread(target=token.run_sync_soon, args=(heard.set,))
    thread.start()
    thread.join()  # the answer is there: how fast threads of this machine are does not matter
    turns = 0
    while not heard.is_set():
        await trio.lowlevel.checkpoint()
        turns += 1
        assert turns < 200  # the kernel is polled each 64 turns; trio's own task then needs some


async def test_the_kernel_is_asked_seldom_while_tasks_can_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    manager = type(lowlevel_manager())
    original = manager.get_events

    def counted(self: Any, timeout_s: float) -> Any:
        asked.append(timeout_s)
        return original(self, timeout_s)

    monkeypatch.setattr(manager, "get_events", counted)
    for _ in range(1000):
        await trio.lowlevel.checkpoint()
    await sleep(3)
    assert len(asked) < 50
    asked.clear()
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, VirtualClock)
    clock.hold()  # real work is under way
    for _ in range(100):
        await trio.lowlevel.checkpoint()
    clock.release()
    assert len(asked) >= 100


def lowlevel_manager() -> Any:
    """Return the I/O manager of the loop that runs, below the one that asks seldom."""
    runner: Any = _trio_run.GLOBAL_RUN_CONTEXT.runner
    return runner.io_manager._manager


# -- one run after the other in one loop ---------------------------------------------------------


async def _story(tasks: int) -> list[tuple[float, int]]:
    """Return who ran when: the scheduler and the clock decide."""
    story: list[tuple[float, int]] = []

    async def teller(number: int) -> None:
        for turn in range(4):
            story.append((trio.current_time(), number))
            if turn % 2:
                await sleep(number % 3)
            else:
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(teller, number)
        with trio.move_on_after(1.5):
            await sleep(99)
    return story


def test_to_begin_anew_is_to_run_alone() -> None:
    async def all_in_one() -> list[list[tuple[float, int]]]:
        return [await begin_anew(_story, 8, seed=seed) for seed in range(20)]

    alone = [run(_story, 8, seed=seed) for seed in range(20)]
    assert run(all_in_one, seed=5) == alone
    assert alone[0] != alone[1]


def test_a_deadlock_after_a_new_beginning_ends_that_one_alone() -> None:
    async def main() -> None:
        with pytest.raises(DeadlockError, match="nothing is due"):
            await begin_anew(trio.Event().wait)
        assert await begin_anew(_story, 2) == alone

    alone = run(_story, 2)
    run(main, stall_s=0.05)


async def test_nobody_sees_time_go_back() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep, 5.0)
        with pytest.raises(AssertionError, match="other tasks of the run"):
            await begin_anew(_story, 2)
