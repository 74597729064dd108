"""Deferred replies: which handlers are held, and until when (fuse/workers.py).

test_deferred_replies_ends.py has sessions that end.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from raidx_fuse.fuse import workers as workers
from raidx_fuse.fuse.operations import VolumeOperations
from raidx_fuse.journal.group_commit import HELD_MAX
from raidx_fuse.pool.volume import Volume
from tests.fuse.held_model import Log, ask_and_wait, run_watched
from tests.fuse.pipe_model import DEFERRAL, until

pytestmark = pytest.mark.real_time

# ---- what is held, and until when ----


async def test_as_many_as_may_be_held_share_a_record() -> None:
    log = Log()
    answered: list[int] = []

    async def handle(request: int) -> None:
        await log.write(request)
        answered.append(len(log.records))

    async with run_watched(handle) as made:
        await ask_and_wait(made, *range(20))
    assert HELD_MAX == 8
    assert log.records == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]
    assert answered == [1] * 8 + [2] * 8 + [3] * 4
    assert made.done == [*range(20)]
    assert made.readers.workers == 1


async def test_loops_are_used_again() -> None:
    log = Log()
    most = 0
    async with run_watched(log.write) as made:
        for begin in range(0, 200, 20):
            made.ask(*range(begin, begin + 20))
            await until(lambda end=begin + 20: len(made.done) == end)  # type: ignore[misc]
            most = max(most, made.buffers)
    assert made.done == [*range(200)]
    assert most == HELD_MAX + 1


async def test_the_end_of_a_turn_writes_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "TURNS_MAX", 4)
    log = Log()
    async with run_watched(log.write) as made:
        await ask_and_wait(made, *range(40))
    assert made.done == [*range(40)]
    assert {len(record) for record in log.records[:-1]} <= {3, 4}
    assert made.readers.passes >= 10


async def test_one_that_asks_again_only_when_answered_is_never_held() -> None:
    log = Log()
    async with run_watched(log.write, workers=3) as made:
        await trio.testing.wait_all_tasks_blocked()
        for request in range(50):
            made.ask(request)
            await until(lambda n=request + 1: len(made.done) == n)  # type: ignore[misc]
    assert log.alone == [*range(50)]
    assert not log.records


async def test_one_that_came_while_a_worker_looked_on_is_not_held() -> None:
    log = Log()

    async def handle(request: int) -> None:
        if request:  # the other is a read: the batch is still open when the queue is empty
            await log.write(request)

    async with run_watched(handle) as made:
        later = iter([7])

        def spin() -> bool:
            for request in later:
                made.ask(request)
                return True
            return False

        made.readers._spin = spin  # type: ignore[method-assign]
        made.ask(0)
        await until(lambda: len(made.done) == 2)
    assert made.done == [0, 7]
    assert (log.records, log.alone) == ([], [7])


async def test_writes_among_reads_are_not_held() -> None:
    log = Log()

    async def handle(request: int) -> None:
        if request % 3 == 0:
            await log.write(request)

    async with run_watched(handle, wrote=False) as made:
        await ask_and_wait(made, *range(120))
    assert made.done == [*range(120)]
    assert (log.records, log.alone) == ([], [*range(0, 120, 3)])


async def test_a_read_behind_writes_that_are_held_lets_them_go() -> None:
    log = Log()

    async def handle(request: int) -> None:
        if request % 10 < 4:
            await log.write(request)

    async with run_watched(handle, wrote=False) as made:
        await ask_and_wait(made, *range(60))
    for write in log.alone + [request for record in log.records for request in record]:
        assert made.done.index(write) - write <= 4, "it waited for more than one read"
    assert log.records == [[ten + 1, ten + 2, ten + 3] for ten in range(0, 60, 10)]


async def test_two_logs_each_write_their_own() -> None:
    logs = Log(), Log()
    async with run_watched(lambda request: logs[request & 1].write(request)) as made:
        await ask_and_wait(made, *range(12))
    assert made.done == [*range(12)]
    assert logs[0].records == [[0, 2, 4, 6], [8, 10]]
    assert logs[1].records == [[1, 3, 5, 7], [9, 11]]


async def test_what_was_held_goes_on_by_itself() -> None:
    log = Log()

    async def handle(request: int) -> None:
        await log.write(request)
        await log.write(100 + request)  # of a request in two parts, say

    async with run_watched(handle) as made:
        await ask_and_wait(made, *range(10))
    assert sorted(made.done) == [*range(10)]
    assert log.records == [[*range(8)], [8, 9]]
    assert sorted(log.alone) == [*range(100, 110)]


async def test_a_writer_that_wants_durability_is_not_held() -> None:
    seen: list[tuple[str, bool]] = []

    async def write(offset: int, data: bytes) -> None:
        seen.append(("write", DEFERRAL.holds))

    async def flush() -> None:
        seen.append(("flush", DEFERRAL.holds))

    async def read(offset: int, size: int) -> bytes:
        return bytes(size)

    volume = Volume("disk", 1 << 20, read=read, write=write, flush=flush)
    operations = VolumeOperations([volume], started=lambda: None, mounted_ns=0, deferral=DEFERRAL)
    for handle in (0, 1):
        DEFERRAL.allow(True)
        try:
            await operations.write(handle, 0, b"data")
        finally:
            DEFERRAL.allow(False)
    assert seen == [("write", True), ("write", False), ("flush", False)]


# ---- handlers that suspend ----


async def test_nobody_waits_for_a_handler_that_suspends() -> None:
    log = Log()
    release = trio.Event()

    async def handle(request: int) -> None:
        if request == 99:
            await release.wait()
        else:
            await log.write(request)

    async with run_watched(handle) as made:
        made.ask(1, 2, 3, 99, 4, 5)
        await until(lambda: len(made.done) == 5)
        assert sorted(made.done) == [1, 2, 3, 4, 5]
        assert log.records[0] == [1, 2, 3]
        assert log.alone == [4, 5]  # not held: a suspended one waits for a pass of trio
        assert made.readers.suspended == 1
        release.set()
        await until(lambda: len(made.done) == 6)
        assert made.readers.suspended == 0
        made.ask(*range(10, 18))
        await until(lambda: len(made.done) == 14)
        assert made.readers.suspended == 0
    assert made.readers.workers == 2


async def test_a_late_record_is_waited_for_by_all_of_it() -> None:
    log = Log()
    log.lates = [True]
    async with run_watched(log.write) as made:
        made.ask(*range(HELD_MAX))
        await until(lambda: made.readers.suspended == HELD_MAX)
        await trio.testing.wait_all_tasks_blocked()
        assert not made.done
        made.ask(50, 51)  # others are served meanwhile
        await until(lambda: sorted(made.done) == [50, 51])
        log.come()
        await until(lambda: len(made.done) == HELD_MAX + 2)
        assert made.readers.suspended == 0
        made.ask(*range(60, 80))
        await until(lambda: len(made.done) == HELD_MAX + 22)
    assert sorted(made.done) == [*range(HELD_MAX), 50, 51, *range(60, 80)]
    assert log.records[0] == [*range(HELD_MAX)]


async def test_those_behind_one_that_suspends_go_on_without_it() -> None:
    log = Log()
    release = trio.Event()

    async def handle(request: int) -> None:
        await log.write(request)
        if request == 2:
            await release.wait()

    async with run_watched(handle) as made:
        made.ask(*range(6))
        await until(lambda: len(made.done) == 5)
        assert made.done[:2] == [0, 1]
        assert sorted(made.done) == [0, 1, 3, 4, 5]
        assert made.readers.suspended == 1
        release.set()
        await until(lambda: len(made.done) == 6)
    assert made.readers.workers == 2
    assert log.records == [[*range(6)]]


async def test_a_request_withdrawn_after_the_look_while_others_are_held() -> None:
    log = Log()
    async with run_watched(log.write) as made:
        readers, busy = made.readers, made.readers.busy_poll
        look, look_at_all = readers._look, busy._look
        lies, more_lies = iter([True, False]), iter([True])
        readers._look = lambda *a: look(*a) or ([(0, 1)] if next(lies, False) else [])
        phantom = [(readers.device_fd, 1)]
        busy._look = lambda *a: look_at_all(*a) or (phantom if next(more_lies, False) else [])
        busy._allowed = True
        made.ask(1, 2, 3)
        await until(lambda: len(made.done) == 3)
        assert next(more_lies, None) is None
        made.buffers -= 2  # those lies' loops end where pyfuse3 cannot free its buffer either
    assert made.done == [1, 2, 3]
    assert log.records == [[1, 2, 3]]
