"""Questions to the host in threads: answers, errors, time limits, and abandoned threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from raidx_fuse.errors import BusyError, RaidxError, Reason
from raidx_fuse.members import threads
from raidx_fuse.members.simulated.virtual_time import VirtualClock, run
from raidx_fuse.members.threads import in_thread
from tests.support.reasons import because

pytestmark = pytest.mark.real_time


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate that opens at the end, whatever happens."""
    event = threading.Event()
    yield event
    event.set()


def test_what_a_call_returns_or_raises_comes_back() -> None:
    def fail() -> int:
        raise KeyError("x")

    async def main() -> None:
        here = threading.get_ident()
        virtual = isinstance(trio.lowlevel.current_clock(), VirtualClock)
        assert (await in_thread("it", threading.get_ident) == here) is virtual
        with pytest.raises(KeyError):
            await in_thread("it", fail)

    trio.run(main)
    run(main)  # in virtual time there is no thread: no seed would decide when it ends


async def test_a_host_that_does_not_answer_is_given_up_and_what_comes_late_is_discarded(
    gate: threading.Event,
) -> None:
    discarded: list[str] = []
    done = threading.Event()

    def hang() -> str:
        gate.wait(20)
        return "a descriptor"

    def discard(what: str) -> None:
        discarded.append(what)
        done.set()

    others = 0

    async def tick() -> None:
        nonlocal others
        while True:
            others += 1
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        with pytest.raises(RaidxError, check=because(Reason.NO_ANSWER)):
            await in_thread("/nfs/x", hang, limit_s=0.1, discard=discard)
        with trio.move_on_after(0.05):  # a command that is cancelled
            await in_thread("/nfs/x", hang, discard=discard)
        nursery.cancel_scope.cancel()
    assert others > 3  # nobody else waited
    assert discarded == []
    gate.set()
    await in_thread("it", lambda: done.wait(10))
    assert discarded[:1] == ["a descriptor"]


async def test_a_result_that_arrives_as_its_caller_leaves_is_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread has put its result down, and the loop learns of it after the caller has left."""
    arrived, discarded = threading.Event(), threading.Event()
    put = threads.Completions.put
    late: list[threads.Job] = []
    here: list[threads.Completions] = []

    def put_late(completions: threads.Completions, job: threads.Job) -> None:
        if completions not in here:  # a thread of an earlier run, whose call ends now
            put(completions, job)
            return
        late.append(job)
        arrived.set()

    monkeypatch.setattr(threads.Completions, "put", put_late)
    here.append(threads._current_completions())
    with trio.CancelScope() as scope:

        async def leave() -> None:
            await trio.testing.wait_all_tasks_blocked()
            assert arrived.wait(10)  # on the loop: nobody else runs meanwhile
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            await in_thread("it", lambda: 1, discard=lambda _: discarded.set())
    assert scope.cancelled_caught
    assert discarded.wait(10)
    (job,) = late
    put(job.completions, job)  # which wakes nobody
    await trio.testing.wait_all_tasks_blocked()


def test_questions_without_an_answer_are_bounded(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_calls", threading.BoundedSemaphore(3))
    ended = threading.Semaphore(0)

    def hang() -> None:
        gate.wait(20)
        ended.release()

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(RaidxError, check=because(Reason.NO_ANSWER)):
                    await in_thread("it", hang, limit_s=0.05)

            for _ in range(3):
                nursery.start_soon(ask)
            await trio.sleep(0.1)
            with pytest.raises(BusyError, check=because(Reason.NO_ANSWER)):
                await in_thread("it", lambda: 1)
        gate.set()
        for _ in range(3):
            ended.acquire()
        with trio.fail_after(10):
            while True:
                try:
                    assert await in_thread("it", lambda: 1) == 1
                    return
                except BusyError:
                    await trio.sleep(0.01)  # the thread is about to end

    trio.run(main)


def test_no_thread_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def main(call: Callable[[], int]) -> None:
        with pytest.raises(RaidxError, check=because(Reason.SHORTAGE)):
            await in_thread("it", call)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    trio.run(main, lambda: 1)
