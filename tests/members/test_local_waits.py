"""Local members that wait: for flushes, and for threads that hang."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import trio

from raidx_fuse.errors import BusyError, MemberError
from raidx_fuse.members import local
from raidx_fuse.members.base import WriteBuffer
from raidx_fuse.members.local import LocalMember

pytestmark = pytest.mark.real_time

# -- durability ------------------------------------------------------------------------------------


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The fdatasync calls made; while the list's first item is -1 they fail."""
    calls: list[int] = []

    def fdatasync(fd: int) -> None:
        calls.append(fd)
        if calls[0] == -1:
            raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return calls


async def test_a_flush_with_nothing_to_flush_is_free(member: LocalMember, syncs: list[int]) -> None:
    await member.flush()
    assert len(syncs) == 1, "the first one covers what a killed process may have left"
    await member.flush()
    assert len(syncs) == 1
    member.try_writev(0, [b"x"])
    await member.flush()
    await member.writev(0, [b"x"])
    await member.flush()
    await member.punch(0, 4096)
    await member.flush()
    assert len(syncs) == 4
    await member.flush()
    assert len(syncs) == 4


async def test_a_second_flush_does_not_overtake_the_first(
    member: LocalMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    begun: list[int] = []

    def fdatasync(fd: int) -> None:
        begun.append(fd)
        gate.wait(10)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    returned: list[int] = []

    async def flush(number: int) -> None:
        await member.flush()
        returned.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush, 1)
        nursery.start_soon(flush, 2)
        await eventually(lambda: len(begun) == 2)
        assert not returned
        gate.set()


async def test_a_failed_flush_stays_failed(member: LocalMember, syncs: list[int]) -> None:
    syncs.append(-1)

    member.try_writev(0, [b"x"])
    with pytest.raises(MemberError) as caught:
        await member.flush()
    assert caught.value.errno == errno.EIO
    syncs[0] = 0
    with pytest.raises(MemberError, match="an earlier flush lost data"):
        await member.flush()


# -- threads that hang -----------------------------------------------------------------------------


class StuckMember(LocalMember):
    """Reads and writes through threads wait for *gate*, as on a dead network disk."""

    def __init__(self, path: str, depth: int = 4) -> None:
        super().__init__(path, depth=depth)
        self.gate = threading.Event()
        self.stuck = True

    def _read_all(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        if self.stuck:
            self.gate.wait(30)
        super()._read_all(offset_bytes, buffers)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait in real time for something that a thread does."""
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110  # a thread sets no trio event
            await trio.sleep(0.002)


async def test_a_hanging_operation_can_be_abandoned(path: str) -> None:
    member = StuckMember(path)
    buffer = bytearray(512)
    with trio.move_on_after(0.02) as scope:
        await member.readv(0, [buffer])
    assert scope.cancelled_caught
    member.stuck = False
    await member.writev(0, [b"others go on"])
    await member.flush()
    member.close()
    with pytest.raises(BusyError):  # a late write of this mount would hit the next one's data
        LocalMember(path)
    member.gate.set()
    await eventually(lambda: _free(path))


def _free(path: str) -> bool:
    try:
        LocalMember(path).close()
    except BusyError:
        return False
    return True


async def test_an_abandoned_operation_that_never_began_never_does(path: str) -> None:
    member = StuckMember(path, depth=1)
    with trio.move_on_after(0.02):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.readv, 0, [bytearray(1)])
            await trio.sleep(0.005)
            nursery.start_soon(member.writev, 0, [b"late"])
    member.gate.set()
    member.stuck = False
    buffer = bytearray(4)
    await member.readv(0, [buffer])
    assert buffer == bytes(4)
    member.close()


async def test_closing_ends_the_threads(path: str) -> None:
    member = LocalMember(path)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(partial(member.readv, 0, [bytearray(4096)]))
    assert 1 <= _threads(path) <= local.DEPTH
    member.close()
    await eventually(lambda: not _threads(path))


def _threads(path: str) -> int:
    return sum(thread.name.startswith(path) for thread in threading.enumerate())


def test_a_hanging_thread_does_not_keep_the_process(path: str) -> None:
    script = textwrap.dedent("""
        import sys, threading, trio
        from raidx_fuse.members.local import LocalMember

        class Stuck(LocalMember):
            def _read_all(self, offset_bytes, buffers):
                threading.Event().wait()

        async def main():
            member = Stuck(sys.argv[1])
            with trio.move_on_after(0.05):
                await member.readv(0, [bytearray(1)])
            member.close()
            print("left")

        trio.run(main)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, path],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_a_run_that_ended_meanwhile_is_no_harm(path: str) -> None:
    member = StuckMember(path)

    async def leave() -> None:
        with trio.move_on_after(0.02):
            await member.readv(0, [bytearray(1)])

    trio.run(leave)
    member.stuck = False
    member.gate.set()

    async def again() -> None:
        await member.writev(0, [b"next run"])

    trio.run(again)
    member.close()
